"""Write the table of findings into docs/doctor.md from `redrive.topology.doctor.RULES`.

What happens and what mends it is said once, in the reference (tools/write_reference.py), to which the table leads.
"""

from __future__ import annotations

from pathlib import Path

from redrive.topology.doctor import RULES, Rule

PAGE = Path(__file__).parents[1] / "docs" / "doctor.md"
BEGIN, END = "<!-- findings -->\n", "<!-- end of findings -->"


def table() -> str:
    return "\n".join(["| id | severity | what it means |", "|---|---|---|", *map(_row, RULES), ""])


def _row(rule: Rule) -> str:
    meaning = rule.title[0].upper() + rule.title[1:]
    return f"| [`{rule.id}`](reference/doctor-findings.md#{rule.id}) | {rule.severity} | {meaning} |"


def page(text: str) -> str:
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + table() + END + after


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
