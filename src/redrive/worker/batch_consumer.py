"""The batch consumer: one call of a handler for many messages, each of which is settled on its own.

    accept     admit and read each message when it arrives; one that cannot be read is parked alone
    prepare    if there is such a function, call it for each message, `processors` at a time
    gather     until there are `size` messages, or the first has waited for `timeout`
    handle     one call for all of them, `batchers` calls at a time
    settle     ack the messages; those that failed are retried or parked one by one

When the handler raises, one message of the batch may be to blame and the others not: its halves are handled until the
messages that fail are found. That costs calls, so there is a budget; when it is spent (the database is down: every call
fails) the rest fail together. If the error shows that no single message is to blame (`isolate=`), they do so at once.

A message that cannot be prepared fails like any other message, and the rest of the batch is not affected. A message is
settled with its batch and not before: if the worker dies, what was prepared is lost, and the next worker prepares it
again.

    waiting      when the worker stops, given back to the queue
    preparing    prepared, gathered and handled; cancelled, it goes back to the queue
    gathered     handled
    handled      settled
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from redrive.protocol.messages import Delivery
from redrive.recovery.durations import duration
from redrive.recovery.verdict import Ending
from redrive.worker.batch import Batch
from redrive.worker.cancellation import ends_task
from redrive.worker.clock import Timer
from redrive.worker.codecs import Malformed
from redrive.worker.consumer_spec import BatchSpec
from redrive.worker.handlers import Handler
from redrive.worker.invocation import PartlyFailed
from redrive.worker.message import Message, current_message
from redrive.worker.pipeline import DeliveryPipeline
from redrive.worker.transactions import DatabaseLost

_SETTLED = object()  # in place of a body: the message is settled already


class _Gathered(NamedTuple):
    """The messages of a batch so far, each at the same position of the three lists."""

    bodies: list[Any]
    deliveries: list[Delivery]
    arrivals: list[int]  # when each was delivered, relative to the others; empty if none was prepared


class Batching:
    """Gathers the deliveries of one consumer, and handles them together."""

    def __init__(self, pipeline: DeliveryPipeline, spec: BatchSpec, prepare: Handler | None = None) -> None:
        self._pipeline = pipeline
        self._spec = spec
        self._timeout = duration(spec.max_wait).total_seconds()
        self._gathered: dict[Any, _Gathered] = {}
        self._alarms: dict[Any, Timer] = {}
        self._places = asyncio.Semaphore(spec.batchers)
        self._running: set[asyncio.Task[None]] = set()
        self._flushing = False
        self._reads = pipeline.handler.read
        self._preparation = None
        self._accept: Callable[[Delivery], None] = self._gather
        if prepare is not None:
            self._preparation = Preparation(pipeline, prepare, spec.prepared_at_a_time, self._message_of, self._add)
            self._accept = self._preparation.add

    # Gather -------------------------------------------------------------------------------------------

    async def __call__(self, deliveries: Sequence[Delivery]) -> None:
        """Gather each delivery, or settle it in another way."""
        pipeline, accept = self._pipeline, self._accept
        waiting = []
        for delivery in deliveries:
            pipeline.observer.started(pipeline.queue)
            if not pipeline.needs_admission(delivery):
                accept(delivery)
            elif pipeline.is_gated:
                await self._admit(delivery)
            else:
                waiting.append(self._admit(delivery))
        if waiting:
            await asyncio.gather(*waiting)

    async def _admit(self, delivery: Delivery) -> None:
        await self._pipeline.admit(delivery, self._accept_admitted, self._handle_alone)

    async def _accept_admitted(self, delivery: Delivery) -> None:
        self._accept(delivery)

    async def _handle_alone(self, delivery: Delivery) -> None:
        """Handle one message as a batch."""
        if self._preparation is not None:
            body = await self._preparation.prepare(delivery)
        else:
            body = _read(delivery, self._pipeline.handler, self._pipeline)
        if body is not _SETTLED:
            await self._call(Batch([body], [delivery], self._message_of))

    def _gather(self, delivery: Delivery) -> None:
        try:  # as `_read` does, without a call per message
            body = self._reads(delivery.body, delivery.raw_properties)
        except Malformed as error:
            self._pipeline.settle_malformed(delivery, error)
            return
        self._add(body, delivery)

    def _add(self, body: Any, delivery: Delivery, arrival: int | None = None) -> None:
        key = None
        if self._spec.key is not None:
            try:
                key = self._spec.key(body)
                hash(key)  # an error that escaped here would give back the other messages, too
            except Exception as error:
                self._pipeline.settle_failure(delivery, error)
                return
        gathered = self._gathered.get(key)
        if gathered is None:
            gathered = self._gathered[key] = _Gathered([], [], [])
            self._alarms[key] = self._pipeline.clock.call_later(self._timeout, partial(self._close, key))
        bodies, deliveries, arrivals = gathered
        bodies.append(body)
        deliveries.append(delivery)
        if arrival is not None:
            arrivals.append(arrival)
        if len(bodies) >= self._spec.size or self._flushing:
            self._close(key)

    def _close(self, key: Any) -> None:
        """Handle a batch that is full, or has waited long enough."""
        if (alarm := self._alarms.pop(key, None)) is not None:
            alarm.cancel()
        gathered = self._gathered.pop(key, None)
        if gathered is not None:
            batch = Batch(gathered.bodies, gathered.deliveries, self._message_of)
            if gathered.arrivals:
                batch = batch.part(sorted(range(len(batch)), key=gathered.arrivals.__getitem__))
            task = asyncio.create_task(self._run(batch), name=f"redrive-batch-{self._pipeline.queue}")
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def drain(self) -> None:
        """Handle what is being prepared and what was gathered, wait for what is being handled, and for its settling."""
        if self._preparation is not None:
            await self._preparation.finish()
        self._flushing = True
        for key in list(self._gathered):
            self._close(key)
        while self._running:
            await asyncio.gather(*self._running, return_exceptions=True)
        await self._pipeline.wait_until_settled()

    async def abort(self) -> None:
        """Cancel what is being handled. What is not settled goes back to its queue."""
        if self._preparation is not None:
            await self._preparation.abort()
        for alarm in self._alarms.values():
            alarm.cancel()
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        for gathered in self._gathered.values():
            self._pipeline.release_watched(gathered.deliveries)
        await self._pipeline.settlement.transfers.finish_moves()

    def close(self) -> None:
        if self._preparation is not None:
            self._preparation.handler.close()

    # Handle and settle --------------------------------------------------------------------------------

    async def _run(self, batch: Batch[Any]) -> None:
        async with self._places, self._pipeline.lock.shared():
            await self._call(batch)

    async def _call(self, batch: Batch[Any]) -> None:
        began = self._pipeline.clock.monotonic()
        try:
            await self._handle(batch, _Budget(len(batch)))
        except asyncio.CancelledError:
            self._pipeline.release_watched(batch.deliveries)
            raise
        except Exception as bug:
            self._pipeline.settlement.transfers.release_unsettled(batch.deliveries, bug)
        self._pipeline.observer.batch(self._pipeline.queue, len(batch), self._pipeline.clock.monotonic() - began)

    async def _handle(self, batch: Batch[Any], budget: _Budget) -> None:
        try:
            budget.spend()
            known = await self._pipeline.invocation.call_with_batch(batch)
        except DatabaseLost:  # and the worker stops
            for delivery in batch.deliveries:
                self._pipeline.settle_ending(delivery, Ending.NO_DATABASE)
            return
        except PartlyFailed as partly:
            await self._repeat_without_failed(batch, partly, budget)
            return
        except BaseException as error:
            if ends_task(error):
                raise
            await self._on_error(batch, error, budget)
            return
        if not known and not batch.failures:
            self._pipeline.settle_successes(batch.deliveries)
            return
        for position, delivery in enumerate(batch.deliveries):
            if position in known:
                self._pipeline.settle_ending(delivery, Ending.DUPLICATE)
            elif (failure := batch.failures.get(position)) is not None:
                self._pipeline.settle_failure(delivery, failure)
            else:
                self._pipeline.settle_success(delivery)

    async def _repeat_without_failed(self, batch: Batch[Any], partly: PartlyFailed, budget: _Budget) -> None:
        """Settle the messages that failed, and handle the others again: a transaction cannot fail in part."""
        for position, error in partly.failures.items():
            self._pipeline.settle_failure(batch.deliveries[position], error)
        others = [position for position in range(len(batch)) if position not in partly.failures]
        if others:
            await self._handle(batch.part(others), budget)

    async def _on_error(self, batch: Batch[Any], error: BaseException, budget: _Budget) -> None:
        if len(batch) == 1 or not self._isolates(error) or budget.is_spent:
            for delivery in batch.deliveries:
                self._pipeline.settle_failure(delivery, error)
            return
        middle = len(batch) // 2
        await self._handle(batch.part(range(middle)), budget)
        await self._handle(batch.part(range(middle, len(batch))), budget)

    def _isolates(self, error: BaseException) -> bool:
        try:
            return self._spec.isolates(error)
        except Exception as bug:
            self._pipeline.log_callback_error("isolate=", error, "handling the halves of the batch", bug)
            return True

    def _message_of(self, delivery: Delivery) -> Message:
        return Message(delivery, self._pipeline.queue, self._pipeline.read_history)

    def __repr__(self) -> str:
        gathered = sum(len(gathered.bodies) for gathered in self._gathered.values())
        preparation = f" {self._preparation!r}" if self._preparation is not None else ""
        return f"<Batching {self._pipeline.queue}{preparation} gathered={gathered} running={len(self._running)}>"


class Preparation:
    """Calls `prepare` for each message of a consumer, and passes on what it returns.

    Processors are tasks that are started when messages come, and end when none waits. A message waits until a processor
    may run next to the other handlers of the worker: then it has begun, and not before.
    """

    def __init__(
        self,
        pipeline: DeliveryPipeline,
        handler: Handler,
        processors: int,
        message_of: Callable[[Delivery], Message],
        prepared: Callable[[Any, Delivery, int], None],
    ) -> None:
        """`prepared` gets the new body, the delivery, and its place in the order of arrival."""
        self.handler = handler
        self._pipeline = pipeline
        self._processors = processors
        self._message_of = message_of
        self._prepared = prepared
        self._waiting: deque[tuple[int, Delivery]] = deque()
        self._arrivals = 0
        self._running: set[asyncio.Task[None]] = set()

    def add(self, delivery: Delivery) -> None:
        """Prepare a message when a processor is free."""
        self._arrivals += 1
        self._waiting.append((self._arrivals, delivery))
        if len(self._running) < self._processors:
            task = asyncio.create_task(self._process(), name=f"redrive-prepare-{self._pipeline.queue}")
            self._running.add(task)

    async def _process(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            while self._waiting:
                await self._process_next()
                await asyncio.sleep(0)  # functions that never wait must not block the loop
        finally:
            self._running.discard(task)  # at once: the next message needs a new task

    async def _process_next(self) -> None:
        lock = self._pipeline.lock
        if lock.contended:
            await lock.wait()
        else:
            lock.running += 1
        try:
            if self._waiting:  # another processor may have taken it, or it was given back
                await self._prepare_for_batch(*self._waiting.popleft())
        finally:
            lock.leave()

    async def _prepare_for_batch(self, arrival: int, delivery: Delivery) -> None:
        try:
            if (body := await self.prepare(delivery)) is not _SETTLED:
                self._prepared(body, delivery, arrival)
        except Exception as bug:
            self._pipeline.settlement.transfers.release_unsettled([delivery], bug)

    async def prepare(self, delivery: Delivery) -> Any:
        """Return the new body; or settle the message, if it cannot be prepared."""
        pipeline = self._pipeline
        if (body := _read(delivery, self.handler, pipeline)) is _SETTLED:
            return _SETTLED
        message = self._message_of(delivery)
        context = current_message.set(message)
        began = pipeline.clock.monotonic()
        try:
            return await pipeline.invocation.within_limits(lambda: self._call(body, message), (message,), of="prepare")
        except BaseException as error:
            if ends_task(error):
                if isinstance(error, asyncio.CancelledError):
                    pipeline.release_watched([delivery])
                raise
            pipeline.settle_failure(delivery, error, pipeline.clock.monotonic() - began)
            return _SETTLED
        finally:
            current_message.reset(context)

    async def _call(self, body: Any, message: Message) -> Any:
        return await self.handler.finish(await self.handler.call(body, message))

    async def finish(self) -> None:
        """Give back what waits, and prepare the rest."""
        for delivery in self._take_waiting():
            self._pipeline.settlement.give_back(delivery)
        while self._running:
            await asyncio.gather(*self._running, return_exceptions=True)

    async def abort(self) -> None:
        """Cancel what is being prepared. What is not settled goes back to its queue."""
        waiting, running = self._take_waiting(), list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        self._pipeline.release_watched(waiting)

    def _take_waiting(self) -> list[Delivery]:
        waiting, self._waiting = self._waiting, deque()
        return [delivery for _, delivery in waiting]

    def __repr__(self) -> str:
        return f"<Preparation waiting={len(self._waiting)} running={len(self._running)}/{self._processors}>"


def _read(delivery: Delivery, handler: Handler, pipeline: DeliveryPipeline) -> Any:
    """Return the body as a handler wants it; or park the message, if it cannot be read."""
    try:
        return handler.read(delivery.body, delivery.raw_properties)
    except Malformed as error:
        pipeline.settle_malformed(delivery, error)
        return _SETTLED


class _Budget:
    """How many calls it may take to find the messages that fail: enough for a few, however large the batch."""

    def __init__(self, size: int) -> None:
        self._left = 4 * size.bit_length() + 8

    def spend(self) -> None:
        self._left -= 1

    @property
    def is_spent(self) -> bool:
        return self._left <= 0
