"""An observer that records the outcome of every message."""

import asyncio

import pytest

from redrive.testing.recorder import Watcher
from redrive.worker.events import DeliveryOutcome, DeliverySettled


def settled(outcome: DeliveryOutcome, attempt: int = 1) -> DeliverySettled:
    return DeliverySettled("orders", outcome, attempt, 3, "because")


async def test_it_waits_until_as_many_were_settled_so() -> None:
    watcher = Watcher()
    waiting = asyncio.create_task(watcher.seen(DeliveryOutcome.PARKED, 2))
    for event in (settled(DeliveryOutcome.PARKED), settled(DeliveryOutcome.RETRIED)):
        watcher.settled(event)
        await asyncio.sleep(0)
    assert not waiting.done()
    watcher.settled(settled(DeliveryOutcome.PARKED, 3))
    assert [event.attempt for event in await waiting] == [1, 3]


async def test_what_was_before_counts_and_what_never_comes_is_an_error() -> None:
    watcher = Watcher()
    watcher.done("orders", 0.1)
    assert await watcher.seen(DeliveryOutcome.DONE) == []
    with pytest.raises(TimeoutError):
        await watcher.seen(DeliveryOutcome.PARKED, within=0.01)
    assert repr(watcher) == "<Watcher done=1>"
