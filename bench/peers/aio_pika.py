"""aio-pika: many tasks publish on one channel with confirms; a callback consumes, one task per message."""

from __future__ import annotations

import asyncio

import aio_pika
from aio_pika.abc import AbstractIncomingMessage

from bench.contract import Stopwatch, System
from bench.messages import MessageJob, decode, encode

system = System("aio-pika", packages=("aio-pika", "aiormq"))


@system.contends("publish", "uvloop", loop="uvloop")
@system.contends("publish")
async def publish(job: MessageJob, watch: Stopwatch) -> None:
    document = job.document()
    turns = iter(range(job.count))

    async def publisher() -> None:
        for _ in turns:
            message = aio_pika.Message(
                encode(document), content_type="application/json", delivery_mode=aio_pika.DeliveryMode.PERSISTENT
            )
            await exchange.publish(message, job.queue, mandatory=True)

    async with await aio_pika.connect(job.url) as connection:
        channel = await connection.channel(publisher_confirms=True)
        exchange = channel.default_exchange
        with watch:
            await asyncio.gather(*(publisher() for _ in range(job.publishers)))


@system.contends("consume", "uvloop", loop="uvloop")
@system.contends("consume")
async def consume(job: MessageJob, watch: Stopwatch) -> None:
    done = asyncio.Event()
    left = job.count

    async def handle(message: AbstractIncomingMessage) -> None:
        nonlocal left
        decode(message.body)
        await message.ack()
        left -= 1
        if not left:
            done.set()

    async with await aio_pika.connect(job.url) as connection:
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=job.prefetch)
        queue = await channel.get_queue(job.queue)
        with watch:
            await queue.consume(handle)
            await done.wait()
