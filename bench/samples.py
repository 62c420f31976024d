"""Figures by name, one for each round; medians count, and ratios are taken round by round."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field


@dataclass
class Found:
    samples: dict[str, list[float]] = field(default_factory=dict)

    def add(self, name: str, value: float) -> None:
        self.samples.setdefault(name, []).append(value)

    def median(self, name: str) -> float:
        return statistics.median(self.samples[name])

    def ratio(self, name: str, than: str) -> float:
        """Round by round, since those two were measured close to each other."""
        pairs = zip(self.samples[name], self.samples[than], strict=True)
        return statistics.median(ours / theirs for ours, theirs in pairs)
