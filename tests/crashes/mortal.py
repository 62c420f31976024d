"""A broker connection for a migration that does not live to see its end.

Everything that changes the broker is counted: declarations, bindings, publishes, acks, consumers that come and go.
Before a given one `die` is called; whoever survives that does nothing any more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Self, TypeVar

from redrive.client import Connection, Delivery, Properties
from redrive.errors import RedriveError
from redrive.migration.ports import Deliveries
from redrive.wire.method import Method
from redrive.wire.methods.queue import QueueDeclare

M = TypeVar("M", bound=Method)


class Dead(BaseException):
    """What a dead process does."""


class Mortal:
    def __init__(self, connection: Connection, *, die_before: int | None, die: Callable[[], None]) -> None:
        self.effects = 0
        self.dead = False
        self._connection = connection
        self._die_before = die_before
        self._die = die

    @property
    def last_error(self) -> RedriveError | None:
        return self._connection.last_error

    @last_error.setter
    def last_error(self, error: RedriveError | None) -> None:
        raise AttributeError(error)

    def effect(self) -> None:
        if not self.dead:
            self.effects += 1
            if self.effects == self._die_before:
                self.dead = True
                self._die()
        if self.dead:
            raise Dead

    async def ask(self, method: Method, reply: type[M]) -> M:
        if not (isinstance(method, QueueDeclare) and method.passive):
            self.effect()
        return await self._connection.ask(method, reply)

    async def ask_together(self, *methods: Method) -> None:
        self.effect()
        await self._connection.ask_together(*methods)

    async def publish(
        self,
        exchange: str,
        routing_key: str,
        body: bytes,
        properties: Properties | bytes | None = None,
        *,
        mandatory: bool = True,
    ) -> None:
        self.effect()
        await self._connection.publish(exchange, routing_key, body, properties, mandatory=mandatory)

    async def get(self, queue: str) -> Delivery | None:
        self.effect()
        delivery = await self._connection.get(queue)
        return None if delivery is None else _Watched(delivery, self.effect)

    async def consume(
        self, queue: str, handler: None = None, *, prefetch: int = 100, exclusive: bool = False
    ) -> Deliveries:
        self.effect()
        return _Consumer(await self._connection.consume(queue, handler, prefetch=prefetch, exclusive=exclusive), self)


class _Consumer:
    def __init__(self, consumer: Deliveries, mortal: Mortal) -> None:
        self._consumer = consumer
        self._mortal = mortal

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delivery:
        return _Watched(await anext(self._consumer), self._mortal.effect)

    async def cancel(self) -> None:
        self._mortal.effect()
        await self._consumer.cancel()

    async def abort(self) -> None:
        self._mortal.effect()
        await self._consumer.abort()


class _Watched(Delivery):
    """A delivery whose settling counts."""

    __slots__ = ("_delivery", "_effect")

    def __init__(self, delivery: Delivery, effect: Callable[[], None]) -> None:
        self._delivery = delivery
        self._effect = effect
        self.raw_properties = delivery.raw_properties
        self.body = delivery.body
        self._route = delivery._route

    def ack(self) -> bool:
        self._effect()
        return self._delivery.ack()

    def nack(self, *, requeue: bool = True) -> bool:
        self._effect()
        return self._delivery.nack(requeue=requeue)
