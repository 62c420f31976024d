"""Decide whether a delivery may be handled at once: the crash guard.

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
and worker W did not finish. The next worker checks whether W is connected again. If it is, the connection was lost and
nothing crashed. If it is not, W died, and something that W was handling killed it:

    the mark was W/7          the message may be to blame, and so may its neighbours: each is handled alone
    the mark was W/7/alone    nothing else was being handled: that is one crash of this message, counted in its headers

At `crash_limit` crashes the message is parked.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, auto
from hashlib import sha256
from typing import TypeAlias

from redrive.recovery.story import ParkReason
from redrive.recovery.verdict import Bury

_MARK = re.compile(r"(?:([0-9a-f]{12})/([0-9]{1,18})(/alone)?|(alone)|(reject))", re.ASCII)


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


class Admission(Enum):
    """What to do with a delivery before its handler sees it."""

    HANDLE = auto()  # handle it as it is
    WATCH = auto()  # move it to quarantine, then handle it
    WATCH_ALONE = auto()  # wait until nothing else is being handled, move it to quarantine, then handle it
    CHECK_WORKER = auto()  # find out whether the worker named by its mark is alive
    REJECT = auto()


def admit(mark: Mark | None, *, redelivered: bool) -> Admission:
    if mark is None:
        return Admission.WATCH if redelivered else Admission.HANDLE
    if mark.reject:
        return Admission.REJECT
    return Admission.CHECK_WORKER if mark.worker else Admission.WATCH_ALONE


@dataclass(frozen=True, slots=True)
class Requeue:
    """Put it back into the main queue, with this mark and this number of crashes."""

    mark: Mark | None
    crashes: int


AfterCheck: TypeAlias = "Requeue | Bury"


def after_check(mark: Mark, crashes: int, limit: int, *, survived: bool) -> AfterCheck:
    """What becomes of a marked message. `survived`: the worker that had begun it is alive."""
    if survived:
        return Requeue(ALONE if mark.alone else None, crashes)
    return after_crash(crashes, limit, alone=mark.alone)


def after_crash(crashes: int, limit: int, *, alone: bool) -> AfterCheck:
    """What becomes of a message whose handling ended with the death of a process."""
    if not alone:
        return Requeue(ALONE, crashes)
    if crashes >= limit:  # no worker wrote that: it would have parked the message
        crashes = 0
    return Bury(ParkReason.CRASHED) if crashes + 1 >= limit else Requeue(ALONE, crashes + 1)
