"""Short strings, timestamps, field values and tables: what they look like on the wire, and what is refused."""

from __future__ import annotations

import datetime as dt
import decimal
from collections import OrderedDict
from collections.abc import Callable
from decimal import Decimal
from enum import IntEnum, StrEnum
from typing import Any, TypeAlias

import pytest

from redrive.errors import EncodingError, RemoteProtocolError, ReplyCode
from redrive.wire.values import (
    MAX_DEPTH,
    FarFuture,
    FieldValue,
    as_datetime,
    brief_repr,
    encode_explanation,
    encode_name,
    encode_short_string,
    encode_table,
    encode_text,
    encode_timestamp,
    encode_value,
    malformed_error,
    read_explanation,
    read_foreign_string,
    read_short_string,
    read_table,
    read_timestamp,
    read_value,
)

Encode: TypeAlias = Callable[[Any], bytes]
Read: TypeAlias = Callable[[bytes, int, int], tuple[object, int]]

NOT_UTF8 = b"\xff\xfe"
ESCAPED = "\udcff\udcfe"
NEW_YEAR = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
NEW_YEAR_ON_THE_WIRE = b"\x00\x00\x00\x00\x65\x92\x00\x80"
HUGE = 10**5000  # Python refuses to print it


def value_of(raw: bytes) -> object:
    value, end = read_value(raw, 0, len(raw))
    assert end == len(raw)
    return value


# Short strings ------------------------------------------------------------------------------------


@pytest.mark.parametrize("encode", [encode_name, encode_short_string, encode_explanation])
def test_a_short_string_is_its_length_and_its_utf8(encode: Encode) -> None:
    assert encode("schön") == b"\x06sch\xc3\xb6n"


@pytest.mark.parametrize("encode", [encode_name, encode_short_string, encode_explanation])
def test_a_short_string_may_be_empty(encode: Encode) -> None:
    assert encode("") == b"\x00"


@pytest.mark.parametrize("encode", [encode_name, encode_short_string])
def test_255_bytes_fit_a_short_string(encode: Encode) -> None:
    assert encode("k" * 255) == b"\xff" + b"k" * 255


@pytest.mark.parametrize("encode", [encode_name, encode_short_string])
def test_256_bytes_do_not_fit_a_short_string(encode: Encode) -> None:
    with pytest.raises(EncodingError, match="has 256 bytes; an AMQP name or key holds at most 255"):
        encode("k" * 256)


def test_the_limit_of_a_short_string_counts_bytes_not_letters() -> None:
    with pytest.raises(EncodingError, match="has 256 bytes"):
        encode_short_string("ö" * 128)


@pytest.mark.parametrize("encode", [encode_name, encode_short_string, encode_text])
def test_half_a_surrogate_pair_is_refused(encode: Encode) -> None:
    with pytest.raises(EncodingError, match="half a surrogate pair"):
        encode("\ud800")


@pytest.mark.parametrize("encode", [encode_name, encode_short_string])
@pytest.mark.parametrize("value", [b"bytes", 7, None, HUGE], ids=["bytes", "int", "None", "huge int"])
def test_what_is_not_text_is_refused_by_its_type(encode: Encode, value: Any) -> None:
    with pytest.raises(EncodingError, match=f"is {type(value).__name__}, where AMQP carries text: use str"):
        encode(value)


def test_a_name_of_our_own_must_be_utf8() -> None:
    with pytest.raises(EncodingError, match="UTF-8"):
        encode_name(ESCAPED)


def test_a_foreign_string_that_is_not_utf8_comes_out_as_it_came_in() -> None:
    text, end = read_foreign_string(b"\x02" + NOT_UTF8, 0, 3)
    assert (text, end) == (ESCAPED, 3)
    assert encode_short_string(text) == b"\x02" + NOT_UTF8


def test_a_name_of_the_peer_must_be_utf8() -> None:
    with pytest.raises(RemoteProtocolError, match=r"FRAME_ERROR - a short string is not UTF-8: b'\\xff\\xfe'"):
        read_short_string(b"\x02" + NOT_UTF8, 0, 3)


@pytest.mark.parametrize("read", [read_short_string, read_foreign_string, read_explanation])
def test_a_short_string_ends_where_its_length_says(read: Read) -> None:
    assert read(b"..\x05hello...", 2, 11) == ("hello", 8)


@pytest.mark.parametrize("read", [read_short_string, read_foreign_string, read_explanation])
def test_a_short_string_that_is_missing_is_malformed(read: Read) -> None:
    with pytest.raises(RemoteProtocolError, match="a short string is missing"):
        read(b"\x01a", 2, 2)


@pytest.mark.parametrize("read", [read_short_string, read_foreign_string, read_explanation])
def test_a_short_string_may_not_reach_beyond_its_surroundings(read: Read) -> None:
    with pytest.raises(RemoteProtocolError, match="a short string of 5 bytes has only 4"):
        read(b"\x05hello", 0, 5)


def test_an_explanation_that_is_too_long_is_cut() -> None:
    assert encode_explanation("k" * 256) == b"\xff" + b"k" * 252 + b"..."


def test_an_explanation_is_not_cut_inside_a_letter() -> None:
    assert encode_explanation("k" + "ö" * 200) == b"\xfe" + ("k" + "ö" * 125).encode() + b"..."


def test_an_explanation_is_written_whatever_it_holds() -> None:
    assert encode_explanation("\ud800!") == b"\x02?!"


def test_an_explanation_can_always_be_printed() -> None:
    text, end = read_explanation(b"\x04no \xc3", 0, 5)
    assert (text, end) == ("no \N{REPLACEMENT CHARACTER}", 5)


# Timestamps ---------------------------------------------------------------------------------------


def test_a_timestamp_is_64_bits_of_seconds() -> None:
    assert encode_timestamp(NEW_YEAR) == NEW_YEAR_ON_THE_WIRE
    assert read_timestamp(NEW_YEAR_ON_THE_WIRE, 0, 8) == (NEW_YEAR, 8)


def test_a_timestamp_may_be_given_as_seconds() -> None:
    assert encode_timestamp(1_704_067_200) == NEW_YEAR_ON_THE_WIRE


def test_a_timestamp_in_another_time_zone_is_the_same_moment() -> None:
    tokyo = dt.timezone(dt.timedelta(hours=9))
    assert encode_timestamp(NEW_YEAR.astimezone(tokyo)) == NEW_YEAR_ON_THE_WIRE


def test_a_timestamp_loses_what_is_below_a_second() -> None:
    assert encode_timestamp(NEW_YEAR.replace(microsecond=999_999)) == NEW_YEAR_ON_THE_WIRE


def test_a_datetime_without_time_zone_is_refused() -> None:
    with pytest.raises(EncodingError, match="has no time zone; AMQP timestamps are UTC"):
        encode_timestamp(NEW_YEAR.replace(tzinfo=None))


class Nowhere(dt.tzinfo):
    """A time zone that does not know its offset."""

    def utcoffset(self, _when: dt.datetime | None, /) -> None:
        return None

    tzname = dst = utcoffset


def test_a_time_zone_without_an_offset_is_none() -> None:
    with pytest.raises(EncodingError, match="has no time zone"):
        encode_timestamp(NEW_YEAR.replace(tzinfo=Nowhere()))


@pytest.mark.parametrize(
    "value",
    [-1, 1 << 64, HUGE, dt.datetime(1969, 12, 31, tzinfo=dt.UTC), "2024-01-01", 1.5],
    ids=["negative", "65 bits", "huge", "before 1970", "str", "float"],
)
def test_what_is_not_64_bits_of_seconds_is_no_timestamp(value: Any) -> None:
    with pytest.raises(EncodingError, match="is not an AMQP timestamp"):
        encode_timestamp(value)


def test_the_last_second_of_the_calendar_is_a_datetime() -> None:
    last = dt.datetime(9999, 12, 31, 23, 59, 59, tzinfo=dt.UTC)
    assert as_datetime(int(last.timestamp())) == last


@pytest.mark.parametrize("seconds", [253_402_300_800, 1_704_067_200_000_000, (1 << 64) - 1])
def test_a_timestamp_beyond_the_calendar_stays_a_number(seconds: int) -> None:
    assert as_datetime(seconds) == seconds


def test_a_timestamp_that_is_cut_short_is_malformed() -> None:
    with pytest.raises(RemoteProtocolError, match="a timestamp is cut short"):
        read_timestamp(NEW_YEAR_ON_THE_WIRE, 0, 7)


# Field values -------------------------------------------------------------------------------------

WRITTEN = {
    "true": (True, b"t\x01"),
    "false": (False, b"t\x00"),
    "zero": (0, b"I\x00\x00\x00\x00"),
    "least 32-bit int": (-(1 << 31), b"I\x80\x00\x00\x00"),
    "greatest 32-bit int": ((1 << 31) - 1, b"I\x7f\xff\xff\xff"),
    "below 32 bits": (-(1 << 31) - 1, b"l\xff\xff\xff\xff\x7f\xff\xff\xff"),
    "above 32 bits": (1 << 31, b"l\x00\x00\x00\x00\x80\x00\x00\x00"),
    "least 64-bit int": (-(1 << 63), b"l\x80\x00\x00\x00\x00\x00\x00\x00"),
    "greatest 64-bit int": ((1 << 63) - 1, b"l\x7f\xff\xff\xff\xff\xff\xff\xff"),
    "float": (1.5, b"d\x3f\xf8\x00\x00\x00\x00\x00\x00"),
    "decimal": (Decimal("-3.14"), b"D\x02\xff\xff\xfe\xc6"),
    "decimal with 255 places": (Decimal("1E-255"), b"D\xff\x00\x00\x00\x01"),
    "text": ("schön", b"S\x00\x00\x00\x06sch\xc3\xb6n"),
    "bytes": (b"\x00\xff", b"x\x00\x00\x00\x02\x00\xff"),
    "timestamp": (NEW_YEAR, b"T" + NEW_YEAR_ON_THE_WIRE),
    "timestamp beyond the calendar": (FarFuture((1 << 64) - 1), b"T\xff\xff\xff\xff\xff\xff\xff\xff"),
    "nothing": (None, b"V"),
    "array": ([1, None], b"A\x00\x00\x00\x06I\x00\x00\x00\x01V"),
    "empty array": ([], b"A\x00\x00\x00\x00"),
    "table": ({"k": None}, b"F\x00\x00\x00\x03\x01kV"),
    "empty table": ({}, b"F\x00\x00\x00\x00"),
}


@pytest.mark.parametrize(("value", "raw"), WRITTEN.values(), ids=WRITTEN)
def test_a_value_is_written_as_rabbitmq_writes_it(value: Any, raw: bytes) -> None:
    assert encode_value(value) == raw


@pytest.mark.parametrize(("value", "raw"), WRITTEN.values(), ids=WRITTEN)
def test_a_value_is_read_as_it_was_written(value: Any, raw: bytes) -> None:
    read = value_of(raw)
    assert read == value
    assert type(read) is type(value)


class Colour(StrEnum):
    RED = "red"


class Level(IntEnum):
    HIGH = 3


@pytest.mark.parametrize(
    ("value", "like"),
    [
        (Colour.RED, "red"),
        (Level.HIGH, 3),
        (OrderedDict(a=1), {"a": 1}),
        ((1, 2), [1, 2]),
        (bytearray(b"raw"), b"raw"),
        (Decimal("2E+3"), Decimal(2000)),
    ],
)
def test_a_value_of_a_kindred_type_is_written_alike(value: Any, like: FieldValue) -> None:
    assert encode_value(value) == encode_value(like)


ONLY_READ = {
    "b": (b"b\xff", -1),
    "B": (b"B\xff", 255),
    "s": (b"s\xff\xff", -1),
    "u": (b"u\xff\xff", 65_535),
    "i": (b"i\xff\xff\xff\xff", (1 << 32) - 1),
    "L": (b"L\xff\xff\xff\xff\xff\xff\xff\xff", -1),  # signed, as RabbitMQ has it
    "f": (b"f\x3f\xc0\x00\x00", 1.5),
    "t, not 0 or 1": (b"t\x02", True),
    "S, not UTF-8": (b"S\x00\x00\x00\x02" + NOT_UTF8, NOT_UTF8),
}


@pytest.mark.parametrize(("raw", "value"), ONLY_READ.values(), ids=ONLY_READ)
def test_types_that_others_write_are_read(raw: bytes, value: Any) -> None:
    assert value_of(raw) == value


def test_text_with_escaped_bytes_gets_them_back() -> None:
    assert encode_value(ESCAPED) == b"S\x00\x00\x00\x02" + NOT_UTF8


@pytest.mark.parametrize("value", [1 << 63, -(1 << 63) - 1, HUGE], ids=["64 bits", "-64 bits", "huge"])
def test_an_integer_beyond_64_bits_is_refused(value: Any) -> None:
    with pytest.raises(EncodingError, match="does not fit into 64 bits; send it as str"):
        encode_value(value)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_float_that_would_end_the_connection_is_refused(value: Any) -> None:
    with pytest.raises(EncodingError, match=f"over a float that is {value}"):
        encode_value(value)


@pytest.mark.parametrize("value", ["NaN", "sNaN", "Infinity"])
def test_a_decimal_that_is_no_number_is_refused(value: Any) -> None:
    with pytest.raises(EncodingError, match=f"AMQP cannot carry {value}"):
        encode_value(Decimal(value))


@pytest.mark.parametrize("value", ["2147483648", "-2147483649", "3E9", "1E10", "1E-256", "0.12345678901"])
def test_a_decimal_that_does_not_fit_is_refused(value: Any) -> None:
    with pytest.raises(EncodingError, match=r"does not fit an AMQP decimal \(32 bits, 255 places\)"):
        encode_value(Decimal(value))


def test_a_decimal_is_read_exactly_in_any_decimal_context() -> None:
    with decimal.localcontext(prec=3):
        assert value_of(b"D\x02\x7f\xff\xff\xff") == Decimal("21474836.47")


def test_a_type_without_equivalent_is_refused_by_name() -> None:
    with pytest.raises(EncodingError, match=r"AMQP has no type for set: \{1\}; use str, bytes, int"):
        encode_value({1})  # type: ignore[arg-type]


def test_half_a_surrogate_pair_in_text_is_refused() -> None:
    with pytest.raises(EncodingError, match="half a surrogate pair"):
        encode_value("\ud800" * 300)


def test_an_error_shows_only_the_beginning_of_a_value() -> None:
    assert len(brief_repr("long" * 1000)) == 60


@pytest.mark.parametrize("kind", "bBsuIiLlfdt")
def test_a_number_that_is_cut_short_is_malformed(kind: str) -> None:
    widths = dict(zip("tbBsuIifLld", (1, 1, 1, 2, 2, 4, 4, 4, 8, 8, 8), strict=True))
    raw = kind.encode() + bytes(widths[kind])
    with pytest.raises(RemoteProtocolError, match=f"a field value of type {kind} is cut short"):
        read_value(raw, 0, len(raw) - 1)


def test_a_decimal_that_is_cut_short_is_malformed() -> None:
    with pytest.raises(RemoteProtocolError, match="a decimal is cut short"):
        value_of(b"D\x02\x00\x00\x00")


def test_a_timestamp_in_a_table_that_is_cut_short_is_malformed() -> None:
    with pytest.raises(RemoteProtocolError, match="a timestamp is cut short"):
        value_of(b"T" + NEW_YEAR_ON_THE_WIRE[:-1])


SIZED = {"S": "string", "x": "byte array", "A": "array", "F": "table"}


@pytest.mark.parametrize(("kind", "what"), SIZED.items())
def test_a_length_that_is_cut_short_is_malformed(kind: str, what: str) -> None:
    with pytest.raises(RemoteProtocolError, match=f"the length of a {what} is cut short"):
        value_of(kind.encode() + b"\x00\x00\x00")


@pytest.mark.parametrize(("kind", "what"), SIZED.items())
def test_a_length_that_lies_is_malformed(kind: str, what: str) -> None:
    with pytest.raises(RemoteProtocolError, match=f"a {what} of 4294967295 bytes has only 1"):
        value_of(kind.encode() + b"\xff\xff\xff\xffV")


def test_an_array_may_not_reach_into_what_follows_it() -> None:
    array = b"A\x00\x00\x00\x05I\x00\x00\x00\x01"
    with pytest.raises(RemoteProtocolError, match="a field value of type I is cut short"):
        value_of(array.replace(b"\x05", b"\x04"))


def test_a_value_that_is_missing_is_malformed() -> None:
    with pytest.raises(RemoteProtocolError, match="a field value is missing"):
        value_of(b"")


@pytest.mark.parametrize("kind", [b"z", b"\x00", b"\xff"])
def test_an_unknown_type_is_malformed(kind: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match=f"unknown field type {kind[0]:#04x}"):
        value_of(kind + bytes(8))


# Tables -------------------------------------------------------------------------------------------


def test_a_table_is_its_length_and_its_names_and_values() -> None:
    raw = b"\x00\x00\x00\x0a" + b"\x01aI\x00\x00\x00\x01" + b"\x01bV"
    assert encode_table({"a": 1, "b": None}) == raw
    assert read_table(raw, 0, len(raw)) == ({"a": 1, "b": None}, len(raw))


def test_a_table_keeps_the_order_of_its_names() -> None:
    raw = encode_table({"b": 1, "a": 2, "c": 3})
    assert list(read_table(raw, 0, len(raw))[0]) == ["b", "a", "c"]


def test_a_name_that_is_not_utf8_survives() -> None:
    raw = b"\x00\x00\x00\x04\x02" + NOT_UTF8 + b"V"
    table, _ = read_table(raw, 0, len(raw))
    assert table == {ESCAPED: None}
    assert encode_table(table) == raw


def test_a_name_must_be_text() -> None:
    with pytest.raises(EncodingError, match="7 is int, where AMQP carries text"):
        encode_table({7: "seven"})  # type: ignore[dict-item]


def test_a_name_has_at_most_255_bytes() -> None:
    with pytest.raises(EncodingError, match="has 256 bytes"):
        encode_table({"k" * 256: 1})


def test_what_is_not_a_table_is_refused_by_its_type() -> None:
    with pytest.raises(EncodingError, match=r"\['a'\] is list, where AMQP carries a table: use dict"):
        encode_table(["a"])  # type: ignore[arg-type]


def test_a_name_without_value_is_malformed() -> None:
    with pytest.raises(RemoteProtocolError, match="a field value is missing"):
        read_table(b"\x00\x00\x00\x02\x01aV", 0, 7)


def test_a_name_may_not_reach_beyond_its_table() -> None:
    with pytest.raises(RemoteProtocolError, match="a short string of 9 bytes has only 2"):
        read_table(b"\x00\x00\x00\x03\x09aV.......", 0, 14)


def test_malformed_is_a_syntax_error() -> None:
    assert malformed_error("why").code is ReplyCode.FRAME_ERROR


def nested_table(depth: int) -> dict[str, FieldValue]:
    table: dict[str, FieldValue] = {}
    for _ in range(depth):
        table = {"k": table}
    return table


def nested_array(depth: int) -> list[FieldValue]:
    array: list[FieldValue] = []
    for _ in range(depth):
        array = [array]
    return array


def raw_nested_table(depth: int) -> bytes:
    raw = b""
    for _ in range(depth):
        raw = b"\x01kF" + len(raw).to_bytes(4, "big") + raw
    return len(raw).to_bytes(4, "big") + raw


def raw_nested_array(depth: int) -> bytes:
    raw = b""
    for _ in range(depth):
        raw = b"A" + len(raw).to_bytes(4, "big") + raw
    return raw


def test_tables_nest_as_deep_as_the_limit() -> None:
    raw = raw_nested_table(MAX_DEPTH - 1)
    assert encode_table(nested_table(MAX_DEPTH - 1)) == raw
    assert read_table(raw, 0, len(raw))[0] == nested_table(MAX_DEPTH - 1)


def test_arrays_nest_as_deep_as_the_limit() -> None:
    raw = raw_nested_array(MAX_DEPTH - 1)
    assert encode_value(nested_array(MAX_DEPTH - 2)) == raw
    assert value_of(raw) == nested_array(MAX_DEPTH - 2)


@pytest.mark.parametrize("depth", [MAX_DEPTH, 100, 10_000])
def test_a_table_nested_too_deep_is_not_read(depth: int) -> None:
    raw = raw_nested_table(depth)
    with pytest.raises(RemoteProtocolError, match="a table nested more than 32 deep"):
        read_table(raw, 0, len(raw))


@pytest.mark.parametrize("depth", [MAX_DEPTH, 100, 10_000])
def test_an_array_nested_too_deep_is_not_read(depth: int) -> None:
    raw = raw_nested_array(depth)
    with pytest.raises(RemoteProtocolError, match="an array nested more than 32 deep"):
        read_value(raw, 0, len(raw))


def test_a_table_nested_too_deep_is_not_written() -> None:
    with pytest.raises(EncodingError, match="a table nested more than 32 deep"):
        encode_table(nested_table(MAX_DEPTH))


def test_an_array_nested_too_deep_is_not_written() -> None:
    with pytest.raises(EncodingError, match="an array nested more than 32 deep"):
        encode_value(nested_array(MAX_DEPTH))


def test_a_table_that_holds_itself_is_not_written() -> None:
    endless: dict[str, FieldValue] = {}
    endless["again"] = endless
    with pytest.raises(EncodingError, match="nested more than 32 deep"):
        encode_table(endless)


def test_an_array_that_holds_itself_is_not_written() -> None:
    endless: list[FieldValue] = []
    endless.append(endless)
    with pytest.raises(EncodingError, match="nested more than 32 deep"):
        encode_value(endless)


def test_tables_and_arrays_count_towards_one_limit() -> None:
    mixed: FieldValue = {}
    for _ in range(MAX_DEPTH // 2):
        mixed = [{"k": mixed}]
    with pytest.raises(EncodingError, match="nested more than 32 deep"):
        encode_value(mixed)
