"""What happened to a dead letter, in sentences, oldest first: what an operator reads before anything else.

    published to exchange domain.events with key order.new at 2024-05-17 11:59:58 UTC
    attempt 1 failed at 2024-05-17 12:00:00 UTC with TimeoutError: no answer
    waited 15s
    attempt 2 failed at 2024-05-17 12:00:15 UTC with TimeoutError: no answer
    parked by shop on worker-1 at 2024-05-17 12:00:15 UTC after 2 attempts, because its last attempt failed

What the broker did by itself has no story, so `x-death` is explained instead. It tells of each queue and reason how
often, and when for the first time; what came between the first and the last is not known.

Everything in a sentence was written by somebody else. They are made for printing: nothing in them moves a cursor, turns
the direction of writing, or hides.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import TypeAlias

from redrive.recovery.dead_letter import DeadLetter, Death, Redrive
from redrive.recovery.durations import brief
from redrive.recovery.story import ParkReason
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

_Event: TypeAlias = "tuple[datetime | None, str]"


def explain(letter: DeadLetter) -> list[str]:
    if letter.unreadable:
        return ["its properties cannot be read, so nothing is known of how it came here"]
    lines = [*_publish(letter), *_in_order(_earlier(letter)), *_attempts(letter), *_park(letter)]
    lines += _in_order((death.at, _death(death)) for death in reversed(letter.deaths))
    lines += _contradiction(letter)
    if not (letter.parked or letter.deaths):
        lines.append("how it came here is not known: it has no story and no x-death")
    return [one_line(line) for line in lines]


def _in_order(events: Iterable[_Event]) -> list[str]:
    """By their times, since 3.10 lists deaths in an order of its own; as they came if a time is missing."""
    events = list(events)
    timed = [(at, line) for at, line in events if at is not None]
    if len(timed) == len(events):
        timed.sort(key=lambda event: event[0])
        return [line for _, line in timed]
    return [line for _, line in events]


def _publish(letter: DeadLetter) -> Iterator[str]:
    if letter.exchange is None and letter.routing_key is None:
        return
    exchange = f"exchange {letter.exchange}" if letter.exchange else "the default exchange"
    key = f" with key {letter.routing_key}" if letter.routing_key else ""
    yield f"published to {exchange}{key}{_when(letter.timestamp)}"


# Before the last re-drive -----------------------------------------------------------------------------


def _earlier(letter: DeadLetter) -> Iterator[_Event]:
    told = set()
    for death in reversed(letter.past):
        yield death.at, _death(death)
        if death.redrive is not None:
            told.add(death.redrive.operation)
            yield death.redrive.at, _redriven(death.redrive)
    if letter.last_redrive is not None and letter.last_redrive.operation not in told:
        yield letter.last_redrive.at, _redriven(letter.last_redrive)


def _redriven(redrive: Redrive) -> str:
    source = f" from {redrive.from_queue}" if redrive.from_queue else ""
    by = f" by {redrive.by}" if redrive.by else ""
    operation = f" in operation {redrive.operation}" if redrive.operation else ""
    reason = f": {redrive.reason}" if redrive.reason else ""
    return f"re-driven{source}{by}{operation}{_when(redrive.at)}{reason}"


def _death(death: Death) -> str:
    queue = death.queue or "a queue without a name"
    if death.parked:
        attempts = f" after {pluralise(death.times, 'attempt')}" if death.times else ""
        error = f" with {death.error}" if death.error else ""
        return f"failed in {queue}{error}, and parked as {death.reason}{attempts}{_when(death.at)}"
    before, after = _HOW.get(death.reason, ("dead in ", f": {death.reason or 'no reason is told'}"))
    times = f", {death.times} times, for the first time" if death.times > 1 else ""
    return f"{before}{queue}{after}{times}{_when(death.at)}"


# Since then -------------------------------------------------------------------------------------------


def _attempts(letter: DeadLetter) -> Iterator[str]:
    if letter.dropped:
        yield f"{pluralise(letter.dropped, 'earlier attempt')} failed, of which nothing more is told"
    for attempt in letter.history:
        error = ": ".join(filter(None, (attempt.error_type, attempt.message))) or "an error that is not told"
        yield f"attempt {attempt.number} failed{_when(attempt.at)} with {error}"
        if attempt.delay is not None:
            yield f"waited {brief(attempt.delay)}"


def _park(letter: DeadLetter) -> Iterator[str]:
    if not letter.parked:
        return
    by = f" by {letter.app}" if letter.app else ""
    on = f" on {letter.host}" if letter.host else ""
    attempts = f" after {pluralise(letter.attempts, 'attempt')}" if letter.attempts else ""
    error = f" ({letter.error})" if letter.error and not letter.history else ""
    yield f"parked{by}{on}{_when(letter.dead_at)}{attempts}, because {_WHY[ParkReason(letter.reason)]}{error}"


def _contradiction(letter: DeadLetter) -> Iterator[str]:
    """Header and broker differ about where it failed: any producer can write the header."""
    if letter.named is None or not letter.deaths or letter.named in (death.queue for death in letter.deaths):
        return
    newest = letter.deaths[0].queue
    rule = "x-death counts"
    if letter.source == letter.named:
        rule += f", unless {newest} is a dead-letter queue of {letter.named}"
    yield f"its header says that it failed in {letter.named}, and x-death that it died in {newest}: {rule}"


def _when(at: datetime | None) -> str:
    return f" at {at:%Y-%m-%d %H:%M:%S} UTC" if at is not None else ""
