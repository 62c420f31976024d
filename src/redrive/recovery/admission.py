"""Decide whether a delivery may be handled at once: the wait that is left of it, and the crash guard.

A message that comes back before its time (`not_before`) waits on. The rest of this page is the crash guard.

A message that kills its worker must end in the dead-letter queue, and no other message with it. The broker reports only
that a message was *redelivered*. That happens after a crash, but also after a deploy, a lost connection, a peek or a
failed transfer, and it happens to every prefetched message. So a redelivery never counts as a crash. It is a reason to
watch the message the next time it is handled.

To watch a message, the worker that is about to handle it first moves it to a quarantine queue of its own (publish,
confirm, ack) and handles the copy that comes out of it. The copy carries a *mark*:

    (none)       the message is not watched
    W/7          worker W handles it, next to other messages
    W/7/alone    worker W handles it, and nothing else at the same time
    alone        it must be handled alone the next time
    reject       it must be rejected: only the main queue's own dead-letter exchange knows where it goes

Whatever the worker does with the message ends the mark. If the worker disappears first, the quarantine queue returns
the message to the main queue, mark included. A marked message in the main queue therefore means: its handler had begun,
and worker W did not finish. The next worker checks whether W is connected again, or has stopped in order. If so, the
connection was lost and nothing crashed. If not, W died, and something that W was handling killed it:

    the mark was W/7          the message may be to blame, and so may its neighbours: each is handled alone
    the mark was W/7/alone    nothing else was being handled: that is one crash of this message, counted in its headers

At `crash_limit` crashes the message is parked (`recovery.verdict`).

Where there are no quarantine queues (Celery), every redelivery counts as a crash. Quorum queues count it themselves.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from hashlib import sha256
from typing import TypeAlias, assert_never

from redrive.recovery.failure_headers import ParkReason
from redrive.recovery.history import History
from redrive.recovery.verdict import (
    Crashed,
    CrashGuard,
    ParkVerdict,
    RecoveryPolicy,
    RequeueVerdict,
    RetryVerdict,
    after_crash,
    choose_route,
    rung_for_delay,
)

_MARK = re.compile(r"(?:([0-9a-f]{12})/([0-9]{1,18})(/alone)?|(alone)|(reject))", re.ASCII)

# Ignore not-before times further away than this: no handler asked for them, and the message would wait indefinitely.
_LATEST = timedelta(days=31)


@dataclass(frozen=True, slots=True)
class Mark:
    """The state of a watched message, as its header has it."""

    worker: str = ""  # the worker that began to handle it; empty if none did
    number: int = 0  # which of that worker's watched messages it is
    alone: bool = False  # nothing else is handled at the same time
    reject: bool = False

    @classmethod
    def read(cls, value: object) -> Mark | None:
        """The mark in a header. Anything that is not one counts as none: any publisher can write headers."""
        found = _MARK.fullmatch(value) if isinstance(value, str) else None
        if found is None:
            return None
        worker, number, alone, wants_alone, reject = found.groups()
        return cls(worker or "", int(number or 0), bool(alone or wants_alone), bool(reject))

    def __str__(self) -> str:
        if self.reject:
            return "reject"
        if not self.worker:
            return "alone"
        return f"{self.worker}/{self.number}{'/alone' * self.alone}"


ALONE = Mark(alone=True)
REJECT = Mark(reject=True)


def successor(worker: str) -> str:
    """Return the identity a worker uses after `worker`."""
    return sha256(worker.encode()).hexdigest()[:12]


# Arrivals and admissions ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Arrival:
    """What the broker and the headers of a delivery tell before it is handled."""

    redelivered: bool
    deliveries: int | None = None  # how often it was delivered before, where the queue counts that
    mark: Mark | None = None
    has_room: bool = True  # its headers have room to count attempts


@dataclass(frozen=True, slots=True)
class Handle:
    """Pass it to its handler."""


@dataclass(frozen=True, slots=True)
class Watch:
    """Move it to quarantine, then handle it; if `alone`, while no other handler of the worker runs."""

    alone: bool


@dataclass(frozen=True, slots=True)
class CheckWorker:
    """Find out whether the worker named by its mark died."""

    mark: Mark


@dataclass(frozen=True, slots=True)
class Reject:
    """Reject it: the dead-letter exchange of its queue knows where it goes."""


Admission: TypeAlias = "Handle | Watch | CheckWorker | Reject | RetryVerdict | RequeueVerdict | ParkVerdict"


def admit(arrival: Arrival, history: History, policy: RecoveryPolicy, now: datetime) -> Admission:
    """Return what to do with a delivery before its handler sees it."""
    if (wait := _remaining_wait(arrival, history, policy, now)) is not None:
        return wait
    match policy.crash_guard:
        case CrashGuard.NONE:
            return Handle()
        case CrashGuard.QUARANTINE:
            return _admit_watched(arrival, history, policy)
        case CrashGuard.COUNT:
            return _admit_counted(arrival, history, policy)
        case _:
            assert_never(policy.crash_guard)


def _remaining_wait(
    arrival: Arrival, history: History, policy: RecoveryPolicy, now: datetime
) -> RetryVerdict | ParkVerdict | None:
    """A longer wait was asked for than the rungs have: send the message round again, without using an attempt."""
    due = history.not_before
    if due is None or not now < due <= now + _LATEST:
        return None
    wait = rung_for_delay(policy.retry, due - now, now, counts=False)
    if wait is None:
        return None
    return choose_route(replace(wait, not_before=due), policy.retry, has_room=arrival.has_room)


def _admit_watched(arrival: Arrival, history: History, policy: RecoveryPolicy) -> Admission:
    mark = arrival.mark
    if mark is None:
        suspect = arrival.redelivered and not (policy.keeps_rejections and _was_rejected(arrival, history))
        return Watch(alone=False) if suspect else Handle()
    if mark.reject:
        return Reject()
    return CheckWorker(mark) if mark.worker else Watch(alone=True)


def _was_rejected(arrival: Arrival, history: History) -> bool:
    """Whether a delivery counts as redelivered only because it was rejected into its retry queue. On a classic queue
    that is as much as can be seen: after a first rejection, redeliveries are not noticed.
    """
    return history.failed > 0 if arrival.deliveries is None else history.failed >= arrival.deliveries


def _admit_counted(arrival: Arrival, history: History, policy: RecoveryPolicy) -> Admission:
    if not arrival.redelivered:
        return Handle()
    if arrival.deliveries is None:
        return after_crash(Crashed(alone=True), history, policy)
    return ParkVerdict(ParkReason.CRASHED) if arrival.deliveries >= policy.crash_limit else Handle()
