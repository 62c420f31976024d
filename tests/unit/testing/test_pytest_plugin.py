"""The fixture as people who use nothing else of Redrive would use it: with pika."""

from datetime import timedelta

import pika

from redrive.testing.broker import ThreadedBroker


def test_a_retry_after_fifteen_seconds_takes_no_time(amqp_broker: ThreadedBroker) -> None:
    channel = pika.BlockingConnection(pika.URLParameters(amqp_broker.url)).channel()
    back = {"x-message-ttl": 15_000, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "orders"}
    channel.queue_declare("orders")
    channel.queue_declare("orders.retry", arguments=back)
    channel.basic_publish("", "orders.retry", b"again")
    assert channel.basic_get("orders")[0] is None

    amqp_broker.advance(timedelta(seconds=15))

    assert channel.basic_get("orders")[2] == b"again"
    channel.connection.close()


def test_every_test_has_a_broker_of_its_own(amqp_broker: ThreadedBroker) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(amqp_broker.url))

    assert connection.channel().queue_declare("orders").method.message_count == 0
    connection.close()
