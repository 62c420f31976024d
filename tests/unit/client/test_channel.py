"""A channel gives every call its own reply, and everybody on it an end."""

import asyncio

import pytest

from redrive.client.channel import Channel
from redrive.errors import (
    ChannelClosed,
    Closed,
    ConnectionLost,
    LocalProtocolError,
    NotFound,
    PreconditionFailed,
    RemoteProtocolError,
)
from redrive.wire.frames import BASIC_CLASS, CONTENT_HEAD, HEADER, method_frame
from redrive.wire.methods.basic import BasicAck, BasicCancel, BasicDeliver, BasicQos, BasicQosOk, BasicReturn
from redrive.wire.methods.channel import (
    ChannelClose,
    ChannelCloseOk,
    ChannelFlow,
    ChannelFlowOk,
    ChannelOpen,
    ChannelOpenOk,
)
from redrive.wire.methods.exchange import ExchangeDeclare, ExchangeDeclareOk
from redrive.wire.methods.queue import QueueDeclare, QueueDeclareOk
from tests.support.connection_pair import frame
from unit.client.scripted import WiredLink

REFUSAL = ChannelClose(reply_code=406, reply_text="PRECONDITION_FAILED - no", class_id=50, method_id=10)


@pytest.fixture
async def channel(wired: WiredLink) -> Channel:
    return await wired.link.channel()


async def asked(channel: Channel, wired: WiredLink) -> asyncio.Task[QueueDeclareOk]:
    """A call that the broker has heard and not answered."""
    wired.answers.pop(QueueDeclare, None)
    calling = asyncio.create_task(channel.call(QueueDeclare(queue="orders"), QueueDeclareOk))
    await wired.session.hears(QueueDeclare)
    return calling


# Calls ------------------------------------------------------------------------------------------------


async def test_a_call_gives_its_reply(channel: Channel) -> None:
    answer = await channel.call(QueueDeclare(queue="orders"), QueueDeclareOk)

    assert answer == QueueDeclareOk(queue="orders")


async def test_calls_that_are_under_way_at_once_are_answered_in_order(channel: Channel, wired: WiredLink) -> None:
    wired.ignore(QueueDeclare)
    calls = [
        asyncio.create_task(channel.call(QueueDeclare(queue=name), QueueDeclareOk)) for name in ("one", "two", "three")
    ]
    for _ in calls:
        await wired.session.hears(QueueDeclare)

    wired.session.say(channel.number, *(QueueDeclareOk(queue=name) for name in ("ONE", "TWO", "THREE")))

    assert [answer.queue for answer in await asyncio.gather(*calls)] == ["ONE", "TWO", "THREE"]


async def test_a_call_that_was_given_up_does_not_take_anothers_reply(channel: Channel, wired: WiredLink) -> None:
    given_up = await asked(channel, wired)
    waiting = await asked(channel, wired)

    given_up.cancel()
    wired.session.say(channel.number, QueueDeclareOk(queue="given up"), QueueDeclareOk(queue="waiting"))

    assert (await waiting).queue == "waiting"


async def test_a_reply_of_the_wrong_kind_ends_the_connection(channel: Channel, wired: WiredLink) -> None:
    calling = await asked(channel, wired)

    wired.session.say(channel.number, ExchangeDeclareOk())

    with pytest.raises(RemoteProtocolError, match=r"declare-ok on channel 1, where queue\.declare-ok was due"):
        await calling
    assert not wired.link.alive


async def test_what_follows_a_wrong_reply_in_the_same_read_is_passed_over(channel: Channel, wired: WiredLink) -> None:
    other = await wired.link.channel()
    heard: list[object] = []
    other.on_delivery = heard.append

    wired.session.conversation.send(channel.number, ExchangeDeclareOk())
    wired.session.deliver(other.number, b"body")

    assert isinstance(wired.link.lost.result(), RemoteProtocolError)
    assert heard == []


async def test_a_reply_that_nobody_asked_for_ends_the_connection(channel: Channel, wired: WiredLink) -> None:
    wired.session.say(channel.number, QueueDeclareOk(queue="orders"))

    with pytest.raises(RemoteProtocolError, match="where nothing was due"):
        raise wired.link.lost.result()


async def test_a_caller_who_expects_another_reply_than_the_method_has_is_told(channel: Channel) -> None:
    with pytest.raises(LocalProtocolError, match=r"exchange\.declare is answered by exchange\.declare-ok, not QueueD"):
        await channel.call(ExchangeDeclare(exchange="x"), QueueDeclareOk)


# The broker closes it ---------------------------------------------------------------------------------


async def test_a_refusal_is_the_error_of_the_call_that_waits(channel: Channel, wired: WiredLink) -> None:
    calling = await asked(channel, wired)

    wired.session.say(channel.number, REFUSAL)

    with pytest.raises(PreconditionFailed, match="406 PRECONDITION_FAILED - no") as caught:
        await calling
    assert caught.value.method == (50, 10)


async def test_a_close_fails_every_call_that_waits(channel: Channel, wired: WiredLink) -> None:
    first = await asked(channel, wired)
    second = await asked(channel, wired)

    wired.session.say(channel.number, REFUSAL)

    failures = await asyncio.gather(first, second, return_exceptions=True)
    assert [type(failure) for failure in failures] == [PreconditionFailed, PreconditionFailed]


async def test_a_closed_channel_gives_every_later_call_the_reason(channel: Channel, wired: WiredLink) -> None:
    wired.session.say(channel.number, ChannelClose(reply_code=404, reply_text="NOT_FOUND"))

    with pytest.raises(NotFound):
        await channel.call(QueueDeclare(), QueueDeclareOk)


async def test_a_reply_code_without_a_class_of_its_own_is_a_plain_channel_closed(
    channel: Channel, wired: WiredLink
) -> None:
    wired.session.say(channel.number, ChannelClose(reply_code=541, reply_text="INTERNAL_ERROR"))

    assert type(channel.closed) is ChannelClosed


async def test_the_broker_is_told_that_its_close_was_heard(channel: Channel, wired: WiredLink) -> None:
    wired.session.say(channel.number, REFUSAL)

    assert await wired.session.hears(ChannelCloseOk)


async def test_a_close_leaves_the_other_channels_alone(channel: Channel, wired: WiredLink) -> None:
    other = await wired.link.channel()

    wired.session.say(channel.number, REFUSAL)

    assert await other.call(QueueDeclare(queue="orders"), QueueDeclareOk)


async def test_the_number_of_a_closed_channel_is_used_again(channel: Channel, wired: WiredLink) -> None:
    await channel.close()

    again = await wired.link.channel()

    assert again.number == channel.number
    assert again.is_open
    assert not channel.is_open


async def test_the_number_of_a_channel_that_the_broker_closed_rests(channel: Channel, wired: WiredLink) -> None:
    """What the broker sent before may still come, and is not for the next one."""
    wired.session.say(channel.number, REFUSAL)
    await wired.session.hears(ChannelCloseOk)

    another = await wired.link.channel()

    assert another.number != channel.number
    assert another.is_open


async def test_a_refused_opening_is_the_openers_error(wired: WiredLink) -> None:
    wired.answers[ChannelOpen] = ChannelClose(reply_code=504, reply_text="CHANNEL_ERROR")

    with pytest.raises(ChannelClosed, match="504"):
        await wired.link.channel()


async def test_the_end_of_the_link_is_the_end_of_the_channel(channel: Channel, wired: WiredLink) -> None:
    ends: list[Exception] = []
    channel.on_closed = ends.append
    calling = await asked(channel, wired)

    wired.end()

    with pytest.raises(ConnectionLost):
        await calling
    assert [type(end) for end in ends] == [ConnectionLost]


async def test_a_message_that_is_too_large_ends_its_channel_only(channel: Channel, wired: WiredLink) -> None:
    """RabbitMQ never sends one, since it did not take one: whoever does is refused without reading it."""
    other = await wired.link.channel()
    wired.session.say_raw(method_frame(channel.number, BasicDeliver(consumer_tag="ctag", delivery_tag=1)))
    wired.session.say_raw(frame(HEADER, channel.number, CONTENT_HEAD.pack(BASIC_CLASS, 0, 1 << 40) + b"\0\0"))
    refused = await wired.session.hears(ChannelClose)

    assert refused.reply_code == 406
    assert isinstance(channel.closed, RemoteProtocolError)
    assert await other.call(QueueDeclare(queue="orders"), QueueDeclareOk)


# This side closes it ----------------------------------------------------------------------------------


async def test_closing_waits_for_the_brokers_answer(channel: Channel, wired: WiredLink) -> None:
    await channel.close()

    assert len(wired.session.heard(ChannelClose)) == 1
    assert isinstance(channel.closed, Closed)


async def test_closing_twice_says_goodbye_once(channel: Channel, wired: WiredLink) -> None:
    await channel.close()
    await channel.close()

    assert len(wired.session.heard(ChannelClose)) == 1


async def test_closing_fails_the_calls_that_wait(channel: Channel, wired: WiredLink) -> None:
    calling = await asked(channel, wired)

    await channel.close()

    with pytest.raises(Closed, match="channel 1 was closed by this side"):
        await calling


async def test_closing_while_the_broker_closes_it_ends_well(channel: Channel, wired: WiredLink) -> None:
    closing = asyncio.create_task(channel.close())
    await asyncio.sleep(0)
    wired.session.say(channel.number, REFUSAL)

    await closing

    assert channel.closed is not None
    assert wired.link.alive


async def test_closing_while_the_link_ends_ends_well(channel: Channel, wired: WiredLink) -> None:
    closing = asyncio.create_task(channel.close())
    await asyncio.sleep(0)

    wired.end()

    await closing


async def test_closing_after_the_connections_farewell_ends_well(channel: Channel, wired: WiredLink) -> None:
    farewell = asyncio.create_task(wired.link.close())
    await asyncio.sleep(0)

    await channel.close()

    await farewell


async def test_an_abandoned_channel_is_closed_without_waiting(channel: Channel, wired: WiredLink) -> None:
    channel.abandon()

    assert not channel.is_open
    assert await wired.session.hears(ChannelClose)


async def test_the_number_of_an_abandoned_channel_is_free_when_the_broker_has_answered(
    channel: Channel, wired: WiredLink
) -> None:
    channel.abandon()
    assert (await wired.link.channel()).number == 2  # too early
    await wired.session.hears(ChannelClose)

    assert (await wired.link.channel()).number == 1


# Cancelled openings -----------------------------------------------------------------------------------


async def test_an_opening_that_was_given_up_leaves_no_channel_behind(wired: WiredLink) -> None:
    wired.ignore(ChannelOpen)
    opening = asyncio.create_task(wired.link.channel())
    number = await wired.session.hears_on(ChannelOpen)

    opening.cancel()
    await wired.session.hears(ChannelClose)

    wired.answers[ChannelOpen] = ChannelOpenOk()
    assert (await wired.link.channel()).number == number


async def test_an_opening_that_was_given_up_and_granted_leaves_no_channel_behind(wired: WiredLink) -> None:
    """The open-ok crosses the close: neither side is confused."""
    wired.ignore(ChannelOpen)
    opening = asyncio.create_task(wired.link.channel())
    number = await wired.session.hears_on(ChannelOpen)

    opening.cancel()
    await asyncio.sleep(0)
    wired.session.say(number, ChannelOpenOk())
    await wired.session.hears(ChannelClose)

    assert wired.link.alive


async def test_an_opening_that_was_given_up_at_the_moment_it_was_granted_leaves_no_channel_behind(
    wired: WiredLink,
) -> None:
    wired.ignore(ChannelOpen)
    opening = asyncio.create_task(wired.link.channel())
    number = await wired.session.hears_on(ChannelOpen)

    wired.session.say(number, ChannelOpenOk())
    opening.cancel()

    assert await wired.session.hears(ChannelClose)


async def test_channels_run_out_at_the_agreed_number() -> None:
    few = await WiredLink("amqp://memory/?channel_max=2").open()
    await few.link.channel()
    await few.link.channel()

    with pytest.raises(LocalProtocolError, match="all 2 channels of this connection are in use"):
        await few.link.channel()
    few.end()


# Hooks ------------------------------------------------------------------------------------------------


async def test_what_the_broker_says_unasked_reaches_whoever_listens(channel: Channel, wired: WiredLink) -> None:
    heard: list[object] = []
    channel.on_confirm = channel.on_cancel = channel.on_delivery = heard.append
    channel.on_return = lambda event: heard.append(event.method)

    wired.session.say(channel.number, BasicAck(delivery_tag=1), BasicReturn(), BasicCancel(consumer_tag="c"))
    wired.session.deliver(channel.number, b"body")

    assert [type(event).__name__ for event in heard] == ["BasicAck", "BasicReturn", "BasicCancel", "Delivery"]


async def test_what_nobody_listens_to_is_passed_over(channel: Channel, wired: WiredLink) -> None:
    wired.session.say(channel.number, BasicAck(delivery_tag=1), BasicReturn(), BasicCancel(consumer_tag="c"))
    wired.session.deliver(channel.number, b"body")

    assert await channel.call(BasicQos(prefetch_count=1), BasicQosOk)


async def test_a_broker_that_controls_the_flow_gets_its_answer(channel: Channel, wired: WiredLink) -> None:
    wired.session.say(channel.number, ChannelFlow(active=False))

    assert await wired.session.hears(ChannelFlowOk) == ChannelFlowOk(active=False)


async def test_flow_control_in_one_read_with_the_close_needs_no_answer(channel: Channel, wired: WiredLink) -> None:
    wired.session.say(channel.number, ChannelFlow(active=False), REFUSAL)

    assert isinstance(channel.closed, PreconditionFailed)
    assert wired.link.alive


# Introductions ----------------------------------------------------------------------------------------


async def test_it_introduces_itself(channel: Channel, wired: WiredLink) -> None:
    calling = await asked(channel, wired)

    assert repr(channel) == "<Channel 1 OPEN calls=1>"
    calling.cancel()


async def test_a_closed_one_says_why(channel: Channel, wired: WiredLink) -> None:
    wired.session.say(channel.number, REFUSAL)

    assert repr(channel) == "<Channel 1 CLOSED: 406 PRECONDITION_FAILED - no calls=0>"
