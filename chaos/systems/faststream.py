"""FastStream: a subscriber that gives back what fails, and rejects what is hopeless into its dead-letter queue."""

from __future__ import annotations

import asyncio
import sys

from faststream import AckPolicy, FastStream
from faststream.exceptions import NackMessage, RejectMessage
from faststream.rabbit import Channel, RabbitBroker, RabbitQueue
from faststream.rabbit.annotations import RabbitMessage

from chaos.systems.producing import publish_all
from chaos.work import HEARTBEAT, QUEUE, Busy, DestinationUnavailable, Handling, Job, name_of

DLQ = f"{QUEUE}.dlq"

job = Job.given()
broker = RabbitBroker(f"{job.url}?heartbeat={HEARTBEAT}", default_channel=Channel(prefetch_count=20))
app = FastStream(broker)
kind = {"x-queue-type": job.kind}
dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": DLQ}
orders = RabbitQueue(QUEUE, durable=True, arguments={**kind, **dead})
handling = Handling(job)


@app.after_startup
async def declare() -> None:
    await broker.declare_queue(RabbitQueue(DLQ, durable=True, arguments=kind))


@broker.subscriber(orders, ack_policy=AckPolicy.NACK_ON_ERROR)
async def handle(order: str, message: RabbitMessage) -> None:
    attempt = 2 if message.raw_message.redelivered else 1
    try:
        if job.database is None:
            handling.handle(order, attempt)
        else:
            await asyncio.to_thread(handling.handle, order, attempt)
    except DestinationUnavailable:
        raise RejectMessage from None
    except Busy:
        await asyncio.sleep(0.1)
        raise NackMessage from None


async def publish() -> None:
    async with broker:
        await declare()
        await broker.declare_queue(orders)
        if sys.argv[1] == "publish":
            await publish_all(job, lambda number: broker.publish(name_of(number), QUEUE, persist=True, mandatory=True))


if __name__ == "__main__":
    asyncio.run(app.run() if sys.argv[1] == "work" else publish())
