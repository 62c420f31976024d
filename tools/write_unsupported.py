"""Write the table of unsupported features into docs/embedded-broker.md from `redrive.broker.unsupported`."""

from __future__ import annotations

from pathlib import Path

from redrive.broker.unsupported import UNSUPPORTED

PAGE = Path(__file__).parents[1] / "docs" / "embedded-broker.md"
BEGIN, END = "<!-- limits -->\n", "<!-- end of limits -->"


def table() -> str:
    rows = [f"| {feature} | {instead} |" for feature, instead in UNSUPPORTED.items()]
    return "\n".join(["| it does not have | instead |", "|---|---|", *rows, ""])


def page(text: str) -> str:
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + table() + END + after


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
