"""What is done with a delivery before its handler sees it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import product
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.recovery import admission
from redrive.recovery.admission import (
    ALONE,
    REJECT,
    Admission,
    Arrival,
    CheckWorker,
    Handle,
    Mark,
    Reject,
    Watch,
    admit,
)
from redrive.recovery.failure_headers import ParkReason
from redrive.recovery.history import History
from redrive.recovery.retry import NO_RETRY, Retry, RetryRoute
from redrive.recovery.verdict import CrashGuard, ParkVerdict, RecoveryPolicy, RequeueVerdict, RetryVerdict

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
WORKER = "0123456789ab"
BESIDE_OTHERS = Mark(WORKER, 7)
BY_ITSELF = Mark(WORKER, 7, alone=True)
LADDER = Retry(steps=["30s", "60s", "2m", "10m"])

# Marks --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mark", [BESIDE_OTHERS, BY_ITSELF, ALONE, REJECT])
def test_a_mark_is_read_back_as_it_was_written(mark: Mark) -> None:
    assert Mark.read(str(mark)) == mark


@given(st.one_of(st.text(), st.integers(), st.binary(), st.none(), st.lists(st.text())))
def test_any_header_value_can_be_read(value: object) -> None:
    mark = Mark.read(value)
    assert mark is None or str(mark) == value


@pytest.mark.parametrize(
    "value", ["alone ", f"{WORKER}/x", f"{WORKER}/7/", "../../etc/7", f"{WORKER.upper()}/7", "", 7, None]
)
def test_what_is_not_a_mark_counts_as_none(value: object) -> None:
    assert Mark.read(value) is None


# The table ----------------------------------------------------------------------------------------

HANDLED = Arrival(redelivered=False)
REDELIVERED = Arrival(redelivered=True)
WATCHING = RecoveryPolicy(LADDER, CrashGuard.QUARANTINE, 5)
REJECTING = RecoveryPolicy(LADDER, CrashGuard.QUARANTINE, 5, keeps_rejections=True)
COUNTING = RecoveryPolicy(LADDER, CrashGuard.COUNT, 5)
UNGUARDED = RecoveryPolicy(LADDER)
EARLY = History(not_before=NOON + timedelta(seconds=45))
WAIT = RetryVerdict(LADDER.rung(2), EARLY.not_before, counts=False)
PARK = ParkVerdict(ParkReason.CRASHED)


def crashed(times: int) -> RequeueVerdict:
    return RequeueVerdict("its worker died", times, alone=True)


def marked(mark: Mark, *, redelivered: bool = False) -> Arrival:
    return Arrival(redelivered, mark=mark)


def delivered(times: int) -> Arrival:
    return Arrival(redelivered=True, deliveries=times)


TABLE = {
    "a first delivery is handled": (HANDLED, History(), WATCHING, Handle()),
    "a redelivered message is watched": (REDELIVERED, History(), WATCHING, Watch(alone=False)),
    "one that must be handled alone is watched alone": (marked(ALONE), History(), WATCHING, Watch(alone=True)),
    "however it was delivered": (marked(ALONE, redelivered=True), History(), WATCHING, Watch(alone=True)),
    "the worker of a mark is checked": (marked(BESIDE_OTHERS), History(), WATCHING, CheckWorker(BESIDE_OTHERS)),
    "alone or not": (marked(BY_ITSELF, redelivered=True), History(), WATCHING, CheckWorker(BY_ITSELF)),
    "one to be rejected is rejected": (marked(REJECT), History(), WATCHING, Reject()),
    # Without a guard
    "without a guard a redelivered message is handled": (REDELIVERED, History(), UNGUARDED, Handle()),
    "and a marked one": (marked(REJECT), History(), UNGUARDED, Handle()),
    # Retried by reject: the broker reports such a message as redelivered
    "a rejected message was not redelivered": (REDELIVERED, History(failed=1), REJECTING, Handle()),
    "as far as the broker counts": (delivered(2), History(failed=2), REJECTING, Handle()),
    "one delivery more is a redelivery": (delivered(3), History(failed=2), REJECTING, Watch(alone=False)),
    "so is one that never failed": (REDELIVERED, History(), REJECTING, Watch(alone=False)),
    "where rejections do not show, failures say nothing": (
        REDELIVERED,
        History(failed=1),
        WATCHING,
        Watch(alone=False),
    ),
    # Where redeliveries count as crashes
    "a copy of one that crashed is handled": (HANDLED, History(crashes=4), COUNTING, Handle()),
    "the first redelivery is counted": (REDELIVERED, History(), COUNTING, crashed(1)),
    "the fourth, too": (REDELIVERED, History(crashes=3), COUNTING, crashed(4)),
    "the fifth parks": (REDELIVERED, History(crashes=4), COUNTING, PARK),
    "a count that no worker writes starts over": (REDELIVERED, History(crashes=99), COUNTING, crashed(1)),
    "the queue's own count is left to it": (delivered(4), History(), COUNTING, Handle()),
    "up to the limit": (delivered(5), History(), COUNTING, PARK),
    # Not before
    "an early message waits for what is left": (HANDLED, EARLY, WATCHING, WAIT),
    "even if it was redelivered": (REDELIVERED, EARLY, WATCHING, WAIT),
    "and where redeliveries count": (REDELIVERED, EARLY, COUNTING, WAIT),
    "and without a guard": (HANDLED, EARLY, UNGUARDED, WAIT),
    "if there is a rung": (HANDLED, EARLY, RecoveryPolicy(NO_RETRY), Handle()),
    "and room": (Arrival(False, has_room=False), EARLY, UNGUARDED, ParkVerdict(ParkReason.UNCOUNTABLE)),
    "a quorum queue needs none": (
        Arrival(False, has_room=False),
        EARLY,
        RecoveryPolicy(Retry(delay="1m", via=RetryRoute.QUORUM)),
        RetryVerdict(Retry(delay="1m").rung(1), EARLY.not_before, counts=False, via=RetryRoute.QUORUM),
    ),
    "a message that is due is handled": (HANDLED, History(not_before=NOON), WATCHING, Handle()),
    "so is one whose time is too far away": (
        HANDLED,
        History(not_before=NOON + timedelta(days=32)),
        WATCHING,
        Handle(),
    ),
}


@pytest.mark.parametrize(("arrival", "history", "policy", "expected"), TABLE.values(), ids=TABLE)
def test_admission(arrival: Arrival, history: History, policy: RecoveryPolicy, expected: Admission) -> None:
    assert admit(arrival, history, policy, NOON) == expected


def test_the_table_has_every_admission() -> None:
    names = get_args(eval(str(Admission), vars(admission)))
    assert {type(row[-1]) for row in TABLE.values()} == set(names)


def test_every_arrival_is_admitted_or_settled() -> None:
    arrivals = [
        Arrival(redelivered, deliveries, mark, has_room)
        for redelivered, deliveries, mark, has_room in product(
            (False, True), (None, 0, 1, 9), (None, ALONE, REJECT, BESIDE_OTHERS, BY_ITSELF), (False, True)
        )
    ]
    histories = [
        History(failed=failed, crashes=crashes, not_before=due)
        for failed, crashes, due in product(
            (0, 1), (0, 4, 99), (None, NOON, EARLY.not_before, datetime.max.replace(tzinfo=UTC))
        )
    ]
    retries = [NO_RETRY, *(Retry(attempts=3, delay="1m", via=via) for via in RetryRoute)]
    policies = [
        RecoveryPolicy(retry, guard, limit, keeps_rejections=keeps)
        for retry, guard, limit, keeps in product(retries, CrashGuard, (1, 5), (False, True))
    ]
    for arrival, history, policy in product(arrivals, histories, policies):
        found = admit(arrival, history, policy, NOON)
        assert policy.crash_guard is CrashGuard.QUARANTINE or not isinstance(found, Watch | CheckWorker | Reject)
        assert arrival.redelivered or arrival.mark or history.not_before or found == Handle()
