"""Definitions as they can be relied on: in order, and with arguments that are what they should be.

RabbitMQ checks them, but a file is not yet a broker. What cannot be meant is left out and not complained about: that is
the business of `rules`.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from redrive.topology.definitions import Arguments, Definitions, ExchangeDefinition, QueueDefinition

_NAMES = ("x-dead-letter-exchange", "x-dead-letter-routing-key")
_LENGTHS = ("x-message-ttl", "x-delayed-retry-min", "x-delayed-retry-max")
_LONGEST = 10**15  # milliseconds: more is no length of time


def tidied(definitions: Definitions) -> Definitions:
    return Definitions.of(map(_exchange, definitions.exchanges), map(_queue, definitions.queues), definitions.bindings)


def length_of(value: object) -> timedelta | None:
    """A number of milliseconds as a length of time, if it is one."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        return None
    return timedelta(milliseconds=min(value, _LONGEST))


def _exchange(exchange: ExchangeDefinition) -> ExchangeDefinition:
    return replace(exchange, arguments=_with_names(exchange.arguments, ("alternate-exchange",)))


def _queue(queue: QueueDefinition) -> QueueDefinition:
    arguments = _with_names(queue.arguments, _NAMES)
    dropped = {name for name in _LENGTHS if name in arguments and length_of(arguments[name]) is None}
    return replace(queue, arguments={name: value for name, value in arguments.items() if name not in dropped})


def _with_names(arguments: Arguments, names: tuple[str, ...]) -> Arguments:
    """Without those among them that are no names."""
    return {name: value for name, value in arguments.items() if name not in names or isinstance(value, str)}
