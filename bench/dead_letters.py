"""What it costs to move and to group dead letters: `python -m bench.dead_letters`, on one private RabbitMQ.

re-drive    a queue of parked messages is moved back to work, as `redrive dlq redrive` does it, each written down in
            SQLite; beside it RabbitMQ's own shovel, as its management page moves messages: inside of the broker, not
            through a socket, confirmed, until what was there is moved
grouping    the same queue is taken, read, grouped by error and given back; beside it the same without reading, and a
            consumer that acknowledges
memory      of the process while many messages are re-driven

Rounds are interleaved and medians count. Goals are reported and never asserted.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import click
import msgspec
import psutil
from rich.console import Console
from rich.table import Table

from bench import machine
from bench.broker import Broker
from bench.messages import document, encode
from bench.samples import Found
from redrive.client import Connection, Properties, Publish
from redrive.database.engine import Database
from redrive.database.schema import Schema
from redrive.operations.actions import RedriveAction
from redrive.operations.browse import GroupBy, group
from redrive.operations.control import OperationControl
from redrive.operations.dlq_adapter import DlqAdapter
from redrive.operations.operation import Operation, OperationKind, OperationRequest, OperationState
from redrive.operations.repository import OperationRepository
from redrive.operations.runner import OperationRunner
from redrive.worker.clock import SystemClock

DLQ, SOURCE = "orders.dlq", "orders"
PREFETCH = 1000  # the shovel's own
BODY = encode(document(1024))
SMALL = encode({"order": 4711})
MEGABYTE = 1024 * 1024
GROWTH = 16  # megabytes that the process may gain from a tenth of the way to its end

Watching = Callable[[OperationControl], None]


class Bench:
    def __init__(self, broker: Broker, database: Database, messages: int) -> None:
        self.messages = messages
        self._broker = broker
        self._database = database
        self._operations = 0
        Schema().upgrade(database)

    # The queue ----------------------------------------------------------------------------------------

    async def fill(self, count: int, body: bytes = BODY) -> None:
        """The dead-letter queue has so many messages, nobody has work, and the broker has come to rest."""
        async with Connection(self._broker.url) as connection:
            await connection.declare_queue(SOURCE)
            await connection.declare_queue(DLQ)
            await connection.purge_queue(SOURCE)
            if (await connection.queue_info(DLQ)).messages != count:
                await connection.purge_queue(DLQ)
                await connection.publish_many(parked(number, body) for number in range(count))
        await asyncio.to_thread(self._broker.wait_until_idle)

    @asynccontextmanager
    async def _operating(self) -> AsyncIterator[DlqAdapter]:
        async with Connection(self._broker.url) as taking, Connection(self._broker.url) as publishing:
            yield DlqAdapter(taking, publishing)

    # Moving -------------------------------------------------------------------------------------------

    async def shovelled(self) -> float:
        """Messages a second, from the order until the last one is at its destination and gone from here."""
        place = "/parameters/shovel/%2F/bench"
        value = {
            "src-protocol": "amqp091",
            "src-uri": "amqp:///%2F",
            "src-queue": DLQ,
            "src-delete-after": "queue-length",
            "src-prefetch-count": PREFETCH,
            "dest-protocol": "amqp091",
            "dest-uri": "amqp:///%2F",
            "dest-queue": SOURCE,
            "ack-mode": "on-confirm",
        }
        async with Connection(self._broker.url) as connection:
            began = time.perf_counter()
            await asyncio.to_thread(self._broker.api, place, "PUT", {"value": value})
            while (await connection.queue_info(SOURCE)).messages < self.messages:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            while (await connection.queue_info(DLQ)).messages:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            return self.messages / (time.perf_counter() - began)

    async def redriven(self) -> float:
        began = time.perf_counter()
        await self._redrive(self.messages, lambda _: None)
        return self.messages / (time.perf_counter() - began)

    async def _redrive(self, count: int, changed: Watching) -> None:
        self._operations += 1
        clock, store = SystemClock(), OperationRepository(self._database)
        order = OperationRequest(OperationKind.REDRIVE, DLQ, by="bench", reason="INC-42")
        operation = Operation(f"op_{self._operations}", order, clock.now(), owner="bench")
        async with self._operating() as broker:
            await asyncio.to_thread(store.add, operation)
            mover = OperationRunner(
                operation, broker, store, RedriveAction(broker, clock), clock=clock, changed=changed
            )
            await broker.lock(DLQ)
            done = await mover.run()
        if done.state is not OperationState.SUCCEEDED or done.counts.moved != count:
            raise RuntimeError(f"not all was moved: {done}")

    # Looking ------------------------------------------------------------------------------------------

    async def consumed(self) -> float:
        """By a consumer that acknowledges each message and does nothing else."""
        async with Connection(self._broker.url) as connection:
            began, left = time.perf_counter(), self.messages
            async with await connection.consume(DLQ, prefetch=PREFETCH) as consumer:
                async for delivery in consumer:
                    delivery.ack()
                    left -= 1
                    if not left:
                        break
            return self.messages / (time.perf_counter() - began)

    async def held(self) -> float:
        """Taken and given back, without a look at them."""
        async with self._operating() as broker:
            began, left = time.perf_counter(), self.messages
            hold = await broker.browse(DLQ, left)
            while left:
                left -= len(await hold.next(10.0))
            await hold.release()
            return self.messages / (time.perf_counter() - began)

    async def grouped(self) -> float:
        async with self._operating() as broker:
            began = time.perf_counter()
            found = await group(broker, DLQ, GroupBy.FINGERPRINT)
            took = time.perf_counter() - began
        if found.matched != self.messages or len(found.groups) != 2:
            raise RuntimeError(f"not all was grouped: {found.matched} in {len(found.groups)} groups")
        return self.messages / took

    # Memory -------------------------------------------------------------------------------------------

    async def memory(self, count: int) -> tuple[float, float]:
        """Megabytes of this process when a tenth was moved, and the most it had after that."""
        await self.fill(count, SMALL)
        process, sizes = psutil.Process(), [0.0]
        early = 0.0

        def watch(steering: OperationControl) -> None:
            nonlocal early
            sizes[0] = max(sizes[0], process.memory_info().rss / MEGABYTE)
            if steering.operation.counts.moved <= count // 10:
                early = sizes[0]

        await self._redrive(count, watch)
        return early, sizes[0]


def parked(number: int, body: bytes) -> Publish:
    """As a worker parks one."""
    story = {
        "x-redrive-queue": SOURCE,
        "x-redrive-exchange": "events",
        "x-redrive-routing-key": "order.new",
        "x-redrive-reason": "exhausted",
        "x-redrive-error": "TimeoutError",
        "x-redrive-message": f"no answer to {number}",
        "x-redrive-fingerprint": "3fa9c0ffee11" if number % 2 else "77d1beef0011",
        "x-redrive-attempts": 3,
        "x-redrive-parked-at": f"2024-05-17T12:{number // 60 % 60:02}:{number % 60:02}.{number % 1000:03}Z",
        "x-redrive-first-failed-at": "2024-05-17T11:58:00.000Z",
        "x-redrive-app": "shop",
        "x-redrive-host": "worker-1",
    }
    properties = Properties(
        content_type="application/json",
        delivery_mode=2,
        message_id=f"0190f2c4-{number:012}",
        correlation_id=f"c-{number}",
        type="OrderPlaced",
        timestamp=datetime(2024, 5, 17, 11, 57, tzinfo=UTC),
        headers={"tenant": "acme", **story},
    )
    return Publish("", DLQ, body, properties)


# The run ------------------------------------------------------------------------------------------------


async def measure(bench: Bench, rounds: int, memory: int, say: Callable[[str], None]) -> Found:
    found = Found()
    contenders: dict[str, Callable[[], Awaitable[float]]] = {
        "shovel, messages/s": bench.shovelled,
        "re-drive, messages/s": bench.redriven,
        "consume and ack, messages/s": bench.consumed,
        "take and give back, messages/s": bench.held,
        "group, messages/s": bench.grouped,
    }
    for number in range(rounds):
        say(f"round {number + 1} of {rounds}")
        for name, contender in contenders.items():
            await bench.fill(bench.messages)
            found.add(name, await contender())
    if memory:
        say(f"memory, while {memory:,} messages are re-driven")
        early, most = await bench.memory(memory)
        found.add(f"memory after a tenth of {memory:,}, MB", early)
        found.add(f"memory at most, of {memory:,}, MB", most)
    return found


def summed_up(found: Found, memory: int) -> dict[str, float]:
    told = {name: found.median(name) for name in found.samples}
    told |= {
        "re-drive ÷ shovel": found.ratio("re-drive, messages/s", "shovel, messages/s"),
        "group ÷ take and give back": found.ratio("group, messages/s", "take and give back, messages/s"),
        "group ÷ consume and ack": found.ratio("group, messages/s", "consume and ack, messages/s"),
    }
    if memory:
        grown = told[f"memory at most, of {memory:,}, MB"] - told[f"memory after a tenth of {memory:,}, MB"]
        told["memory gained on the way, MB"] = grown
    return told


def goals(told: dict[str, float]) -> Iterable[tuple[str, bool, float]]:
    """What Redrive set out to reach, whether it did, and the figure."""
    moving = told["re-drive ÷ shovel"]
    yield "re-drive ≥ 0.7 × shovel", moving >= 0.7, moving
    for than in ("take and give back", "consume and ack"):
        grouping = told[f"group ÷ {than}"]
        yield f"group ≥ 0.7 × {than}", grouping >= 0.7, grouping
    if (grown := told.get("memory gained on the way, MB")) is not None:
        yield f"memory stays (≤ {GROWTH} MB more at the end than after a tenth)", grown <= GROWTH, grown


def show(told: dict[str, float]) -> None:
    table = Table("what", "measured")
    for name, value in told.items():
        table.add_row(name, f"{value:,.2f}" if value < 100 else f"{value:,.0f}")
    Console().print(table)
    for goal, reached, figure in goals(told):
        click.echo(f"{'reached' if reached else 'NOT reached'}: {goal}: {figure:.2f}")


@click.command(context_settings={"max_content_width": 110})
@click.option(
    "--messages", type=click.IntRange(10), default=30_000, show_default=True, help="In the queue, of 1 kB each."
)
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True, help="How often; medians count.")
@click.option(
    "--memory",
    type=click.IntRange(0),
    default=200_000,
    show_default=True,
    help="Small messages to re-drive while the memory is watched; 0: none.",
)
@click.option(
    "--root",
    type=click.Path(file_okay=False, exists=True, path_type=Path),
    help="Another RabbitMQ than the system's: .cache/rabbitmq-4.3",
)
@click.option(
    "--json",
    "file",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write all samples there: bench/results/dead_letters.json",
)
def main(messages: int, rounds: int, memory: int, root: Path | None, file: Path | None) -> None:
    """Measure re-driving beside RabbitMQ's shovel, grouping beside bare consuming, and the memory of many messages."""
    began, busy = datetime.now(UTC), machine.busy_seconds()
    with (
        Broker(root=root, plugins=["rabbitmq_shovel"], management=True) as broker,
        tempfile.TemporaryDirectory(prefix="redrive-bench-") as folder,
    ):
        bench = Bench(broker, Database.embedded(Path(folder)), messages)
        found = asyncio.run(measure(bench, rounds, memory, lambda said: click.echo(said, err=True)))
        versions = broker.versions()
    told = summed_up(found, memory)
    show(told)
    if file is not None:
        run = {
            "began": began.isoformat(timespec="seconds"),
            "machine": machine.describe(),
            "versions": versions,
            "settings": {"messages": messages, "rounds": rounds, "memory": memory},
            "cores busy, ours included": round(
                (machine.busy_seconds() - busy) / (datetime.now(UTC) - began).total_seconds(), 2
            ),
            "measured": told,
            "samples": found.samples,
        }
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(msgspec.json.format(msgspec.json.encode(run), indent=1) + b"\n")
        click.echo(f"written: {file}")


if __name__ == "__main__":
    main()
