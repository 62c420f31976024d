"""The fixture as people who use nothing else of Redrive would use it: with pika."""

from datetime import timedelta

import pika

from redrive.testing import ManualClock, ThreadedBroker


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


def test_what_was_published_before_an_advance_waits_from_then(amqp_broker: ThreadedBroker) -> None:
    """Without confirms, and more than the broker reads at a time."""
    channel = pika.BlockingConnection(pika.URLParameters(amqp_broker.url)).channel()
    back = {"x-message-ttl": 15_000, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "orders"}
    channel.queue_declare("orders")
    channel.queue_declare("orders.retry", arguments=back)
    for _ in range(20):
        for _ in range(50):
            channel.basic_publish("", "orders.retry", bytes(2000))
        amqp_broker.advance("15s")
    assert channel.queue_declare("orders", passive=True).method.message_count == 1000
    channel.connection.close()


def test_the_broker_and_the_fixture_have_one_clock(amqp_broker: ThreadedBroker, redrive_clock: ManualClock) -> None:
    amqp_broker.advance("15s")
    redrive_clock.advance("15s")
    assert amqp_broker.clock is redrive_clock
    assert redrive_clock.monotonic() == 30
    amqp_broker.call(lambda: redrive_clock.advance("1s"))  # in the broker's own thread
    assert redrive_clock.monotonic() == 31


def test_every_test_has_a_broker_of_its_own(amqp_broker: ThreadedBroker) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(amqp_broker.url))

    assert connection.channel().queue_declare("orders").method.message_count == 0
    connection.close()
