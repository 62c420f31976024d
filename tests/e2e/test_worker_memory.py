"""However many messages are retried and parked, the worker does not grow: they are the broker's to keep."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psutil
import pytest

from redrive.client import Connection, Publish
from redrive.testing.broker_process import EmbeddedBroker
from redrive.testing.processes import ServerProcess

PROGRAM = """
from redrive import App, Retry
app = App("shop")

@app.consumer("orders", retry=Retry(attempts=2, delay="50ms"), concurrency=10)
async def handle(order: dict) -> None:
    raise OSError(f"order {order['id']} cannot be shipped")
"""
MOST_GROWTH = 20_000_000  # bytes


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(tmp_path / "broker", data=tmp_path / "broker" / "data") as broker:
        yield broker


@pytest.fixture
def worker(broker: EmbeddedBroker, tmp_path: Path) -> Iterator[psutil.Process]:
    (tmp_path / "shop.py").write_text(PROGRAM)
    log = tmp_path / "worker.log"
    process = ServerProcess(
        [sys.executable, "-m", "redrive", "worker", "--log-level", "error", "shop:app"],
        environment={**os.environ, "REDRIVE_BROKER": broker.url, "PYTHONUNBUFFERED": "1"},
        log=log,
    )
    process.wait_until(lambda: "is working on" in log.read_text(), timeout=60)
    yield psutil.Process(process.pid)
    process.kill()


@pytest.fixture
async def connection(broker: EmbeddedBroker) -> AsyncIterator[Connection]:
    async with Connection(broker.url) as connection:
        yield connection


async def parked(connection: Connection, count: int) -> None:
    while (await connection.queue_info("orders.dlq")).messages < count:  # noqa: ASYNC110 - the broker is the one to ask
        await asyncio.sleep(0.02)


async def growth(worker: psutil.Process, connection: Connection, messages: int) -> int:
    """By how many bytes the worker is larger when all messages are parked than after the first tenth of them."""
    publishing = asyncio.create_task(
        connection.publish_many(Publish("", "orders", b'{"id":%d}' % number) for number in range(messages))
    )
    await parked(connection, messages // 10)
    before = worker.memory_info().rss
    await publishing
    await parked(connection, messages)
    return int(worker.memory_info().rss - before)


async def test_twenty_thousand_failures_do_not_grow_a_worker(worker: psutil.Process, connection: Connection) -> None:
    assert await growth(worker, connection, 20_000) < MOST_GROWTH


@pytest.mark.slow
async def test_a_million_failures_do_not_grow_a_worker(
    worker: psutil.Process, connection: Connection, capsys: pytest.CaptureFixture[str]
) -> None:
    grown = await growth(worker, connection, 1_000_000)

    with capsys.disabled():
        size = worker.memory_info().rss / 1e6
        print(
            f"\n1000000 messages retried and parked: the worker has {size:.0f} MB, "
            f"{grown / 1e6:+.1f} MB since the first tenth"
        )
    assert grown < MOST_GROWTH
