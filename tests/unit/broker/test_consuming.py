"""Who is served next, where there is a limit for a whole channel. RabbitMQ 4.3 has none any more."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from redrive.broker.broker import Broker
from redrive.broker.dialect import DIALECTS, Dialect
from redrive.broker.server import BrokerServer
from redrive.client import Connection
from redrive.client.channel import Channel
from redrive.client.link import open_link
from redrive.client.url import BrokerURL
from redrive.protocol.content import Delivery
from redrive.wire.method import Method
from redrive.wire.methods.basic import BasicAck, BasicCancel, BasicConsume, BasicGet, BasicNack, BasicQos, BasicReject
from redrive.wire.methods.queue import QueueDeclare

OLD = DIALECTS["3.10"]


class Client:
    """One channel, and what was delivered on it: to whom, and what."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._delivered: list[tuple[str, bytes]] = []
        channel.on_delivery = self._note

    def _note(self, delivery: Delivery) -> None:
        self._delivered.append((delivery.consumer_tag, delivery.body))

    async def ask(self, *methods: Method) -> None:
        for method in methods:
            await self._channel.ask(method)

    def tell(self, method: Method) -> None:
        self._channel.tell(method)

    async def delivered(self) -> list[tuple[str, bytes]]:
        """What the broker has delivered by now: it answers a question after all that it said before."""
        await self.ask(QueueDeclare(queue="A", passive=True))
        return self._delivered


@asynccontextmanager
async def client(dialect: Dialect = OLD, **arguments: str | bool) -> AsyncIterator[Client]:
    """Of a broker with queues A and B, and one message in each that says where it is from."""
    async with BrokerServer(Broker(dialect=dialect)) as server, Connection(server.url) as connection:
        for queue in ("A", "B"):
            await connection.declare_queue(queue, arguments=arguments)
            await connection.publish("", queue, queue.encode())
        url = BrokerURL.parse(server.url)
        link = await open_link(url, url.hosts[0], {}, lambda: None)
        yield Client(await link.channel())
        await link.close()


ONE_AT_A_TIME = BasicQos(prefetch_count=1, global_=True)
CONSUME_A = BasicConsume(queue="A", consumer_tag="a")
CONSUME_B = BasicConsume(queue="B", consumer_tag="b")


@pytest.mark.parametrize(
    "settlement",
    [
        BasicAck(delivery_tag=1),
        BasicReject(delivery_tag=1, requeue=False),
        BasicNack(delivery_tag=1, requeue=False),
    ],
    ids=lambda method: method.name,
)
async def test_room_on_a_channel_is_room_for_its_other_queues_however_it_came(settlement: Method) -> None:
    async with client() as consuming:
        await consuming.ask(ONE_AT_A_TIME, CONSUME_A, CONSUME_B)
        assert await consuming.delivered() == [("a", b"A")]

        consuming.tell(settlement)

        assert await consuming.delivered() == [("a", b"A"), ("b", b"B")]


async def test_what_was_got_takes_no_room_from_the_consumers_of_a_channel() -> None:
    async with client() as consuming:
        await consuming.ask(ONE_AT_A_TIME, BasicGet(queue="A"), CONSUME_B)

        assert await consuming.delivered() == [("b", b"B")]


async def test_what_a_cancelled_consumer_has_not_settled_takes_room_on_its_channel() -> None:
    async with client() as consuming:
        await consuming.ask(ONE_AT_A_TIME, CONSUME_A, BasicCancel(consumer_tag="a"), CONSUME_B)
        assert await consuming.delivered() == [("a", b"A")]

        consuming.tell(BasicAck(delivery_tag=1))

        assert await consuming.delivered() == [("a", b"A"), ("b", b"B")]
