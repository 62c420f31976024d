#!/usr/bin/env python3
"""Record what a real RabbitMQ says, byte for byte: the second witness of the codec, next to pamqp.

    python tools/record_golden.py 3.10
    python tools/record_golden.py 4.0 --root .cache/rabbitmq-4.0

Starts a private node, holds the conversations below with it over a raw socket, and writes everything the broker sent
in each of them to `tests/golden/rabbitmq-VERSION/NAME.bin`: whole frames, one after the other. What the client says
is written with `redrive.wire`, because only the broker's side is the witness; the exceptions are property lists and
field tables that `redrive.wire` would refuse to write, or would write with another type. Those are bytes by hand.
"""

from __future__ import annotations

import argparse
import socket
import struct
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

from redrive.testing.rabbitmq import RabbitMQ
from redrive.wire.frames import (
    BODY,
    END,
    HEAD,
    HEADER,
    HEARTBEAT,
    METHOD,
    PROTOCOL_HEADER,
    content_frames,
    method_frame,
)
from redrive.wire.method import METHODS, Method
from redrive.wire.methods.basic import (
    BasicAck,
    BasicCancel,
    BasicConsume,
    BasicGet,
    BasicPublish,
    BasicQos,
    BasicRecover,
    BasicReject,
)
from redrive.wire.methods.channel import ChannelClose, ChannelFlow, ChannelOpen
from redrive.wire.methods.confirm import ConfirmSelect
from redrive.wire.methods.connection import (
    ConnectionClose,
    ConnectionOpen,
    ConnectionStartOk,
    ConnectionTuneOk,
    ConnectionUpdateSecret,
)
from redrive.wire.methods.exchange import ExchangeBind, ExchangeDeclare, ExchangeDelete, ExchangeUnbind
from redrive.wire.methods.queue import QueueBind, QueueDeclare, QueueDelete, QueuePurge, QueueUnbind
from redrive.wire.methods.tx import TxCommit, TxRollback, TxSelect
from redrive.wire.properties import Properties
from redrive.wire.values import Table

GOLDEN = Path(__file__).resolve().parent.parent / "tests" / "golden"
CAPABILITIES = {"consumer_cancel_notify": True, "connection.blocked": True, "basic.nack": True}


class Dialogue:
    """A client that says what it is told and keeps what it hears."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=30)
        self.heard = bytearray()

    @classmethod
    def begin(cls, port: int, *, frame_max: int = 131072, heartbeat: int = 0) -> Dialogue:
        """Connected, with channel 1 open, and all of that forgotten."""
        dialogue = cls(port)
        dialogue.shake_hands(frame_max=frame_max, heartbeat=heartbeat)
        dialogue.ask(ChannelOpen())
        dialogue.heard.clear()
        return dialogue

    def shake_hands(self, *, frame_max: int, heartbeat: int) -> None:
        self.write(PROTOCOL_HEADER)
        self.hear("connection.start")
        self.say(
            ConnectionStartOk(client_properties={"capabilities": CAPABILITIES}, response=b"\0guest\0guest"), channel=0
        )
        self.hear("connection.tune")
        self.say(ConnectionTuneOk(channel_max=2047, frame_max=frame_max, heartbeat=heartbeat), channel=0)
        self.ask(ConnectionOpen(), channel=0)

    def write(self, raw: bytes) -> None:
        self._socket.sendall(raw)

    def say(self, method: Method, channel: int = 1) -> None:
        self.write(method_frame(channel, method))

    def ask(self, method: Method, channel: int = 1) -> None:
        """Say it and wait for one of the answers the specification knows."""
        self.say(method, channel)
        self.hear(*method.replies)

    def publish(self, queue: str, properties: bytes, body: bytes = b"x", **publish: str | bool) -> None:
        """`properties` as they stand on the wire. To the queue of that name, unless told otherwise."""
        self.say(BasicPublish(**{"routing_key": queue, **publish}))  # type: ignore[arg-type]
        self.write(b"".join(content_frames(1, properties, body, 131072)))

    def hear(self, *names: str) -> None:
        """Listen until one of these methods came, with its content, or the broker ended the conversation."""
        while True:
            name, has_content = self._hear_method()
            if has_content:
                self._hear_content()
            if name in (*names, "connection.close"):
                return

    def hear_frame(self) -> tuple[int, bytes]:
        kind, _, size = HEAD.unpack(self._read(HEAD.size))
        return kind, self._read(size + 1)[:-1]

    def _hear_method(self) -> tuple[str, bool]:
        _, payload = self.hear_frame()
        method = METHODS[payload[:4]]
        return method.name, method.has_content

    def _hear_content(self) -> None:
        kind, payload = self.hear_frame()
        assert kind == HEADER
        missing = struct.unpack_from(">Q", payload, 4)[0]
        while missing:
            missing -= len(self.hear_frame()[1])

    def _read(self, size: int) -> bytes:
        raw = b""
        while len(raw) < size:
            piece = self._socket.recv(size - len(raw))
            if not piece:
                raise EOFError("the broker closed the socket")
            raw += piece
        self.heard += raw
        return raw


Scenario: TypeAlias = Callable[[RabbitMQ], Iterator[Dialogue]]
SCENARIOS: dict[str, Scenario] = {}


def scenario(converse: Scenario) -> Scenario:
    """A recording of the same name. It yields each dialogue whose hearing belongs into the file."""
    SCENARIOS[converse.__name__.replace("_", "-")] = converse
    return converse


# Conversations without a mistake ----------------------------------------------------------------------


@scenario
def handshake(node: RabbitMQ) -> Iterator[Dialogue]:
    dialogue = Dialogue(node.port)
    dialogue.shake_hands(frame_max=131072, heartbeat=60)
    dialogue.ask(ConnectionUpdateSecret(new_secret=b"guest", reason="because"), channel=0)
    dialogue.ask(ChannelOpen())
    dialogue.ask(ChannelFlow(active=True))
    dialogue.ask(ChannelClose())
    dialogue.ask(ConnectionClose(), channel=0)
    yield dialogue


@scenario
def declarations(node: RabbitMQ) -> Iterator[Dialogue]:
    dialogue = Dialogue.begin(node.port)
    for method in (
        ExchangeDeclare(exchange="golden.from", type="topic"),
        ExchangeDeclare(exchange="golden.to", type="fanout"),
        ExchangeBind(destination="golden.to", source="golden.from", routing_key="#"),
        ExchangeUnbind(destination="golden.to", source="golden.from", routing_key="#"),
        QueueDeclare(queue="golden.declared", durable=True, arguments={"x-max-length": 10}),
        QueueDeclare(exclusive=True),
        QueueBind(queue="golden.declared", exchange="golden.to"),
        QueueUnbind(queue="golden.declared", exchange="golden.to"),
        QueuePurge(queue="golden.declared"),
        QueueDelete(queue="golden.declared"),
        ExchangeDelete(exchange="golden.from"),
        BasicQos(prefetch_count=7),
        BasicRecover(requeue=True),
        ConfirmSelect(),
    ):
        dialogue.ask(method)
    yield dialogue


@scenario
def transaction(node: RabbitMQ) -> Iterator[Dialogue]:
    dialogue = Dialogue.begin(node.port)
    for method in (TxSelect(), TxCommit(), TxRollback()):
        dialogue.ask(method)
    yield dialogue


@scenario
def get(node: RabbitMQ) -> Iterator[Dialogue]:
    """Empty; then the first of two; then, given back, the same again."""
    dialogue = Dialogue.begin(node.port)
    dialogue.ask(QueueDeclare(queue="golden.get"))
    dialogue.ask(BasicGet(queue="golden.get"))
    for body in (b"first", b"second"):
        dialogue.publish("golden.get", Properties().encode(), body)
    dialogue.ask(BasicGet(queue="golden.get"))
    dialogue.say(BasicReject(delivery_tag=1, requeue=True))
    dialogue.ask(BasicGet(queue="golden.get"))
    yield dialogue


@scenario
def consume(node: RabbitMQ) -> Iterator[Dialogue]:
    """A delivery, a cancel from the client, and another consumer's cancel from the broker, whose queue is gone."""
    dialogue = Dialogue.begin(node.port)
    dialogue.ask(QueueDeclare(queue="golden.consume"))
    dialogue.ask(BasicConsume(queue="golden.consume", consumer_tag="mine"))
    dialogue.publish("golden.consume", Properties(delivery_mode=2).encode(), b"hello")
    dialogue.hear("basic.deliver")
    dialogue.say(BasicAck(delivery_tag=1))
    dialogue.ask(BasicCancel(consumer_tag="mine"))
    dialogue.ask(BasicConsume(queue="golden.consume"))
    Dialogue.begin(node.port).ask(QueueDelete(queue="golden.consume"))
    dialogue.hear("basic.cancel")
    yield dialogue


@scenario
def confirms(node: RabbitMQ) -> Iterator[Dialogue]:
    """Returned and acked; stored and acked; refused by a full queue and nacked."""
    dialogue = Dialogue.begin(node.port)
    dialogue.ask(ConfirmSelect())
    dialogue.publish("golden.nowhere", Properties(message_id="lost").encode(), b"nobody listens", mandatory=True)
    dialogue.hear("basic.ack")
    full: Table = {"x-max-length": 1, "x-overflow": "reject-publish"}
    dialogue.ask(QueueDeclare(queue="golden.full", arguments=full))
    dialogue.publish("golden.full", Properties().encode(), mandatory=True)
    dialogue.hear("basic.ack")
    dialogue.publish("golden.full", Properties().encode(), mandatory=True)
    dialogue.hear("basic.nack")
    yield dialogue


@scenario
def dead_letters(node: RabbitMQ) -> Iterator[Dialogue]:
    """One message three times: fresh, and after one and two laps of reject, wait in a TTL queue, come back."""
    dialogue = Dialogue.begin(node.port)
    retry: Table = {"x-message-ttl": 1, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "golden.work"}
    dialogue.ask(QueueDeclare(queue="golden.work.retry", arguments=retry))
    to_retry = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "golden.work.retry"}
    dialogue.ask(QueueDeclare(queue="golden.work", arguments=to_retry))
    dialogue.ask(ExchangeDeclare(exchange="golden.events", type="topic"))
    dialogue.ask(QueueBind(queue="golden.work", exchange="golden.events", routing_key="order.*"))
    dialogue.ask(BasicConsume(queue="golden.work", consumer_tag="worker"))
    properties = Properties(message_id="m-1", headers={"attempt": 1}, expiration="60000").encode()
    dialogue.publish("order.created", properties, b"{}", exchange="golden.events")
    for lap in range(3):
        dialogue.hear("basic.deliver")
        dialogue.say(BasicReject(delivery_tag=lap + 1, requeue=False))
    yield dialogue


@scenario
def big_body(node: RabbitMQ) -> Iterator[Dialogue]:
    dialogue = Dialogue.begin(node.port, frame_max=8192)  # 4096 is too small for RabbitMQ 4.3
    dialogue.ask(QueueDeclare(queue="golden.big"))
    dialogue.say(BasicPublish(routing_key="golden.big"))
    body = bytes(range(250)) * 36
    dialogue.write(b"".join(content_frames(1, Properties().encode(), body, 8192)))
    dialogue.ask(BasicGet(queue="golden.big"))
    yield dialogue


@scenario
def heartbeat(node: RabbitMQ) -> Iterator[Dialogue]:
    dialogue = Dialogue.begin(node.port, heartbeat=1)
    dialogue.hear_frame()
    yield dialogue


@scenario
def blocked(node: RabbitMQ) -> Iterator[Dialogue]:
    """A connection is told of a memory alarm once it has published."""
    dialogue = Dialogue.begin(node.port)
    dialogue.ask(QueueDeclare(queue="golden.blocked"))
    dialogue.heard.clear()
    node.ctl("set_vm_memory_high_watermark", "absolute", "1")
    dialogue.publish("golden.blocked", Properties().encode())
    dialogue.hear("connection.blocked")
    node.ctl("set_vm_memory_high_watermark", "absolute", "1GB")
    dialogue.hear("connection.unblocked")
    yield dialogue


# Messages, passed on ----------------------------------------------------------------------------------


def passed_on(node: RabbitMQ, *contents: bytes) -> Dialogue:
    """Messages with these properties, published and got one after the other."""
    dialogue = Dialogue.begin(node.port)
    dialogue.ask(QueueDeclare(queue="golden.passed"))
    dialogue.ask(QueuePurge(queue="golden.passed"))
    dialogue.heard.clear()
    for properties in contents:
        dialogue.publish("golden.passed", properties)
        dialogue.ask(BasicGet(queue="golden.passed", no_ack=True))
    return dialogue


def sized(raw: bytes) -> bytes:
    return struct.pack(">I", len(raw)) + raw


def headers(table: bytes) -> bytes:
    """A property list of headers alone, from the body of a table."""
    return b"\x20\x00" + sized(table)


def nested(depth: int) -> bytes:
    table = b""
    for _ in range(depth):
        table = b"\x01kF" + sized(table)
    return table


FIELD_TYPES = (
    b"t\x01",
    b"b\xff",
    b"B\xff",
    b"s\xff\xff",
    b"u\xff\xff",
    b"I\xff\xff\xff\xff",
    b"i\xff\xff\xff\xff",
    b"l\xff\xff\xff\xff\xff\xff\xff\xff",
    b"L\xff\xff\xff\xff\xff\xff\xff\xff",
    b"f" + struct.pack(">f", 1.5),
    b"d" + struct.pack(">d", 0.1),
    b"D\x02" + struct.pack(">i", -314),
    b"S" + sized("schön".encode()),
    b"S" + sized(b"\xff\xfe"),
    b"x" + sized(b"\x00\xff"),
    b"A" + sized(b"I\x00\x00\x00\x01V"),
    b"T" + struct.pack(">Q", 1_700_000_000),
    b"T\xff\xff\xff\xff\xff\xff\xff\xff",
    b"F" + sized(b"\x01aI\x00\x00\x00\x01"),
    b"V",
)


@scenario
def properties(node: RabbitMQ) -> Iterator[Dialogue]:
    every = Properties(
        content_type="application/json",
        content_encoding="utf-8",
        headers={"tenant": "blue"},
        delivery_mode=2,
        priority=5,
        correlation_id="correlation",
        reply_to="answers",
        expiration="60000",
        message_id="m-1",
        timestamp=1_700_000_000,
        type="order.created",
        user_id="guest",
        app_id="shop",
        cluster_id="east",
    )
    empty = Properties(headers={}, message_id="", app_id="")
    yield passed_on(node, every.encode(), empty.encode(), Properties().encode())


@scenario
def field_types(node: RabbitMQ) -> Iterator[Dialogue]:
    yield passed_on(node, *(headers(b"\x05value" + field) for field in FIELD_TYPES))


@scenario
def field_types_dead(node: RabbitMQ) -> Iterator[Dialogue]:
    """All of them in one table that the broker had to decode and write again, to add x-death."""
    dialogue = Dialogue.begin(node.port)
    to_dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "golden.dead"}
    dialogue.ask(QueueDeclare(queue="golden.dead"))
    dialogue.ask(QueueDeclare(queue="golden.types", arguments=to_dead))
    table = b"".join(b"\x02%02d" % number + field for number, field in enumerate(FIELD_TYPES))
    dialogue.publish("golden.types", headers(table))
    dialogue.ask(BasicGet(queue="golden.types"))
    dialogue.heard.clear()
    dialogue.say(BasicReject(delivery_tag=1, requeue=False))
    dialogue.ask(BasicConsume(queue="golden.dead", consumer_tag="mourner", no_ack=True))
    dialogue.hear("basic.deliver")
    yield dialogue


@scenario
def odd(node: RabbitMQ) -> Iterator[Dialogue]:
    """What a publisher gets away with: a name and an id that are not UTF-8, flags without a meaning, a deep table."""
    yield passed_on(
        node,
        headers(b"\x02\xff\xfeI\x00\x00\x00\x01"),
        b"\x00\x80\x04\xff\xfeid",
        b"\x00\x02",
        b"\x00\x01",
        headers(nested(40)),
    )


@scenario
def odd_routing_key(node: RabbitMQ) -> Iterator[Dialogue]:
    dialogue = Dialogue.begin(node.port)
    dialogue.ask(ExchangeDeclare(exchange="golden.fanout", type="fanout"))
    dialogue.ask(QueueDeclare(queue="golden.odd"))
    dialogue.ask(QueueBind(queue="golden.odd", exchange="golden.fanout"))
    dialogue.heard.clear()
    dialogue.publish("\udcff\udcfe", Properties().encode(), exchange="golden.fanout")
    dialogue.ask(BasicGet(queue="golden.odd", no_ack=True))
    yield dialogue


# Refusals ---------------------------------------------------------------------------------------------


@scenario
def refused_channels(node: RabbitMQ) -> Iterator[Dialogue]:
    """404 for a queue and for an exchange, 406, and a 404 whose text is too long and is cut inside a letter."""
    for method in (
        QueueDeclare(queue="golden.missing", passive=True),
        BasicPublish(exchange="golden.missing"),
        QueueDeclare(queue="golden.passed", arguments={"x-message-ttl": 1}),
        QueueDeclare(queue="x" + "é" * 120, passive=True),
    ):
        dialogue = Dialogue.begin(node.port)
        dialogue.ask(QueueDeclare(queue="golden.passed"))
        dialogue.heard.clear()
        dialogue.say(method)
        if method.has_content:
            dialogue.write(b"".join(content_frames(1, Properties().encode(), b"x", 4096)))
        dialogue.hear("channel.close")
        yield dialogue


@scenario
def refused_contents(node: RabbitMQ) -> Iterator[Dialogue]:
    """Properties that end the connection: not a number, infinite, an unknown type, bytes too many, too few."""
    yield passed_on(node, headers(b"\x01kd" + struct.pack(">d", float("nan"))))
    yield passed_on(node, headers(b"\x01kd" + struct.pack(">d", float("inf"))))
    yield passed_on(node, headers(b"\x01kz\x00"))
    yield passed_on(node, b"\x00\x00zz")
    yield passed_on(node, b"\x00")


@scenario
def refused_connections(node: RabbitMQ) -> Iterator[Dialogue]:
    """Mistakes that cost the whole connection, and a shutdown by an operator.

    RabbitMQ says no farewell after an unknown method: it resets the socket.
    """
    for mistake in (
        method_frame(1, QueueDeclare(queue="??")).replace(b"??", b"\xff\xfe"),  # a name that is not UTF-8
        HEAD.pack(9, 1, 0) + END,  # an unknown type of frame
        HEAD.pack(HEARTBEAT, 0, 0) + b"\xcd",  # another end octet
        HEAD.pack(HEARTBEAT, 1, 0) + END,  # a heartbeat outside channel 0
        HEAD.pack(METHOD, 1, 200_000),  # larger than frame-max
        HEAD.pack(BODY, 1, 1) + b"x" + END,  # content without a method
        method_frame(9, BasicQos()),  # a channel that is not open
    ):
        dialogue = Dialogue.begin(node.port)
        dialogue.write(mistake)
        dialogue.hear("connection.close")
        yield dialogue
    dialogue = Dialogue.begin(node.port)
    node.ctl("close_all_connections", "going home")
    dialogue.hear("connection.close")
    yield dialogue


# The recording ----------------------------------------------------------------------------------------


def record(node: RabbitMQ, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, converse in SCENARIOS.items():
        heard = b"".join(bytes(dialogue.heard) for dialogue in converse(node))
        (folder / f"{name}.bin").write_bytes(heard)
        print(f"{folder.name}/{name}.bin: {len(heard)} bytes")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("version", help="as in the folder's name: 3.10")
    parser.add_argument("--root", type=Path, help="a folder with that RabbitMQ in it; without, the system's is used")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, RabbitMQ(Path(directory) / "node", root=asked.root) as node:
        version = ".".join(map(str, node.version[:2]))
        if version != asked.version:
            parser.error(f"the node is RabbitMQ {version}, not {asked.version}")
        record(node, GOLDEN / f"rabbitmq-{version}")


if __name__ == "__main__":
    main()
