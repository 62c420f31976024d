"""What the outbox and the inbox cost: `python -m bench.outbox`, on one private RabbitMQ and one private PostgreSQL.

relay       rows that are pending are published until none is left; beside it the bare confirmed publish of the same
            messages, and a relay that takes one row at a time, as they are often written
latency     one row is committed while nothing else happens: when does a consumer have the message?
inbox       a consumer that writes one row for each message, in a transaction, with the inbox and without
claim       500 rows are claimed and given back, among many pending ones and among few

Rounds are interleaved and medians count. Goals are reported and never asserted. Relay, publisher and consumer run in
this one process; PostgreSQL syncs each commit to the disk, as databases do.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import msgspec
import psycopg
import sqlalchemy as sa
from rich.console import Console
from rich.table import Table
from sqlalchemy.ext.asyncio import AsyncSession

from bench import machine
from bench.messages import document
from bench.samples import Found
from bench.workplace import Workplace
from redrive.app import App
from redrive.client import Connection
from redrive.outbox.relay import Relay
from redrive.outbox.repository import OutboxRepository
from redrive.worker.events import DeliverySettled, Observer

QUEUE = "events"
BATCH = 500  # rows of one claim
DONE = sa.Table("done", sa.MetaData(), sa.Column("id", sa.Integer), sa.Column("customer", sa.String(40)))


class Bench:
    def __init__(self, place: Workplace, rows: int) -> None:
        self.rows = rows
        self.url = place.url
        self.dsn = place.dsn
        self.app = App("bench", broker=place.url, database=place.dsn)
        self.app.queue(QUEUE, dlq=False)
        self.app.upgrade_database()
        DONE.metadata.create_all(self.app.database.engine)
        self.claims = OutboxRepository(self.app.database, self.app.outbox.table)
        self.row = self.app.outbox.row("", QUEUE, document(256), type="OrderPlaced")

    # The table ----------------------------------------------------------------------------------------

    def fill(self, count: int) -> None:
        """So many rows are pending, and the database has nothing else to do."""
        table = self.app.outbox.table
        columns = list(self.row)
        given = sa.select(*(sa.bindparam(name, value, table.c[name].type) for name, value in self.row.items()))
        given = given.select_from(sa.func.generate_series(1, count).alias("n"))
        with self.app.database.engine.begin() as connection:
            connection.execute(sa.text(f"TRUNCATE {table.name}"))
            connection.execute(sa.insert(table).from_select(columns, given))
        self._tidy(table.name)

    def empty(self) -> None:
        with self.app.database.engine.begin() as connection:
            for table in (self.app.outbox.table.name, self.app.inbox.table.name, DONE.name):
                connection.execute(sa.text(f"TRUNCATE {table}"))

    def _tidy(self, table: str) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute(f"VACUUM ANALYZE {table}")  # type: ignore[arg-type]
            connection.execute("CHECKPOINT")

    # Relay --------------------------------------------------------------------------------------------

    async def bare(self, count: int) -> float:
        """Rows a second that `publish_many` gets confirmed."""
        message = ("", QUEUE, self.row["body"], self.row["properties"], True)
        async with self._emptied(), Connection(self.url, window=5000) as connection:
            began = time.perf_counter()
            await connection.publish_many(message for _ in range(count))
            return count / (time.perf_counter() - began)

    async def relayed(self, count: int) -> float:
        self.fill(count)
        async with self._emptied(), self._relaying() as (relay, began):
            while relay.published < count:  # noqa: ASYNC110 - it counts, and tells nobody
                await asyncio.sleep(0.002)
            return count / (time.perf_counter() - began)

    async def one_at_a_time(self, count: int) -> float:
        """Claim a row, publish it, wait for the confirm, delete it, commit."""
        self.fill(count)
        async with (
            self._emptied(),
            Connection(self.url) as connection,
            await psycopg.AsyncConnection.connect(self.dsn) as database,
        ):
            began = time.perf_counter()
            while await _relay_one(connection, database):
                pass
            return count / (time.perf_counter() - began)

    @asynccontextmanager
    async def _emptied(self) -> Any:
        async with self.app, Connection(self.url) as connection:
            await connection.purge_queue(QUEUE)
            yield

    @asynccontextmanager
    async def _relaying(self) -> Any:
        stop, started = asyncio.Event(), asyncio.get_running_loop().create_future()

        def ready(relay: Relay) -> None:
            started.set_result((relay, time.perf_counter()))

        task = asyncio.create_task(self.app.relay(stop, ready=ready))
        try:
            yield await started
        finally:
            stop.set()
            await task

    # Latency ------------------------------------------------------------------------------------------

    async def latencies(self, count: int) -> list[float]:
        """Milliseconds from the end of the commit to the delivery, one row at a time."""
        self.empty()
        found: list[float] = []
        async with (
            self._emptied(),
            self._relaying(),
            Connection(self.url) as connection,
            await connection.consume(QUEUE, prefetch=1) as consumer,
        ):
            for _ in range(count):
                await asyncio.sleep(0.02)  # it is idle
                async with self.app.database.async_sessions()() as session, session.begin():
                    await session.execute(sa.insert(self.app.outbox.table).values(**self.row))
                committed = time.perf_counter()
                delivery = await anext(consumer)
                found.append((time.perf_counter() - committed) * 1000)
                delivery.ack()
        return found

    # Inbox --------------------------------------------------------------------------------------------

    async def consumed(self, count: int, *, inbox: bool) -> float:
        """Messages a second of a consumer that writes a row for each."""
        self.empty()
        tally = _Tally(count)
        app = App("bench", broker=self.url, database=self.dsn, observers=[tally])

        @app.consumer("work", concurrency=5, prefetch=100, inbox=inbox, dlq=False, retry=None)
        async def handle(order: dict[str, Any], session: AsyncSession) -> None:
            await session.execute(sa.insert(DONE).values(id=order["id"], customer=order["customer"]))

        async with app:
            await self._fill_queue(count)
        stop = asyncio.Event()
        working = asyncio.create_task(app.run_worker(stop=stop))
        await tally.all
        stop.set()
        await working
        await app.database.close()
        return count / (tally.ended - tally.began)

    async def _fill_queue(self, count: int) -> None:
        async with Connection(self.url) as connection:
            await connection.purge_queue("work")
            rows = (self.app.outbox.row("", "work", document(256)) for _ in range(count))
            await connection.publish_many(("", "work", row["body"], row["properties"], True) for row in rows)

    # Claims -------------------------------------------------------------------------------------------

    def claim_milliseconds(self, times: int = 20) -> list[float]:
        """To claim a batch and to give it back."""
        found = []
        for _ in range(times):
            began = time.perf_counter()
            with self.claims.claim(BATCH) as claim:
                assert claim.rows
            found.append((time.perf_counter() - began) * 1000)
        return found

    async def close(self) -> None:
        await self.app.database.close()


async def _relay_one(connection: Connection, database: psycopg.AsyncConnection[Any]) -> bool:
    cursor = await database.execute(
        "SELECT id, exchange, routing_key, body, properties FROM redrive_outbox WHERE state = 0"
        " ORDER BY next_attempt_at, id LIMIT 1 FOR UPDATE SKIP LOCKED"
    )
    row = await cursor.fetchone()
    if row is not None:
        identity, exchange, key, body, properties = row
        await connection.publish(exchange, key, bytes(body), bytes(properties))
        await database.execute("DELETE FROM redrive_outbox WHERE id = %s", [identity])
    await database.commit()
    return row is not None


class _Tally(Observer):
    """When the first message was begun, and when the last was done."""

    def __init__(self, count: int) -> None:
        self.began = self.ended = 0.0
        self.all: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._left = count

    def started(self, queue: str) -> None:  # noqa: ARG002
        self.began = self.began or time.perf_counter()

    def done(self, queue: str, seconds: float) -> None:  # noqa: ARG002
        self._left -= 1
        if not self._left:
            self.ended = time.perf_counter()
            self.all.set_result(None)

    def settled(self, event: DeliverySettled) -> None:
        self.all.set_exception(RuntimeError(f"a message was {event.outcome}: {event.reason} {event.error}"))


# The run ------------------------------------------------------------------------------------------------


async def measure(bench: Bench, rounds: int, pending: int, say: Callable[[str], None]) -> Found:
    found = Found()
    some = max(1, bench.rows // 10)  # for what is an order of magnitude slower
    contenders: dict[str, Callable[[], Awaitable[float]]] = {
        "bare publish, rows/s": lambda: bench.bare(bench.rows),
        "relay, rows/s": lambda: bench.relayed(bench.rows),
        "one row at a time, rows/s": lambda: bench.one_at_a_time(some),
        "consumer without inbox, messages/s": lambda: bench.consumed(some, inbox=False),
        "consumer with inbox, messages/s": lambda: bench.consumed(some, inbox=True),
    }
    for number in range(rounds):
        say(f"round {number + 1} of {rounds}")
        for name, contender in contenders.items():
            found.add(name, await contender())
    say("latency")
    for milliseconds in await bench.latencies(max(10, min(500, some))):
        found.add("commit to delivery, ms", milliseconds)
    for count in (1000, pending):
        say(f"claims among {count:,} rows")
        bench.fill(count)
        for milliseconds in bench.claim_milliseconds():
            found.add(f"claim among {count:,}, ms", milliseconds)
    bench.empty()
    await bench.close()
    return found


def summed_up(found: Found, pending: int) -> dict[str, float]:
    told = {name: found.median(name) for name in found.samples}
    latencies = sorted(found.samples["commit to delivery, ms"])
    del told["commit to delivery, ms"]
    told |= {
        "relay ÷ bare publish": found.ratio("relay, rows/s", "bare publish, rows/s"),
        "relay ÷ one row at a time": found.ratio("relay, rows/s", "one row at a time, rows/s"),
        "consumer with ÷ without inbox": found.ratio(
            "consumer with inbox, messages/s", "consumer without inbox, messages/s"
        ),
        "commit to delivery, p50 ms": statistics.median(latencies),
        "commit to delivery, p99 ms": latencies[min(len(latencies) - 1, len(latencies) * 99 // 100)],
        f"claim among {pending:,} ÷ among 1,000": told[f"claim among {pending:,}, ms"] / told["claim among 1,000, ms"],
    }
    return told


def goals(told: dict[str, float], pending: int) -> Iterable[tuple[str, bool, float]]:
    """What Redrive set out to reach, whether it did, and the figure."""
    ratio, latency = told["relay ÷ bare publish"], told["commit to delivery, p99 ms"]
    cost = told[f"claim among {pending:,} ÷ among 1,000"]
    yield "relay ≥ 0.5 × bare publish", ratio >= 0.5, ratio
    yield "commit to delivery, p99 ≤ 50 ms", latency <= 50, latency
    yield f"a claim among {pending:,} rows costs what it does among 1,000 (≤ 1.5 ×)", cost <= 1.5, cost


def show(told: dict[str, float], pending: int) -> None:
    table = Table("what", "measured")
    for name, value in told.items():
        table.add_row(name, f"{value:,.2f}" if value < 100 else f"{value:,.0f}")
    Console().print(table)
    for goal, reached, figure in goals(told, pending):
        click.echo(f"{'reached' if reached else 'NOT reached'}: {goal}: {figure:.2f}")


@click.command(context_settings={"max_content_width": 110})
@click.option(
    "--rows",
    type=click.IntRange(10),
    default=20_000,
    show_default=True,
    help="For a measurement of the relay; a tenth of it for what takes one row or message at a time.",
)
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True, help="How often; medians count.")
@click.option(
    "--pending", type=click.IntRange(1000), default=1_000_000, show_default=True, help="For the cost of a claim."
)
@click.option(
    "--json",
    "file",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write all samples there: bench/results/outbox.json",
)
def main(rows: int, rounds: int, pending: int, file: Path | None) -> None:
    """Measure the relay beside a bare publish, the inbox beside none, and what many pending rows cost."""
    began, busy = datetime.now(UTC), machine.busy_seconds()
    with Workplace() as place:
        found = asyncio.run(measure(Bench(place, rows), rounds, pending, lambda said: click.echo(said, err=True)))
        versions = place.versions()
    told = summed_up(found, pending)
    show(told, pending)
    if file is not None:
        run = {
            "began": began.isoformat(timespec="seconds"),
            "machine": machine.describe(),
            "versions": versions,
            "settings": {"rows": rows, "rounds": rounds, "pending": pending},
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
