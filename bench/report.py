"""Tables of a run, for a terminal and for Markdown, from the same cells."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bench.contract import Scenario
from bench.goals import Judgement, judge
from bench.results import Results, Row

OURS = "redrive"


class Grid(NamedTuple):
    """A table: the first column names, the others count."""

    title: str
    head: list[str]
    lines: list[list[str]]


def grids(results: Results, scenarios: Iterable[Scenario[Any]]) -> Iterator[Grid]:
    """One for each case that was measured, then the goals."""
    scenarios = [scenario for scenario in scenarios if results.cases(scenario.name)]
    for scenario in scenarios:
        for case in results.cases(scenario.name):
            yield _case_grid(results, scenario, case)
    for scenario in scenarios:
        if scenario.goals:
            yield _goal_grid(results, scenario)


def _case_grid(results: Results, scenario: Scenario[Any], case: str) -> Grid:
    rows = results.rows(scenario.name, case)
    yardsticks = {row.contender: row.rate for row in rows if row.contender in scenario.yardsticks}
    order = [name for name in scenario.yardsticks if name in yardsticks]
    head = ["", "messages/s", "slowest–fastest", "CPU µs", "busy", *(f"× {name}" for name in order)]
    lines = [_cells(row, [yardsticks[name] for name in order]) for row in rows]
    return Grid(f"{scenario.title}: {case}", head, lines)


def _cells(row: Row, yardsticks: Sequence[float]) -> list[str]:
    return [
        row.contender,
        f"{row.rate:,.0f}",
        f"{row.slowest:,.0f}–{row.fastest:,.0f}",
        f"{row.cpu_per_message:.1f}",
        f"{row.busy:.0%}",
        *(f"{row.rate / rate:.2f}" for rate in yardsticks),
    ]


def _goal_grid(results: Results, scenario: Scenario[Any]) -> Grid:
    cases = results.cases(scenario.name)
    lines = []
    for goal in scenario.goals:
        judgements = [judge(goal, results, scenario.name, case) for case in cases]
        if any(judgement.reached is not None for judgement in judgements):
            lines.append([str(goal), *map(_verdict, judgements)])
    return Grid(f"Goals: {scenario.name}", ["", *cases], lines)


def _verdict(judgement: Judgement) -> str:
    doubt = ", in doubt" if judgement.in_doubt else ""
    word = {True: f"reached{doubt}:", False: f"NOT reached{doubt}:", None: "–"}[judgement.reached]
    return f"{word} {judgement.figure}"


def notes(results: Results) -> list[str]:
    """What one has to know to judge the figures."""
    told = [
        "CPU µs: of the client's process, per message; busy: its share of one core; ×: the rate, compared",
        "goals are judged by medians; in brackets the single rounds, in doubt where these disagree",
        f"{results.name}, begun {results.began}",
        "; ".join(f"{what} {value}" for what, value in results.machine.items()),
        ", ".join(f"{what} {version}" for what, version in sorted(results.versions.items(), key=_case_insensitive)),
        ", ".join(f"{what} {value}" for what, value in results.settings.items()),
    ]
    told.append(f"other programs kept {results.disturbance():.1f} of the cores busy meanwhile (median)")
    told += results.remarks
    told += [f"skipped {who}: {why}" for who, why in results.skipped.items()]
    told += [f"failed {who}: {why}" for who, why in results.failed.items()]
    return told


def _case_insensitive(item: tuple[str, str]) -> str:
    return item[0].lower()


def show(results: Results, scenarios: Iterable[Scenario[Any]], console: Console) -> None:
    for grid in grids(results, scenarios):
        table = Table(title=grid.title, title_justify="left", title_style="bold", box=SIMPLE_HEAD)
        table.add_column(grid.head[0])
        for name in grid.head[1:]:
            table.add_column(name, justify="right")
        for line in grid.lines:
            style = "bold green" if line[0].startswith(OURS) and "Goals" not in grid.title else ""
            table.add_row(*(_painted(cell) for cell in line), style=style)
        console.print(table)
    for note in notes(results):
        console.print(Text(note, style="dim"))


def _painted(cell: str) -> Text:
    if cell.startswith("NOT"):
        return Text(cell, style="bold red")
    return Text(cell, style="green" if cell.startswith("reached") else "")


def markdown(results: Results, scenarios: Iterable[Scenario[Any]]) -> str:
    """The same as Markdown, with where the figures come from."""
    blocks = []
    for grid in grids(results, scenarios):
        lines = [grid.head, ["---", *["---:"] * (len(grid.head) - 1)], *grid.lines]
        blocks.append("\n".join([f"**{grid.title}**", "", *(f"| {' | '.join(line)} |" for line in lines)]))
    blocks.append("\n".join(f"- {note}" for note in notes(results)))
    return "\n\n".join(blocks) + "\n"
