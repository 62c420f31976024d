"""What a retry costs the client, beside a success: `python -m bench.retries [--profile]`.

One worker handles as many messages each way, by turns, on the embedded broker (a process of its own) and on RabbitMQ:

    done       the handler returns
    retried    the handler fails once, the message waits on its rung and comes back, and then the handler returns
    by hand    the same way without a worker: published to the rung as it is, confirmed, acked, delivered again, acked

CPU seconds of the client's process, per message. A retried message is delivered twice, published once and succeeds
once, and all of that is in its figure, the handler's own `raise` included; *by hand* is what remains of it when nobody
raises anything, decides anything, counts anything or tells a story. Nobody observes any of them: no logs, no metrics.
The figures of one round are made one after the other, so look at the ratios where a machine is busy. Prints a table,
writes `bench/results/retries.json`, asserts nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import gc
import json
import pstats
import statistics
import sys
import tempfile
import time
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from redrive import App, Retry
from redrive.client import Connection, Delivery, Properties, Publish
from redrive.testing import RabbitMQ
from redrive.testing.broker_process import EmbeddedBroker

MESSAGES = 10_000
ROUNDS = 5
GOAL = 3.0
RESULTS = Path(__file__).parent / "results" / "retries.json"

BODY = b'{"id":%d,"customer":"c-17","lines":[{"sku":"A-1","count":2},{"sku":"B-2","count":1}]}'
PROPERTIES = Properties(content_type="application/json", message_id="0190f2c4", delivery_mode=2).encode()


class Line(msgspec.Struct):
    sku: str
    count: int


class Order(msgspec.Struct):
    id: int
    customer: str
    lines: list[Line]


class Shop:
    """An application whose messages are done at once, or fail once before they are."""

    def __init__(self, url: str, *, fails: bool) -> None:
        self._left = MESSAGES
        self._done = asyncio.Event()
        self._to_fail = set(range(MESSAGES)) if fails else set()
        self.app = App("bench", broker=url)
        self.app.consumer("orders", retry=Retry(attempts=3, delay="100ms"), concurrency=10, prefetch=500)(self.handle)

    async def handle(self, order: Order) -> None:
        if order.id in self._to_fail:
            self._to_fail.discard(order.id)
            raise ConnectionError(f"the warehouse did not answer for {order.customer}")
        self._left -= 1
        if not self._left:
            self._done.set()

    async def cpu_seconds(self, profile: cProfile.Profile | None = None) -> float:
        """What it takes the worker to handle all messages, which are there when it starts."""
        async with self.app.connect() as running:
            await fill(running.publishing)
            worker = running.worker(self.app.select_consumers(()))
            gc.collect()
            if profile is not None:
                profile.enable()
            began = time.process_time()
            await worker.start()
            await self._done.wait()
            took = time.process_time() - began
            if profile is not None:
                profile.disable()
            await worker.stop()
            return took


async def by_hand(url: str) -> float:
    """The least that a republished retry can cost: what the client alone takes."""
    left, done = MESSAGES, asyncio.Event()
    async with Connection(url) as consuming, Connection(url) as settling:

        async def hand_over(delivery: Delivery) -> None:
            await settling.publish("retry.orders", "retry", delivery.body, delivery.raw_properties)
            delivery.ack()

        async def handle(delivery: Delivery) -> None:
            nonlocal left
            if not delivery.exchange and b"x-death" not in delivery.raw_properties:
                task = asyncio.create_task(hand_over(delivery))
                under_way.add(task)
                task.add_done_callback(under_way.discard)
                return
            delivery.ack()
            left -= 1
            if not left:
                done.set()

        under_way: set[asyncio.Task[None]] = set()
        await fill(consuming)
        gc.collect()
        began = time.process_time()
        async with await consuming.consume("orders", handle, prefetch=500, concurrency=10):
            await done.wait()
            return time.process_time() - began


async def fill(connection: Connection) -> None:
    await connection.publish_many(Publish("", "orders", BODY % number, PROPERTIES) for number in range(MESSAGES))


def measure(url: str) -> dict[str, float]:
    """Medians in microseconds of CPU per message, and of the ratios of each round."""
    done, retried, bare = [], [], []
    for _ in range(ROUNDS):
        done.append(asyncio.run(Shop(url, fails=False).cpu_seconds()) / MESSAGES * 1e6)
        retried.append(asyncio.run(Shop(url, fails=True).cpu_seconds()) / MESSAGES * 1e6)
        bare.append(asyncio.run(by_hand(url)) / MESSAGES * 1e6)
    return {
        "done, CPU µs": statistics.median(done),
        "retried, CPU µs": statistics.median(retried),
        "by hand, CPU µs": statistics.median(bare),
        "retried ÷ done": statistics.median(ours / theirs for ours, theirs in zip(retried, done, strict=True)),
        "by hand ÷ done": statistics.median(ours / theirs for ours, theirs in zip(bare, done, strict=True)),
    }


def show_profile(url: str) -> None:
    profile = cProfile.Profile()
    asyncio.run(Shop(url, fails=True).cpu_seconds(profile))
    pstats.Stats(profile).sort_stats("tottime").print_stats(45)


def show(found: dict[str, dict[str, float]]) -> None:
    table = Table("broker", *next(iter(found.values())), f"goal ≤ {GOAL:g}")
    for broker, figures in found.items():
        verdict = "reached" if figures["retried ÷ done"] <= GOAL else "missed"
        table.add_row(broker, *(f"{value:,.1f}" for value in figures.values()), verdict)
    Console().print(table)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.retries", description=__doc__)
    parser.add_argument("--profile", action="store_true", help="show where the time of a retry goes instead")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        embedded = EmbeddedBroker(Path(directory) / "embedded", data=Path(directory) / "embedded" / "data")
        with embedded:
            if chosen.profile:
                show_profile(embedded.url)
                return
            found = {"embedded": measure(embedded.url)}
        with RabbitMQ(Path(directory) / "rabbitmq") as node:
            found[f"RabbitMQ {'.'.join(map(str, node.version))}"] = measure(node.url)
    show(found)
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps({"python": sys.version.split()[0], "measured": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
