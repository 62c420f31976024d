"""Publish, and know what became of it.

`publish` returns when the broker has confirmed the message, and raises otherwise; there is no third way:

    Unroutable      returned by the broker: no queue takes it
    PublishRefused  nacked, or the exchange does not exist
    PublishUnknown  sent, and the channel or connection ended before the confirm
    NotPublished    not sent: no connection, or a blocked one, for longer than the caller's patience

One channel in confirm mode carries all publishes of a connection; it is opened again whenever it ends. How much
may be unconfirmed is bounded in messages and bytes; beyond that, while the broker is blocked and while the
socket takes no more, publishers wait their turn, first come, first served.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple, TypeAlias

from redrive.client.channel import Channel
from redrive.client.transport import Transport
from redrive.errors import (
    ChannelClosed,
    Closed,
    NotFound,
    NotPublished,
    PreconditionFailed,
    PublishError,
    PublishErrors,
    PublishRefused,
    PublishUnknown,
    RedriveError,
    Unroutable,
)
from redrive.protocol.confirms import ConfirmLedger, Pending
from redrive.protocol.messages import Incoming
from redrive.wire.frames import publish_frame
from redrive.wire.methods.basic import BasicAck, BasicNack, BasicPublish, BasicReturn
from redrive.wire.methods.confirm import ConfirmSelect, ConfirmSelectOk
from redrive.wire.properties import PERSISTENT, Properties
from redrive.worker.ports import ConfirmCallback

log = logging.getLogger("redrive.client")

JUST_PERSISTENT = Properties(delivery_mode=PERSISTENT)

# The frames that open a publish are the same for the same route. Keys can be unbounded (an order number), so
# the memory of them is thrown away when it has grown to this.
_ROUTES_REMEMBERED = 1024


class Publish(NamedTuple):
    """One message for `publish_many`."""

    exchange: str
    routing_key: str
    body: bytes
    properties: Properties | bytes = JUST_PERSISTENT  # bytes: as they lie on the wire, passed on as they are
    mandatory: bool = True


# A `Publish`, or a plain tuple of the same.
AnyPublish: TypeAlias = "tuple[str, str, bytes, Properties | bytes, bool]"


class _ConfirmChannel:
    """The publisher's channel, its ledger, and the frames it has made for known routes."""

    __slots__ = ("channel", "ledger", "routes", "unconfirmed_bytes")

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.ledger: ConfirmLedger[ConfirmCallback] = ConfirmLedger()
        self.routes: dict[tuple[str, str, bool], bytes] = {}
        self.unconfirmed_bytes = 0

    def route(self, exchange: str, routing_key: str, mandatory: bool) -> bytes:
        key = (exchange, routing_key, mandatory)
        frame = self.routes.get(key)
        if frame is None:
            if len(self.routes) >= _ROUTES_REMEMBERED:
                self.routes.clear()
            frame = self.routes[key] = publish_frame(self.channel.number, exchange, routing_key, mandatory)
        return frame


class ConfirmingPublisher:
    def __init__(self, *, window: int, window_bytes: int, patience: float) -> None:
        self._window = window
        self._window_bytes = window_bytes
        self._patience = patience
        self._loop = asyncio.get_running_loop()
        self._life: _ConfirmChannel | None = None
        self._open = False  # may a newcomer send right now?
        self._queue: deque[tuple[asyncio.Future[None], int]] = deque()  # publishers who wait for their turn, and sizes
        self._granted = 0  # how many have been called from the queue and did not send yet: their room is taken
        self._granted_bytes = 0
        self._draining: list[asyncio.Future[None]] = []
        self._why_not: RedriveError = Closed("the connection was not opened")
        self._closed: RedriveError | None = None
        self.interrupted: asyncio.Future[RedriveError] = self._loop.create_future()

    @property
    def unconfirmed(self) -> int:
        return len(self._life.ledger) if self._life is not None else 0

    # For callers --------------------------------------------------------------------------------------

    async def publish(
        self, exchange: str, routing_key: str, body: bytes, properties: Properties | bytes | None, mandatory: bool
    ) -> None:
        confirmed: asyncio.Future[None] = self._loop.create_future()
        if self._open:
            self._send(exchange, routing_key, body, properties, mandatory, confirmed)
        else:
            await self._send_in_turn((exchange, routing_key, body, properties, mandatory), confirmed)
        await confirmed

    def publish_now(
        self, exchange: str, routing_key: str, body: bytes, properties: Properties | bytes, waiter: ConfirmCallback
    ) -> bool:
        if self._open:
            self._send(exchange, routing_key, body, properties, True, waiter)
            return True
        return False

    async def publish_many(self, messages: Iterable[AnyPublish]) -> int:
        pipeline = _Pipeline(self._loop)
        gave_up: NotPublished | None = None
        try:
            for message in messages:
                exchange, routing_key, body, properties, mandatory = message
                place = pipeline.add_slot()
                try:
                    if self._open:
                        self._send(exchange, routing_key, body, properties, mandatory, place)
                    elif gave_up is not None:  # one message has waited in vain for all of them
                        place.set_exception(NotPublished(exchange, routing_key, gave_up.why))
                    else:
                        await self._send_in_turn(message, place)
                except NotPublished as error:
                    gave_up = error
                    place.set_exception(error)
                except Exception as error:  # a slot that is never released would block its waiter
                    unsent = NotPublished(exchange, routing_key, str(error))
                    unsent.__cause__ = error
                    place.set_exception(unsent)
        except Exception:
            await pipeline.wait_until_settled()  # a source that fails: what it gave before is published all the same
            raise
        await pipeline.wait_until_settled()
        if pipeline.failures:
            text = f"{len(pipeline.failures)} of {pipeline.count} messages were not published"
            raise PublishErrors(text, pipeline.failures)
        return pipeline.count

    async def _send_in_turn(
        self, message: tuple[str, str, bytes, Properties | bytes | None, bool], waiter: ConfirmCallback
    ) -> None:
        exchange, routing_key, body, properties, mandatory = message
        body = _as_bytes(body)
        await self._wait_for_turn(exchange, routing_key, len(body))
        try:
            self._send(exchange, routing_key, body, properties, mandatory, waiter)
        finally:
            self.refresh()  # the room we took, or did not take, is known now

    async def _wait_for_turn(self, exchange: str, routing_key: str, size: int) -> None:
        """Wait until a message may be sent: connected, not blocked, room in the window, and nobody before us."""
        try:
            async with asyncio.timeout(self._patience):
                while True:
                    if self._closed is not None:
                        raise NotPublished(exchange, routing_key, str(self._closed)) from self._closed
                    await self._wait_in_queue(size)
                    if self._life is not None and self._closed is None:
                        return
        except TimeoutError:
            why = f"gave up after {self._patience:g} s: {self._obstacle()}"
            raise NotPublished(exchange, routing_key, why) from None

    async def _wait_in_queue(self, size: int) -> None:
        turn: asyncio.Future[None] = self._loop.create_future()
        self._queue.append((turn, size))
        self.refresh()
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self._ungrant(size)  # our turn came and we left: it is the next one's
            elif (turn, size) in self._queue:
                self._queue.remove((turn, size))
            self.refresh()
            raise
        self._ungrant(size)

    def _grant(self, turn: asyncio.Future[None], size: int) -> None:
        """Room was found for a publisher. It will send in a moment, and nobody may take its room until then."""
        if not turn.done():
            turn.set_result(None)
            self._granted += 1
            self._granted_bytes += size

    def _ungrant(self, size: int) -> None:
        self._granted -= 1
        self._granted_bytes -= size

    def _obstacle(self) -> str:
        life = self._life
        if life is None:
            return f"not connected ({self._why_not})"
        if life.channel.link.blocked is not None:
            return f"the broker takes no messages now (connection.blocked: {life.channel.link.blocked})"
        if not life.channel.link.writable:
            return "the socket takes no more: the broker has stopped reading"
        return f"{len(life.ledger)} messages are waiting for the broker's confirm"

    def _send(
        self,
        exchange: str,
        routing_key: str,
        body: bytes,
        properties: Properties | bytes | None,
        mandatory: bool,
        waiter: ConfirmCallback,
    ) -> None:
        life = self._life
        assert life is not None
        if type(body) is not bytes:
            body = _as_bytes(body)
        if isinstance(properties, bytes):
            raw_properties = properties
        else:
            if properties is None:
                properties = JUST_PERSISTENT
            elif properties.delivery_mode is None:
                properties = replace(properties, delivery_mode=PERSISTENT)
            raw_properties = properties.encode()
        link = life.channel.link
        frame = life.route(exchange, routing_key, mandatory)
        link.conversation.send_content(life.channel.number, frame, raw_properties, body)
        ledger = life.ledger
        ledger.add(Pending(exchange, routing_key, raw_properties, body, waiter))
        life.unconfirmed_bytes += len(body)
        if len(ledger) >= self._window or life.unconfirmed_bytes >= self._window_bytes:
            self._open = False
        link.write_soon()

    # For the connection -------------------------------------------------------------------------------

    async def attach(self, link: Transport) -> None:
        """Open a channel in confirm mode on this link; publishes go there from now on."""
        channel = await link.channel()
        try:
            await channel.call(ConfirmSelect(), ConfirmSelectOk)
        except BaseException:
            channel.abandon()
            raise
        if channel.closed is not None:  # within the same read
            raise channel.closed
        life = _ConfirmChannel(channel)
        channel.on_confirm = lambda confirm: self._on_confirm(life, confirm)
        channel.on_return = lambda event: self._on_return(life, event)
        channel.on_closed = lambda reason: self._on_channel_end(life, reason)
        self._life = life
        self.interrupted = self._loop.create_future()
        self.refresh()

    def refresh(self) -> None:
        """Something changed: call those who may send now, and see whether a newcomer may."""
        while self._queue and self._has_room():
            self._grant(*self._queue.popleft())
        self._open = not self._queue and not self._granted and self._has_room()

    def _has_room(self) -> bool:
        life = self._life
        if life is None or self._closed is not None:
            return False
        link = life.channel.link
        return (
            link.blocked is None
            and link.writable
            and len(life.ledger) + self._granted < self._window
            and life.unconfirmed_bytes + self._granted_bytes < self._window_bytes
        )

    def note_disconnect(self, reason: RedriveError) -> None:
        """For the words of those who wait: why there is no connection."""
        self._why_not = reason

    async def wait_until_confirmed(self) -> None:
        """Wait until the broker has answered for everything that was sent."""
        if self.unconfirmed:
            wait_until_confirmed: asyncio.Future[None] = self._loop.create_future()
            self._draining.append(wait_until_confirmed)
            await wait_until_confirmed

    def _notify_drained(self) -> None:
        draining, self._draining = self._draining, []
        for drained in draining:
            if not drained.done():
                drained.set_result(None)

    def close(self, reason: RedriveError) -> None:
        """Nobody gets a turn any more."""
        self._closed = reason
        self._open = False
        while self._queue:
            self._grant(*self._queue.popleft())

    # What the broker says -----------------------------------------------------------------------------

    def _on_confirm(self, life: _ConfirmChannel, confirm: BasicAck | BasicNack) -> None:
        refused = isinstance(confirm, BasicNack)
        for pending in life.ledger.settle(confirm.delivery_tag, confirm.multiple):
            life.unconfirmed_bytes -= len(pending.body)
            waiter = pending.waiter
            if waiter.done():
                continue
            if refused:
                why = "the broker refused it (nack): most often a full queue with reject-publish"
                waiter.set_exception(PublishRefused(pending.exchange, pending.routing_key, why))
            elif pending.returned is not None:
                waiter.set_exception(Unroutable(pending.exchange, pending.routing_key, pending.returned))
            else:
                waiter.set_result(None)
        if not self._open:
            self.refresh()
        if self._draining and not life.ledger:
            self._notify_drained()

    def _on_return(self, life: _ConfirmChannel, event: Incoming) -> None:
        method = event.method
        assert isinstance(method, BasicReturn)
        why = f"returned by the broker, {method.reply_code} {method.reply_text}: no queue is bound for it"
        blamed = life.ledger.mark_returned(method.exchange, method.routing_key, event.raw_properties, event.body, why)
        if blamed is None:
            log.warning("the broker returned a message nobody waits for: %r %r", method.exchange, method.routing_key)

    def _on_channel_end(self, life: _ConfirmChannel, reason: RedriveError) -> None:
        if self._life is life:
            self._life = None
            self._open = False
            self._why_not = reason
            self.interrupted.set_result(reason)
        abandoned = life.ledger.abandon()
        for pending in abandoned:
            if not pending.waiter.done():
                pending.waiter.set_exception(_error_for(pending, reason, alone=len(abandoned) == 1))
        self._notify_drained()

    def __repr__(self) -> str:
        gate = "open" if self._open else self._obstacle()
        return f"<Publisher {gate} unconfirmed={self.unconfirmed}/{self._window} waiting={len(self._queue)}>"


def _as_bytes(body: object) -> bytes:
    if isinstance(body, bytes | bytearray | memoryview):
        return bytes(body)
    raise TypeError(f"the body of a message must be bytes, not {type(body).__name__}: encode it first")


def _error_for(pending: Pending[ConfirmCallback], reason: RedriveError, *, alone: bool) -> PublishError:
    """What became of an unconfirmed message when its channel ended.

    RabbitMQ says that it objects to a publish, and seldom to which. When only one was under way, it is that one.
    """
    error: PublishError
    if pending.returned is not None:
        return Unroutable(pending.exchange, pending.routing_key, pending.returned)
    if isinstance(reason, NotFound) and f"no exchange '{pending.exchange}'" in reason.text:
        error = PublishRefused(pending.exchange, pending.routing_key, f"there is no such exchange ({reason})")
    elif isinstance(reason, PreconditionFailed) and f"message size {len(pending.body)} " in reason.text:
        error = PublishRefused(pending.exchange, pending.routing_key, f"it is too large ({reason})")
    elif alone and isinstance(reason, ChannelClosed) and reason.method == BasicPublish.id:
        error = PublishRefused(pending.exchange, pending.routing_key, f"the broker refused it ({reason})")
    else:
        why = f"sent, but not confirmed before the end: {reason}. It may be stored: publish it again"
        error = PublishUnknown(pending.exchange, pending.routing_key, why)
    error.__cause__ = reason
    return error


class _Pipeline:
    """Counts what is under way in one `publish_many`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.count = 0
        self.failures: list[PublishError] = []
        self._loop = loop
        self._unsettled = 0
        self._all: asyncio.Future[None] | None = None

    def add_slot(self) -> _Slot:
        add_slot = _Slot(self, self.count)
        self.count += 1
        self._unsettled += 1
        return add_slot

    def settle_one(self) -> None:
        self._unsettled -= 1
        if self._all is not None and not self._unsettled and not self._all.done():
            self._all.set_result(None)

    async def wait_until_settled(self) -> None:
        if self._unsettled:
            self._all = self._loop.create_future()
            await self._all


class _Slot:
    """One message of a pipeline."""

    __slots__ = ("_index", "_pipeline")

    def __init__(self, pipeline: _Pipeline, index: int) -> None:
        self._pipeline = pipeline
        self._index = index

    def done(self) -> bool:
        return False

    def set_result(self, _: None, /) -> None:
        self._pipeline.settle_one()

    def set_exception(self, exception: PublishError, /) -> None:
        exception.index = self._index
        self._pipeline.failures.append(exception)
        self._pipeline.settle_one()
