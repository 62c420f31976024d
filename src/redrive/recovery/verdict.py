"""Decide what becomes of a delivery after its handler ended. The verdict is a value; `worker.settlement` performs it.

`admit` (`recovery.admission`) decides before the handler, `decide` after it. Both are pure, and nothing else decides:
the worker, its batches, consumers of dead letters and the Celery integration call these two functions. A handler that
returns needs no decision: its message is acknowledged.

    outcome                                        verdict
    failed, and the error may pass                 retry on the rung of this attempt; park after the last attempt
    failed, and the error does not pass            park
    the handler raised Park, Discard or Snooze     park, discard, retry without counting
    the body cannot be decoded                     park
    the message was processed before               discard
    cancelled, or the database is unavailable      release
    its worker died                                requeue, to be handled alone; park at the crash limit
    its worker lost the connection                 requeue, nothing counted

A message that is a dead letter already has no other place to go: it is released, unless its handler discards it.

attempt   the number of the delivery to the handler that just failed, from 1
failed    how many attempts failed before this one
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum, auto
from typing import TypeAlias, assert_never

from redrive.recovery.classification import Classified, FailureKind
from redrive.recovery.durations import duration
from redrive.recovery.failure_headers import ParkReason
from redrive.recovery.history import History
from redrive.recovery.retry import Retry, RetryRoute, Rung

LONGEST_WAIT = timedelta(days=30)

# The policy -----------------------------------------------------------------------------------------


class CrashGuard(Enum):
    """How messages that kill their worker are recognised."""

    NONE = auto()  # they are not
    QUARANTINE = auto()  # a redelivered message is watched in a quarantine queue
    COUNT = auto()  # every redelivery counts as a crash


@dataclass(frozen=True, slots=True)
class RecoveryPolicy:
    """What the settings of a consumer say about failure."""

    retry: Retry
    crash_guard: CrashGuard = CrashGuard.NONE
    crash_limit: int = 1  # a message that killed its worker this often is parked
    keeps_rejections: bool = False  # a message rejected into its retry queue comes back as redelivered
    for_dead_letters: bool = False  # the messages are dead letters


# Outcomes -------------------------------------------------------------------------------------------


class Ending(Enum):
    """How a delivery ended without an error of its handler."""

    MALFORMED = auto()  # its body cannot be decoded
    DUPLICATE = auto()  # it was processed before
    CANCELLED = auto()  # the worker stops
    NO_DATABASE = auto()  # the database is unavailable, and the worker stops
    UNMARKABLE = auto()  # its headers have no room for the mark of a watched message


@dataclass(frozen=True, slots=True)
class Crashed:
    """A process died while it handled this message. `alone`: it handled nothing else."""

    alone: bool
    died: str = "worker"  # or only the process of its handler


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The worker that handled it lost its connection, and did not die. `alone`: it handled nothing else."""

    alone: bool


HandlerOutcome: TypeAlias = "Classified | Ending | Crashed | Disconnected"

# Verdicts -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RetryVerdict:
    """Handle it once more, after a wait on `rung`; not before `not_before`, if the rung is shorter than asked."""

    rung: Rung
    not_before: datetime | None = None
    counts: bool = True  # a snooze uses no attempt
    via: RetryRoute = RetryRoute.REPUBLISH  # how it gets to its rung


@dataclass(frozen=True, slots=True)
class ParkVerdict:
    """Move it to the dead-letter queue."""

    reason: ParkReason


@dataclass(frozen=True, slots=True)
class DiscardVerdict:
    """Acknowledge it, on purpose."""

    duplicate: bool = False  # it was processed before


@dataclass(frozen=True, slots=True)
class ReleaseVerdict:
    """Give it back to its queue, unchanged; after a pause that grows while this goes on, if `pause`."""

    reason: str
    pause: bool = False


@dataclass(frozen=True, slots=True)
class RequeueVerdict:
    """Put a copy into its queue, with this number of crashes. `alone`: it must be handled alone the next time."""

    reason: str
    crashes: int
    alone: bool = False


Verdict: TypeAlias = "RetryVerdict | ParkVerdict | DiscardVerdict | ReleaseVerdict | RequeueVerdict"

# The decision ---------------------------------------------------------------------------------------


def decide(
    outcome: HandlerOutcome,
    history: History,
    policy: RecoveryPolicy,
    now: datetime,
    chance: float,
    *,
    has_room: bool = True,
    broker_counts: bool = False,
) -> Verdict:
    """Return what becomes of a delivery that ended with `outcome`.

    `chance`, from 0 to below 1, picks among the shards of a rung. `has_room`: its headers have room to count attempts.
    `broker_counts`: if it is rejected, the broker counts that.
    """
    match outcome:
        case Classified():
            verdict = _after_failure(outcome, history, policy, now, chance)
            if isinstance(verdict, RetryVerdict):
                return choose_route(verdict, policy.retry, has_room=has_room, broker_counts=broker_counts)
            return verdict
        case Ending():
            return _after_ending(outcome, policy)
        case Crashed():
            return after_crash(outcome, history, policy)
        case Disconnected():
            return RequeueVerdict("its worker lost the connection", history.crashes, outcome.alone)
        case _:
            assert_never(outcome)


def _after_failure(
    classified: Classified, history: History, policy: RecoveryPolicy, now: datetime, chance: float
) -> Verdict:
    if policy.for_dead_letters and classified.kind is not FailureKind.DISCARDED:
        return _AS_DEAD_LETTER
    match classified.kind:
        case FailureKind.TRANSIENT:
            return _after_attempt(classified, history, policy.retry, now, chance)
        case FailureKind.DISCARDED:
            return DiscardVerdict()
        case FailureKind.REQUESTED:
            return ParkVerdict(ParkReason.REQUESTED)
        case FailureKind.PERMANENT:
            return ParkVerdict(ParkReason.PERMANENT)
        case FailureKind.SNOOZED:
            snooze = rung_for_delay(policy.retry, classified.after or timedelta(0), now, counts=False)
            # Without a rung there is nowhere to wait. Dead letters and metrics know that as `exhausted`.
            return snooze or ParkVerdict(ParkReason.EXHAUSTED)
        case _:
            assert_never(classified.kind)


def _after_attempt(
    classified: Classified, history: History, retry: Retry, now: datetime, chance: float
) -> RetryVerdict | ParkVerdict:
    attempt = history.failed + 1
    if attempt >= retry.attempts:
        return ParkVerdict(ParkReason.EXHAUSTED)
    rung = retry.rung(attempt, chance)
    verdict = RetryVerdict(rung)
    if classified.after is not None and classified.after > rung.delay:
        verdict = rung_for_delay(retry, classified.after, now, counts=True) or verdict
    if retry.max_age is not None:
        due = verdict.not_before or now + verdict.rung.delay
        if due - (history.first_failed_at or now) > duration(retry.max_age):
            return ParkVerdict(ParkReason.EXPIRED)
    return verdict


def _after_ending(ending: Ending, policy: RecoveryPolicy) -> Verdict:
    match ending:
        case Ending.MALFORMED:
            return _AS_DEAD_LETTER if policy.for_dead_letters else ParkVerdict(ParkReason.MALFORMED)
        case Ending.DUPLICATE:
            return DiscardVerdict(duplicate=True)
        case Ending.CANCELLED:
            return ReleaseVerdict("cancelled")
        case Ending.NO_DATABASE:
            return ReleaseVerdict("the database is unavailable")
        case Ending.UNMARKABLE:  # without the mark a crash loop would never end
            return ParkVerdict(ParkReason.UNCOUNTABLE)
        case _:
            assert_never(ending)


_AS_DEAD_LETTER = ReleaseVerdict("failed as a dead letter", pause=True)


def after_crash(crashed: Crashed, history: History, policy: RecoveryPolicy) -> RequeueVerdict | ParkVerdict:
    """Return what becomes of a message whose handling ended with the death of a process."""
    reason = f"its {crashed.died} died"
    if not crashed.alone:  # one of its neighbours may be to blame
        return RequeueVerdict(reason, history.crashes, alone=True)
    # No worker writes a count from the limit on: it would have parked the message.
    crashes = history.crashes + 1 if history.crashes < policy.crash_limit else 1
    if crashes >= policy.crash_limit:
        return ParkVerdict(ParkReason.CRASHED)
    return RequeueVerdict(reason, crashes, alone=True)


# Where a retry waits --------------------------------------------------------------------------------


def rung_for_delay(retry: Retry, delay: timedelta, now: datetime, *, counts: bool) -> RetryVerdict | None:
    """Return a wait of at least `delay` on the rungs there are: the shortest that is not sooner. If all are sooner, the
    longest, and `admit` sends the message round again when it comes back too early. None if there is no rung at all.

    No wait is longer than `LONGEST_WAIT`: the handler then runs, and can ask again.
    """
    delay = min(delay, LONGEST_WAIT)
    rungs = sorted(retry.rungs, key=lambda rung: rung.delay)
    if not rungs:
        return None
    for rung in rungs:
        if rung.delay >= delay:
            return RetryVerdict(rung, None, counts)
    return RetryVerdict(rungs[-1], now + delay, counts)


def choose_route(
    verdict: RetryVerdict, retry: Retry, *, has_room: bool, broker_counts: bool = False
) -> RetryVerdict | ParkVerdict:
    """Return the verdict with the route it takes. A copy without room for the counter would be retried indefinitely, so
    such a message is parked.
    """
    if retry.via is RetryRoute.QUORUM:
        return RetryVerdict(verdict.rung, verdict.not_before, verdict.counts, RetryRoute.QUORUM)
    if broker_counts and retry.via is RetryRoute.REJECT and verdict.counts and verdict.not_before is None:
        return RetryVerdict(verdict.rung, via=RetryRoute.REJECT)
    if not has_room:
        return ParkVerdict(ParkReason.UNCOUNTABLE)
    if retry.via is RetryRoute.DELAYED:
        return RetryVerdict(verdict.rung, verdict.not_before, verdict.counts, RetryRoute.DELAYED)
    return verdict
