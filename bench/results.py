"""What was measured. The file keeps every sample; everything shown is worked out from them."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from pathlib import Path

import msgspec


class Sample(msgspec.Struct, frozen=True):
    """One measurement."""

    scenario: str
    case: str
    contender: str
    round: int
    count: int
    seconds: float
    cpu_seconds: float
    disturbance: float  # cores that neither client nor arena, but other programs, kept busy meanwhile

    @property
    def rate(self) -> float:
        return self.count / self.seconds

    @property
    def cpu_per_message(self) -> float:
        """In µs."""
        return self.cpu_seconds / self.count * 1e6


class Row(msgspec.Struct, frozen=True):
    """The medians of one contender in one case."""

    contender: str
    rounds: int
    rate: float
    slowest: float
    fastest: float
    cpu_per_message: float
    busy: float  # the client's share of one core

    @classmethod
    def of(cls, contender: str, samples: list[Sample]) -> Row:
        rates = [sample.rate for sample in samples]
        return cls(
            contender=contender,
            rounds=len(samples),
            rate=statistics.median(rates),
            slowest=min(rates),
            fastest=max(rates),
            cpu_per_message=statistics.median(sample.cpu_per_message for sample in samples),
            busy=statistics.median(sample.cpu_seconds / sample.seconds for sample in samples),
        )


class Results(msgspec.Struct):
    """One run."""

    name: str
    began: str  # ISO 8601, UTC
    machine: dict[str, str]
    versions: dict[str, str]
    settings: dict[str, int]
    skipped: dict[str, str]  # who did not take part, and why
    failed: dict[str, str]  # who broke down, and how
    remarks: list[str]
    samples: list[Sample]

    def rows(self, scenario: str, case: str) -> list[Row]:
        """The contenders of a case, fastest first."""
        samples = [sample for sample in self.samples if (sample.scenario, sample.case) == (scenario, case)]
        names = _unique(sample.contender for sample in samples)
        rows = [Row.of(name, [sample for sample in samples if sample.contender == name]) for name in names]
        return sorted(rows, key=lambda row: -row.rate)

    def row(self, scenario: str, case: str, contender: str | None) -> Row | None:
        return next((row for row in self.rows(scenario, case) if row.contender == contender), None)

    def of(self, scenario: str, case: str, contender: str | None) -> dict[int, Sample]:
        """The samples of one row, by round."""
        wanted = (scenario, case, contender)
        return {
            sample.round: sample
            for sample in self.samples
            if (sample.scenario, sample.case, sample.contender) == wanted
        }

    def cases(self, scenario: str) -> list[str]:
        return _unique(sample.case for sample in self.samples if sample.scenario == scenario)

    def disturbance(self) -> float:
        """How many cores other programs took: far from 0, the figures are about them, too."""
        return statistics.median(sample.disturbance for sample in self.samples) if self.samples else 0.0

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n")

    @classmethod
    def load(cls, path: Path) -> Results:
        return msgspec.json.decode(path.read_bytes(), type=cls)


def _unique(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))
