"""An edit changes what it says and nothing else, and shows what it changes."""

from __future__ import annotations

import datetime as dt
import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.deadletters.body_preview import is_json
from redrive.deadletters.edits import LIMIT, Content, Edit, apply_edit, diff
from redrive.deadletters.redaction import REDACTED
from redrive.errors import EditRefused
from redrive.text import printable
from redrive.wire.properties import Properties, decode_properties
from redrive.wire.raw_properties import find_header, join_table, patch_properties, with_property

JSON = "application/json"
ORDER = Properties(
    content_type=JSON,
    headers={"tenant": "acme", "tries": 3},
    delivery_mode=2,
    priority=7,
    message_id="m-1",
    timestamp=dt.datetime(2024, 5, 17, tzinfo=dt.UTC),
    type="OrderPlaced",
    user_id="guest",
)
CONTENT = Content(ORDER.encode(), b'{"id":42}')


def content(body: bytes, content_type: str | None = None, **headers: Any) -> Content:
    return Content(Properties(content_type=content_type, headers=headers or None).encode(), body)


# Doing it --------------------------------------------------------------------------------------------------


def test_an_edit_of_nothing_changes_nothing() -> None:
    assert Edit().is_nothing
    assert apply_edit(CONTENT, Edit()) == CONTENT


def test_a_new_body_leaves_the_properties_alone() -> None:
    assert apply_edit(CONTENT, Edit(b'{"id":43}')) == Content(CONTENT.raw_properties, b'{"id":43}')


@pytest.mark.parametrize("value", [True, 1.0, [True], {"flag": True}, {"flag": [1, {"n": 1.0}]}])
def test_a_header_that_is_equal_and_not_the_same_is_set(value: Any) -> None:
    plain = json.loads(json.dumps(value).replace("true", "1").replace("1.0", "1"))
    assert plain == value
    before = Content(Properties(headers={"x": plain}).encode(), b"")

    after = apply_edit(before, Edit(set_headers={"x": value}))

    found = (decode_properties(after.raw_properties).headers or {})["x"]
    assert json.dumps(found) == json.dumps(value)


def test_headers_are_set_and_removed_and_the_rest_stays() -> None:
    found = apply_edit(
        CONTENT, Edit(set_headers={"tenant": "umbrella", "new": [1, {"a": b"b"}]}, remove_headers=["tries"])
    )

    wanted = {**vars(ORDER), "headers": {"tenant": "umbrella", "new": [1, {"a": b"b"}]}}
    wanted.pop("_encoded", None)
    assert decode_properties(found.raw_properties) == Properties(**wanted)
    assert found.body == CONTENT.body


def test_properties_are_set_and_taken_out_and_the_rest_stays() -> None:
    found = apply_edit(CONTENT, Edit(properties={"type": None, "content_type": "text/plain", "priority": 1}))

    wanted = {**vars(ORDER), "type": None, "content_type": "text/plain", "priority": 1}
    wanted.pop("_encoded", None)
    assert decode_properties(found.raw_properties) == Properties(**wanted)


@pytest.mark.parametrize("raw", [b"b\x05", b"B\x05", b"s\x00\x05", b"l" + bytes(7) + b"\x05"])
def test_a_header_that_is_set_to_what_it_is_keeps_its_type(raw: bytes) -> None:
    before = Content(patch_properties(CONTENT.raw_properties, set_headers={b"n": raw}), b"{}")

    assert apply_edit(before, Edit(set_headers={"n": 5})) == before
    assert find_header(apply_edit(before, Edit(set_headers={"n": 6})).raw_properties, b"n") == b"I\x00\x00\x00\x06"


def test_true_is_not_one() -> None:
    found = apply_edit(CONTENT, Edit(set_headers={"tries": True}))

    assert find_header(found.raw_properties, b"tries") == b"t\x01"


@given(st.dictionaries(st.text(max_size=5), st.integers(-9, 9) | st.text(max_size=5), max_size=4), st.binary())
def test_what_is_not_named_stays_byte_for_byte(headers: dict[str, Any], body: bytes) -> None:
    before = Content(Properties(headers=headers, app_id="shop").encode(), body)

    there = apply_edit(before, Edit(set_headers={"x-mine": 1}, properties={"type": "new"}))

    assert (
        apply_edit(there, Edit(remove_headers=["x-mine"], properties={"type": None})) == before or "x-mine" in headers
    )


# Refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "problem"),
    [
        ({"body": "text"}, "a body is bytes, and this is str"),
        ({"remove_headers": "tenant"}, "a list of names"),
        ({"set_headers": {"a": 1}, "remove_headers": ["a"]}, "header a: set and removed at once"),
        ({"set_headers": {"x-death": []}}, "header x-death: a re-drive writes or removes it"),
        ({"set_headers": {"x-redriven-count": 0}}, "would be in vain"),
        ({"set_headers": {"CC": ["q"]}}, "header CC"),
        ({"set_headers": {"x-opt-delivery-time": 4102444800000}}, "header x-opt-delivery-time"),
        ({"properties": {"content-type": "a"}}, "unknown property content-type, did you mean content_type?"),
        ({"properties": {"zzz": "a"}}, "unknown property zzz: want content_type, "),
        ({"properties": {"user_id": "a"}}, "property user_id cannot be set: RabbitMQ"),
        ({"properties": {"expiration": "1"}}, "would expire again"),
        ({"properties": {"headers": {}}}, "one by one"),
    ],
)
def test_an_edit_that_would_not_do_what_is_meant_cannot_be_made(what: dict[str, Any], problem: str) -> None:
    with pytest.raises(EditRefused, match=problem.replace("?", r"\?")):
        Edit(**what)


@pytest.mark.parametrize(
    ("edit", "problem"),
    [
        (Edit(set_headers={"n" * 256: 1}), "has 256 bytes; an AMQP name or key holds at most 255"),
        (Edit(set_headers={"n": 1 << 64}), "header n: .* does not fit into 64 bits"),
        (Edit(set_headers={"n": float("inf")}), "header n: RabbitMQ ends the connection"),
        (Edit(set_headers={"n": object()}), "header n: AMQP has no type for object"),  # type: ignore[dict-item]
        (Edit(remove_headers=["n" * 256]), "the name of a header"),
        (Edit(properties={"type": "t" * 256}), "type.* holds at most 255"),
        (Edit(properties={"priority": 256}), "priority"),
        (Edit(properties={"timestamp": dt.datetime(2024, 1, 1)}), "has no time zone"),  # noqa: DTZ001
        (Edit(set_headers={"big": "x" * 70_000}), "its properties would have 70... bytes, and a frame holds 65536"),
    ],
)
def test_what_amqp_cannot_carry_is_refused(edit: Edit, problem: str) -> None:
    with pytest.raises(EditRefused, match=problem):
        apply_edit(CONTENT, edit)


def test_properties_that_were_too_large_already_may_become_smaller() -> None:
    large = content(b"", None, big="x" * 70_000, more="y")

    assert apply_edit(large, Edit(remove_headers=["more"])).raw_properties < large.raw_properties


def test_properties_that_cannot_be_read_are_not_changed() -> None:
    with pytest.raises(EditRefused, match="its properties cannot be read"):
        apply_edit(Content(b"\xff\xff\x01", b""), Edit(b"new"))


@pytest.mark.parametrize("content_type", [JSON, "application/vnd.acme+json; charset=utf-8", "TEXT/JSON"])
def test_a_body_that_is_called_json_must_be_json(content_type: str) -> None:
    before = content(b"{}", content_type)

    with pytest.raises(EditRefused, match="and it is not: Expecting value in line 1, column 1"):
        apply_edit(before, Edit(b"nonsense"))
    assert apply_edit(before, Edit(b"nonsense"), force=True).body == b"nonsense"
    assert apply_edit(before, Edit(b"nonsense", properties={"content_type": "text/plain"})).body == b"nonsense"


def test_a_body_that_was_never_json_stays_when_something_else_changes() -> None:
    before = content(b"nonsense", JSON)

    assert apply_edit(before, Edit(set_headers={"a": 1})).body == b"nonsense"


@pytest.mark.parametrize("other", [content(b"{}"), content(b"{}", "text/plain"), content(b"{}", "application/jsonx")])
def test_any_other_body_is_whatever_it_is(other: Content) -> None:
    assert apply_edit(other, Edit(b"nonsense")).body == b"nonsense"


def test_a_packed_body_is_not_looked_into() -> None:
    packed = Content(with_property(CONTENT.raw_properties, "content_encoding", b"\x04gzip"), b"\x1f\x8b")

    assert apply_edit(packed, Edit(b"\x1f\x8c")).body == b"\x1f\x8c"


@pytest.mark.parametrize(("name", "says"), [(None, False), ("", False), ("a/b+JSON", True), ("text/json5", False)])
def test_a_content_type_says_json_or_not(name: str | None, says: bool) -> None:
    assert is_json(name) is says


# Showing it ------------------------------------------------------------------------------------------------


def test_nothing_is_shown_of_nothing() -> None:
    assert diff(CONTENT, CONTENT) == ""


def test_json_is_compared_as_people_read_it() -> None:
    old = content(b'{"id":42,"price":1.10,"items":[1,2]}', JSON)

    assert diff(old, apply_edit(old, Edit(b'{"id":43,"price":1.10,"items":[1,2]}'))) == (
        "--- body (36 bytes)\n+++ body (36 bytes)\n"
        "@@ -1,5 +1,5 @@\n {\n"
        '-  "id": 42,\n+  "id": 43,\n'
        '   "price": 1.10,\n   "items": [\n     1,'
    )


def test_headers_and_properties_are_compared_line_by_line() -> None:
    shown = diff(CONTENT, apply_edit(CONTENT, Edit(set_headers={"tries": 4}, properties={"type": "OrderMoved"})))

    assert "-type: OrderPlaced\n+type: OrderMoved\n" in shown
    assert "-header tries: 3\n+header tries: 4" in shown
    assert "--- body" not in shown


def test_times_and_bytes_in_headers_are_shown() -> None:
    shown = diff(CONTENT, apply_edit(CONTENT, Edit(set_headers={"blob": b"\xff\x00"}, properties={"timestamp": None})))

    assert "-timestamp: 2024-05-17T00:00:00+00:00" in shown
    assert "+header blob: 0xff00" in shown


def test_bytes_are_shown_in_hex() -> None:
    shown = diff(content(bytes(range(16)) * 3), content(bytes(range(16)) * 2 + b"\x00\x1b[31mred"))

    same = "00 01 02 03 04 05 06 07 08 09 0a 0b 0c 0d 0e 0f  |................|"
    assert shown.splitlines()[2:] == [
        "@@ -1,3 +1,3 @@",
        f" {same}",
        f" {same}",
        f"-{same}",
        "+00 1b 5b 33 31 6d 72 65 64                       |..[31mred|",
    ]


def test_text_that_becomes_bytes_is_shown_in_hex_on_both_sides() -> None:
    shown = diff(content(b"hello"), content(b"\x00\x01"))

    assert "-68 65 6c 6c 6f " in shown
    assert "+00 01 " in shown


@pytest.mark.parametrize("hostile", ["\x1b[2J", "a\rb", "\u202e", "\x9b31m"])
def test_nothing_in_it_acts(hostile: str) -> None:
    old = content(b"hello", "text/plain", **{f"n{hostile}": "v"})
    new = content(f"hello {hostile}".encode(), "text/plain", **{f"n{hostile}": f"w{hostile}\n+forged"})

    assert all(char.isprintable() or char == "\n" for char in diff(old, new))
    assert "\n+forged" not in diff(old, new)


def test_secrets_are_left_out_unless_asked_for() -> None:
    old, new = (
        content(b'{"password":"one","a":1}', JSON, token="x"),
        content(b'{"password":"two","a":2}', JSON, token="y"),
    )

    assert "two" not in diff(old, new)
    assert REDACTED in diff(old, new)
    assert '+  "password": "two",' in diff(old, new, redaction=None)
    assert "+header token: y" in diff(old, new, redaction=None)


@pytest.mark.parametrize(
    ("old", "new"), [(b'{"a":1}', b'{ "a": 1 }'), (b'{"password":"one"}', b'{"password":"two"}'), (b"a\r\nb", b"a\nb")]
)
def test_a_change_that_cannot_be_seen_is_told(old: bytes, new: bytes) -> None:
    assert "differ only in how they are written, or in what is not shown" in diff(content(old), content(new))


def test_a_change_far_behind_is_shown_with_its_place() -> None:
    old = b"\n".join(b"line %d" % number for number in range(20_000))

    shown = diff(content(old), content(old.replace(b"line 15000\n", b"other\n")))

    assert "@@ -14998,7 +14998,7 @@" in shown
    assert "-line 15000\n+other" in shown


def test_it_ends() -> None:
    started = time.perf_counter()
    old = content(b"\n".join(b"%d" % (number % 300) for number in range(30_000)))
    new = content(b"\n".join(b"%d" % (number * 7 % 300) for number in range(30_000)))

    assert len(diff(old, new)) < LIMIT + 200
    assert time.perf_counter() - started < 30


def test_a_long_line_is_shown_to_its_end() -> None:
    shown = diff(content(b"x" * 1000 + b"a"), content(b"x" * 1000 + b"b"))

    assert shown.splitlines()[-2:] == ["-" + "x" * 200 + "a", "+" + "x" * 200 + "b"]


def test_what_is_empty_is_compared_too() -> None:
    assert diff(content(b""), content(b"new")).splitlines()[2:] == ["@@ -0,0 +1,1 @@", "+new"]


@given(st.binary(max_size=60), st.binary(max_size=60), st.sampled_from([None, JSON, "text/plain"]))
def test_whatever_there_is_can_be_compared(one: bytes, other: bytes, content_type: str | None) -> None:
    shown = diff(content(one, content_type), Content(join_table([]), other))

    assert printable(shown) == shown
