"""Two conversations, or one and a hostile peer. Every test with a `pair` runs in whole reads and byte by byte."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from redrive.errors import EncodingError, LocalProtocolError, ReplyCode
from redrive.protocol.connection import Event, Violation
from redrive.protocol.handshake import Tuning
from redrive.protocol.lifecycle import ChannelState, ConnectionState
from redrive.protocol.messages import Delivery, Incoming, Publication
from redrive.wire.frames import (
    BODY,
    CONTENT_HEAD,
    HEADER,
    ack_frame,
    content_frames,
    deliver_frame,
    method_frame,
    publish_frame,
)
from redrive.wire.method import Method
from redrive.wire.methods.basic import (
    BasicAck,
    BasicDeliver,
    BasicGetOk,
    BasicPublish,
    BasicQosOk,
    BasicReturn,
)
from redrive.wire.methods.channel import ChannelClose, ChannelCloseOk, ChannelOpen, ChannelOpenOk
from redrive.wire.methods.connection import (
    ConnectionBlocked,
    ConnectionClose,
    ConnectionCloseOk,
    ConnectionSecure,
    ConnectionSecureOk,
    ConnectionStart,
    ConnectionStartOk,
    ConnectionTune,
    ConnectionUpdateSecret,
)
from redrive.wire.methods.queue import QueueDeclare
from redrive.wire.properties import Properties
from tests.support.connection_pair import ConnectionPair, Split, frame

PLAIN_PROPERTIES = b"\x00\x00"
JSON = Properties(content_type="application/json").encode()
ROUTE = b"\x00\x06orders"  # exchange and routing key


def only(events: list[Event]) -> Event:
    [event] = events
    return event


def header(body_size: int, properties: bytes = PLAIN_PROPERTIES, class_id: int = 60) -> bytes:
    """The payload of a content header frame."""
    return CONTENT_HEAD.pack(class_id, 0, body_size) + properties


# Sending and hearing ------------------------------------------------------------------------------------


def test_the_handshake_opens_both_sides_with_the_same_limits(split: Split) -> None:
    pair = ConnectionPair(split=split, offer=Tuning(100, 8192, 30), wish=Tuning(50, 65536, 10))

    pair.open()

    assert (pair.client.state, pair.server.state) == (ConnectionState.OPEN, ConnectionState.OPEN)
    assert pair.client.tuning == pair.server.tuning == Tuning(50, 8192, 10)


def test_a_challenge_is_answered_before_the_tuning(split: Split) -> None:
    pair = ConnectionPair(split=split)
    pair.client.send_protocol_header()
    pair.to_server()
    pair.server.send(0, ConnectionStart())
    pair.to_client()
    pair.client.send(0, ConnectionStartOk())
    pair.to_server()

    pair.server.send(0, ConnectionSecure(challenge=b"who?"))
    assert pair.to_client() == [Incoming(0, ConnectionSecure(challenge=b"who?"))]
    pair.client.send(0, ConnectionSecureOk(response=b"me"))
    assert pair.to_server() == [Incoming(0, ConnectionSecureOk(response=b"me"))]

    pair.server.send(0, ConnectionTune())
    assert pair.to_client() == [Incoming(0, ConnectionTune())]


def test_a_method_arrives_as_it_was_sent(pair: ConnectionPair) -> None:
    declare = QueueDeclare(queue="q", durable=True, arguments={"x-message-ttl": 15000, "deep": {"er": [1, "two"]}})

    pair.client.send(1, declare)

    assert pair.to_server() == [Incoming(1, declare)]


def test_both_sides_can_talk_about_the_connection_while_it_is_open(pair: ConnectionPair) -> None:
    pair.server.send(0, ConnectionBlocked(reason="low on memory"))
    pair.client.send(0, ConnectionUpdateSecret(new_secret=b"token"))

    heard = pair.pump()

    assert heard.client == [Incoming(0, ConnectionBlocked(reason="low on memory"))]
    assert heard.server == [Incoming(0, ConnectionUpdateSecret(new_secret=b"token"))]


def test_what_is_said_on_several_channels_keeps_its_order(pair: ConnectionPair) -> None:
    second = pair.open_channel()

    pair.client.send(1, QueueDeclare(queue="a"))
    pair.client.send(second, QueueDeclare(queue="b"))
    pair.client.send(1, QueueDeclare(queue="c"))

    assert [(event.channel, event.method.queue) for event in pair.to_server()] == [(1, "a"), (2, "b"), (1, "c")]  # type: ignore[union-attr]


def test_a_heartbeat_is_heard_and_is_no_event(pair: ConnectionPair) -> None:
    pair.client.send_heartbeat()
    pair.server.send_heartbeat()

    assert pair.pump() == ([], [])
    assert pair.client.state is ConnectionState.OPEN


@pytest.mark.parametrize("body", [b"", b"{}", b"x" * 4088, b"x" * 4089, b"x" * 20_000], ids=len)
def test_a_publish_arrives_whatever_number_of_frames_it_takes(split: Split, body: bytes) -> None:
    pair = ConnectionPair(split=split, offer=Tuning(frame_max=4096))
    pair.open()
    pair.open_channel()

    pair.client.send(1, BasicPublish(exchange="orders", routing_key="new", mandatory=True), JSON, body)

    publication = only(pair.to_server())
    assert isinstance(publication, Publication)
    assert (publication.channel, publication.exchange, publication.routing_key) == (1, "orders", "new")
    assert (publication.mandatory, publication.immediate) == (True, False)
    assert (publication.raw_properties, publication.body) == (JSON, body)


@pytest.mark.parametrize("body", [b"", b"{}", b"x" * 4088, b"x" * 4089, b"x" * 20_000], ids=len)
def test_a_delivery_arrives_whatever_number_of_frames_it_takes(split: Split, body: bytes) -> None:
    pair = ConnectionPair(split=split, offer=Tuning(frame_max=4096))
    pair.open()
    pair.open_channel()
    deliver = BasicDeliver(consumer_tag="c1", delivery_tag=7, redelivered=True, exchange="orders", routing_key="new")

    pair.server.send(1, deliver, JSON, body)

    delivery = only(pair.to_client())
    assert isinstance(delivery, Delivery)
    assert (delivery.consumer_tag, delivery.delivery_tag, delivery.redelivered) == ("c1", 7, True)
    assert (delivery.exchange, delivery.routing_key) == ("orders", "new")
    assert (delivery.properties.content_type, delivery.body) == ("application/json", body)


@pytest.mark.parametrize(
    "method", [BasicReturn(reply_text="NO_ROUTE"), BasicGetOk(delivery_tag=3)], ids=lambda m: m.name
)
def test_any_other_content_arrives_with_its_method(pair: ConnectionPair, method: Method) -> None:
    pair.server.send(1, method, JSON, b"body")

    assert pair.to_client() == [Incoming(1, method, JSON, b"body")]


def test_a_body_may_come_in_frames_of_any_size_even_empty_ones(pair: ConnectionPair) -> None:
    body_frames = [frame(BODY, 1, piece) for piece in (b"", b"a", b"", b"bc")]
    publish = publish_frame(1, "", "q", mandatory=False)

    events = pair.tell_server(publish + frame(HEADER, 1, header(3)) + b"".join(body_frames))

    publication = only(events)
    assert isinstance(publication, Publication)
    assert publication.body == b"abc"


def test_messages_on_two_channels_may_be_interleaved(pair: ConnectionPair) -> None:
    pair.open_channel()
    publishes = publish_frame(1, "", "one", mandatory=False) + publish_frame(2, "", "two", mandatory=False)
    headers = frame(HEADER, 2, header(1)) + frame(HEADER, 1, header(1))
    bodies = frame(BODY, 1, b"1") + frame(BODY, 2, b"2")

    events = pair.tell_server(publishes + headers + bodies)

    assert [(event.routing_key, event.body) for event in events] == [("one", b"1"), ("two", b"2")]  # type: ignore[union-attr]


def test_frames_encoded_before_are_the_same_as_methods(pair: ConnectionPair) -> None:
    pair.client.send(1, BasicPublish(exchange="e", routing_key="k", mandatory=True), JSON, b"body")
    pair.client.send(1, BasicAck(delivery_tag=5, multiple=True))
    by_method = pair.client.data_to_send()

    pair.client.send_content(1, publish_frame(1, "e", "k", mandatory=True), JSON, b"body")
    pair.client.send_frame(1, ack_frame(1, 5, multiple=True))

    assert pair.client.data_to_send() == by_method


def test_what_was_taken_is_not_taken_again(pair: ConnectionPair) -> None:
    pair.client.send_heartbeat()
    pair.client.data_to_send()

    assert pair.client.data_to_send() == b""


# Mistakes of this side: said so, and nothing is sent -------------------------------------------------------


def test_a_connection_method_is_not_sent_on_a_channel(pair: ConnectionPair) -> None:
    with pytest.raises(LocalProtocolError, match=r"connection\.close belongs to channel 0, not 1"):
        pair.client.send(1, ConnectionClose())

    assert pair.client.data_to_send() == b""


@pytest.mark.parametrize("number", [0, 2])
def test_nothing_is_sent_on_a_channel_that_is_not_open(pair: ConnectionPair, number: int) -> None:
    with pytest.raises(LocalProtocolError, match=f"channel {number} is CLOSED"):
        pair.client.send(number, QueueDeclare())
    with pytest.raises(LocalProtocolError, match=f"channel {number} is CLOSED"):
        pair.client.send_content(number, publish_frame(number, "", "q", mandatory=False), PLAIN_PROPERTIES, b"")
    with pytest.raises(LocalProtocolError, match=f"channel {number} is CLOSED"):
        pair.client.send_frame(number, ack_frame(number, 1, multiple=False))

    assert pair.client.data_to_send() == b""


@pytest.mark.parametrize("number", [0, 6])
def test_a_channel_number_is_within_what_was_agreed_on(number: int) -> None:
    pair = ConnectionPair(wish=Tuning(channel_max=5))
    pair.open()

    with pytest.raises(LocalProtocolError, match=f"channel.open on channel {number}"):
        pair.client.send(number, ChannelOpen())


def test_a_method_too_large_for_a_frame_is_not_sent() -> None:
    pair = ConnectionPair(wish=Tuning(frame_max=4096))
    pair.open()
    pair.open_channel()

    with pytest.raises(EncodingError, match=r"queue\.declare needs \d+ bytes; this connection can carry 4096"):
        pair.client.send(1, QueueDeclare(arguments={"x": "y" * 5000}))

    assert pair.client.data_to_send() == b""


def test_headers_too_large_for_a_frame_are_not_sent(pair: ConnectionPair) -> None:
    properties = Properties(headers={"story": "y" * 140_000}).encode()

    with pytest.raises(EncodingError, match="Shorten the headers"):
        pair.client.send(1, BasicPublish(), properties, b"body")
    with pytest.raises(EncodingError, match="Shorten the headers"):
        pair.client.send_content(1, publish_frame(1, "", "q", mandatory=False), properties, b"body")

    assert pair.client.data_to_send() == b""


def test_a_broker_sends_headers_too_large_for_a_frame(pair: ConnectionPair) -> None:
    properties = Properties(headers={"story": "y" * 140_000}).encode()

    pair.server.send(1, BasicReturn(), properties, b"returned")
    pair.server.send_content(1, deliver_frame(1, b"\x01t", 1, False, ROUTE), properties, b"delivered")

    said = pair.server.data_to_send()
    assert said.count(properties) == 2
    assert said.endswith(b"delivered\xce")


def test_a_value_that_amqp_cannot_carry_changes_nothing(pair: ConnectionPair) -> None:
    with pytest.raises(EncodingError, match="at most 255"):
        pair.client.send(2, ChannelOpen(out_of_band="x" * 256))

    assert pair.client.channel_state(2) is ChannelState.CLOSED
    assert pair.client.data_to_send() == b""


# The numbers of channels ------------------------------------------------------------------------------------


def test_the_lowest_free_number_is_given_out() -> None:
    pair = ConnectionPair()
    pair.open()
    pair.open_channel(1)
    pair.open_channel(3)

    assert pair.client.free_channel() == 2


def test_when_all_numbers_are_in_use_it_says_so() -> None:
    pair = ConnectionPair(offer=Tuning(channel_max=2))
    pair.open()
    pair.open_channel()
    pair.open_channel()

    with pytest.raises(LocalProtocolError, match="all 2 channels of this connection are in use"):
        pair.client.free_channel()


def test_a_number_is_free_again_when_both_sides_said_so(pair: ConnectionPair) -> None:
    pair.client.send(1, ChannelClose())
    while_closing = pair.client.free_channel()
    pair.pump()

    assert (while_closing, pair.client.free_channel()) == (2, 1)
    assert pair.open_channel(1) == 1


def test_a_number_that_the_broker_closed_is_the_last_to_be_given_out_again(split: Split) -> None:
    pair = ConnectionPair(split=split, offer=Tuning(channel_max=3))
    pair.open()
    for number in (1, 2, 3):
        pair.open_channel(number)
    for number in (2, 1):
        pair.server.send(number, ChannelClose())
        pair.pump()
    pair.client.send(3, ChannelClose())
    pair.pump()

    assert [pair.open_channel() for _ in range(3)] == [3, 2, 1]
    pair.client.send(2, ChannelClose())
    pair.pump()
    assert pair.client.free_channel() == 2


def test_a_close_is_answered_and_both_sides_hear_about_it(pair: ConnectionPair) -> None:
    refusal = ChannelClose(reply_code=404, reply_text="no queue", class_id=50, method_id=10)
    pair.server.send(1, refusal)

    heard = pair.pump()

    assert heard == ([Incoming(1, refusal)], [Incoming(1, ChannelCloseOk())])


def test_closes_that_cross_are_both_answered_and_free_the_number(pair: ConnectionPair) -> None:
    pair.client.send(1, ChannelClose())
    pair.server.send(1, ChannelClose(reply_code=404))

    from_client, from_server = pair.client.data_to_send(), pair.server.data_to_send()
    assert pair.tell_client(from_server) == [Incoming(1, ChannelClose(reply_code=404))]
    assert pair.tell_server(from_client) == [Incoming(1, ChannelClose())]
    assert (pair.client.channel_state(1), pair.server.channel_state(1)) == (ChannelState.CROSSED, ChannelState.CROSSED)
    assert pair.client.free_channel() == 2

    assert pair.pump() == ([Incoming(1, ChannelCloseOk())], [Incoming(1, ChannelCloseOk())])
    assert pair.open_channel(1) == 1


def test_a_channel_closed_before_it_was_open_does_no_harm(pair: ConnectionPair) -> None:
    pair.client.send(2, ChannelOpen())
    pair.to_server()
    pair.server.send(2, ChannelOpenOk())
    pair.client.send(2, ChannelClose())

    assert pair.to_client() == []
    assert pair.pump() == ([Incoming(2, ChannelCloseOk())], [Incoming(2, ChannelClose())])


def test_a_closed_channel_hears_nothing_of_what_was_under_way(pair: ConnectionPair) -> None:
    pair.server.send(1, ChannelClose(reply_code=404))
    pair.client.send(1, QueueDeclare())
    pair.client.send(1, BasicPublish(), JSON, b"a message")

    assert pair.to_server() == []
    assert pair.to_client() == [Incoming(1, ChannelClose(reply_code=404))]
    assert pair.to_server() == [Incoming(1, ChannelCloseOk())]


# RabbitMQ closes a channel before it has sent everything that the channel said.
LATE = [
    pytest.param(lambda body: deliver_frame(1, b"\x03tag", 7, False, ROUTE) + content(body), id="delivery"),
    pytest.param(lambda body: method_frame(1, BasicReturn()) + content(body), id="return"),
    pytest.param(lambda _: ack_frame(1, 3, multiple=True), id="confirm"),
]


def content(body: bytes) -> bytes:
    return b"".join(content_frames(1, JSON, body, 8192))


@pytest.mark.parametrize("body", [b"", b"late", b"x" * 20_000], ids=["empty", "small", "large"])
@pytest.mark.parametrize("late", LATE)
def test_what_comes_behind_the_close_of_a_broker_is_ignored_until_its_number_is_open_again(
    pair: ConnectionPair, late: Callable[[bytes], bytes], body: bytes
) -> None:
    pair.server.send(1, ChannelClose(reply_code=406))
    assert pair.tell_client(pair.server.data_to_send() + late(body)) == [Incoming(1, ChannelClose(reply_code=406))]
    pair.pump()

    assert pair.tell_client(late(body)) == []
    pair.client.send(1, ChannelOpen())
    assert pair.tell_client(late(body)) == []

    pair.to_server()
    pair.server.send(1, ChannelOpenOk())
    assert pair.to_client() == [Incoming(1, ChannelOpenOk())]
    assert len(pair.tell_client(late(body))) == 1
    assert pair.client.state is ConnectionState.OPEN


@pytest.mark.parametrize("late", LATE)
def test_nothing_may_come_behind_the_answer_to_a_close(pair: ConnectionPair, late: Callable[[bytes], bytes]) -> None:
    pair.client.send(1, ChannelClose())
    pair.pump()

    [violation] = pair.tell_client(late(b"late"))

    assert isinstance(violation, Violation)
    assert violation.error.code == ReplyCode.CHANNEL_ERROR


@pytest.mark.parametrize("said", range(1, 4))
def test_a_channel_may_be_closed_in_the_middle_of_a_message(pair: ConnectionPair, said: int) -> None:
    pair.client.send(1, BasicPublish(routing_key="q"), JSON, b"0123")
    message = pair.client.data_to_send()
    pair.tell_server(message[: len(message) * said // 4])

    pair.server.send(1, ChannelClose())

    assert pair.tell_server(message[len(message) * said // 4 :]) == []
    assert pair.pump() == ([Incoming(1, ChannelClose())], [Incoming(1, ChannelCloseOk())])
    assert pair.open_channel(1) == 1


def test_a_new_channel_knows_nothing_of_the_message_that_its_number_left_unfinished(pair: ConnectionPair) -> None:
    pair.tell_server(publish_frame(1, "", "q", mandatory=False) + frame(HEADER, 1, header(4)))
    pair.client.send(1, ChannelClose())
    pair.pump()
    pair.open_channel(1)

    pair.client.send(1, QueueDeclare())

    assert pair.to_server() == [Incoming(1, QueueDeclare())]


# The end of a connection ------------------------------------------------------------------------------------


@pytest.mark.parametrize("closer", ["client", "server"])
def test_a_farewell_is_answered_and_ends_both_sides(pair: ConnectionPair, closer: str) -> None:
    {"client": pair.client, "server": pair.server}[closer].send(0, ConnectionClose(reply_code=320))

    heard = pair.pump()

    spoken = [*heard.client, *heard.server]
    assert Incoming(0, ConnectionClose(reply_code=320)) in spoken
    assert Incoming(0, ConnectionCloseOk()) in spoken
    assert (pair.client.state, pair.server.state) == (ConnectionState.CLOSED, ConnectionState.CLOSED)


def test_farewells_that_cross_end_both_sides(pair: ConnectionPair) -> None:
    pair.client.send(0, ConnectionClose(reply_text="goodbye"))
    pair.server.send(0, ConnectionClose(reply_code=320))

    heard = pair.pump()

    assert heard.client[0] == Incoming(0, ConnectionClose(reply_code=320))
    assert heard.server[0] == Incoming(0, ConnectionClose(reply_text="goodbye"))
    assert (pair.client.state, pair.server.state) == (ConnectionState.CLOSED, ConnectionState.CLOSED)


def test_who_said_farewell_hears_nothing_of_what_was_under_way(pair: ConnectionPair) -> None:
    pair.client.send(0, ConnectionClose())
    pair.server.send(1, BasicDeliver(delivery_tag=1), JSON, b"a message")
    pair.server.send(1, BasicQosOk())
    pair.server.send(0, ConnectionBlocked())

    assert pair.to_client() == []
    assert pair.pump() == ([Incoming(0, ConnectionCloseOk())], [Incoming(0, ConnectionClose())])


def test_the_channels_end_with_their_connection(pair: ConnectionPair) -> None:
    pair.client.send(0, ConnectionClose())
    pair.pump()

    assert (pair.client.channel_state(1), pair.server.channel_state(1)) == (ChannelState.CLOSED, ChannelState.CLOSED)


@pytest.mark.parametrize("side", ["client", "server"])
def test_a_closed_conversation_neither_hears_nor_speaks(pair: ConnectionPair, side: str) -> None:
    pair.client.send(0, ConnectionClose())
    pair.pump()
    conversation = {"client": pair.client, "server": pair.server}[side]

    assert conversation.receive(b"whatever" * 100) == []
    assert conversation.data_to_send() == b""
    with pytest.raises(LocalProtocolError):
        conversation.send(1, ChannelClose())


def test_a_broker_may_refuse_credentials_with_a_farewell(split: Split) -> None:
    pair = ConnectionPair(split=split)
    pair.client.send_protocol_header()
    pair.to_server()
    pair.server.send(0, ConnectionStart())
    pair.to_client()
    pair.client.send(0, ConnectionStartOk())
    pair.to_server()

    pair.server.send(0, ConnectionClose(reply_code=403, reply_text="ACCESS_REFUSED"))

    assert pair.to_client() == [Incoming(0, ConnectionClose(reply_code=403, reply_text="ACCESS_REFUSED"))]
    assert pair.to_server() == [Incoming(0, ConnectionCloseOk())]


# Introductions --------------------------------------------------------------------------------------------------


def test_a_conversation_introduces_itself(pair: ConnectionPair) -> None:
    pair.server.send_heartbeat()

    assert repr(pair.server) == "<Conversation server OPEN channels=1 outgoing=1>"
