"""An observer that records the outcome of every message, and on which a test waits."""

import asyncio
from datetime import timedelta

import pytest

from redrive import App
from redrive.errors import ConfigurationError
from redrive.recovery.breaker import BreakerState
from redrive.testing import ManualClock, Recorder
from redrive.worker.events import BreakerChanged, ConnectionChanged, DeliveryOutcome, DeliverySettled


def settled(outcome: DeliveryOutcome, attempt: int = 1, queue: str = "orders") -> DeliverySettled:
    delay = timedelta(seconds=15) if outcome is DeliveryOutcome.RETRIED else None
    return DeliverySettled(queue, outcome, attempt, 3, "because", delay=delay, error="OSError: down")


async def test_it_waits_until_as_many_were_settled_so() -> None:
    recorder = Recorder()
    waiting = asyncio.create_task(recorder.parked("orders", 2))
    for event in (
        settled(DeliveryOutcome.PARKED),
        settled(DeliveryOutcome.RETRIED),
        settled(DeliveryOutcome.PARKED, queue="other"),
    ):
        recorder.settled(event)
        await asyncio.sleep(0)
    assert not waiting.done()
    recorder.settled(settled(DeliveryOutcome.PARKED, 3))
    assert [event.attempt for event in await waiting] == [1, 3]
    assert len(await recorder.parked(count=3)) == 3


async def test_what_was_before_counts() -> None:
    recorder = Recorder()
    for _ in range(2):
        recorder.started("orders")
    recorder.done("orders", 0.1)
    recorder.settled(settled(DeliveryOutcome.DISCARDED))
    recorder.settled(settled(DeliveryOutcome.SNOOZED))
    await recorder.taken("orders", 2)
    await recorder.handled("orders")
    await recorder.handled()
    assert await recorder.seen(DeliveryOutcome.DONE) == []
    assert [event.queue for event in await recorder.discarded("orders")] == ["orders"]
    assert [event.queue for event in await recorder.seen("snoozed", queue="orders")] == ["orders"]
    assert repr(recorder) == "<Recorder done=1 discarded=1 snoozed=1>"


async def test_a_wait_in_vain_says_what_did_happen() -> None:
    app = App("shop", clock=ManualClock())
    recorder = Recorder(app)
    assert app.observers == [recorder]
    for _ in range(3):
        recorder.started("orders")
    recorder.done("orders", 0.1)
    recorder.settled(settled(DeliveryOutcome.RETRIED))
    recorder.breaker(BreakerChanged("bank", "orders", BreakerState.OPEN, 0.5))
    recorder.connection(ConnectionChanged("database", "unavailable", "no route to host", 0))
    app.clock.call_later(14.5, lambda: None)
    with pytest.raises(AssertionError) as failed:
        await recorder.parked("orders", within=0.01)
    lines = str(failed.value).splitlines()
    assert lines[:-1] == [
        "waited 0.01 s for 1 message of orders that was parked; what happened:",
        "  orders: 3 taken, 1 handled, 1 retried",
        "  orders: retried after attempt 1 of 3, again in 15s: because (OSError: down)",
        "  breaker bank of orders: open",
        "  database: unavailable (no route to host)",
    ]
    assert lines[-1].startswith("  clock: <ManualClock 20")
    assert lines[-1].endswith(" +0s timers=1 next=14s500ms>")


async def test_a_wait_in_vain_without_a_message_says_so() -> None:
    recorder = Recorder()
    for waiting, problem in (
        (recorder.handled(count=2, within=0.01), "2 messages that were handled"),
        (recorder.breaker_is("open", within=0.01), "the breaker to be open; it is closed"),
        (recorder.database_is("unavailable", within=0.01), "the database to be unavailable; it is open"),
        (recorder.until(lambda: False, 0.01), "a condition to be true"),
    ):
        with pytest.raises(AssertionError) as failed:
            await waiting
        assert str(failed.value) == f"waited 0.01 s for {problem}; what happened:\n  no message was taken"


async def test_states_are_the_latest_ones() -> None:
    recorder = Recorder()
    await recorder.breaker_is("closed")
    await recorder.database_is("open")
    waiting = asyncio.create_task(recorder.breaker_is("probing", "orders"))
    for queue, state in (("orders", "open"), ("other", "probing"), ("orders", "probing")):
        await asyncio.sleep(0)
        assert not waiting.done()
        recorder.breaker(BreakerChanged(queue, queue, BreakerState(state), 0.5))
    await waiting
    recorder.connection(ConnectionChanged("consuming", "connecting", "lost", 1))
    await recorder.database_is("open")


async def test_a_word_that_is_no_outcome_or_state_is_refused() -> None:
    recorder = Recorder()
    with pytest.raises(ConfigurationError, match=r"seen.*'buried'.*parked"):
        await recorder.seen("buried")
    with pytest.raises(ConfigurationError, match=r"breaker_is.*'half'.*probing"):
        await recorder.breaker_is("half")
    with pytest.raises(ConfigurationError, match=r"database_is.*'closed'.*unavailable"):
        await recorder.database_is("closed")
