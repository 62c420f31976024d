"""A producer that is sure of what it says, or says nothing."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery
from kombu import Connection

from redrive.errors import ConfigurationError
from redrive.integrations.celery.producer import ConfirmedProducer, budget_of
from redrive.recovery.failure_headers import BUDGET
from redrive.wire.raw_properties import patch_properties, raw_text


def connection(**options: Any) -> Connection:
    return Connection("memory://", transport_options=options)


def test_without_confirms_it_publishes_nothing() -> None:
    with connection() as there, pytest.raises(ConfigurationError, match="no confirm_publish any more"):
        ConfirmedProducer(there)


def test_what_is_rewritten_are_the_headers_and_a_ttl_goes() -> None:
    def rewrite(raw: bytes) -> bytes:
        return patch_properties(raw, set_headers={b"x-redrive-reason": raw_text("why")})

    with connection(confirm_publish=True) as there:
        producer = ConfirmedProducer(there, rewrite)
        queue = there.SimpleQueue("there")
        producer.publish([[], {}, {}], routing_key="there", headers={"task": "add"}, expiration=5, serializer="json")
        found = queue.get(timeout=5)
        queue.close()

    assert found.headers == {"task": "add", "x-redrive-reason": "why"}
    assert "expiration" not in found.properties


def test_headers_that_amqp_has_no_words_for_are_told_as_text() -> None:
    with connection(confirm_publish=True) as there:
        found = ConfirmedProducer(there, lambda raw: raw)._rewritten({"headers": {"stamps": {"by": {1}}, "at": object}})

    assert found == {"stamps": {"by": [1]}, "at": "<class 'object'>"}


def test_a_story_fits_into_a_frame() -> None:
    app = Celery("shop", broker="memory://", set_as_current=False)
    assert budget_of(app) == BUDGET

    app.conf.broker_transport_options = {"frame_max": 8192}
    assert budget_of(app) == 8192 - 64
