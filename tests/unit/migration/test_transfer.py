"""Messages carried from queue to queue: what is written on them, and that none is lost when something fails."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.client import Connection, Delivery, Properties
from redrive.errors import ConnectionLost, ResourceLocked, Unroutable
from redrive.migration.calls import MigrationCalls
from redrive.migration.transfer import QueueTransfer, TransferRoute, with_restored_expiration, with_stored_expiration
from redrive.testing.broker import ThreadedBroker
from redrive.wire.properties import decode_properties
from redrive.wire.raw_properties import patch_properties, raw_long

texts = st.text(st.characters(codec="utf-8"), max_size=10)
PROPERTIES = st.builds(
    Properties,
    content_type=st.none() | texts,
    headers=st.none() | st.dictionaries(texts, texts, max_size=3),
    delivery_mode=st.none() | st.integers(0, 2),
    priority=st.none() | st.integers(0, 255),
    reply_to=st.none() | texts,
    expiration=st.none() | texts,
    message_id=st.none() | texts,
    app_id=st.none() | texts,
)


# What is written on a message -------------------------------------------------------------------------


@given(PROPERTIES)
def test_a_message_that_waited_is_as_it_was_byte_for_byte(properties: Properties) -> None:
    raw = properties.encode()

    assert with_restored_expiration(with_stored_expiration(raw, "me"), "me") == raw


@given(PROPERTIES)
def test_a_message_that_waits_does_not_expire(properties: Properties) -> None:
    assert decode_properties(with_stored_expiration(properties.encode(), "me")).expiration is None


@given(PROPERTIES)
def test_a_message_may_be_set_aside_twice_before_it_comes_home(properties: Properties) -> None:
    raw = properties.encode()

    assert with_restored_expiration(with_stored_expiration(with_stored_expiration(raw, "me"), "me"), "me") == raw


@given(PROPERTIES)
def test_a_message_that_never_waited_comes_home_as_it_is(properties: Properties) -> None:
    assert with_restored_expiration(properties.encode(), "me") == properties.encode()


@pytest.mark.parametrize("write", [with_stored_expiration, with_restored_expiration])
def test_ones_own_user_stays_and_anothers_becomes_a_header(write: object) -> None:
    assert callable(write)
    raw = Properties(user_id="guest", app_id="shop").encode()

    assert write(raw, "guest") == raw
    assert decode_properties(write(raw, "me")) == Properties(headers={"x-redrive-user-id": "guest"}, app_id="shop")


def test_a_user_is_a_header_too_where_nobody_knows_who_publishes() -> None:
    assert decode_properties(with_stored_expiration(Properties(user_id="guest").encode(), None)).user_id is None


@pytest.mark.parametrize("headers", [None, {"mine": "keep"}])
def test_how_often_the_broker_delivered_it_is_no_part_of_a_message(headers: dict[str, str] | None) -> None:
    raw = Properties(headers=headers, priority=1).encode()
    counted = patch_properties(raw, set_headers={b"x-acquired-count": raw_long(2), b"x-delivery-count": raw_long(1)})

    assert with_stored_expiration(counted, "me") == raw
    assert with_restored_expiration(counted, "me") == raw


# Pumps ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def broker() -> Iterator[ThreadedBroker]:
    with ThreadedBroker() as broker:
        yield broker


@pytest.fixture
async def connection(broker: ThreadedBroker, request: pytest.FixtureRequest) -> AsyncIterator[Connection]:
    """With queues `here` and `there`, and a lane from the one to the other."""
    async with Connection(broker.add_vhost(request.node.name), name="carrying") as connection:
        await connection.declare_exchange("lane", "fanout")
        for queue in ("here", "there"):
            await connection.declare_queue(queue)
        await connection.bind_queue("there", "lane")
        yield connection


def pump(connection: Connection, *, lane: str = "lane") -> QueueTransfer:
    return QueueTransfer(
        MigrationCalls(connection), "here", lambda _: TransferRoute(lane, waits=False), window=10, user="guest"
    )


async def fill(connection: Connection, count: int, first: int = 0) -> None:
    for number in range(first, first + count):
        await connection.publish("", "here", str(number).encode())


async def content(connection: Connection, queue: str) -> list[int]:
    found = []
    while (delivery := await connection.get(queue)) is not None:
        found.append(int(delivery.body))
        delivery.ack()
    return found


async def test_everything_arrives_in_order_and_nothing_stays(connection: Connection) -> None:
    await fill(connection, 300)

    async with pump(connection) as carrying:
        await carrying.drain()

    assert carrying.carried == 300
    assert await content(connection, "there") == list(range(300))
    assert await content(connection, "here") == []


async def test_a_message_keeps_its_routing_key_and_its_copies_go_nowhere(connection: Connection) -> None:
    """Over the default exchange the key would be the queue's name, and CC would bring copies to other queues."""
    await connection.declare_queue("elsewhere")
    await connection.declare_exchange("events", "topic")
    await connection.bind_queue("here", "events", "order.*")
    original = Properties(headers={"CC": ["elsewhere"]}, delivery_mode=1, priority=3)
    await connection.publish("events", "order.created", b"1", original)

    async with pump(connection) as carrying:
        await carrying.drain()

    delivery = await connection.get("there")
    assert delivery is not None
    assert (delivery.routing_key, delivery.properties) == ("order.created", original)
    assert await connection.get("elsewhere") is None


async def test_what_comes_while_it_runs_is_carried_too(connection: Connection) -> None:
    await fill(connection, 20)

    async with pump(connection) as carrying:
        await asyncio.gather(carrying.drain(), fill(connection, 200, first=20))
        await carrying.drain()

    assert await content(connection, "there") == list(range(220))


async def test_a_lane_that_leads_nowhere_is_an_error_and_everything_is_back_in_its_place(
    connection: Connection,
) -> None:
    await connection.declare_exchange("nowhere", "fanout")
    await fill(connection, 30)

    with pytest.raises(Unroutable):
        async with pump(connection, lane="nowhere") as carrying:
            await carrying.drain()

    async with pump(connection) as carrying:
        await carrying.drain()
    assert await content(connection, "there") == list(range(30))


async def test_what_comes_in_the_silence_goes_back_in_its_place(connection: Connection) -> None:
    async with pump(connection) as carrying:
        await carrying.wait_for_lull()
        await fill(connection, 5)
        assert not await carrying.is_silent(5)

    async with pump(connection) as carrying:
        await carrying.drain()
    assert await content(connection, "there") == list(range(5))


async def test_silence_is_kept_when_nothing_comes(connection: Connection) -> None:
    async with pump(connection) as carrying:
        assert await carrying.is_silent(0.05)


async def test_pumping_can_be_taken_up_after_a_silence_that_was_broken(connection: Connection) -> None:
    async with pump(connection) as carrying:
        await fill(connection, 5)
        assert not await carrying.is_silent(5)
        await carrying.drain()

    assert await content(connection, "there") == list(range(5))


async def test_beside_another_consumer_nothing_is_taken(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redrive.migration.transfer._TRIES", 2)
    monkeypatch.setattr("redrive.migration.transfer._PATIENCE", 0.01)

    async def keep(_: Delivery) -> None:
        await asyncio.Event().wait()

    consumer = await connection.consume("here", keep)
    with pytest.raises(ResourceLocked, match="queue here has other consumers: stop them"):
        async with pump(connection):
            pass
    await consumer.abort()


async def test_a_queue_with_a_single_active_consumer_is_entered_when_nobody_is_there(connection: Connection) -> None:
    """RabbitMQ lets nobody consume exclusively from such a queue."""
    await connection.delete_queue("here")
    await connection.declare_queue("here", arguments={"x-single-active-consumer": True})
    await fill(connection, 5)

    async with pump(connection) as carrying:
        await carrying.drain()

    assert await content(connection, "there") == list(range(5))


async def test_one_that_cannot_see_whether_it_is_alone_leaves(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would come back with the next connection, and keep what it is sent."""
    carrying = pump(connection)

    async def lost(_: str) -> None:
        raise ConnectionLost("reset")

    monkeypatch.setattr(carrying._operations, "usage", lost)
    with pytest.raises(ConnectionLost):
        await carrying.__aenter__()

    assert (await connection.queue_info("here")).consumers == 0
