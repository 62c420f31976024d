"""A pytest plugin: an AMQP broker for every test, for any client library, and one clock for it and for applications.

    def test_an_order_is_retried(amqp_broker):
        connection = pika.BlockingConnection(pika.URLParameters(amqp_broker.url))
        ...
        amqp_broker.advance("15s")      # the retry queue's TTL has passed

The broker lives in memory and is empty when the test begins. Its clock is the fixture `redrive_clock`, which moves only
when the test says so. `amqp_broker.attach(app)` makes both an application's. The plugin comes with the package; there
is nothing to register.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from redrive.broker.broker import PRODUCT
from redrive.testing.broker import ThreadedBroker
from redrive.testing.clock import ManualClock


@pytest.fixture
def amqp_broker_product() -> str:
    """Return the product that `amqp_broker` reports. Override it with "RabbitMQ" for clients that insist on that."""
    return PRODUCT


@pytest.fixture
def redrive_clock() -> ManualClock:
    """The clock of `amqp_broker`, and of applications: `.now()`, `.advance("15s")`. It stands still otherwise."""
    return ManualClock()


@pytest.fixture
def amqp_broker(amqp_broker_product: str, redrive_clock: ManualClock) -> Iterator[ThreadedBroker]:
    """An AMQP 0-9-1 broker like RabbitMQ, in memory, for this test alone: `.url`, `.advance("15s")`, `.attach(app)`."""
    with ThreadedBroker(clock=redrive_clock, product=amqp_broker_product) as broker:
        yield broker
