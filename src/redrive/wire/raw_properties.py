"""Properties read and changed as they lie on the wire, without decoding what is not touched.

A broker passes messages on. What it adds (`x-death`) or takes away (`expiration`, `BCC`) must leave everything
else as the publisher wrote it: a header of type `b` decoded and encoded again would come out as `I`, and a
message with fifty headers would pay for all of them. So the functions here know where things begin and end, and
nothing of what they mean: names are bytes, and a *raw value* is a field value with its type octet in front.

    flags (2)  content_type  content_encoding  headers  delivery_mode  priority  correlation_id  reply_to  expiration …

All that a broker looks at is in the first eight properties, so the first octet of the flags says what there is. The
one exception is `user_id`, which RabbitMQ accepts from that user alone: a forwarded message must not have it.

`check_properties` is the door: what has passed it can be patched. What has not may raise RemoteProtocolError
from every function here, and never anything else.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from struct import Struct
from struct import error as StructError
from typing import TypeAlias

from redrive.wire.values import (
    MAX_DEPTH,
    bounds,
    encode_short_string,
    encode_text,
    malformed_error,
    read_foreign_string,
)

RawValue: TypeAlias = bytes
RawFields: TypeAlias = list[tuple[bytes, RawValue]]  # a table: its fields in the order of the wire, names may repeat

# The first octet of the flags.
_CONTENT_TYPE, _CONTENT_ENCODING, _HEADERS, _DELIVERY_MODE, _PRIORITY, _CORRELATION_ID, _REPLY_TO, _EXPIRATION = (
    1 << bit for bit in range(7, -1, -1)
)
# The second, of which two bits mean nothing.
_MESSAGE_ID, _TIMESTAMP, _TYPE, _USER_ID, _APP_ID, _CLUSTER_ID = (1 << bit for bit in range(7, 1, -1))

_OCTETS = [bytes((number,)) for number in range(256)]
_FLAGS = Struct(">H")
_LENGTH = Struct(">I")
_SIZED = Struct(">cI")
_LONG = Struct(">cq")
_MOMENT = Struct(">cQ")

# How many bytes follow a type octet, or:
_SIZED_ITSELF, _UNKNOWN = -1, -2
_KINDS = {b"V": 0, b"tbB": 1, b"su": 2, b"Iif": 4, b"D": 5, b"lLdT": 8, b"SxAF": _SIZED_ITSELF}
_SIZE_OF = {kind: size for kinds, size in _KINDS.items() for kind in kinds}
_SIZES = [_SIZE_OF.get(octet, _UNKNOWN) for octet in range(256)]
_ARRAY, _TABLE = b"AF"


# Reading one property -----------------------------------------------------------------------------


def read_content_encoding(raw: bytes) -> str | None:
    at = _find(raw, _CONTENT_ENCODING)
    return None if at is None else read_foreign_string(raw, at, len(raw))[0]


def read_delivery_mode(raw: bytes) -> int | None:
    at = _find(raw, _DELIVERY_MODE)
    return None if at is None else _octet(raw, at)


def read_priority(raw: bytes) -> int | None:
    at = _find(raw, _PRIORITY)
    return None if at is None else _octet(raw, at)


def read_expiration(raw: bytes) -> str | None:
    """As the publisher wrote it: a number of milliseconds, if the publisher wrote sense."""
    at = _find(raw, _EXPIRATION)
    return None if at is None else read_foreign_string(raw, at, len(raw))[0]


def read_user_id(raw: bytes) -> str | None:
    return read_text(raw, "user_id")


def read_text(raw: bytes, name: str) -> str | None:
    """Return any property that is a text. For the first of them the functions above are quicker."""
    _check_flags(raw)
    at, after = _span(raw, name)
    return None if at == after else read_foreign_string(raw, at, len(raw))[0]


def find_header(raw: bytes, name: bytes) -> RawValue | None:
    """The raw value of a header, the first one if there are several of that name.

    Most messages do not have it, and for these it is one search for its name: a table is walked only when the
    name occurs somewhere in it.
    """
    at = _find(raw, _HEADERS)
    if at is None or raw.find(name, at) < 0:
        return None
    for found, value in split_table(raw[at : _skip_table(raw, at)]):
        if found == name:
            return value
    return None


def _find(raw: bytes, flag: int) -> int | None:
    """Where one of the first eight properties begins; None when it is not there."""
    _check_flags(raw)
    flags = raw[0]
    if not flags & flag:
        return None
    pos = 2
    try:
        if flags & _CONTENT_TYPE:
            pos += 1 + raw[pos]
        if flag == _CONTENT_ENCODING:
            return pos
        if flags & _CONTENT_ENCODING:
            pos += 1 + raw[pos]
        if flag == _HEADERS:
            return pos
        if flags & _HEADERS:
            pos += 4 + _LENGTH.unpack_from(raw, pos)[0]
        if flag == _DELIVERY_MODE:
            return pos
        pos += flags & _DELIVERY_MODE == _DELIVERY_MODE
        if flag == _PRIORITY:
            return pos
        pos += flags & _PRIORITY == _PRIORITY
        if flags & _CORRELATION_ID:
            pos += 1 + raw[pos]
        if flags & _REPLY_TO:
            pos += 1 + raw[pos]
    except (IndexError, StructError):
        raise malformed_error("the properties are cut short") from None
    return pos


def _octet(raw: bytes, at: int) -> int:
    if at >= len(raw):
        raise malformed_error("an octet is missing")
    return raw[at]


def _skip_text(raw: bytes, at: int) -> int:
    return at + 1 + _octet(raw, at)


def _skip_table(raw: bytes, at: int) -> int:
    return bounds(raw, at, len(raw), "table")[1]


# All of them --------------------------------------------------------------------------------------


def check_properties(raw: bytes) -> None:
    """Raise RemoteProtocolError unless these are properties and nothing else, as `decode_properties` would."""
    _check_flags(raw)
    first, second = raw[0], raw[1]
    pos = 2
    if first & _CONTENT_TYPE:
        pos = _skip_text(raw, pos)
    if first & _CONTENT_ENCODING:
        pos = _skip_text(raw, pos)
    if first & _HEADERS:
        pos, end = bounds(raw, pos, len(raw), "table")
        _check_fields(raw, pos, end, named=True, depth=0)
        pos = end
    pos += (first & _DELIVERY_MODE == _DELIVERY_MODE) + (first & _PRIORITY == _PRIORITY)
    for flag in (_CORRELATION_ID, _REPLY_TO, _EXPIRATION):
        if first & flag:
            pos = _skip_text(raw, pos)
    if second:
        if second & _MESSAGE_ID:
            pos = _skip_text(raw, pos)
        pos += 8 * (second & _TIMESTAMP == _TIMESTAMP)
        for flag in (_TYPE, _USER_ID, _APP_ID, _CLUSTER_ID):
            if second & flag:
                pos = _skip_text(raw, pos)
    if pos != len(raw):
        raise malformed_error("the properties do not add up to what is there")


def _check_fields(raw: bytes, pos: int, end: int, named: bool, depth: int) -> None:
    """Walk a table, whose values have names, or an array, and what is inside of them."""
    while pos < end:
        if named:
            pos += 1 + raw[pos]
        kind = raw[pos] if pos < end else 0
        start, pos = pos, _skip_value(raw, pos, end)
        if kind in (_ARRAY, _TABLE):
            if depth + 1 >= MAX_DEPTH:
                raise malformed_error(f"a table nested more than {MAX_DEPTH} deep")
            _check_fields(raw, start + 5, pos, kind == _TABLE, depth + 1)


# Changing them ------------------------------------------------------------------------------------


def patch_properties(
    raw: bytes,
    *,
    set_headers: Mapping[bytes, RawValue] | None = None,
    remove_headers: Collection[bytes] = (),
    sort_headers: bool = False,
    drop_expiration: bool = False,
    drop_user_id: bool = False,
) -> bytes:
    """The same properties with some headers set or removed; all that is not named stays byte for byte.

    A header that is set takes the place of the one there was, or comes last. A table that loses its last header
    stays, empty: RabbitMQ leaves it, too.
    """
    _check_flags(raw)
    if drop_expiration and raw[0] & _EXPIRATION:
        raw = with_property(raw, "expiration", None)
    if drop_user_id and raw[1] & _USER_ID:
        raw = with_property(raw, "user_id", None)
    if not (set_headers or sort_headers or any(name in raw for name in remove_headers)):
        return raw
    at = _find(raw, _HEADERS)
    if at is not None:
        after = _skip_table(raw, at)
    elif set_headers:
        at = after = _headers_offset(raw)
    else:
        return raw
    parts = _patch_fields(raw, at + 4, after, set_headers or {}, remove_headers)
    if sort_headers:
        parts.sort(key=_name)
    table = b"".join(parts)
    return b"".join((_OCTETS[raw[0] | _HEADERS], raw[1:at], _LENGTH.pack(len(table)), table, raw[after:]))


def with_new_headers(raw: bytes, fields: bytes, unless: Collection[bytes]) -> bytes | None:
    """The same properties with more headers, given as they lie in a table, behind those there are. It saves taking a
    table apart, so it is for names that are not in it: None if any of `unless` occurs in it, or if there is an
    `expiration` or `user_id`, since who adds headers like this would drop those.
    """
    if len(raw) < 2 or raw[0] & _EXPIRATION or raw[1] & _USER_ID:
        return None
    at = _headers_offset(raw)
    if not raw[0] & _HEADERS:
        return b"".join((_OCTETS[raw[0] | _HEADERS], raw[1:at], _LENGTH.pack(len(fields)), fields, raw[at:]))
    after = _skip_table(raw, at)
    table = raw[at + 4 : after]
    if any(trace in table for trace in unless):
        return None
    return b"".join((raw[:at], _LENGTH.pack(len(table) + len(fields)), table, fields, raw[after:]))


def raw_field(name: bytes, value: RawValue = b"") -> bytes:
    """A field as it lies in a table, or what stands before its value there."""
    return _OCTETS[len(name)] + name + value


def _patch_fields(
    raw: bytes, pos: int, end: int, setting: Mapping[bytes, RawValue], removing: Collection[bytes]
) -> list[bytes]:
    """The fields of a table, patched, each as it lies there: name and value in one piece."""
    waiting = dict(setting)
    patched = []
    while pos < end:
        start, value = pos, pos + 1 + raw[pos]
        pos = _skip_value(raw, value, end)
        name = raw[start + 1 : value]
        if name in waiting:
            patched.append(raw[start:value] + waiting.pop(name))
        elif name not in removing and name not in setting:  # a second one of a name that is set goes
            patched.append(raw[start:pos])
    patched += [_OCTETS[len(name)] + name + field for name, field in waiting.items()]
    return patched


def _name(field: bytes) -> bytes:
    return field[1 : 1 + field[0]]


def _headers_offset(raw: bytes) -> int:
    pos = 2
    for flag in (_CONTENT_TYPE, _CONTENT_ENCODING):
        if raw[0] & flag:
            pos = _skip_text(raw, pos)
    return pos


def with_expiration(raw: bytes, expiration: str) -> bytes:
    """Return the same properties with this `expiration`, whether they had one or not."""
    return with_property(raw, "expiration", encode_short_string(expiration))


def with_property(raw: bytes, name: str, encoded: bytes | None) -> bytes:
    """Return the same properties with this one, as it is encoded, in its place; None removes it."""
    _check_flags(raw)
    at, after = _span(raw, name)
    flags = _FLAGS.unpack_from(raw)[0]
    flags = flags & ~_PLACES[name] if encoded is None else flags | _PLACES[name]
    return b"".join((_FLAGS.pack(flags), raw[2:at], encoded or b"", raw[after:]))


def _check_flags(raw: bytes) -> None:
    if len(raw) < 2:
        raise malformed_error("the property flags are cut short")


def _span(raw: bytes, name: str) -> tuple[int, int]:
    """Return where a property begins and ends: the same place twice if it is absent."""
    flags = _FLAGS.unpack_from(raw)[0]
    wanted, at, after = _PLACES[name], 2, 2
    for flag, skip in _LAYOUT:
        at, after = after, skip(raw, after) if flags & flag else after
        if flag == wanted:
            break
    if after > len(raw):
        raise malformed_error("the properties are cut short")
    return at, after


_LAYOUT: list[tuple[int, Callable[[bytes, int], int]]] = [  # of all fourteen, in the order of the wire
    *((flag << 8, _skip_text) for flag in (_CONTENT_TYPE, _CONTENT_ENCODING)),
    (_HEADERS << 8, _skip_table),
    *((flag << 8, lambda _, at: at + 1) for flag in (_DELIVERY_MODE, _PRIORITY)),
    *((flag << 8, _skip_text) for flag in (_CORRELATION_ID, _REPLY_TO, _EXPIRATION)),
    (_MESSAGE_ID, _skip_text),
    (_TIMESTAMP, lambda _, at: at + 8),
    *((flag, _skip_text) for flag in (_TYPE, _USER_ID, _APP_ID, _CLUSTER_ID)),
]
_PLACES = dict(
    zip(
        (
            *("content_type", "content_encoding", "headers", "delivery_mode", "priority", "correlation_id"),
            *("reply_to", "expiration", "message_id", "timestamp", "type", "user_id", "app_id", "cluster_id"),
        ),
        (flag for flag, _ in _LAYOUT),
        strict=True,
    )
)


def without_empty_headers(raw: bytes) -> bytes:
    """Where a table of headers came about only by setting one that is removed again, it goes, too."""
    at = _find(raw, _HEADERS)
    if at is None or raw[at : at + 4] != bytes(4):
        return raw
    return bytes((raw[0] & ~_HEADERS,)) + raw[1:at] + raw[at + 4 :]


# Tables and arrays --------------------------------------------------------------------------------


def split_table(raw: bytes) -> RawFields:
    """The fields of a table that begins, with its length, where `raw` begins. Nothing in them is decoded."""
    pos, end = bounds(raw, 0, len(raw), "table")
    fields: RawFields = []
    while pos < end:
        start = pos + 1
        value = start + raw[pos]
        pos = _skip_value(raw, value, end)
        fields.append((raw[start:value], raw[value:pos]))
    return fields


def join_table(fields: Iterable[tuple[bytes, RawValue]]) -> bytes:
    parts: list[bytes] = []
    for name, value in fields:
        parts += (_OCTETS[len(name)], name, value)
    body = b"".join(parts)
    return _LENGTH.pack(len(body)) + body


def split_array(value: RawValue) -> list[RawValue]:
    """The elements of a raw value of type `A`."""
    pos, end = bounds(value, 1, len(value), "array")
    elements = []
    while pos < end:
        start, pos = pos, _skip_value(value, pos, end)
        elements.append(value[start:pos])
    return elements


def _skip_value(raw: bytes, pos: int, end: int) -> int:
    """Past a raw value. What is inside of tables and arrays is not looked at."""
    if pos >= end:
        raise malformed_error("a field value is missing")
    size = _SIZES[raw[pos]]
    if size == _UNKNOWN:
        raise malformed_error(f"unknown field type {raw[pos]:#04x}")
    stop = pos + 1 + size
    if size == _SIZED_ITSELF:
        stop = pos + 5
        if stop <= end:
            stop += _LENGTH.unpack_from(raw, pos + 1)[0]
    if stop > end:
        raise malformed_error(f"a field value of type {chr(raw[pos])} is cut short")
    return stop


# Raw values, written. `encode_value` picks a type by the size of a number; RabbitMQ picks it by what it counts.


def raw_text(value: str) -> RawValue:
    text = encode_text(value)
    return _SIZED.pack(b"S", len(text)) + text


def raw_long(value: int) -> RawValue:
    return _LONG.pack(b"l", value)


def raw_timestamp(seconds: int) -> RawValue:
    return _MOMENT.pack(b"T", seconds)


def raw_table(fields: Iterable[tuple[bytes, RawValue]]) -> RawValue:
    return b"F" + join_table(fields)


def raw_array(elements: Iterable[RawValue]) -> RawValue:
    body = b"".join(elements)
    return _SIZED.pack(b"A", len(body)) + body
