"""What the doctor says, and the rules by which it finds it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from redrive.topology.doctor.case import Case, Sight


class Severity(StrEnum):
    """Worst first."""

    ERROR = "error"  # messages get lost, or something cannot work, as things are
    WARNING = "warning"  # messages get lost when something else goes wrong, or with the next version
    INFO = "info"  # good to know

    @property
    def rank(self) -> int:
        return list(Severity).index(self)

    def reaches(self, other: Severity) -> bool:
        """Is it at least as bad?"""
        return self.rank <= other.rank


@dataclass(frozen=True, slots=True)
class Finding:
    id: str  # stable: scripts may rely on it
    severity: Severity
    title: str
    subject: str  # the queue or exchange; empty for the broker itself
    evidence: str  # what was seen
    fix: str  # the command or argument that mends it

    def __str__(self) -> str:
        return f"{self.severity}: {self.subject or 'the broker'}: {self.title} [{self.id}]"


@dataclass(frozen=True, slots=True)
class Symptom:
    """One place where a rule applies."""

    subject: str
    evidence: str
    fix: str


Check: TypeAlias = "Callable[[Case], Iterator[Symptom]]"


@dataclass(frozen=True, slots=True)
class Rule:
    """One kind of finding. `happens` and `remedy` are for the documentation: what it leads to, and how to mend it."""

    id: str
    severity: Severity
    title: str
    happens: str
    remedy: str
    check: Check
    needs: Sight = Sight.ARGUMENTS

    def applies(self, case: Case) -> bool:
        """Can it be judged by what was seen? If not it stays silent, rather than guess."""
        return self.needs in case.sights

    def findings(self, case: Case) -> Iterator[Finding]:
        for symptom in self.check(case):
            yield Finding(self.id, self.severity, self.title, symptom.subject, symptom.evidence, symptom.fix)
