"""Facts of RabbitMQ that clients in other languages rely on, measured on 3.10.8, 4.0.5 and 4.3.6.

Each test runs on RabbitMQ and on the embedded broker in the dialect of that RabbitMQ. They speak in raw frames, since
no client library does what they need.
"""

import secrets
import struct
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from interop.raw import RawClient
from redrive.broker.dialect import DIALECTS, Dialect
from redrive.testing import Endpoint
from redrive.testing.broker import ThreadedBroker
from redrive.wire.frames import BODY, END, HEAD, HEADER_FRAME, HEARTBEAT, METHOD, PROTOCOL_HEADER, method_frame
from redrive.wire.method import Method, decode_method
from redrive.wire.methods.basic import (
    BasicAck,
    BasicCancel,
    BasicConsume,
    BasicConsumeOk,
    BasicDeliver,
    BasicGet,
    BasicPublish,
    BasicQos,
    BasicQosOk,
)
from redrive.wire.methods.channel import ChannelClose, ChannelFlow, ChannelFlowOk, ChannelOpen, ChannelOpenOk
from redrive.wire.methods.connection import (
    ConnectionClose,
    ConnectionCloseOk,
    ConnectionOpen,
    ConnectionOpenOk,
    ConnectionStart,
    ConnectionStartOk,
    ConnectionTune,
    ConnectionTuneOk,
)
from redrive.wire.methods.exchange import (
    ExchangeBind,
    ExchangeBindOk,
    ExchangeDeclare,
    ExchangeDeclareOk,
    ExchangeDelete,
    ExchangeDeleteOk,
)
from redrive.wire.methods.queue import (
    QueueBind,
    QueueBindOk,
    QueueDeclare,
    QueueDeclareOk,
    QueueDelete,
    QueueDeleteOk,
    QueuePurge,
    QueuePurgeOk,
)
from redrive.wire.properties import Properties
from redrive.wire.values import Table

CAPABLE: Table = {"capabilities": {"authentication_failure_close": True, "consumer_cancel_notify": True}}


@pytest.fixture(scope="module")
def memory_broker(rabbitmq: Endpoint) -> Iterator[ThreadedBroker]:
    """The embedded broker in the dialect of the RabbitMQ next to it."""
    with ThreadedBroker(dialect=DIALECTS["{}.{}".format(*rabbitmq.version)]) as broker:
        yield broker


@pytest.fixture(params=["rabbitmq", "memory"])
def amqp_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """A virtual host of the test's own."""
    vhost = f"facts-{secrets.token_hex(8)}"
    if request.param == "rabbitmq":
        node: Endpoint = request.getfixturevalue("rabbitmq")
        node.add_vhost(vhost)
        yield node.url_for(vhost)
        node.delete_vhost(vhost)
    else:
        broker: ThreadedBroker = request.getfixturevalue("memory_broker")
        yield broker.add_vhost(vhost)


@pytest.fixture
def dialect(rabbitmq: Endpoint) -> Dialect:
    return DIALECTS["{}.{}".format(*rabbitmq.version)]


class Client(RawClient):
    """Speaks in frames, and understands the methods that come back."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        assert parts.port is not None
        super().__init__(parts.port)
        self.vhost = unquote(parts.path[1:])
        self._rest = b""

    def say(self, *said: bytes | Method, channel: int = 1) -> None:
        frames = [one if isinstance(one, bytes) else method_frame(channel, one) for one in said]
        self.socket.sendall(b"".join(frames))

    def frame(self) -> tuple[int, int, bytes] | None:
        """The next frame: type, channel and payload. None when the broker closed the socket."""
        while len(self._rest) < 8 or len(self._rest) < 8 + HEAD.unpack_from(self._rest)[2]:
            try:
                data = self.socket.recv(65536)
            except ConnectionResetError:
                data = b""
            if not data:
                return None
            self._rest += data
        kind, channel, size = HEAD.unpack_from(self._rest)
        payload, self._rest = self._rest[7 : 7 + size], self._rest[8 + size :]
        return kind, channel, payload

    def heard(self) -> tuple[int, Method] | None:
        """The next method and its channel, past heartbeats and content. None when the broker closed the socket."""
        while (frame := self.frame()) is not None:
            if frame[0] == METHOD:
                return frame[1], decode_method(frame[2])
        return None

    def expect(self, kind: type[Method], *said: bytes | Method, channel: int = 1) -> Any:
        """Say something, and return the answer, which must be of this kind."""
        self.say(*said, channel=channel)
        heard = self.heard()
        assert heard is not None, "the broker closed the connection"
        assert isinstance(heard[1], kind), heard
        return heard[1]

    def refused(self, *said: bytes | Method) -> tuple[str, int, str]:
        """Say something that is refused, and return what is closed, the code and the text."""
        close = self.expect(ChannelClose | ConnectionClose, *said)  # type: ignore[arg-type]
        return close.name.partition(".")[0], close.reply_code, close.reply_text

    def greet(self, **start_ok: Any) -> None:
        self.expect(ConnectionStart, PROTOCOL_HEADER, channel=0)
        answer = {"client_properties": CAPABLE, "mechanism": "PLAIN", "response": b"\0guest\0guest", "locale": "en_US"}
        self.say(ConnectionStartOk(**{**answer, **start_ok}), channel=0)

    def connect(self, *, channel_max: int = 2047, frame_max: int = 131_072, heartbeat: int = 0) -> "Client":
        self.greet()
        tune_ok = ConnectionTuneOk(channel_max=channel_max, frame_max=frame_max, heartbeat=heartbeat)
        self.expect(ConnectionTune)
        self.expect(ConnectionOpenOk, tune_ok, ConnectionOpen(virtual_host=self.vhost), channel=0)
        return self

    def open_channel(self) -> "Client":
        self.expect(ChannelOpenOk, ChannelOpen())
        return self

    def count(self, queue: str) -> int:
        """How many messages are ready."""
        return int(self.expect(QueueDeclareOk, QueueDeclare(queue=queue, passive=True)).message_count)

    def delivered(self) -> str:
        """The consumer that got the next delivery."""
        return str(self.expect(BasicDeliver).consumer_tag)


@pytest.fixture
def connect(amqp_url: str) -> Iterator[Callable[[], Client]]:
    """Connects to the broker, as often as a test needs."""
    clients: list[Client] = []

    def make() -> Client:
        clients.append(Client(amqp_url))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


@pytest.fixture
def client(connect: Callable[[], Client]) -> Client:
    """A connection with channel 1."""
    return connect().connect().open_channel()


def content(body: bytes, raw_properties: bytes = b"\x00\x00", weight: int = 0) -> bytes:
    """A header and one body frame, whatever their sizes."""
    size = 12 + len(raw_properties)
    header = HEADER_FRAME.pack(2, 1, size, 60, weight, len(body)) + raw_properties + END
    return header + (HEAD.pack(BODY, 1, len(body)) + body + END if body else b"")


def publish(key: str, exchange: str = "", body: bytes = b"x", raw_properties: bytes = b"\x00\x00") -> bytes:
    return method_frame(1, BasicPublish(exchange=exchange, routing_key=key)) + content(body, raw_properties)


# Frames -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("frame_max", [8192, 131_072])
def test_a_frame_may_exceed_frame_max_by_its_own_eight_bytes(connect: Callable[[], Client], frame_max: int) -> None:
    """A payload of `frame_max` bytes is accepted; one byte more is FRAME_ERROR."""
    client = connect().connect(frame_max=frame_max).open_channel()
    client.expect(QueueDeclareOk, QueueDeclare(queue="q"))

    client.say(publish("q", body=b"x" * frame_max))
    client.expect(BasicConsumeOk, BasicConsume(queue="q", consumer_tag="c", no_ack=True))
    assert client.delivered() == "c"

    what, code, _ = client.refused(method_frame(1, BasicPublish()) + content(b"x" * (frame_max + 1)))
    assert (what, code) == ("connection", 501)


def test_frames_to_a_client_keep_to_frame_max(connect: Callable[[], Client]) -> None:
    """The broker cuts bodies so that a whole frame has `frame_max` bytes, framing included."""
    client = connect().connect(frame_max=8192).open_channel()
    client.expect(QueueDeclareOk, QueueDeclare(queue="q"))
    client.say(publish("q", body=b"x" * 8192), BasicGet(queue="q", no_ack=True))

    sizes = []
    while sum(sizes) < 8192:
        frame = client.frame()
        assert frame is not None
        if frame[0] == BODY:
            sizes.append(len(frame[2]))

    assert sizes == [8184, 8]


def test_negotiation_has_a_frame_limit_of_its_own(connect: Callable[[], Client], dialect: Dialect) -> None:
    """Before tune-ok a payload of 4096 bytes (4.3: 8192) is accepted, and one byte more ends the connection."""

    def start_ok(size: int) -> Table:
        padded = {**CAPABLE, "padding": ""}
        missing = size - len(
            ConnectionStartOk(
                client_properties=padded, mechanism="PLAIN", response=b"\0guest\0guest", locale="en_US"
            ).encode()
        )
        return {**CAPABLE, "padding": "x" * missing}

    client = connect()
    client.greet(client_properties=start_ok(dialect.smallest_frame_max))
    client.expect(ConnectionTune)

    client = connect()
    client.greet(client_properties=start_ok(dialect.smallest_frame_max + 1))
    heard = client.heard()
    assert heard is None or isinstance(heard[1], ConnectionClose)


def test_a_client_cannot_settle_on_smaller_frames(connect: Callable[[], Client], dialect: Dialect) -> None:
    """The smallest frame_max is 4096, from 4.3 on 8192; a client that wants less is disconnected."""
    connect().connect(frame_max=dialect.smallest_frame_max)

    client = connect()
    client.greet()
    client.expect(ConnectionTune)
    client.say(ConnectionTuneOk(channel_max=1, frame_max=dialect.smallest_frame_max - 1), channel=0)
    client.say(ConnectionOpen(virtual_host=client.vhost), channel=0)
    heard = client.heard()
    assert heard is None or isinstance(heard[1], ConnectionClose)


@pytest.mark.parametrize("channel", [1, 7])
def test_a_heartbeat_on_a_channel_is_an_unexpected_frame(client: Client, channel: int) -> None:
    """A heartbeat on a channel other than 0, open or not, is UNEXPECTED_FRAME."""
    what, code, _ = client.refused(HEAD.pack(HEARTBEAT, channel, 0) + END)
    assert (what, code) == ("connection", 505)


def test_a_heartbeat_with_a_payload_is_a_frame_error(client: Client) -> None:
    """A heartbeat that is not empty is FRAME_ERROR."""
    what, code, _ = client.refused(HEAD.pack(HEARTBEAT, 0, 1) + b"x" + END)
    assert (what, code) == ("connection", 501)


UNDECODABLE = {
    "a name longer than the frame": struct.pack(">HHH", 50, 10, 0) + b"\xff",
    "a cut delivery tag": struct.pack(">HHH", 60, 80, 0),
    "a table longer than the frame": struct.pack(">HHH", 50, 10, 0) + b"\x01q\x02" + struct.pack(">I", 300),
    "bytes after the end": struct.pack(">HHQB", 60, 80, 1, 0) + b"more",
    "a name that is not UTF-8": struct.pack(">HHH", 50, 10, 0) + b"\x01\xff\x02" + struct.pack(">I", 0),
}


@pytest.mark.parametrize("payload", UNDECODABLE.values(), ids=UNDECODABLE)
def test_undecodable_arguments_are_a_frame_error(client: Client, payload: bytes) -> None:
    """Arguments of a method that cannot be decoded are FRAME_ERROR."""
    what, code, _ = client.refused(HEAD.pack(METHOD, 1, len(payload)) + payload + END)
    assert (what, code) == ("connection", 501)


def test_a_content_header_with_a_weight_is_an_unexpected_frame(client: Client) -> None:
    """The weight of a content header must be 0; anything else is UNEXPECTED_FRAME."""
    what, code, _ = client.refused(method_frame(1, BasicPublish()) + content(b"x", weight=7))
    assert (what, code) == ("connection", 505)


# The connection -----------------------------------------------------------------------------------------------


def test_a_client_closes_the_socket_after_close_ok(client: Client) -> None:
    """After close-ok the broker leaves the socket to the client, and reads and ignores what still comes."""
    client.expect(ConnectionCloseOk, ConnectionClose(reply_code=200), channel=0)

    client.say(*[publish("q", body=b"x" * 100_000)] * 20)

    client.socket.settimeout(0.2)
    with pytest.raises(TimeoutError):
        client.socket.recv(1)


def test_the_broker_closes_the_socket_after_a_heartbeat_if_the_client_does_not(connect: Callable[[], Client]) -> None:
    """A client that does not close its socket after close-ok is disconnected, after its heartbeat interval."""
    client = connect().connect(heartbeat=1)
    client.expect(ConnectionCloseOk, ConnectionClose(reply_code=200), channel=0)

    assert client.heard() is None


def test_what_belonged_to_a_connection_is_gone_at_close_ok(connect: Callable[[], Client]) -> None:
    """At close-ok the exclusive queues of the connection are deleted, and its messages are back in their queues."""
    client = connect().connect().open_channel()
    client.expect(QueueDeclareOk, QueueDeclare(queue="mine", exclusive=True))
    client.expect(QueueDeclareOk, QueueDeclare(queue="q"))
    client.say(publish("q"))
    client.expect(BasicConsumeOk, BasicConsume(queue="q", consumer_tag="c"))
    client.delivered()
    client.expect(ConnectionCloseOk, ConnectionClose(reply_code=200), channel=0)

    other = connect().connect().open_channel()
    assert other.count("q") == 1
    assert other.refused(QueueDeclare(queue="mine", passive=True))[:2] == ("channel", 404)


def test_channel_max_limits_how_many_channels_are_open(connect: Callable[[], Client]) -> None:
    """Any number may be opened, 65535 too; one channel more than `channel_max` is NOT_ALLOWED."""
    client = connect().connect(channel_max=2)
    client.expect(ChannelOpenOk, ChannelOpen(), channel=65535)
    client.expect(ChannelOpenOk, ChannelOpen(), channel=7)

    text = "NOT_ALLOWED - number of channels opened (2) has reached the negotiated channel_max (2)"
    assert client.refused(ChannelOpen()) == ("connection", 530, text)


def test_a_failed_login_is_a_closed_socket_to_old_clients(connect: Callable[[], Client]) -> None:
    """Without the capability `authentication_failure_close` a wrong password closes the socket, and nothing is said."""
    client = connect()
    client.greet(client_properties={}, response=b"\0guest\0wrong")

    assert client.heard() is None


def test_a_failed_login_is_connection_close_to_capable_clients(connect: Callable[[], Client]) -> None:
    """With the capability it is connection.close 403, in reply to no method."""
    client = connect()
    client.greet(response=b"\0guest\0wrong")

    close = client.expect(ConnectionClose)
    assert (close.reply_code, close.class_id, close.method_id) == (403, 0, 0)


def test_the_greeting_of_0_9_is_accepted(connect: Callable[[], Client]) -> None:
    """The protocol header `AMQP 1 1 0 9` is answered by connection.start of 0-9, on 4.x as well."""
    start = connect().expect(ConnectionStart, b"AMQP\x01\x01\x00\x09", channel=0)

    assert (start.version_major, start.version_minor) == (0, 9)


def test_a_client_cannot_stop_the_flow(client: Client) -> None:
    """channel.flow with active=true is answered; with active=false it is NOT_IMPLEMENTED."""
    assert client.expect(ChannelFlowOk, ChannelFlow(active=True)).active
    assert client.refused(ChannelFlow(active=False)) == ("connection", 540, "NOT_IMPLEMENTED - active=false")


@pytest.mark.parametrize("product", ["RabbitMQ", "Redrive"])
def test_the_product_can_be_chosen(product: str) -> None:
    """Clients that require the product RabbitMQ get it from a broker that was started so."""
    with ThreadedBroker(product=product) as broker, Client(f"{broker.url}%2F") as client:
        start = client.expect(ConnectionStart, PROTOCOL_HEADER, channel=0)
        assert start.server_properties["product"] == product
        assert "redrive_version" in start.server_properties


# Names and declarations ---------------------------------------------------------------------------------------


def test_line_ends_are_stripped_from_names(client: Client) -> None:
    """LF and CR are stripped from the names in declare, bind, unbind and delete."""
    assert client.expect(QueueDeclareOk, QueueDeclare(queue="a\nb\r\r\nc")).queue == "abc"
    client.expect(ExchangeDeclareOk, ExchangeDeclare(exchange="x\ny\r", type="direct"))
    client.expect(ExchangeDeclareOk, ExchangeDeclare(exchange="xy", passive=True))
    client.expect(QueueBindOk, QueueBind(queue="ab\nc", exchange="x\ny", routing_key="k"))
    client.expect(ExchangeBindOk, ExchangeBind(destination="x\ny", source="amq.direct\n", routing_key="k"))
    client.say(publish("k", exchange="amq.direct"))
    assert client.expect(QueueDeleteOk, QueueDelete(queue="\rabc")).message_count == 1
    client.expect(ExchangeDeleteOk, ExchangeDelete(exchange="x\ny"))
    assert client.refused(ExchangeDeclare(exchange="xy", passive=True))[:2] == ("channel", 404)


@pytest.mark.parametrize("method", [BasicConsume, BasicGet, QueuePurge])
def test_line_ends_are_kept_elsewhere(client: Client, method: Callable[..., Method]) -> None:
    """consume, get and purge take the name as it is, and do not find it."""
    client.expect(QueueDeclareOk, QueueDeclare(queue="abc"))
    assert client.refused(method(queue="a\nbc"))[:2] == ("channel", 404)


def test_a_queue_named_by_line_ends_is_named_by_the_broker(client: Client) -> None:
    """A name of nothing but line ends is empty, so that the broker chooses one."""
    declared = client.expect(QueueDeclareOk, QueueDeclare(queue="\r\n", exclusive=True))
    assert declared.queue.startswith("amq.gen-")


OTHER_TYPES: dict[str, tuple[str, Any, Any]] = {
    "a float": ("x-message-ttl", 10, 10.0),
    "a flag for a number": ("x-message-ttl", 1, True),
    "a flag for a length": ("x-max-length", 1, True),
    "a number for a flag": ("x-single-active-consumer", True, 1),
    "a text": ("x-message-ttl", 10, "10"),
}


@pytest.mark.parametrize(("argument", "first", "second"), OTHER_TYPES.values(), ids=OTHER_TYPES)
def test_an_argument_of_another_type_is_not_equivalent(client: Client, argument: str, first: Any, second: Any) -> None:
    """An equal value of another type is PRECONDITION_FAILED when the queue is declared again."""
    client.expect(QueueDeclareOk, QueueDeclare(queue="q", arguments={argument: first}))

    what, code, text = client.refused(QueueDeclare(queue="q", arguments={argument: second}))

    assert (what, code) == ("channel", 406)
    assert f"inequivalent arg '{argument}' for queue 'q'" in text


@pytest.mark.parametrize("raw", [b"l" + struct.pack(">q", 10), b"s" + struct.pack(">h", 10), b"b\x0a"])
def test_an_integer_of_another_size_is_equivalent(client: Client, raw: bytes) -> None:
    """An argument that was an int is equivalent to the same number as long, short and byte."""
    client.expect(QueueDeclareOk, QueueDeclare(queue="q", arguments={"x-message-ttl": 10}))

    table = b"\x0dx-message-ttl" + raw
    payload = struct.pack(">HHH", 50, 10, 0) + b"\x01q\x00" + struct.pack(">I", len(table)) + table
    client.expect(QueueDeclareOk, HEAD.pack(METHOD, 1, len(payload)) + payload + END)


def test_an_exclusive_queue_may_be_declared_again_as_durable(client: Client) -> None:
    """Whether an exclusive queue is durable is not compared when it is declared again."""
    client.expect(QueueDeclareOk, QueueDeclare(queue="q", exclusive=True))
    client.expect(QueueDeclareOk, QueueDeclare(queue="q", exclusive=True, durable=True))
    assert client.refused(QueueDeclare(queue="q", exclusive=True, auto_delete=True))[:2] == ("channel", 406)


REFUSED_ARGUMENTS: dict[str, tuple[Table, str]] = {
    "a length as text": ({"x-max-length": "5"}, '"expected integer, got longstr"'),
    "a life as a float": ({"x-message-ttl": 10.5}, '"expected integer, got double"'),
    "a life beyond ten years": ({"x-expires": 315_360_000_001}, "{value_too_large,315360000001}"),
    "a priority too many": ({"x-max-priority": 256}, "{max_value_exceeded,256}"),
    "an unknown type": ({"x-queue-type": "bogus"}, "\"unsupported queue type 'bogus'\""),
    "an unknown overflow": ({"x-overflow": "x"}, "invalid_overflow"),
    "an unknown version": ({"x-queue-version": 3}, "\"unsupported queue version '3'\""),
}


@pytest.mark.parametrize(("arguments", "reason"), REFUSED_ARGUMENTS.values(), ids=REFUSED_ARGUMENTS)
def test_an_invalid_argument_is_refused_with_rabbitmqs_reason(client: Client, arguments: Table, reason: str) -> None:
    """The text of PRECONDITION_FAILED says what is wrong with the argument, and clients show it."""
    _, code, text = client.refused(QueueDeclare(queue="q", durable=True, arguments=arguments))

    assert code == 406
    assert text.endswith(f"': {reason}")


@pytest.mark.parametrize("argument", ["x-message-ttl", "x-expires"])
def test_a_queue_and_its_messages_may_live_for_ten_years(client: Client, argument: str) -> None:
    """Ten years in milliseconds is the longest TTL that is accepted."""
    client.expect(QueueDeclareOk, QueueDeclare(queue="q", arguments={argument: 315_360_000_000}))


def test_an_alternate_exchange_must_be_named_by_a_text(client: Client) -> None:
    """An `alternate-exchange` that is not a text is PRECONDITION_FAILED."""
    what, code, text = client.refused(ExchangeDeclare(exchange="x", type="direct", arguments={"alternate-exchange": 5}))
    assert (what, code) == ("channel", 406)
    assert "invalid type 'signedint' for arg 'alternate-exchange' in exchange 'x'" in text


def test_an_unknown_exchange_type_is_refused(client: Client, dialect: Dialect) -> None:
    """It is COMMAND_INVALID and ends the connection on 3.10; from 4.0 on it is PRECONDITION_FAILED on the channel."""
    what, code, text = client.refused(ExchangeDeclare(exchange="x", type="x-nope"))

    assert (what, code) == (("channel", 406) if dialect.unknown_type_ends_channel else ("connection", 503))
    assert text.endswith("unknown exchange type 'x-nope'")


def test_a_long_reply_text_ends_in_dots(client: Client) -> None:
    """A text that does not fit 255 bytes is cut to 252, and `...` follows."""
    _, code, text = client.refused(BasicGet(queue="q" * 255))

    assert code == 404
    assert text == ("NOT_FOUND - no queue '" + "q" * 255)[:252] + "..."


# Consumers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_delete_ok_comes_before_the_cancel_of_the_same_channel(client: Client, kind: str) -> None:
    """A channel that deletes a queue it consumes from gets delete-ok first, then basic.cancel."""
    client.expect(QueueDeclareOk, QueueDeclare(queue="q", durable=True, arguments={"x-queue-type": kind}))
    client.expect(BasicConsumeOk, BasicConsume(queue="q", consumer_tag="c"))

    client.expect(QueueDeleteOk, QueueDelete(queue="q"))
    assert client.expect(BasicCancel).consumer_tag == "c"


def test_the_prefetch_of_a_channel_is_shared_fairly_by_its_queues(
    connect: Callable[[], Client], dialect: Dialect
) -> None:
    """With a channel-wide prefetch of 1 no queue starves the others. From 4.3 on there is no channel-wide prefetch."""
    if not dialect.allows_global_qos:
        pytest.skip("this version has no prefetch for a whole channel")
    client = connect().connect().open_channel()
    for queue in "abc":
        client.expect(QueueDeclareOk, QueueDeclare(queue=queue))
        client.say(*[publish(queue)] * 100)
    client.expect(BasicQosOk, BasicQos(prefetch_count=1, global_=True))
    for queue in "abc":
        client.say(BasicConsume(queue=queue, consumer_tag=queue))

    served: set[str] = set()
    deliveries = 0
    while len(served) < 3:
        heard = client.heard()
        assert heard is not None
        if isinstance(heard[1], BasicDeliver):
            served.add(heard[1].consumer_tag)
            deliveries += 1
            assert deliveries < 90, f"only {served} were served"
            client.say(BasicAck(delivery_tag=heard[1].delivery_tag))


def test_a_no_ack_consumer_waits_for_room_on_its_channel(connect: Callable[[], Client], dialect: Dialect) -> None:
    """Where a channel-wide prefetch is reached, consumers without acknowledgements get nothing either."""
    client = connect().connect().open_channel()
    for queue in ("acked", "no-ack"):
        client.expect(QueueDeclareOk, QueueDeclare(queue=queue))
    client.expect(BasicQosOk, BasicQos(prefetch_count=1, global_=True))
    client.expect(BasicConsumeOk, BasicConsume(queue="acked", consumer_tag="acked"))
    client.say(publish("acked"))
    assert client.delivered() == "acked"
    client.expect(BasicConsumeOk, BasicConsume(queue="no-ack", consumer_tag="no-ack", no_ack=True))
    client.say(publish("no-ack"))

    if dialect.allows_global_qos:
        while client.count("no-ack") == 0:
            pass  # the message is on its way; a delivery would be the wrong answer
        client.say(BasicAck(delivery_tag=1))
    assert client.delivered() == "no-ack"


def test_a_quorum_queue_refuses_a_channel_wide_prefetch(client: Client, dialect: Dialect) -> None:
    """To consume from a quorum queue under a channel-wide prefetch is NOT_IMPLEMENTED, up to 4.2."""
    client.expect(QueueDeclareOk, QueueDeclare(queue="q", durable=True, arguments={"x-queue-type": "quorum"}))
    client.expect(BasicQosOk, BasicQos(prefetch_count=1, global_=True))

    if dialect.allows_global_qos:
        what, code, text = client.refused(BasicConsume(queue="q", consumer_tag="c"))
        assert (what, code) == ("connection", 540)
        assert text.endswith("does not support global qos")
    else:
        client.expect(BasicConsumeOk, BasicConsume(queue="q", consumer_tag="c"))


@pytest.mark.parametrize("priority", ["banana", None, 1.0, True], ids=repr)
def test_a_consumer_priority_must_be_an_integer(client: Client, priority: Any) -> None:
    """An `x-priority` that is not an integer is PRECONDITION_FAILED with the type it has."""
    client.expect(QueueDeclareOk, QueueDeclare(queue="q"))
    _, code, text = client.refused(BasicConsume(queue="q", arguments={"x-priority": priority}))

    assert code == 406
    assert '"expected integer, got ' in text


# Routing ------------------------------------------------------------------------------------------------------


@pytest.fixture
def routed(client: Client) -> Callable[[str, Table], list[str]]:
    """Publishes to `first`, which is bound to `second` by k1; says which of the queues k1, k2 and main got it."""
    for queue in ("k1", "k2", "main"):
        client.expect(QueueDeclareOk, QueueDeclare(queue=queue))
    client.expect(ExchangeDeclareOk, ExchangeDeclare(exchange="first", type="direct"))
    client.expect(ExchangeDeclareOk, ExchangeDeclare(exchange="second", type="topic"))
    client.expect(ExchangeBindOk, ExchangeBind(destination="second", source="first", routing_key="k1"))
    for queue in ("k1", "k2", "main"):
        client.expect(QueueBindOk, QueueBind(queue=queue, exchange="second", routing_key=queue))

    def publish_to_first(key: str, headers: Table) -> list[str]:
        client.say(publish(key, exchange="first", raw_properties=Properties(headers=headers).encode()))
        purged = {q: client.expect(QueuePurgeOk, QueuePurge(queue=q)).message_count for q in ("k1", "k2", "main")}
        return [queue for queue, count in purged.items() if count]

    return publish_to_first


@pytest.mark.parametrize(
    ("key", "headers", "expected"),
    [
        ("", {"CC": ["k1"], "BCC": ["k2"]}, ["k1", "k2"]),
        ("k1", {"CC": ["k2"]}, ["k1", "k2"]),
        ("main", {"CC": ["k1"]}, ["k1", "main"]),
        ("main", {"CC": ["k2"]}, []),
    ],
)
def test_each_exchange_on_the_way_matches_all_keys(
    routed: Callable[[str, Table], list[str]], key: str, headers: Table, expected: list[str]
) -> None:
    """CC and BCC keys are matched by every exchange on the way: one may lead to an exchange, another on from there."""
    assert routed(key, headers) == expected


def test_an_alternate_exchange_is_for_messages_without_any_matching_key(client: Client) -> None:
    """The alternate exchange is used when neither the routing key nor a CC key matches."""
    for queue in ("bound", "otherwise"):
        client.expect(QueueDeclareOk, QueueDeclare(queue=queue))
    client.expect(ExchangeDeclareOk, ExchangeDeclare(exchange="alternate", type="fanout"))
    alternate: Table = {"alternate-exchange": "alternate"}
    client.expect(ExchangeDeclareOk, ExchangeDeclare(exchange="main", type="direct", arguments=alternate))
    client.expect(QueueBindOk, QueueBind(queue="bound", exchange="main", routing_key="k"))
    client.expect(QueueBindOk, QueueBind(queue="otherwise", exchange="alternate"))

    for key, cc, expected in (("none", ["k"], (1, 0)), ("k", ["none"], (1, 0)), ("none", ["none"], (0, 1))):
        client.say(publish(key, exchange="main", raw_properties=Properties(headers={"CC": cc}).encode()))
        counts = [client.expect(QueuePurgeOk, QueuePurge(queue=q)).message_count for q in ("bound", "otherwise")]
        assert tuple(counts) == expected, (key, cc)


# Bad input ----------------------------------------------------------------------------------------------------


def test_a_client_that_keeps_writing_after_close_is_disconnected(memory_broker: ThreadedBroker) -> None:
    """The embedded broker ignores 16 MiB after close-ok; then it ends the connection."""
    with Client(f"{memory_broker.url}%2F") as client:
        client.connect().expect(ConnectionCloseOk, ConnectionClose(reply_code=200), channel=0)

        megabyte = b"x" * 1024 * 1024
        with pytest.raises(ConnectionError):
            client.socket.sendall(megabyte * 64)


def test_a_connection_that_ends_delivers_nothing_between_its_channels(memory_broker: ThreadedBroker) -> None:
    """What one channel gives back at the end of its connection is not lost to a no-ack consumer of another.

    RabbitMQ ends the channels at the same time, and may lose it.
    """
    url = memory_broker.add_vhost("two channels")
    with Client(url) as client, Client(url) as other:
        client.connect().open_channel()
        client.expect(QueueDeclareOk, QueueDeclare(queue="q"))
        client.expect(BasicConsumeOk, BasicConsume(queue="q", consumer_tag="c"))
        client.say(publish("q"))
        client.delivered()
        client.expect(ChannelOpenOk, ChannelOpen(), channel=2)
        client.expect(BasicConsumeOk, BasicConsume(queue="q", consumer_tag="d", no_ack=True), channel=2)
        client.expect(ConnectionCloseOk, ConnectionClose(reply_code=200), channel=0)

        assert other.connect().open_channel().count("q") == 1
