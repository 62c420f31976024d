"""The embedded broker beside RabbitMQ, in one run: `python -m bench.embedded`.

One Redrive client publishes persistent messages with confirms and consumes them again, on each broker by turns; then
what people ask of a broker that comes with a library: how soon it is there, how much it takes, and whether it minds
many messages, queues and connections. Prints a table, writes `bench/results/embedded.json`, asserts nothing.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

from redrive.broker.broker import Broker
from redrive.broker.server import BrokerServer
from redrive.broker.storage.sqlite import SQLiteJournal
from redrive.client import Connection, Delivery, Publish
from redrive.testing import RabbitMQ
from redrive.testing.broker_process import EmbeddedBroker

MESSAGES = 40_000
ROUNDS = 5
BODY = b"x" * 256
RESULTS = Path(__file__).parent / "results" / "embedded.json"


async def publish_and_consume(url: str, backlog: int = 0) -> tuple[float, float]:
    """Messages per second in and out. `backlog` messages lie in another queue meanwhile."""
    async with Connection(url) as connection:
        await connection.declare_queue("work")
        if backlog:
            await connection.declare_queue("backlog")
            await connection.publish_many(Publish("", "backlog", BODY) for _ in range(backlog))
        began = time.perf_counter()
        await connection.publish_many(Publish("", "work", BODY) for _ in range(MESSAGES))
        published = time.perf_counter() - began
        consumed = await consume_all(connection)
        for queue in ("work", "backlog"):
            await connection.delete_queue(queue)
    return MESSAGES / published, MESSAGES / consumed


async def consume_all(connection: Connection) -> float:
    left, done = MESSAGES, asyncio.Event()

    async def handle(delivery: Delivery) -> None:
        nonlocal left
        delivery.ack()
        left -= 1
        if not left:
            done.set()

    began = time.perf_counter()
    async with await connection.consume("work", handle, prefetch=1000):
        await done.wait()
        return time.perf_counter() - began


async def start_in_process(directory: Path) -> float:
    began = time.perf_counter()
    async with BrokerServer(Broker(journal=SQLiteJournal(directory))) as server, Connection(server.url):
        return time.perf_counter() - began


async def crowd(url: str, queues: int, connections: int) -> float:
    """Make many idle queues and connections, and then see how long one round trip takes among them."""
    crowd = [await Connection(url).open() for _ in range(connections)]
    try:
        async with Connection(url) as connection:
            for number in range(queues):
                await connection.declare_queue(f"idle-{number}", durable=False)
            began = time.perf_counter()
            await connection.publish("", "idle-0", BODY)
            assert await connection.get("idle-0") is not None
            return time.perf_counter() - began
    finally:
        for idle in crowd:
            await idle.close()


def seconds(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def measure(directory: Path) -> dict[str, float]:
    found: dict[str, float] = {}
    found["start in process, s"] = asyncio.run(start_in_process(directory / "in-process"))
    embedded = EmbeddedBroker(directory / "embedded", data=directory / "embedded" / "data")
    rabbitmq = RabbitMQ(directory / "rabbitmq")
    found["start command, s"] = seconds(embedded.start)
    found["start RabbitMQ, s"] = seconds(rabbitmq.start)
    found["resident memory empty, MB"] = psutil.Process(embedded.pid).memory_info().rss / 1e6
    try:
        rates: dict[str, list[tuple[float, float]]] = {"embedded": [], "RabbitMQ": []}
        for _ in range(ROUNDS):
            for name, broker in (("embedded", embedded), ("RabbitMQ", rabbitmq)):
                rates[name].append(asyncio.run(publish_and_consume(broker.url)))
        for name, samples in rates.items():
            found[f"publish {name}, /s"] = statistics.median(publish for publish, _ in samples)
            found[f"consume {name}, /s"] = statistics.median(consume for _, consume in samples)
        for what in ("publish", "consume"):
            found[f"{what} embedded ÷ RabbitMQ"] = statistics.median(
                ours[what == "consume"] / theirs[what == "consume"]
                for ours, theirs in zip(rates["embedded"], rates["RabbitMQ"], strict=True)
            )
        publish, consume = asyncio.run(publish_and_consume(embedded.url, backlog=100_000))
        found["publish with 100,000 queued, /s"], found["consume with 100,000 queued, /s"] = publish, consume
        found["round trip among 10,000 queues and 1,000 connections, ms"] = (
            asyncio.run(crowd(embedded.url, 10_000, 1_000)) * 1000
        )
    finally:
        embedded.kill()
        rabbitmq.discard()
    return found


def main() -> None:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        found = measure(Path(directory))
    table = Table("what", "measured")
    for name, value in found.items():
        table.add_row(name, f"{value:,.2f}" if value < 100 else f"{value:,.0f}")
    Console().print(table)
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps({"python": sys.version.split()[0], "measured": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
