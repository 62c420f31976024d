"""What a migration asks of a broker (`redrive.client.Connection`) and of its watchers (`redrive.inspection`)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Protocol, Self, TypeVar

from redrive.errors import RedriveError
from redrive.protocol.content import Delivery
from redrive.runtime.ports import Consuming, Publishes
from redrive.topology.snapshot import BrokerSnapshot
from redrive.wire.method import Method

M = TypeVar("M", bound=Method)


class Deliveries(Consuming, Protocol):
    """What comes out of a queue, one after the other, until it is left."""

    def __aiter__(self) -> Self: ...

    async def __anext__(self) -> Delivery: ...


class Migrator(Publishes, Protocol):
    """Does single operations, of which nothing is remembered and made again, and moves messages."""

    last_error: RedriveError | None  # why the connection was lost last

    async def ask(self, method: Method, reply: type[M]) -> M: ...

    async def ask_together(self, *methods: Method) -> None:
        """In one write, one after the other; what is refused ends those behind it."""

    async def get(self, queue: str) -> Delivery | None: ...

    async def consume(
        self, queue: str, handler: None = ..., *, prefetch: int = ..., exclusive: bool = ...
    ) -> Deliveries: ...


class Watcher(Protocol):
    """Sees what plain AMQP does not tell."""

    @property
    def lag(self) -> timedelta:
        """How old what it says about a queue's messages may be."""

    async def snapshot(self) -> BrokerSnapshot: ...

    async def held(self, queue: str) -> int | None:
        """How many messages of a queue are in other hands or otherwise not ready; None where it cannot be seen."""

    async def consumers(self, queue: str) -> Sequence[str]:
        """Who consumes from it, in words for a person."""
