"""`redrive explain`: what an error, a finding, a problem of the REST API or an exit code means, and what to do.

tools/write_reference.py makes pages of the same texts. They are written where the thing itself is defined: an error's
in the docstring of its class, a finding's in the doctor's table. One name can mean several things: the broker's 404
and the API's are both `not-found`.
"""

from __future__ import annotations

import inspect
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import click

from redrive import errors
from redrive.admin.api.problem_types import KINDS, TYPE, ProblemType
from redrive.cli.exit_codes import ERRORS_PAGE, EXITS, Exit, exit_code
from redrive.cli.output import as_json as print_json
from redrive.errors import RedriveError, name_of
from redrive.text import did_you_mean
from redrive.topology.doctor import RULES, Rule

FINDINGS_PAGE = "docs/reference/doctor-findings.md"
REST_PAGE = "docs/reference/rest.md"
CLI_PAGE = "docs/reference/cli.md"

_LABELS = {"Whose": "Whose fault", "Why": "Why", "Do": "What to do"}
_NAMES = 28  # columns for them
_WIDEST = 100  # columns: longer lines are hard to read


@click.command()
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="JSON for scripts.")
def explain(name: str | None, as_json: bool) -> None:
    """Say what an error or a finding means, and what to do.

    \b
    redrive explain topology-conflict     an error, by its name
    redrive explain peek-deletes          a finding of the doctor
    redrive explain 7                     an exit code
    redrive explain                       everything that has a name

    The same texts are pages of the manual (docs/reference).
    """
    if name is None:
        _show_list(list(everything()), as_json)
        return
    found = explanations_named(name)
    if not found:
        names = (each.name for each in everything())
        hint = did_you_mean(name.lower(), names, ": `redrive explain` lists all")
        raise click.UsageError(f"nothing is called {name!r}{hint}")
    if as_json:
        print_json(found)
        return
    for explanation in found:
        click.echo(_format(explanation))


def _format(explanation: Explanation) -> str:
    lines = [click.style(explanation.title, bold=True) + click.style(f"   {explanation.kind}", dim=True), ""]
    lines += [_wrap(explanation.meaning, "  "), ""]
    facts = [*explanation.facts, ("Page", explanation.page)]
    indent = max(len(label) for label, _ in facts) + 2
    for label, fact in facts:
        first, *others = _wrap(fact, " " * (indent + 2)).splitlines()
        lines += [f"  {click.style(label.ljust(indent), dim=True)}{first.lstrip()}", *others]
    return "\n".join([*lines, ""])


def _show_list(all_of_them: Sequence[Explanation], as_json: bool) -> None:
    if as_json:
        print_json(all_of_them)
        return
    for kind, several in groupby(all_of_them, lambda one: one.kind):
        click.echo(click.style(_plural(kind), bold=True))
        for one in several:
            click.echo(_list_line(one))
        click.echo()
    click.echo("redrive explain NAME says more.", err=True)


def _list_line(one: Explanation) -> str:
    first, *others = _wrap(one.meaning.partition(". ")[0].removesuffix("."), " " * _NAMES).splitlines()
    return "\n".join([f"  {one.name.ljust(_NAMES - 2)}{click.style(first.lstrip(), dim=True)}", *others])


def _wrap(text: str, indent: str) -> str:
    width = min(shutil.get_terminal_size().columns, _WIDEST)
    return click.wrap_text(text, width, indent, indent)


def _plural(kind: str) -> str:
    first, _, rest = kind.partition(" ")[2].partition(" of ")
    return f"{first.capitalize()}s" + (f" of {rest}" if rest else "")


# What can be explained -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Explanation:
    name: str
    kind: str  # what it is that has the name
    title: str
    meaning: str
    facts: tuple[tuple[str, str], ...]
    page: str

    def __str__(self) -> str:
        return f"{self.name}: {self.meaning}"


def everything() -> Iterator[Explanation]:
    yield from map(error_explanation, kinds_of_errors())
    yield from map(finding_explanation, RULES)
    yield from map(problem_explanation, KINDS.values())
    yield from map(exit_explanation, EXITS)


def explanations_named(name: str) -> Sequence[Explanation]:
    """What has this name, however it is written: topology-conflict, TopologyConflict, urn:redrive:problem:..."""
    wanted = re.sub(r"(?<=[a-z])(?=[A-Z])|_", "-", name.removeprefix(TYPE)).lower()
    return [each for each in everything() if each.name == wanted]


# Errors ---------------------------------------------------------------------------------------------------


def kinds_of_errors() -> list[type[RedriveError]]:
    """All of them, each after that from which it hangs, in the order in which they are declared."""
    declared = [kind for kind in vars(errors).values() if inspect.isclass(kind) and issubclass(kind, RedriveError)]
    return list(_branch(RedriveError, declared))


def _branch(kind: type[RedriveError], declared: Sequence[type[RedriveError]]) -> Iterator[type[RedriveError]]:
    yield kind
    for below in declared:
        if kind in below.__bases__:
            yield from _branch(below, declared)


def error_explanation(kind: type[RedriveError]) -> Explanation:
    name = name_of(kind)
    said = {label: fact for label in _LABELS if (fact := _says(kind, label))}
    facts = [(_LABELS[label], _sentence(fact)) for label, fact in said.items()]
    if kind.area != "admin":  # no command raises those: the server answers with them
        facts.append(("Exit code", str(exit_code(kind))))
    return Explanation(name, "an error", kind.__name__, paragraphs(kind)[0], tuple(facts), f"{ERRORS_PAGE}#{name}")


def paragraphs(kind: type) -> list[str]:
    """What a class says of itself, each paragraph in one line."""
    return [" ".join(part.split()) for part in (inspect.getdoc(kind) or "").split("\n\n")]


def _says(kind: type[RedriveError], label: str) -> str | None:
    """Its own word, or that of the one from which it hangs. Why something comes about is its own alone."""
    for one in kind.__mro__ if label != "Why" else (kind,):
        for part in paragraphs(one) if issubclass(one, RedriveError) else ():
            if part.startswith(f"{label}: "):
                return part.removeprefix(f"{label}: ")
    return None


# Findings, problems, exit codes ---------------------------------------------------------------------------


def finding_explanation(rule: Rule) -> Explanation:
    meaning, do = _sentence(rule.title), _sentence(rule.remedy)
    facts = (("Severity", str(rule.severity)), ("What happens", rule.happens), ("What to do", do))
    return Explanation(rule.id, "a finding of the doctor", rule.id, meaning, facts, f"{FINDINGS_PAGE}#{rule.id}")


def problem_explanation(kind: ProblemType) -> Explanation:
    status = " or ".join(map(str, kind.status))
    facts = (("HTTP status", status), ("What to do", kind.do))
    meaning = _sentence(kind.when)
    return Explanation(kind.name, "a problem of the REST API", kind.name, meaning, facts, f"{REST_PAGE}#{kind.name}")


def exit_explanation(known: Exit) -> Explanation:
    names = ", ".join(name_of(kind) for kind in known.errors if kind is not RedriveError)
    facts = [("What to do", known.do)]
    if known.errors:
        facts.append(("Errors", names or "every other error"))
    meaning = _sentence(known.meaning)
    return Explanation(
        str(known.code), "an exit code", str(known.code), meaning, tuple(facts), f"{CLI_PAGE}#exit-codes"
    )


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:] + ("" if text.endswith(".") else ".")
