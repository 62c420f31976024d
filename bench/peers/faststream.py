"""FastStream: a broker that publishes, and a subscriber with an async handler, acknowledged after success.

The cheapest of the forms that were tried: msgspec instead of pydantic, no per-message logging, no argument
injection.
"""

from __future__ import annotations

import asyncio
from typing import Any

from fast_depends.msgspec import MsgSpecSerializer
from faststream.rabbit import Channel, RabbitBroker, RabbitQueue
from faststream.rabbit.annotations import RabbitMessage

from bench.contract import Stopwatch, System
from bench.handling import HandleJob, Tally
from bench.messages import MessageJob, decode

system = System("FastStream", packages=("faststream", "fast-depends", "aio-pika"))


@system.contends("publish")
async def publish(job: MessageJob, watch: Stopwatch) -> None:
    document = job.document()
    turns = iter(range(job.count))

    async def publisher() -> None:
        for _ in turns:
            await broker.publish(document, job.queue, persist=True, mandatory=True)

    broker = RabbitBroker(job.url, serializer=MsgSpecSerializer(), apply_types=False, logger=None)
    async with broker:
        with watch:
            await asyncio.gather(*(publisher() for _ in range(job.publishers)))


@system.contends("consume")
async def consume(job: MessageJob, watch: Stopwatch) -> None:
    done = asyncio.Event()
    left = job.count

    broker = _broker(job)

    @broker.subscriber(RabbitQueue(job.queue, durable=True))
    async def handle(document: dict[str, Any]) -> None:  # noqa: ARG001 - decoded by the broker
        nonlocal left
        left -= 1
        if not left:
            done.set()

    async with broker:
        with watch:
            await broker.start()
            await done.wait()


@system.contends("handle", "uvloop", loop="uvloop")
@system.contends("handle")
async def handle(job: HandleJob, watch: Stopwatch) -> None:
    """Each message that was prefetched is a task at once."""
    done = asyncio.Event()
    tally = Tally(job, watch, done.set)
    broker = _broker(job)

    @broker.subscriber(RabbitQueue(job.queue, durable=True))
    async def handle(document: dict[str, Any]) -> None:  # noqa: ARG001 - decoded by the broker
        if job.pause:
            await asyncio.sleep(job.pause)
        tally.handled()

    async with broker:
        await broker.declare_queue(RabbitQueue(job.queue, durable=True))
        await job.publish_all(lambda document: broker.publish(document, job.queue, persist=True))
        await broker.start()
        await done.wait()


def _broker(job: MessageJob | HandleJob) -> RabbitBroker:
    async def decoded(message: RabbitMessage) -> Any:
        return decode(message.body)

    return RabbitBroker(
        job.url,
        serializer=MsgSpecSerializer(),
        apply_types=False,
        logger=None,
        decoder=decoded,
        default_channel=Channel(prefetch_count=job.prefetch),
    )
