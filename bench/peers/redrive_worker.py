"""Redrive's workers: an app with its retries and its dead-letter queue, and a handler, coroutine or plain function."""

from __future__ import annotations

import asyncio
import itertools
import time
from datetime import timedelta
from typing import Any

from bench.broker import JSON
from bench.contract import Stopwatch, System
from bench.handling import HandleJob, Tally
from bench.messages import encode
from redrive import App
from redrive.client import Connection, Publish

system = System("redrive", packages=("redrive", "msgspec"))


@system.contends("handle", "uvloop", loop="uvloop")
@system.contends("handle")
async def handle(job: HandleJob, watch: Stopwatch) -> None:
    app, stop = App("bench", broker=job.url), asyncio.Event()
    tally = Tally(job, watch, stop.set)

    @app.consumer(job.queue, concurrency=job.handlers, prefetch=job.prefetch)
    async def handle(document: dict[str, Any]) -> None:  # noqa: ARG001 - decoded by the worker
        if job.pause:
            await asyncio.sleep(job.pause)
        tally.handled()

    await _publish(app, job)
    await _work(app, stop)


@system.contends("handle", "threads")
async def handle_in_threads(job: HandleJob, watch: Stopwatch) -> None:
    app, stop = App("bench", broker=job.url), asyncio.Event()
    loop = asyncio.get_running_loop()
    tally = Tally(job, watch, lambda: loop.call_soon_threadsafe(stop.set))

    @app.consumer(job.queue, concurrency=job.threads, prefetch=job.prefetch)
    def handle(document: dict[str, Any]) -> None:  # noqa: ARG001 - decoded by the worker
        if job.pause:
            time.sleep(job.pause)
        tally.handled()

    await _publish(app, job)
    await _work(app, stop)


async def _publish(app: App, job: HandleJob) -> None:
    async with app, Connection(job.url) as connection:
        message = Publish("", job.queue, encode(job.document()), JSON)
        await connection.publish_many(itertools.repeat(message, job.published))
    await asyncio.to_thread(job.let_the_broker_rest)


async def _work(app: App, stop: asyncio.Event) -> None:
    assert await app.run_worker(stop=stop, within=timedelta(seconds=30))
