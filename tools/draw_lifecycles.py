"""Draw docs/lifecycles.md from the tables of `redrive.protocol.lifecycle`.

    python tools/draw_lifecycles.py            writes the page
    python tools/draw_lifecycles.py --check    says whether it is up to date, and writes nothing

The comments of the state enums become the notes of the page, so there is one place to change.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import TypeVar

from redrive.protocol.lifecycle import CHANNEL, CONNECTION, ChannelState, ConnectionState

S = TypeVar("S", bound=Enum)

PAGE = Path(__file__).parent.parent / "docs" / "lifecycles.md"

_HEAD = """\
# The life of a connection and of a channel

Drawn by `tools/draw_lifecycles.py` from the tables in `src/redrive/protocol/lifecycle.py`; do not edit.

A label is the method that is said. A farewell has a direction, seen from this side: `send` or `receive`. Every
other method may be sent by one side only, and both sides move together. What is not drawn is forbidden, and is
answered as AMQP prescribes; a side that sent `close` ignores it instead.
"""


def page() -> str:
    sections = (
        _section("Connection", CONNECTION, ConnectionState.IDLE, ConnectionState.CLOSED),
        _section("Channel", CHANNEL, ChannelState.CLOSED, ChannelState.CLOSED),
    )
    return "\n".join((_HEAD, *sections))


def _section(title: str, table: Mapping[S, Mapping[str, S]], first: S, last: S) -> str:
    diagram = "\n".join(f"    {line}" for line in _diagram(table, first, last))
    notes = "\n".join(f"| {state} | {note} |" for state, note in _notes(type(first)))
    return f"## {title}\n\n```mermaid\nstateDiagram-v2\n{diagram}\n```\n\n| state | meaning |\n|---|---|\n{notes}\n"


def _diagram(table: Mapping[S, Mapping[str, S]], first: S, last: S) -> Iterator[str]:
    yield f"[*] --> {first.name}"
    for state, row in table.items():
        for key, after in row.items():
            yield f"{state.name} --> {after.name}: {_label(key)}"
    yield f"{last.name} --> [*]"


def _label(key: str) -> str:
    return key.replace(">", "send ").replace("<", "receive ")


def _notes(states: type[Enum]) -> Iterator[tuple[str, str]]:
    """The comments behind the states in the source. A state without one is what its name says."""
    yield from re.findall(r"^    (\w+) = auto\(\)  # (.*)$", inspect.getsource(states), re.MULTILINE)


def main() -> int:
    drawn = page()
    if "--check" not in sys.argv:
        PAGE.write_text(drawn)
        return 0
    if PAGE.exists() and PAGE.read_text() == drawn:
        return 0
    print(f"{PAGE} is stale: run python tools/draw_lifecycles.py")
    return 1


if __name__ == "__main__":
    sys.exit(main())
