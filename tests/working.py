"""Run an application's consumers in a test, and wait for what they tell."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta

from redrive import App
from redrive.app import Running
from redrive.client import Connection
from redrive.protocol.content import Delivery
from redrive.runtime.observing import BreakerChanged, Observer, Outcome, Settled


class Watcher(Observer):
    """Remembers what happened, and lets a test wait for it."""

    def __init__(self) -> None:
        self.events: list[Settled] = []
        self.breaker_states: list[str] = []
        self.batches: list[int] = []
        self.counts: Counter[Outcome] = Counter()
        self._changed = asyncio.Event()

    def done(self, queue: str, seconds: float) -> None:  # noqa: ARG002
        self._count(Outcome.DONE)

    def settled(self, event: Settled) -> None:
        self.events.append(event)
        self._count(event.outcome)

    def batch(self, queue: str, size: int, seconds: float) -> None:  # noqa: ARG002
        self.batches.append(size)

    def breaker(self, event: BreakerChanged) -> None:
        self.breaker_states.append(str(event.state))
        self._changed.set()

    def _count(self, outcome: Outcome) -> None:
        self.counts[outcome] += 1
        self._changed.set()

    async def until(self, condition: Callable[[], bool], within: float = 20) -> None:
        async with asyncio.timeout(within):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def seen(self, outcome: Outcome, count: int = 1) -> list[Settled]:
        """Wait until that many messages were settled like this; what was told of them."""
        await self.until(lambda: self.counts[outcome] >= count)
        return [event for event in self.events if event.outcome is outcome]


@asynccontextmanager
async def working(app: App, *, within: float = 10) -> AsyncIterator[tuple[Running, Watcher]]:
    """The consumers of an application at work, and drained at the end."""
    watcher = Watcher()
    app.observers.append(watcher)
    async with app.running() as running:
        worker = running.worker(app.chosen(()))
        app._running = running
        await worker.start()
        try:
            yield running, watcher
        finally:
            await worker.stop(timedelta(seconds=within))
            app._running = None


async def take(connection: Connection, queue: str, within: float = 10) -> Delivery:
    """Wait for one message of a queue, and acknowledge it."""
    async with asyncio.timeout(within), await connection.consume(queue, prefetch=1) as consumer:
        async for delivery in consumer:
            delivery.properties  # noqa: B018 - decoded while it is here
            delivery.ack()
            return delivery
    raise AssertionError


async def depth(connection: Connection, queue: str) -> int:
    return (await connection.queue_info(queue)).messages
