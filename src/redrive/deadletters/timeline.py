"""The events in the life of a dead letter, oldest first: what an operator reads before anything else.

    published to exchange domain.events with key order.new at 2024-05-17 11:59:58 UTC
    attempt 1 failed at 2024-05-17 12:00:00 UTC with TimeoutError: no answer
    waited 15s
    attempt 2 failed at 2024-05-17 12:00:15 UTC with TimeoutError: no answer
    parked by shop on worker-1 at 2024-05-17 12:00:15 UTC after 2 attempts, because its last attempt failed

Each has a kind and a time, for programs, and a sentence, for people. What the broker did by itself has no failure
record, so `x-death` is explained instead. It contains for each queue and reason how often, and when for the first time;
what happened between the first and the last is unknown.

The names in a sentence come from the message, so a sentence is made printable: nothing in it moves a cursor, turns the
direction of writing, or hides.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple

from redrive.deadletters.dead_letter import DeadLetter, DeathRecord, RedriveRecord
from redrive.recovery.durations import format_duration
from redrive.recovery.failure_headers import ParkReason
from redrive.text import one_line, pluralise

_WHY = {
    ParkReason.EXHAUSTED: "its last attempt failed",
    ParkReason.PERMANENT: "its error is one that does not pass",
    ParkReason.MALFORMED: "its body could not be read",
    ParkReason.EXPIRED: "it had been tried for longer than its policy allows",
    ParkReason.CRASHED: "it seems to kill whoever handles it",
    ParkReason.UNCOUNTABLE: "its headers have no room to count its attempts",
    ParkReason.REQUESTED: "its handler asked for it",
    ParkReason.BROKER: "the broker gave it up",
}
_HOW = {
    "expired": ("expired in ", " after its TTL"),
    "maxlen": ("pushed out of ", ": the queue was full (maxlen)"),
    "delivery_limit": ("delivery limit reached in ", ": it came back to the queue too often"),
    "rejected": ("rejected by a consumer of ", ""),
}


class EventKind(StrEnum):
    PUBLISHED = "published"
    FAILED = "failed"  # in an attempt
    WAITED = "waited"  # for its next attempt
    DIED = "died"  # parked, or dead-lettered by the broker
    REDRIVEN = "redriven"
    UNKNOWN = "unknown"  # what is missing or contradictory


class TimelineEvent(NamedTuple):
    kind: EventKind
    at: datetime | None
    text: str


def explain(dead_letter: DeadLetter) -> list[TimelineEvent]:
    """Return what happened to a message, oldest first."""
    if dead_letter.unreadable:
        return [_unknown_event("its properties cannot be read, so nothing is known of how it came here")]
    events = [
        *_publish_events(dead_letter),
        *_sorted_by_time(_earlier_events(dead_letter)),
        *_attempt_events(dead_letter),
        *_parking_events(dead_letter),
    ]
    events += _sorted_by_time(map(_death_event, reversed(dead_letter.deaths)))
    events += _contradiction_events(dead_letter)
    if not (dead_letter.parked or dead_letter.deaths):
        events.append(_unknown_event("how it came here is not known: it has no story and no x-death"))
    return [event._replace(text=one_line(event.text)) for event in events]


def _sorted_by_time(events: Iterable[TimelineEvent]) -> list[TimelineEvent]:
    """Sort by time, since 3.10 lists deaths in an order of its own; keep the order if a time is missing."""
    events = list(events)
    times = [event.at for event in events if event.at is not None]
    if len(times) < len(events):
        return events
    return [event for _, event in sorted(zip(times, events, strict=True), key=lambda timed: timed[0])]


def _unknown_event(text: str) -> TimelineEvent:
    return TimelineEvent(EventKind.UNKNOWN, None, text)


def _publish_events(dead_letter: DeadLetter) -> Iterator[TimelineEvent]:
    if dead_letter.exchange is None and dead_letter.routing_key is None:
        return
    exchange = f"exchange {dead_letter.exchange}" if dead_letter.exchange else "the default exchange"
    key = f" with key {dead_letter.routing_key}" if dead_letter.routing_key else ""
    text = f"published to {exchange}{key}{_time_suffix(dead_letter.timestamp)}"
    yield TimelineEvent(EventKind.PUBLISHED, dead_letter.timestamp, text)


# Before the last re-drive -----------------------------------------------------------------------------


def _earlier_events(dead_letter: DeadLetter) -> Iterator[TimelineEvent]:
    told = set()
    for death in reversed(dead_letter.past):
        yield _death_event(death)
        if death.redrive is not None:
            told.add(death.redrive.operation)
            yield _redrive_event(death.redrive)
    if dead_letter.last_redrive is not None and dead_letter.last_redrive.operation not in told:
        yield _redrive_event(dead_letter.last_redrive)


def _redrive_event(redrive: RedriveRecord) -> TimelineEvent:
    source = f" from {redrive.from_queue}" if redrive.from_queue else ""
    by = f" by {redrive.by}" if redrive.by else ""
    operation = f" in operation {redrive.operation}" if redrive.operation else ""
    reason = f": {redrive.reason}" if redrive.reason else ""
    text = f"re-driven{source}{by}{operation}{_time_suffix(redrive.at)}{reason}"
    return TimelineEvent(EventKind.REDRIVEN, redrive.at, text)


def _death_event(death: DeathRecord) -> TimelineEvent:
    return TimelineEvent(EventKind.DIED, death.at, _death_text(death))


def _death_text(death: DeathRecord) -> str:
    queue = death.queue or "a queue without a name"
    if death.parked:
        attempts = f" after {pluralise(death.times, 'attempt')}" if death.times else ""
        error = f" with {death.error}" if death.error else ""
        return f"failed in {queue}{error}, and parked as {death.reason}{attempts}{_time_suffix(death.at)}"
    before, after = _HOW.get(death.reason, ("dead in ", f": {death.reason or 'no reason is told'}"))
    times = f", {death.times} times, for the first time" if death.times > 1 else ""
    return f"{before}{queue}{after}{times}{_time_suffix(death.at)}"


# Since then -------------------------------------------------------------------------------------------


def _attempt_events(dead_letter: DeadLetter) -> Iterator[TimelineEvent]:
    if dead_letter.dropped:
        text = f"{pluralise(dead_letter.dropped, 'earlier attempt')} failed, of which nothing more is told"
        yield TimelineEvent(EventKind.FAILED, None, text)
    for attempt in dead_letter.history:
        error = ": ".join(filter(None, (attempt.error_type, attempt.message))) or "an error that is not told"
        text = f"attempt {attempt.number} failed{_time_suffix(attempt.at)} with {error}"
        yield TimelineEvent(EventKind.FAILED, attempt.at, text)
        if attempt.delay is not None:
            yield TimelineEvent(EventKind.WAITED, attempt.at, f"waited {format_duration(attempt.delay)}")


def _parking_events(dead_letter: DeadLetter) -> Iterator[TimelineEvent]:
    if not dead_letter.parked:
        return
    by = f" by {dead_letter.app}" if dead_letter.app else ""
    on = f" on {dead_letter.host}" if dead_letter.host else ""
    attempts = f" after {pluralise(dead_letter.attempts, 'attempt')}" if dead_letter.attempts else ""
    error = f" ({dead_letter.error})" if dead_letter.error and not dead_letter.history else ""
    why = _WHY[ParkReason(dead_letter.reason)]
    text = f"parked{by}{on}{_time_suffix(dead_letter.dead_at)}{attempts}, because {why}{error}"
    yield TimelineEvent(EventKind.DIED, dead_letter.dead_at, text)


def _contradiction_events(dead_letter: DeadLetter) -> Iterator[TimelineEvent]:
    """Header and broker differ about where it failed: any producer can write the header."""
    if (
        dead_letter.named is None
        or not dead_letter.deaths
        or dead_letter.named in (death.queue for death in dead_letter.deaths)
    ):
        return
    newest = dead_letter.deaths[0].queue
    rule = "x-death counts"
    if dead_letter.source == dead_letter.named:
        rule += f", unless {newest} is a dead-letter queue of {dead_letter.named}"
    yield _unknown_event(
        f"its header says that it failed in {dead_letter.named}, and x-death that it died in {newest}: {rule}"
    )


def _time_suffix(at: datetime | None) -> str:
    return f" at {at:%Y-%m-%d %H:%M:%S} UTC" if at is not None else ""
