"""A lost broker is one line of the log, and one more when it is back, whatever was in progress."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from redrive import App, Retry
from redrive.client import Connection, LinkState
from redrive.integrations.logs import LogObserver
from redrive.worker.events import DeliveryOutcome
from tests.support.proxy import FaultProxy
from working import working

ONCE = Retry(attempts=2, delay="10ms")


@pytest.fixture
async def network(amqp_url: str) -> AsyncIterator[FaultProxy]:
    async with FaultProxy(amqp_url) as network:
        yield network


@asynccontextmanager
async def outage(network: FaultProxy, caplog: pytest.LogCaptureFixture) -> AsyncIterator[None]:
    caplog.set_level(logging.INFO, logger="redrive")
    caplog.clear()
    network.refuse()
    network.cut()
    yield
    await network.accept()


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was logged of anything but the handlers' own failures."""
    return [text for record in caplog.records if "OSError: handler" not in (text := record.getMessage())]


@pytest.mark.parametrize("observed", [True, False])
async def test_a_lost_broker_is_one_line_and_so_is_one_that_is_back(
    network: FaultProxy, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, observed: bool
) -> None:
    """Three consumers, each with messages in hand whose retries cannot be published in time."""
    app = App("shop", broker=network.url)
    if observed:
        app.observers.append(LogObserver("shop"))
    begun, go_on, back = asyncio.Semaphore(0), asyncio.Event(), asyncio.Event()

    async def handle(number: int) -> None:
        begun.release()
        await go_on.wait()
        if not back.is_set():
            raise OSError(f"handler {number}")

    for queue in ("orders", "mails", "bills"):
        app.consumer(queue, concurrency=5, retry=ONCE)(handle)
    async with working(app) as (running, watcher):
        monkeypatch.setattr(running.settling._require_publisher(), "_patience", 0.1)
        for number in range(10):
            for queue in ("orders", "mails", "bills"):
                await app.publish("", queue, number)
        for _ in range(15):
            await begun.acquire()
        async with outage(network, caplog):
            go_on.set()
            await watcher.seen(DeliveryOutcome.RELEASED, 15)
        back.set()
        await watcher.seen(DeliveryOutcome.DONE, 30)
        found = lines(caplog)
    first, *others = found
    assert ("connection to the broker is reconnecting" in first) if observed else (" lost: " in first)
    assert len(others) == 1
    assert " again after " in others[0]


async def test_a_connection_of_its_own_says_how_long_it_was_lost(
    network: FaultProxy, caplog: pytest.LogCaptureFixture
) -> None:
    async with Connection(network.url) as connection:
        await connection.declare_queue("orders", durable=False)
        async with await connection.consume("orders") as consumer:
            async with outage(network, caplog):
                await connection.until(LinkState.RECONNECTING)
            await connection.publish("", "orders", b"1")
            (await anext(consumer)).ack()
            found = lines(caplog)
        await connection.delete_queue("orders")
    assert [line.partition("amqp://")[0] for line in found] == ["connection to ", "connected to "]
    assert "lost: " in found[0]
    assert "again after " in found[1]


async def test_a_consumer_that_the_broker_cancels_is_a_line_of_its_own(
    amqp_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The connection is there, so nothing else would say it."""
    async with Connection(amqp_url) as connection, Connection(amqp_url) as another:
        await connection.declare_queue("orders")
        async with await connection.consume("orders"):
            caplog.set_level(logging.INFO, logger="redrive")
            await another.delete_queue("orders")
            async with asyncio.timeout(10):
                while len(caplog.records) < 2:  # noqa: ASYNC110 - the log is the one to ask
                    await asyncio.sleep(0.01)
        await connection.delete_queue("orders")
    assert [record.getMessage().split(":")[0] for record in caplog.records] == [
        "consumer of orders interrupted",
        "consumer of orders consumes again",
    ]
