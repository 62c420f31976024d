"""An outside witness: pamqp, written by others from the same specification, writes and reads the same bytes.

Where the two may rightly differ, a test says how, and asks only that each understands the other:

- pamqp writes an integer of a table in the narrowest type, Redrive as RabbitMQ does: 32 bits, or 64 when it must be;
- pamqp writes a float with 32 bits and loses digits, Redrive with 64;
- pamqp sorts a table by name, Redrive keeps its order;
- pamqp leaves an empty string out of the properties, Redrive sends it;
- pamqp insists on one value in each field that the specification reserved, as the examples have it.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import fields
from decimal import Decimal
from typing import Any

import pamqp.base
import pamqp.body
import pamqp.commands
import pamqp.decode
import pamqp.encode
import pamqp.frame
import pamqp.header
import pamqp.heartbeat
import pytest

import redrive.wire.methods  # noqa: F401  declares what METHODS holds
from redrive.wire import frames
from redrive.wire.frames import content_frames, method_frame
from redrive.wire.method import METHODS, Method, decode_method
from redrive.wire.properties import Properties, decode_properties
from redrive.wire.values import encode_table, encode_value, read_table, read_value

pytestmark = pytest.mark.filterwarnings("ignore:This command is deprecated")  # basic.recover-async, rightly

NEW_YEAR = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
TABLE: dict[str, Any] = {
    "a decimal": Decimal("3.14"),
    "a nested table": {"more": {"and more": "text"}},
    "a number of 32 bits": 1 << 20,
    "a number of 64 bits": 1 << 40,
    "a timestamp": NEW_YEAR,
    "an array": ["text", True, None, ["nested"]],
    "no": False,
    "nothing": None,
    "text": "schön",
    "yes": True,
}
EXAMPLES: dict[str, Any] = {
    "Bit": True,
    "Octet": 9,
    "Short": 312,
    "Long": 131_072,
    "LongLong": 1 << 40,
    "ShortStr": "orders.created",
    "ForeignStr": "orders.created",
    "Explanation": "because",
    "LongStr": b"PLAIN AMQPLAIN",
    "Arguments": TABLE,
}
RESERVED: dict[str, Any] = {
    "ticket": 0,
    "out_of_band": "0",
    "channel_id": b"0",
    "capabilities": "",
    "insist": False,
    "known_hosts": "",
    "cluster_id": "",
    "internal": False,
}
RENAMED = {"no_wait": "nowait", "type": "exchange_type"}
WITNESSES: dict[bytes, Any] = {index.to_bytes(4, "big"): known for index, known in pamqp.commands.INDEX_MAPPING.items()}


def spoken(declared: type[Method], bits: bool) -> Method:
    """The method with an example in every field, which for a bit is the one given."""
    examples = EXAMPLES | {"Bit": bits}
    given = {field.name: RESERVED.get(field.name, examples[str(field.type)]) for field in fields(declared)}  # type: ignore[arg-type]
    return declared(**given)


def witness_of(method: Method) -> pamqp.base.Frame:
    """pamqp's word for it. Its long strings are str."""
    given = {RENAMED.get(field.name, field.name): getattr(method, field.name) for field in fields(method)}  # type: ignore[arg-type]
    text = {name: value.decode() if isinstance(value, bytes) else value for name, value in given.items()}
    witness: pamqp.base.Frame = WITNESSES[method.encode()[:4]](**text)
    return witness


EVERY_METHOD = pytest.mark.parametrize(
    "method",
    [spoken(declared, bits) for declared in METHODS.values() for bits in (True, False)],
    ids=lambda method: method.name,
)


# Methods ------------------------------------------------------------------------------------------


def test_both_know_the_same_methods() -> None:
    assert set(METHODS) == set(WITNESSES)


@EVERY_METHOD
def test_a_method_is_written_byte_for_byte_alike(method: Method) -> None:
    assert method_frame(7, method) == pamqp.frame.marshal(witness_of(method), 7)


@EVERY_METHOD
def test_a_method_of_the_witness_is_understood(method: Method) -> None:
    payload = pamqp.frame.marshal(witness_of(method), 7)[7:-1]
    assert decode_method(payload) == method


@EVERY_METHOD
def test_the_witness_understands_a_method(method: Method) -> None:
    _, channel, understood = pamqp.frame.unmarshal(method_frame(7, method))
    assert channel == 7
    assert isinstance(understood, pamqp.base.Frame)
    assert dict(understood) == dict(witness_of(method))


@pytest.mark.parametrize(
    ("declared", "witness"),
    [(declared, WITNESSES[prefix]) for prefix, declared in METHODS.items()],
    ids=lambda side: side.name,
)
def test_both_know_the_same_answers(declared: type[Method], witness: type[pamqp.base.Frame]) -> None:
    """pamqp's names are "Queue.DeclareOk"; it knows answers of synchronous methods only."""
    answers = [METHODS[prefix].name for prefix, known in WITNESSES.items() if known.name in witness.valid_responses]
    assert sorted(declared.replies) == sorted(answers)


# Properties and content ---------------------------------------------------------------------------

ALL_BUT_RESERVED = Properties(
    content_type="application/json",
    content_encoding="utf-8",
    headers=TABLE,
    delivery_mode=2,
    priority=5,
    correlation_id="correlation",
    reply_to="answers",
    expiration="60000",
    message_id="m-1",
    timestamp=NEW_YEAR,
    type="order.created",
    user_id="guest",
    app_id="shop",
)
NAMES = [field.name for field in fields(Properties) if field.name != "cluster_id"]
EXAMPLE_PROPERTIES = [
    Properties(),
    ALL_BUT_RESERVED,
    *(Properties(**{name: getattr(ALL_BUT_RESERVED, name)}) for name in NAMES),
]
EVERY_PROPERTY = pytest.mark.parametrize("properties", EXAMPLE_PROPERTIES, ids=["none", "all", *NAMES])


def witness_properties(properties: Properties) -> pamqp.commands.Basic.Properties:
    renamed = {"type": "message_type"}
    return pamqp.commands.Basic.Properties(**{renamed.get(name, name): getattr(properties, name) for name in NAMES})


@EVERY_PROPERTY
def test_properties_are_written_byte_for_byte_alike(properties: Properties) -> None:
    assert properties.encode() == witness_properties(properties).marshal()


@EVERY_PROPERTY
def test_properties_of_the_witness_are_understood(properties: Properties) -> None:
    assert decode_properties(witness_properties(properties).marshal()) == properties


@EVERY_PROPERTY
def test_a_content_header_is_written_byte_for_byte_alike(properties: Properties) -> None:
    witness = pamqp.header.ContentHeader(body_size=4, properties=witness_properties(properties))
    content = b"".join(content_frames(7, properties.encode(), b"body", 4096))
    body = pamqp.frame.marshal(pamqp.body.ContentBody(b"body"), 7)
    assert content == pamqp.frame.marshal(witness, 7) + body


def test_the_witness_reads_an_empty_string_that_it_would_not_write() -> None:
    header = pamqp.header.ContentHeader()
    header.unmarshal(bytes(12) + Properties(message_id="").encode())
    assert header.properties.message_id == ""
    assert witness_properties(Properties(message_id="")).marshal() == Properties().encode()


def test_a_heartbeat_is_written_byte_for_byte_alike() -> None:
    assert pamqp.heartbeat.Heartbeat().marshal() == frames.HEARTBEAT_FRAME


def test_the_protocol_header_is_written_byte_for_byte_alike() -> None:
    assert pamqp.header.ProtocolHeader().marshal() == frames.PROTOCOL_HEADER


# Tables -------------------------------------------------------------------------------------------


def test_a_table_is_written_byte_for_byte_alike() -> None:
    assert encode_table(TABLE) == pamqp.encode.field_table(TABLE)


def test_bytes_are_written_byte_for_byte_alike() -> None:
    assert encode_value(b"\x00\xff") == pamqp.encode.encode_table_value(bytearray(b"\x00\xff"))


def test_a_negative_decimal_is_written_byte_for_byte_alike() -> None:
    """pamqp writes its sign, and reads it as part of an unsigned number: only its writing is a witness."""
    assert encode_value(Decimal("-3.14")) == pamqp.encode.encode_table_value(Decimal("-3.14"))


INTEGERS = [0, 127, -128, 128, 32_767, -32_768, 65_535, 65_536, (1 << 31) - 1, -(1 << 31), 1 << 31, (1 << 63) - 1]


@pytest.mark.parametrize("number", INTEGERS)
def test_an_integer_of_another_width_is_understood_both_ways(number: int) -> None:
    narrow = pamqp.encode.encode_table_value(number)
    assert read_value(narrow, 0, len(narrow)) == (number, len(narrow))
    assert pamqp.decode.embedded_value(encode_value(number)) == (len(encode_value(number)), number)


def test_a_float_of_another_precision_is_understood_both_ways() -> None:
    short = pamqp.encode.encode_table_value(1.5)
    assert read_value(short, 0, len(short)) == (1.5, 5)
    assert pamqp.decode.embedded_value(encode_value(0.1)) == (9, 0.1)


def test_a_table_in_another_order_is_understood_both_ways() -> None:
    unsorted: dict[str, Any] = {"b": "second", "a": "first"}
    raw = pamqp.encode.field_table(unsorted)
    assert read_table(raw, 0, len(raw)) == (unsorted, len(raw))
    assert pamqp.decode.field_table(encode_table(unsorted)) == (len(raw), unsorted)
