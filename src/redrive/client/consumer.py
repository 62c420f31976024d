"""Deliveries from one queue, over any number of connections.

A consumer owns a channel, so that nothing another one does can end it. When the channel ends, for whatever
reason, or the broker cancels the consumer, its supervisor opens a new channel and consumes again, indefinitely,
with a growing pause; a consumer ends only when it is cancelled by its owner. What was buffered from the old
channel is dropped: the broker has those messages back and delivers them again.

    STARTING -> CONSUMING <-> RECOVERING -> CANCELLED

Three forms. With a handler, `concurrency` runners call it, one delivery each at a time:

    consumer = await connection.consume("orders", handle, prefetch=50, concurrency=10)

With one for many, it gets what has come in one call, and the next when it has returned:

    consumer = await connection.consume_many("orders", gather, prefetch=1000)

Without one, iterate:

    async with await connection.consume("orders") as consumer:
        async for delivery in consumer: ...

At most `prefetch` deliveries are here and unsettled at any time: the broker sends no more.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from enum import Enum, auto
from typing import TYPE_CHECKING, Self

from redrive.client.ack_batcher import AckBatcher
from redrive.client.channel import Channel
from redrive.errors import ConnectionClosed, ConnectionLost, ConsumerCancelled, RedriveError
from redrive.protocol.messages import Delivery
from redrive.recovery.backoff import Backoff
from redrive.wire.methods.basic import BasicCancel, BasicCancelOk, BasicConsume, BasicConsumeOk, BasicQos, BasicQosOk
from redrive.wire.values import FieldValue
from redrive.worker.cancellation import ends_task

if TYPE_CHECKING:
    from redrive.client.connection import Connection

log = logging.getLogger("redrive.client")

Handler = Callable[[Delivery], Awaitable[None]]
BulkHandler = Callable[[Sequence[Delivery]], Awaitable[None]]

# A consumer that is never kept waiting lets the event loop have a turn after this many deliveries.
_TURN = 64


def log_death(supervisor: asyncio.Task[None]) -> None:
    """A supervisor ends when it is cancelled. If it ends in any other way, that must be reported."""
    if not supervisor.cancelled() and (error := supervisor.exception()) is not None:
        log.critical("%s died; what it kept alive is dead now: a bug", supervisor.get_name(), exc_info=error)


class ConsumerState(Enum):
    STARTING = auto()
    CONSUMING = auto()
    RECOVERING = auto()
    CANCELLED = auto()


class Consumer:
    def __init__(
        self,
        connection: Connection,
        queue: str,
        handler: Handler | None,
        *,
        prefetch: int,
        backoff: Backoff,
        concurrency: int = 1,
        many: BulkHandler | None = None,
        exclusive: bool = False,
        arguments: Mapping[str, FieldValue] | None = None,
        finishing: Callable[[], Awaitable[None]] | None = None,
        aborting: Callable[[], Awaitable[None]] | None = None,
        intercept: Callable[[Delivery], bool] | None = None,
    ) -> None:
        self.state = ConsumerState.STARTING
        self.prefetch = prefetch
        self.restarts = 0  # how often consuming had to be taken up again
        self.last_error: RedriveError | None = None  # why it was interrupted last
        self._connection = connection
        self._queue = queue
        self._handler = handler
        self._concurrency = concurrency
        self._bulk_handler = many
        self._exclusive = exclusive
        self._arguments = arguments or {}
        self._backoff = backoff
        self._finishing = finishing
        self._aborting = aborting
        self._intercept = intercept
        self._loop = asyncio.get_running_loop()
        self._channel: Channel | None = None
        self._settler: AckBatcher | None = None
        self._interrupted: asyncio.Future[RedriveError] = self._loop.create_future()
        self._buffer: deque[Delivery] = deque()
        self._waiters: deque[asyncio.Future[None]] = deque()  # iterators and runners waiting for a delivery
        self._in_a_row = 0
        self._changed = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._supervisor: asyncio.Task[None] | None = None
        self._ending = False

    @property
    def queue(self) -> str:
        """Its name now: a queue that the broker named has a new name after a reconnect."""
        return self._connection.current_name(self._queue)

    @property
    def unsettled(self) -> int:
        """How many deliveries are here and not settled: buffered, being handled, or kept for a reason."""
        return self._settler.unsettled if self._settler is not None else 0

    # Starting and staying -----------------------------------------------------------------------------

    async def start(self) -> None:
        """Consume for the first time; what the broker refuses now, it refuses the caller."""
        await self._consume()
        self._supervisor = self._loop.create_task(self._supervise(), name=f"redrive-consumer-{self._queue}")
        self._supervisor.add_done_callback(log_death)
        runners = [self._run(self._handler) for _ in range(self._concurrency)] if self._handler is not None else []
        if self._bulk_handler is not None:
            runners.append(self._run_in_bulk(self._bulk_handler))
        self._tasks = [self._loop.create_task(runner, name=f"redrive-handler-{self._queue}") for runner in runners]

    async def _consume(self) -> None:
        link = await self._connection.link()
        channel = await link.channel()
        try:
            await self._consume_on(channel)
        except BaseException:
            channel.abandon()
            raise

    async def _consume_on(self, channel: Channel) -> None:
        interrupted: asyncio.Future[RedriveError] = self._loop.create_future()
        settler = AckBatcher(channel, prefetch=self.prefetch)

        def interrupt(reason: RedriveError) -> None:
            if not interrupted.done():
                interrupted.set_result(reason)
                self._give_back_buffered()

        channel.on_delivery = lambda delivery: self._deliver(delivery, settler)
        channel.on_cancel = lambda cancel: interrupt(ConsumerCancelled(f"the broker cancelled {cancel.consumer_tag}"))
        channel.on_closed = interrupt
        await channel.call(BasicQos(prefetch_count=self.prefetch), BasicQosOk)
        consume = BasicConsume(queue=self.queue, exclusive=self._exclusive, arguments=self._arguments)
        self._consumer_tag = (await channel.call(consume, BasicConsumeOk)).consumer_tag
        self._channel, self._settler, self._interrupted = channel, settler, interrupted
        self._become(ConsumerState.CONSUMING)

    async def _supervise(self) -> None:
        attempt = 0
        while True:
            began = self._loop.time()
            reason = await asyncio.shield(self._interrupted)
            if self._loop.time() - began > self._backoff.ceiling.total_seconds():
                attempt = 0  # it went well for a while; otherwise the pauses go on growing
            self.last_error = reason
            self.restarts += 1
            self._become(ConsumerState.RECOVERING)
            is_lost = not self._is_connected  # which the connection logs
            log.log(logging.DEBUG if is_lost else logging.WARNING, "consumer of %s interrupted: %s", self.queue, reason)
            self._retire()
            while self.state is ConsumerState.RECOVERING:
                attempt = await self._consume_again(attempt, logging.DEBUG if is_lost else logging.INFO)

    @property
    def _is_connected(self) -> bool:
        return self._channel is not None and self._channel.link.alive

    async def _consume_again(self, attempt: int, level: int) -> int:
        """Consume again, or log why not. Every try but the first waits. Returns the number of tries in a row. `level`:
        at which it is logged that it consumes again.
        """
        if attempt:
            await asyncio.sleep(self._backoff.delay(attempt, random.random()).total_seconds())
        try:
            await self._connection.restore_queue(self.queue)
            await self._consume()
        except RedriveError as error:
            self.last_error = error
            is_lost = isinstance(error, ConnectionLost | ConnectionClosed)
            trouble = logging.DEBUG if is_lost else logging.WARNING
            log.log(trouble, "consumer of %s cannot consume, will try again: %s", self.queue, error)
        else:
            log.log(level, "consumer of %s consumes again", self.queue)
        return attempt + 1

    def _retire(self) -> None:
        """Leave the old channel. A cancelled consumer's is still open: what is being handled may yet be settled."""
        if self._settler is not None:
            self._settler.retire()
        self._channel = self._settler = None

    async def flush(self) -> None:
        """Wait until the broker has read what was settled so far: acks that were only sent can be lost if this process
        is killed. If the connection is lost meanwhile, that is unknown.
        """
        if self._channel is not None:
            with suppress(RedriveError):
                await self._channel.call(BasicQos(prefetch_count=self.prefetch), BasicQosOk)

    # Deliveries ---------------------------------------------------------------------------------------

    def _deliver(self, delivery: Delivery, settler: AckBatcher) -> None:
        settler.take(delivery)
        if delivery.redelivered and self._intercept is not None and self._intercept(delivery):
            return
        self._buffer.append(delivery)
        if self._waiters:
            self._wake_one()

    def _wake_one(self) -> None:
        while self._waiters:
            waiting = self._waiters.popleft()
            if not waiting.done():
                waiting.set_result(None)
                return

    def _give_back_buffered(self) -> None:
        """Return what nobody took yet. If its channel is gone, the broker has it back already."""
        buffered, self._buffer = self._buffer, deque()
        for delivery in buffered:
            delivery.nack(requeue=True)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delivery:
        self._in_a_row += 1
        if self._in_a_row >= _TURN:
            self._in_a_row = 0
            await asyncio.sleep(0)
        while not self._buffer:
            if self._ending:
                raise StopAsyncIteration
            self._in_a_row = 0
            await self._next_delivery()
        return self._buffer.popleft()

    async def _next_delivery(self) -> None:
        waiting: asyncio.Future[None] = self._loop.create_future()
        self._waiters.append(waiting)
        try:
            await waiting
        except asyncio.CancelledError:
            if waiting in self._waiters:
                self._waiters.remove(waiting)
            elif self._buffer:
                self._wake_one()  # we were called and leave: it is the next one's
            raise

    async def _run(self, handler: Handler) -> None:
        failures = 0
        async for delivery in self:
            try:
                await handler(delivery)
                failures = 0
            except BaseException as error:  # libraries written in Rust raise such as are no Exception
                if ends_task(error):
                    raise
                failures += 1
                await self._on_handler_error([delivery], error, failures)

    async def _run_in_bulk(self, handler: BulkHandler) -> None:
        failures = 0
        while True:
            while not self._buffer:
                if self._ending:
                    return
                await self._next_delivery()
            come = [self._buffer.popleft() for _ in range(min(_TURN, len(self._buffer)))]
            try:
                await handler(come)
                failures = 0
            except BaseException as error:  # libraries written in Rust raise such as are no Exception
                if ends_task(error):
                    raise
                failures += 1
                await self._on_handler_error(come, error, failures)
            await asyncio.sleep(0)

    async def _on_handler_error(self, deliveries: Sequence[Delivery], error: BaseException, failures: int) -> None:
        """The runtime never lets an error escape. Whoever uses this layer alone gets the messages again, slowly."""
        log.error("handler of %s failed; what it had goes back to the queue", self.queue, exc_info=error)
        for delivery in deliveries:
            if not delivery.settled:
                delivery.nack(requeue=True)
        await asyncio.sleep(self._backoff.delay(failures, random.random()).total_seconds())

    # The end ------------------------------------------------------------------------------------------

    async def cancel(self) -> None:
        """Stop consuming, give back what was buffered, wait for the handlers, tell the broker, close the channel.

        A handler that calls this is not waited for: what it has not settled by then goes back to the queue.
        """
        await self.drain(asyncio.current_task())

    async def drain(self, caller: asyncio.Task[object] | None) -> None:
        """`cancel` on behalf of a task, which may be one of the handlers. One that is given up becomes an `abort`."""
        if not self._ending:
            self._ending = True
            try:
                await self._finish(caller)
            except BaseException:
                await self.abort(caller)
                raise
            self._connection.forget(self)
        elif caller not in self._tasks:
            await self.until(ConsumerState.CANCELLED)

    async def _finish(self, caller: asyncio.Task[object] | None) -> None:
        await self._stop_deliveries()
        self._give_back_buffered()
        self._wake_all()
        await asyncio.gather(*(task for task in self._tasks if task is not caller), return_exceptions=True)
        if self._finishing is not None:
            await self._finishing()
        if self._channel is not None:
            await self._channel.close()
        self._become(ConsumerState.CANCELLED)

    def _wake_all(self) -> None:
        """Nothing comes any more: those who wait for it find that out."""
        while self._waiters:
            self._wake_one()

    async def _stop_deliveries(self) -> None:
        if self._supervisor is not None:
            self._supervisor.cancel()  # first, so that it does not take the farewell for an interruption
            await asyncio.gather(self._supervisor, return_exceptions=True)
        if self._channel is not None and self.state is ConsumerState.CONSUMING:
            self._channel.on_cancel = lambda _: None
            try:
                await self._channel.call(BasicCancel(consumer_tag=self._consumer_tag), BasicCancelOk)
            except RedriveError as error:
                log.debug("cancelling the consumer of %s: %s", self.queue, error)

    async def abort(self, caller: asyncio.Task[object] | None = None) -> None:
        """Stop now: handlers but the caller are cancelled, and what they had goes back to the queue."""
        self._ending = True
        self._connection.forget(self)
        self._buffer.clear()  # it goes back with the channel, and all of it in its order
        self._wake_all()
        tasks = [*self._tasks, *([self._supervisor] if self._supervisor is not None else [])]
        tasks = [task for task in tasks if task is not caller]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._aborting is not None and self._channel is not None:
            await self._aborting()
        if self._channel is not None:
            self._channel.abandon()
        self._become(ConsumerState.CANCELLED)

    async def until(self, *states: ConsumerState) -> ConsumerState:
        """Wait until the consumer is in one of these states."""
        while self.state not in states:
            await self._changed.wait()
        return self.state

    def _become(self, state: ConsumerState) -> None:
        self.state = state
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.cancel()

    def __repr__(self) -> str:
        trouble = f" last_error={str(self.last_error)!r}" if self.last_error is not None else ""
        return (
            f"<Consumer {self.queue} {self.state.name} prefetch={self.prefetch} "
            f"buffered={len(self._buffer)} restarts={self.restarts}{trouble}>"
        )
