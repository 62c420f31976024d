"""Redrive's consumers with a database: a batch handler that COPYs, a handler that INSERTs, and bare consuming."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from psycopg import AsyncConnection

from bench.broker import JSON, wait_until_idle
from bench.contract import Stopwatch, System
from bench.inserting import BATCH, BATCHERS, COPY, INSERT, ROW_BY_ROW, InsertJob, User
from bench.messages import encode
from redrive import App
from redrive.client import Connection, Delivery, Publish

system = System("redrive", packages=("redrive", "msgspec"))


class _Countdown:
    """Done when that many were handled."""

    def __init__(self, count: int) -> None:
        self.done = asyncio.Event()
        self._left = count

    def handled(self, count: int) -> None:
        self._left -= count
        if self._left <= 0:
            self.done.set()


@system.contends("insert", "batches")
async def batches(job: InsertJob, watch: Stopwatch) -> None:
    app, countdown = App("bench", broker=job.url), _Countdown(job.count)
    async with _database(job, BATCHERS) as idle:

        @app.batch_consumer(job.queue, size=BATCH, max_wait="1s", batchers=BATCHERS)
        async def insert(users: list[User]) -> None:
            connection = idle.pop()
            try:
                async with connection.cursor() as cursor, cursor.copy(COPY) as copy:  # a transaction by itself
                    for user in users:
                        await copy.write_row((user.id, user.name, user.email))
            finally:
                idle.append(connection)
            countdown.handled(len(users))

        await _work(app, job, watch, countdown)


@system.contends("insert", "row by row")
async def row_by_row(job: InsertJob, watch: Stopwatch) -> None:
    app, countdown = App("bench", broker=job.url), _Countdown(job.count)
    async with _database(job, ROW_BY_ROW) as idle:

        @app.consumer(job.queue, concurrency=ROW_BY_ROW)
        async def insert(user: User) -> None:
            connection = idle.pop()
            try:
                await connection.execute(INSERT, (user.id, user.name, user.email))
            finally:
                idle.append(connection)
            countdown.handled(1)

        await _work(app, job, watch, countdown)


@system.contends("insert", "bare consuming")
async def bare_consuming(job: InsertJob, watch: Stopwatch) -> None:
    countdown = _Countdown(job.count)

    async def handle(delivery: Delivery) -> None:
        delivery.ack()
        countdown.handled(1)

    async with Connection(job.url) as connection:
        await connection.declare_queue(job.queue)
        await _publish(connection, job)
        with watch:
            consumer = await connection.consume(job.queue, handle, prefetch=BATCH * (BATCHERS + 1))
            await countdown.done.wait()
        await consumer.cancel()
    await job.check_acknowledged()


@asynccontextmanager
async def _database(job: InsertJob, connections: int) -> AsyncIterator[list[AsyncConnection]]:
    """As many connections as there are handlers at a time: there is always one idle for who begins."""
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(await AsyncConnection.connect(job.dsn, autocommit=True))
            for _ in range(connections)
        ]


async def _work(app: App, job: InsertJob, watch: Stopwatch, countdown: _Countdown) -> None:
    async with app.connect() as running:
        await _publish(running.publishing, job)
        worker = running.worker(app.select_consumers(()))
        with watch:
            await worker.start()
            await countdown.done.wait()
        await worker.stop()
    await job.check_acknowledged()
    job.check_inserted()


async def _publish(connection: Connection, job: InsertJob) -> None:
    await connection.publish_many(Publish("", job.queue, encode(row._asdict()), JSON) for row in job.rows())
    await asyncio.to_thread(wait_until_idle, job.broker)
