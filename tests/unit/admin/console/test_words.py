"""How the console says numbers, times and states."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from redrive.admin.console import formatting
from redrive.admin.console.sparkline import trend_of
from redrive.operations.operation import (
    CanarySchedule,
    Counts,
    Operation,
    OperationKind,
    OperationRequest,
    OperationState,
    Selection,
)

NOON = datetime(2024, 5, 17, 12, tzinfo=UTC)
RUNNING = Operation(
    "op_1",
    OperationRequest(OperationKind.REDRIVE, "orders.dlq"),
    NOON,
    OperationState.RUNNING,
    Counts(planned=1204, moved=100),
    scope=2000,
    started_at=NOON,
)


def test_digits_are_grouped_by_a_space_at_which_no_line_breaks() -> None:
    assert formatting.number(1204567) == "1\u202f204\u202f567"
    assert formatting.counted(1, "queue") == "1 queue"
    assert formatting.counted(2, "row waits", "rows wait") == "2 rows wait"


@pytest.mark.parametrize(
    ("seconds", "said"), [(0, "just now"), (-3, "just now"), (12, "12s ago"), (7500, "2h5m ago"), (-7200, "in 2h")]
)
def test_a_time_is_told_from_now(seconds: int, said: str) -> None:
    assert formatting.age(NOON - timedelta(seconds=seconds), NOON) == said


@pytest.mark.parametrize(
    ("part", "whole", "said"), [(0, 0, "0 %"), (1, 1000, "< 1 %"), (1, 3, "33 %"), (5, 5, "100 %")]
)
def test_shares_are_told_in_percent(part: int, whole: int, said: str) -> None:
    assert formatting.percent(part, whole) == said


def test_sizes_are_told_as_people_say_them() -> None:
    assert [formatting.size(count) for count in (1, 999, 1500, 2_500_000)] == [
        "1 byte",
        "999 bytes",
        "1.5 kB",
        "2.5 MB",
    ]


def test_every_state_has_a_word_and_a_tone() -> None:
    assert set(formatting.STATES) == set(OperationState)


def test_without_a_total_no_time_is_predicted() -> None:
    order = OperationRequest(OperationKind.REDRIVE, "orders.dlq", Selection(group="3fa9"))
    unplanned = replace(RUNNING, order=order, counts=Counts(moved=100))

    assert formatting.total(unplanned) is None
    assert formatting.pace(unplanned, NOON + timedelta(seconds=10)) == "10/s"


def test_how_fast_it_goes_and_how_long_yet() -> None:
    assert formatting.pace(RUNNING, NOON + timedelta(seconds=10)) == "10/s, about 1m50s left"
    assert formatting.pace(replace(RUNNING, started_at=None), NOON) == ""
    slow = replace(RUNNING, counts=Counts(planned=3, moved=1))
    assert formatting.pace(slow, NOON + timedelta(minutes=1)) == "1/min, about 2m left"


def test_a_canary_says_its_step_and_guesses_no_end() -> None:
    canary = replace(RUNNING, order=replace(RUNNING.order, ramp=CanarySchedule((1, 5))), step=2)
    assert formatting.step(canary) == "step 2 of 3"
    assert formatting.pace(canary, NOON + timedelta(seconds=10)) == "10/s"
    assert formatting.in_short(canary) == "Operation running, step 2 of 3."


def test_a_trend_is_a_line_and_a_sentence() -> None:
    trend = trend_of([0, 10, 5], timedelta(seconds=30))
    assert trend is not None
    assert trend.line == "2,26 60,2 118,14"
    assert trend.said == "from 0 to 5 (+5) over the last 1m; at least 0, at most 10"
    assert trend_of([5], timedelta(seconds=30)) is None
    level = trend_of([7, 7], timedelta(seconds=30))
    assert level is not None
    assert level.said == "7, unchanged over the last 30s"
