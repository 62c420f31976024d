"""What Redrive set out to reach, and whether it did in a run. Reported, never asserted: machines differ.

The verdict is that of the medians. Beside it stands what the single rounds said: where they disagree about the goal,
the run was too noisy to decide it, and the report says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from bench.contract import Goal, Rivals
from bench.results import Results, Row, Sample


class Judgement(NamedTuple):
    figure: str  # as measured: of the medians, and lowest to highest of the rounds
    reached: bool | None  # None: not measured in this run
    in_doubt: bool = False  # the rounds disagree


def judge(goal: Goal, results: Results, scenario: str, case: str) -> Judgement:
    ours = results.row(scenario, case, goal.contender)
    if goal.case not in (None, case):
        return Judgement("no goal", None)
    if ours is None:
        return _NOT_MEASURED
    if (limit := goal.cpu_at_most) is not None:
        rounds = [sample.cpu_per_message for sample in results.of(scenario, case, goal.contender).values()]
        return _judgement(ours.cpu_per_message, rounds, "µs", lambda cpu: cpu <= limit)
    theirs = _rival(goal.than, results, scenario, case)
    if theirs is None:
        return _NOT_MEASURED
    return _judgement(
        ours.rate / theirs.rate,
        _ratios(results.of(scenario, case, goal.contender), results.of(scenario, case, theirs.contender)),
        f"× {theirs.contender}" if isinstance(goal.than, Rivals) else "×",
        lambda ratio: ratio >= goal.at_least,
    )


_NOT_MEASURED = Judgement("not measured", None)


def _rival(than: str | Rivals | None, results: Results, scenario: str, case: str) -> Row | None:
    """Whom to compare with, by the medians."""
    if not isinstance(than, Rivals):
        return results.row(scenario, case, than)
    rows = [row for row in results.rows(scenario, case) if row.contender in than.names]
    if len(rows) < len(than.names):
        return None
    return rows[0] if than.which == "fastest" else rows[-1]


def _ratios(ours: Mapping[int, Sample], theirs: Mapping[int, Sample]) -> list[float]:
    """Round by round, since those two were measured close to each other."""
    return [ours[number].rate / theirs[number].rate for number in ours.keys() & theirs.keys()]


def _judgement(figure: float, rounds: list[float], unit: str, reaches: Callable[[float], bool]) -> Judgement:
    shown = f"{figure:.2f} {unit}"
    if len(rounds) > 1:
        shown += f" ({min(rounds):.1f}–{max(rounds):.1f})"
    return Judgement(shown, reaches(figure), in_doubt=len({reaches(each) for each in rounds}) > 1)
