"""Who is served next: where there is a limit for a whole channel, and where there is a single active consumer."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest

from redrive.broker.broker import Broker
from redrive.broker.dialect import DIALECTS, Dialect
from redrive.broker.server import BrokerServer
from redrive.client import Connection
from redrive.client.channel import Channel
from redrive.client.transport import open_transport
from redrive.client.url import BrokerURL
from redrive.protocol.messages import Delivery
from redrive.wire.method import Method
from redrive.wire.methods.basic import BasicAck, BasicCancel, BasicConsume, BasicGet, BasicNack, BasicQos, BasicReject
from redrive.wire.methods.queue import QueueDeclare

OLD, NEW = DIALECTS["3.10"], DIALECTS["4.3"]


class Client:
    """One channel, and what was delivered on it: to whom, and what."""

    def __init__(self, channel: Channel, publish: Callable[[str, str, bytes], Awaitable[object]]) -> None:
        self._channel = channel
        self._publish = publish
        self._delivered: list[tuple[str, bytes]] = []
        channel.on_delivery = self._note

    def _note(self, delivery: Delivery) -> None:
        self._delivered.append((delivery.consumer_tag, delivery.body))

    async def ask(self, *methods: Method) -> None:
        for method in methods:
            await self._channel.ask(method)

    def tell(self, method: Method) -> None:
        self._channel.tell(method)

    async def publish(self, queue: str, body: bytes) -> None:
        await self._publish("", queue, body)

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
        link = await open_transport(url, url.hosts[0], {}, lambda: None)
        yield Client(await link.channel(), connection.publish)
        await link.close()


# A limit for the channel, which 4.3 has not any more --------------------------------------------------------

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


# A single active consumer -----------------------------------------------------------------------------------

CONSUME_AS_LOW = BasicConsume(queue="A", consumer_tag="low")
CONSUME_AS_MIDDLE = BasicConsume(queue="A", consumer_tag="middle", arguments={"x-priority": 1})
CONSUME_AS_HIGH = BasicConsume(queue="A", consumer_tag="high", arguments={"x-priority": 2})

staying = pytest.mark.parametrize(
    ("kind", "dialect"), [("classic", OLD), ("classic", NEW), ("quorum", OLD)], ids=["classic-3.10", "classic", "3.10"]
)


def one_of_many(kind: str, dialect: Dialect) -> AbstractAsyncContextManager[Client]:
    return client(dialect, **{"x-queue-type": kind, "x-single-active-consumer": True})


@staying
async def test_a_single_active_consumer_stays_that_when_one_of_a_higher_priority_comes(
    kind: str, dialect: Dialect
) -> None:
    async with one_of_many(kind, dialect) as consuming:
        await consuming.ask(CONSUME_AS_LOW, CONSUME_AS_HIGH)
        await consuming.publish("A", b"while it has one")
        consuming.tell(BasicAck(delivery_tag=2, multiple=True))
        await consuming.publish("A", b"while it has none")

        assert [tag for tag, _ in await consuming.delivered()] == ["low", "low", "low"]


@pytest.mark.parametrize(("kind", "dialect", "successor"), [("classic", OLD, "high"), ("quorum", OLD, "middle")])
async def test_the_next_active_consumer_is_the_most_important_or_who_has_waited_longest(
    kind: str, dialect: Dialect, successor: str
) -> None:
    async with one_of_many(kind, dialect) as consuming:
        await consuming.ask(CONSUME_AS_LOW, CONSUME_AS_MIDDLE, CONSUME_AS_HIGH, BasicCancel(consumer_tag="low"))
        await consuming.publish("A", b"next")

        assert (await consuming.delivered())[1:] == [(successor, b"next")]


async def test_the_single_active_consumer_of_a_quorum_queue_yields_when_it_has_settled_everything() -> None:
    async with one_of_many("quorum", NEW) as consuming:
        await consuming.ask(CONSUME_AS_LOW, CONSUME_AS_HIGH)
        await consuming.publish("A", b"waits")
        assert await consuming.delivered() == [("low", b"A")]

        consuming.tell(BasicAck(delivery_tag=1))

        assert await consuming.delivered() == [("low", b"A"), ("high", b"waits")]


async def test_who_yields_gets_nothing_before_it_has_settled_though_the_other_has_left() -> None:
    async with one_of_many("quorum", NEW) as consuming:
        await consuming.ask(CONSUME_AS_LOW, CONSUME_AS_HIGH, BasicCancel(consumer_tag="high"))
        await consuming.publish("A", b"waits")
        assert await consuming.delivered() == [("low", b"A")]

        consuming.tell(BasicAck(delivery_tag=1))

        assert await consuming.delivered() == [("low", b"A"), ("low", b"waits")]
