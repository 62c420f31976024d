"""The embedded broker beside a real RabbitMQ: the same acts, the same transcript.

Hypothesis makes up sequences of acts; each is done on both brokers, and everything that can be seen is compared after
every step: replies, refusals with their codes and texts, confirms, returns, deliveries with their headers, and what the
queues hold. A sequence on which the two differ is shrunk to the shortest that shows it.

The sequences come in batches of ten, each from a seed of its own: they are the same ones in every run, and Hypothesis,
which after its tenth example would go on to vary those it has, makes up each anew. `REDRIVE_SEQUENCES` says how many;
`REDRIVE_FIRST_SEQUENCE` where to begin, for others than those of yesterday.
"""

import asyncio
import os
import secrets
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, seed, settings

from differential.acts import Step, sequences
from differential.play import Tally, compare
from redrive.broker.dialect import DIALECTS
from redrive.testing import Endpoint
from redrive.testing.broker import ThreadedBroker

BATCH = 10
FIRST = int(os.environ.get("REDRIVE_FIRST_SEQUENCE", "0")) // BATCH
BATCHES = range(FIRST, FIRST + max(1, int(os.environ.get("REDRIVE_SEQUENCES", "60")) // BATCH))


@pytest.fixture(scope="module")
def embedded(rabbitmq: Endpoint) -> Iterator[ThreadedBroker]:
    version = ".".join(map(str, rabbitmq.version[:2]))
    with ThreadedBroker(dialect=DIALECTS[version]) as broker:
        yield broker


@pytest.fixture(scope="module")
def real_url(rabbitmq: Endpoint) -> Iterator[str]:
    vhost = f"differential-{secrets.token_hex(4)}"
    rabbitmq.add_vhost(vhost)
    yield rabbitmq.url_for(vhost)
    rabbitmq.delete_vhost(vhost)


@pytest.fixture
def tally(request: pytest.FixtureRequest, rabbitmq: Endpoint) -> Iterator[Tally]:
    """What a batch compared is told with its report, and added up at the end of the run (conftest)."""
    tally = Tally()
    yield tally
    request.node.user_properties.append(("differential", (list(rabbitmq.version), *tally)))


@pytest.mark.parametrize("batch", BATCHES)
def test_the_embedded_broker_does_what_rabbitmq_does(
    batch: int, real_url: str, embedded: ThreadedBroker, tally: Tally
) -> None:
    @seed(batch)
    @settings(max_examples=BATCH, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(sequence=sequences)
    def is_the_same_on_both(sequence: list[Step]) -> None:
        difference = asyncio.run(compare(real_url, embedded.url, sequence, tally))
        assert difference is None, f"{difference}\n\nin\n{sequence}"

    is_the_same_on_both()
