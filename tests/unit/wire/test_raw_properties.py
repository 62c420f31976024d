"""Properties read and changed as raw bytes: the same answers as decoding gives, and nothing else touched."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.errors import RemoteProtocolError, ReplyCode
from redrive.wire.properties import Properties, decode_properties
from redrive.wire.raw_properties import (
    RawValue,
    check_properties,
    find_header,
    join_table,
    patch_properties,
    raw_array,
    raw_field,
    raw_long,
    raw_table,
    raw_text,
    raw_timestamp,
    read_content_encoding,
    read_delivery_mode,
    read_expiration,
    read_priority,
    read_user_id,
    split_array,
    split_table,
    with_expiration,
    with_new_headers,
    with_property,
    without_empty_headers,
)
from redrive.wire.values import MAX_DEPTH, as_datetime, read_value

ALL = Properties(
    content_type="text/plain",
    content_encoding="gzip",
    headers={"a": 1, "b": "two"},
    delivery_mode=2,
    priority=7,
    correlation_id="c-1",
    reply_to="replies",
    expiration="60000",
    message_id="m-1",
    timestamp=dt.datetime(2024, 1, 1, tzinfo=dt.UTC),
    type="order",
    user_id="guest",
    app_id="shop",
    cluster_id="",
)
# One of each type, with its value as the broker would find it: what follows the type octet is never looked at.
EVERY_TYPE: list[RawValue] = [
    *(b"t\x01", b"b\x80", b"B\x80", b"s\x80\x00", b"u\x80\x00", b"I\x80\x00\x00\x00", b"i\x80\x00\x00\x00", b"V"),
    *(b"l" + bytes(8), b"L" + bytes(8), b"f" + bytes(4), b"d" + bytes(8), b"D\x02" + bytes(4), b"T" + bytes(8)),
    *(b"S\x00\x00\x00\x02ab", b"x\x00\x00\x00\x01\xff", b"A\x00\x00\x00\x01V", b"F\x00\x00\x00\x03\x01aV"),
]


def with_headers(*fields: tuple[bytes, RawValue], before: bytes = b"", after: bytes = b"") -> bytes:
    """Properties with a table of headers, a content type if there is something before it, and a priority after."""
    flags = 0x20 | (0x80 if before else 0) | (0x08 if after else 0)
    return bytes((flags, 0)) + before + join_table(fields) + after


texts = st.text(st.characters(codec="utf-8"), max_size=20)
properties = st.builds(
    Properties,
    **{name: st.none() | texts for name in ("content_type", "content_encoding", "correlation_id", "reply_to")},
    **{name: st.none() | texts for name in ("expiration", "message_id", "type", "user_id", "app_id", "cluster_id")},
    headers=st.none() | st.dictionaries(texts, st.one_of(st.none(), st.integers(-5, 5), texts, st.lists(texts))),
    delivery_mode=st.none() | st.integers(0, 255),
    priority=st.none() | st.integers(0, 255),
    timestamp=st.none() | st.integers(0, 2**40).map(as_datetime),
)


# Reading one property -------------------------------------------------------------------------------


@given(properties)
def test_single_properties_read_as_decoding_reads_them(properties: Properties) -> None:
    raw = properties.encode()

    assert read_content_encoding(raw) == properties.content_encoding
    assert read_delivery_mode(raw) == properties.delivery_mode
    assert read_priority(raw) == properties.priority
    assert read_expiration(raw) == properties.expiration
    assert read_user_id(raw) == properties.user_id


@given(properties, texts)
def test_a_header_is_found_if_decoding_finds_it(properties: Properties, name: str) -> None:
    headers = properties.headers or {}
    raw = properties.encode()

    assert (find_header(raw, name.encode()) is not None) == (name in headers)
    for there in headers:
        value = find_header(raw, there.encode())
        assert value is not None
        assert read_value(value, 0, len(value)) == (headers[there], len(value))


def test_a_name_in_a_value_is_no_header() -> None:
    raw = Properties(headers={"a": "CC"}, message_id="CC").encode()

    assert find_header(raw, b"CC") is None


def test_of_headers_with_one_name_the_first_is_found() -> None:
    raw = with_headers((b"a", b"b\x01"), (b"a", b"b\x02"))

    assert find_header(raw, b"a") == b"b\x01"


def test_a_property_that_is_not_utf8_keeps_its_bytes() -> None:
    assert read_expiration(b"\x01\x00\x02\xff1") == "\udcff1"


READERS: list[Callable[[bytes], object]] = [
    read_content_encoding,
    read_delivery_mode,
    read_priority,
    read_expiration,
    read_user_id,
    lambda raw: find_header(raw, b"a"),
    check_properties,
    lambda raw: patch_properties(raw, set_headers={b"z": b"V"}),
    lambda raw: patch_properties(raw, drop_expiration=True),
    lambda raw: patch_properties(raw, drop_user_id=True),
    lambda raw: with_expiration(raw, "5"),
    without_empty_headers,
]


@pytest.mark.parametrize("length", range(len(ALL.encode())))
def test_properties_cut_short_anywhere_are_a_syntax_error_or_read_as_far_as_they_go(length: int) -> None:
    cut = ALL.encode()[:length]

    with pytest.raises(RemoteProtocolError) as error:
        check_properties(cut)
    assert error.value.code is ReplyCode.FRAME_ERROR
    for read in READERS:
        _accepts(read, cut)


@given(st.binary(max_size=60))
def test_no_bytes_at_all_raise_anything_but_a_syntax_error(raw: bytes) -> None:
    for read in READERS:
        _accepts(read, raw)


# All of them ----------------------------------------------------------------------------------------


@given(properties)
def test_what_can_be_encoded_passes_the_check(properties: Properties) -> None:
    check_properties(properties.encode())


def _damaged(raw: bytes) -> st.SearchStrategy[bytes]:
    change = st.tuples(st.integers(0, len(raw) - 1), st.integers(0, 255))
    return change.map(lambda at: raw[: at[0]] + bytes((at[1],)) + raw[at[0] + 1 :])


@given(st.binary(max_size=30) | properties.map(Properties.encode).flatmap(_damaged))
def test_the_check_refuses_what_decoding_refuses(raw: bytes) -> None:
    assert _accepts(check_properties, raw) == _accepts(decode_properties, raw)


def _accepts(read: Callable[[bytes], object], raw: bytes) -> bool:
    try:
        read(raw)
    except RemoteProtocolError as error:
        if error.code is not ReplyCode.FRAME_ERROR:
            raise
        return False
    return True


def test_bytes_behind_the_last_property_are_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="do not add up"):
        check_properties(ALL.encode() + b"\x00")


@pytest.mark.parametrize("wrap", [lambda value: raw_array([value]), lambda value: raw_table([(b"a", value)])])
def test_tables_and_arrays_may_be_nested_as_deep_as_decoding_allows(wrap: Callable[[RawValue], RawValue]) -> None:
    value = b"V"
    for _ in range(MAX_DEPTH - 1):
        value = wrap(value)
    check_properties(with_headers((b"a", value)))
    decode_properties(with_headers((b"a", value)))

    with pytest.raises(RemoteProtocolError, match="nested more than"):
        check_properties(with_headers((b"a", wrap(value))))


# Changing them --------------------------------------------------------------------------------------


@given(properties, st.dictionaries(texts, st.sampled_from([1, "x", None]), max_size=3), st.sets(texts, max_size=2))
def test_patching_is_decoding_changing_and_encoding(
    properties: Properties, setting: dict[str, Any], removing: set[str]
) -> None:
    removing |= set(list(properties.headers or {})[::2])
    new = Properties(headers=setting).encode()
    patched = patch_properties(
        properties.encode(),
        set_headers=dict(split_table(new[2:])),
        remove_headers={name.encode() for name in removing},
        drop_expiration=True,
    )

    headers = {name: value for name, value in (properties.headers or {}).items() if name not in removing - set(setting)}
    headers |= setting
    kept = headers if properties.headers is not None or setting else None
    expected = {**_present(properties), "headers": kept, "expiration": None}
    assert decode_properties(patched) == Properties(**expected)


def _present(properties: Properties) -> dict[str, Any]:
    return {name: value for name, value in vars(properties).items() if name != "_encoded"}


def test_all_that_is_not_named_stays_byte_for_byte() -> None:
    fields = [(bytes((ord("a") + place,)), value) for place, value in enumerate(EVERY_TYPE)]
    raw = with_headers(*fields, (b"old", b"V"), before=b"\x01t", after=b"\x09")

    patched = patch_properties(raw, set_headers={b"new": raw_long(1)}, remove_headers=[b"old"])

    assert patched == with_headers(*fields, (b"new", raw_long(1)), before=b"\x01t", after=b"\x09")


def test_nothing_to_do_gives_the_same_object() -> None:
    raw = ALL.encode()

    assert patch_properties(raw) is raw
    assert patch_properties(raw, remove_headers=[]) is raw


def test_a_header_that_is_set_takes_the_place_of_the_one_there_was() -> None:
    raw = with_headers((b"a", b"b\x01"), (b"b", b"b\x02"), (b"c", b"b\x03"))

    patched = patch_properties(raw, set_headers={b"b": b"V", b"d": b"V"})

    assert patched == with_headers((b"a", b"b\x01"), (b"b", b"V"), (b"c", b"b\x03"), (b"d", b"V"))


def test_a_second_header_of_a_name_goes_when_the_name_is_set_or_removed() -> None:
    raw = with_headers((b"a", b"b\x01"), (b"a", b"b\x02"), (b"b", b"V"), (b"b", b"V"))

    assert patch_properties(raw, set_headers={b"a": b"V"}, remove_headers=[b"b"]) == with_headers((b"a", b"V"))


def test_other_names_may_stay_there_twice() -> None:
    raw = with_headers((b"a", b"b\x01"), (b"a", b"b\x02"))

    assert patch_properties(raw, remove_headers=[b"z"]) == raw


def test_a_header_both_set_and_removed_is_set() -> None:
    raw = with_headers((b"a", b"b\x01"))

    assert patch_properties(raw, set_headers={b"a": b"V"}, remove_headers=[b"a"]) == with_headers((b"a", b"V"))


def test_headers_are_sorted_by_the_bytes_of_their_names() -> None:
    raw = with_headers((b"b", b"V"), (b"\xc3\xa4", b"V"), (b"B", b"V"), (b"a", b"b\x01"), (b"a", b"b\x02"))

    patched = patch_properties(raw, sort_headers=True)

    assert [name for name, _ in split_table(patched[2:])] == [b"B", b"a", b"a", b"b", b"\xc3\xa4"]
    assert find_header(patched, b"a") == b"b\x01"


def test_without_headers_there_is_nothing_to_sort_or_remove() -> None:
    raw = Properties(content_type="t", message_id="m").encode()

    assert patch_properties(raw, sort_headers=True, remove_headers=[b"a"]) == raw


@pytest.mark.parametrize("content_type", [None, "t"])
@pytest.mark.parametrize("content_encoding", [None, "e"])
def test_the_first_header_finds_its_place(content_type: str | None, content_encoding: str | None) -> None:
    plain = Properties(content_type=content_type, content_encoding=content_encoding, priority=1)

    patched = patch_properties(plain.encode(), set_headers={b"a": b"V"})

    assert decode_properties(patched) == Properties(**_present(plain), headers={"a": None})


def test_a_table_that_loses_its_last_header_stays() -> None:
    patched = patch_properties(with_headers((b"a", b"V"), after=b"\x05"), remove_headers=[b"a"])

    assert decode_properties(patched) == Properties(headers={}, priority=5)


@given(properties)
def test_without_its_user_a_message_is_the_same_otherwise(properties: Properties) -> None:
    patched = patch_properties(properties.encode(), drop_user_id=True)

    assert decode_properties(patched) == Properties(**{**_present(properties), "user_id": None})


def test_the_user_is_found_behind_all_other_properties_and_nothing_else_moves() -> None:
    raw = ALL.encode()

    patched = patch_properties(raw, drop_user_id=True)

    assert patched == raw[:1] + bytes((raw[1] & ~0x10,)) + raw[2:].replace(b"\x05guest", b"")
    assert read_user_id(patched) is None


def test_an_empty_user_is_a_user_and_one_that_is_not_utf8_keeps_its_bytes() -> None:
    assert read_user_id(Properties(user_id="").encode()) == ""
    assert read_user_id(b"\x00\x10\x01\xff") == "\udcff"


def test_without_a_user_there_is_nothing_to_drop() -> None:
    raw = Properties(message_id="m", app_id="guest").encode()

    assert patch_properties(raw, drop_user_id=True) is raw


def test_a_user_goes_together_with_an_expiration_and_headers() -> None:
    patched = patch_properties(
        ALL.encode(), set_headers={b"b": b"V"}, remove_headers=[b"a"], drop_expiration=True, drop_user_id=True
    )

    expected = {**_present(ALL), "headers": {"b": None}, "expiration": None, "user_id": None}
    assert decode_properties(patched) == Properties(**expected)


@given(properties, texts)
def test_an_expiration_can_be_set_and_nothing_else_moves(properties: Properties, expiration: str) -> None:
    patched = with_expiration(properties.encode(), expiration)

    assert patched == Properties(**{**_present(properties), "expiration": expiration}).encode()


def test_an_expiration_taken_out_and_put_back_leaves_the_bytes_as_they_were() -> None:
    raw = ALL.encode()

    assert with_expiration(patch_properties(raw, drop_expiration=True), "60000") == raw


@given(properties)
def test_only_an_empty_table_of_headers_is_taken_away(properties: Properties) -> None:
    patched = without_empty_headers(properties.encode())

    assert decode_properties(patched) == Properties(**{**_present(properties), "headers": properties.headers or None})


def test_a_header_set_and_removed_where_there_was_none_leaves_the_bytes_as_they_were() -> None:
    raw = Properties(content_type="t", priority=1, message_id="m").encode()

    patched = patch_properties(patch_properties(raw, set_headers={b"a": b"V"}), remove_headers=[b"a"])

    assert without_empty_headers(patched) == raw


def test_the_two_bits_that_mean_nothing_survive() -> None:
    assert patch_properties(b"\x01\x03\x011", drop_expiration=True) == b"\x00\x03"


# Tables and arrays ----------------------------------------------------------------------------------


@pytest.mark.parametrize("value", EVERY_TYPE, ids=lambda value: chr(value[0]))
def test_a_value_of_every_type_is_split_off_and_joined_again(value: RawValue) -> None:
    table = join_table([(b"first", value), (b"second", b"V")])

    assert split_table(table) == [(b"first", value), (b"second", b"V")]
    assert split_array(raw_array([value, b"V", value])) == [value, b"V", value]


@pytest.mark.parametrize("value", [value for value in EVERY_TYPE if value != b"V"], ids=lambda value: chr(value[0]))
def test_a_value_of_any_type_may_be_cut_short(value: RawValue) -> None:
    for length in range(1, len(value)):
        with pytest.raises(RemoteProtocolError, match="cut short"):
            split_array(raw_array([value[:length]]))


@pytest.mark.parametrize(
    "table",
    [b"", b"\x00\x00\x00", b"\x00\x00\x00\x09\x01aV", b"\x00\x00\x00\x02\x01a", b"\x00\x00\x00\x01\x09"],
    ids=["nothing", "half a length", "a length that lies", "no value", "no name"],
)
def test_a_table_that_does_not_add_up_is_a_syntax_error(table: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="FRAME_ERROR"):
        split_table(table)


def test_an_unknown_type_is_a_syntax_error() -> None:
    with pytest.raises(RemoteProtocolError, match="unknown field type 0x3f"):
        split_table(join_table([(b"a", b"?")]))


# Raw values -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        (raw_text("schön"), "schön"),
        (raw_long(3), 3),
        (raw_long(-(1 << 63)), -(1 << 63)),
        (raw_timestamp(1_704_067_200), dt.datetime(2024, 1, 1, tzinfo=dt.UTC)),
        (raw_table([(b"a", raw_long(1)), (b"b", raw_text(""))]), {"a": 1, "b": ""}),
        (raw_array([raw_long(1), raw_text("b")]), [1, "b"]),
        (raw_array([]), []),
    ],
)
def test_raw_values_decode_to_what_they_were_made_of(raw: RawValue, value: object) -> None:
    assert read_value(raw, 0, len(raw)) == (value, len(raw))


def test_raw_text_gives_foreign_bytes_back() -> None:
    assert raw_text("\udcff") == b"S\x00\x00\x00\x01\xff"


def test_a_small_number_is_long_all_the_same() -> None:
    assert raw_long(1) == b"l\x00\x00\x00\x00\x00\x00\x00\x01"


# New headers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("headers", [None, {}, {"tenant": "a", "n": 1}])
def test_new_headers_come_behind_those_there_are(headers: dict[str, str | int] | None) -> None:
    raw = Properties(content_type="text/plain", headers=headers, priority=3, message_id="m").encode()
    value = raw_text("new")

    made = with_new_headers(raw, raw_field(b"x-new", value), unless=[b"x-"])

    assert made == patch_properties(raw, set_headers={b"x-new": value})


@pytest.mark.parametrize(
    "properties",
    [
        Properties(headers={"x-old": 1}),
        Properties(headers={"tenant": "has x- in it"}),
        Properties(expiration="1000"),
        Properties(user_id="guest"),
    ],
    ids=["name", "value", "expiration", "user_id"],
)
def test_new_headers_are_not_simply_added_where_more_is_to_be_done(properties: Properties) -> None:
    assert with_new_headers(properties.encode(), raw_field(b"x-new", raw_text("new")), unless=[b"x-"]) is None


# Any property -------------------------------------------------------------------------------------------------


def present(properties: Properties) -> dict[str, Any]:
    return {name: value for name, value in vars(properties).items() if name != "_encoded"}


@given(st.sets(st.sampled_from(sorted(present(ALL)))), st.sampled_from(sorted(present(ALL))))
def test_one_property_is_set_or_taken_out_and_the_others_stay(names: set[str], name: str) -> None:
    before = {each: value for each, value in present(ALL).items() if each in names - {name}}
    alone = {name: present(ALL)[name]}
    without, with_it = Properties(**before).encode(), Properties(**before, **alone).encode()
    encoded = Properties(**alone).encode()[2:]

    for raw in (without, with_it):
        assert with_property(raw, name, encoded) == with_it
        assert with_property(raw, name, None) == without


@pytest.mark.parametrize("raw", [b"", b"\x80", b"\x80\x00", b"\x80\x00\x05ab", b"\x00\x40\x00", b"\x20\x00\x00"])
def test_no_property_is_set_in_what_is_cut_short(raw: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        with_property(raw, "timestamp", bytes(8))
