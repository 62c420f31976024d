"""How a contract test learns what a broker did, without sleeping."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from redrive.client import Connection, Consumer, Delivery, Properties
from redrive.client.channel import Channel
from redrive.errors import NotFound
from redrive.wire.frames import publish_frame

T = TypeVar("T")

DEADLINE = 15.0


async def eventually(probe: Callable[[], Awaitable[T]], wanted: T) -> None:
    """Ask again and again until the answer is the one that is wanted. Only for what a broker does in its own time."""
    seen: T | None = None
    try:
        async with asyncio.timeout(DEADLINE):
            while (seen := await probe()) != wanted:  # noqa: ASYNC110 - a broker gives no sign
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise AssertionError(f"wanted {wanted!r}, and the last answer was {seen!r}") from None


async def ready(connection: Connection, queue: str, count: int) -> None:
    """Wait until so many messages are ready to be delivered."""

    async def messages() -> int:
        return (await connection.queue_info(queue)).messages

    await eventually(messages, count)


async def consumers(connection: Connection, queue: str, count: int) -> None:
    async def number() -> int:
        return (await connection.queue_info(queue)).consumers

    await eventually(number, count)


async def gone(connection: Connection, queue: str) -> None:
    """Wait until there is no such queue."""

    async def is_gone() -> bool:
        try:
            await connection.queue_info(queue)
        except NotFound:
            return True
        return False

    await eventually(is_gone, True)


async def take(consumer: Consumer, count: int) -> list[Delivery]:
    async with asyncio.timeout(DEADLINE):
        return [await anext(consumer) for _ in range(count)]


async def drained(connection: Connection, queue: str) -> list[bytes]:
    """The bodies of all messages that are ready, in order; they are acked."""
    bodies = []
    while (delivery := await connection.get(queue)) is not None:
        bodies.append(delivery.body)
        delivery.ack()
    return bodies


async def got(connection: Connection, queue: str) -> Delivery:
    """One message, which comes in the broker's own time."""
    async with asyncio.timeout(DEADLINE):
        while (delivery := await connection.get(queue)) is None:  # noqa: ASYNC110 - a broker gives no sign
            await asyncio.sleep(0.005)
        return delivery


def told(channel: Channel, exchange: str, key: str, body: bytes, *, mandatory: bool = False) -> None:
    """Publish on a bare channel, without waiting for anything."""
    frame = publish_frame(channel.number, exchange, key, mandatory)
    channel.link.conversation.send_content(channel.number, frame, Properties().encode(), body)
    channel.link.write_soon()


class Collector:
    """A handler that keeps what it got, acks it, and can be waited for."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self._news = asyncio.Event()

    async def __call__(self, delivery: Delivery) -> None:
        self.bodies.append(delivery.body)
        delivery.ack()
        self._news.set()

    async def has(self, count: int) -> list[bytes]:
        async with asyncio.timeout(DEADLINE):
            while len(self.bodies) < count:
                self._news.clear()
                await self._news.wait()
        return self.bodies
