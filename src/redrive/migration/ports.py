"""The conditions and the result of a migration, and its ports.

`redrive.client.Connection` is a `Migrator`; `redrive.inspection` has the watchers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Protocol, Self, TypeVar

from redrive.errors import RedriveError
from redrive.protocol.messages import Delivery
from redrive.topology.snapshot import BrokerSnapshot
from redrive.wire.method import Method
from redrive.worker.ports import PublisherPort, Subscription

M = TypeVar("M", bound=Method)


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationOptions:
    """The conditions on which a queue is migrated."""

    wait_for_consumers: bool = False  # else it is refused while there are any
    timeout: timedelta | None = None  # how long to wait for them, and for what they hold
    allow_reorder: bool = False  # may a few messages come after younger ones, if producers leave no gap?
    attempts: int = 10  # to find such a gap
    settle: timedelta = timedelta(seconds=1)
    youth: timedelta = timedelta(seconds=2)
    window: int = 200  # how many messages are carried at a time


@dataclass(slots=True)
class MigrationResult:
    """What a migration did."""

    queue: str
    migrated: bool = False  # else it was as wanted already
    resumed: bool = False
    retreats: int = 0
    reordered: int = 0  # messages that came after younger ones, as was allowed
    carried: dict[str, int] = field(default_factory=dict)  # by the queue they were taken from


class Deliveries(Subscription, Protocol):
    """What comes out of a queue, one after the other, until it is left."""

    def __aiter__(self) -> Self: ...

    async def __anext__(self) -> Delivery: ...


class Migrator(PublisherPort, Protocol):
    """Does single operations, of which nothing is remembered and made again, and moves messages."""

    last_error: RedriveError | None  # why the connection was lost last

    async def ask(self, method: Method, reply: type[M]) -> M: ...

    async def ask_together(self, *methods: Method) -> None:
        """In one write, one after the other; what is refused ends those behind it."""

    async def get(self, queue: str) -> Delivery | None: ...

    async def consume(
        self, queue: str, handler: None = ..., *, prefetch: int = ..., exclusive: bool = ...
    ) -> Deliveries: ...


class QueueMonitor(Protocol):
    """Sees what plain AMQP does not tell."""

    @property
    def lag(self) -> timedelta:
        """How old what it says about a queue's messages may be."""

    async def snapshot(self) -> BrokerSnapshot: ...

    async def count_held(self, queue: str) -> int | None:
        """How many messages of a queue are unacknowledged or otherwise not ready; None where it cannot be seen."""

    async def consumers(self, queue: str) -> Sequence[str]:
        """Who consumes from it, in words for a person."""
