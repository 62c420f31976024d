"""How the operators' commands print: tables for people, JSON for scripts, progress for whoever watches.

Everything that comes out of messages goes through `one_line`, or through `printable_json` if it is JSON: nothing in it
moves a cursor, turns the direction of writing or hides.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from redrive.operations.canary import step_count
from redrive.operations.operation import Operation, OperationState
from redrive.recovery.durations import format_roughly
from redrive.text import group_digits, pluralise, printable_json

number = group_digits
counted = partial(pluralise, shown=number)


def out() -> Console:
    return Console(highlight=False, soft_wrap=True)


def note(text: str) -> None:
    click.echo(text, err=True)


def as_json(value: Any) -> None:
    click.echo(printable_json(msgspec.json.encode(_with_names(value)).decode()))


def _with_names(value: Any) -> Any:
    """Named tuples as objects, as everything else that has names; msgspec would make lists of them."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: _with_names(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {name: _with_names(each) for name, each in value._asdict().items()}
    if isinstance(value, msgspec.Struct):
        return {name: _with_names(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, Mapping):
        return {_with_names(name): _with_names(each) for name, each in value.items()}
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()  # what was no text in a message is none in JSON
    return [_with_names(each) for each in value] if isinstance(value, list | tuple) else value


def label(name: str) -> str:
    """Return the name of a count as people read it."""
    return name.replace("_", " ")


def ago(moment: datetime | None, now: datetime | None = None) -> str:
    if moment is None:
        return "-"
    age = (now or datetime.now(UTC)) - moment
    return f"{format_roughly(age)} ago" if age.total_seconds() >= 0 else "in the future"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, right: Sequence[str] = ()) -> None:
    """Columns of plain text, as wide as they must be; the last one takes what is left of the terminal."""
    made = Table(box=None, pad_edge=False, show_header=True, header_style="dim")
    for column in columns:
        made.add_column(column, justify="right" if column in right else "left", no_wrap=True, overflow="ellipsis")
    for row in rows:
        made.add_row(*(Text(cell) for cell in row))
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=1000)
    console.print(made)


class Progress:
    """One line on stderr that tells how far an operation is; lines of its own where nobody can see it change."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._last = ""
        self._began: tuple[float, int] | None = None
        self._state: OperationState | None = None

    def show(self, operation: Operation, now: float) -> None:
        line = self._line(operation, now)
        if self._live:
            click.echo(f"\r\x1b[2K{line}", nl=False, err=True)
        elif operation.state is not self._state:
            click.echo(line, err=True)
        self._state = operation.state

    def end(self) -> None:
        if self._live and self._state is not None:
            click.echo(err=True)

    def _line(self, operation: Operation, now: float) -> str:
        counts, order = operation.counts, operation.order
        total = operation.total
        if self._began is None:
            self._began = now, counts.moved
        seconds, moved = now - self._began[0], counts.moved - self._began[1]
        rate = moved / seconds if seconds > 0.5 else None
        parts = [f"{operation.id[:11]}…"]
        if order.ramp is not None:
            parts.append(f"step {operation.step}/{step_count(order.ramp)}")
        parts.append(_bar(counts.moved, total))
        parts.append(f"{number(counts.moved)}/{number(total)}" if total is not None else number(counts.moved))
        noted = {
            "skipped": counts.skipped,
            "failed": counts.failed,
            "possibly duplicated": counts.possibly_duplicated,
        }
        parts += [f"{name} {number(count)}" for name, count in noted.items() if count]
        if order.ramp is not None:
            parts.append(f"returned {number(counts.returned)}")
        if operation.state is not OperationState.RUNNING:
            parts.append(operation.state)
        elif rate:
            parts.append(f"{number(round(rate))}/s")
            if total is not None and total > counts.moved:
                parts.append(f"{_time_left((total - counts.moved) / rate)} left")
        return "  ".join(parts)


def _time_left(seconds: float) -> str:
    return f"{seconds:.0f}s" if seconds < 90 else f"{seconds / 60:.0f}min"


def _bar(done: int, total: int | None, width: int = 20) -> str:
    if not total:
        return ""
    full = min(width, done * width // total)
    return "━" * full + "─" * (width - full)
