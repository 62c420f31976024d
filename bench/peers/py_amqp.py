"""py-amqp, the AMQP library under kombu and Celery. With `confirm_publish` each publish waits for its confirm."""

from __future__ import annotations

import amqp

from bench.contract import Stopwatch, System
from bench.messages import MessageJob, decode, encode
from redrive.client import BrokerURL

system = System("py-amqp", packages=("amqp",))


def _connection(job: MessageJob) -> amqp.Connection:
    host = BrokerURL.parse(job.url).hosts[0]
    return amqp.Connection(host=f"{host.name}:{host.port}", confirm_publish=True)


@system.contends("publish", one_at_a_time=True)
def publish(job: MessageJob, watch: Stopwatch) -> None:
    document = job.document()
    with _connection(job) as connection:
        channel = connection.channel()
        with watch:
            for _ in range(job.count):
                message = amqp.Message(encode(document), content_type="application/json", delivery_mode=2)
                channel.basic_publish(message, routing_key=job.queue, mandatory=True)


@system.contends("consume")
def consume(job: MessageJob, watch: Stopwatch) -> None:
    left = job.count

    def handle(message: amqp.Message) -> None:
        nonlocal left
        decode(message.body)
        channel.basic_ack(message.delivery_tag)
        left -= 1

    with _connection(job) as connection:
        channel = connection.channel()
        channel.basic_qos(0, job.prefetch, False)
        with watch:
            channel.basic_consume(job.queue, callback=handle)
            while left:
                connection.drain_events()
