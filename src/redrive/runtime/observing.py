"""What a worker tells about itself: to logs, metrics and traces, which are `Observer`s.

Telling must be cheap where it happens for every message, so what happens for every message is a call with plain
arguments, and what happens rarely is a value. An observer that fails must not fail a message: `Observers` sees to that.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

import msgspec

from redrive.recovery.breaker import BreakerState

__all__ = ["BreakerChanged", "BreakerState", "ConnectionChanged", "Observer", "Observers", "Outcome", "Settled"]

log = logging.getLogger("redrive.runtime")


class Outcome(StrEnum):
    """How a delivery was settled."""

    DONE = "done"
    RETRIED = "retried"
    PARKED = "parked"
    DISCARDED = "discarded"
    SNOOZED = "snoozed"
    DUPLICATE = "duplicate"  # processed before: skipped
    RELEASED = "released"  # given back to its queue, unhandled or because nothing else was possible


class Settled(msgspec.Struct, frozen=True, gc=False):
    """A delivery that was not simply done. No payload, no headers: identity and reasons only."""

    queue: str
    outcome: Outcome
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
    name: str
    queue: str
    state: BreakerState
    failure_rate: float


@dataclass(frozen=True, slots=True)
class ConnectionChanged:
    name: str  # "consuming", "publishing", "settling"; "database": that of the consumers' transactions
    state: str  # "open", or another; of the database "open" or "unavailable"
    reason: str | None
    reconnects: int


class Observer:
    """Overrides what it is interested in."""

    def started(self, queue: str) -> None:
        """A handler begins. Called for every message."""

    def done(self, queue: str, seconds: float) -> None:
        """A handler returned and its message was acknowledged. Called for every message."""

    def settled(self, event: Settled) -> None:
        """A message was settled in another way."""

    def batch(self, queue: str, size: int, seconds: float) -> None:
        """A batch handler returned."""

    def published(self, exchange: str, seconds: float) -> None:
        """A message was published and confirmed."""

    def breaker(self, event: BreakerChanged) -> None: ...

    def connection(self, event: ConnectionChanged) -> None: ...


class Observers(Observer):
    """All of them, each protected from the others' failures."""

    def __init__(self, observers: Iterable[Observer] = ()) -> None:
        self._observers = tuple(observers)

    def started(self, queue: str) -> None:
        for observer in self._observers:
            try:
                observer.started(queue)
            except Exception:
                log.exception("%s failed to observe", type(observer).__name__)

    def done(self, queue: str, seconds: float) -> None:
        for observer in self._observers:
            try:
                observer.done(queue, seconds)
            except Exception:
                log.exception("%s failed to observe", type(observer).__name__)

    def settled(self, event: Settled) -> None:
        for observer in self._observers:
            try:
                observer.settled(event)
            except Exception:
                log.exception("%s failed to observe", type(observer).__name__)

    def batch(self, queue: str, size: int, seconds: float) -> None:
        for observer in self._observers:
            try:
                observer.batch(queue, size, seconds)
            except Exception:
                log.exception("%s failed to observe", type(observer).__name__)

    def published(self, exchange: str, seconds: float) -> None:
        for observer in self._observers:
            try:
                observer.published(exchange, seconds)
            except Exception:
                log.exception("%s failed to observe", type(observer).__name__)

    def breaker(self, event: BreakerChanged) -> None:
        for observer in self._observers:
            try:
                observer.breaker(event)
            except Exception:
                log.exception("%s failed to observe", type(observer).__name__)

    def connection(self, event: ConnectionChanged) -> None:
        for observer in self._observers:
            try:
                observer.connection(event)
            except Exception:
                log.exception("%s failed to observe", type(observer).__name__)
