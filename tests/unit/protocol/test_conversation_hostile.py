"""A conversation with a peer that breaks the rules: what it makes of it, and what the peer gets to hear.

Every test with a `pair` runs in whole reads and byte by byte.
"""

from __future__ import annotations

import pickle

import pytest

from redrive.errors import ReplyCode
from redrive.protocol.connection import LARGEST_HEADER, AmqpConnection, Event, Violation
from redrive.protocol.lifecycle import ConnectionState
from redrive.protocol.messages import Incoming, Publication
from redrive.wire.frames import (
    BODY,
    CONTENT_HEAD,
    HEADER,
    HEARTBEAT,
    METHOD,
    OVERHEAD,
    PROTOCOL_HEADER,
    publish_frame,
)
from redrive.wire.method import Method, Sender
from redrive.wire.methods.basic import (
    BasicConsume,
    BasicDeliver,
    BasicGet,
    BasicPublish,
    BasicQosOk,
)
from redrive.wire.methods.channel import ChannelClose, ChannelCloseOk, ChannelFlow, ChannelOpen, ChannelOpenOk
from redrive.wire.methods.connection import (
    ConnectionClose,
    ConnectionCloseOk,
    ConnectionOpen,
    ConnectionStart,
    ConnectionStartOk,
    ConnectionTune,
    ConnectionTuneOk,
)
from redrive.wire.methods.queue import QueueDeclare, QueueDeclareOk
from redrive.wire.properties import Properties
from tests.support.connection_pair import ConnectionPair, Split, byte_by_byte, frame, whole

PLAIN_PROPERTIES = b"\x00\x00"
JSON = Properties(content_type="application/json").encode()


def only(events: list[Event]) -> Event:
    [event] = events
    return event


def header(body_size: int, properties: bytes = PLAIN_PROPERTIES, class_id: int = 60) -> bytes:
    """The payload of a content header frame."""
    return CONTENT_HEAD.pack(class_id, 0, body_size) + properties


def assert_violation(events: list[Event], code: ReplyCode) -> Violation:
    """The last event, and only it, says that the connection is over."""
    assert not any(isinstance(event, Violation) for event in events[:-1])
    violation = events[-1]
    assert isinstance(violation, Violation)
    assert (violation.channel, violation.error.code) == (0, code)
    return violation


# Greetings ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "greeting", [b"AMQP\x00\x01\x00\x00", b"AMQP\x01\x01\x08\x00", b"GET / HTTP/1.1\r\n", b"\x16\x03\x01"]
)
def test_who_greets_in_another_language_is_told_what_is_spoken_here(split: Split, greeting: bytes) -> None:
    pair = ConnectionPair(split=split)

    assert_violation(pair.tell_server(greeting), ReplyCode.NOT_IMPLEMENTED)

    assert pair.server.data_to_send() == PROTOCOL_HEADER
    assert pair.server.state is ConnectionState.CLOSED


def test_a_wrong_greeting_is_refused_at_its_first_wrong_byte() -> None:
    pair = ConnectionPair(split=byte_by_byte)

    assert pair.tell_server(b"AMQP\x00") == []
    assert_violation(pair.tell_server(b"\x01"), ReplyCode.NOT_IMPLEMENTED)


@pytest.mark.parametrize("header", [PROTOCOL_HEADER, b"AMQP\x03\x01\x00\x00"])
def test_a_broker_that_refuses_our_version_is_understood(split: Split, header: bytes) -> None:
    pair = ConnectionPair(split=split)
    pair.client.send_protocol_header()
    pair.client.data_to_send()

    violation = assert_violation(pair.tell_client(header), ReplyCode.NOT_IMPLEMENTED)

    assert "the broker refuses AMQP 0-9-1, it speaks " + ".".join(map(str, header[4:])) in str(violation.error)
    assert (pair.client.state, pair.client.data_to_send()) == (ConnectionState.CLOSED, b"")


# A hostile peer -------------------------------------------------------------------------------------------------


def method(method: Method, channel: int = 1, **lies: object) -> bytes:
    return frame(METHOD, channel, method.encode(), **lies)  # type: ignore[arg-type]


def declare(queue: bytes = b"\x01q", arguments: bytes = b"\x00\x00\x00\x00") -> bytes:
    """queue.declare with its queue and arguments as raw bytes."""
    return frame(METHOD, 1, b"\x00\x32\x00\x0a\x00\x00" + queue + b"\x00" + arguments)


def table(content: bytes, size: int | None = None) -> bytes:
    return (len(content) if size is None else size).to_bytes(4, "big") + content


def nested_tables(depth: int) -> bytes:
    content = b""
    for _ in range(depth):
        content = b"\x01kF" + table(content)
    return table(content)


def nested_arrays(depth: int) -> bytes:
    content = b""
    for _ in range(depth):
        content = b"A" + table(content)
    return table(b"\x01k" + content)


PUBLISH = publish_frame(1, "e", "k", mandatory=False)
DELIVER = method(BasicDeliver(consumer_tag="c", delivery_tag=1))
PUBLISH_ID = b"\x00\x3c\x00\x28\x00\x00"  # with its ticket
DELIVER_ID = b"\x00\x3c\x00\x3c"
EMPTY = frame(HEADER, 1, header(0))
ONE_BYTE = frame(HEADER, 1, header(1))
ODD_UTF8 = b"\x02\xc3\x28"

FROM_EITHER = {
    ReplyCode.FRAME_ERROR: {
        "a frame larger than agreed": frame(METHOD, 1, b"", size=131072 + 1, end=b"\x00"),
        "a frame of four gigabytes": frame(BODY, 1, b"", size=0xFFFFFFFF, end=b"\x00"),
        "a wrong end octet": frame(METHOD, 1, ChannelFlow().encode(), end=b"\xcd"),
        "a length that ends too early": frame(METHOD, 1, ChannelFlow().encode(), size=3),
        "an unknown frame type": frame(4, 1, b""),
        "a heartbeat with something in it": frame(HEARTBEAT, 0, b"!"),
        "bytes after a method": frame(METHOD, 1, ChannelFlow().encode() + b"!"),
        "a method that is cut short": frame(METHOD, 1, ChannelFlow().encode()[:4]),
    },
    ReplyCode.NOT_IMPLEMENTED: {
        "an unknown method": frame(METHOD, 1, b"\x00\x3c\x00\x63"),
        "an unknown class": frame(METHOD, 1, b"\x00\x63\x00\x0a"),
        "a method without a name": frame(METHOD, 1, b"\x00"),
    },
    ReplyCode.UNEXPECTED_FRAME: {
        "a heartbeat on a channel": frame(HEARTBEAT, 1, b""),
        "a header without a method": frame(HEADER, 1, header(0)),
        "a body without a method": frame(BODY, 1, b"x"),
        "content on channel 0": frame(HEADER, 0, header(0)),
        "content on a closed channel": frame(HEADER, 9, header(0)),
    },
    ReplyCode.COMMAND_INVALID: {
        "a connection method on a channel": method(ConnectionClose()),
        "a channel method on the connection": method(ChannelFlow(), channel=0),
        "an answer to no farewell": method(ConnectionCloseOk(), channel=0),
    },
    ReplyCode.CHANNEL_ERROR: {
        "a method on a closed channel": method(ChannelFlow(), channel=9),
        "an answer to no close": method(ChannelCloseOk()),
    },
}

FROM_CLIENT = {
    ReplyCode.FRAME_ERROR: {
        "a header that ends wrong": PUBLISH + frame(HEADER, 1, header(0), end=b"\x00"),
        "a header larger than agreed": PUBLISH + frame(HEADER, 1, header(0), size=131073),
        "a body that ends wrong": PUBLISH + ONE_BYTE + frame(BODY, 1, b"x", end=b"\x00"),
        "a body larger than agreed": PUBLISH + frame(HEADER, 1, header(200_000)) + frame(BODY, 1, b"", size=200_000),
        "a queue name that is not UTF-8": declare(queue=ODD_UTF8),
        "a queue name whose length lies": declare(queue=b"\xffq"),
        "tables nested a hundred deep": declare(arguments=nested_tables(100)),
        "tables nested ten thousand deep": declare(arguments=nested_tables(10_000)),
        "arrays nested a hundred deep": declare(arguments=nested_arrays(100)),
        "a table longer than its frame": declare(arguments=table(b"", size=9)),
        "a table of four gigabytes": declare(arguments=table(b"", size=0xFFFFFFFF)),
        "a table shorter than its frame": declare(arguments=table(b"\x01kV", size=0)),
        "a table cut within a value": declare(arguments=table(b"\x01kI\x00")),
        "a string longer than its table": declare(arguments=table(b"\x01kS\x00\x00\xff\xff")),
        "a field of unknown type": declare(arguments=table(b"\x01k?")),
        "a header that is cut short": PUBLISH + frame(HEADER, 1, header(0)[:13]) + PUBLISH + EMPTY,
        "a publish whose routing key lies": frame(METHOD, 1, PUBLISH_ID + b"\x00\xffk\x00") + EMPTY,
        "a publish whose exchange lies": frame(METHOD, 1, PUBLISH_ID + b"\xff\x00k\x00") + EMPTY,
        "a publish that is cut short": frame(METHOD, 1, PUBLISH_ID + b"\x00") + EMPTY,
    },
    ReplyCode.COMMAND_INVALID: {
        "a method of the broker": method(QueueDeclareOk()),
        "a handshake that begins again": method(ConnectionStartOk(), channel=0),
    },
    ReplyCode.CHANNEL_ERROR: {"a channel opened twice": method(ChannelOpen())},
    ReplyCode.NOT_ALLOWED: {
        "more channels than agreed": b"".join(method(ChannelOpen(), channel=65535 - n) for n in range(2047)),
    },
    ReplyCode.UNEXPECTED_FRAME: {
        "a method instead of the header": PUBLISH + method(BasicGet()),
        "a method instead of the body": PUBLISH + ONE_BYTE + method(BasicGet()),
        "a message instead of the body": PUBLISH + ONE_BYTE + PUBLISH + EMPTY,
        "a body instead of the header": PUBLISH + frame(BODY, 1, b"x"),
        "a second header": PUBLISH + ONE_BYTE + ONE_BYTE,
        "a header of another class": PUBLISH + frame(HEADER, 1, header(0, class_id=50)),
        "a header with a weight": PUBLISH + frame(HEADER, 1, b"\x00\x3c\x00\x01" + header(0)[4:]),
        "a header on another channel": PUBLISH + frame(HEADER, 2, header(0)),
        "a body on another channel": PUBLISH + ONE_BYTE + frame(BODY, 2, b"x"),
        "a body longer than announced": PUBLISH + ONE_BYTE + frame(BODY, 1, b"xy"),
        "a body after the whole message": PUBLISH + EMPTY + frame(BODY, 1, b""),
    },
}

FROM_SERVER = {
    ReplyCode.FRAME_ERROR: {
        "a consumer tag that is not UTF-8": frame(METHOD, 1, b"\x00\x3c\x00\x15" + ODD_UTF8),
        "a delivery whose consumer tag lies": frame(METHOD, 1, DELIVER_ID + b"\xff" + b"c" * 20) + EMPTY,
        "a delivery whose routing key lies": frame(METHOD, 1, DELIVER_ID + bytes(11) + b"\x05k") + EMPTY,
        "a delivery without anything": frame(METHOD, 1, DELIVER_ID) + EMPTY,
        "a return that is cut short": frame(METHOD, 1, b"\x00\x3c\x00\x32") + EMPTY,
    },
    ReplyCode.COMMAND_INVALID: {
        "a method of the client": method(BasicConsume()),
        "a channel opened by the broker": method(ChannelOpen(), channel=2),
        "a second tuning": method(ConnectionTune(), channel=0),
    },
    ReplyCode.CHANNEL_ERROR: {"a second open-ok": method(ChannelOpenOk())},
    ReplyCode.UNEXPECTED_FRAME: {
        "a method instead of the header": DELIVER + method(BasicQosOk()),
        "a delivery within a delivery": DELIVER + DELIVER,
        "a body longer than announced": DELIVER + ONE_BYTE + frame(BODY, 1, b"xy"),
    },
}


def hostile_inputs(*tables: dict[ReplyCode, dict[str, bytes]]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        ("hostile", "code"),
        [
            pytest.param(hostile, code, id=sentence)
            for table in tables
            for code, row in table.items()
            for sentence, hostile in row.items()
        ],
    )


@hostile_inputs(FROM_EITHER, FROM_CLIENT)
def test_a_client_that_breaks_the_rules_is_told_so(pair: ConnectionPair, hostile: bytes, code: ReplyCode) -> None:
    violation = assert_violation(pair.tell_server(hostile), code)

    assert pair.to_client() == [Incoming(0, ConnectionClose(reply_code=code, reply_text=str(violation.error)))]
    assert pair.server.state is ConnectionState.CLOSED


@hostile_inputs(FROM_EITHER, FROM_SERVER)
def test_a_broker_that_breaks_the_rules_is_told_so(pair: ConnectionPair, hostile: bytes, code: ReplyCode) -> None:
    violation = assert_violation(pair.tell_client(hostile), code)

    assert pair.to_server() == [Incoming(0, ConnectionClose(reply_code=code, reply_text=str(violation.error)))]
    assert pair.client.state is ConnectionState.CLOSED


def test_who_broke_the_rules_is_not_listened_to_any_more(pair: ConnectionPair) -> None:
    pair.tell_server(frame(4, 0, b""))
    pair.server.data_to_send()

    assert pair.tell_server(method(QueueDeclare()) + frame(4, 0, b"")) == []
    assert pair.server.data_to_send() == b""


def test_what_was_said_before_the_mistake_counts(pair: ConnectionPair) -> None:
    events = pair.tell_server(method(QueueDeclare()) + frame(4, 0, b"") + method(QueueDeclare()))

    assert events[0] == Incoming(1, QueueDeclare())
    assert_violation(events[1:], ReplyCode.FRAME_ERROR)


def test_a_long_reason_is_cut_to_fit_a_close(pair: ConnectionPair) -> None:
    events = pair.tell_server(declare(queue=b"\xff" + b"\xe2\x28" * 127 + b"\xff"))

    assert_violation(events, ReplyCode.FRAME_ERROR)
    close = only(pair.to_client())
    assert isinstance(close, Incoming)
    assert isinstance(close.method, ConnectionClose)
    assert len(close.method.reply_text.encode()) <= 255


def kept(conversation: AmqpConnection) -> int:
    """How much a conversation holds on to."""
    return len(pickle.dumps(conversation))


def test_lengths_that_lie_reserve_no_memory(pair: ConnectionPair) -> None:
    """A frame and a message are put aside as they come, not as they are announced."""
    before = kept(pair.server)

    pair.tell_server(PUBLISH + frame(HEADER, 1, header(500_000_000)) + frame(BODY, 1, b"x", size=131_000, end=b""))

    assert kept(pair.server) - before < 1000
    assert pair.server.state is ConnectionState.OPEN


def test_a_closed_channel_forgets_the_message_that_it_was_given(pair: ConnectionPair) -> None:
    before = kept(pair.server)
    pair.tell_server(PUBLISH + frame(HEADER, 1, header(10_000)) + frame(BODY, 1, b"x" * 5000))

    pair.server.send(1, ChannelClose())
    pair.server.data_to_send()

    assert kept(pair.server) - before < 100


def test_a_flood_of_empty_body_frames_leaves_nothing_behind(pair: ConnectionPair) -> None:
    pair.tell_server(PUBLISH + ONE_BYTE)
    before = kept(pair.server)

    pair.tell_server(frame(BODY, 1, b"") * 2000)

    assert kept(pair.server) == before


def test_a_broker_may_send_large_headers_and_no_endless_ones(pair: ConnectionPair) -> None:
    fits = pair.client.tuning.frame_max - OVERHEAD

    assert pair.tell_client(frame(HEADER, 1, header(0), size=fits + 1)[:-1]) == []
    assert pair.client.state is ConnectionState.OPEN


@pytest.mark.parametrize(("kind", "size"), [(HEADER, LARGEST_HEADER + 1), (METHOD, 131_072), (BODY, 131_072)])
def test_whatever_else_is_larger_than_agreed_ends_the_connection(pair: ConnectionPair, kind: int, size: int) -> None:
    assert_violation(pair.tell_client(frame(kind, 1, header(0), size=size)), ReplyCode.FRAME_ERROR)


def test_a_violation_by_someone_who_said_farewell_ends_the_connection_in_silence(pair: ConnectionPair) -> None:
    pair.client.send(0, ConnectionClose())
    pair.client.data_to_send()

    assert_violation(pair.tell_client(frame(4, 0, b"")), ReplyCode.FRAME_ERROR)

    assert (pair.client.state, pair.client.data_to_send()) == (ConnectionState.CLOSED, b"")


# A hostile peer within the handshake ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hostile", "code"),
    [
        (method(ConnectionOpen(), channel=0), ReplyCode.COMMAND_INVALID),
        (method(ChannelOpen()), ReplyCode.CHANNEL_ERROR),
        (frame(HEADER, 1, header(0)), ReplyCode.UNEXPECTED_FRAME),
        (frame(METHOD, 0, b"\x00\x0a\x00\x0b" + nested_tables(100)), ReplyCode.FRAME_ERROR),
        (frame(METHOD, 0, b"\x00\x0a\x00\x0b", size=131_072), ReplyCode.FRAME_ERROR),
    ],
    ids=["a step too far", "a channel", "content", "a deep table", "a large frame"],
)
def test_a_client_that_breaks_the_rules_within_the_handshake_is_told_so(
    split: Split, hostile: bytes, code: ReplyCode
) -> None:
    pair = ConnectionPair(split=split)
    pair.client.send_protocol_header()
    pair.to_server()
    pair.server.send(0, ConnectionStart())
    pair.to_client()

    assert_violation(pair.tell_server(hostile), code)

    close = only(pair.to_client())
    assert isinstance(close, Incoming)
    assert isinstance(close.method, ConnectionClose)
    assert close.method.reply_code == code


def test_who_speaks_before_the_brokers_first_question_is_refused_in_silence(split: Split) -> None:
    pair = ConnectionPair(split=split)

    assert_violation(
        pair.tell_server(PROTOCOL_HEADER + method(ConnectionStartOk(), channel=0)), ReplyCode.COMMAND_INVALID
    )

    assert pair.server.data_to_send() == b""


@pytest.mark.parametrize(
    "answer",
    [
        ConnectionTuneOk(channel_max=2048, frame_max=131072),
        ConnectionTuneOk(channel_max=0, frame_max=131072),
        ConnectionTuneOk(channel_max=2047, frame_max=131073),
        ConnectionTuneOk(channel_max=2047, frame_max=4095),
    ],
    ids=["more channels", "any number of channels", "larger frames", "too small frames"],
)
def test_a_client_that_settles_for_more_than_was_offered_is_refused(split: Split, answer: ConnectionTuneOk) -> None:
    pair = ConnectionPair(split=split)
    pair.client.send_protocol_header()
    pair.server.receive(pair.client.data_to_send())
    pair.server.send(0, ConnectionStart())
    pair.tell_server(method(ConnectionStartOk(), channel=0))
    pair.server.send(0, ConnectionTune(channel_max=2047, frame_max=131072))

    assert_violation(pair.tell_server(method(answer, channel=0)), ReplyCode.NOT_ALLOWED)


def test_smaller_frames_hold_from_the_answer_on_even_within_one_read() -> None:
    pair = ConnectionPair()
    pair.client.send_protocol_header()
    pair.to_server()
    pair.server.send(0, ConnectionStart())
    pair.tell_server(method(ConnectionStartOk(), channel=0))
    pair.server.send(0, ConnectionTune())

    events = pair.tell_server(
        method(ConnectionTuneOk(frame_max=4096), channel=0) + frame(METHOD, 0, b"", size=4097, end=b"\x00")
    )

    assert isinstance(events[0], Incoming)
    assert_violation(events[1:], ReplyCode.FRAME_ERROR)


# Messages that are too large -----------------------------------------------------------------------------------


@pytest.fixture
def cautious(split: Split) -> ConnectionPair:
    """Both sides take messages of ten bytes at most."""
    pair = ConnectionPair(
        split=split,
        client=AmqpConnection(Sender.CLIENT, largest_message=10),
        server=AmqpConnection(Sender.SERVER, largest_message=10),
    )
    pair.open()
    pair.open_channel()
    return pair


TOO_LARGE = "PRECONDITION_FAILED - message size 11 is larger than configured max size 10"


def test_a_message_as_large_as_allowed_arrives(cautious: ConnectionPair) -> None:
    cautious.client.send(1, BasicPublish(), body=b"x" * 10)

    assert isinstance(only(cautious.to_server()), Publication)


def test_a_message_that_is_too_large_ends_its_channel_and_not_the_connection(cautious: ConnectionPair) -> None:
    second = cautious.open_channel()
    cautious.client.send(1, BasicPublish(), body=b"x" * 11)
    cautious.client.send(1, QueueDeclare())
    cautious.client.send(second, QueueDeclare())

    violation, next_word = cautious.to_server()

    assert isinstance(violation, Violation)
    assert (violation.channel, violation.error.code) == (1, ReplyCode.PRECONDITION_FAILED)
    assert next_word == Incoming(second, QueueDeclare())
    close = ChannelClose(reply_code=406, reply_text=TOO_LARGE, class_id=60, method_id=40)
    assert cautious.to_client() == [Incoming(1, close)]
    assert cautious.to_server() == [Incoming(1, ChannelCloseOk())]
    assert cautious.open_channel(1) == 1


def test_a_delivery_that_is_too_large_ends_its_channel_and_not_the_connection(cautious: ConnectionPair) -> None:
    cautious.server.send(1, BasicDeliver(delivery_tag=1), body=b"x" * 11)

    [violation] = cautious.to_client()

    assert isinstance(violation, Violation)
    assert violation.channel == 1
    close = ChannelClose(reply_code=406, reply_text=TOO_LARGE, class_id=60, method_id=60)
    assert cautious.pump() == ([Incoming(1, ChannelCloseOk())], [Incoming(1, close)])


@pytest.mark.parametrize(("said", "shown"), [(b"", "<Channel 2 CLOSED>"), (PUBLISH, "<Channel 1 OPEN assembling>")])
def test_a_refusal_names_the_channel_and_its_state(said: bytes, shown: str) -> None:
    pair = ConnectionPair(split=whole)
    pair.open()
    pair.open_channel()
    number = int(shown.split()[1])

    violation = assert_violation(
        pair.tell_server(said + method(ChannelCloseOk(), channel=number)), ReplyCode.CHANNEL_ERROR
    )

    assert shown in str(violation.error)
