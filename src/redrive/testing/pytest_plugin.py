"""A pytest plugin: an AMQP broker for every test, for any client library, with nothing installed.

    def test_an_order_is_retried(amqp_broker):
        connection = pika.BlockingConnection(pika.URLParameters(amqp_broker.url))
        ...
        amqp_broker.advance(timedelta(seconds=15))      # the retry queue's TTL has passed

The broker lives in memory, is empty when the test begins, and its clock moves only when the test says so. The plugin
comes with the package; there is nothing to register.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from redrive.broker.broker import PRODUCT
from redrive.testing.broker import ThreadedBroker
from redrive.testing.clock import FakeClock


@pytest.fixture
def amqp_broker_product() -> str:
    """Return the product that `amqp_broker` reports. Override it with "RabbitMQ" for clients that insist on that."""
    return PRODUCT


@pytest.fixture
def amqp_broker(amqp_broker_product: str) -> Iterator[ThreadedBroker]:
    """An AMQP 0-9-1 broker like RabbitMQ, in memory, for this test alone: `.url`, `.advance(timedelta)`."""
    with ThreadedBroker(clock=FakeClock(), product=amqp_broker_product) as broker:
        yield broker
