from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.recovery.classification import PERMANENT, TRANSIENT, Classified, Kind
from redrive.recovery.retry import Exponential, Retry, Rung
from redrive.recovery.story import ParkReason
from redrive.recovery.verdict import LONGEST_WAIT, Again, Bury, Drop, Verdict, decide, wait

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Past:
    failed: int = 0
    first_failed_at: datetime | None = None


def verdict(classified: Classified = TRANSIENT, past: Past = Past(), **policy: object) -> Verdict:  # noqa: B008
    return decide(classified, past, Retry(**policy), NOW, 0.0)  # type: ignore[arg-type]


def test_a_failure_waits_on_the_rung_of_its_attempt() -> None:
    steps = ["1s", "2s", "3s"]
    waits = [verdict(past=Past(failed), steps=steps) for failed in range(3)]
    assert waits == [Again(Rung.of(step, "")) for step in steps]


def test_the_last_attempt_is_the_last() -> None:
    assert verdict(past=Past(failed=2), attempts=3) == Bury(ParkReason.EXHAUSTED)
    assert verdict(past=Past(failed=99), attempts=3) == Bury(ParkReason.EXHAUSTED)
    assert verdict(attempts=1) == Bury(ParkReason.EXHAUSTED)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (Kind.PERMANENT, Bury(ParkReason.PERMANENT)),
        (Kind.REQUESTED, Bury(ParkReason.REQUESTED)),
        (Kind.DISCARDED, Drop()),
    ],
)
def test_some_failures_do_not_wait(kind: Kind, expected: Verdict) -> None:
    assert verdict(Classified(kind)) == expected


def test_who_asks_for_more_time_gets_the_next_rung_that_is_not_sooner() -> None:
    later = Classified(Kind.TRANSIENT, timedelta(seconds=90))
    assert verdict(later, steps=["10s", "1m", "2m"]) == Again(Rung.of("2m", ""))
    assert verdict(later, steps=["10s", "2m", "90s"]) == Again(Rung.of("90s", ""))


def test_who_asks_for_less_time_than_the_policy_gets_the_policys() -> None:
    assert verdict(Classified(Kind.TRANSIENT, timedelta(seconds=1)), delay="15s") == Again(Rung.of("15s", ""))


def test_beyond_the_longest_rung_the_message_knows_when_it_is_due() -> None:
    later = Classified(Kind.TRANSIENT, timedelta(hours=1))
    assert verdict(later, delay="15s") == Again(Rung.of("15s", ""), NOW + timedelta(hours=1))


def test_nobody_waits_for_longer_than_the_longest_wait() -> None:
    for length in (LONGEST_WAIT + timedelta(days=10), timedelta.max):
        snooze = Classified(Kind.SNOOZED, length)
        assert verdict(snooze, delay="15s") == Again(Rung.of("15s", ""), NOW + LONGEST_WAIT, counts=False)


def test_a_snooze_does_not_count() -> None:
    snooze = Classified(Kind.SNOOZED, timedelta(seconds=10))
    assert verdict(snooze, Past(failed=1), delay="15s") == Again(Rung.of("15s", ""), None, counts=False)


def test_a_snooze_with_nowhere_to_wait_is_parked() -> None:
    assert verdict(Classified(Kind.SNOOZED, timedelta(seconds=1)), attempts=1) == Bury(ParkReason.EXHAUSTED)


def test_what_would_be_too_old_when_it_comes_back_is_parked_now() -> None:
    hour_ago = Past(1, NOW - timedelta(hours=1))
    assert verdict(past=hour_ago, attempts=9, delay="15s", max_age="1h") == Bury(ParkReason.EXPIRED)
    assert verdict(past=hour_ago, attempts=9, delay="15s", max_age="61m") == Again(Rung.of("15s", ""))
    assert verdict(attempts=9, delay="15s", max_age="10s") == Bury(ParkReason.EXPIRED)


@given(st.integers(1, 30), st.integers(0, 10**9), st.floats(0, 1, exclude_max=True))
def test_no_message_loops_for_ever(attempts: int, failed: int, chance: float) -> None:
    policy = Retry(attempts=attempts, exponential=Exponential("1s", 2, "1m"), jitter=0.3)
    found = decide(TRANSIENT, Past(failed), policy, NOW, chance)
    assert isinstance(found, Again) == (failed + 1 < attempts)


@given(st.integers(1, 10**7))
def test_waiting_is_never_shorter_than_asked(milliseconds: int) -> None:
    length = timedelta(milliseconds=milliseconds)
    found = wait(Retry(steps=["1s", "30s", "5m"]), length, NOW, counts=True)
    assert found is not None
    assert found.rung.delay >= length or found.not_before == NOW + length


def test_permanent_is_permanent_whatever_is_left() -> None:
    assert verdict(PERMANENT, attempts=99) == Bury(ParkReason.PERMANENT)
