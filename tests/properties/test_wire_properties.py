"""The codec for all values: what is written is read back, and no bytes at all can break a reader.

The strategies are built from the declarations, so that a method or a kind of field added there is tested here.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import fields
from decimal import Decimal
from typing import Any, TypeVar, get_args

from hypothesis import example, given, settings
from hypothesis import strategies as st

from redrive.errors import EncodingError, RemoteProtocolError
from redrive.wire import argument_types as kinds
from redrive.wire import frames
from redrive.wire.argument_types import ArgumentType
from redrive.wire.frames import (
    BODY,
    CONTENT_HEAD,
    END_OCTET,
    HEAD,
    HEADER,
    METHOD,
    OVERHEAD,
    content_frames,
    method_frame,
)
from redrive.wire.method import HOT, METHODS, Method, decode_declared, decode_method
from redrive.wire.methods.basic import BasicAck, BasicDeliver, BasicNack, BasicPublish, BasicReject
from redrive.wire.properties import Properties, decode_properties
from redrive.wire.values import (
    encode_short_string,
    encode_table,
    encode_value,
    read_table,
    read_value,
)

T = TypeVar("T")

unhurried = settings(deadline=None)  # a busy machine is no failure
thorough = settings(deadline=None, max_examples=200)  # for what is one of sixty methods or fourteen properties


# Strategies ---------------------------------------------------------------------------------------


names = st.text(max_size=8) | st.sampled_from(["n" * 255, "ö" * 127])
foreign_names = names | st.binary(max_size=8).map(lambda raw: raw.decode("utf-8", "surrogateescape"))
epoch = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
last_second = (dt.datetime.max.replace(tzinfo=dt.UTC) - epoch) // dt.timedelta(seconds=1)
seconds = st.integers(0, last_second).map(lambda since: epoch + dt.timedelta(seconds=since))
moments = seconds | st.integers(last_second + 1, (1 << 64) - 1)
decimals = st.builds(
    lambda number, places: Decimal((number < 0, tuple(map(int, str(abs(number)))), -places)),
    st.integers(-(1 << 31), (1 << 31) - 1),
    st.integers(0, 255),
)
plain_values = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | decimals
    | st.text(max_size=8)
    | st.binary(max_size=8)
    | seconds
)
field_values = st.recursive(
    plain_values,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(foreign_names, inner, max_size=3),
    max_leaves=6,
)
tables = st.dictionaries(foreign_names, field_values, max_size=3)


def whole_numbers(bits: int) -> st.SearchStrategy[int]:
    return st.integers(0, (1 << bits) - 1)


def kind_of(annotation: object) -> ArgumentType:
    found = get_args(annotation)[1]
    assert isinstance(found, ArgumentType)
    return found


arguments: dict[ArgumentType, st.SearchStrategy[Any]] = {
    kind_of(annotation): strategy
    for annotation, strategy in (
        (kinds.Bit, st.booleans()),
        (kinds.Octet, whole_numbers(8)),
        (kinds.Short, whole_numbers(16)),
        (kinds.Long, whole_numbers(32)),
        (kinds.LongLong, whole_numbers(64)),
        (kinds.ShortStr, names),
        (kinds.ForeignStr, foreign_names),
        (kinds.Explanation, names),
        (kinds.LongStr, st.binary(max_size=20)),
        (kinds.Arguments, tables),
    )
}


def methods_of(declared: type[Method]) -> st.SearchStrategy[Method]:
    annotated = {field.name: getattr(kinds, str(field.type)) for field in fields(declared)}  # type: ignore[arg-type]
    return st.builds(declared, **{name: arguments[kind_of(annotation)] for name, annotation in annotated.items()})


methods = st.one_of([methods_of(declared) for declared in METHODS.values()])

octets = whole_numbers(8)
some_properties = st.builds(
    Properties,
    headers=st.none() | tables,
    delivery_mode=st.none() | octets,
    priority=st.none() | octets,
    timestamp=st.none() | moments,
    **{
        field.name: st.none() | foreign_names
        for field in fields(Properties)
        if field.name not in {"headers", "delivery_mode", "priority", "timestamp"}
    },
)

channels = whole_numbers(16)
delivery_tags = whole_numbers(64)


@st.composite
def damaged(draw: st.DrawFn, payloads: st.SearchStrategy[bytes], untouched: int = 0) -> bytes:
    """A valid payload, cut off somewhere, or with a few bytes changed, added or lost after the untouched ones."""
    payload = bytearray(draw(payloads))
    if draw(st.booleans()):
        return bytes(payload[: draw(st.integers(untouched, len(payload)))])
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(untouched, len(payload)))
        stop = draw(st.integers(start, min(start + 2, len(payload))))
        payload[start:stop] = draw(st.binary(max_size=2))
    return bytes(payload)


def is_sound(decode: Callable[[bytes], T], encode: Callable[[T], bytes], payload: bytes) -> None:
    """The payload is refused as the peer's fault, or understood; and what was understood is written alike from then on.

    A float that is not a number can be read and not written. Compared are bytes, because it equals nothing.
    """
    try:
        written = encode(decode(payload))
    except (RemoteProtocolError, EncodingError):
        return
    assert encode(decode(written)) == written


# Round trips --------------------------------------------------------------------------------------


@unhurried
@given(field_values)
def test_a_field_value_survives_the_wire(value: Any) -> None:
    raw = encode_value(value)
    assert read_value(raw, 0, len(raw)) == (value, len(raw))


@unhurried
@given(tables)
def test_a_table_survives_the_wire(table: dict[str, Any]) -> None:
    raw = encode_table(table)
    assert read_table(raw, 0, len(raw)) == (table, len(raw))


@thorough
@given(methods)
def test_a_method_survives_the_wire(method: Method) -> None:
    assert decode_method(method.encode()) == method


@thorough
@given(some_properties)
def test_properties_survive_the_wire(properties: Properties) -> None:
    assert decode_properties(properties.encode()) == properties


@unhurried
@given(tables, st.binary(max_size=20), st.binary(max_size=20))
def test_a_table_is_read_alike_wherever_it_stands(table: dict[str, Any], before: bytes, after: bytes) -> None:
    raw = encode_table(table)
    end = len(before) + len(raw)
    assert read_table(before + raw + after, len(before), end) == (table, end)


# Damage -------------------------------------------------------------------------------------------


@thorough
@given(damaged(methods.map(lambda method: method.encode()), untouched=4))
def test_a_damaged_method_is_understood_or_refused(payload: bytes) -> None:
    is_sound(decode_method, lambda method: method.encode(), payload)


@thorough
@given(damaged(some_properties.map(lambda properties: properties.encode())))
@example(b"\x20\x00\x00\x00\x00\x0b\x01kd\x7f\xf8\x00\x00\x00\x00\x00\x00")
@example(b"\x20\x00\x00\x00\x00\x0b\x01kT\xff\xff\xff\xff\xff\xff\xff\xff")
def test_damaged_properties_are_understood_or_refused(payload: bytes) -> None:
    is_sound(decode_properties, lambda properties: properties.encode(), payload)


@thorough
@given(damaged(tables.map(encode_table)))
def test_a_damaged_table_is_understood_or_refused(payload: bytes) -> None:
    is_sound(lambda raw: read_table(raw, 0, len(raw))[0], encode_table, payload)


@unhurried
@given(st.sampled_from(sorted(METHODS)), st.binary())
def test_any_bytes_after_a_known_method_are_understood_or_refused(prefix: bytes, rest: bytes) -> None:
    is_sound(decode_method, lambda method: method.encode(), prefix + rest)


@unhurried
@given(st.binary())
def test_any_bytes_as_properties_are_understood_or_refused(payload: bytes) -> None:
    is_sound(decode_properties, lambda properties: properties.encode(), payload)


@unhurried
@given(st.binary(min_size=1), st.data())
def test_a_reader_never_looks_beyond_its_end(payload: bytes, data: st.DataObject) -> None:
    """What lies behind the end changes neither the value nor the refusal."""
    end = data.draw(st.integers(0, len(payload)))

    def outcome(raw: bytes) -> object:
        try:
            return repr(read_value(raw, 0, end))
        except RemoteProtocolError as refused:
            return str(refused)

    assert outcome(payload) == outcome(payload[:end])


# Frames -------------------------------------------------------------------------------------------

Frame = tuple[int, int, bytes]


def split(raw: bytes) -> list[Frame]:
    """The frames in a stream, by the book: type, channel, payload."""
    found = []
    pos = 0
    while pos < len(raw):
        kind, channel, size = HEAD.unpack_from(raw, pos)
        start = pos + HEAD.size
        pos = start + size + 1
        assert raw[pos - 1] == END_OCTET
        found.append((kind, channel, raw[start : pos - 1]))
    return found


@unhurried
@given(channels, methods)
def test_a_method_frame_holds_the_method(channel: int, method: Method) -> None:
    assert split(method_frame(channel, method)) == [(METHOD, channel, method.encode())]


@unhurried
@given(channels, st.binary(max_size=20), st.binary(max_size=200), st.integers(OVERHEAD + 12 + 20, 300))
def test_content_is_split_and_put_together_at_any_frame_max(
    channel: int, properties: bytes, body: bytes, frame_max: int
) -> None:
    header, *bodies = split(b"".join(content_frames(channel, properties, body, frame_max)))
    assert header == (HEADER, channel, CONTENT_HEAD.pack(60, 0, len(body)) + properties)
    assert b"".join(piece for _, _, piece in bodies) == body
    assert {(kind, number) for kind, number, _ in bodies} <= {(BODY, channel)}


@unhurried
@given(st.binary(max_size=2000), st.integers(OVERHEAD + 14, 400))
def test_every_body_frame_but_the_last_is_full(body: bytes, frame_max: int) -> None:
    _, *bodies = split(b"".join(content_frames(1, b"\x00\x00", body, frame_max)))
    sizes = [len(piece) + OVERHEAD for _, _, piece in bodies]
    assert all(size == frame_max for size in sizes[:-1])
    assert all(OVERHEAD < size <= frame_max for size in sizes[-1:])


@unhurried
@given(channels, foreign_names, foreign_names, st.booleans())
def test_the_hot_publish_is_the_declared_one(channel: int, exchange: str, key: str, mandatory: bool) -> None:
    declared = BasicPublish(exchange=exchange, routing_key=key, mandatory=mandatory)
    assert frames.publish_frame(channel, exchange, key, mandatory) == method_frame(channel, declared)


@unhurried
@given(channels, names, delivery_tags, st.booleans(), foreign_names, foreign_names)
def test_the_hot_deliver_is_the_declared_one(
    channel: int, consumer: str, tag: int, redelivered: bool, exchange: str, key: str
) -> None:
    declared = BasicDeliver(
        consumer_tag=consumer, delivery_tag=tag, redelivered=redelivered, exchange=exchange, routing_key=key
    )
    route = encode_short_string(exchange) + encode_short_string(key)
    hot = frames.deliver_frame(channel, encode_short_string(consumer), tag, redelivered, route)
    assert hot == method_frame(channel, declared)


@unhurried
@given(channels, delivery_tags, st.booleans())
def test_the_hot_ack_is_the_declared_one(channel: int, tag: int, multiple: bool) -> None:
    declared = BasicAck(delivery_tag=tag, multiple=multiple)
    assert frames.ack_frame(channel, tag, multiple) == method_frame(channel, declared)


@unhurried
@given(channels, delivery_tags, st.booleans(), st.booleans())
def test_the_hot_nack_is_the_declared_one(channel: int, tag: int, multiple: bool, requeue: bool) -> None:
    declared = BasicNack(delivery_tag=tag, multiple=multiple, requeue=requeue)
    assert frames.nack_frame(channel, tag, multiple, requeue) == method_frame(channel, declared)


@unhurried
@given(channels, delivery_tags, st.booleans())
def test_the_hot_reject_is_the_declared_one(channel: int, tag: int, requeue: bool) -> None:
    declared = BasicReject(delivery_tag=tag, requeue=requeue)
    assert frames.reject_frame(channel, tag, requeue) == method_frame(channel, declared)


@given(payload=st.one_of(*(methods_of(METHODS[prefix]).map(Method.encode) for prefix in HOT)))
def test_the_hot_readers_read_what_is_declared(payload: bytes) -> None:
    assert decode_method(payload) == decode_declared(payload)


@given(payload=damaged(st.one_of(*(methods_of(METHODS[prefix]).map(Method.encode) for prefix in HOT)), untouched=4))
def test_the_hot_readers_leave_damage_to_the_declared_ones(payload: bytes) -> None:
    def outcome(decode: Callable[[bytes], Method]) -> object:
        try:
            return decode(payload)
        except RemoteProtocolError as error:
            return str(error)

    assert outcome(decode_method) == outcome(decode_declared)
