"""Frames: their envelope, the splitting of content, and the writers of the hot path by example.

That the hot path's writers equal the declared methods for all arguments is shown in `properties/test_wire_properties`.
"""

from __future__ import annotations

import pytest

from redrive.errors import EncodingError
from redrive.wire import frames
from redrive.wire.frames import HEARTBEAT_FRAME, PROTOCOL_HEADER, content_frames, method_frame
from redrive.wire.methods.basic import BasicAck, BasicDeliver, BasicNack, BasicPublish, BasicReject
from redrive.wire.methods.queue import QueuePurgeOk
from redrive.wire.properties import Properties
from redrive.wire.values import encode_short_string

HEADER_HEAD = b"\x02\x00\x07" + b"\x00\x00\x00\x0e" + b"\x00\x3c\x00\x00"


def test_the_protocol_header_asks_for_version_0_9_1() -> None:
    assert bytes.fromhex("41 4d 51 50 00 00 09 01") == PROTOCOL_HEADER


def test_a_heartbeat_is_an_empty_frame_on_channel_0() -> None:
    assert HEARTBEAT_FRAME == b"\x08\x00\x00\x00\x00\x00\x00\xce"


def test_a_frame_is_type_channel_size_payload_and_end() -> None:
    frame = method_frame(0x0102, QueuePurgeOk(message_count=3))
    assert frame == b"\x01" + b"\x01\x02" + b"\x00\x00\x00\x08" + b"\x00\x32\x00\x1f\x00\x00\x00\x03" + b"\xce"


def test_a_message_without_body_is_a_header_alone() -> None:
    assert b"".join(content_frames(7, b"\x00\x00", b"", 4096)) == HEADER_HEAD + bytes(8) + b"\x00\x00" + b"\xce"


def test_a_body_that_fits_is_one_frame() -> None:
    content = b"".join(content_frames(7, b"\x00\x00", b"body", 4096))
    header, body = content[:22], content[22:]
    assert header == HEADER_HEAD + b"\x00\x00\x00\x00\x00\x00\x00\x04" + b"\x00\x00" + b"\xce"
    assert body == b"\x03\x00\x07" + b"\x00\x00\x00\x04" + b"body" + b"\xce"


def test_frame_max_counts_the_whole_frame() -> None:
    content = b"".join(content_frames(7, b"\x00\x00", b"sixteen, and more", 8 + 16))
    bodies = content[22:]
    assert bodies == (
        b"\x03\x00\x07\x00\x00\x00\x10" + b"sixteen, and mor" + b"\xce"
        + b"\x03\x00\x07\x00\x00\x00\x01" + b"e" + b"\xce"
    )  # fmt: skip


def test_a_body_of_exactly_two_frames_is_not_followed_by_an_empty_one() -> None:
    content = b"".join(content_frames(7, b"\x00\x00", bytes(32), 8 + 16))
    assert len(content) == 22 + 2 * (8 + 16)


def test_headers_larger_than_a_frame_are_refused_before_the_broker_ends_the_connection() -> None:
    properties = Properties(headers={"story": "x" * 4096}).encode()
    with pytest.raises(EncodingError, match=r"4113 bytes of properties and headers; this connection can carry 4076"):
        content_frames(1, properties, b"", 4096)


def test_headers_larger_than_a_frame_are_sent_whole_by_who_is_not_strict() -> None:
    frame = b"".join(content_frames(1, bytes(5000), b"", 4096, strict=False))
    assert frame[3:7] == (12 + 5000).to_bytes(4, "big")
    assert len(frame) == 20 + 5000


def test_headers_that_just_fit_a_frame_are_sent() -> None:
    frame = b"".join(content_frames(1, bytes(4076), b"", 4096))
    assert len(frame) == 4096


def test_a_body_in_one_frame_is_not_copied() -> None:
    body = b"body" * 100
    assert any(piece is body for piece in content_frames(7, b"\x00\x00", body, 4096))


def test_the_header_tells_the_size_of_its_properties() -> None:
    properties = Properties(message_id="m-1").encode()
    frame = b"".join(content_frames(1, properties, b"", 4096))
    assert frame[3:7] == (12 + len(properties)).to_bytes(4, "big")
    assert frame[19:-1] == properties


# The hot path -------------------------------------------------------------------------------------


@pytest.mark.parametrize("mandatory", [True, False])
def test_publish_is_the_declared_publish(mandatory: bool) -> None:
    declared = BasicPublish(exchange="events", routing_key="order.created", mandatory=mandatory)
    assert frames.publish_frame(3, "events", "order.created", mandatory) == method_frame(3, declared)


@pytest.mark.parametrize(("exchange", "routing_key"), [("e" * 256, "k"), ("e", "k" * 256)])
def test_publish_refuses_a_name_that_is_too_long(exchange: str, routing_key: str) -> None:
    with pytest.raises(EncodingError, match="has 256 bytes"):
        frames.publish_frame(1, exchange, routing_key, True)


@pytest.mark.parametrize("redelivered", [True, False])
def test_deliver_is_the_declared_deliver(redelivered: bool) -> None:
    declared = BasicDeliver(
        consumer_tag="c", delivery_tag=7, redelivered=redelivered, exchange="events", routing_key="order.created"
    )
    route = encode_short_string("events") + encode_short_string("order.created")
    assert frames.deliver_frame(3, b"\x01c", 7, redelivered, route) == method_frame(3, declared)


@pytest.mark.parametrize("multiple", [True, False])
def test_ack_is_the_declared_ack(multiple: bool) -> None:
    declared = BasicAck(delivery_tag=7, multiple=multiple)
    assert frames.ack_frame(3, 7, multiple) == method_frame(3, declared)


@pytest.mark.parametrize("requeue", [True, False])
@pytest.mark.parametrize("multiple", [True, False])
def test_nack_is_the_declared_nack(multiple: bool, requeue: bool) -> None:
    declared = BasicNack(delivery_tag=7, multiple=multiple, requeue=requeue)
    assert frames.nack_frame(3, 7, multiple, requeue) == method_frame(3, declared)


@pytest.mark.parametrize("requeue", [True, False])
def test_reject_is_the_declared_reject(requeue: bool) -> None:
    declared = BasicReject(delivery_tag=7, requeue=requeue)
    assert frames.reject_frame(3, 7, requeue) == method_frame(3, declared)
