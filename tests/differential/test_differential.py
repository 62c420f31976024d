"""The embedded broker beside a real RabbitMQ: the same acts, the same transcript.

Hypothesis makes up sequences of acts; each is done on both brokers, and everything that can be seen is compared after
every step: replies, refusals with their codes and texts, confirms, returns, deliveries with their headers, and what the
queues hold. A sequence on which the two differ is shrunk to the shortest that shows it.
"""

import asyncio
import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings

from differential.acts import EXCHANGES, QUEUES, Step, sequences
from differential.transcript import Stage
from redrive.broker.dialect import DIALECTS
from redrive.client import Connection
from redrive.testing import Endpoint
from redrive.testing.broker import ThreadedBroker

SHORT = int(os.environ.get("REDRIVE_SEQUENCES", "60"))


@pytest.fixture(scope="module")
def embedded(rabbitmq: Endpoint) -> Iterator[ThreadedBroker]:
    version = ".".join(map(str, rabbitmq.version[:2]))
    with ThreadedBroker(dialect=DIALECTS[version]) as broker:
        yield broker


@pytest.fixture(scope="module")
def real_url(rabbitmq: Endpoint) -> Iterator[str]:
    rabbitmq.add_vhost("differential")
    yield rabbitmq.url_for("differential")
    rabbitmq.delete_vhost("differential")


async def play(url: str, sequence: list[Step]) -> list[list[object]]:
    """Do it all, and give what was seen after each step."""
    await clean(url)
    stage = Stage(url, QUEUES)
    await stage.open()
    seen: list[list[object]] = []
    short_lives = "=1," in repr(sequence) or "'1'" in repr(sequence) or ": 1" in repr(sequence)
    try:
        for step in sequence:
            async with asyncio.timeout(20):
                await step.act(stage)
                if short_lives:
                    await asyncio.sleep(0.06)  # what lives for a millisecond is gone after this, on either broker
                await stage.look()
            seen.append(list(stage.lines))
            stage.lines.clear()
    finally:
        await stage.close()
    return seen


async def clean(url: str) -> None:
    async with Connection(url) as connection:
        for queue in QUEUES:
            await connection.delete_queue(queue)
        for exchange in EXCHANGES:
            await connection.delete_exchange(exchange)


def compare(real_url: str, embedded: ThreadedBroker, sequence: list[Step]) -> None:
    real = asyncio.run(play(real_url, sequence))
    ours = asyncio.run(play(embedded.url, sequence))
    for step, wanted, got in zip(sequence, real, ours, strict=True):
        assert got == wanted, f"after {step!r}"


@settings(
    max_examples=SHORT,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    print_blob=True,
)
@given(sequence=sequences)
def test_the_embedded_broker_does_what_rabbitmq_does(
    real_url: str, embedded: ThreadedBroker, sequence: list[Step]
) -> None:
    compare(real_url, embedded, sequence)
