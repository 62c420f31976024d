"""What a worker tells about itself: to logs, metrics and traces, which are `Observer`s.

Telling must be cheap where it happens for every message, so what happens for every message is a call with plain
arguments, and what happens rarely is a value. An observer that fails must not fail a message: `Observers` sees to that.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any

import msgspec

from redrive.recovery.breaker import BreakerState

__all__ = [
    "BROKER_UNAVAILABLE",
    "DATABASE",
    "BreakerChanged",
    "BreakerState",
    "ConnectionChanged",
    "DeliveryOutcome",
    "DeliverySettled",
    "Observer",
    "Observers",
]

log = logging.getLogger("redrive.worker")

DATABASE = "database"  # the name of its connection
BROKER_UNAVAILABLE = "the broker is unavailable"  # ends the reason for which a delivery is released


class DeliveryOutcome(StrEnum):
    """How a delivery was settled."""

    DONE = "done"
    RETRIED = "retried"
    PARKED = "parked"
    DISCARDED = "discarded"
    SNOOZED = "snoozed"
    DUPLICATE = "duplicate"  # processed before: skipped
    RELEASED = "released"  # given back to its queue, unhandled or because nothing else was possible


class DeliverySettled(msgspec.Struct, frozen=True, gc=False):
    """A delivery that was not simply done. No payload, no headers: identity and reasons only."""

    queue: str
    outcome: DeliveryOutcome
    attempt: int
    max_attempts: int
    reason: str  # "exhausted", "permanent", "malformed", "crashed", "uncountable", ... or why it was released
    message_id: str | None = None
    correlation_id: str | None = None
    message_type: str | None = None
    routing_key: str | None = None
    delay: timedelta | None = None
    error: str | None = None  # type and message, bounded
    fingerprint: str | None = None
    seconds: float = 0.0  # how long the handler took


@dataclass(frozen=True, slots=True)
class BreakerChanged:
    """A breaker opened, closed, or lets a few messages pass."""

    name: str
    queue: str
    state: BreakerState
    failure_rate: float


@dataclass(frozen=True, slots=True)
class ConnectionChanged:
    """A connection was opened, lost or opened again. `reconnects` is 0 when it was opened for the first time."""

    name: str  # "consuming", "publishing", "settling"; "database": that of the consumers' transactions
    state: str  # "open", or another; of the database "open" or "unavailable"
    reason: str | None
    reconnects: int
    lasted: timedelta | None = None  # how long it was lost, when it is open again


class Observer:
    """Overrides what it is interested in."""

    logs_connections = False  # whether it logs lost connections, so that nothing else has to

    def started(self, queue: str) -> None:
        """A handler begins. Called for every message."""

    def done(self, queue: str, seconds: float) -> None:
        """A handler returned and its message was acknowledged. Called for every message."""

    def settled(self, event: DeliverySettled) -> None:
        """A message was settled in another way."""

    def batch(self, queue: str, size: int, seconds: float) -> None:
        """A batch handler returned."""

    def published(self, exchange: str, seconds: float) -> None:
        """A message was published and confirmed."""

    def breaker(self, event: BreakerChanged) -> None:
        """A breaker changed its state."""

    def connection(self, event: ConnectionChanged) -> None:
        """A connection was made or lost."""


_HOOKS = ("started", "done", "settled", "batch", "published", "breaker", "connection")


class Observers(Observer):
    """Several observers, each protected from the failures of the others. Hooks that none overrides cost nothing."""

    def __init__(self, observers: Iterable[Observer] = ()) -> None:
        observers = tuple(observers)
        for name in _HOOKS:
            hooks = [getattr(observer, name) for observer in observers]
            inherited = getattr(Observer, name)
            if hooks := [hook for hook in hooks if getattr(hook, "__func__", hook) is not inherited]:
                setattr(self, name, _call_all(hooks))


def _call_all(hooks: Sequence[Callable[..., None]]) -> Callable[..., None]:
    def call(*arguments: Any) -> None:
        for hook in hooks:
            try:
                hook(*arguments)
            except Exception:
                log.exception("%s failed to observe", type(getattr(hook, "__self__", hook)).__name__)

    return call
