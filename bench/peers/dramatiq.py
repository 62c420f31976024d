"""dramatiq: its middleware as it comes, an actor that is a plain function, a worker with its usual eight threads."""

from __future__ import annotations

import threading
import time
from typing import Any

import dramatiq
from dramatiq.brokers.rabbitmq import RabbitmqBroker

from bench.contract import Stopwatch, System
from bench.handling import HandleJob, Tally

system = System("dramatiq", packages=("dramatiq", "pika"))


@system.contends("handle")
def handle(job: HandleJob, watch: Stopwatch) -> None:
    done = threading.Event()
    tally = Tally(job, watch, done.set)
    broker = RabbitmqBroker(url=job.url)

    @dramatiq.actor(broker=broker, queue_name=job.queue)
    def handle(document: dict[str, Any]) -> None:  # noqa: ARG001 - decoded by the worker
        if job.pause:
            time.sleep(job.pause)
        tally.handled()

    document = job.document()
    for _ in range(job.published):
        handle.send(document)
    job.let_the_broker_rest()
    worker = dramatiq.Worker(broker, worker_threads=job.threads)
    worker.queue_prefetch = job.prefetch  # what `dramatiq_queue_prefetch` in the environment sets
    worker.start()
    done.wait()
    worker.stop()
    broker.close()
