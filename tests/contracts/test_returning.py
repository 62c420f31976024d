"""What is given back, and in which order it comes again; and what a message that failed takes along when it dies."""

from typing import Any

import pytest

from contracts.observing import consumers, drained, eventually, got, ready
from redrive.client import Connection, Delivery, Publish
from redrive.client.channel import Channel
from redrive.errors import PreconditionFailed
from redrive.wire.method import Method
from redrive.wire.methods.basic import (
    BasicAck,
    BasicCancel,
    BasicConsume,
    BasicGet,
    BasicGetOk,
    BasicNack,
    BasicQos,
    BasicRecover,
    BasicReject,
)

QUORUM = {"x-queue-type": "quorum"}


@pytest.fixture
async def orders(request: pytest.FixtureRequest, connection: Connection) -> str:
    """Three numbered messages, in a classic queue unless the test wants other arguments."""
    await connection.declare_queue("orders", arguments=getattr(request, "param", {}))
    await connection.publish_many(Publish("", "orders", str(number).encode()) for number in range(3))
    return "orders"


class Inbox(list[bytes]):
    """What a channel was delivered."""

    def __init__(self, channel: Channel) -> None:
        channel.on_delivery = self._add

    def _add(self, delivery: Delivery) -> None:
        self.append(delivery.body)

    async def has(self, *bodies: bytes) -> None:
        async def bodies_so_far() -> list[bytes]:
            return list(self)

        await eventually(bodies_so_far, list(bodies))


async def consume(channel: Channel, queue: str, tag: str, *, prefetch: int, no_ack: bool = False) -> None:
    await channel.ask(BasicQos(prefetch_count=prefetch))
    await channel.ask(BasicConsume(queue=queue, consumer_tag=tag, no_ack=no_ack))


async def get(channel: Channel, queue: str) -> bytes:
    answer = await channel.ask(BasicGet(queue=queue))
    assert isinstance(answer.method, BasicGetOk)
    return answer.body


@pytest.mark.parametrize("orders", [{}, QUORUM], indirect=True, ids=["classic", "quorum"])
@pytest.mark.parametrize("way", [BasicRecover(requeue=True), BasicNack(multiple=True, requeue=True)])
async def test_what_was_got_is_given_back_before_what_consumers_had_and_is_handed_out_in_between(
    channel: Channel, orders: str, way: BasicRecover | BasicNack
) -> None:
    inbox = Inbox(channel)
    await consume(channel, orders, "leaving", prefetch=1)
    await inbox.has(b"0")
    await channel.ask(BasicCancel(consumer_tag="leaving"))
    assert [await get(channel, orders), await get(channel, orders)] == [b"1", b"2"]
    await consume(channel, orders, "staying", prefetch=0)

    await channel.ask(way) if isinstance(way, BasicRecover) else channel.tell(way)

    await inbox.has(b"0", b"1", b"2", b"0")


@pytest.mark.parametrize("orders", [QUORUM], indirect=True, ids=["quorum"])
async def test_a_channel_that_ends_gives_back_to_a_quorum_queue_in_the_order_of_the_version(
    connection: Connection, channel: Channel, orders: str
) -> None:
    """By the names of the consumers, of which a delivery tag is one; or by when they came, and what was got at last."""
    inbox = Inbox(channel)
    assert await get(channel, orders) == b"0"
    await consume(channel, orders, "b", prefetch=1)
    await inbox.has(b"1")
    await consume(channel, orders, "a", prefetch=1)
    await inbox.has(b"1", b"2")

    await channel.close()

    await ready(connection, orders, 3)
    bodies = [(await got(connection, orders)).body for _ in range(3)]
    assert bodies == ([b"1", b"2", b"0"] if connection.server_version >= (4, 0) else [b"0", b"2", b"1"])


ONE_ACTIVE = {"x-single-active-consumer": True}


@pytest.mark.parametrize("orders", [ONE_ACTIVE, ONE_ACTIVE | QUORUM], indirect=True, ids=["classic", "quorum"])
async def test_a_channel_that_ends_has_given_back_before_the_next_active_consumer_is_served(
    channel: Channel, orders: str
) -> None:
    next_channel = await channel.link.channel()
    inbox, next_inbox = Inbox(channel), Inbox(next_channel)
    await consume(channel, orders, "active", prefetch=1)
    await consume(next_channel, orders, "waiting", prefetch=0)
    await inbox.has(b"0")

    await channel.close()

    await next_inbox.has(b"0", b"1", b"2")


# Of what comes back, the older message is too much and dies.
SMALL: dict[str, Any] = {"x-max-length": 1, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "target"}


async def end_with_two_from(source: str, channel: Channel, connection: Connection, *, no_ack: bool) -> None:
    """End a channel that has two messages of a small queue and a consumer on the queue that gets one of them."""
    inbox = Inbox(channel)
    await consume(channel, source, "of the source", prefetch=0)
    await consume(channel, "target", "of the target", prefetch=0, no_ack=no_ack)
    await connection.publish_many(Publish("", source, body) for body in (b"0", b"1"))
    await inbox.has(b"0", b"1")

    await channel.close()

    await consumers(connection, "target", 0)
    await ready(connection, source, 1)


@pytest.mark.parametrize(
    ("target", "no_ack"), [({}, False), ({}, True), (QUORUM, False)], ids=["classic", "classic, no acks", "quorum"]
)
async def test_an_older_queue_still_serves_a_channel_that_ends_when_a_younger_one_has_its_messages_back(
    connection: Connection, channel: Channel, target: dict[str, str], no_ack: bool
) -> None:
    await connection.declare_queue("target", arguments=target)
    await connection.declare_queue("source", arguments=SMALL)

    await end_with_two_from("source", channel, connection, no_ack=no_ack)

    if no_ack:
        await ready(connection, "target", 0)
        return
    dead = await got(connection, "target")
    assert (dead.body, dead.redelivered) == (b"0", True)


@pytest.mark.parametrize("no_ack", [False, True], ids=["acks", "no acks"])
async def test_a_younger_queue_has_left_a_channel_that_ends_when_an_older_one_has_its_messages_back(
    connection: Connection, channel: Channel, no_ack: bool
) -> None:
    await connection.declare_queue("source", arguments=SMALL)
    await connection.declare_queue("target")

    await end_with_two_from("source", channel, connection, no_ack=no_ack)

    dead = await got(connection, "target")
    assert (dead.body, dead.redelivered) == (b"0", connection.server_version >= (4, 3))


DEAD = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}


@pytest.mark.parametrize("orders", [DEAD, DEAD | QUORUM], indirect=True, ids=["classic", "quorum"])
@pytest.mark.parametrize(("settle", "counts"), [("reject", True), ("nack", False)])
async def test_what_was_rejected_is_redelivered_as_a_dead_letter_from_4_3_on(
    connection: Connection, orders: str, settle: str, counts: bool
) -> None:
    await connection.declare_queue("dead")
    getattr(await got(connection, orders), settle)(requeue=False)

    assert (await got(connection, "dead")).redelivered == (counts and connection.server_version >= (4, 3))


@pytest.mark.parametrize("orders", [DEAD, DEAD | QUORUM], indirect=True, ids=["classic", "quorum"])
async def test_a_quorum_queue_counts_on_from_where_a_dead_letter_failed_in_another_queue_from_4_3_on(
    connection: Connection, other: Connection, orders: str
) -> None:
    if connection.server_version < (4, 3):
        pytest.skip("3.10 begins anew, 4.0 counts the rejection alone")
    await connection.declare_queue("dead", arguments=QUORUM)
    assert (await got(other, orders)).body == b"0"
    await other.close()
    await ready(connection, orders, 3)
    (await _first(connection, orders)).reject(requeue=True)
    await ready(connection, orders, 3)
    (await _first(connection, orders)).nack(requeue=False)

    headers = (await got(connection, "dead")).properties.headers or {}

    assert (headers["x-delivery-count"], headers["x-acquired-count"]) == (2, 2)


async def _first(connection: Connection, queue: str) -> Delivery:
    delivery = await got(connection, queue)
    assert delivery.body == b"0"
    return delivery


async def test_a_quorum_queue_that_is_to_reject_and_dead_letter_drops_its_oldest_instead(
    connection: Connection,
) -> None:
    limits = {"x-max-length": 2, "x-overflow": "reject-publish-dlx"}
    await connection.declare_queue("orders", arguments=QUORUM | limits)
    for body in (b"0", b"1", b"2"):
        await connection.publish("", "orders", body)

    await ready(connection, "orders", 2)
    assert [(await got(connection, "orders")).body for _ in range(2)] == [b"1", b"2"]


# Delivery tags --------------------------------------------------------------------------------------------

ALL = [BasicAck(multiple=True), BasicNack(multiple=True), BasicNack(multiple=True, requeue=True)]


def upto(tag: int) -> list[Method]:
    """Everything that settles up to a delivery, or this one alone."""
    many = [BasicAck(delivery_tag=tag, multiple=True), BasicNack(delivery_tag=tag, multiple=True)]
    return [*many, BasicAck(delivery_tag=tag), BasicNack(delivery_tag=tag), BasicReject(delivery_tag=tag)]


@pytest.mark.parametrize("orders", [{}, QUORUM], indirect=True, ids=["classic", "quorum"])
@pytest.mark.parametrize("way", [*upto(2), *upto(4)], ids=repr)
async def test_who_settles_up_to_a_delivery_that_is_not_open_is_refused_and_everything_comes_back(
    connection: Connection, channel: Channel, orders: str, way: BasicAck | BasicNack | BasicReject
) -> None:
    """One that was settled, or one that never was; although others are open before and after it."""
    assert [await get(channel, orders) for _ in range(3)] == [b"0", b"1", b"2"]
    channel.tell(BasicAck(delivery_tag=2))

    channel.tell(way)

    with pytest.raises(PreconditionFailed, match=f"unknown delivery tag {way.delivery_tag}"):
        await channel.ask(BasicQos())
    await ready(connection, orders, 2)
    assert await drained(connection, orders) == [b"0", b"2"]


@pytest.mark.parametrize("way", ALL, ids=repr)
async def test_who_settles_all_may_have_nothing_open(channel: Channel, orders: str, way: BasicAck | BasicNack) -> None:
    channel.tell(way)
    assert await get(channel, orders) == b"0"
    channel.tell(BasicAck(delivery_tag=1))

    channel.tell(way)

    assert await get(channel, orders) == b"1"


@pytest.mark.parametrize("way", [BasicAck(), BasicNack(), BasicReject()], ids=repr)
async def test_no_delivery_has_the_tag_0(
    channel: Channel, orders: str, way: BasicAck | BasicNack | BasicReject
) -> None:
    assert await get(channel, orders) == b"0"

    channel.tell(way)

    with pytest.raises(PreconditionFailed, match="unknown delivery tag 0"):
        await channel.ask(BasicQos())
