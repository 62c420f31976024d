"""Decide which queue a dead letter belongs to: the destination of `own` and `retry`.

A message names the queue it failed in, twice: in the header x-redrive-queue, which a Redrive worker writes when it
parks, and in x-death, which the broker writes when it dead-letters. Any producer can write both into what it publishes.
The broker keeps the first as it is. It writes its own death before what it finds in the second, and RabbitMQ 3.10
counts on in the rest, x-first-death-* included; from 4.0 on it forgets what a client wrote. So:

    1. x-death is read from the newest death back. A death counts if its queue is known to dead-letter to the queue that
       came after it, the first one to this dead-letter queue. A failure ends the walk. An expiry does not, because
       queues for waiting expire everything; nor does a death in a dead-letter queue that was full or had a TTL.
    2. If the walk ends in another dead-letter queue, the message was parked there: the header counts if the queue it
       names dead-letters to that one.
    3. Where no death counts, a client published the message to this dead-letter queue, as workers do when they park.
       What it names counts if that queue is known to dead-letter here.
    4. A message that names no queue at all belongs to the only queue that dead-letters here, if there is exactly one.

Everything else is skipped, with the reason; an operator can name the queue.

Which queues dead-letter to which is known from the application's topology and from a complete snapshot of the broker
(`redrive.topology.dlq_detection.Feeders`). If no queue is known to dead-letter to this one, because the broker cannot
be seen or because only clients publish to it, what the message names is accepted if x-death and header do not
contradict each other and the operator is unrestricted, or if the dead-letter queue is named after that queue: no
producer chooses that name. docs/decisions/0015-where-a-dead-letter-belongs.md has the reasons.
"""

from __future__ import annotations

from typing import NamedTuple

from redrive.deadletters.dead_letter import Summary
from redrive.text import one_line
from redrive.topology.dlq_detection import Feeders, is_named_after

NO_SOURCE = "the queue it failed in is not known: name one (--to QUEUE)"

_WAITED = "expired"


class MessageOrigin(NamedTuple):
    queue: str | None
    why: str = ""  # there is none


def origin_of(dead_letter: Summary, feeders: Feeders, *, restricted: bool) -> MessageOrigin:
    """Return the queue that a dead letter belongs to. `restricted`: the operator may not send to every queue."""
    if not feeders.of(dead_letter.queue):
        return _guess(dead_letter, restricted)
    died_in = _last_verified_queue(dead_letter, feeders)
    if died_in is not None and died_in not in feeders.dead_letter_queues:
        return MessageOrigin(died_in)
    at, believed = (
        (died_in, (dead_letter.named,))
        if died_in is not None
        else (dead_letter.queue, (dead_letter.source, dead_letter.named))
    )
    found = next((queue for queue in believed if queue is not None and _feeds(queue, at, feeders)), died_in)
    if found is not None:
        return MessageOrigin(found)
    if dead_letter.source:
        return MessageOrigin(None, _foreign_text(dead_letter))
    only = _only_source(dead_letter.queue, feeders)
    return MessageOrigin(only, "" if only else NO_SOURCE)


def _only_source(queue: str, feeders: Feeders) -> str | None:
    """Return the queue whose failures end in this one; None if there are several."""
    found = feeders.behind(queue) - feeders.dead_letter_queues - feeders.waiting
    return next(iter(found)) if len(found) == 1 else None


def _feeds(queue: str, at: str, feeders: Feeders) -> bool:
    return queue in feeders.of(at) or queue in feeders.behind(at)


def _last_verified_queue(dead_letter: Summary, feeders: Feeders) -> str | None:
    """The oldest death that is linked to this queue by deaths in queues where messages only pass."""
    at, found = dead_letter.queue, None
    for death in dead_letter.deaths:
        if death.queue not in feeders.of(at):
            break
        at = found = death.queue
        if death.reason != _WAITED and found not in feeders.dead_letter_queues:
            break
    return found


def _guess(dead_letter: Summary, restricted: bool) -> MessageOrigin:
    """What the message names, where nothing is known of the queues."""
    source, queues = dead_letter.source, {death.queue for death in dead_letter.deaths}
    if not source:
        return MessageOrigin(None, NO_SOURCE)
    if is_named_after(dead_letter.queue, source):
        return MessageOrigin(source)
    if queues and source not in queues:
        names = " and ".join(sorted(map(displayed_name, queues))[:3])
        return MessageOrigin(
            None, f"its header names {displayed_name(source)}, and x-death {names}: name one with --to"
        )
    if restricted:
        return MessageOrigin(
            None,
            f"only the message names {displayed_name(source)}, and what dead-letters to {dead_letter.queue} is not "
            "known; name it with --to to send it there",
        )
    return MessageOrigin(source)


def _foreign_text(dead_letter: Summary) -> str:
    which, queue = (
        "header" if dead_letter.source == dead_letter.named else "x-death",
        displayed_name(dead_letter.source or ""),
    )
    return f"its {which} names {queue}, which does not dead-letter to this queue; name it with --to to send it there"


def displayed_name(name: str) -> str:
    """A name that anybody may have written, fit to be printed."""
    return one_line(name.encode("utf-8", "backslashreplace").decode())
