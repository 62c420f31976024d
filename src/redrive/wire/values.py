"""Short strings, field values and field tables (AMQP 0-9-1, section 4.2.5; RabbitMQ's errata for the types).

Encoding picks the type that RabbitMQ itself would write; decoding understands every type it accepts:

    t bool     b B  8-bit    s u 16-bit    I i 32-bit    l L 64-bit    f d float, double    D decimal
    S text     x bytes       A array       F table       T timestamp   V nothing

Everything in a table was written by the publisher of the message, so reading is lenient where a mistake
is harmless and strict where it could: text that is not UTF-8 becomes bytes, a name that is not UTF-8 keeps
its bytes as surrogate escapes (and gets them back when encoded), a timestamp outside the calendar stays a
number. A length that lies, an unknown type or a table nested deeper than `MAX_DEPTH` is a FRAME_ERROR.

Writing is strict where RabbitMQ (3.10 to 4.3) would end the whole connection for it: a float that is infinite or
not a number is answered with INTERNAL_ERROR, a name of one's own that is not UTF-8 with FRAME_ERROR.
"""

from __future__ import annotations

import datetime as dt
import decimal
import math
from collections.abc import Callable, Mapping, Sequence
from struct import Struct
from struct import error as StructError
from typing import TypeAlias

from redrive.errors import EncodingError, RemoteProtocolError, ReplyCode

FieldValue: TypeAlias = (
    "bool | int | float | decimal.Decimal | str | bytes | bytearray | dt.datetime"
    " | Sequence[FieldValue] | Mapping[str, FieldValue] | None"
)
Table: TypeAlias = Mapping[str, FieldValue]

# RabbitMQ sets no limit; x-death needs a depth of three. The limit keeps a hostile table off the stack.
MAX_DEPTH = 32

_OCTETS = [bytes((number,)) for number in range(256)]
_LENGTH = Struct(">I")
_SIZED = Struct(">cI")
_DECIMAL = Struct(">Bi")
_TIMESTAMP = Struct(">Q")
_INT32 = Struct(">ci")
_INT64 = Struct(">cq")
_DOUBLE = Struct(">cd")

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_SECOND = dt.timedelta(seconds=1)
_LAST_SECOND = (dt.datetime.max.replace(tzinfo=dt.UTC) - _EPOCH) // _SECOND


def malformed_error(text: str) -> RemoteProtocolError:
    return RemoteProtocolError(ReplyCode.FRAME_ERROR, text)


def brief_repr(value: object) -> str:
    """A value as an error message shows it: cut short. Python refuses to print an int of thousands of digits."""
    try:
        return f"{value!r:.60}"
    except ValueError:
        return "a number of thousands of digits"


# Short strings ------------------------------------------------------------------------------------


def encode_name(value: str) -> bytes:
    """A name of our own choosing, as a short string: it must be UTF-8."""
    try:
        raw = value.encode()
        return _OCTETS[len(raw)] + raw
    except (AttributeError, UnicodeEncodeError, IndexError):
        raise _not_a_short_string(value) from None


def encode_short_string(value: str) -> bytes:
    """Any short string: what `read_foreign_string` gave comes out as it came in."""
    try:
        raw = value.encode("utf-8", "surrogateescape")
        return _OCTETS[len(raw)] + raw
    except (AttributeError, UnicodeEncodeError, IndexError):
        raise _not_a_short_string(value) from None


def encode_text(value: str) -> bytes:
    try:
        return value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise _not_unicode(value) from None


def _not_a_short_string(value: object) -> EncodingError:
    if not isinstance(value, str):
        return EncodingError(f"{brief_repr(value)} is {type(value).__name__}, where AMQP carries text: use str")
    size = len(value.encode("utf-8", "surrogatepass"))
    if size > 255:
        return EncodingError(f"{value[:40]!r}… has {size} bytes; an AMQP name or key holds at most 255")
    return _not_unicode(value)


def _not_unicode(value: str) -> EncodingError:
    return EncodingError(f"{value[:40]!r} holds half a surrogate pair, which UTF-8 cannot carry")


def read_foreign_string(data: bytes, pos: int, end: int) -> tuple[str, int]:
    """A string that passed through the broker from some publisher: kept byte for byte, whatever it is."""
    start = pos + 1
    if start > end:
        raise malformed_error("a short string is missing")
    stop = start + data[pos]
    if stop > end:
        raise malformed_error(f"a short string of {stop - start} bytes has only {end - start}")
    return data[start:stop].decode("utf-8", "surrogateescape"), stop


def read_short_string(data: bytes, pos: int, end: int) -> tuple[str, int]:
    """A name that the peer itself chose: it must be UTF-8."""
    _, stop = read_foreign_string(data, pos, end)
    raw = data[pos + 1 : stop]
    try:
        return raw.decode(), stop
    except UnicodeDecodeError:
        raise malformed_error(f"a short string is not UTF-8: {raw[:40]!r}") from None


def encode_explanation(value: str) -> bytes:
    """Words for a person: cut to fit, as RabbitMQ does, rather than refused."""
    raw = value.encode("utf-8", "replace")
    if len(raw) > 255:
        raw = raw[:252].decode("utf-8", "ignore").encode() + b"..."
    return _OCTETS[len(raw)] + raw


def read_explanation(data: bytes, pos: int, end: int) -> tuple[str, int]:
    """Words for a person: always printable, even where RabbitMQ cut a character in two."""
    _, stop = read_foreign_string(data, pos, end)
    return data[pos + 1 : stop].decode("utf-8", "replace"), stop


# Timestamps ---------------------------------------------------------------------------------------


def encode_timestamp(value: dt.datetime | int) -> bytes:
    if isinstance(value, dt.datetime):
        if value.utcoffset() is None:
            raise EncodingError(f"{value!r} has no time zone; AMQP timestamps are UTC: give it tzinfo")
        value = (value - _EPOCH) // _SECOND
    try:
        return _TIMESTAMP.pack(value)
    except StructError:
        raise EncodingError(f"{brief_repr(value)} is not an AMQP timestamp: 64 bits of seconds since 1970") from None


class FarFuture(int):
    """Seconds since 1970 beyond the calendar. A number, and still a timestamp when written into a table again."""


def as_datetime(seconds: int) -> dt.datetime | FarFuture:
    """Whole seconds since 1970 as a datetime, or as a number when the calendar ends before them.

    Some clients write milliseconds; year 55 000 is not worth losing a message for.
    """
    return _EPOCH + dt.timedelta(seconds=seconds) if seconds <= _LAST_SECOND else FarFuture(seconds)


def read_timestamp(data: bytes, pos: int, end: int) -> tuple[dt.datetime | FarFuture, int]:
    if end - pos < 8:
        raise malformed_error("a timestamp is cut short")
    return as_datetime(_TIMESTAMP.unpack_from(data, pos)[0]), pos + 8


# Tables, written ----------------------------------------------------------------------------------


def encode_table(table: Table, depth: int = 0) -> bytes:
    if depth >= MAX_DEPTH:
        raise EncodingError(f"a table nested more than {MAX_DEPTH} deep")
    try:
        items = table.items()
    except AttributeError:
        raise EncodingError(
            f"{brief_repr(table)} is {type(table).__name__}, where AMQP carries a table: use dict"
        ) from None
    parts = []
    for name, value in items:
        parts.append(encode_short_string(name))
        parts.append(encode_value(value, depth))
    body = b"".join(parts)
    return _LENGTH.pack(len(body)) + body


def encode_value(value: FieldValue, depth: int = 0) -> bytes:
    match value:
        case str():
            raw = encode_text(value)
            return _SIZED.pack(b"S", len(raw)) + raw
        case bool():  # before int, of which it is one
            return b"t\x01" if value else b"t\x00"
        case FarFuture():
            return b"T" + encode_timestamp(value)
        case int() if -(1 << 31) <= value < 1 << 31:
            return _INT32.pack(b"I", value)
        case int() if -(1 << 63) <= value < 1 << 63:
            return _INT64.pack(b"l", value)
        case int():
            raise EncodingError(f"{brief_repr(value)} does not fit into 64 bits; send it as str")
        case None:
            return b"V"
        case float():
            return _encode_float(value)
        case bytes() | bytearray():
            return _SIZED.pack(b"x", len(value)) + value
        case dt.datetime():
            return b"T" + encode_timestamp(value)
        case decimal.Decimal():
            return _encode_decimal(value)
        case Mapping():
            return b"F" + encode_table(value, depth + 1)
        case list() | tuple():
            return _encode_array(value, depth + 1)
        case _:
            raise EncodingError(
                f"AMQP has no type for {type(value).__name__}: {brief_repr(value)}; use str, bytes, int, float, bool, "
                "Decimal, datetime, list, dict or None"
            )


def _encode_float(value: float) -> bytes:
    if not math.isfinite(value):
        raise EncodingError(f"RabbitMQ ends the connection over a float that is {value}; send it as str")
    return _DOUBLE.pack(b"d", value)


def _encode_decimal(value: decimal.Decimal) -> bytes:
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        raise EncodingError(f"AMQP cannot carry {value}; send it as str")
    if exponent < -255 or exponent + len(digits) > 10:
        raise _decimal_too_long(value)
    number = int("".join(map(str, digits))) * (-1 if sign else 1) * 10 ** max(0, exponent)
    if not -(1 << 31) <= number < 1 << 31:
        raise _decimal_too_long(value)
    return b"D" + _DECIMAL.pack(max(0, -exponent), number)


def _decimal_too_long(value: decimal.Decimal) -> EncodingError:
    return EncodingError(f"{brief_repr(value)} does not fit an AMQP decimal (32 bits, 255 places); send it as str")


def _encode_array(values: Sequence[FieldValue], depth: int) -> bytes:
    if depth >= MAX_DEPTH:
        raise EncodingError(f"an array nested more than {MAX_DEPTH} deep")
    body = b"".join([encode_value(value, depth) for value in values])
    return _SIZED.pack(b"A", len(body)) + body


# Tables, read -------------------------------------------------------------------------------------


def read_table(data: bytes, pos: int, end: int, depth: int = 0) -> tuple[dict[str, FieldValue], int]:
    pos, end = bounds(data, pos, end, "table")
    if depth >= MAX_DEPTH:
        raise malformed_error(f"a table nested more than {MAX_DEPTH} deep")
    table: dict[str, FieldValue] = {}
    while pos < end:
        name, pos = read_foreign_string(data, pos, end)
        table[name], pos = read_value(data, pos, end, depth)
    return table, pos


def read_value(data: bytes, pos: int, end: int, depth: int = 0) -> tuple[FieldValue, int]:
    if pos >= end:
        raise malformed_error("a field value is missing")
    read = _READERS.get(data[pos])
    if read is None:
        raise malformed_error(f"unknown field type {data[pos]:#04x}")
    return read(data, pos + 1, end, depth)


def bounds(data: bytes, pos: int, end: int, what: str) -> tuple[int, int]:
    """Where something with a 32-bit length begins and ends, checked against what is there."""
    start = pos + 4
    if start > end:
        raise malformed_error(f"the length of a {what} is cut short")
    stop: int = start + _LENGTH.unpack_from(data, pos)[0]
    if stop > end:
        raise malformed_error(f"a {what} of {stop - start} bytes has only {end - start}")
    return start, stop


# A reader gets the depth of the table it stands in; only tables and arrays care.
_Reader: TypeAlias = Callable[[bytes, int, int, int], tuple[FieldValue, int]]


def _fixed(kind: str, code: str) -> _Reader:
    struct = Struct(">" + code)
    unpack, size = struct.unpack_from, struct.size

    def read(data: bytes, pos: int, end: int, _: int) -> tuple[FieldValue, int]:
        stop = pos + size
        if stop > end:
            raise malformed_error(f"a field value of type {kind} is cut short")
        return unpack(data, pos)[0], stop

    return read


def _read_text(data: bytes, pos: int, end: int, _: int) -> tuple[str | bytes, int]:
    start, stop = bounds(data, pos, end, "string")
    raw = data[start:stop]
    try:
        return raw.decode(), stop
    except UnicodeDecodeError:
        return raw, stop


def _read_bytes(data: bytes, pos: int, end: int, _: int) -> tuple[bytes, int]:
    start, stop = bounds(data, pos, end, "byte array")
    return data[start:stop], stop


def _read_array(data: bytes, pos: int, end: int, depth: int) -> tuple[list[FieldValue], int]:
    pos, end = bounds(data, pos, end, "array")
    depth += 1
    if depth >= MAX_DEPTH:
        raise malformed_error(f"an array nested more than {MAX_DEPTH} deep")
    values: list[FieldValue] = []
    while pos < end:
        value, pos = read_value(data, pos, end, depth)
        values.append(value)
    return values, pos


def _read_decimal(data: bytes, pos: int, end: int, _: int) -> tuple[decimal.Decimal, int]:
    if end - pos < 5:
        raise malformed_error("a decimal is cut short")
    places, number = _DECIMAL.unpack_from(data, pos)
    digits = tuple(map(int, str(abs(number))))
    return decimal.Decimal((number < 0, digits, -places)), pos + 5  # exact, whatever the caller's decimal context


_READERS: dict[int, _Reader] = {
    **{ord(kind): _fixed(kind, code) for kind, code in zip("tbBsuIiLlfd", "?bBhHiIqqfd", strict=True)},
    ord("S"): _read_text,
    ord("x"): _read_bytes,
    ord("A"): _read_array,
    ord("F"): lambda data, pos, end, depth: read_table(data, pos, end, depth + 1),
    ord("T"): lambda data, pos, end, _: read_timestamp(data, pos, end),
    ord("D"): _read_decimal,
    ord("V"): lambda _, pos, __, ___: (None, pos),
}
