"""Decide what becomes of a task, where Celery has a say: where the retry that it asks for waits, and how it ends.

Whether a task may run, and what a crash means, is decided by `recovery.admission` and `recovery.verdict`.

A wait that is asked for (`countdown`, `eta`, `retry_backoff`) is one of the queues there are: the shortest that is not
sooner. One that is longer than all of them waits in the longest, several times, until the time in its header has come.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import Enum, auto

from billiard.exceptions import WorkerLostError
from celery.exceptions import Ignore, Reject, Retry, Terminated

from redrive.errors import PublishError
from redrive.recovery.failure_headers import ParkReason
from redrive.recovery.retry import Retry as Policy
from redrive.recovery.verdict import RetryVerdict, rung_for_delay


class CrashedTooOften(Exception):
    """The task ended the process that ran it, time and again. It is parked."""


def next_wait(
    policy: Policy, attempt: int, asked: timedelta | None, now: datetime, chance: float
) -> RetryVerdict | None:
    """Return where the retry after attempt number `attempt` waits; None if the policy has no waits at all.

    `asked` is what the task asked for, None if it leaves that to the ladder. Tasks may have more retries than the
    ladder has rungs: the last one serves for the rest.
    """
    if not policy.rungs:
        return None
    if asked is not None:
        return rung_for_delay(policy, asked, now, counts=True)
    return RetryVerdict(policy.rung(min(attempt, policy.attempts - 1), chance))


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
