"""taskiq on aio-pika: a task that is a coroutine, acknowledged after it, its parameters not validated, no results.

Its command runs on uvloop where that is installed: so has the row of this name.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from taskiq.receiver import Receiver
from taskiq_aio_pika import AioPikaBroker
from taskiq_aio_pika.queue import Queue, QueueType

from bench.contract import Stopwatch, System
from bench.handling import HandleJob, Tally

system = System("taskiq", packages=("taskiq", "taskiq-aio-pika", "aio-pika"))


@system.contends("handle", "uvloop", loop="uvloop")
@system.contends("handle")
async def handle(job: HandleJob, watch: Stopwatch) -> None:
    logging.getLogger("taskiq").setLevel(logging.WARNING)  # it would log each message
    stop = asyncio.Event()
    tally = Tally(job, watch, stop.set)
    broker = AioPikaBroker(
        job.url,
        qos=job.prefetch,
        task_queues=[Queue(name=job.queue, type=QueueType.CLASSIC)],
        dead_letter_queue=Queue(name=f"{job.queue}.dead", type=QueueType.CLASSIC),
    )
    broker.is_worker_process = True

    @broker.task(task_name="handle")
    async def handle(document: dict[str, Any]) -> None:  # noqa: ARG001 - decoded by the worker
        if job.pause:
            await asyncio.sleep(job.pause)
        tally.handled()

    await broker.startup()
    await job.publish_all(handle.kiq)
    receiver = Receiver(broker, run_startup=False, validate_params=False, max_async_tasks=job.handlers)
    await receiver.listen(stop)
    await broker.shutdown()
