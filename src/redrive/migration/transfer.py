"""Carry messages from queue to queue: publish (mandatory) → confirm → ack, many at a time and in order.

A message arrives as it left: routing key, body and properties byte for byte. Three things cannot stay as they are:

    expiration   while it waits the message must not expire: packed into a header, and unpacked at its destination
    user_id      the broker refuses another user's: kept as a header
    exchange     the broker writes the one the message was published to last: here a lane's

and what the broker itself adds to a redelivered message (`x-delivery-count`) is no part of it.

Who dies between confirm and ack leaves a duplicate, never a gap: what was not acked goes back to its place in the
queue when the connection ends, and whatever was published before it had been published in order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple, Self, TypeAlias

from redrive.errors import AccessRefused, ConnectionLost, ReplyCode, ResourceLocked
from redrive.migration.calls import MigrationCalls
from redrive.migration.ports import Deliveries
from redrive.protocol.messages import Delivery
from redrive.recovery.history import HeaderNames
from redrive.wire.raw_properties import (
    find_header,
    patch_properties,
    raw_text,
    read_expiration,
    read_user_id,
    with_expiration,
    without_empty_headers,
)

# The second name also says that the message had no headers, so that it has none again when it is unpacked.
_EXPIRATION, _ONLY_EXPIRATION = HeaderNames.EXPIRATION.encode(), HeaderNames.ONLY_EXPIRATION.encode()
_USER = HeaderNames.USER_ID.encode()
_COUNTERS = (b"x-delivery-count", b"x-acquired-count")
_HEADERS_FLAG = 0x20

# How long a queue that seems empty is listened to, and how often it is asked whether others have left it.
_QUIET = 0.1
_PATIENCE, _TRIES = 0.2, 25


# What is written on a message ---------------------------------------------------------------------


def with_stored_expiration(raw: bytes, user: str | None) -> bytes:
    """Properties for a queue in which the message waits."""
    raw = _acceptable(raw, user)
    expiration = read_expiration(raw)
    if expiration is None:
        return raw
    header = _EXPIRATION if raw[0] & _HEADERS_FLAG else _ONLY_EXPIRATION
    return patch_properties(raw, set_headers={header: raw_text(expiration)}, drop_expiration=True)


def with_restored_expiration(raw: bytes, user: str | None) -> bytes:
    """Properties for the queue in which the message is at home."""
    raw = _acceptable(raw, user)
    for header in (_EXPIRATION, _ONLY_EXPIRATION):
        value = find_header(raw, header)
        if value is not None:
            raw = with_expiration(
                patch_properties(raw, remove_headers=[header]), value[5:].decode("utf-8", "surrogateescape")
            )
            return without_empty_headers(raw) if header == _ONLY_EXPIRATION else raw
    return raw


def _acceptable(raw: bytes, user: str | None) -> bytes:
    if any(find_header(raw, counter) is not None for counter in _COUNTERS):
        raw = without_empty_headers(patch_properties(raw, remove_headers=_COUNTERS))
    owner = read_user_id(raw)
    if owner is None or owner == user:
        return raw
    return patch_properties(raw, set_headers={_USER: raw_text(owner)}, drop_user_id=True)


# Lanes and pumps ----------------------------------------------------------------------------------


class TransferRoute(NamedTuple):
    """The way into one queue."""

    exchange: str
    waits: bool  # is that queue one in which messages only wait?


Choice: TypeAlias = Callable[[Delivery], TransferRoute]


class QueueTransfer:
    """Takes from one queue, alone, and passes on what comes.

        async with Pump(operations, "orders", lambda _: lane, window=200, user="guest") as pump:
            await pump.drain()

    Left in peace, it has handed over all it took. Left by an error, what it had taken is back in the queue.
    """

    def __init__(
        self, operations: MigrationCalls, source: str, choose: Choice, *, window: int, user: str | None
    ) -> None:
        self.carried = 0
        self._operations = operations
        self._source = source
        self._choose = choose
        self._window = window
        self._user = user
        self._deliveries: Deliveries | None = None
        self._under_way: set[asyncio.Task[None]] = set()
        self._landing = asyncio.Event()  # was something handed over?
        self._failure: BaseException | None = None
        self._held: Delivery | None = None  # taken, and not passed on yet

    async def __aenter__(self) -> Self:
        self._deliveries = await self._attach()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        assert self._deliveries is not None
        for task in self._under_way:
            task.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)
        if kind is None and self._held is None:
            await self._deliveries.cancel()
        else:
            await self._deliveries.abort()

    async def _attach(self) -> Deliveries:
        """Consume, with nobody beside."""
        for _ in range(_TRIES):
            if (deliveries := await self._consume()) is not None:
                try:
                    alone = await self._consumers() == 1
                except BaseException:  # it would consume again with the next connection, and nobody would take anything
                    await deliveries.abort()
                    raise
                if alone:
                    return deliveries
                await deliveries.abort()
            await asyncio.sleep(_PATIENCE)
        raise ResourceLocked(ReplyCode.RESOURCE_LOCKED, f"queue {self._source} has other consumers: stop them")

    async def _consume(self) -> Deliveries | None:
        """Classic queues keep others out. Quorum queues ignore that wish, and those with a single active consumer
        refuse it: these are entered when nobody is there.
        """
        broker = self._operations.broker
        self._operations.check()
        try:
            return await broker.consume(self._source, prefetch=self._window, exclusive=True)
        except AccessRefused as error:
            if "exclusive use" not in error.text:
                raise
        if await self._consumers():
            return None
        return await broker.consume(self._source, prefetch=self._window)

    async def _consumers(self) -> int:
        found = await self._operations.usage(self._source)
        return found.consumers if found is not None else 0

    # Pumping ------------------------------------------------------------------------------------------

    async def drain(self) -> None:
        """Until the queue is empty, and has been for a moment."""
        while True:
            await self.wait_for_lull()
            if await self.is_silent(_QUIET):
                return

    async def wait_for_lull(self) -> None:
        """Until, for an instant, nothing is ready, nothing is here, and nothing is under way."""
        while True:
            await self._finish()
            if not await self._operations.ready(self._source) and not await self._take():
                return

    async def is_silent(self, seconds: float) -> bool:
        """Does nothing come for so long? What comes is not passed on, unless pumping is taken up again."""
        self._held = await self._next(seconds)
        return self._held is None

    async def _finish(self) -> None:
        while await self._take() or self._under_way:
            if self._under_way:  # what was taken may have landed meanwhile
                self._landing.clear()
                await self._landing.wait()

    async def _take(self) -> bool:
        """Pass on what is here; say whether there was any."""
        delivery, self._held = self._held or await self._next(0), None
        if delivery is None:
            return False
        while delivery is not None:
            self._pass_on(delivery)
            delivery = await self._next(0)
        return True

    async def _next(self, within: float) -> Delivery | None:
        if self._failure is not None:
            raise self._failure
        assert self._deliveries is not None
        try:
            async with asyncio.timeout(within):
                return await anext(self._deliveries)
        except TimeoutError:
            return None

    def _pass_on(self, delivery: Delivery) -> None:
        """In the order of the calls: tasks begin in the order in which they are made, and each begins by sending."""
        task = asyncio.create_task(self._hand_over(delivery))
        self._under_way.add(task)
        task.add_done_callback(self._on_transferred)

    async def _hand_over(self, delivery: Delivery) -> None:
        lane = self._choose(delivery)
        write = with_stored_expiration if lane.waits else with_restored_expiration
        properties = write(delivery.raw_properties, self._user)
        await self._operations.broker.publish(lane.exchange, delivery.routing_key, delivery.body, properties)
        if not delivery.ack():
            raise ConnectionLost(f"the channel that read queue {self._source} ended")
        self.carried += 1

    def _on_transferred(self, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        self._landing.set()
        if not task.cancelled() and (failure := task.exception()) is not None and self._failure is None:
            self._failure = failure

    def __repr__(self) -> str:
        return f"<Pump of {self._source} carried={self.carried} under_way={len(self._under_way)}>"
