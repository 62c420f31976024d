"""What the default prefetch should be: `python -m bench.prefetch`.

A consumer with `concurrency=1` on one private RabbitMQ, at each prefetch in turns, so that noise of the machine meets
all of them alike. Prints a table, writes `bench/results/prefetch.json`, asserts nothing.

| column | what |
|---|---|
| no-op | messages a second of a handler that does nothing |
| 1 ms | messages a second of a handler that waits for 1 ms |
| no-op, 10 | the same with `concurrency=10` |
| second worker | of 24 messages of 100 ms, those that a worker handles that starts when another is at its first |
| seconds | until all of these are handled; 1.2 if they were shared evenly |
| redelivered | messages that come once more, of 200, when the worker is killed at its first |

Rates are also given as shares of that at prefetch 50, in the same round; medians count.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.table import Table

from redrive import App
from redrive.client import Connection, Publish
from redrive.testing import RabbitMQ

PREFETCHES = (1, 2, 5, 10, 20, 50, 100)
BASE = 50
ROUNDS = 5
FAST, SHORT, SLOW, KILLED = 10_000, 1_000, 24, 200  # messages
RESULTS = Path(__file__).parent / "results" / "prefetch.json"

Handle = Callable[[int], Awaitable[None]]


def an_app(url: str, prefetch: int, handle: Handle, concurrency: int = 1) -> App:
    app = App("bench", broker=url)

    @app.consumer("work", retry=None, prefetch=prefetch, concurrency=concurrency)
    async def work(number: int) -> None:
        await handle(number)

    return app


async def fill(url: str, prefetch: int, messages: int) -> None:
    """Empty the queue, then put so many messages into it."""
    async with an_app(url, prefetch, _nothing), Connection(url) as connection:
        await connection.purge_queue("work")
        await connection.publish_many(Publish("", "work", b"%d" % number) for number in range(messages))


async def _nothing(_: int) -> None: ...


async def rate(url: str, prefetch: int, messages: int, pause: float, concurrency: int = 1) -> float:
    """Messages a second."""
    await fill(url, prefetch, messages)
    left, done, began = messages, asyncio.Event(), 0.0

    async def handle(_: int) -> None:
        nonlocal left, began
        began = began or time.perf_counter()
        if pause:
            await asyncio.sleep(pause)
        left -= 1
        if not left:
            done.set()

    async with an_app(url, prefetch, handle, concurrency).working():
        await done.wait()
    return messages / (time.perf_counter() - began)


async def share_of_a_second_worker(url: str, prefetch: int) -> tuple[int, float]:
    """How many messages it got, and seconds until all were handled."""
    await fill(url, prefetch, SLOW)
    counts, began, done = [0, 0], asyncio.Event(), asyncio.Event()

    def handler(worker: int) -> Handle:
        async def handle(_: int) -> None:
            began.set()
            await asyncio.sleep(0.1)
            counts[worker] += 1
            if sum(counts) == SLOW:
                done.set()

        return handle

    async with AsyncExitStack() as stack:
        await stack.enter_async_context(an_app(url, prefetch, handler(0)).working())
        await began.wait()
        start = time.perf_counter()
        await stack.enter_async_context(an_app(url, prefetch, handler(1)).working())
        await done.wait()
        took = time.perf_counter() - start
    return counts[1], took


async def redelivered_after_a_kill(url: str, prefetch: int) -> int:
    await fill(url, prefetch, KILLED)
    words = ["-m", "bench.prefetch", "child", url, str(prefetch)]
    child = await asyncio.create_subprocess_exec(sys.executable, *words, stdout=subprocess.PIPE)
    assert child.stdout is not None
    await child.stdout.readline()
    await asyncio.sleep(0.2)  # in which the broker sends what it may
    child.kill()
    await child.wait()
    again, seen, done = 0, 0, asyncio.Event()
    async with Connection(url) as connection:
        while (await connection.queue_info("work")).messages < KILLED:  # noqa: ASYNC110 - the broker is the one to ask
            await asyncio.sleep(0.01)
        async with await connection.consume("work", prefetch=1000) as consumer:
            async for delivery in consumer:
                again += delivery.redelivered
                seen += 1
                delivery.ack()
                if seen == KILLED:
                    done.set()
                    break
    return again


async def child(url: str, prefetch: int) -> None:
    async def handle(_: int) -> None:
        print("begun", flush=True)
        await asyncio.Event().wait()

    async with an_app(url, prefetch, handle).working():
        await asyncio.Event().wait()


async def measure(url: str, console: Console) -> list[dict[str, float]]:
    samples = []
    for number in range(ROUNDS):
        for prefetch in PREFETCHES if number % 2 else reversed(PREFETCHES):
            got, seconds = await share_of_a_second_worker(url, prefetch)
            samples.append(
                {
                    "round": number,
                    "prefetch": prefetch,
                    "no_op": await rate(url, prefetch, FAST, 0),
                    "no_op_10": await rate(url, prefetch, FAST, 0, 10),
                    "short": await rate(url, prefetch, SHORT, 0.001),
                    "second_worker": got,
                    "seconds": seconds,
                    "redelivered": await redelivered_after_a_kill(url, prefetch),
                }
            )
            console.print(samples[-1])
    return samples


def table(samples: list[dict[str, float]]) -> Table:
    shown = Table(
        "prefetch",
        "no-op/s",
        "share",
        "no-op, 10",
        "share",
        "1 ms/s",
        "share",
        "second worker",
        "seconds",
        "redelivered",
    )
    base = {one["round"]: one for one in samples if one["prefetch"] == BASE}
    for prefetch in PREFETCHES:
        mine = [one for one in samples if one["prefetch"] == prefetch]

        def middle(name: str, mine: list[dict[str, float]] = mine) -> float:
            return median(one[name] for one in mine)

        def share(name: str, mine: list[dict[str, float]] = mine) -> str:
            return f"{median(one[name] / base[one['round']][name] for one in mine):.0%}"

        shown.add_row(
            str(prefetch),
            f"{middle('no_op'):,.0f}",
            share("no_op"),
            f"{middle('no_op_10'):,.0f}",
            share("no_op_10"),
            f"{middle('short'):,.0f}",
            share("short"),
            f"{middle('second_worker'):.0f}",
            f"{middle('seconds'):.2f}",
            f"{middle('redelivered'):.0f}",
        )
    return shown


def main() -> None:
    console = Console(width=120)
    with TemporaryDirectory() as folder, RabbitMQ(Path(folder)) as node:
        samples = asyncio.run(measure(node.url, console))
        version = ".".join(map(str, node.version))
    RESULTS.write_text(json.dumps({"rabbitmq": version, "samples": samples}, indent=1) + "\n")
    console.print(table(samples))


if __name__ == "__main__":
    if sys.argv[1:2] == ["child"]:
        asyncio.run(child(sys.argv[2], int(sys.argv[3])))
    else:
        main()
