"""Celery as its manual recommends it for work that must not be lost: late acks, confirms, reject on a lost worker."""

from __future__ import annotations

import sys

from celery import Celery, Task
from kombu import Exchange, Queue

from chaos.systems.producing import publish_all_in_threads
from chaos.work import ATTEMPTS, HEARTBEAT, QUEUE, WAIT, Busy, DestinationUnavailable, Handling, Job, name_of

DLQ = f"{QUEUE}.dlq"

job = Job.given()
app = Celery("chaos", broker=job.url)
dead = {"x-queue-type": job.kind, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": DLQ}
app.conf.update(
    broker_connection_retry_on_startup=True,
    broker_connection_max_retries=None,
    broker_heartbeat=HEARTBEAT,
    broker_transport_options={"confirm_publish": True},
    task_acks_late=True,
    task_acks_on_failure_or_timeout=False,  # what fails for good is rejected, into the dead-letter queue
    task_default_queue=QUEUE,
    task_ignore_result=True,
    task_queues=[Queue(QUEUE, Exchange(""), QUEUE, queue_arguments=dead)],
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=10,
    worker_detect_quorum_queues=True,
)
handling = Handling(job)


@app.task(
    name="handle",
    bind=True,
    autoretry_for=(Busy, DestinationUnavailable),
    max_retries=ATTEMPTS - 1,
    retry_backoff=False,
)
def handle(task: Task, order: str) -> None:
    task.default_retry_delay = WAIT
    handling.handle(order, task.request.retries + 1)


def declare() -> None:
    with app.connection_for_write() as connection:
        channel = connection.default_channel
        Queue(DLQ, queue_arguments={"x-queue-type": job.kind}, channel=channel).declare()
        Queue(QUEUE, queue_arguments=dead, channel=channel).declare()


if __name__ == "__main__":
    declare()
    if sys.argv[1] == "publish":
        publish_all_in_threads(job, lambda number: handle.apply_async((name_of(number),)))
