"""dramatiq, with confirms on; its own retries, delay queue and dead-letter queue."""

from __future__ import annotations

import sys

import dramatiq
from dramatiq.brokers.rabbitmq import RabbitmqBroker
from dramatiq.middleware import CurrentMessage

from chaos.systems.producing import publish_all_in_threads
from chaos.work import ATTEMPTS, HEARTBEAT, QUEUE, WAIT, Handling, Job, name_of

job = Job.given()
broker = RabbitmqBroker(url=f"{job.url}?heartbeat={HEARTBEAT}", confirm_delivery=True)
broker.add_middleware(CurrentMessage())
dramatiq.set_broker(broker)
handling = Handling(job)


@dramatiq.actor(
    queue_name=QUEUE, max_retries=ATTEMPTS - 1, min_backoff=round(WAIT * 1000), max_backoff=round(WAIT * 1000)
)
def handle(order: str) -> None:
    message = CurrentMessage.get_current_message()
    assert message is not None
    handling.handle(order, message.options.get("retries", 0) + 1)


if __name__ == "__main__":
    broker.declare_queue(QUEUE, ensure=True)
    if sys.argv[1] == "publish":
        publish_all_in_threads(job, lambda number: handle.send(name_of(number)))
