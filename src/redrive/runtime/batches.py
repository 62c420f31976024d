"""Many messages for one call of a handler, each with a fate of its own.

    accept     guard and read each message as it comes; what cannot be read is parked alone
    gather     until there are `size`, or the first has waited for `timeout`
    handle     one call for all of them, `batchers` calls at a time
    settle     ack what went well; what the handler marked as failed, or what it stumbled over, goes its own way

When a whole batch raises, somebody in it is to blame, and the others are not: halves are tried until the culprits are
found. That costs calls, so there is a budget; when it is spent (the database is down: everybody is a culprit) the rest
fail together. Whoever can tell by the error that nobody is to blame says so (`isolate=`), and they do at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple

from redrive.protocol.content import Delivery
from redrive.recovery.durations import duration
from redrive.recovery.story import ParkReason
from redrive.runtime.batch import Batch
from redrive.runtime.codecs import Malformed
from redrive.runtime.consuming import GIVES_UP, PartlyFailed, Walk, is_cancelled
from redrive.runtime.message import Message
from redrive.runtime.specs import BatchSpec
from redrive.runtime.transactions import DatabaseUnavailable


class _Gathered(NamedTuple):
    """What has come for a batch, each message in the same place of both."""

    bodies: list[Any]
    deliveries: list[Delivery]


class Batching:
    """Gathers the deliveries of one consumer, and handles them together."""

    def __init__(self, walk: Walk, spec: BatchSpec) -> None:
        self._walk = walk
        self._spec = spec
        self._timeout = duration(spec.timeout).total_seconds()
        self._gathered: dict[Any, _Gathered] = {}
        self._alarms: dict[Any, asyncio.TimerHandle] = {}
        self._places = asyncio.Semaphore(spec.batchers)
        self._running: set[asyncio.Task[None]] = set()
        self._flushing = False

    # Gather -------------------------------------------------------------------------------------------

    async def __call__(self, deliveries: Sequence[Delivery]) -> None:
        """As many as have come: each is gathered, or has gone its own way."""
        walk = self._walk
        waiting = []
        for delivery in deliveries:
            walk.observer.started(walk.queue)
            if not walk.needs_admission(delivery):
                self._accept(delivery, walk)
            elif walk.is_gated:
                await self._admit(delivery)
            else:
                waiting.append(self._admit(delivery))
        if waiting:
            await asyncio.gather(*waiting)

    async def _admit(self, delivery: Delivery) -> None:
        await self._walk.admit(delivery, self._accept_admitted, self._handle_alone)

    async def _accept_admitted(self, delivery: Delivery) -> None:
        self._accept(delivery, self._walk)

    async def _handle_alone(self, delivery: Delivery) -> None:
        """A batch of one."""
        try:
            body = self._walk.handler.read(delivery.body, delivery.raw_properties)
        except Malformed as error:
            self._walk.bury(delivery, error, ParkReason.MALFORMED)
            return
        await self._call(Batch([body], [delivery], self._message_of))

    def _accept(self, delivery: Delivery, walk: Walk) -> None:
        try:
            body = walk.handler.read(delivery.body, delivery.raw_properties)
        except Malformed as error:
            walk.bury(delivery, error, ParkReason.MALFORMED)
            return
        key = None
        if self._spec.key is not None:
            try:
                key = self._spec.key(body)
                hash(key)  # by which it is gathered: what escaped here would give back its neighbours, too
            except Exception as error:
                walk.failed(delivery, error)
                return
        self._add(key, body, delivery)

    def _add(self, key: Any, body: Any, delivery: Delivery) -> None:
        gathered = self._gathered.get(key)
        if gathered is None:
            gathered = self._gathered[key] = _Gathered([], [])
            self._alarms[key] = asyncio.get_running_loop().call_later(self._timeout, self._close, key)
        bodies, deliveries = gathered
        bodies.append(body)
        deliveries.append(delivery)
        if len(bodies) >= self._spec.size or self._flushing:
            self._close(key)

    def _close(self, key: Any) -> None:
        """The batch is full, or has waited long enough."""
        if (alarm := self._alarms.pop(key, None)) is not None:
            alarm.cancel()
        gathered = self._gathered.pop(key, None)
        if gathered is not None:
            batch = Batch(gathered.bodies, gathered.deliveries, self._message_of)
            task = asyncio.create_task(self._run(batch), name=f"redrive-batch-{self._walk.queue}")
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def drained(self) -> None:
        """Handle what was gathered, wait for what is being handled, and for its settling."""
        self._flushing = True
        for key in list(self._gathered):
            self._close(key)
        while self._running:
            await asyncio.gather(*self._running, return_exceptions=True)
        await self._walk.drained()

    async def abort(self) -> None:
        """Cancel what is being handled. What is not settled goes back to its queue."""
        for alarm in self._alarms.values():
            alarm.cancel()
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        for gathered in self._gathered.values():
            self._walk.release_watched(gathered.deliveries)
        await self._walk.settlement.finish_moves()

    # Handle and settle --------------------------------------------------------------------------------

    async def _run(self, batch: Batch[Any]) -> None:
        lock = self._walk.lock
        async with self._places:
            if lock.contended:
                await lock.wait()
            else:
                lock.running += 1
            try:
                await self._call(batch)
            finally:
                lock.leave()

    async def _call(self, batch: Batch[Any]) -> None:
        began = self._walk.clock.monotonic()
        try:
            await self._handle(batch, _Budget(len(batch)))
        except asyncio.CancelledError:
            self._walk.release_watched(batch.deliveries)
            raise
        except Exception as bug:
            self._walk.settlement.give_up(batch.deliveries, bug)
        self._walk.observer.batch(self._walk.queue, len(batch), self._walk.clock.monotonic() - began)

    async def _handle(self, batch: Batch[Any], budget: _Budget) -> None:
        known: frozenset[int] = frozenset()
        messages = batch.messages if self._walk.spec.middleware else ()
        try:
            budget.spend()
            known = await self._walk.ride_out(
                lambda: self._walk.within_limits(lambda: self._walk.call_with_batch(batch), messages)
            )
        except DatabaseUnavailable:  # and the worker stops
            for delivery in batch.deliveries:
                self._walk.release(delivery)
            return
        except PartlyFailed as partly:
            await self._without_the_failed(batch, partly, budget)
            return
        except GIVES_UP:
            raise
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and is_cancelled():
                raise
            await self._raised(batch, error, budget)
            return
        if not known and not batch.failures:
            self._walk.all_succeeded(batch.deliveries)
            return
        for position, delivery in enumerate(batch.deliveries):
            if position in known:
                self._walk.skip(delivery)
            elif (failure := batch.failures.get(position)) is not None:
                self._walk.failed(delivery, failure)
            else:
                self._walk.succeeded(delivery)

    async def _without_the_failed(self, batch: Batch[Any], partly: PartlyFailed, budget: _Budget) -> None:
        """In a transaction a part cannot fail alone: those that failed go their way, and the others begin anew."""
        for position, error in partly.failures.items():
            self._walk.failed(batch.deliveries[position], error)
        others = [position for position in range(len(batch)) if position not in partly.failures]
        if others:
            await self._handle(batch.part(others), budget)

    async def _raised(self, batch: Batch[Any], error: BaseException, budget: _Budget) -> None:
        if len(batch) == 1 or not self._isolates(error) or budget.is_spent:
            for delivery in batch.deliveries:
                self._walk.failed(delivery, error)
            return
        middle = len(batch) // 2
        await self._handle(batch.part(range(middle)), budget)
        await self._handle(batch.part(range(middle, len(batch))), budget)

    def _isolates(self, error: BaseException) -> bool:
        try:
            return self._spec.isolates(error)
        except Exception as bug:
            self._walk.has_no_answer("can one message be to blame for this error", error, "halves are tried", bug)
            return True

    def _message_of(self, delivery: Delivery) -> Message:
        return Message(delivery, self._walk.queue, self._walk.read_history)

    def __repr__(self) -> str:
        gathered = sum(len(gathered.bodies) for gathered in self._gathered.values())
        return f"<Batching {self._walk.queue} gathered={gathered} running={len(self._running)}>"


class _Budget:
    """How many calls it may take to find culprits: enough for a few, however large the batch."""

    def __init__(self, size: int) -> None:
        self._left = 4 * size.bit_length() + 8

    def spend(self) -> None:
        self._left -= 1

    @property
    def is_spent(self) -> bool:
        return self._left <= 0
