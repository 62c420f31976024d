"""basic.get: one message at a time, each queue over a channel of its own."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from redrive.client.ack_batcher import AckBatcher
from redrive.client.channel import Channel
from redrive.protocol.messages import Delivery
from redrive.wire.methods.basic import BasicGet, BasicGetOk

if TYPE_CHECKING:
    from redrive.client.connection import Connection

_MOST_CHANNELS = 64  # open at a time, before those that owe nothing are closed


class _GetChannel:
    """The channel over which one queue is read."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.settler = AckBatcher(channel, prefetch=1)
        self.asked = 0  # and not answered yet


class Getter:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._channels: dict[str, _GetChannel] = {}
        self._turn = asyncio.Lock()

    async def get(self, queue: str) -> Delivery | None:
        found = await self._channel(queue)
        found.asked += 1
        getting = asyncio.create_task(self._get(found, queue))
        try:
            return await asyncio.shield(getting)
        except asyncio.CancelledError:
            getting.add_done_callback(_requeue)
            raise

    async def _get(self, found: _GetChannel, queue: str) -> Delivery | None:
        try:
            event = await found.channel.ask(BasicGet(queue=self._connection.current_name(queue)))
        finally:
            found.asked -= 1
        if not isinstance(event.method, BasicGetOk):
            return None
        delivery = Delivery.from_get(found.channel.number, event.method, event.raw_properties, event.body)
        found.settler.take(delivery)
        return delivery

    async def _channel(self, queue: str) -> _GetChannel:
        async with self._turn:
            found = self._channels.get(queue)
            if found is None or not found.channel.is_open:
                self._retire_idle()
                channel = await (await self._connection.link()).channel()
                found = self._channels[queue] = _GetChannel(channel)
            return found

    def _retire_idle(self) -> None:
        """Close the channels that owe nothing, so that a walk over many queues does not run out of channels."""
        if len(self._channels) >= _MOST_CHANNELS:
            for queue, found in list(self._channels.items()):
                if not found.asked:
                    del self._channels[queue]
                    found.settler.retire()

    def on_disconnect(self) -> None:
        self._channels.clear()


def _requeue(getting: asyncio.Task[Delivery | None]) -> None:
    """The caller has stopped waiting: a message that comes all the same goes back to its queue."""
    if not getting.cancelled() and getting.exception() is None and (delivery := getting.result()) is not None:
        delivery.nack(requeue=True)
