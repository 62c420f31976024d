"""tx: what is published and settled counts when it is committed, and what is wrong with it is told before."""

import asyncio

import pytest

from contracts.observing import drained, eventually, ready, told
from redrive.client import Connection
from redrive.client.channel import Channel
from redrive.errors import BrokerError
from redrive.protocol.messages import Incoming
from redrive.wire.methods.basic import BasicAck, BasicGet, BasicGetOk, BasicNack, BasicReject, BasicReturn
from redrive.wire.methods.confirm import ConfirmSelect
from redrive.wire.methods.queue import QueueBind, QueueUnbind
from redrive.wire.methods.tx import TxCommit, TxRollback, TxSelect

FULL = {"x-max-length": 1, "x-overflow": "reject-publish"}


@pytest.fixture
async def orders(connection: Connection) -> str:
    await connection.declare_queue("orders")
    return "orders"


async def got(channel: Channel, queue: str) -> int:
    """Get a message and give its delivery tag."""
    answer = (await channel.ask(BasicGet(queue=queue))).method
    assert isinstance(answer, BasicGetOk)
    return answer.delivery_tag


async def test_what_is_published_is_there_when_it_is_committed(
    connection: Connection, channel: Channel, orders: str
) -> None:
    await channel.ask(TxSelect())
    told(channel, "", orders, b"1")
    told(channel, "", orders, b"2")
    await channel.ask(TxSelect())  # does not begin anything anew
    assert (await connection.queue_info(orders)).messages == 0

    await channel.ask(TxCommit())

    assert await drained(connection, orders) == [b"1", b"2"]


async def test_what_is_rolled_back_was_never_published(connection: Connection, channel: Channel, orders: str) -> None:
    await channel.ask(TxSelect())
    told(channel, "", orders, b"never")
    await channel.ask(TxRollback())

    await channel.ask(TxCommit())

    assert (await connection.queue_info(orders)).messages == 0


async def test_a_missing_exchange_is_told_at_once(channel: Channel) -> None:
    await channel.ask(TxSelect())
    told(channel, "nowhere", "", b"lost")

    with pytest.raises(BrokerError, match="no exchange 'nowhere'"):
        await channel.ask(TxSelect())


async def test_a_message_finds_its_way_when_it_is_published(
    connection: Connection, channel: Channel, orders: str
) -> None:
    await connection.declare_exchange("news", "fanout")
    await connection.declare_queue("late")
    await channel.ask(TxSelect())
    await channel.ask(QueueBind(queue=orders, exchange="news"))
    told(channel, "news", "", b"extra")
    await channel.ask(QueueUnbind(queue=orders, exchange="news"))
    await channel.ask(QueueBind(queue="late", exchange="news"))

    await channel.ask(TxCommit())

    assert await drained(connection, orders) == [b"extra"]
    assert await drained(connection, "late") == []


async def test_an_unroutable_message_comes_back_at_the_commit(channel: Channel) -> None:
    returned: list[Incoming] = []
    channel.on_return = returned.append
    await channel.ask(TxSelect())
    told(channel, "", "nowhere", b"lost", mandatory=True)
    await channel.ask(TxSelect())
    assert not returned

    await channel.ask(TxCommit())

    assert [event.body for event in returned if isinstance(event.method, BasicReturn)] == [b"lost"]


async def test_a_commit_that_a_full_queue_refuses_is_partial(connection: Connection, channel: Channel) -> None:
    await connection.declare_queue("full", arguments=FULL)
    await channel.ask(TxSelect())
    told(channel, "", "full", b"fits")
    told(channel, "", "full", b"does not")

    with pytest.raises(BrokerError, match="partial tx completion"):
        await channel.ask(TxCommit())

    assert await drained(connection, "full") == [b"fits"]


async def test_what_is_settled_is_no_longer_open(connection: Connection, channel: Channel, orders: str) -> None:
    await connection.publish("", orders, b"once")
    await channel.ask(TxSelect())
    tag = await got(channel, orders)
    channel.tell(BasicAck(delivery_tag=tag))

    channel.tell(BasicAck(delivery_tag=tag))

    with pytest.raises(BrokerError, match=f"unknown delivery tag {tag}"):
        await channel.ask(TxSelect())
    await ready(connection, orders, 1)  # it was not committed, either


async def test_what_is_rolled_back_is_open_again(connection: Connection, channel: Channel, orders: str) -> None:
    await connection.publish("", orders, b"again")
    await channel.ask(TxSelect())
    tag = await got(channel, orders)
    channel.tell(BasicReject(delivery_tag=tag, requeue=True))
    await channel.ask(TxRollback())
    assert (await connection.queue_info(orders)).messages == 0

    channel.tell(BasicReject(delivery_tag=tag, requeue=True))
    await channel.ask(TxCommit())

    await ready(connection, orders, 1)


async def test_all_means_all_that_is_open_when_it_is_said(
    connection: Connection, channel: Channel, orders: str
) -> None:
    for body in (b"1", b"2"):
        await connection.publish("", orders, body)
    await channel.ask(TxSelect())
    await got(channel, orders)
    channel.tell(BasicAck(multiple=True))
    await got(channel, orders)

    await channel.ask(TxCommit())
    await channel.close()

    await ready(connection, orders, 1)
    assert await drained(connection, orders) == [b"2"]


async def test_settlements_that_follow_each_other_are_done_in_the_order_of_delivery(
    connection: Connection, channel: Channel
) -> None:
    dead_letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    await connection.declare_queue("dead")
    await connection.declare_queue("dying", arguments=dead_letters)
    for body in (b"1", b"2"):
        await connection.publish("", "dying", body)
    await channel.ask(TxSelect())
    first, second = await got(channel, "dying"), await got(channel, "dying")
    channel.tell(BasicNack(delivery_tag=second, requeue=False))
    channel.tell(BasicNack(delivery_tag=first, requeue=False))

    await channel.ask(TxCommit())

    await ready(connection, "dead", 2)
    assert await drained(connection, "dead") == [b"1", b"2"]


async def test_confirms_and_transactions_exclude_each_other(channel: Channel) -> None:
    await channel.ask(TxSelect())

    with pytest.raises(BrokerError, match="cannot switch from tx to confirm mode"):
        await channel.ask(ConfirmSelect())


@pytest.mark.parametrize("end", [TxCommit(), TxRollback()], ids=lambda method: method.name)
async def test_without_a_transaction_there_is_nothing_to_end(channel: Channel, end: TxCommit | TxRollback) -> None:
    with pytest.raises(BrokerError, match="channel is not transactional"):
        await channel.ask(end)


async def test_a_connection_that_is_cut_leaves_everything_as_it_was(
    connection: Connection, channel: Channel, orders: str
) -> None:
    await connection.publish("", orders, b"kept")
    await channel.ask(TxSelect())
    channel.tell(BasicAck(delivery_tag=await got(channel, orders)))
    told(channel, "", orders, b"never")
    await channel.ask(TxSelect())

    await channel.link.close()

    async def bodies() -> list[bytes]:
        await asyncio.sleep(0)
        return await drained(connection, orders)

    await eventually(bodies, [b"kept"])


async def test_a_quorum_queue_that_fills_up_during_a_commit_takes_all_of_it(
    connection: Connection, channel: Channel
) -> None:
    """The channel hears that the queue is full when it has published everything."""
    await connection.declare_queue("full", arguments={"x-queue-type": "quorum", **FULL})
    await channel.ask(TxSelect())
    for body in (b"1", b"2", b"3", b"4"):
        told(channel, "", "full", body)

    await channel.ask(TxCommit())

    await ready(connection, "full", 4)
