"""What becomes of a task, decided and not done: where its retry waits, whether it may come in, how it ends.

A wait that is asked for (`countdown`, `eta`, `retry_backoff`) is one of the queues there are: the shortest that is not
sooner. One that is longer than all of them goes round in the longest until its time has come, which the message knows.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum, auto
from typing import TypeAlias

from billiard.exceptions import WorkerLostError
from celery.exceptions import Ignore, Reject, Retry, Terminated

from redrive.errors import PublishError
from redrive.recovery import verdict
from redrive.recovery.history import History
from redrive.recovery.retry import Retry as Policy
from redrive.recovery.story import ParkReason
from redrive.recovery.verdict import Again, Bury

# A time that is further away than this is nonsense, or somebody else's.
_FAR_ENOUGH = timedelta(days=31)


class CrashedTooOften(Exception):
    """The task ended the process that ran it, time and again. It is parked."""


def next_wait(policy: Policy, attempt: int, asked: timedelta | None, now: datetime, chance: float) -> Again | None:
    """Where the retry after attempt number `attempt` waits; None if the policy has no waits at all.

    `asked` is what the task asked for, None if it leaves that to the ladder. Tasks may have more retries than the
    ladder has rungs: the last one serves for the rest.
    """
    if not policy.rungs:
        return None
    if asked is not None:
        return verdict.wait(policy, asked, now, counts=True)
    return Again(policy.rung(min(attempt, policy.attempts - 1), chance))


# Coming in ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Arrival:
    """A message as it comes to a worker."""

    history: History
    redelivered: bool
    deliveries: int | None  # how often it was delivered before, where the queue counts that


class Recount(Enum):
    """It may have killed whoever had it: put it back with that counted."""

    CRASH = auto()


Hindrance: TypeAlias = "Recount | Again | Bury | None"


def hindrance(arrival: Arrival, policy: Policy | None, crash_limit: int | None, now: datetime) -> Hindrance:
    """Why it is not to be run now, if there is a reason."""
    if arrival.redelivered and crash_limit is not None:
        crashes = arrival.history.crashes + 1 if arrival.deliveries is None else arrival.deliveries
        if crashes >= crash_limit:
            return Bury(ParkReason.CRASHED)
        if arrival.deliveries is None:
            return Recount.CRASH
    return _still_waiting(arrival.history.not_before, policy, now)


def _still_waiting(due: datetime | None, policy: Policy | None, now: datetime) -> Again | None:
    if due is None or policy is None or not now < due <= now + _FAR_ENOUGH:
        return None
    again = verdict.wait(policy, due - now, now, counts=False)
    return Again(again.rung, due, counts=False) if again is not None else None


# The end ------------------------------------------------------------------------------------------


class Fate(Enum):
    CELERYS = auto()  # whatever Celery does about it is right: retried, ignored, revoked, requeued
    PARKED = auto()
    CRASHED = auto()  # the process that ran it is gone


def fate_of(error: BaseException) -> Fate:
    match error:
        case WorkerLostError() | SystemExit() | KeyboardInterrupt():
            return Fate.CRASHED
        case Reject() if not error.requeue:
            return Fate.PARKED
        case Reject() | Ignore() | Retry() | Terminated():
            return Fate.CELERYS
        case _:
            return Fate.PARKED


def reason_of(error: BaseException, retries: int, max_retries: int | None) -> ParkReason:
    match error:
        case CrashedTooOften():
            return ParkReason.CRASHED
        case Reject() if isinstance(error.reason, PublishError):  # its retry, which nobody takes
            return ParkReason.PERMANENT
        case Reject():
            return ParkReason.REQUESTED
        case _ if max_retries is not None and retries >= max_retries:
            return ParkReason.EXHAUSTED
        case _:
            return ParkReason.PERMANENT
