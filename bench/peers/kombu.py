"""kombu over py-amqp, what Celery publishes and consumes with. Each publish waits for its confirm."""

from __future__ import annotations

from typing import Any

from kombu import Connection, Consumer, Producer, Queue

from bench.contract import Stopwatch, System
from bench.messages import MessageJob, decode, encode

system = System("kombu", packages=("kombu", "amqp"))


@system.contends("publish", one_at_a_time=True)
def publish(job: MessageJob, watch: Stopwatch) -> None:
    document = job.document()
    with Connection(job.url, transport_options={"confirm_publish": True}) as connection:
        producer = Producer(connection.channel())
        with watch:
            for _ in range(job.count):
                producer.publish(
                    encode(document),
                    routing_key=job.queue,
                    content_type="application/json",
                    content_encoding="utf-8",
                    delivery_mode=2,
                    mandatory=True,
                )


@system.contends("consume")
def consume(job: MessageJob, watch: Stopwatch) -> None:
    left = job.count

    def handle(message: Any) -> None:
        nonlocal left
        decode(message.body)
        message.ack()
        left -= 1

    with Connection(job.url) as connection:
        queue = Queue(job.queue, durable=True, no_declare=True)
        consumer = Consumer(connection.channel(), [queue], on_message=handle, prefetch_count=job.prefetch)
        with watch, consumer:
            while left:
                connection.drain_events()
