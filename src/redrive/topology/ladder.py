"""Delays without a plugin: a ladder of queues whose TTLs are powers of two, one set for a whole broker.

A delay of 13 s is 8 + 4 + 1: the message waits in the queue of 8 s, then in that of 4 s, passes 2 s by, and waits 1 s.
Its routing key says so, a word for each bit from the highest down, and then the queue it is for:

    0.0. ... .1.1.0.1.q.orders

At each level a topic exchange looks at its own bit: 1 leads into the queue of the level, whose dead-letter exchange is
the next lower level; 0 leads there at once. Below the lowest is the exchange of arrival, to which each destination is
bound by as many `*` as there are levels and its own name: no other queue's name can match that.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from math import ceil

from redrive.errors import ConfigurationError
from redrive.recovery.durations import format_duration
from redrive.topology.definitions import BindingDefinition, ExchangeDefinition, QueueDefinition

LEVELS = 22  # the longest delay is 2^22 - 1 seconds: 48 days
LONGEST = timedelta(seconds=2**LEVELS - 1)
ARRIVAL = "redrive.delay.arrival"

_LONGEST_KEY = 255


def level(number: int) -> str:
    """The exchange and the queue of a level share a name."""
    return f"redrive.delay.{number:02}"


ENTRANCE = level(LEVELS - 1)


def routing_key(delay: timedelta, queue: str) -> str:
    """The key with which a message published to `ENTRANCE` arrives in `queue` after `delay`, not sooner.

    The ladder knows whole seconds: a fraction is waited for in full.
    """
    if delay > LONGEST:
        raise ConfigurationError(
            f"a delay of {format_duration(delay)} is more than the ladder's {format_duration(LONGEST)}"
        )
    seconds = max(0, ceil(delay.total_seconds()))
    return ".".join(f"{seconds:0{LEVELS}b}") + f".{queue}"


def arrival_key(queue: str) -> str:
    return "*." * LEVELS + queue


def problem_with(queue: str) -> str | None:
    """Why a queue cannot be the destination of a delay, if so."""
    if len(arrival_key(queue).encode()) > _LONGEST_KEY:
        most = _LONGEST_KEY - 2 * LEVELS
        return f"queue {queue}: its name is too long for delays: at most {most} bytes fit behind the ladder's key"
    if any(word in ("*", "#") for word in queue.split(".")):
        return f"queue {queue}: a name with '*' or '#' as a word matches others' delays: choose another"
    return None


def exchanges() -> Iterator[ExchangeDefinition]:
    yield ExchangeDefinition(ARRIVAL, "topic")
    for number in range(LEVELS):
        yield ExchangeDefinition(level(number), "topic")


def queues(arguments: dict[str, object]) -> Iterator[QueueDefinition]:
    """`arguments` say the queues' type and how sure their dead-lettering is."""
    for number in range(LEVELS):
        waiting = {"x-message-ttl": 2**number * 1000, "x-dead-letter-exchange": below(number)}
        yield QueueDefinition(level(number), arguments=arguments | waiting)


def bindings() -> Iterator[BindingDefinition]:
    for number in range(LEVELS):
        before = "*." * (LEVELS - 1 - number)
        yield BindingDefinition(level(number), level(number), f"{before}1.#")
        yield BindingDefinition(level(number), below(number), f"{before}0.#", "exchange")


def below(number: int) -> str:
    return level(number - 1) if number else ARRIVAL
