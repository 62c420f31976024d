"""What becomes of a task, as a value."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from billiard.exceptions import TimeLimitExceeded, WorkerLostError
from celery.exceptions import Ignore, MaxRetriesExceededError, Reject, Terminated
from celery.exceptions import Retry as Retried

from redrive.errors import Unroutable
from redrive.integrations.celery.decisions import CrashedTooOften, Fate, fate_of, next_wait, reason_of
from redrive.recovery.failure_headers import ParkReason
from redrive.recovery.retry import Exponential, Retry
from redrive.recovery.verdict import RetryVerdict

NOON = datetime(2024, 5, 17, 12, tzinfo=UTC)
LADDER = Retry(steps=["30s", "60s", "2m", "10m"])


def label(again: RetryVerdict | None) -> str:
    assert again is not None
    return again.rung.label


# Where a retry waits ------------------------------------------------------------------------------


@pytest.mark.parametrize(("attempt", "rung"), [(1, "30s"), (2, "60s"), (3, "2m"), (4, "10m"), (5, "10m"), (50, "10m")])
def test_each_attempt_has_its_rung_and_the_last_serves_for_the_rest(attempt: int, rung: str) -> None:
    assert label(next_wait(LADDER, attempt, None, NOON, 0.0)) == rung


@pytest.mark.parametrize(
    ("asked", "rung"), [(0, "30s"), (1, "30s"), (30, "30s"), (30.001, "60s"), (90, "2m"), (121, "10m"), (600, "10m")]
)
def test_a_wait_that_is_asked_for_is_the_nearest_that_is_not_sooner(asked: float, rung: str) -> None:
    again = next_wait(LADDER, 3, timedelta(seconds=asked), NOON, 0.0)

    assert (label(again), again and again.not_before) == (rung, None)


def test_one_that_is_longer_than_all_waits_in_the_longest_and_knows_its_time() -> None:
    again = next_wait(LADDER, 1, timedelta(hours=1), NOON, 0.0)

    assert (label(again), again and again.not_before) == ("10m", NOON + timedelta(hours=1))


def test_more_retries_than_an_exponential_ladder_has_rungs_stay_on_its_last() -> None:
    policy = Retry(attempts=4, exponential=Exponential("1s", 2, "5m"))

    waits = [next_wait(policy, attempt, None, NOON, 0.0) for attempt in range(1, 7)]
    assert [wait.rung.delay.total_seconds() for wait in waits if wait] == [1, 2, 4, 4, 4, 4]


def test_a_policy_without_waits_leaves_it_to_celery() -> None:
    assert next_wait(Retry(attempts=1), 1, None, NOON, 0.0) is None


# The end ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "fate"),
    [
        (ValueError(), Fate.PARKED),
        (MaxRetriesExceededError(), Fate.PARKED),
        (TimeLimitExceeded(1), Fate.PARKED),
        (Reject("no"), Fate.PARKED),
        (CrashedTooOften(), Fate.PARKED),
        (Reject("no", requeue=True), Fate.CELERYS),
        (Ignore(), Fate.CELERYS),
        (Retried(), Fate.CELERYS),
        (Terminated("15"), Fate.CELERYS),
        (WorkerLostError(), Fate.CRASHED),
        (SystemExit(1), Fate.CRASHED),
    ],
)
def test_what_is_an_end_and_what_is_none(error: BaseException, fate: Fate) -> None:
    assert fate_of(error) is fate


@pytest.mark.parametrize(
    ("error", "retries", "most", "reason"),
    [
        (ValueError(), 0, 4, ParkReason.PERMANENT),
        (ValueError(), 4, 4, ParkReason.EXHAUSTED),
        (ValueError(), 9, None, ParkReason.PERMANENT),
        (Reject("no"), 4, 4, ParkReason.REQUESTED),
        (Reject(Unroutable("x", "k", "no queue")), 1, 4, ParkReason.PERMANENT),
        (CrashedTooOften(), 4, 4, ParkReason.CRASHED),
    ],
)
def test_why_it_is_parked(error: BaseException, retries: int, most: int | None, reason: ParkReason) -> None:
    assert reason_of(error, retries, most) is reason
