"""Messages as they cross a channel, decoded only as far as somebody looks.

A `Delivery` is made for every message a consumer gets and a `Publication` for every message a broker gets:
they are the objects of the hot path. Both keep the exchange and routing key as encoded and the properties as
raw bytes, so that a handler which never asks for a header never pays for one, and so that a message can be
passed on byte for byte.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from struct import Struct
from typing import Protocol

from redrive.errors import AlreadySettled
from redrive.wire.method import Method
from redrive.wire.methods.basic import BasicGetOk
from redrive.wire.properties import Properties, decode_properties
from redrive.wire.values import encode_short_string, malformed_error

_TAG = Struct(">QB")


class Settler(Protocol):
    """Whoever can tell the broker about a delivery. `False` means: too late, the broker delivers it again."""

    @property
    def is_open(self) -> bool:
        """Whether it is not too late."""

    def ack(self, delivery_tag: int) -> bool: ...

    def ack_all(self, delivery_tags: list[int]) -> bool: ...

    def nack(self, delivery_tag: int, requeue: bool) -> bool: ...

    def reject(self, delivery_tag: int, requeue: bool) -> bool: ...


class Delivery:
    """A message that the broker handed over and waits to hear about: `ack`, `nack` or `reject` it once.

    Each of these returns whether it was passed to the broker. It is not when the channel that brought the
    delivery has ended: the broker has taken the message back already and will deliver it again.
    """

    __slots__ = (
        "_properties", "_route", "_settler", "body", "channel", "delivery_tag",
        "raw_consumer_tag", "raw_properties", "redelivered",
    )  # fmt: skip

    channel: int
    raw_consumer_tag: bytes
    delivery_tag: int
    redelivered: bool
    raw_properties: bytes
    body: bytes
    _route: bytes
    _settler: Settler | None
    _properties: Properties | None

    def __init__(self, channel: int, payload: bytes, raw_properties: bytes, body: bytes) -> None:
        """`payload` is that of a basic.deliver frame."""
        tag_end = 5 + payload[4] if len(payload) > 4 else 0
        if len(payload) < tag_end + 11:
            raise malformed_error("basic.deliver is cut short")
        self.channel = channel
        self.raw_consumer_tag = payload[5:tag_end]
        self.delivery_tag, bits = _TAG.unpack_from(payload, tag_end)
        self.redelivered = bits & 1 == 1
        self._route = route = payload[tag_end + 9 :]
        check_route(route)
        self.raw_properties = raw_properties
        self.body = body
        self._settler = None
        self._properties = None

    @classmethod
    def from_get(cls, channel: int, got: BasicGetOk, raw_properties: bytes, body: bytes) -> Delivery:
        """Read a basic.get-ok as a basic.deliver without a consumer tag."""
        route = encode_short_string(got.exchange) + encode_short_string(got.routing_key)
        return cls(channel, bytes(5) + _TAG.pack(got.delivery_tag, got.redelivered) + route, raw_properties, body)

    @property
    def consumer_tag(self) -> str:
        return self.raw_consumer_tag.decode("utf-8", "surrogateescape")

    @property
    def exchange(self) -> str:
        return route_exchange(self._route)

    @property
    def routing_key(self) -> str:
        return route_key(self._route)

    @property
    def properties(self) -> Properties:
        """Decoded when first asked for. Raises RemoteProtocolError if the publisher's client wrote nonsense."""
        if self._properties is None:
            self._properties = decode_properties(self.raw_properties)
        return self._properties

    @property
    def settled(self) -> bool:
        return self._settler is None

    @property
    def is_taken_back(self) -> bool:
        """Whether the channel that brought it has ended: the broker will deliver the message again."""
        return self._settler is not None and not self._settler.is_open

    def attach(self, settler: Settler) -> None:
        """Name who tells the broker. Called once, by whoever received the delivery."""
        self._settler = settler

    def ack(self) -> bool:
        """Done: the broker may forget the message."""
        settler = self._settler
        if settler is None:
            raise self._already_settled_error()
        self._settler = None
        return settler.ack(self.delivery_tag)

    def nack(self, *, requeue: bool = True) -> bool:
        """Not done. Requeued, it comes again at once; on quorum queues of RabbitMQ 4.3 this counts as no attempt."""
        settler = self._settler
        if settler is None:
            raise self._already_settled_error()
        self._settler = None
        return settler.nack(self.delivery_tag, requeue)

    def reject(self, *, requeue: bool = False) -> bool:
        """Refused: to the queue's dead-letter exchange, or nowhere if it has none."""
        settler = self._settler
        if settler is None:
            raise self._already_settled_error()
        self._settler = None
        return settler.reject(self.delivery_tag, requeue)

    def _already_settled_error(self) -> AlreadySettled:
        return AlreadySettled(f"{self!r} was settled before; a delivery is acked, nacked or rejected once")

    def __repr__(self) -> str:
        flags = " redelivered" * self.redelivered + " settled" * self.settled
        return (
            f"<Delivery {self.delivery_tag} on channel {self.channel} exchange={self.exchange!r} "
            f"key={self.routing_key!r} {len(self.body)} bytes{flags}>"
        )


def ack_all(deliveries: Iterable[Delivery]) -> None:
    """Done with all of them: `ack` for many, at the price of few. One that was settled before is told when the others
    are acked: they must not pay for it.
    """
    before: Delivery | None = None
    settler: Settler | None = None
    tags: list[int] = []
    for delivery in deliveries:
        its = delivery._settler
        if its is None:
            before = delivery
            continue
        if its is not settler:
            if settler is not None:
                settler.ack_all(tags)
            settler, tags = its, []
        delivery._settler = None
        tags.append(delivery.delivery_tag)
    if settler is not None:
        settler.ack_all(tags)
    if before is not None:
        raise before._already_settled_error()


class Publication:
    """A message that a client published, as the broker's side receives it."""

    __slots__ = ("body", "channel", "immediate", "mandatory", "raw_properties", "route")

    def __init__(self, channel: int, payload: bytes, raw_properties: bytes, body: bytes) -> None:
        """`payload` is that of a basic.publish frame."""
        if len(payload) < 9:
            raise malformed_error("basic.publish is cut short")
        self.channel = channel
        self.route = route = payload[6:-1]
        check_route(route)
        self.mandatory = payload[-1] & 1 == 1
        self.immediate = payload[-1] & 2 == 2
        self.raw_properties = raw_properties
        self.body = body

    @property
    def exchange(self) -> str:
        return route_exchange(self.route)

    @property
    def routing_key(self) -> str:
        return route_key(self.route)

    def __repr__(self) -> str:
        return (
            f"<Publication on channel {self.channel} exchange={self.exchange!r} key={self.routing_key!r} "
            f"{len(self.body)} bytes>"
        )


@dataclass(frozen=True, slots=True)
class Incoming:
    """Any other method, with its content if it has one (basic.return, basic.get-ok)."""

    channel: int
    method: Method
    raw_properties: bytes = b""
    body: bytes = b""


# A route: the exchange and the routing key as two encoded short strings ----------------------------------------


def check_route(route: bytes) -> None:
    """Two short strings and nothing else."""
    at = route[0] + 1 if route else 0
    if len(route) <= at or len(route) != at + 1 + route[at]:
        raise malformed_error("the exchange and routing key of a message do not add up")


def route_exchange(route: bytes) -> str:
    return route[1 : 1 + route[0]].decode("utf-8", "surrogateescape")


def route_key(route: bytes) -> str:
    return route[2 + route[0] :].decode("utf-8", "surrogateescape")
