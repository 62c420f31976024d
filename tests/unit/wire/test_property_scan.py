"""Properties cut into pieces: the same pieces as decoding finds, and never anything but a protocol error."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.errors import RemoteProtocolError
from redrive.wire.properties import Properties, decode_properties
from redrive.wire.property_scan import skim, skim_table
from redrive.wire.raw_properties import check_properties, join_table, raw_table, raw_text, split_table
from redrive.wire.values import read_value

NOON = dt.datetime(2024, 5, 17, 12, tzinfo=dt.UTC)
EVERY_TYPE = [
    *(b"t\x01", b"b\x80", b"B\x80", b"s\x80\x00", b"u\x80\x00", b"I\x80\x00\x00\x00", b"i\x80\x00\x00\x00", b"V"),
    *(b"l" + bytes(8), b"L" + bytes(8), b"f" + bytes(4), b"d" + bytes(8), b"D\x02" + bytes(4), b"T" + bytes(8)),
    *(b"S\x00\x00\x00\x02ab", b"x\x00\x00\x00\x01\xff", b"A\x00\x00\x00\x01V", b"F\x00\x00\x00\x03\x01aV"),
]
texts = st.none() | st.text(max_size=10)
some_properties = st.builds(
    Properties,
    content_type=texts,
    content_encoding=texts,
    headers=st.none() | st.dictionaries(st.text(max_size=8), st.integers(0, 9) | st.text(max_size=8), max_size=4),
    delivery_mode=st.sampled_from([None, 1, 2]),
    priority=st.sampled_from([None, 0, 9]),
    correlation_id=texts,
    reply_to=texts,
    expiration=texts,
    message_id=texts,
    timestamp=st.none() | st.just(NOON),
    type=texts,
    user_id=texts,
    app_id=texts,
    cluster_id=texts,
)


def decoded(raw: bytes | None) -> str | None:
    return None if raw is None else raw.decode()


@given(some_properties)
def test_it_finds_what_decoding_finds(properties: Properties) -> None:
    found = skim(properties.encode())

    headers = {name.decode(): read_value(value, 0, len(value))[0] for name, value in found.headers.items()}
    assert headers == dict(properties.headers or {})
    assert decoded(found.content_type) == properties.content_type
    assert decoded(found.correlation_id) == properties.correlation_id
    assert decoded(found.message_id) == properties.message_id
    assert decoded(found.type) == properties.type
    assert found.timestamp == (None if properties.timestamp is None else NOON.timestamp())


@given(some_properties)
def test_before_and_after_are_all_but_flags_and_headers(properties: Properties) -> None:
    without = Properties(**{**properties.__dict__, "headers": None}).encode()

    found = skim(properties.encode())

    assert found.before + found.after == without[2:]


@pytest.mark.parametrize("value", EVERY_TYPE, ids=lambda value: chr(value[0]))
def test_every_type_of_value_is_passed_over(value: bytes) -> None:
    table = join_table([(b"one", value), (b"two", raw_text("x"))])

    assert skim(b"\x20\x00" + table).headers == {b"one": value, b"two": raw_text("x")}


def test_of_headers_with_one_name_the_last_is_taken_as_a_decoder_does() -> None:
    raw = b"\x20\x00" + join_table([(b"a", raw_text("first")), (b"a", raw_text("last"))])

    assert skim(raw).headers == {b"a": raw_text("last")}
    assert decode_properties(raw).headers == {"a": "last"}


def test_a_value_that_is_nested_too_deep_to_be_decoded_is_passed_over() -> None:
    deep = b"V"
    for _ in range(40):
        deep = raw_table([(b"a", deep)])
    raw = b"\x20\x00" + join_table([(b"deep", deep), (b"other", raw_text("x"))])

    with pytest.raises(RemoteProtocolError):
        decode_properties(raw)
    assert skim(raw).headers[b"other"] == raw_text("x")


def test_a_table_is_cut_into_its_fields() -> None:
    table = raw_table([(b"queue", raw_text("q")), (b"count", b"V")])

    assert skim_table(table) == dict(split_table(table[1:]))


BROKEN: dict[str, bytes] = {
    "nothing": b"",
    "half the flags": b"\x20",
    "no length of the table": b"\x20\x00\x00",
    "a table that is longer than all": b"\x20\x00\x00\x00\x00\x09\x01aV",
    "a header without a value": b"\x20\x00\x00\x00\x00\x02\x01a",
    "a header longer than its table": b"\x20\x00\x00\x00\x00\x03\x01at\x01\x01\x01",
    "a text longer than its table": b"\x20\x00" + b"\x00\x00\x00\x08\x01aS\x00\x00\x00\x09a",
    "an unknown type": b"\x20\x00\x00\x00\x00\x03\x01a?",
    "bytes too many": b"\x00\x00\x00",
    "a text cut short": b"\x80\x00\x05abc",
    "a timestamp cut short": b"\x00\x40\x00",
}


@pytest.mark.parametrize("raw", BROKEN.values(), ids=BROKEN.keys())
def test_what_does_not_add_up_is_an_error_of_the_protocol(raw: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        skim(raw)


@pytest.mark.parametrize("raw", [b"F", b"F\x00\x00\x00\x05\x01", b"F\x00\x00\x00\x02\x01a"])
def test_a_table_that_is_cut_short_is_an_error_of_the_protocol(raw: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        skim_table(raw)


def outcome(read: Any, raw: bytes) -> bool:
    try:
        read(raw)
    except RemoteProtocolError:
        return False
    return True


@given(st.binary(max_size=60))
def test_whatever_is_properties_is_skimmed_and_nothing_raises_anything_else(raw: bytes) -> None:
    assert outcome(skim, raw) or not outcome(check_properties, raw)
