"""An operation while it runs: its state and counts, kept in memory and written down; and what others want of it.

Whoever does the work counts and adds items here; `save` makes them last. Once a second the operation shows that
it is alive, and the wishes are read that somebody wrote beside it. A wish does not interrupt anything: it sets `wish`,
and the work asks when it is at a place where it can stop.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from operator import attrgetter

from redrive.errors import RedriveError
from redrive.operations.operation import ControlRequest, Operation, OperationItem, OperationState
from redrive.operations.ports import OperationStore
from redrive.recovery.rate_limiter import RateLimit
from redrive.worker.clock import Clock

log = logging.getLogger("redrive.dlq")

Changed = Callable[["OperationControl"], None]

_BEAT = 1.0  # seconds
_outcome = attrgetter("outcome")


@asynccontextmanager
async def heartbeat_until(
    beat: Callable[[], Awaitable[None]], over: asyncio.Event, every: Callable[[], float]
) -> AsyncIterator[None]:
    """Call `beat` again and again until `over` is set, or the block ends."""

    async def run() -> None:
        while not over.is_set():
            try:
                async with asyncio.timeout(every()):
                    await over.wait()
            except TimeoutError:
                await beat()

    task = asyncio.create_task(run(), name="redrive-heartbeat")
    try:
        yield
    finally:
        over.set()  # not cancelled: what it is writing must not come after what is written next
        await task


class OperationControl:
    def __init__(self, operation: Operation, memory: OperationStore, clock: Clock, changed: Changed) -> None:
        self.operation = operation
        self.is_requested = asyncio.Event()  # somebody wants something else
        self.has_begun = False  # its queue is locked and its beginning recorded
        self.is_idle = False  # it is paused, and has nothing in hand
        self._memory = memory
        self._clock = clock
        self._changed = changed
        self._rate = RateLimit(operation.order.rate) if operation.order.rate is not None else None
        self._items: list[OperationItem] = []
        self._writing = asyncio.Lock()
        self._over = asyncio.Event()

    # What became of messages --------------------------------------------------------------------------

    def add(self, items: Sequence[OperationItem]) -> None:
        counts = self.operation.counts
        more = {outcome: getattr(counts, outcome) + times for outcome, times in Counter(map(_outcome, items)).items()}
        self.operation = replace(self.operation, counts=replace(counts, **more))
        self._items += items

    async def change_to(self, operation: Operation) -> None:
        self.operation = operation
        await self.save()

    async def save(self) -> None:
        async with self._writing:  # one at a time: an older state must not be written over a newer one
            items, self._items = self._items, []
            try:
                await asyncio.to_thread(self._memory.save, replace(self.operation, beat_at=self._clock.now()), items)
            except RedriveError:  # somebody else's operation by now; the items are there
                raise
            except Exception:  # the database is away: whoever writes next takes them along
                self._items[:0] = items
                raise
        self._changed(self)

    # Alive --------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def heartbeat(self) -> AsyncIterator[None]:
        async with heartbeat_until(self._beat, self._over, lambda: _BEAT):
            yield

    async def _beat(self) -> None:
        try:
            await self.poll()
            await self.save()
        except Exception as error:  # the next beat may succeed; the work itself tells when it cannot go on
            log.warning("operation %s: its memory did not answer: %s", self.operation.id, error)

    # Wishes -------------------------------------------------------------------------------------------

    async def poll(self) -> None:
        is_requested = await asyncio.to_thread(self._memory.control_request, self.operation.id)
        if is_requested != ControlRequest():
            self._apply(is_requested)
            await asyncio.to_thread(self._memory.clear_request, self.operation.id, is_requested)

    def _apply(self, wish: ControlRequest) -> None:
        if wish.rate is not None:
            self.change_rate(wish.rate)
        match wish.state:
            case OperationState.CANCELLING:
                self.cancel()
            case OperationState.PAUSED:
                self.pause()
            case OperationState.RUNNING:
                self.resume()

    def cancel(self) -> None:
        """Finish what is under way, give back the rest, and end."""
        if not self.operation.state.is_over:
            self._set_state(OperationState.CANCELLING)

    def pause(self) -> None:
        """Give everything back, keep the lock, and wait."""
        if self.operation.state is OperationState.RUNNING:
            self._set_state(OperationState.PAUSED)

    def resume(self) -> None:
        if self.operation.state is OperationState.PAUSED:
            self._set_state(OperationState.RUNNING)

    def _set_state(self, state: OperationState) -> None:
        self.operation = replace(self.operation, state=state)
        self.is_requested.set()

    def change_rate(self, rate: float) -> None:
        if self._rate is None:
            self._rate = RateLimit(rate)
        else:
            self._rate.change(self._clock.monotonic(), rate)
        self.operation = replace(self.operation, order=replace(self.operation.order, rate=rate))

    @property
    def is_cancelled(self) -> bool:
        return self.operation.state is OperationState.CANCELLING

    @property
    def has_rate(self) -> bool:
        return self._rate is not None

    async def wait_while_paused(self) -> None:
        while self.operation.state is OperationState.PAUSED:
            self.is_requested.clear()
            await self.save()
            self.is_idle = True
            await self.is_requested.wait()
            self.is_idle = False
        if not self.is_cancelled:
            self.is_requested.clear()

    async def throttle(self) -> None:
        """Wait for the rate, or until somebody wants something else."""
        while self._rate is not None and not self.is_requested.is_set():
            wait = self._rate.take(self._clock.monotonic())
            if not wait:
                return
            await self.idle(wait)

    async def idle(self, seconds: float) -> None:
        """Wait, or until somebody wants something else."""
        try:
            async with asyncio.timeout(seconds):
                await self.is_requested.wait()
        except TimeoutError:
            pass

    def __repr__(self) -> str:
        return f"<Steering {self.operation.id} {self.operation.state}>"
