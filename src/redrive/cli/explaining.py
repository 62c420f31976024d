"""Everything that can be explained by its name: errors, findings of the doctor, problems of the REST API, exit codes.

`redrive explain` prints it and tools/write_reference.py makes pages of it. The texts stand where the thing itself does:
an error's in the docstring of its class, a finding's in the doctor's table. One name can mean several things: the
broker's 404 and the API's are both `not-found`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from redrive import errors
from redrive.admin.web.kinds import KINDS, TYPE, ProblemKind
from redrive.cli.exits import EXITS, Exit, exit_code
from redrive.cli.failing import ERRORS_PAGE
from redrive.errors import RedriveError, name_of
from redrive.topology.doctor import RULES, Rule

FINDINGS_PAGE = "docs/reference/doctor-findings.md"
REST_PAGE = "docs/reference/rest.md"
CLI_PAGE = "docs/reference/cli.md"

_LABELS = {"Whose": "Whose fault", "Why": "Why", "Do": "What to do"}


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
    yield from map(of_error, kinds_of_errors())
    yield from map(of_finding, RULES)
    yield from map(of_problem, KINDS.values())
    yield from map(of_exit, EXITS)


def explained(name: str) -> Sequence[Explanation]:
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


def of_error(kind: type[RedriveError]) -> Explanation:
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


def of_finding(rule: Rule) -> Explanation:
    meaning, do = _sentence(rule.title), _sentence(rule.remedy)
    facts = (("Severity", str(rule.severity)), ("What happens", rule.happens), ("What to do", do))
    return Explanation(rule.id, "a finding of the doctor", rule.id, meaning, facts, f"{FINDINGS_PAGE}#{rule.id}")


def of_problem(kind: ProblemKind) -> Explanation:
    status = " or ".join(map(str, kind.status))
    facts = (("HTTP status", status), ("What to do", kind.do))
    meaning = _sentence(kind.when)
    return Explanation(kind.name, "a problem of the REST API", kind.name, meaning, facts, f"{REST_PAGE}#{kind.name}")


def of_exit(known: Exit) -> Explanation:
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
