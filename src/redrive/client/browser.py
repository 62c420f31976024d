"""The messages of a queue, taken in their order and kept in hand until something is decided about each.

This is how a queue is looked at as a whole, and how some of its messages are moved while the others stay: they are
taken, what is decided is acknowledged, and in the end all others are given back with `basic.nack`. On every RabbitMQ
that is the way back that costs least: a reject or a closed connection counts towards a delivery limit where a nack does
not.

Neither side buffers more than a handful. A consumer gets at most as many messages as its prefetch says, and those that
stay in hand fill it up; so when it is half full it is cancelled, and another takes its place on the same channel with
twice the room, as long as that many messages of their average size are not too much. One after the other, since two at
a time would get the messages of a quorum queue in turns, and out of order.

On the way back the lowest go first. Classic queues put each where it was; quorum queues put them, as they come, before
(4.x) or behind (3.x) what is there. So they go consumer by consumer, and the next waits until the queue has what the
one before had: of what RabbitMQ could not pass on at once to a quorum queue, the last consumer's comes first. What it
has not passed on when the channel ends comes back as from one that died, and counts; so that ends last. Each command
names a message that is still in hand: for another RabbitMQ closes the channel (406, unknown delivery tag).

A hold does not survive its channel: when that ends, the broker has every message back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from redrive.client.channel import Channel
from redrive.client.connection import Connection
from redrive.errors import Closed, ConsumerCancelled, RedriveError
from redrive.protocol.messages import Delivery
from redrive.wire import methods as m
from redrive.wire.frames import ack_frame

if TYPE_CHECKING:
    from redrive.operations.ports import Tagged

_FIRST_ROOM = 500
_MOST_ROOM = 50_000
_MOST_BYTES = 16 * 1024 * 1024  # that a consumer may have under way
_PATIENCE = 60.0  # seconds
_DOUBT = 5.0  # seconds after which it is believed that somebody else has the messages that do not come back


class QueueBrowser:
    """`await Hold.on(connection, queue, at_most=100)`; then `next`, `ack`, and in any case `release`."""

    def __init__(
        self, channel: Channel, queue: str, at_most: int, seen: Callable[[Delivery], None] | None = None
    ) -> None:
        self.queue = queue
        self.taken = 0  # and given to whoever asked for them
        self._channel = channel
        self._at_most = at_most
        self._seen = seen
        self._waiting: list[Delivery] = []
        self._bytes = 0
        self._arrived = asyncio.Event()
        self._ended: RedriveError | None = None
        self._consumers = 0
        self._room = 0  # of the current consumer
        self._since = 1  # the first delivery tag that can be the current consumer's
        self._in_hand = 0  # of those
        self._last = 0  # the highest delivery tag that came
        self._settled_below = 1  # every delivery below it was acked, and the broker knows
        self._is_acked = bytearray(1)  # for each delivery tag; there is none with the number 0
        self._lasts: dict[str, int] = {}  # the last delivery tag of each consumer, in the order of their turns
        self._before = 0  # how many were ready when it began
        self._others = 0  # who consumed from the queue then
        self._is_consuming = True
        self._changing: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls, connection: Connection, queue: str, *, at_most: int, seen: Callable[[Delivery], None] | None = None
    ) -> QueueBrowser:
        """Begin to take messages, `at_most` so many. `seen` is called with each of them when it comes."""
        hold = cls(await (await connection.link()).channel(), queue, at_most, seen)
        hold._channel.on_delivery = hold._deliver
        hold._channel.on_cancel = lambda _: hold._end(ConsumerCancelled(f"the broker ended the look at {queue}"))
        hold._channel.on_closed = hold._end
        with hold._close_on_error():
            found = await hold._channel.call(m.QueueDeclare(queue=queue, passive=True), m.QueueDeclareOk)
            hold._before, hold._others = found.message_count, found.consumer_count
            await hold._consume(min(_FIRST_ROOM, at_most))
        return hold

    @contextmanager
    def _close_on_error(self) -> Iterator[None]:
        """Whoever is interrupted here has nothing to release any more: the channel ends, and all goes back with it."""
        try:
            yield
        except BaseException:
            self._channel.abandon()
            raise

    async def _consume(self, room: int) -> None:
        await self._channel.call(m.BasicQos(prefetch_count=room), m.BasicQosOk)
        self._consumers += 1
        self._room, self._since, self._in_hand = room, self._last + 1, 0
        await self._channel.call(m.BasicConsume(queue=self.queue, consumer_tag=self._tag), m.BasicConsumeOk)

    @property
    def _tag(self) -> str:
        return f"redrive-hold-{self._consumers:06}"

    # Taking -------------------------------------------------------------------------------------------

    def _deliver(self, delivery: Delivery) -> None:
        self._lasts[delivery.consumer_tag] = self._last = delivery.delivery_tag
        self._is_acked.append(False)
        self._in_hand += 1
        self._bytes += len(delivery.body) + len(delivery.raw_properties)
        self._waiting.append(delivery)
        if self._seen is not None:
            self._seen(delivery)
        if not self._arrived.is_set():
            self._arrived.set()

    async def next(self, patience: float) -> Sequence[Delivery]:
        """What has come since the last time, oldest first; nothing if nothing comes for `patience` seconds, and the
        queue has nothing to give, or if all that was asked for has been taken.
        """
        if self.taken < self._at_most and not self._waiting and not await self._wait_for_more(patience):
            return ()
        if self._ended is not None:
            raise self._ended
        self._arrived.clear()
        wanted = self._at_most - self.taken
        came, self._waiting = self._waiting[:wanted], []
        self.taken += len(came)
        self._change_if_full()
        return came

    def _change_if_full(self) -> None:
        if self._in_hand * 2 >= self._room and self.taken < self._at_most and self._changing is None:
            self._changing = asyncio.create_task(self._grow_prefetch(), name="redrive-hold-room")

    async def _wait_for_more(self, patience: float) -> bool:
        """Silence alone is no end: a broker, or this machine, may just be slow. Nor is a consumer that is full: what
        came while it took its place has changed nothing yet.
        """
        silent = 0.0
        while not self._arrived.is_set() and silent < _PATIENCE:
            self._change_if_full()
            if self._changing is not None:
                await asyncio.wait([self._changing])
                continue
            try:
                async with asyncio.timeout(patience):
                    await self._arrived.wait()
            except TimeoutError:
                silent += patience
                if not await self._has_more():
                    break
        return self._arrived.is_set()

    async def _has_more(self) -> bool:
        found = await self._channel.call(m.QueueDeclare(queue=self.queue, passive=True), m.QueueDeclareOk)
        return found.message_count > 0

    async def _grow_prefetch(self) -> None:
        try:
            await self._channel.call(m.BasicCancel(consumer_tag=self._tag), m.BasicCancelOk)
            wanted = self._at_most - self.taken - len(self._waiting)
            if wanted > 0:
                average = 1 + self._bytes // max(1, self._last)
                await self._consume(min(self._room * 2, _MOST_ROOM, max(1, _MOST_BYTES // average), wanted))
            else:
                self._is_consuming = False
        except RedriveError as error:
            self._end(error)
        finally:
            self._changing = None

    def _end(self, reason: RedriveError) -> None:
        self._ended = self._ended or reason
        self._arrived.set()

    # Deciding -----------------------------------------------------------------------------------------

    def ack(self, deliveries: Iterable[Tagged]) -> bool:
        """These are done: the broker may forget them. False: too late, it has everything back."""
        if not self._channel.is_open:
            return False
        link, number = self._channel.link, self._channel.number
        tags = [delivery.delivery_tag for delivery in deliveries]
        run = 0
        while run < len(tags) and tags[run] == self._settled_below + run:
            run += 1
        if run:
            self._is_acked[self._settled_below : self._settled_below + run] = b"\x01" * run
            self._settled_below += run
            link.conversation.send_frame(number, ack_frame(number, tags[run - 1], multiple=True))
        for tag in tags[run:]:
            self._is_acked[tag] = True
            link.conversation.send_frame(number, ack_frame(number, tag, multiple=False))
        self._in_hand -= sum(tag >= self._since for tag in tags)
        link.write_soon()
        return True

    @property
    def in_hand(self) -> int:
        """How many the broker would get back now."""
        return self._last - self._is_acked.count(True)

    # Giving back --------------------------------------------------------------------------------------

    async def release(self) -> int:
        """Take no more, give back what is left, and end. Gives how many went back."""
        channel = self._channel
        if not channel.is_open:
            return 0
        channel.on_cancel = lambda _: None
        with self._close_on_error():
            if self._changing is not None:
                await self._changing
            if self._is_consuming:
                await channel.call(m.BasicCancel(consumer_tag=self._tag), m.BasicCancelOk)
            back = self.in_hand
            if back:
                await self._give_back()
        self._end(Closed(f"the hold on {self.queue} was released"))
        await channel.close()
        return back

    async def _give_back(self) -> None:
        *turns, _ = self._last_tags_in_hand()
        for later, upto in zip(range(len(turns), 0, -1), turns, strict=True):
            self._nack(upto)
            if not await self._wait_until_back(later):
                break
        self._nack(0)  # all the others
        await self._wait_until_back(0)

    def _nack(self, upto: int) -> None:
        self._channel.tell(m.BasicNack(delivery_tag=upto, multiple=True, requeue=True))

    def _last_tags_in_hand(self) -> list[int]:
        """Of each consumer that has some in hand, the last of them."""
        turns, before = [], 0
        for last in self._lasts.values():
            if (upto := self._is_acked.rfind(False, before + 1, last + 1)) > 0:
                turns.append(upto)
            before = last
        return turns

    async def _wait_until_back(self, later: int) -> bool:
        """A large queue needs seconds until it has its messages back; who looks earlier sees it empty.

        A quorum queue counts a consumer that was cancelled until it has back what that had; so it has everything when
        it counts none of ours but those whose turn comes `later`. If others come to consume now, or messages expire,
        it is given up after a while.
        """
        loop = asyncio.get_running_loop()
        pause, began = 0.01, loop.time()
        while (waited := loop.time() - began) < (_DOUBT if later else _PATIENCE):
            found = await self._channel.call(m.QueueDeclare(queue=self.queue, passive=True), m.QueueDeclareOk)
            if self._is_back(found, later, in_doubt=waited > _DOUBT):
                return True
            await asyncio.sleep(pause)
            pause = min(pause * 2, 0.5)
        return False

    def _is_back(self, found: m.QueueDeclareOk, later: int, *, in_doubt: bool) -> bool:
        if found.consumer_count > later + self._others:
            return in_doubt
        if later or self._others:  # how many are ready tells nothing then
            return True
        whole = self._before - self._is_acked.count(True)
        return found.message_count >= (self.in_hand if in_doubt else max(self.in_hand, whole))

    def __repr__(self) -> str:
        return f"<Hold {self.queue} taken={self.taken} in_hand={self.in_hand} consumers={self._consumers}>"
