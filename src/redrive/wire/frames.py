"""Frames (section 4.2.3): type, channel, size, payload, end octet; and the writers of the hot path.

    0      1         3             7                  size+7      size+8
    +------+---------+-------------+  +------------+  +-----------+
    | type | channel |     size    |  |  payload   |  | frame-end |
    +------+---------+-------------+  +------------+  +-----------+

A message is a method frame, a header frame and as many body frames as `frame_max` asks for. `frame_max`
counts the whole frame, eight octets of framing included.
"""

from __future__ import annotations

from struct import Struct

from redrive.errors import EncodingError
from redrive.wire.method import Method
from redrive.wire.values import encode_short_string

PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"
# What a broker accepts: the header of AMQP 0-9 means 0-9-1 to RabbitMQ.
GREETINGS = (PROTOCOL_HEADER, b"AMQP\x01\x01\x00\x09")

METHOD = 1
HEADER = 2
BODY = 3
HEARTBEAT = 8

END = b"\xce"
END_OCTET = 0xCE
OVERHEAD = 8
MIN_FRAME_MAX = 4096  # section 4.2.3: a peer must accept at least this much

HEAD = Struct(">BHI")  # type, channel, size
CONTENT_HEAD = Struct(">HHQ")  # class, weight, body size; the properties follow
HEARTBEAT_FRAME = HEAD.pack(HEARTBEAT, 0, 0) + END

BASIC_CLASS = 60
HEADER_FRAME = Struct(">BHIHHQ")
_PUBLISH_ID = b"\x00\x3c\x00\x28\x00\x00"  # basic.publish and the reserved ticket
_DELIVER_ID = b"\x00\x3c\x00\x3c"
_TAG = Struct(">QB")
_END_AND_HEAD = Struct(">BBHI")  # the end of the header frame and the head of the body frame in one
_SETTLE = Struct(">BHIHHQBB")


def method_frame(channel: int, method: Method) -> bytes:
    payload = method.encode()
    return HEAD.pack(METHOD, channel, len(payload)) + payload + END


def content_frames(channel: int, properties: bytes, body: bytes, frame_max: int, *, strict: bool = True) -> list[bytes]:
    """The header and body frames of a message, in pieces to be joined with whatever is written next to them.

    `strict`: refuse a header that is larger than a frame, since it cannot be cut. A broker must not, and RabbitMQ does
    not: who gets a message may have agreed on smaller frames than who published it.
    """
    room = frame_max - OVERHEAD
    size = len(body)
    if 12 + len(properties) > room and strict:
        text = f"{len(properties)} bytes of properties and headers; this connection can carry {room - 12}"
        raise EncodingError(f"{text}. Shorten the headers: the broker would close the connection")
    header = HEADER_FRAME.pack(HEADER, channel, 12 + len(properties), BASIC_CLASS, 0, size)
    if not size:
        return [header, properties, END]
    if size <= room:
        return [header, properties, _END_AND_HEAD.pack(END_OCTET, BODY, channel, size), body, END]
    pieces = [header, properties, END]
    for start in range(0, size, room):
        piece = body[start : start + room]
        pieces += (HEAD.pack(BODY, channel, len(piece)), piece, END)
    return pieces


# The hot path: equal to `method_frame` of the declared methods, which a property checks -----------------------


def publish_frame(channel: int, exchange: str, routing_key: str, mandatory: bool) -> bytes:
    payload = b"".join(
        (
            _PUBLISH_ID,
            encode_short_string(exchange),
            encode_short_string(routing_key),
            b"\x01" if mandatory else b"\0",
        )
    )
    return HEAD.pack(METHOD, channel, len(payload)) + payload + END


def deliver_frame(channel: int, consumer_tag: bytes, delivery_tag: int, redelivered: bool, route: bytes) -> bytes:
    """`consumer_tag` and `route` (exchange, then routing key) come as encoded short strings, which a broker keeps."""
    payload = b"".join((_DELIVER_ID, consumer_tag, _TAG.pack(delivery_tag, redelivered), route))
    return HEAD.pack(METHOD, channel, len(payload)) + payload + END


def ack_frame(channel: int, delivery_tag: int, multiple: bool) -> bytes:
    return _SETTLE.pack(METHOD, channel, 13, BASIC_CLASS, 80, delivery_tag, multiple, END_OCTET)


def nack_frame(channel: int, delivery_tag: int, multiple: bool, requeue: bool) -> bytes:
    return _SETTLE.pack(METHOD, channel, 13, BASIC_CLASS, 120, delivery_tag, multiple | requeue << 1, END_OCTET)


def reject_frame(channel: int, delivery_tag: int, requeue: bool) -> bytes:
    return _SETTLE.pack(METHOD, channel, 13, BASIC_CLASS, 90, delivery_tag, requeue, END_OCTET)
