"""Write into docs/systems what each system's document says, and which tests prove it, from the checklists in
tests/e2e/examples.
"""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
TESTS = ROOT / "tests" / "e2e" / "examples"
PAGES = ROOT / "docs" / "systems"
SYSTEMS = ["errorfilter", "nfe", "raffle", "uploads", "video"]
BEGIN, END = "<!-- conformance -->\n", "<!-- end of conformance -->"
STACKS = {
    frozenset({"embedded", "production"}): "both",
    frozenset({"embedded"}): "embedded",
    frozenset({"production"}): "RabbitMQ",
}

Stacks = Mapping[tuple[str, str], set[str]]  # by system and test


def collected() -> Stacks:
    """On which stacks pytest runs each test of the examples."""
    found: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for system, test, variant in _collect(""):
        found[system, test] |= {"embedded", "production"} & set(variant.split("-"))
    for system, test, _ in _collect("rabbitmq"):
        found[system, test] |= {"production"}
    return found


def _collect(marker: str) -> list[tuple[str, str, str]]:
    """Return system, test and variant of every test that has this marker."""
    told = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-n", "0", "-m", marker, str(TESTS)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return re.findall(r"/test_(\w+)\.py::(\w+)(?:\[(.*)\])?$", told, re.MULTILINE)


def table(system: str, stacks: Stacks) -> str:
    """A row for each statement: the tests that prove it, or why there is none."""
    says = importlib.import_module(f"e2e.examples.test_{system}").says
    rows = ["| the document says | proved by | on |", "|---|---|---|"]
    for name, statement in says.statements.items():
        tests = [test.__name__ for test in says.claims[name]]
        where = frozenset[str]().union(*(stacks[system, test] for test in tests))
        proof = ", ".join(f"[{test}](../../tests/e2e/examples/test_{system}.py)" for test in tests)
        rows.append(f"| {_escaped(statement)} | {proof or _escaped(says.untested[name])} | {STACKS.get(where, '–')} |")
    return "\n".join(rows) + "\n"


def _escaped(text: str) -> str:
    return re.sub(r"([\\|*_<>\[\]`])", r"\\\1", text)


def page(text: str, system: str, stacks: Stacks) -> str:
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"docs/systems/{system}.md has no place for the table")
    return before + BEGIN + table(system, stacks) + END + after


def main() -> None:
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
    stacks = collected()
    for system in SYSTEMS:
        path = PAGES / f"{system}.md"
        path.write_text(page(path.read_text(), system, stacks))


if __name__ == "__main__":
    main()
