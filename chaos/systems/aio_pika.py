"""aio-pika with robust connections, and what people write around it: retry by requeue, dead letters by reject."""

from __future__ import annotations

import asyncio
import signal
import sys

import aio_pika
from aio_pika.abc import AbstractIncomingMessage, AbstractRobustChannel

from chaos.systems.producing import publish_all
from chaos.work import HEARTBEAT, QUEUE, Busy, Handling, Job, name_of

DLQ = f"{QUEUE}.dlq"


async def connect(job: Job) -> aio_pika.abc.AbstractRobustConnection:
    return await aio_pika.connect_robust(f"{job.url}?heartbeat={HEARTBEAT}")


async def declare(job: Job, channel: AbstractRobustChannel) -> aio_pika.abc.AbstractRobustQueue:
    kind = {"x-queue-type": job.kind}
    await channel.declare_queue(DLQ, durable=True, arguments=kind)
    dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": DLQ}
    return await channel.declare_queue(QUEUE, durable=True, arguments={**kind, **dead})


async def publish(job: Job) -> None:
    async with await connect(job) as connection:
        channel = await connection.channel(publisher_confirms=True, on_return_raises=True)
        await declare(job, channel)
        if sys.argv[1] == "declare":
            return

        async def send(number: int) -> None:
            message = aio_pika.Message(name_of(number).encode(), delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
            await channel.default_exchange.publish(message, QUEUE, mandatory=True)

        await publish_all(job, send)


async def work(job: Job, *, carelessly: bool) -> None:
    handling, stop = Handling(job), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    attempts: dict[str, int] = {}

    async def handle(message: AbstractIncomingMessage) -> None:
        order = message.body.decode()
        attempts[order] = attempt = attempts.get(order, 1 if not message.redelivered else 2)
        try:
            if job.database is None:
                handling.handle(order, attempt)
            else:
                await asyncio.to_thread(handling.handle, order, attempt)
        except Busy:
            attempts[order] += 1
            if not carelessly:
                await asyncio.sleep(0.1)
                await message.nack(requeue=True)
        except ValueError:
            if not carelessly:
                await message.reject(requeue=False)
        else:
            attempts.pop(order, None)
            if not carelessly:
                await message.ack()

    async with await connect(job) as connection:
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=20)
        queue = await declare(job, channel)
        await queue.consume(handle, no_ack=carelessly)
        await stop.wait()


if __name__ == "__main__":
    given = Job.given()
    part = sys.argv[1]
    asyncio.run(publish(given) if part in ("publish", "declare") else work(given, carelessly=part == "carelessly"))
