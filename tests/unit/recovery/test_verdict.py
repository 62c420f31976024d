"""What becomes of a delivery after its handler."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.recovery import verdict as verdicts
from redrive.recovery.classification import PERMANENT, TRANSIENT, Classified, FailureKind
from redrive.recovery.failure_headers import ParkReason
from redrive.recovery.history import NO_HISTORY, History
from redrive.recovery.retry import NO_RETRY, Exponential, Retry, RetryRoute, Rung
from redrive.recovery.verdict import (
    LONGEST_WAIT,
    Crashed,
    CrashGuard,
    DiscardVerdict,
    Disconnected,
    Ending,
    HandlerOutcome,
    ParkVerdict,
    RecoveryPolicy,
    ReleaseVerdict,
    RequeueVerdict,
    RetryVerdict,
    Verdict,
    decide,
    rung_for_delay,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def verdict(outcome: HandlerOutcome = TRANSIENT, history: History = NO_HISTORY, **policy: Any) -> Verdict:
    return decide(outcome, history, RecoveryPolicy(Retry(**policy)), NOW, 0.0)


# The table ----------------------------------------------------------------------------------------

FRESH = NO_HISTORY
ONCE = History(failed=1)
TWICE = History(failed=2)
SNOOZE = Classified(FailureKind.SNOOZED, timedelta(seconds=10))
LATER = Classified(FailureKind.TRANSIENT, timedelta(minutes=1))
RUNG = Rung.of("15s", "")


def by(via: RetryRoute, **more: Any) -> RecoveryPolicy:
    return RecoveryPolicy(Retry(attempts=3, delay="15s", via=via), CrashGuard.QUARANTINE, 3, **more)


REPUBLISH, REJECT, DELAYED, QUORUM = map(
    by, (RetryRoute.REPUBLISH, RetryRoute.REJECT, RetryRoute.DELAYED, RetryRoute.QUORUM)
)
DEAD = RecoveryPolicy(NO_RETRY, for_dead_letters=True)
AS_DEAD_LETTER = ReleaseVerdict("failed as a dead letter", pause=True)
UNCOUNTABLE = ParkVerdict(ParkReason.UNCOUNTABLE)
NO_ROOM, COUNTED = {"has_room": False}, {"broker_counts": True}

TABLE: dict[str, tuple[HandlerOutcome, History, RecoveryPolicy, dict[str, bool], Verdict]] = {
    # Failures
    "what may pass is retried": (TRANSIENT, ONCE, REPUBLISH, {}, RetryVerdict(RUNG)),
    "until the last attempt": (TRANSIENT, TWICE, REPUBLISH, {}, ParkVerdict(ParkReason.EXHAUSTED)),
    "what does not pass is parked": (PERMANENT, FRESH, REPUBLISH, {}, ParkVerdict(ParkReason.PERMANENT)),
    "a handler can park": (Classified(FailureKind.REQUESTED), FRESH, REPUBLISH, {}, ParkVerdict(ParkReason.REQUESTED)),
    "a handler can discard": (Classified(FailureKind.DISCARDED), FRESH, REPUBLISH, {}, DiscardVerdict()),
    "a handler can snooze": (SNOOZE, TWICE, REPUBLISH, {}, RetryVerdict(RUNG, counts=False)),
    # Routes
    "a reject that the broker counts": (TRANSIENT, FRESH, REJECT, COUNTED, RetryVerdict(RUNG, via=RetryRoute.REJECT)),
    "else a copy": (TRANSIENT, FRESH, REJECT, {}, RetryVerdict(RUNG)),
    "a snooze is not counted": (SNOOZE, FRESH, REJECT, COUNTED, RetryVerdict(RUNG, counts=False)),
    "nor can a reject wait longer": (LATER, FRESH, REJECT, COUNTED, RetryVerdict(RUNG, NOW + timedelta(minutes=1))),
    "by an exchange that delays": (TRANSIENT, FRESH, DELAYED, {}, RetryVerdict(RUNG, via=RetryRoute.DELAYED)),
    "by returning to the queue": (TRANSIENT, FRESH, QUORUM, {}, RetryVerdict(RUNG, via=RetryRoute.QUORUM)),
    "a snooze, too": (SNOOZE, FRESH, QUORUM, {}, RetryVerdict(RUNG, counts=False, via=RetryRoute.QUORUM)),
    # Room for the counter
    "a copy needs room": (TRANSIENT, FRESH, REPUBLISH, NO_ROOM, UNCOUNTABLE),
    "so does a delayed one": (TRANSIENT, FRESH, DELAYED, NO_ROOM, UNCOUNTABLE),
    "and a snooze": (SNOOZE, FRESH, REJECT, NO_ROOM | COUNTED, UNCOUNTABLE),
    "a reject needs none": (TRANSIENT, FRESH, REJECT, NO_ROOM | COUNTED, RetryVerdict(RUNG, via=RetryRoute.REJECT)),
    "nor does a return": (TRANSIENT, FRESH, QUORUM, NO_ROOM, RetryVerdict(RUNG, via=RetryRoute.QUORUM)),
    "to be parked takes none": (PERMANENT, FRESH, REPUBLISH, NO_ROOM, ParkVerdict(ParkReason.PERMANENT)),
    # No error of the handler
    "a body that cannot be read": (Ending.MALFORMED, FRESH, REPUBLISH, {}, ParkVerdict(ParkReason.MALFORMED)),
    "a duplicate": (Ending.DUPLICATE, FRESH, REPUBLISH, {}, DiscardVerdict(duplicate=True)),
    "a worker that stops": (Ending.CANCELLED, FRESH, REPUBLISH, {}, ReleaseVerdict("cancelled")),
    "without a database": (Ending.NO_DATABASE, FRESH, REPUBLISH, {}, ReleaseVerdict("the database is unavailable")),
    "no room for a mark": (Ending.UNMARKABLE, FRESH, REPUBLISH, {}, UNCOUNTABLE),
    # Crashes
    "a crash among others": (Crashed(False), FRESH, REPUBLISH, {}, RequeueVerdict("its worker died", 0, alone=True)),
    "is never counted": (
        Crashed(False, "process"),
        History(crashes=99),
        REPUBLISH,
        {},
        RequeueVerdict("its process died", 99, alone=True),
    ),
    "a crash alone is counted": (Crashed(True), FRESH, REPUBLISH, {}, RequeueVerdict("its worker died", 1, alone=True)),
    "and the last one parks": (Crashed(True), History(crashes=2), REPUBLISH, {}, ParkVerdict(ParkReason.CRASHED)),
    "a count that no worker writes starts over": (
        Crashed(True),
        History(crashes=99),
        REPUBLISH,
        {},
        RequeueVerdict("its worker died", 1, alone=True),
    ),
    "a lost connection is no crash": (
        Disconnected(False),
        History(crashes=2),
        REPUBLISH,
        {},
        RequeueVerdict("its worker lost the connection", 2),
    ),
    "whatever it handled": (
        Disconnected(True),
        History(crashes=99),
        REPUBLISH,
        {},
        RequeueVerdict("its worker lost the connection", 99, alone=True),
    ),
    # Dead letters
    "a dead letter that fails stays": (TRANSIENT, FRESH, DEAD, {}, AS_DEAD_LETTER),
    "whatever the error": (PERMANENT, FRESH, DEAD, {}, AS_DEAD_LETTER),
    "or its handler says": (Classified(FailureKind.REQUESTED), FRESH, DEAD, {}, AS_DEAD_LETTER),
    "or when it wants it": (SNOOZE, FRESH, DEAD, {}, AS_DEAD_LETTER),
    "or what its body is": (Ending.MALFORMED, FRESH, DEAD, {}, AS_DEAD_LETTER),
    "unless it is discarded": (Classified(FailureKind.DISCARDED), FRESH, DEAD, {}, DiscardVerdict()),
}


@pytest.mark.parametrize(("outcome", "history", "policy", "facts", "expected"), TABLE.values(), ids=TABLE)
def test_verdict(
    outcome: HandlerOutcome, history: History, policy: RecoveryPolicy, facts: dict[str, bool], expected: Verdict
) -> None:
    assert decide(outcome, history, policy, NOW, 0.0, **facts) == expected


def members(union: object) -> set[type]:
    return set(get_args(eval(str(union), vars(verdicts))))


def test_the_table_has_every_outcome_and_every_verdict() -> None:
    outcomes = [row[0] for row in TABLE.values()]
    assert {type(outcome) for outcome in outcomes} == members(HandlerOutcome)
    assert {type(row[-1]) for row in TABLE.values()} == members(Verdict)
    assert {outcome for outcome in outcomes if isinstance(outcome, Ending)} == set(Ending)
    assert {outcome.kind for outcome in outcomes if isinstance(outcome, Classified)} == set(FailureKind)


def test_every_outcome_has_a_verdict() -> None:
    outcomes: list[HandlerOutcome] = [
        *Ending,
        *(Classified(kind, after) for kind, after in product(FailureKind, (None, timedelta(0), timedelta.max))),
        *(Crashed(alone) for alone in (False, True)),
        *(Disconnected(alone) for alone in (False, True)),
    ]
    histories = [History(failed=failed, crashes=crashes) for failed, crashes in product((0, 2, 2**31), (0, 2, 2**31))]
    retries = [
        NO_RETRY,
        *(Retry(attempts=3, delay="15s", max_age=age, via=via) for via in RetryRoute for age in (None, "1h")),
    ]
    policies = [
        RecoveryPolicy(retry, guard, limit, for_dead_letters=dead)
        for retry, guard, limit, dead in product(retries, CrashGuard, (1, 5), (False, True))
    ]
    for outcome, history, policy in product(outcomes, histories, policies):
        for has_room, broker_counts in product((False, True), repeat=2):
            found = decide(outcome, history, policy, NOW, 0.5, has_room=has_room, broker_counts=broker_counts)
            assert isinstance(found, tuple(members(Verdict)))
            assert (
                has_room or not isinstance(found, RetryVerdict) or found.via in (RetryRoute.QUORUM, RetryRoute.REJECT)
            )


# Rungs --------------------------------------------------------------------------------------------


def test_a_failure_waits_on_the_rung_of_its_attempt() -> None:
    steps = ["1s", "2s", "3s"]
    waits = [verdict(history=History(failed), steps=steps) for failed in range(3)]
    assert waits == [RetryVerdict(Rung.of(step, "")) for step in steps]


def test_the_last_attempt_is_the_last() -> None:
    assert verdict(history=History(failed=2), attempts=3) == ParkVerdict(ParkReason.EXHAUSTED)
    assert verdict(history=History(failed=99), attempts=3) == ParkVerdict(ParkReason.EXHAUSTED)
    assert verdict(attempts=1) == ParkVerdict(ParkReason.EXHAUSTED)


def test_who_asks_for_more_time_gets_the_next_rung_that_is_not_sooner() -> None:
    later = Classified(FailureKind.TRANSIENT, timedelta(seconds=90))
    assert verdict(later, steps=["10s", "1m", "2m"]) == RetryVerdict(Rung.of("2m", ""))
    assert verdict(later, steps=["10s", "2m", "90s"]) == RetryVerdict(Rung.of("90s", ""))


def test_who_asks_for_less_time_than_the_policy_gets_the_policys() -> None:
    assert verdict(Classified(FailureKind.TRANSIENT, timedelta(seconds=1)), delay="15s") == RetryVerdict(RUNG)


def test_beyond_the_longest_rung_the_message_knows_when_it_is_due() -> None:
    later = Classified(FailureKind.TRANSIENT, timedelta(hours=1))
    assert verdict(later, delay="15s") == RetryVerdict(RUNG, NOW + timedelta(hours=1))


def test_no_wait_is_longer_than_the_longest_wait() -> None:
    for length in (LONGEST_WAIT + timedelta(days=10), timedelta.max):
        snooze = Classified(FailureKind.SNOOZED, length)
        assert verdict(snooze, delay="15s") == RetryVerdict(RUNG, NOW + LONGEST_WAIT, counts=False)


def test_a_snooze_with_nowhere_to_wait_is_parked() -> None:
    assert verdict(Classified(FailureKind.SNOOZED, timedelta(seconds=1)), attempts=1) == ParkVerdict(
        ParkReason.EXHAUSTED
    )


def test_what_would_be_too_old_when_it_comes_back_is_parked_now() -> None:
    hour_ago = History(failed=1, first_failed_at=NOW - timedelta(hours=1))
    assert verdict(history=hour_ago, attempts=9, delay="15s", max_age="1h") == ParkVerdict(ParkReason.EXPIRED)
    assert verdict(history=hour_ago, attempts=9, delay="15s", max_age="61m") == RetryVerdict(RUNG)
    assert verdict(attempts=9, delay="15s", max_age="10s") == ParkVerdict(ParkReason.EXPIRED)


@given(st.integers(1, 30), st.integers(0, 10**9), st.floats(0, 1, exclude_max=True))
def test_no_message_is_retried_indefinitely(attempts: int, failed: int, chance: float) -> None:
    policy = RecoveryPolicy(Retry(attempts=attempts, exponential=Exponential("1s", 2, "1m"), jitter=0.3))
    found = decide(TRANSIENT, History(failed), policy, NOW, chance)
    assert isinstance(found, RetryVerdict) == (failed + 1 < attempts)


@given(st.integers(1, 10**7))
def test_waiting_is_never_shorter_than_asked(milliseconds: int) -> None:
    length = timedelta(milliseconds=milliseconds)
    found = rung_for_delay(Retry(steps=["1s", "30s", "5m"]), length, NOW, counts=True)
    assert found is not None
    assert found.rung.delay >= length or found.not_before == NOW + length


def test_permanent_is_permanent_whatever_is_left() -> None:
    assert verdict(PERMANENT, attempts=99) == ParkVerdict(ParkReason.PERMANENT)


# Crashes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1, 5])
def test_a_message_is_parked_at_its_crash_limit(limit: int) -> None:
    policy, history = RecoveryPolicy(NO_RETRY, CrashGuard.QUARANTINE, limit), History()
    for expected in range(1, limit):
        found = decide(Crashed(alone=True), history, policy, NOW, 0.0)
        assert found == RequeueVerdict("its worker died", expected, alone=True)
        history = history.with_crashes(expected)
    assert decide(Crashed(alone=True), history, policy, NOW, 0.0) == ParkVerdict(ParkReason.CRASHED)
