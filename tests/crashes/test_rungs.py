"""The broker goes down while retries leave their rung: the rung hands over what expires, and nobody confirms that.

From a quorum queue messages go at least once, and from the embedded broker's queues in one commit. A classic queue of
RabbitMQ lets go of them at once, in an orderly shutdown too: what is on the way to the main queue then is lost.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from redrive import App, Retry
from redrive.client import Connection, Properties, Publish
from redrive.testing import RabbitMQ
from redrive.testing.broker_process import EmbeddedBroker

pytestmark = pytest.mark.slow

MESSAGES = 20_000
RETRY = Retry(attempts=2, delay="5s")  # longer than it takes to publish them
LOSES = pytest.mark.xfail(reason="RabbitMQ's classic queues dead-letter at most once", strict=False)


@pytest.fixture(params=["embedded", pytest.param("rabbitmq", marks=pytest.mark.rabbitmq)])
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[EmbeddedBroker | RabbitMQ]:
    if request.param == "embedded":
        with EmbeddedBroker(tmp_path / "broker", data=tmp_path / "broker" / "data") as embedded:
            yield embedded
    else:
        yield request.getfixturevalue("own_rabbitmq")


async def fill_the_rung(connection: Connection) -> None:
    await connection.publish_many(
        Publish("retry.orders", "retry", str(number).encode(), Properties(delivery_mode=2))
        for number in range(MESSAGES)
    )


async def arrived(connection: Connection, count: int) -> None:
    while (await connection.queue_info("orders")).messages < count:  # noqa: ASYNC110 - the broker is the one to ask
        await asyncio.sleep(0.005)


async def read_what_arrives(connection: Connection) -> Counter[int]:
    """All that come, until none has come for a while: what is lost gives no sign."""
    found: Counter[int] = Counter()
    async with await connection.consume("orders", prefetch=1000) as consumer:
        try:
            while True:
                async with asyncio.timeout(5 if len(found) == MESSAGES else 30):
                    delivery = await anext(consumer)
                found[int(delivery.body)] += 1
                delivery.ack()
        except TimeoutError:
            return found


@pytest.mark.parametrize("way", ["kill", "stop"])
@pytest.mark.parametrize("kind", ["quorum", "classic"])
async def test_what_leaves_its_rung_while_the_broker_goes_down_arrives(
    request: pytest.FixtureRequest, broker: EmbeddedBroker | RabbitMQ, kind: str, way: str
) -> None:
    if kind == "classic" and isinstance(broker, RabbitMQ):
        request.applymarker(LOSES)
    app = App("shop", broker=broker.url, queue_type=kind)
    app.queue("orders", retry=RETRY)
    async with app, Connection(broker.url) as connection:
        await fill_the_rung(connection)
        await arrived(connection, MESSAGES // 3)
    await asyncio.to_thread(getattr(broker, way))
    await asyncio.to_thread(broker.start)
    async with Connection(broker.url) as connection:
        found = await read_what_arrives(connection)
    assert MESSAGES - len(found) == 0, "lost"
