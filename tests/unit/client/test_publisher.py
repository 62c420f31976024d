"""Every publish comes to one of its ends, whatever the broker says and in whatever order; and nobody waits for ever.

The publisher works on a link without a socket (`WiredLink`), so that the broker's words meet its callers at the very
moment the test wants them to.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterator
from typing import Any

import pytest

from redrive.client.publisher import ConfirmingPublisher, Publish
from redrive.errors import (
    Closed,
    ConnectionLost,
    EncodingError,
    NotPublished,
    PublishError,
    PublishErrors,
    PublishRefused,
    PublishUnknown,
    RemoteProtocolError,
    Unroutable,
)
from redrive.protocol.messages import Publication
from redrive.wire.methods.basic import BasicAck, BasicNack, BasicReturn
from redrive.wire.methods.channel import ChannelClose, ChannelOpen
from redrive.wire.methods.confirm import ConfirmSelect, ConfirmSelectOk
from redrive.wire.methods.connection import ConnectionBlocked, ConnectionUnblocked
from redrive.wire.properties import PERSISTENT, TRANSIENT, Properties, decode_properties
from unit.client.clock import Clock
from unit.client.scripted import WiredLink

PATIENCE = 30.0


class Press:
    """A publisher attached to a link, and the broker that reads what it prints."""

    def __init__(self, wired: WiredLink, *, window: int = 1000, window_bytes: int = 1 << 20) -> None:
        self.wired = wired
        self.session = wired.session
        self.publisher = ConfirmingPublisher(window=window, window_bytes=window_bytes, patience=PATIENCE)
        self._tasks: list[asyncio.Task[None]] = []

    async def attach(self) -> "Press":
        self.wired.on_change = self.publisher.refresh
        await self.publisher.attach(self.wired.link)
        return self

    async def print(self, *bodies: bytes, exchange: str = "", key: str = "orders") -> list[asyncio.Task[None]]:
        """Begin to publish these, each for itself, and let them come as far as they can."""
        publishing = [self.start(body, exchange=exchange, key=key) for body in bodies]
        await settle_down()
        return publishing

    def start(
        self, body: bytes, *, exchange: str = "", key: str = "orders", properties: Properties | None = None
    ) -> asyncio.Task[None]:
        task = asyncio.create_task(self.publisher.publish(exchange, key, body, properties, True))
        self._tasks.append(task)
        return task

    def say(self, *methods: BasicAck | BasicNack | ChannelClose) -> None:
        self.session.say(1, *methods)

    def give_back(self, body: bytes, key: str = "orders", properties: Properties | None = None) -> None:
        raw = (properties or Properties(delivery_mode=PERSISTENT)).encode()
        self.session.say(1, BasicReturn(reply_text="NO_ROUTE", routing_key=key), body=body, properties=raw)

    @property
    def printed(self) -> list[bytes]:
        """The bodies that reached the broker, in order."""
        return [publication.body for publication in self.session.heard(Publication)]

    async def clear_away(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def settle_down() -> None:
    for _ in range(6):
        await asyncio.sleep(0)


async def outcome(publishing: Awaitable[None]) -> type[BaseException] | None:
    try:
        await publishing
    except Exception as error:
        return type(error)
    return None


async def outcomes(publishing: list[asyncio.Task[None]]) -> list[type[BaseException] | None]:
    return [await outcome(task) for task in publishing]


@pytest.fixture
async def press(wired: WiredLink) -> AsyncIterator[Press]:
    press = await Press(wired).attach()
    yield press
    await press.clear_away()


@pytest.fixture
async def narrow(wired: WiredLink) -> AsyncIterator[Press]:
    """A publisher that may have one message unconfirmed."""
    press = await Press(wired, window=1).attach()
    yield press
    await press.clear_away()


# What is sent -----------------------------------------------------------------------------------------


async def test_a_message_is_mandatory_and_persistent_unless_told_otherwise(press: Press) -> None:
    await press.print(b"{}")

    [publication] = press.session.heard(Publication)
    assert publication.mandatory
    assert decode_properties(publication.raw_properties) == Properties(delivery_mode=PERSISTENT)


async def test_other_properties_leave_a_message_persistent(press: Press) -> None:
    press.start(b"{}", properties=Properties(message_id="1", headers={"x": 1}))
    await settle_down()

    [publication] = press.session.heard(Publication)
    wanted = Properties(message_id="1", headers={"x": 1}, delivery_mode=PERSISTENT)
    assert decode_properties(publication.raw_properties) == wanted


async def test_a_transient_message_must_be_asked_for(press: Press) -> None:
    press.start(b"{}", properties=Properties(delivery_mode=TRANSIENT))
    await settle_down()

    [publication] = press.session.heard(Publication)
    assert decode_properties(publication.raw_properties).delivery_mode == TRANSIENT


@pytest.mark.parametrize("kind", [bytearray, memoryview])
async def test_a_body_that_could_change_is_sent_as_it_was(press: Press, kind: type[bytearray]) -> None:
    changing = bytearray(b"before")
    press.start(kind(changing))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    changing[:] = b"after!"
    await settle_down()

    assert press.printed == [b"before"]


async def test_more_routes_than_are_remembered_are_all_reached(press: Press) -> None:
    keys = [f"orders.{number}" for number in range(1500)]
    press.wired.confirming = True

    await press.publisher.publish_many(Publish("", key, b"") for key in keys)

    assert [publication.routing_key for publication in press.session.heard(Publication)] == keys


# Confirms ---------------------------------------------------------------------------------------------


async def test_a_publish_returns_when_the_broker_has_confirmed_and_not_before(press: Press) -> None:
    [publishing] = await press.print(b"{}")
    assert not publishing.done()

    press.say(BasicAck(delivery_tag=1))

    assert await outcome(publishing) is None


async def test_publishing_now_tells_the_waiter_what_became_of_it(press: Press) -> None:
    waiters = [asyncio.get_running_loop().create_future() for _ in range(2)]
    raw = Properties(message_id="m", delivery_mode=PERSISTENT).encode()

    for waiter in waiters:
        assert press.publisher.publish_now("", "orders", b"now", raw, waiter)
    await settle_down()
    (publication, _) = press.session.heard(Publication)
    assert (publication.mandatory, publication.raw_properties) == (True, raw)
    assert not any(waiter.done() for waiter in waiters)
    press.say(BasicAck(delivery_tag=1), BasicNack(delivery_tag=2))

    assert [await outcome(waiter) for waiter in waiters] == [None, PublishRefused]


async def test_publishing_now_sends_nothing_where_others_would_wait(press: Press) -> None:
    press.session.say(0, ConnectionBlocked(reason="low on memory"))
    waiter = asyncio.get_running_loop().create_future()

    assert not press.publisher.publish_now("", "orders", b"now", b"\0\0", waiter)
    await settle_down()

    assert press.printed == []
    assert not waiter.done()


async def test_confirms_may_come_in_any_order(press: Press) -> None:
    first, second, third = await press.print(b"1", b"2", b"3")

    press.say(BasicAck(delivery_tag=3), BasicAck(delivery_tag=1))
    await settle_down()

    assert [first.done(), second.done(), third.done()] == [True, False, True]


async def test_a_multiple_confirm_speaks_for_all_up_to_it(press: Press) -> None:
    publishing = await press.print(b"1", b"2", b"3")

    press.say(BasicAck(delivery_tag=2, multiple=True))
    await settle_down()

    assert [task.done() for task in publishing] == [True, True, False]


async def test_a_multiple_confirm_of_zero_speaks_for_all(press: Press) -> None:
    publishing = await press.print(b"1", b"2", b"3")

    press.say(BasicAck(delivery_tag=0, multiple=True))

    assert await outcomes(publishing) == [None] * 3


async def test_a_nack_refuses_the_publish(press: Press) -> None:
    [publishing] = await press.print(b"{}")

    press.say(BasicNack(delivery_tag=1))

    with pytest.raises(PublishRefused, match=r"exchange '' with key 'orders'.*nack"):
        await publishing


async def test_a_multiple_nack_refuses_all_that_were_not_answered_before(press: Press) -> None:
    publishing = await press.print(b"1", b"2", b"3")

    press.say(BasicAck(delivery_tag=2), BasicNack(delivery_tag=3, multiple=True))

    assert await outcomes(publishing) == [PublishRefused, None, PublishRefused]


async def test_a_confirm_that_comes_twice_is_the_brokers_business(press: Press) -> None:
    one, other = await press.print(b"1", b"2")

    press.say(BasicAck(delivery_tag=1), BasicAck(delivery_tag=1), BasicAck(delivery_tag=2))

    assert await outcomes([one, other]) == [None, None]


async def test_a_confirm_for_what_was_never_published_ends_the_connection(press: Press) -> None:
    [publishing] = await press.print(b"{}")

    press.say(BasicAck(delivery_tag=2))

    assert await outcome(publishing) is PublishUnknown
    assert isinstance(press.wired.link.lost.result(), RemoteProtocolError)


async def test_a_caller_that_stopped_waiting_disturbs_nobody(press: Press) -> None:
    gone, waiting = await press.print(b"1", b"2")
    gone.cancel()

    press.say(BasicAck(delivery_tag=2, multiple=True))

    assert await outcome(waiting) is None
    assert press.publisher.unconfirmed == 0


# Returns ----------------------------------------------------------------------------------------------


async def test_a_returned_message_is_unroutable_when_it_is_confirmed(press: Press) -> None:
    [publishing] = await press.print(b"{}")
    press.give_back(b"{}")
    await settle_down()
    assert not publishing.done()

    press.say(BasicAck(delivery_tag=1))

    with pytest.raises(Unroutable, match=r"returned by the broker, 312 NO_ROUTE: no queue is bound"):
        await publishing


async def test_of_two_equal_messages_in_flight_exactly_one_is_unroutable(press: Press) -> None:
    twin = Properties(message_id="42", delivery_mode=PERSISTENT)
    publishing = [press.start(b"twin", properties=twin), press.start(b"twin", properties=twin)]
    await settle_down()

    press.give_back(b"twin", properties=twin)
    press.say(BasicAck(delivery_tag=2, multiple=True))

    assert sorted(map(str, await outcomes(publishing))) == sorted(map(str, [Unroutable, None]))


async def test_messages_that_share_an_id_and_a_key_are_told_apart_by_their_bodies(press: Press) -> None:
    same = Properties(message_id="42", delivery_mode=PERSISTENT)
    publishing = [press.start(b"original", properties=same), press.start(b"retry", properties=same)]
    await settle_down()

    press.give_back(b"retry", properties=same)
    press.say(BasicAck(delivery_tag=2, multiple=True))

    assert await outcomes(publishing) == [None, Unroutable]


async def test_messages_that_share_all_but_a_header_are_told_apart_by_it(press: Press) -> None:
    one, other = (Properties(message_id="42", delivery_mode=PERSISTENT, headers={"attempt": n}) for n in (1, 2))
    publishing = [press.start(b"body", properties=one), press.start(b"body", properties=other)]
    await settle_down()

    press.give_back(b"body", properties=other)
    press.say(BasicAck(delivery_tag=2, multiple=True))

    assert await outcomes(publishing) == [None, Unroutable]


async def test_messages_that_share_all_but_the_key_are_told_apart_by_it(press: Press) -> None:
    publishing = [press.start(b"body", key="bound"), press.start(b"body", key="unbound")]
    await settle_down()

    press.give_back(b"body", key="unbound")
    press.say(BasicAck(delivery_tag=2, multiple=True))

    assert await outcomes(publishing) == [None, Unroutable]


async def test_a_return_that_the_confirm_overtook_is_the_fault_of_nobody_else(press: Press) -> None:
    first, second = await press.print(b"1", b"2")
    press.say(BasicAck(delivery_tag=1))
    await first

    press.give_back(b"1", key="nobody waits for this key")
    press.say(BasicAck(delivery_tag=2))

    assert await outcome(second) is None


# The end of a channel ---------------------------------------------------------------------------------

NO_EXCHANGE = ChannelClose(reply_code=404, reply_text="NOT_FOUND - no exchange 'nowhere' in vhost '/'")


async def test_a_missing_exchange_refuses_its_own_messages_and_leaves_the_others_unknown(press: Press) -> None:
    [lost] = await press.print(b"1", exchange="nowhere")
    [bystander] = await press.print(b"2", exchange="somewhere")

    press.say(NO_EXCHANGE)

    assert await outcomes([lost, bystander]) == [PublishRefused, PublishUnknown]


async def test_a_message_that_is_too_large_for_the_broker_is_refused_and_leaves_the_others_unknown(
    press: Press,
) -> None:
    too_large, bystander = await press.print(b"large", b"small!")

    text = "PRECONDITION_FAILED - message size 5 is larger than configured max size 4"
    press.say(ChannelClose(reply_code=406, reply_text=text))

    assert await outcomes([too_large, bystander]) == [PublishRefused, PublishUnknown]


async def test_an_unknown_fate_says_why_and_what_to_do(press: Press) -> None:
    [publishing] = await press.print(b"{}")

    press.wired.link.connection_lost(ConnectionResetError("reset by peer"))

    with pytest.raises(PublishUnknown, match=r"not confirmed before the end.*reset by peer.*publish it again") as e:
        await publishing
    assert isinstance(e.value.__cause__, ConnectionLost)


async def test_exactly_the_unconfirmed_are_unknown_when_the_connection_is_lost(press: Press) -> None:
    publishing = await press.print(b"1", b"2", b"3")
    press.say(BasicAck(delivery_tag=2))

    press.wired.end()

    assert await outcomes(publishing) == [PublishUnknown, None, PublishUnknown]


async def test_a_message_that_was_returned_is_unroutable_even_if_its_confirm_never_came(press: Press) -> None:
    [publishing] = await press.print(b"{}")
    press.give_back(b"{}")

    press.wired.end()

    assert await outcome(publishing) is Unroutable


async def test_after_its_channel_was_closed_a_publisher_goes_on_over_a_new_one(press: Press) -> None:
    await press.print(b"1", exchange="nowhere")
    press.say(NO_EXCHANGE)
    [waiting] = await press.print(b"2")
    assert press.printed == [b"1"]

    press.wired.confirming = True
    await press.publisher.attach(press.wired.link)

    assert await outcome(waiting) is None


async def test_a_channel_that_ends_together_with_its_beginning_is_not_taken(wired: WiredLink) -> None:
    """One read brings confirm.select-ok and channel.close: nothing can be published there."""
    wired.ignore(ConfirmSelect)
    press = Press(wired)
    attaching = asyncio.create_task(press.attach())
    channel = await wired.session.hears_on(ConfirmSelect)

    wired.session.say(channel, ConfirmSelectOk(), ChannelClose(reply_code=541))

    assert await outcome(attaching) is not None  # type: ignore[arg-type]


async def test_a_publisher_that_is_not_attached_in_the_end_leaves_no_channel_behind(wired: WiredLink) -> None:
    wired.ignore(ConfirmSelect)
    attaching = asyncio.create_task(Press(wired).attach())
    await wired.session.hears(ConfirmSelect)

    attaching.cancel()

    assert await wired.session.hears(ChannelClose)


# The window -------------------------------------------------------------------------------------------


async def test_no_more_than_the_window_is_unconfirmed(wired: WiredLink) -> None:
    press = await Press(wired, window=3).attach()

    await press.print(b"1", b"2", b"3", b"4", b"5")

    assert press.printed == [b"1", b"2", b"3"]
    await press.clear_away()


async def test_a_confirm_lets_the_next_one_in(wired: WiredLink) -> None:
    press = await Press(wired, window=2).attach()
    await press.print(b"1", b"2", b"3", b"4")

    press.say(BasicAck(delivery_tag=1))
    await settle_down()

    assert press.printed == [b"1", b"2", b"3"]
    await press.clear_away()


async def test_no_more_bytes_than_the_window_holds_are_added_to_what_is_unconfirmed(wired: WiredLink) -> None:
    press = await Press(wired, window_bytes=10).attach()

    await press.print(b"123456", b"123456", b"123456")

    assert len(press.printed) == 2
    await press.clear_away()


async def test_waiters_are_served_in_order_when_bytes_are_the_limit(wired: WiredLink) -> None:
    press = await Press(wired, window_bytes=1).attach()
    bodies = [b"1", b"2", b"3", b"4", b"5"]
    await press.print(*bodies)

    for tag in range(1, 5):
        press.say(BasicAck(delivery_tag=tag))
        press.start(b"a latecomer")
        await settle_down()

    assert press.printed == bodies
    await press.clear_away()


async def test_a_message_larger_than_the_window_goes_alone(wired: WiredLink) -> None:
    press = await Press(wired, window_bytes=4).attach()

    await press.print(b"larger than four", b"small")

    assert press.printed == [b"larger than four"]
    await press.clear_away()


async def test_waiters_are_served_in_the_order_in_which_they_came(narrow: Press) -> None:
    bodies = [b"1", b"2", b"3", b"4", b"5"]
    await narrow.print(*bodies)

    for tag in range(1, 5):
        narrow.say(BasicAck(delivery_tag=tag))
        await settle_down()

    assert narrow.printed == bodies


async def test_one_who_publishes_in_a_loop_does_not_starve_the_one_who_waits(narrow: Press) -> None:
    """The confirm wakes the looper first; the room it made is the waiter's all the same."""

    async def loop() -> None:
        for _ in range(5):
            await narrow.publisher.publish("", "orders", b"looper", None, True)

    looping = asyncio.create_task(loop())
    await settle_down()
    await narrow.print(b"waiter")

    narrow.say(BasicAck(delivery_tag=1))
    await settle_down()

    assert narrow.printed == [b"looper", b"waiter"]
    looping.cancel()


async def test_a_newcomer_does_not_overtake_one_who_was_called(narrow: Press) -> None:
    await narrow.print(b"1", b"2")

    narrow.say(BasicAck(delivery_tag=1))
    narrow.start(b"newcomer")
    await settle_down()

    assert narrow.printed == [b"1", b"2"]


async def test_one_who_is_cancelled_while_waiting_passes_its_turn_on(narrow: Press) -> None:
    _, leaving, _ = await narrow.print(b"1", b"leaving", b"3")
    leaving.cancel()
    await settle_down()

    narrow.say(BasicAck(delivery_tag=1))
    await settle_down()

    assert narrow.printed == [b"1", b"3"]


async def test_one_who_is_cancelled_just_before_its_turn_comes_passes_it_on(narrow: Press) -> None:
    _, leaving, _ = await narrow.print(b"1", b"leaving", b"3")

    leaving.cancel()
    narrow.say(BasicAck(delivery_tag=1))
    await settle_down()

    assert narrow.printed == [b"1", b"3"]
    assert leaving.cancelled()


async def test_one_who_is_cancelled_just_after_its_turn_came_passes_it_on(narrow: Press) -> None:
    _, leaving, _ = await narrow.print(b"1", b"leaving", b"3")

    narrow.say(BasicAck(delivery_tag=1))
    leaving.cancel()
    await settle_down()

    assert narrow.printed == [b"1", b"3"]
    assert leaving.cancelled()


async def test_a_bad_message_passes_its_turn_on(narrow: Press) -> None:
    first, bad, _ = [narrow.start(b"1"), narrow.start("text"), narrow.start(b"3")]  # type: ignore[arg-type]
    await settle_down()

    narrow.say(BasicAck(delivery_tag=1))
    await settle_down()

    assert await outcomes([first, bad]) == [None, TypeError]
    assert narrow.printed == [b"1", b"3"]


# Bad messages -----------------------------------------------------------------------------------------

UNSENDABLE: Any = {"x": object()}

BAD = [
    pytest.param("text", None, TypeError, "must be bytes, not str: encode it first", id="str body"),
    pytest.param(None, None, TypeError, "must be bytes, not NoneType", id="no body"),
    pytest.param(b"", Properties(headers={"x": "y" * 200_000}), EncodingError, "Shorten the headers", id="headers"),
    pytest.param(b"", Properties(headers=UNSENDABLE), EncodingError, "AMQP has no type for object", id="object"),
    pytest.param(b"", Properties(message_id="i" * 256), EncodingError, "message_id.*at most 255", id="long id"),
    pytest.param(b"", Properties(priority=256), EncodingError, "priority", id="priority"),
]


@pytest.mark.parametrize(("body", "properties", "error", "words"), BAD)
async def test_a_message_that_cannot_be_sent_harms_no_other(
    press: Press, body: bytes, properties: Properties | None, error: type[Exception], words: str
) -> None:
    press.wired.confirming = True

    with pytest.raises(error, match=words):
        await press.publisher.publish("", "orders", body, properties, True)
    await press.publisher.publish("", "orders", b"good", None, True)

    assert press.printed == [b"good"]


async def test_a_routing_key_that_is_too_long_harms_no_other(press: Press) -> None:
    press.wired.confirming = True

    with pytest.raises(EncodingError, match="at most 255"):
        await press.publisher.publish("", "k" * 256, b"", None, True)
    await press.publisher.publish("", "orders", b"good", None, True)

    assert press.printed == [b"good"]


# Alarms, and a socket that takes no more --------------------------------------------------------------


async def test_while_the_broker_is_blocked_nothing_is_sent(press: Press) -> None:
    press.session.say(0, ConnectionBlocked(reason="low on memory"))

    await press.print(b"{}")

    assert press.printed == []


async def test_when_the_broker_is_unblocked_those_who_waited_are_served_in_order(press: Press) -> None:
    press.wired.confirming = True
    press.session.say(0, ConnectionBlocked(reason="low on memory"))
    publishing = await press.print(b"1", b"2", b"3")

    press.session.say(0, ConnectionUnblocked())

    assert await outcomes(publishing) == [None] * 3
    assert press.printed == [b"1", b"2", b"3"]


async def test_what_was_sent_before_the_alarm_is_still_confirmed(press: Press) -> None:
    [publishing] = await press.print(b"{}")
    press.session.say(0, ConnectionBlocked(reason="low on memory"))

    press.say(BasicAck(delivery_tag=1))

    assert await outcome(publishing) is None


async def test_a_blocked_broker_wears_out_the_patience_and_the_error_says_why(press: Press, clock: Clock) -> None:
    press.session.say(0, ConnectionBlocked(reason="low on memory"))
    [publishing] = await press.print(b"{}")

    await clock.advance(PATIENCE)

    with pytest.raises(NotPublished, match=r"gave up after 30 s: .*connection\.blocked: low on memory"):
        await publishing


async def test_a_full_window_wears_out_the_patience_of_those_who_wait_for_it(narrow: Press, clock: Clock) -> None:
    sent, waiting = await narrow.print(b"1", b"2")

    await clock.advance(PATIENCE)

    with pytest.raises(NotPublished, match="1 messages are waiting for the broker's confirm"):
        await waiting
    assert not sent.done()


async def test_a_stalled_socket_makes_publishers_wait_until_it_takes_more(press: Press) -> None:
    press.wired.confirming = True
    press.wired.link.pause_writing()
    [publishing] = await press.print(b"{}")
    assert press.printed == []

    press.wired.link.resume_writing()

    assert await outcome(publishing) is None


async def test_a_stalled_socket_wears_out_the_patience_and_the_error_says_so(press: Press, clock: Clock) -> None:
    press.wired.link.pause_writing()
    [publishing] = await press.print(b"{}")

    await clock.advance(PATIENCE)

    with pytest.raises(NotPublished, match="socket"):
        await publishing


async def test_without_a_connection_the_error_says_why_there_is_none(wired: WiredLink, clock: Clock) -> None:
    press = Press(wired)
    press.publisher.note_disconnect(ConnectionLost("the cable is out"))
    [publishing] = await press.print(b"{}")

    await clock.advance(PATIENCE)

    with pytest.raises(NotPublished, match=r"not connected \(the cable is out\)"):
        await publishing


async def test_one_who_gave_up_leaves_the_others_their_turns(narrow: Press, clock: Clock) -> None:
    await narrow.print(b"1")
    [impatient] = await narrow.print(b"impatient")
    await clock.advance(PATIENCE / 2)
    await narrow.print(b"patient")
    await clock.advance(PATIENCE / 2)

    narrow.say(BasicAck(delivery_tag=1))
    await settle_down()

    assert await outcome(impatient) is NotPublished
    assert narrow.printed == [b"1", b"patient"]


# Pipelines --------------------------------------------------------------------------------------------


def failures(errors: PublishErrors) -> dict[int | None, type[PublishError]]:
    return {error.index: type(error) for error in errors.exceptions if isinstance(error, PublishError)}


def numbered(count: int) -> Iterator[Publish]:
    return (Publish("", "orders", str(number).encode()) for number in range(count))


async def test_a_pipeline_counts_its_messages(press: Press) -> None:
    press.wired.confirming = True

    assert await press.publisher.publish_many(numbered(5)) == 5


async def test_an_empty_pipeline_is_done_at_once(press: Press) -> None:
    assert await press.publisher.publish_many([]) == 0


async def test_a_pipeline_waits_for_its_last_confirm(press: Press) -> None:
    piping = asyncio.create_task(press.publisher.publish_many(numbered(3)))
    await settle_down()
    press.say(BasicAck(delivery_tag=2, multiple=True))
    await settle_down()
    assert not piping.done()

    press.say(BasicAck(delivery_tag=3))

    assert await piping == 3


async def test_a_pipeline_keeps_to_the_window_and_to_its_order(wired: WiredLink) -> None:
    press = await Press(wired, window=2).attach()
    wired.confirming = True

    await press.publisher.publish_many(numbered(50))

    assert press.printed == [str(number).encode() for number in range(50)]


async def test_a_pipeline_reports_each_failure_with_its_index_and_publishes_the_rest(press: Press) -> None:
    messages = [Publish("", "orders", body) for body in (b"0", b"1", b"2", b"3")]
    messages.insert(3, Publish("", "orders", "text"))  # type: ignore[arg-type]
    piping = asyncio.create_task(press.publisher.publish_many(messages))
    await settle_down()

    press.give_back(b"2")
    press.say(BasicAck(delivery_tag=1), BasicNack(delivery_tag=2), BasicAck(delivery_tag=4, multiple=True))

    with pytest.raises(PublishErrors, match="3 of 5 messages were not published") as caught:
        await piping
    assert failures(caught.value) == {1: PublishRefused, 2: Unroutable, 3: NotPublished}


async def test_a_pipeline_reports_all_that_were_unconfirmed_when_the_connection_was_lost(press: Press) -> None:
    piping = asyncio.create_task(press.publisher.publish_many(numbered(4)))
    await settle_down()
    press.say(BasicAck(delivery_tag=2, multiple=True))

    press.wired.end()

    with pytest.raises(PublishErrors) as caught:
        await piping
    assert failures(caught.value) == {2: PublishUnknown, 3: PublishUnknown}


async def test_a_pipeline_whose_source_fails_settles_what_was_sent_and_passes_the_failure_on(press: Press) -> None:
    def source() -> Iterator[Publish]:
        yield Publish("", "orders", b"1")
        raise LookupError("no more")

    piping = asyncio.create_task(press.publisher.publish_many(source()))
    await settle_down()
    press.say(BasicAck(delivery_tag=1))

    assert await outcome(piping) is LookupError  # type: ignore[arg-type]


async def test_a_pipeline_of_something_else_than_messages_says_so(press: Press) -> None:
    assert await outcome(press.publisher.publish_many([("", "orders")])) is not None  # type: ignore[arg-type, list-item]


async def test_a_message_with_properties_of_the_wrong_kind_does_not_stop_its_pipeline(press: Press) -> None:
    press.wired.confirming = True
    messages = [
        Publish("", "orders", b"0"),
        Publish("", "orders", b"1", {"delivery_mode": 2}),  # type: ignore[arg-type]
        Publish("", "orders", b"2"),
    ]

    with pytest.raises(PublishErrors) as caught:
        await asyncio.wait_for(press.publisher.publish_many(messages), 5)

    assert failures(caught.value) == {1: NotPublished}
    assert press.printed == [b"0", b"2"]


class TooMuch(str):
    """What there is no memory for, when it is to be sent."""

    __slots__ = ()

    def encode(self, encoding: str = "utf-8", errors: str = "strict") -> bytes:  # noqa: ARG002
        raise MemoryError("no room")


async def test_a_message_for_which_there_is_no_memory_does_not_stop_its_pipeline(press: Press) -> None:
    press.wired.confirming = True
    messages = [Publish("", key, key.title().encode()) for key in ("first", TooMuch("second"), "third")]

    with pytest.raises(PublishErrors) as caught:
        await asyncio.wait_for(press.publisher.publish_many(messages), 5)

    (error,) = caught.value.exceptions
    assert failures(caught.value) == {1: NotPublished}
    assert isinstance(error.__cause__, MemoryError)
    assert press.printed == [b"First", b"Third"]


async def test_a_pipeline_reports_what_it_had_no_patience_to_send(narrow: Press, clock: Clock) -> None:
    piping = asyncio.create_task(narrow.publisher.publish_many(numbered(2)))
    await settle_down()
    await clock.advance(PATIENCE)

    narrow.say(BasicAck(delivery_tag=1))

    with pytest.raises(PublishErrors) as caught:
        await piping
    assert failures(caught.value) == {1: NotPublished}


async def test_a_pipeline_that_waits_for_its_turn_can_be_cancelled(press: Press) -> None:
    press.session.say(0, ConnectionBlocked(reason="low on disk"))
    piping = asyncio.create_task(press.publisher.publish_many(numbered(3)))
    await settle_down()

    piping.cancel()
    await settle_down()

    assert piping.cancelled()


async def test_a_cancelled_pipeline_leaves_the_window_to_the_others(narrow: Press) -> None:
    piping = asyncio.create_task(narrow.publisher.publish_many(numbered(3)))
    await settle_down()
    await narrow.print(b"next")

    piping.cancel()
    narrow.say(BasicAck(delivery_tag=1))
    await settle_down()

    assert narrow.printed == [b"0", b"next"]


# Closing ----------------------------------------------------------------------------------------------

REASON = Closed("the connection is being closed")


async def test_a_closed_publisher_takes_no_more(press: Press) -> None:
    press.publisher.close(REASON)

    with pytest.raises(NotPublished, match="the connection is being closed") as caught:
        await press.publisher.publish("", "orders", b"", None, True)
    assert caught.value.__cause__ is REASON


async def test_closing_tells_those_who_wait_for_their_turn(narrow: Press) -> None:
    _, waiting = await narrow.print(b"1", b"2")

    narrow.publisher.close(REASON)

    assert await outcome(waiting) is NotPublished


async def test_a_confirm_after_closing_lets_nobody_in(press: Press) -> None:
    await press.print(b"1")
    press.publisher.close(REASON)

    press.say(BasicAck(delivery_tag=1))
    [late] = await press.print(b"2")

    assert await outcome(late) is NotPublished
    assert press.printed == [b"1"]


async def test_it_is_drained_when_all_is_answered(press: Press) -> None:
    await press.print(b"1", b"2")
    draining = asyncio.create_task(press.publisher.wait_until_confirmed())
    press.say(BasicAck(delivery_tag=1))
    await settle_down()
    assert not draining.done()

    press.say(BasicAck(delivery_tag=2))

    assert await outcome(draining) is None


async def test_with_nothing_unconfirmed_it_is_drained_at_once(press: Press) -> None:
    await press.publisher.wait_until_confirmed()


async def test_the_end_of_the_connection_drains_it(press: Press) -> None:
    await press.print(b"1")
    draining = asyncio.create_task(press.publisher.wait_until_confirmed())
    await settle_down()

    press.wired.end()

    assert await outcome(draining) is None


async def test_two_may_wait_until_it_is_drained(press: Press) -> None:
    await press.print(b"1")
    draining = [asyncio.create_task(press.publisher.wait_until_confirmed()) for _ in range(2)]
    await settle_down()

    press.say(BasicAck(delivery_tag=1))
    await settle_down()

    assert [task.done() for task in draining] == [True, True]


# Introductions ----------------------------------------------------------------------------------------


async def test_it_introduces_itself(narrow: Press) -> None:
    await narrow.print(b"1", b"2")

    shown = "<Publisher 1 messages are waiting for the broker's confirm unconfirmed=1/1 waiting=1>"
    assert repr(narrow.publisher) == shown


async def test_an_idle_one_introduces_itself_as_open(press: Press) -> None:
    assert repr(press.publisher) == "<Publisher open unconfirmed=0/1000 waiting=0>"


async def test_one_without_a_connection_says_so(wired: WiredLink) -> None:
    publisher = Press(wired).publisher

    assert "not connected (the connection was not opened)" in repr(publisher)
    assert publisher.unconfirmed == 0
    assert wired.session.heard(ChannelOpen) == []
