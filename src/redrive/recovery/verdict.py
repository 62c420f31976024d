"""What becomes of a delivery whose handler failed: the decision, as a value. Somebody else performs it.

attempt   the number of the delivery to the handler that just failed, from 1
failed    how many failed, this one included: the same number, seen from behind
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol, TypeAlias

from redrive.recovery.classification import Classified, Kind
from redrive.recovery.durations import duration
from redrive.recovery.retry import Retry, Rung
from redrive.recovery.story import ParkReason

LONGEST_WAIT = timedelta(days=30)


class Past(Protocol):
    """What is known of a message's earlier failures."""

    @property
    def failed(self) -> int: ...

    @property
    def first_failed_at(self) -> datetime | None: ...


@dataclass(frozen=True, slots=True)
class Again:
    """Try once more, after having waited on `rung`, and not before `not_before` if the rung is shorter than asked."""

    rung: Rung
    not_before: datetime | None = None
    counts: bool = True  # a snooze uses no attempt


@dataclass(frozen=True, slots=True)
class Bury:
    """To the dead-letter queue."""

    reason: ParkReason


@dataclass(frozen=True, slots=True)
class Drop:
    """Done with it, on purpose."""


Verdict: TypeAlias = "Again | Bury | Drop"


def decide(classified: Classified, past: Past, policy: Retry, now: datetime, chance: float) -> Verdict:
    """`chance`, from 0 to below 1, picks among the shards of a rung."""
    match classified.kind:
        case Kind.TRANSIENT:
            return _again(classified, past, policy, now, chance)
        case Kind.DISCARDED:
            return Drop()
        case Kind.REQUESTED:
            return Bury(ParkReason.REQUESTED)
        case Kind.PERMANENT:
            return Bury(ParkReason.PERMANENT)
        case Kind.SNOOZED:
            return wait(policy, classified.after or timedelta(0), now, counts=False) or Bury(ParkReason.EXHAUSTED)


def _again(classified: Classified, past: Past, policy: Retry, now: datetime, chance: float) -> Verdict:
    attempt = past.failed + 1
    if attempt >= policy.attempts:
        return Bury(ParkReason.EXHAUSTED)
    rung = policy.rung(attempt, chance)
    verdict = Again(rung)
    if classified.after is not None and classified.after > rung.delay:
        verdict = wait(policy, classified.after, now, counts=True) or verdict
    if policy.max_age is not None:
        due = verdict.not_before or now + verdict.rung.delay
        if due - (past.first_failed_at or now) > duration(policy.max_age):
            return Bury(ParkReason.EXPIRED)
    return verdict


def wait(policy: Retry, length: timedelta, now: datetime, *, counts: bool) -> Again | None:
    """Wait for that long on the rungs there are: the shortest that is not sooner. If all are, the longest, and whoever
    gets the message back too early sends it round again. None if there is no rung at all.

    Nobody waits for longer than `LONGEST_WAIT`: then the handler is asked again.
    """
    length = min(length, LONGEST_WAIT)
    rungs = sorted(policy.rungs, key=lambda rung: rung.delay)
    if not rungs:
        return None
    for rung in rungs:
        if rung.delay >= length:
            return Again(rung, None, counts)
    return Again(rungs[-1], now + length, counts)
