"""The 14 properties: present or absent, in the order of the wire, unchangeable, and cheap to send again."""

from __future__ import annotations

import copy
import datetime as dt
import inspect
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, fields, replace
from threading import Thread

import pytest

from redrive.errors import EncodingError, RemoteProtocolError, ReplyCode
from redrive.wire import properties as module
from redrive.wire.properties import PERSISTENT, TRANSIENT, Properties, decode_properties
from redrive.wire.values import Table

NEW_YEAR = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
EVERY = Properties(
    content_type="a",
    content_encoding="b",
    headers={"c": None},
    delivery_mode=PERSISTENT,
    priority=5,
    correlation_id="f",
    reply_to="g",
    expiration="h",
    message_id="i",
    timestamp=NEW_YEAR,
    type="k",
    user_id="l",
    app_id="m",
    cluster_id="n",
)
EVERY_ON_THE_WIRE = (
    b"\xff\xfc" + b"\x01a" + b"\x01b" + b"\x00\x00\x00\x03\x01cV" + b"\x02" + b"\x05" + b"\x01f" + b"\x01g" + b"\x01h"
    b"\x01i" + b"\x00\x00\x00\x00\x65\x92\x00\x80" + b"\x01k" + b"\x01l" + b"\x01m" + b"\x01n"
)  # fmt: skip


# A value ------------------------------------------------------------------------------------------


def test_what_is_absent_is_none() -> None:
    assert all(getattr(Properties(), field.name) is None for field in fields(Properties))


def test_a_property_given_as_none_is_absent() -> None:
    assert Properties(message_id=None) == Properties()


def test_a_property_that_does_not_exist_is_refused() -> None:
    with pytest.raises(TypeError, match="mesage_id"):
        Properties(mesage_id="typo")  # type: ignore[call-arg]


def test_the_constructor_takes_the_fields_in_their_order() -> None:
    assert list(inspect.signature(Properties).parameters) == [field.name for field in fields(Properties)]


def test_only_what_is_present_is_shown() -> None:
    assert repr(Properties(content_type="text/plain", priority=0)) == (
        "Properties(content_type='text/plain', priority=0)"
    )


def test_properties_with_the_same_values_are_equal() -> None:
    assert Properties(message_id="m") == Properties(message_id="m")
    assert hash(Properties(message_id="m")) == hash(Properties(message_id="m"))


def test_properties_with_other_values_differ() -> None:
    assert Properties(message_id="m") != Properties(message_id="n")


def test_having_been_encoded_makes_no_difference() -> None:
    encoded = Properties(message_id="m")
    encoded.encode()
    assert encoded == Properties(message_id="m")
    assert repr(encoded) == repr(Properties(message_id="m"))


def test_a_property_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        EVERY.message_id = "other"  # type: ignore[misc]


def test_a_property_cannot_be_deleted() -> None:
    with pytest.raises(FrozenInstanceError):
        del EVERY.message_id


def test_a_changed_copy_forgets_the_encoding_of_the_original() -> None:
    original = Properties(message_id="m")
    original.encode()
    assert replace(original, message_id="n").encode() == Properties(message_id="n").encode()


@pytest.mark.parametrize("twin", [copy.copy, copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))])
def test_a_copy_is_equal_and_encoded_alike(twin: Callable[[Properties], Properties]) -> None:
    original = Properties(content_type="text/plain", headers={"k": [1]}, message_id="m")
    assert twin(original) == original
    assert twin(original).encode() == original.encode()


# Writing ------------------------------------------------------------------------------------------


def test_no_properties_are_two_octets_of_flags() -> None:
    assert Properties().encode() == b"\x00\x00"


def test_properties_are_written_in_the_order_of_their_flags() -> None:
    assert EVERY.encode() == EVERY_ON_THE_WIRE


@pytest.mark.parametrize(("place", "name"), list(enumerate(field.name for field in fields(Properties))))
def test_a_property_has_the_flag_of_its_place(place: int, name: str) -> None:
    alone = Properties(**{name: getattr(EVERY, name)})
    assert int.from_bytes(alone.encode()[:2], "big") == 1 << (15 - place)


def test_an_empty_property_is_present() -> None:
    assert Properties(message_id="").encode() == b"\x00\x80\x00"
    assert Properties(headers={}).encode() == b"\x20\x00\x00\x00\x00\x00"


def test_a_timestamp_may_be_given_as_seconds() -> None:
    assert Properties(timestamp=1_704_067_200).encode() == Properties(timestamp=NEW_YEAR).encode()


def test_delivery_modes_have_names() -> None:
    assert Properties(delivery_mode=TRANSIENT).encode() == b"\x10\x00\x01"
    assert Properties(delivery_mode=PERSISTENT).encode() == b"\x10\x00\x02"


@pytest.mark.parametrize("value", [-1, 256, "2", 2.0, 10**5000], ids=["negative", "9 bits", "str", "float", "huge"])
@pytest.mark.parametrize("name", ["delivery_mode", "priority"])
def test_an_octet_out_of_range_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(EncodingError, match=f"property {name}: .* is not a whole number within 0 and 255"):
        Properties(**{name: value}).encode()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("message_id", "m" * 256, "has 256 bytes"),
        ("expiration", 60_000, "60000 is int, where AMQP carries text"),
        ("headers", {"k": object}, "AMQP has no type for type"),
        ("headers", ["k"], "is list, where AMQP carries a table"),
        ("timestamp", NEW_YEAR.replace(tzinfo=None), "has no time zone"),
        ("timestamp", -1, "is not an AMQP timestamp"),
    ],
)
def test_a_property_that_cannot_be_written_is_named(name: str, value: object, why: str) -> None:
    with pytest.raises(EncodingError, match=f"^property {name}: .*{why}"):
        Properties(**{name: value}).encode()  # type: ignore[arg-type]


def test_properties_that_cannot_change_are_encoded_once() -> None:
    properties = Properties(content_type="text/plain")
    assert properties.encode() is properties.encode()


def test_headers_that_were_changed_are_encoded_anew() -> None:
    headers: dict[str, int] = {"attempt": 1}
    properties = Properties(headers=headers)
    properties.encode()
    headers["attempt"] = 2
    assert properties.encode() == Properties(headers={"attempt": 2}).encode()


def test_threads_may_share_properties(monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread keeps its encoding while another is in the middle of its own."""
    shared = Properties(content_type="text/plain", message_id="m")
    expected = Properties(content_type="text/plain", message_id="m").encode()
    flag, write = module._WRITERS["content_type"]

    def interrupted(value: str) -> bytes:
        monkeypatch.setitem(module._WRITERS, "content_type", (flag, write))
        other = Thread(target=shared.encode)
        other.start()
        other.join()
        return write(value)

    monkeypatch.setitem(module._WRITERS, "content_type", (flag, interrupted))
    assert shared.encode() == expected


# Reading ------------------------------------------------------------------------------------------


def test_properties_are_read_as_they_were_written() -> None:
    assert decode_properties(EVERY_ON_THE_WIRE) == EVERY


def test_properties_that_were_read_are_written_alike() -> None:
    assert decode_properties(EVERY_ON_THE_WIRE).encode() == EVERY_ON_THE_WIRE


def test_absent_and_empty_are_told_apart() -> None:
    assert decode_properties(b"\x00\x80\x00").message_id == ""
    assert decode_properties(b"\x00\x00").message_id is None


def test_an_id_that_is_not_utf8_survives() -> None:
    raw = b"\x00\x80\x02\xff\xfe"
    assert decode_properties(raw).message_id == "\udcff\udcfe"
    assert decode_properties(raw).encode() == raw


@pytest.mark.parametrize("flags", [b"\x00\x01", b"\x00\x02", b"\x00\x03"])
def test_flags_without_a_meaning_are_ignored(flags: bytes) -> None:
    assert decode_properties(flags) == Properties()


@pytest.mark.parametrize("raw", [b"", b"\x00"])
def test_flags_that_are_cut_short_are_malformed(raw: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="the property flags are cut short") as refused:
        decode_properties(raw)
    assert refused.value.code is ReplyCode.FRAME_ERROR


def test_bytes_after_the_last_property_are_malformed() -> None:
    with pytest.raises(RemoteProtocolError, match="3 bytes after the last property"):
        decode_properties(b"\x00\x00...")


@pytest.mark.parametrize("size", range(2, len(EVERY_ON_THE_WIRE)))
def test_a_property_that_is_cut_short_is_malformed(size: int) -> None:
    with pytest.raises(RemoteProtocolError, match=r"missing|cut short|has only"):
        decode_properties(EVERY_ON_THE_WIRE[:size])


def test_a_table_may_not_reach_into_the_next_property() -> None:
    headers: Table = {"k": "value"}
    raw = bytearray(Properties(headers=headers, message_id="m").encode())
    raw[5] -= 1
    with pytest.raises(RemoteProtocolError, match="a string of 5 bytes has only 4"):
        decode_properties(bytes(raw))
