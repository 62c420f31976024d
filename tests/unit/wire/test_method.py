"""A declaration becomes a codec: what `method` makes of a class with annotated fields."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import FrozenInstanceError, field
from typing import Any

import pytest

from redrive.errors import EncodingError, RemoteProtocolError, ReplyCode
from redrive.wire.argument_types import Arguments, Bit, Octet, Short, ShortStr
from redrive.wire.method import METHODS, Method, Sender, decode_method, method
from redrive.wire.methods.basic import BasicGet, BasicGetEmpty, BasicGetOk, BasicPublish
from redrive.wire.methods.queue import QueueDeclare, QueueDeclareOk


@pytest.fixture
def declared() -> Iterator[type[Method]]:
    """A method with nine bits in a row and a tenth by itself, which AMQP does not have."""

    @method(999, 1, sender=Sender.EITHER)
    class TestBits(Method):
        b0: Bit = False
        b1: Bit = False
        b2: Bit = False
        b3: Bit = False
        b4: Bit = False
        b5: Bit = False
        b6: Bit = False
        b7: Bit = False
        b8: Bit = False
        between: Octet = 0
        alone: Bit = False

    yield TestBits
    del METHODS[TestBits._prefix]


# The declaration ----------------------------------------------------------------------------------


def test_a_method_knows_its_numbers() -> None:
    assert QueueDeclare.id == (50, 10)


def test_a_method_is_found_by_the_first_four_bytes_of_its_frame() -> None:
    assert METHODS[b"\x00\x32\x00\x0a"] is QueueDeclare


@pytest.mark.parametrize(
    ("declaration", "name"),
    [(QueueDeclare, "queue.declare"), (QueueDeclareOk, "queue.declare-ok"), (BasicGetEmpty, "basic.get-empty")],
)
def test_a_method_is_named_as_in_the_specification(declaration: type[Method], name: str) -> None:
    assert declaration.name == name


def test_a_method_knows_who_says_it() -> None:
    assert QueueDeclare.sender is Sender.CLIENT
    assert QueueDeclareOk.sender is Sender.SERVER


def test_a_method_knows_what_answers_it() -> None:
    assert QueueDeclare.replies == ("queue.declare-ok",)
    assert BasicGet.replies == ("basic.get-ok", "basic.get-empty")
    assert QueueDeclareOk.replies == ()


def test_a_method_knows_whether_a_message_follows() -> None:
    assert BasicPublish.has_content
    assert not BasicGet.has_content


def test_a_method_shows_its_fields() -> None:
    assert repr(QueueDeclareOk(queue="q", message_count=3)) == (
        "QueueDeclareOk(queue='q', message_count=3, consumer_count=0)"
    )


def test_a_method_cannot_be_changed() -> None:
    declare = QueueDeclare(queue="q")
    with pytest.raises(FrozenInstanceError):
        declare.queue = "other"  # type: ignore[misc]


def test_methods_do_not_share_their_arguments() -> None:
    assert QueueDeclare().arguments is not QueueDeclare().arguments


# Writing ------------------------------------------------------------------------------------------


def test_a_method_is_its_numbers_and_its_fields_in_order() -> None:
    declare = QueueDeclare(queue="q", durable=True, no_wait=True, arguments={"k": None})
    assert declare.encode() == b"\x00\x32\x00\x0a" + b"\x00\x00" + b"\x01q" + b"\x12" + b"\x00\x00\x00\x03\x01kV"


def test_the_first_bit_is_the_lowest(declared: Any) -> None:
    assert declared(b0=True).encode()[4:] == b"\x01\x00\x00\x00"
    assert declared(b7=True).encode()[4:] == b"\x80\x00\x00\x00"


def test_the_ninth_bit_begins_another_octet(declared: Any) -> None:
    assert declared(b8=True).encode()[4:] == b"\x00\x01\x00\x00"


def test_bits_that_are_not_neighbours_share_no_octet(declared: Any) -> None:
    assert declared(b0=True, between=7, alone=True).encode()[4:] == b"\x01\x00\x07\x01"


def test_a_field_that_cannot_be_written_is_named() -> None:
    with pytest.raises(EncodingError, match=r"^queue\.declare, queue: .* has 256 bytes"):
        QueueDeclare(queue="q" * 256).encode()


# Reading ------------------------------------------------------------------------------------------


def test_a_method_is_read_as_it_was_written() -> None:
    declare = QueueDeclare(queue="q", durable=True, no_wait=True, arguments={"k": None})
    assert decode_method(declare.encode()) == declare


def test_bits_are_read_from_their_places(declared: Any) -> None:
    bits = declared(b1=True, b8=True, alone=True)
    assert decode_method(bits.encode()) == bits


def test_bits_without_a_meaning_are_ignored() -> None:
    payload = BasicGetOk(redelivered=True).encode()
    assert decode_method(payload[:12] + b"\xff" + payload[13:]) == BasicGetOk(redelivered=True)


def test_bytes_after_the_last_field_are_malformed() -> None:
    with pytest.raises(RemoteProtocolError, match=r"2 bytes after the end of queue\.declare-ok") as refused:
        decode_method(QueueDeclareOk(queue="q").encode() + b"..")
    assert refused.value.code is ReplyCode.FRAME_ERROR


def test_bits_that_are_cut_short_are_malformed(declared: Any) -> None:
    with pytest.raises(RemoteProtocolError, match="the bits of a method are cut short"):
        decode_method(declared().encode()[:5])


def test_a_field_that_is_cut_short_is_malformed() -> None:
    with pytest.raises(RemoteProtocolError, match="a long is cut short"):
        decode_method(QueueDeclareOk(queue="q").encode()[:-1])


def test_a_declaration_takes_any_kind_of_field() -> None:
    @method(999, 2, sender=Sender.CLIENT, replies=("test.kinds", "test.bits"), content=True)
    class TestKinds(Method):
        number: Short = 7
        text: ShortStr = "text"
        flag: Bit = True
        table: Arguments = field(default_factory=dict)

    try:
        kinds = TestKinds(table={"k": None})
        assert kinds.encode() == b"\x03\xe7\x00\x02" + b"\x00\x07" + b"\x04text" + b"\x01" + b"\x00\x00\x00\x03\x01kV"
        assert decode_method(kinds.encode()) == kinds
    finally:
        del METHODS[TestKinds._prefix]
