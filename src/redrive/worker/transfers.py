"""Move messages to other queues: *publish (mandatory) → confirm → ack*. What can die in between:

    before the publish      nothing has happened: the message is redelivered
    before the confirm      the copy may exist: the message is redelivered, and there may be two
    before the ack          the copy exists: the message is redelivered, and there are two

If a publish fails, the message stays in its queue: it is released after a pause, which grows while this goes on.

Nothing waits for any of this: a message is settled while the next one is handled. At most `prefetch` deliveries are
unacknowledged at any time, so that is bounded too. A copy that can be sent at once costs no task: its confirm calls a
`PendingCopy`, which does the rest. Tasks are for what must wait for something else first: a turn to publish, a pause.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from msgspec.structs import replace

from redrive.errors import NotPublished, PublishError, PublishRefused, PublishUnknown
from redrive.protocol.messages import Delivery
from redrive.recovery.backoff import Backoff, OutageBackoff
from redrive.wire.raw_properties import patch_properties, raw_long
from redrive.worker.clock import Clock, wait
from redrive.worker.events import BROKER_UNAVAILABLE, DeliveryOutcome, DeliverySettled, Observer
from redrive.worker.ports import Subscription, TransferPublisher

log = logging.getLogger("redrive.worker")

_PAUSES = Backoff(first=timedelta(milliseconds=200), ceiling=timedelta(seconds=30), jitter=0.2)
_MOVE_PAUSES = Backoff(first=timedelta(milliseconds=200), ceiling=timedelta(seconds=5), jitter=0.2)
_LAST_CONFIRMS = 5.0  # seconds


@dataclass(frozen=True, slots=True)
class CopyDestination:
    """Where a copy of a message goes. `x_delay`: for exchanges that delay."""

    exchange: str
    routing_key: str
    x_delay: int | None = None


class Transfers:
    """The messages of one consumer that are on their way to another queue, or wait to be released."""

    def __init__(
        self,
        queue: str,
        publisher: TransferPublisher,
        observer: Observer,
        clock: Clock,
        release: Callable[[Delivery], None],
    ) -> None:
        """`release` gives a delivery back to its queue, at once."""
        self._queue = queue
        self._publisher = publisher
        self._observer = observer
        self._clock = clock
        self._release = release
        self.trouble = OutageBackoff(_PAUSES)  # with retry and dead-letter queues
        self._move_trouble = OutageBackoff(_MOVE_PAUSES)  # with moves into and out of quarantine
        self._copies: set[PendingCopy] = set()  # that the broker has not answered for
        self._tasks: set[asyncio.Task[None]] = set()  # that wait for something else
        self._publishing: set[asyncio.Task[None]] = set()  # those of them that publish a copy
        self._moving: dict[Delivery, asyncio.Task[bool]] = {}  # deliveries on their way to quarantine
        self.returning: set[Delivery] = set()  # from quarantine to the main queue
        self.consuming: list[Subscription] = []  # the main queue and the quarantine queue, once they are consumed
        self._draining = asyncio.Event()
        self.closed = False

    # Copies -------------------------------------------------------------------------------------------

    def send(self, delivery: Delivery, to: CopyDestination, raw: bytes, event: DeliverySettled | None) -> None:
        """Publish a copy; `on_reply` continues when the broker has answered. `event` is what observers get then."""
        if delivery.is_taken_back:
            self._leave(delivery, event)
            return
        if to.x_delay is not None:
            raw = patch_properties(raw, set_headers={b"x-delay": raw_long(to.x_delay)})
        copy = PendingCopy(self, delivery, event)
        if self._publisher.publish_now(to.exchange, to.routing_key, delivery.body, raw, copy):
            self._copies.add(copy)
        else:
            task = self.spawn(self._send_in_turn(to, raw, delivery, event))
            self._publishing.add(task)
            task.add_done_callback(self._publishing.discard)

    def _leave(self, delivery: Delivery, event: DeliverySettled | None) -> None:
        """The broker has the message again. With a copy there would be two."""
        self.returning.discard(delivery)
        delivery.nack(requeue=True)
        if event is not None:
            event = replace(event, outcome=DeliveryOutcome.RELEASED, reason="its connection was lost", delay=None)
            self._observer.settled(event)

    async def _send_in_turn(
        self, to: CopyDestination, raw: bytes, delivery: Delivery, event: DeliverySettled | None
    ) -> None:
        try:
            await self._publisher.publish(to.exchange, to.routing_key, delivery.body, raw)
        except PublishError as error:
            self._on_refused(delivery, event, error)
        else:
            self._on_confirmed(delivery, event)

    def on_reply(self, copy: PendingCopy, error: PublishError | None) -> None:
        """The broker has confirmed the copy, or refused it."""
        if copy not in self._copies:
            return  # abandoned: the original is not ours any more
        self._copies.remove(copy)
        if error is None:
            self._on_confirmed(copy.delivery, copy.event)
        else:
            self._on_refused(copy.delivery, copy.event, error)

    def _on_confirmed(self, delivery: Delivery, event: DeliverySettled | None) -> None:
        self.returning.discard(delivery)
        delivery.ack()
        self._pauses_of(event).end()
        if event is not None:
            self._observer.settled(event)

    def _on_refused(self, delivery: Delivery, event: DeliverySettled | None, error: PublishError) -> None:
        self.returning.discard(delivery)
        is_away = isinstance(error, NotPublished | PublishUnknown)  # a lost broker is logged once, not for each message
        level = logging.DEBUG if is_away else logging.ERROR
        log.log(level, "a message of %s stays where it is: %s", self._queue, error)
        if event is not None:
            reason = f"not handed over: {BROKER_UNAVAILABLE if is_away else error}"
            self._observer.settled(replace(event, outcome=DeliveryOutcome.RELEASED, reason=reason, delay=None))
        self._release_after_pause(delivery, self._pauses_of(event))

    def _pauses_of(self, event: DeliverySettled | None) -> OutageBackoff:
        """A move says nothing about a retry or dead-letter queue that refuses, and the other way round."""
        return self._move_trouble if event is None or event.outcome is DeliveryOutcome.RELEASED else self.trouble

    # Moves into quarantine ----------------------------------------------------------------------------

    async def move(self, delivery: Delivery, queue: str, raw: bytes, event: DeliverySettled) -> bool:
        """Move a delivery to a quarantine queue. Returns whether it is there; if not, it is released. Raises
        PublishRefused.
        """
        if delivery.is_taken_back:
            self._leave(delivery, event)
            return False
        self._moving[delivery] = task = asyncio.create_task(self._move(delivery, queue, raw, event))
        task.add_done_callback(lambda _: self._end_move(delivery))
        return await asyncio.shield(task)  # if the handler is cancelled now, the move still comes to its end

    async def _move(self, delivery: Delivery, queue: str, raw: bytes, event: DeliverySettled) -> bool:
        try:
            await self._publisher.publish("", queue, delivery.body, raw)
        except PublishRefused:
            raise
        except PublishError as error:
            self._on_refused(delivery, event, error)
            return False
        self._move_trouble.end()
        delivery.ack()
        return True

    def _end_move(self, delivery: Delivery) -> None:
        task = self._moving.pop(delivery)
        if not task.cancelled():
            task.exception()  # if the handler that waited for it was cancelled, nothing else reads it

    def is_moving(self, delivery: Delivery) -> bool:
        """Whether a delivery is on its way to quarantine: its ack follows the confirm of the copy."""
        return delivery in self._moving

    # Releases after a pause ---------------------------------------------------------------------------

    def release_later(self, delivery: Delivery, *, moving: bool = False) -> None:
        """Release a delivery after a pause. `moving`: it was on its way into or out of quarantine."""
        self._release_after_pause(delivery, self._move_trouble if moving else self.trouble)

    def release_unsettled(self, deliveries: Iterable[Delivery], bug: BaseException) -> None:
        """Release deliveries that a bug left unsettled. If they stayed here they would never be handled, and with
        enough of them nothing would.
        """
        self.report(bug)
        for delivery in deliveries:
            if not delivery.settled:
                self.release_later(delivery)

    def _release_after_pause(self, delivery: Delivery, pauses: OutageBackoff) -> None:
        now = self._clock.monotonic()
        self.spawn(self._release_at(delivery, now + pauses.pause(now, random.random()).total_seconds()))

    async def _release_at(self, delivery: Delivery, due: float) -> None:
        try:
            await wait(self._draining, self._clock, due - self._clock.monotonic())
        finally:
            if not delivery.settled:
                self._release(delivery)

    # Background work ----------------------------------------------------------------------------------

    @property
    def in_progress(self) -> int:
        return len(self._copies) + len(self._tasks) + len(self._moving)

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run work that settles a delivery, while others are handled."""
        task = asyncio.create_task(work, name=f"redrive-settle-{self._queue}")
        self._tasks.add(task)
        task.add_done_callback(self._on_task_end)
        return task

    def _on_task_end(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.report(error)

    def report(self, error: BaseException) -> None:
        log.critical("settling a message of %s failed: a bug", self._queue, exc_info=error)

    async def flush(self) -> None:
        """Wait until no message is between two queues."""
        while moving := self._between_queues():
            await asyncio.wait(moving)
        await self.flush_acks()

    async def flush_acks(self) -> None:
        """Wait until the broker has read every ack: one that was only sent is lost if a message kills this process."""
        for consuming in self.consuming:
            await consuming.flush()

    async def finish_moves(self) -> None:
        """Give copies that were published a moment to be confirmed, so that their originals are acked."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_CONFIRMS):
                await self.flush()

    def _between_queues(self) -> list[asyncio.Future[Any]]:
        return [*self._moving.values(), *self._publishing, *(copy.done_future() for copy in self._copies)]

    async def wait_until_settled(self) -> None:
        """End every pause, and wait until nothing is being settled."""
        self._draining.set()
        while self.in_progress:
            await asyncio.wait({*self._tasks, *self._between_queues()})

    async def close(self) -> None:
        """End every pause, and wait a moment for the confirms of what is published. From then on nothing is published:
        what is left goes back to its queue with its channel.
        """
        for task in self._tasks:
            task.cancel()
        if self.in_progress:
            await asyncio.sleep(0)  # the pauses end, and their messages are released
            await self.finish_moves()
        self.closed = True
        self.abandon()

    def abandon(self) -> None:
        """Leave every message where it is whose copy the broker has not confirmed by now."""
        for task in (*self._tasks, *self._moving.values()):
            task.cancel()
        copies, self._copies = self._copies, set()
        for copy in copies:
            copy.complete()


class PendingCopy:
    """A copy that the broker has not confirmed: a publisher calls it like a future, and it has the rest done.

    That still belongs to the message that failed: observers find the context in which it was handled. It holds no
    reference to the error, and so to none of the objects that the handler used.
    """

    __slots__ = ("_context", "_end", "_transfers", "delivery", "event")

    def __init__(self, transfers: Transfers, delivery: Delivery, event: DeliverySettled | None) -> None:
        """`event`: what observers get when the copy is there and the original acked."""
        self.delivery = delivery
        self.event = event
        self._transfers = transfers
        self._context = copy_context()
        self._end: asyncio.Future[None] | None = None

    def done(self) -> bool:
        return False

    def set_result(self, _: None, /) -> None:
        self._resolve(None)

    def set_exception(self, error: PublishError, /) -> None:
        self._resolve(error)

    def _resolve(self, error: PublishError | None) -> None:
        try:
            self._context.run(self._transfers.on_reply, self, error)
        except Exception as bug:  # it must not end the connection, which is in the middle of reading
            self._transfers.report(bug)
        finally:
            self.complete()

    def done_future(self) -> asyncio.Future[None]:
        """Done when nothing is left to do: made for the few who wait."""
        if self._end is None:
            self._end = asyncio.get_running_loop().create_future()
        return self._end

    def complete(self) -> None:
        if self._end is not None and not self._end.done():
            self._end.set_result(None)
