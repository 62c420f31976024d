"""What Redrive set out to reach, and whether it did in a run. Reported, never asserted: machines differ.

The verdict is that of the medians. Beside it stands what the single rounds said: where they disagree about the goal,
the run was too noisy to decide it, and the report says so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from bench.contract import Goal
from bench.results import Results


class Judgement(NamedTuple):
    figure: str  # as measured: of the medians, and lowest to highest of the rounds
    reached: bool | None  # None: not measured in this run
    in_doubt: bool = False  # the rounds disagree


def judge(goal: Goal, results: Results, scenario: str, case: str) -> Judgement:
    ours = results.row(scenario, case, goal.contender)
    if ours is None:
        return _NOT_MEASURED
    if (limit := goal.cpu_at_most) is not None:
        rounds = [sample.cpu_per_message for sample in results.of(scenario, case, goal.contender).values()]
        return _judgement(ours.cpu_per_message, rounds, "µs", lambda cpu: cpu <= limit)
    theirs = results.row(scenario, case, goal.than)
    if theirs is None:
        return _NOT_MEASURED
    return _judgement(
        ours.rate / theirs.rate, _ratios(goal, results, scenario, case), "×", lambda ratio: ratio >= goal.at_least
    )


_NOT_MEASURED = Judgement("not measured", None)


def _ratios(goal: Goal, results: Results, scenario: str, case: str) -> list[float]:
    """Round by round, since those two were measured close to each other."""
    ours, theirs = (results.of(scenario, case, name) for name in (goal.contender, goal.than))
    return [ours[number].rate / theirs[number].rate for number in ours.keys() & theirs.keys()]


def _judgement(figure: float, rounds: list[float], unit: str, reaches: Callable[[float], bool]) -> Judgement:
    shown = f"{figure:.2f} {unit}"
    if len(rounds) > 1:
        shown += f" ({min(rounds):.1f}–{max(rounds):.1f})"
    return Judgement(shown, reaches(figure), in_doubt=len({reaches(each) for each in rounds}) > 1)
