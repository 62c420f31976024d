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
from typing import Any

from redrive.protocol.content import Delivery
from redrive.recovery.durations import duration
from redrive.recovery.story import ParkReason
from redrive.runtime.batch import Batch, Item
from redrive.runtime.codecs import Malformed
from redrive.runtime.consuming import PartlyFailed, Walk
from redrive.runtime.message import Message
from redrive.runtime.specs import BatchSpec


class Batching:
    """Gathers the deliveries of one consumer, and handles them together."""

    def __init__(self, walk: Walk, spec: BatchSpec) -> None:
        self._walk = walk
        self._spec = spec
        self._timeout = duration(spec.timeout).total_seconds()
        self._gathered: dict[Any, list[Item[Any]]] = {}
        self._alarms: dict[Any, asyncio.TimerHandle] = {}
        self._places = asyncio.Semaphore(spec.batchers)
        self._running: set[asyncio.Task[None]] = set()
        self._flushing = False

    # Gather -------------------------------------------------------------------------------------------

    async def __call__(self, deliveries: Sequence[Delivery]) -> None:
        """As many as have come: each is gathered, or has gone its own way."""
        walk = self._walk
        for delivery in deliveries:
            walk.observer.started(walk.queue)
            if walk.holds_back(delivery) and await walk.hold_back(delivery):
                continue
            self._accept(delivery, walk)

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
        self._add(key, Item(body, Message(delivery, walk.queue, walk.read_history), delivery))

    def _add(self, key: Any, item: Item[Any]) -> None:
        gathered = self._gathered.get(key)
        if gathered is None:
            gathered = self._gathered[key] = []
            self._alarms[key] = asyncio.get_running_loop().call_later(self._timeout, self._close, key)
        gathered.append(item)
        if len(gathered) >= self._spec.size or self._flushing:
            self._close(key)

    def _close(self, key: Any) -> None:
        """The batch is full, or has waited long enough."""
        if (alarm := self._alarms.pop(key, None)) is not None:
            alarm.cancel()
        items = self._gathered.pop(key, None)
        if items:
            task = asyncio.create_task(self._run(items), name=f"redrive-batch-{self._walk.queue}")
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

    def abandon(self) -> None:
        for alarm in self._alarms.values():
            alarm.cancel()
        for task in self._running:
            task.cancel()
        self._walk.abandon()

    # Handle and settle --------------------------------------------------------------------------------

    async def _run(self, items: list[Item[Any]]) -> None:
        async with self._places:
            began = self._walk.clock.monotonic()
            budget = _Budget(len(items))
            await self._handle(items, budget)
            self._walk.observer.batch(self._walk.queue, len(items), self._walk.clock.monotonic() - began)

    async def _handle(self, items: list[Item[Any]], budget: _Budget) -> None:
        batch = Batch(items)
        known: frozenset[int] = frozenset()
        try:
            budget.spend()
            known = await self._walk.within_limits(lambda: self._walk.call_with_batch(batch), batch.messages)
        except PartlyFailed as partly:
            await self._without_the_failed(items, partly, budget)
            return
        except Exception as error:
            await self._raised(items, error, budget)
            return
        if not known and not batch.failures:
            self._walk.all_succeeded([item.delivery for item in items])
            return
        for position, item in enumerate(items):
            if position in known:
                self._walk.settlement.skip(item.delivery, item.message.history)
            elif (failure := batch.failures.get(position)) is not None:
                self._walk.failed(item.delivery, failure)
            else:
                self._walk.succeeded(item.delivery)

    async def _without_the_failed(self, items: list[Item[Any]], partly: PartlyFailed, budget: _Budget) -> None:
        """In a transaction a part cannot fail alone: those that failed go their way, and the others begin anew."""
        for position, error in partly.failures.items():
            self._walk.failed(items[position].delivery, error)
        others = [item for position, item in enumerate(items) if position not in partly.failures]
        if others:
            await self._handle(others, budget)

    async def _raised(self, items: list[Item[Any]], error: Exception, budget: _Budget) -> None:
        if len(items) == 1 or not self._spec.isolates(error) or budget.is_spent:
            for item in items:
                self._walk.failed(item.delivery, error)
            return
        middle = len(items) // 2
        await self._handle(items[:middle], budget)
        await self._handle(items[middle:], budget)

    def __repr__(self) -> str:
        gathered = sum(map(len, self._gathered.values()))
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
