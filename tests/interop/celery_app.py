"""The Celery application of test_celery.py, as the worker loads it. The environment says where the broker is."""

import os

from celery import Celery, Task
from celery.exceptions import Reject
from kombu import Exchange, Queue

NAME = os.environ["INTEROP_NAME"]

app = Celery("interop", broker=os.environ["INTEROP_BROKER"], backend="rpc://")
app.conf.update(
    broker_connection_retry_on_startup=True,
    broker_connection_timeout=10,
    broker_transport_options={"confirm_publish": True},
    control_exchange=f"{NAME}.control",
    event_exchange=f"{NAME}.events",
    task_acks_late=True,
    task_queues=[
        Queue(
            NAME,
            Exchange(NAME, type="direct"),
            routing_key=NAME,
            queue_arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": f"{NAME}.dead"},
        )
    ],
    task_default_queue=NAME,
    task_default_exchange=NAME,
    task_default_routing_key=NAME,
    worker_prefetch_multiplier=4,
)


@app.task(name="add")
def add(one: int, other: int) -> int:
    return one + other


@app.task(name="attempts", bind=True)
def attempts(task: Task) -> int:
    """Fails twice, then tells how often it was retried."""
    if task.request.retries < 2:
        raise task.retry(countdown=0.05)
    return int(task.request.retries)


@app.task(name="give_up", bind=True)
def give_up(task: Task) -> None:
    """Is retried once, then rejected into the dead-letter queue."""
    if task.request.retries < 1:
        raise task.retry(countdown=0.05)
    raise Reject("no hope", requeue=False)
