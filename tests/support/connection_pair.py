"""Two conversations, a client's and a broker's, connected by hand: no socket, no task, no clock.

    pair = ConnectionPair()
    pair.open()
    number = pair.open_channel()
    pair.client.send(number, BasicPublish(exchange="orders"), body=b"{}")
    [publication] = pair.to_server()

Bytes cross when the test says so, in the direction it says, so that every meeting of two farewells can be
staged. How they cross is the pair's `split`: `whole`, `frame_by_frame`, `byte_by_byte` or `at_random`. No test
may come out differently for it. A peer that breaks the rules is played with `tell_server`, `tell_client` and `frame`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from random import Random
from typing import NamedTuple, TypeAlias, assert_never

from redrive.protocol.connection import AmqpConnection, Event, Violation
from redrive.protocol.handshake import ClientHandshake, PlainAuth, Tuning
from redrive.protocol.messages import Delivery, Incoming, Publication
from redrive.wire.frames import END, HEAD, OVERHEAD, PROTOCOL_HEADER
from redrive.wire.method import Method, Sender
from redrive.wire.methods.channel import ChannelOpen, ChannelOpenOk
from redrive.wire.methods.connection import ConnectionOpenOk, ConnectionStart, ConnectionTune

# How bytes arrive -------------------------------------------------------------------------------------

Split: TypeAlias = Callable[[bytes], Iterable[bytes]]
"""Cuts what one side wrote into what the other side reads at a time."""


def whole(data: bytes) -> list[bytes]:
    return [data]


def frame_by_frame(data: bytes) -> Iterator[bytes]:
    """One frame, or the protocol header, at a time; and whatever comes after the last whole frame."""
    start = 0
    while start < len(data):
        stop = start + _unit(data, start)
        yield data[start:stop]
        start = stop


def _unit(data: bytes, start: int) -> int:
    if len(data) - start < OVERHEAD or data.startswith(PROTOCOL_HEADER, start):
        return OVERHEAD
    return OVERHEAD + int(HEAD.unpack_from(data, start)[2])


def byte_by_byte(data: bytes) -> list[bytes]:
    return [data[at : at + 1] for at in range(len(data))]


def at_random(chance: Random) -> Split:
    """Reads of a few bytes and of many, as a network gives them."""

    def split(data: bytes) -> Iterator[bytes]:
        start = 0
        while start < len(data):
            stop = start + chance.choice((1, 2, 7, 8, 30, 1000, 100_000))
            yield data[start:stop]
            start = stop

    return split


def frame(kind: int, channel: int, payload: bytes, *, size: int | None = None, end: bytes = END) -> bytes:
    """A frame as a hostile peer would write it: `size` and `end` may lie."""
    return HEAD.pack(kind, channel, len(payload) if size is None else size) + payload + end


# The pair ---------------------------------------------------------------------------------------------


class Heard(NamedTuple):
    """What each side understood."""

    client: list[Event]
    server: list[Event]


class ConnectionPair:
    def __init__(
        self,
        *,
        split: Split = whole,
        offer: Tuning | None = None,
        wish: Tuning | None = None,
        client: AmqpConnection | None = None,
        server: AmqpConnection | None = None,
    ) -> None:
        """`offer` is the broker's tuning and `wish` the client's. Give a conversation to limit its messages."""
        self.split = split
        self.offer = offer or Tuning()
        self.handshake = ClientHandshake(PlainAuth("guest", "guest"), wish=wish or Tuning())
        self.client = client or AmqpConnection(Sender.CLIENT)
        self.server = server or AmqpConnection(Sender.SERVER, offer=self.offer)

    def tell_server(self, data: bytes) -> list[Event]:
        """Let the server read these bytes, whoever wrote them."""
        return [event for piece in self.split(data) for event in self.server.receive(piece)]

    def tell_client(self, data: bytes) -> list[Event]:
        return [event for piece in self.split(data) for event in self.client.receive(piece)]

    def to_server(self) -> list[Event]:
        """Let the server read what the client has said since."""
        return self.tell_server(self.client.data_to_send())

    def to_client(self) -> list[Event]:
        return self.tell_client(self.server.data_to_send())

    def pump(self) -> Heard:
        """Let both read until neither has more to say."""
        heard = Heard([], [])
        while self.client.outgoing or self.server.outgoing:
            heard.server.extend(self.to_server())
            heard.client.extend(self.to_client())
        return heard

    def open(self) -> None:
        """The whole handshake, after which both sides are OPEN."""
        self.client.send_protocol_header()
        self.to_server()
        self._ask(ConnectionStart())
        self._ask(
            ConnectionTune(
                channel_max=self.offer.channel_max, frame_max=self.offer.frame_max, heartbeat=self.offer.heartbeat
            )
        )
        self.server.send(0, ConnectionOpenOk())
        self.to_client()

    def _ask(self, question: Method) -> None:
        self.server.send(0, question)
        self.to_client()
        for answer in self.handshake.answer(question):
            self.client.send(0, answer)
        self.to_server()

    def open_channel(self, number: int | None = None) -> int:
        """Open a channel on both sides: the lowest free one, if none is named."""
        number = number or self.client.free_channel()
        self.client.send(number, ChannelOpen())
        self.to_server()
        self.server.send(number, ChannelOpenOk())
        self.to_client()
        return number

    def __repr__(self) -> str:
        return f"<ConnectionPair {self.client!r} {self.server!r}>"


def essence(event: Event) -> tuple[object, ...]:
    """What an event says, as a value to compare: a delivery itself is an object with an identity."""
    match event:
        case Delivery():
            flags = (event.redelivered, event.settled)
            name = (event.consumer_tag, event.delivery_tag, event.exchange, event.routing_key)
            return ("delivery", event.channel, *name, *flags, event.raw_properties, event.body)
        case Publication():
            flags = (event.mandatory, event.immediate)
            return ("publication", event.channel, event.route, *flags, event.raw_properties, event.body)
        case Incoming():
            return ("incoming", event.channel, event.method, event.raw_properties, event.body)
        case Violation():
            return ("violation", event.channel, event.error.code, event.error.text)
        case _:
            assert_never(event)
