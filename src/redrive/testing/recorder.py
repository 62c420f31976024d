"""What became of messages, for a test to wait for: an observer that remembers.

    watcher = Watcher()
    app.observers.append(watcher)
    async with app.worker():
        await app.publish("events", "order.placed", {"id": 7})
        [parked] = await watcher.seen(Outcome.PARKED)
        assert parked.reason == "exhausted"

A test that waits for a fact takes as long as the fact does; one that sleeps takes longer, or fails on a busy machine.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

from redrive.worker.events import BreakerChanged, DeliveryOutcome, DeliverySettled, Observer


class Watcher(Observer):
    """Remembers what happened, and lets a test wait for it: `<Watcher done=3 parked=1>`."""

    def __init__(self) -> None:
        self.events: list[DeliverySettled] = []
        self.breaker_states: list[str] = []
        self.batches: list[int] = []
        self.counts: Counter[DeliveryOutcome] = Counter()
        self._changed = asyncio.Event()

    def done(self, queue: str, seconds: float) -> None:  # noqa: ARG002
        self._count(DeliveryOutcome.DONE)

    def settled(self, event: DeliverySettled) -> None:
        self.events.append(event)
        self._count(event.outcome)

    def batch(self, queue: str, size: int, seconds: float) -> None:  # noqa: ARG002
        self.batches.append(size)

    def breaker(self, event: BreakerChanged) -> None:
        self.breaker_states.append(str(event.state))
        self._changed.set()

    def _count(self, outcome: DeliveryOutcome) -> None:
        self.counts[outcome] += 1
        self._changed.set()

    async def until(self, condition: Callable[[], bool], within: float = 20) -> None:
        """Wait until that is so; it is asked whenever something happened."""
        async with asyncio.timeout(within):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def seen(self, outcome: DeliveryOutcome, count: int = 1, within: float = 20) -> list[DeliverySettled]:
        """Wait until that many messages were settled like this; what was told of them. Of those that are simply done
        nothing is told: there it is the wait that counts.
        """
        await self.until(lambda: self.counts[outcome] >= count, within)
        return [event for event in self.events if event.outcome is outcome]

    def __repr__(self) -> str:
        told = "".join(f" {outcome}={count}" for outcome, count in self.counts.items())
        return f"<Watcher{told}>"
