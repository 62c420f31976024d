"""The broker hears about every delivery once, in few frames, and never too late."""

import asyncio

import pytest

from redrive.client.ack_batcher import AckBatcher
from redrive.client.channel import Channel
from redrive.errors import AlreadySettled
from redrive.protocol.messages import Delivery, ack_all
from redrive.wire.method import Method
from redrive.wire.methods.basic import BasicAck, BasicNack, BasicReject
from redrive.wire.methods.channel import ChannelClose, ChannelCloseOk
from redrive.wire.methods.connection import ConnectionClose
from unit.client.scripted import WiredLink


class Desk:
    """A channel with a settler and the deliveries entrusted to it."""

    def __init__(self, wired: WiredLink, channel: Channel, prefetch: int = 100) -> None:
        self.session = wired.session
        self.channel = channel
        self.settler = AckBatcher(channel, prefetch=prefetch)
        self.deliveries: list[Delivery] = []
        channel.on_delivery = self._take

    def _take(self, delivery: Delivery) -> None:
        self.settler.take(delivery)
        self.deliveries.append(delivery)

    def receive(self, number: int) -> list[Delivery]:
        self.session.deliver(self.channel.number, *[b"body"] * number)
        return self.deliveries

    async def told(self) -> list[Method]:
        """What the broker has heard of deliveries after everything that was said has been written."""
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        settlements = (BasicAck, BasicNack, BasicReject)
        return [method for method in self.session.heard(Method) if isinstance(method, settlements)]


@pytest.fixture
async def desk(wired: WiredLink) -> Desk:
    return Desk(wired, await wired.link.channel())


async def test_acks_of_one_turn_leave_as_one_frame(desk: Desk) -> None:
    for delivery in desk.receive(5):
        delivery.ack()

    assert await desk.told() == [BasicAck(delivery_tag=5, multiple=True)]


async def test_many_at_once_leave_as_one_frame(desk: Desk) -> None:
    ack_all(desk.receive(5))

    assert await desk.told() == [BasicAck(delivery_tag=5, multiple=True)]
    assert desk.settler.unsettled == 0


async def test_acks_beyond_a_gap_leave_one_by_one(desk: Desk) -> None:
    first, second, third, fourth = desk.receive(4)
    del second
    for delivery in (first, third, fourth):
        delivery.ack()

    assert await desk.told() == [
        BasicAck(delivery_tag=1, multiple=True),
        BasicAck(delivery_tag=3),
        BasicAck(delivery_tag=4),
    ]


async def test_the_ack_that_fills_a_gap_speaks_for_itself_alone(desk: Desk) -> None:
    first, second, third = desk.receive(3)
    first.ack()
    third.ack()
    await desk.told()

    second.ack()

    assert (await desk.told())[-1] == BasicAck(delivery_tag=2, multiple=True)


async def test_a_nack_leaves_before_an_ack_that_would_swallow_it(desk: Desk) -> None:
    first, second, third = desk.receive(3)
    first.ack()
    third.ack()
    second.nack(requeue=True)

    assert await desk.told() == [
        BasicNack(delivery_tag=2, multiple=False, requeue=True),
        BasicAck(delivery_tag=3, multiple=True),
    ]


async def test_a_reject_is_told_as_such(desk: Desk) -> None:
    [delivery] = desk.receive(1)

    assert delivery.reject() is True
    assert await desk.told() == [BasicReject(delivery_tag=1, requeue=False)]


@pytest.mark.parametrize("requeue", [True, False])
async def test_nack_and_reject_requeue_as_they_are_told(desk: Desk, requeue: bool) -> None:
    nacked, rejected = desk.receive(2)

    nacked.nack(requeue=requeue)
    rejected.reject(requeue=requeue)

    assert await desk.told() == [
        BasicNack(delivery_tag=1, multiple=False, requeue=requeue),
        BasicReject(delivery_tag=2, requeue=requeue),
    ]


async def test_a_quarter_of_the_prefetch_is_told_without_waiting_for_the_turn_to_end(wired: WiredLink) -> None:
    desk = Desk(wired, await wired.link.channel(), prefetch=8)
    deliveries = desk.receive(5)

    deliveries[0].ack()
    assert wired.link.conversation.outgoing == []
    deliveries[1].ack()
    deliveries[2].ack()

    assert await desk.told() == [
        BasicAck(delivery_tag=2, multiple=True),
        BasicAck(delivery_tag=3, multiple=True),
    ]


async def test_a_prefetch_of_one_tells_every_ack_at_once(wired: WiredLink) -> None:
    desk = Desk(wired, await wired.link.channel(), prefetch=1)
    one, other = desk.receive(2)

    one.ack()
    other.ack()

    assert await desk.told() == [BasicAck(delivery_tag=1, multiple=True), BasicAck(delivery_tag=2, multiple=True)]


@pytest.mark.parametrize("first", ["ack", "nack", "reject"])
@pytest.mark.parametrize("second", ["ack", "nack", "reject"])
async def test_a_delivery_is_settled_once(desk: Desk, first: str, second: str) -> None:
    [delivery] = desk.receive(1)
    getattr(delivery, first)()

    with pytest.raises(AlreadySettled, match="settled before"):
        getattr(delivery, second)()
    assert len(await desk.told()) == 1


# Too late ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settle", ["ack", "nack", "reject"])
async def test_after_the_channel_ended_settling_says_that_it_was_too_late(desk: Desk, settle: str) -> None:
    [delivery] = desk.receive(1)
    desk.session.say(desk.channel.number, ChannelClose(reply_code=406))

    assert getattr(delivery, settle)() is False
    assert await desk.told() == []


async def test_after_the_channel_ended_it_is_too_late_for_many(desk: Desk) -> None:
    deliveries = desk.receive(3)
    desk.session.say(desk.channel.number, ChannelClose(reply_code=406))

    assert desk.settler.ack_all([delivery.delivery_tag for delivery in deliveries]) is False
    assert await desk.told() == []


async def test_an_ack_that_was_not_told_when_the_channel_ended_is_dropped(desk: Desk) -> None:
    [delivery] = desk.receive(1)
    delivery.ack()

    desk.session.say(desk.channel.number, ChannelClose(reply_code=406))

    assert await desk.told() == []


async def test_an_ack_while_the_channel_is_being_closed_is_too_late(desk: Desk) -> None:
    [delivery] = desk.receive(1)
    desk.channel.abandon()

    assert delivery.ack() is False
    assert await desk.told() == []


@pytest.mark.parametrize("settle", ["ack", "nack", "reject"])
async def test_while_the_connection_says_farewell_it_is_too_late(wired: WiredLink, settle: str) -> None:
    desk = Desk(wired, await wired.link.channel())
    [delivery] = desk.receive(1)
    closing = asyncio.create_task(wired.link.close())
    await asyncio.sleep(0)

    settled = getattr(delivery, settle)()

    assert settled is False
    assert await desk.told() == []
    await closing


async def test_an_ack_just_before_the_farewell_is_told(wired: WiredLink) -> None:
    desk = Desk(wired, await wired.link.channel())
    [delivery] = desk.receive(1)
    delivery.ack()

    await wired.link.close()

    assert await desk.told() == [BasicAck(delivery_tag=1, multiple=True)]
    assert [type(event) for event in wired.session.heard(ConnectionClose)] == [ConnectionClose]


# Retiring ---------------------------------------------------------------------------------------------


async def test_a_retired_settler_closes_its_channel_when_the_last_delivery_is_settled(desk: Desk) -> None:
    one, other = desk.receive(2)
    desk.settler.retire()
    one.ack()
    await desk.told()
    assert desk.channel.is_open

    other.nack()

    assert await desk.told() == [BasicAck(delivery_tag=1, multiple=True), BasicNack(delivery_tag=2, requeue=True)]
    assert not desk.channel.is_open


async def test_a_retired_settler_closes_its_channel_when_all_are_settled_at_once(desk: Desk) -> None:
    deliveries = desk.receive(3)
    desk.settler.retire()

    ack_all(deliveries)

    assert await desk.told() == [BasicAck(delivery_tag=3, multiple=True)]
    assert not desk.channel.is_open


async def test_the_last_ack_is_told_before_the_channel_is_closed(desk: Desk) -> None:
    [delivery] = desk.receive(1)
    desk.settler.retire()

    delivery.ack()
    await desk.told()

    assert [type(method) for method in desk.session.heard(Method)[-2:]] == [BasicAck, ChannelClose]


async def test_a_settler_that_has_nothing_to_answer_for_closes_its_channel_at_once(desk: Desk) -> None:
    desk.settler.retire()

    assert not desk.channel.is_open


async def test_retiring_after_the_channel_ended_does_nothing(desk: Desk) -> None:
    desk.session.say(desk.channel.number, ChannelClose(reply_code=406))

    desk.settler.retire()
    await desk.told()

    assert desk.session.heard(ChannelClose) == []
    assert len(desk.session.heard(ChannelCloseOk)) == 1


async def test_it_introduces_itself(desk: Desk) -> None:
    desk.receive(2)

    assert "unsettled=2" in repr(desk.settler)
