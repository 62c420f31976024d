"""Redrive's own client: publishes awaited one by one in many tasks, a pipeline, and a consumer with a handler."""

from __future__ import annotations

import asyncio

from bench.contract import Stopwatch, System
from bench.messages import MessageJob, decode, encode
from redrive.client import Connection, Delivery, Properties, Publish

system = System("redrive", packages=("redrive", "msgspec"))

JSON = Properties(content_type="application/json", delivery_mode=2)


@system.contends("publish", "publish uvloop", loop="uvloop")
@system.contends("publish", "publish")
async def publish(job: MessageJob, watch: Stopwatch) -> None:
    document = job.document()
    turns = iter(range(job.count))

    async def publisher() -> None:
        for _ in turns:
            await connection.publish("", job.queue, encode(document), JSON)

    async with Connection(job.url, window=job.window) as connection:
        with watch:
            await asyncio.gather(*(publisher() for _ in range(job.publishers)))


@system.contends("publish", "publish_many uvloop", loop="uvloop")
@system.contends("publish", "publish_many")
async def publish_many(job: MessageJob, watch: Stopwatch) -> None:
    document = job.document()
    messages = (Publish("", job.queue, encode(document), JSON) for _ in range(job.count))
    async with Connection(job.url, window=job.window) as connection:
        with watch:
            await connection.publish_many(messages)


@system.contends("consume", "uvloop", loop="uvloop")
@system.contends("consume")
async def consume(job: MessageJob, watch: Stopwatch) -> None:
    done = asyncio.Event()
    left = job.count

    async def handle(delivery: Delivery) -> None:
        nonlocal left
        decode(delivery.body)
        delivery.ack()
        left -= 1
        if not left:
            done.set()

    async with Connection(job.url) as connection:
        with watch:
            await connection.consume(job.queue, handle, prefetch=job.prefetch, concurrency=job.handlers)
            await done.wait()
