"""What is asked of a broker. `redrive.client.Connection` is one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

from redrive.errors import PublishError
from redrive.protocol.messages import Delivery
from redrive.wire.properties import Properties
from redrive.wire.values import FieldValue


class PublisherPort(Protocol):
    async def publish(
        self,
        exchange: str,
        routing_key: str,
        body: bytes,
        properties: Properties | bytes | None = ...,
        *,
        mandatory: bool = ...,
    ) -> None:
        """Returns when the broker has the message, and raises a `PublishError` otherwise."""


class ConfirmCallback(Protocol):
    """What is called with the result of a publish: a future, or anything with the same methods."""

    def done(self) -> bool:
        """Is it too late to tell?"""

    def set_result(self, _: None, /) -> None:
        """The broker has it."""

    def set_exception(self, error: PublishError, /) -> None:
        """It was not confirmed, or that is unknown."""


class TransferPublisher(PublisherPort, Protocol):
    def publish_now(
        self, exchange: str, routing_key: str, body: bytes, properties: Properties | bytes, waiter: ConfirmCallback
    ) -> bool:
        """Send it, if that is possible without waiting, and tell the waiter later. False: nothing was sent."""


class Subscription(Protocol):
    """A queue being consumed."""

    @property
    def unsettled(self) -> int:
        """How many deliveries are here that the broker still answers for."""

    @property
    def restarts(self) -> int:
        """How often consuming had to be taken up again."""

    async def flush(self) -> None:
        """Wait until the broker has read what was settled so far."""

    async def cancel(self) -> None:
        """Take no more, and wait for what is being handled and settled."""

    async def abort(self) -> None:
        """Stop now: what is not settled goes back to the queue."""


class ConsumerPort(Protocol):
    async def consume(
        self,
        queue: str,
        handler: Callable[[Delivery], Awaitable[None]] | None = ...,
        *,
        prefetch: int = ...,
        concurrency: int = ...,
        finishing: Callable[[], Awaitable[None]] | None = ...,
        aborting: Callable[[], Awaitable[None]] | None = ...,
        intercept: Callable[[Delivery], bool] | None = ...,
    ) -> Subscription:
        """`intercept` gets each redelivered message when it arrives, and returns whether it settles it."""

    async def consume_many(
        self,
        queue: str,
        handler: Callable[[Sequence[Delivery]], Awaitable[None]],
        *,
        prefetch: int = ...,
        finishing: Callable[[], Awaitable[None]] | None = ...,
        aborting: Callable[[], Awaitable[None]] | None = ...,
        intercept: Callable[[Delivery], bool] | None = ...,
    ) -> Subscription: ...


class QueueCounts(Protocol):
    @property
    def messages(self) -> int:
        """How many are ready."""

    @property
    def consumers(self) -> int: ...


class DeclaresQueues(Protocol):
    async def declare_queue(
        self,
        name: str = ...,
        *,
        durable: bool = ...,
        exclusive: bool = ...,
        auto_delete: bool = ...,
        arguments: Mapping[str, FieldValue] | None = ...,
    ) -> Any: ...


class Queues(DeclaresQueues, Protocol):
    """Declares, inspects and deletes queues."""

    async def queue_info(self, name: str) -> QueueCounts:
        """Raises `NotFound` if there is no such queue."""

    async def delete_queue(self, name: str) -> Any: ...


class WorkerBroker(ConsumerPort, Queues, Protocol):
    """What a worker needs of the connection that consumes."""

    @property
    def reconnects(self) -> int:
        """How often the connection was lost and opened again."""


class Declarer(DeclaresQueues, Protocol):
    """Makes exchanges, queues and bindings. To make one again that exists just so changes nothing."""

    async def declare_exchange(
        self,
        name: str,
        type: str = ...,
        *,
        durable: bool = ...,
        auto_delete: bool = ...,
        internal: bool = ...,
        arguments: Mapping[str, FieldValue] | None = ...,
    ) -> None: ...

    async def bind_queue(
        self, queue: str, exchange: str, routing_key: str = ..., arguments: Mapping[str, FieldValue] | None = ...
    ) -> None: ...

    async def bind_exchange(
        self, destination: str, source: str, routing_key: str = ..., arguments: Mapping[str, FieldValue] | None = ...
    ) -> None: ...
