"""The network breaks in every way it knows: what was declared, published and consumed goes on by itself."""

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import timedelta

import pytest

from redrive.client import Connection, Consumer, ConsumerState, Delivery, LinkState
from redrive.errors import NotFound, NotPublished, PublishUnknown
from redrive.recovery.backoff import Backoff
from tests.support.proxy import FaultProxy

QUICK = Backoff(first=timedelta(milliseconds=5), ceiling=timedelta(milliseconds=50))


@pytest.fixture
async def network(amqp_url: str) -> AsyncIterator[FaultProxy]:
    async with FaultProxy(amqp_url) as proxy:
        yield proxy


@pytest.fixture
async def connection(network: FaultProxy) -> AsyncIterator[Connection]:
    async with Connection(network.url + "?heartbeat=1", backoff=QUICK) as connection:
        yield connection


@pytest.fixture
async def steady(amqp_url: str) -> AsyncIterator[Connection]:
    """A connection of its own that nothing disturbs, to look at the broker."""
    async with Connection(amqp_url) as connection:
        yield connection


async def reconnected(connection: Connection, times: int = 1) -> None:
    async with asyncio.timeout(20):
        while connection.reconnects < times or connection.state is not LinkState.OPEN:
            await connection.until(LinkState.RECONNECTING, LinkState.CONNECTING)
            await connection.until(LinkState.OPEN)


async def eventually(condition: Callable[[], object]) -> None:
    """Wait for a fact that has no event of its own."""
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


class Collector:
    """A handler that keeps what it got."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    async def __call__(self, delivery: Delivery) -> None:
        self.bodies.append(delivery.body)
        delivery.ack()


@pytest.mark.parametrize("fault", ["cut", "stall", "refuse"])
async def test_a_consumer_goes_on_after_the_network_was_gone(
    connection: Connection, network: FaultProxy, steady: Connection, fault: str
) -> None:
    collector = Collector()
    await connection.declare_queue("orders")
    consumer = await connection.consume("orders", collector)
    getattr(network, fault)()
    if fault == "refuse":
        network.cut()
    await steady.publish("", "orders", b"while you were away")
    await asyncio.wait_for(connection.until(LinkState.RECONNECTING), 20)
    await {"cut": _nothing, "stall": network_resume, "refuse": network_accept}[fault](network)

    await eventually(lambda: b"while you were away" in collector.bodies)
    assert consumer.restarts >= 1


async def _nothing(network: FaultProxy) -> None:
    del network


async def network_resume(network: FaultProxy) -> None:
    network.cut()
    network.resume()


async def network_accept(network: FaultProxy) -> None:
    await network.accept()


async def test_a_server_named_queue_its_bindings_and_its_consumer_are_made_again(
    connection: Connection, network: FaultProxy, steady: Connection
) -> None:
    collector = Collector()
    await connection.declare_exchange("news", "topic", durable=False)
    queue = await connection.declare_queue(exclusive=True, durable=False)
    await connection.bind_queue(queue.name, "news", "sport.#")
    consumer = await connection.consume(queue.name, collector)
    network.cut()
    await reconnected(connection)
    await eventually(lambda: consumer.restarts == 1 and consumer.state is ConsumerState.CONSUMING)

    await steady.publish("news", "sport.chess", b"e4")

    await eventually(lambda: collector.bodies == [b"e4"])
    assert consumer.queue != queue.name


async def test_a_deleted_queue_that_was_declared_here_is_made_again_and_consumed(
    connection: Connection, steady: Connection
) -> None:
    collector = Collector()
    await connection.declare_exchange("news", "fanout")
    await connection.declare_queue("paper")
    await connection.bind_queue("paper", "news")
    consumer = await connection.consume("paper", collector)
    await steady.delete_queue("paper")
    await eventually(lambda: consumer.restarts == 1 and consumer.state is ConsumerState.CONSUMING)

    await steady.publish("news", "", b"extra")

    await eventually(lambda: collector.bodies == [b"extra"])


async def test_a_consumer_of_a_foreign_queue_waits_until_it_is_back(connection: Connection, steady: Connection) -> None:
    collector = Collector()
    await steady.declare_queue("theirs")
    consumer = await connection.consume("theirs", collector)
    await steady.delete_queue("theirs")
    await eventually(lambda: isinstance(consumer.last_error, NotFound))

    await steady.declare_queue("theirs")
    await steady.publish("", "theirs", b"again")

    await eventually(lambda: collector.bodies == [b"again"])


async def test_unconfirmed_publishes_are_reported_unknown_and_later_ones_wait_for_the_next_connection(
    connection: Connection, network: FaultProxy, steady: Connection
) -> None:
    await connection.declare_queue("orders")
    network.stall()
    under_way = asyncio.create_task(connection.publish("", "orders", b"first"))
    await eventually(lambda: connection.unconfirmed == 1)
    network.cut()
    network.resume()
    with pytest.raises(PublishUnknown):
        await under_way

    await connection.publish("", "orders", b"second")

    delivery = await steady.get("orders")
    assert delivery is not None
    assert delivery.body == b"second"


async def test_without_a_connection_a_publish_gives_up_after_its_patience(network: FaultProxy) -> None:
    patience = timedelta(milliseconds=50)
    async with Connection(network.url, backoff=QUICK, patience=patience) as connection:
        network.refuse()
        network.cut()
        await connection.until(LinkState.RECONNECTING)

        with pytest.raises(NotPublished, match="not connected"):
            await connection.publish("", "anywhere", b"")


async def test_a_delivery_from_before_the_cut_cannot_be_settled_and_comes_again(
    connection: Connection, network: FaultProxy, steady: Connection
) -> None:
    await connection.declare_queue("orders")
    await steady.publish("", "orders", b"one")
    async with await connection.consume("orders") as consumer:
        before = await anext(consumer)
        network.cut()
        await reconnected(connection)
        after = await anext(consumer)

        assert before.ack() is False
        assert after.redelivered
        assert after.ack() is True
    assert await steady.get("orders") is None


async def test_the_network_breaks_fifty_times_and_every_confirmed_message_is_consumed(
    connection: Connection, network: FaultProxy, steady: Connection
) -> None:
    await connection.declare_queue("orders")
    confirmed: set[bytes] = set()
    collector = Collector()
    consumer = await connection.consume("orders", collector, prefetch=20)
    cutting = True

    async def publish() -> None:
        number = 0
        while cutting:
            body = str(number).encode()
            try:
                await steady.publish("", "orders", body)
                confirmed.add(body)
            except PublishUnknown:
                pass
            number += 1

    publishing = asyncio.create_task(publish())
    for turn in range(50):
        await eventually(lambda turn=turn: connection.reconnects >= turn and connection.state is LinkState.OPEN)
        if turn % 3 == 0:
            network.truncate_after(turn * 7, to="client")
        network.cut()
        await eventually(lambda: connection.state is not LinkState.OPEN)
    cutting = False
    await publishing

    await eventually(lambda: confirmed <= set(collector.bodies))
    assert consumer.state is ConsumerState.CONSUMING


async def test_a_connection_that_is_cut_during_every_step_of_the_handshake_still_comes_back(
    connection: Connection, network: FaultProxy
) -> None:
    await connection.declare_queue("orders")
    for length in (0, 1, 7, 8, 100, 300, 500, 520, 540, 560, 580, 600):
        before = connection.reconnects
        network.cut()
        network.truncate_after(length, to="client")
        await eventually(lambda before=before: connection.reconnects > before and connection.state is LinkState.OPEN)

        await connection.publish("", "orders", b"still here")


async def test_closing_while_disconnected_ends_at_once(network: FaultProxy) -> None:
    connection = await Connection(network.url, backoff=QUICK).open()
    await connection.declare_queue("orders")
    consumer: Consumer = await connection.consume("orders", Collector())
    network.refuse()
    network.cut()
    await connection.until(LinkState.RECONNECTING)

    async with asyncio.timeout(5):
        await connection.close()

    assert connection.state is LinkState.CLOSED
    assert consumer.state is ConsumerState.CANCELLED
