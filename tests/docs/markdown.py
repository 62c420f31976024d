"""What a page of the manual consists of, for those who want to execute it: its blocks of code and the marks on them.

A block is a fence (```` ```python ````), or an HTML comment that begins with `hidden` and a language. The second kind
is executed and not shown: it is the context of a fragment.

    <!-- hidden python
    class Order: ...
    -->

A mark is an HTML comment of one line, right before the block that it is about:

| mark                               | the block                                                                       |
|------------------------------------|---------------------------------------------------------------------------------|
| `<!-- not run: why -->`            | is not executed; `test_pages.py` has the list of all of them                    |
| `<!-- logged -->`                  | are lines that a running program says, sooner or later                          |
| `<!-- exits: 9 -->`                | the last of its commands ends with that status                                  |
| `<!-- quoted: examples/x.py -->`   | stands in that file; a line `...` is for what was left out                      |
| `<!-- sqlite -->`                  | is SQL for the embedded database, on a page that has PostgreSQL as well         |
| `<!-- session looking -->`         | was recorded by `tools/record_sessions.py`, and is checked with it              |
| `<!-- page: rabbitmq postgres -->` | of the whole page, at its head: which servers it needs                          |

`python`, `toml`, `yaml` and `ini` blocks whose first line is a comment with a file's name (`# shop.py`) are files. What
becomes of each language is in `running.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_FENCE = re.compile(r"(?P<indent> *)```(?P<language>[^\s`]*)[^`]*$")
_HIDDEN = re.compile(r"<!-- hidden (?P<language>\w+)$")
_MARK = re.compile(r"<!-- (?P<text>.*?) -->$")
_FILE = re.compile(r"(?:#|//|--) (?P<name>[\w./-]+\.[a-z]+)$")
_SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")


class Unreadable(ValueError):
    """A page that nobody can execute, because it is not written as pages are."""


@dataclass(frozen=True)
class Block:
    language: str
    text: str
    line: int  # of its first line of code, from 1
    marks: tuple[str, ...] = ()
    hidden: bool = False

    @property
    def file(self) -> str | None:
        """The name of the file that it is, if it is one."""
        found = _FILE.match(self.text.split("\n", 1)[0])
        return found["name"] if found else None

    def mark(self, name: str) -> str | None:
        """What a mark says: nothing, for those that are one word; None if there is no such mark."""
        for mark in self.marks:
            word, _, rest = mark.partition(" ")
            if word.rstrip(":") == name:
                return rest
            if mark.startswith(f"{name}: "):
                return mark.removeprefix(f"{name}: ")
        return None


@dataclass(frozen=True)
class Page:
    blocks: tuple[Block, ...]
    needs: frozenset[str]
    spans: tuple[tuple[int, str], ...]  # what stands in single backticks, with its line


def read(text: str) -> Page:
    lines = text.split("\n")
    blocks, outside = _blocks(lines)
    needs: set[str] = set()
    for _, line in outside:
        found = _MARK.match(line)
        if found and found["text"].startswith("page: "):
            needs.update(found["text"].removeprefix("page: ").split())
    spans = tuple((number, span) for number, line in outside for span in _SPAN.findall(line))
    return Page(tuple(blocks), frozenset(needs), spans)


def _blocks(lines: list[str]) -> tuple[list[Block], list[tuple[int, str]]]:
    """The blocks, and the lines that belong to none, with their numbers."""
    blocks: list[Block] = []
    outside: list[tuple[int, str]] = []
    marks: list[str] = []
    numbered = enumerate(lines, 1)
    for number, line in numbered:
        if fence := _FENCE.match(line):
            text = _until(numbered, f"{fence['indent']}```", number, len(fence["indent"]))
            blocks.append(Block(fence["language"], text, number + 1, tuple(marks)))
        elif hidden := _HIDDEN.match(line):
            text = _until(numbered, "-->", number, 0)
            blocks.append(Block(hidden["language"], text, number + 1, tuple(marks), hidden=True))
        else:
            outside.append((number, line))
            if mark := _MARK.match(line.strip()):
                marks.append(mark["text"])
                continue
            if not line.strip():
                continue
        marks = []
    return blocks, outside


def _until(lines: Iterator[tuple[int, str]], end: str, began: int, indent: int) -> str:
    """The lines up to the one that is the end, without what they are indented by."""
    taken: list[str] = []
    for _, line in lines:
        if line.rstrip() == end:
            return "\n".join(taken) + "\n" if taken else ""
        taken.append(line[indent:] if line[:indent].isspace() else line)
    raise Unreadable(f"line {began}: a block begins that does not end with {end!r}")
