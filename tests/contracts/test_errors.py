"""A refusal is the caller's alone: the connection, its publishers and its consumers go on."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from contracts.observing import Collector, drained
from redrive.client import Connection, Delivery, LinkState, Properties, Publish
from redrive.client.channel import Channel
from redrive.errors import (
    AccessRefused,
    BrokerError,
    ConnectionClosed,
    EncodingError,
    NotFound,
    PreconditionFailed,
    ResourceLocked,
    Unroutable,
)
from redrive.wire.methods.basic import BasicAck, BasicConsume, BasicQos
from redrive.wire.methods.queue import QueueDeclare

Unauthenticated = Callable[[Connection], Awaitable[object]]

REFUSALS = [
    pytest.param(lambda c: c.queue_info("missing"), NotFound, 404, (50, 10), id="look up a queue"),
    pytest.param(lambda c: c.purge_queue("missing"), NotFound, 404, (50, 30), id="purge"),
    pytest.param(lambda c: c.bind_queue("orders", "missing"), NotFound, 404, (50, 20), id="bind"),
    pytest.param(lambda c: c.get("missing"), NotFound, 404, (60, 70), id="get"),
    pytest.param(lambda c: c.consume("missing"), NotFound, 404, (60, 20), id="consume"),
    pytest.param(lambda c: c.declare_queue("amq.mine"), AccessRefused, 403, (50, 10), id="declare a queue"),
    pytest.param(lambda c: c.declare_exchange("amq.mine"), AccessRefused, 403, (40, 10), id="declare an exchange"),
    pytest.param(lambda c: c.delete_exchange("amq.topic"), AccessRefused, 403, (40, 20), id="delete an exchange"),
    pytest.param(
        lambda c: c.declare_queue("orders", arguments={"x-max-length": 1}),
        PreconditionFailed,
        406,
        (50, 10),
        id="declare a queue otherwise",
    ),
    pytest.param(
        lambda c: c.declare_exchange("amq.topic", "fanout"),
        BrokerError,  # 403 for the name or 406 for the type: either is right
        None,
        (40, 10),
        id="declare an exchange otherwise",
    ),
    pytest.param(lambda c: c.queue_info("locked"), ResourceLocked, 405, (50, 10), id="look up a locked queue"),
    pytest.param(lambda c: c.consume("locked"), ResourceLocked, 405, (60, 20), id="consume a locked queue"),
]


@pytest.mark.parametrize(("refused", "error", "code", "method"), REFUSALS)
async def test_a_refusal_carries_its_code_and_the_method_and_disturbs_nobody_else(
    connection: Connection,
    other: Connection,
    refused: Unauthenticated,
    error: type[BrokerError],
    code: int | None,
    method: tuple[int, int],
) -> None:
    await other.declare_queue("locked", exclusive=True)
    await connection.declare_queue("orders")
    collector = Collector()
    consumer = await connection.consume("orders", collector)
    await connection.publish("", "orders", b"before")

    with pytest.raises(error) as caught:
        await refused(connection)
    await connection.publish("", "orders", b"after")

    assert await collector.has(2) == [b"before", b"after"]
    assert caught.value.code == (code or caught.value.code)
    assert caught.value.method == method
    assert (consumer.restarts, connection.reconnects) == (0, 0)


async def test_many_refusals_in_a_row_use_up_no_channels(connection: Connection) -> None:
    for _ in range(20):
        with pytest.raises(NotFound):
            await connection.queue_info("missing")
        with pytest.raises(NotFound):
            await connection.consume("missing")

    assert await connection.declare_queue("orders")


async def test_deliveries_that_come_behind_a_refusal_disturb_nobody(connection: Connection, channel: Channel) -> None:
    """RabbitMQ says that it closes a channel before it has sent everything that was delivered on it."""
    await connection.declare_queue("orders")
    await connection.publish_many(Publish("", "orders", bytes(300)) for _ in range(5000))
    link = channel.link

    for number in range(20):
        name, begun = f"consumer {number}", asyncio.Event()

        def deliver(delivery: Delivery, name: str = name, begun: asyncio.Event = begun) -> None:
            assert delivery.consumer_tag == name
            begun.set()

        channel.on_delivery = deliver
        await channel.ask(BasicConsume(queue="orders", consumer_tag=name))
        await begun.wait()
        channel.tell(BasicAck(delivery_tag=1_000_000))
        with pytest.raises(PreconditionFailed):
            await channel.ask(BasicQos())
        channel = await link.channel()

    await channel.ask(QueueDeclare(queue="orders", passive=True))
    assert link.alive


async def test_refusals_at_once_each_have_their_own_error(connection: Connection) -> None:
    await connection.declare_queue("orders")

    answers = await asyncio.gather(
        connection.queue_info("missing"),
        connection.queue_info("orders"),
        connection.declare_queue("amq.mine"),
        connection.declare_queue("orders"),
        connection.purge_queue("missing"),
        return_exceptions=True,
    )

    kinds = [type(answer) if isinstance(answer, Exception) else None for answer in answers]
    assert kinds == [NotFound, None, AccessRefused, None, NotFound]


async def test_headers_that_do_not_fit_into_a_frame_are_refused_before_they_could_end_the_connection(
    connection: Connection,
) -> None:
    await connection.declare_queue("orders")

    with pytest.raises(EncodingError, match="Shorten the headers"):
        await connection.publish("", "orders", b"", Properties(headers={"story": "x" * 140_000}))
    await connection.publish("", "orders", b"short")

    assert await drained(connection, "orders") == [b"short"]
    assert connection.reconnects == 0


async def test_properties_may_be_as_long_as_the_connection_says(connection: Connection) -> None:
    await connection.declare_queue("orders")
    others = len(Properties(delivery_mode=2, headers={"story": ""}).encode())
    longest = Properties(delivery_mode=2, headers={"story": "x" * (connection.properties_max - others)})
    assert len(longest.encode()) == connection.properties_max

    await connection.publish("", "orders", b"", longest)

    delivery = await connection.get("orders")
    assert delivery is not None
    assert delivery.properties == longest


async def test_arguments_that_do_not_fit_into_a_frame_are_refused_before_they_could_end_the_connection(
    connection: Connection,
) -> None:
    with pytest.raises(EncodingError, match="Shorten its arguments"):
        await connection.declare_queue("orders", arguments={"x-story": "x" * 140_000})

    assert await connection.declare_queue("orders")
    assert connection.reconnects == 0


async def test_an_unroutable_message_leaves_the_publishing_channel_open(connection: Connection) -> None:
    await connection.declare_queue("orders")

    for _ in range(10):
        with pytest.raises(Unroutable):
            await connection.publish("", "nobody", b"")
        await connection.publish("", "orders", b"")

    assert (await connection.queue_info("orders")).messages == 10


async def test_an_error_of_the_whole_connection_is_told_and_survived(connection: Connection) -> None:
    """An unknown type of exchange ends the connection on 3.10 (503), and only the channel from 4.0 on (406)."""
    await connection.declare_queue("orders")

    with pytest.raises((ConnectionClosed, PreconditionFailed), match="exchange type") as caught:
        await connection.declare_exchange("odd", "no-such-type")

    if isinstance(caught.value, ConnectionClosed):
        await asyncio.wait_for(connection.until(LinkState.RECONNECTING), 15)
    await asyncio.wait_for(connection.until(LinkState.OPEN), 15)
    await connection.publish("", "orders", b"still here")
    assert await drained(connection, "orders") == [b"still here"]
