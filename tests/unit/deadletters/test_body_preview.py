"""Bodies for people: what they say, or their bytes; never what a terminal would obey, and never all of too much."""

from __future__ import annotations

import datetime as dt
import json
import pickle
import time
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.deadletters.body_preview import LIMIT, MOST_PARSED, BodyKind, ShownBody, show
from redrive.deadletters.redaction import REDACTED

JSON = "application/json"
NOON = dt.datetime(2024, 5, 17, 12, tzinfo=dt.UTC)
TASK = {"lang": "py", "task": "video.encode", "id": "7f0c", "retries": 2, "argsrepr": "('a.mp4',)", "kwargsrepr": "{}"}


def celery(body: bytes, content_type: str | None = JSON, **headers: Any) -> ShownBody:
    return show(body, content_type, {**TASK, **headers})


# JSON -------------------------------------------------------------------------------------------------------


def test_json_is_indented() -> None:
    shown = show(b'{"id":42,"items":[{"sku":"A"},{}],"none":[],"ok":true,"note":null}', JSON)

    assert shown == ShownBody(
        BodyKind.JSON,
        """\
{
  "id": 42,
  "items": [
    {
      "sku": "A"
    },
    {}
  ],
  "none": [],
  "ok": true,
  "note": null
}""",
    )


@pytest.mark.parametrize(
    "number", ["1.10", "1e400", "1E5", "-0.0", "123456789012345678901234567890", "0.1000000000000000055511151231257827"]
)
def test_numbers_stand_as_they_were_written(number: str) -> None:
    assert show(f"[{number}]".encode(), JSON).text == f"[\n  {number}\n]"


@pytest.mark.parametrize(
    "content_type", [JSON, "text/json", "application/vnd.acme+json", "Application/JSON; charset=x"]
)
def test_json_has_many_names(content_type: str) -> None:
    assert show(b"1", content_type).kind is BodyKind.JSON


@pytest.mark.parametrize("content_type", [None, "", "application/octet-stream", "application/x-own"])
def test_json_is_known_by_its_looks(content_type: str | None) -> None:
    assert show(b' {"a": 1}', content_type).kind is BodyKind.JSON


def test_what_is_called_json_and_is_not_is_shown_as_text_with_a_note() -> None:
    shown = show(b'{"a": 1', JSON)

    assert (shown.kind, shown.text) == (BodyKind.TEXT, '{"a": 1')
    assert shown.note.startswith("called application/json, and it is not: ")


def test_what_only_looks_like_json_needs_no_note() -> None:
    assert show(b"{not json", None) == ShownBody(BodyKind.TEXT, "{not json")


def test_json_that_is_nested_deeper_than_can_be_read_is_text() -> None:
    shown = show(b"[" * 50_000 + b"]" * 50_000, JSON, limit=100)

    assert (shown.kind, shown.truncated) == (BodyKind.TEXT, True)


def test_json_that_is_nested_deeper_than_can_be_shown_is_cut_there() -> None:
    shown = show(b"[" * 100 + b"]" * 100, JSON)

    assert shown.kind is BodyKind.JSON
    assert "[…]" in shown.text


def test_indentation_does_not_blow_it_up() -> None:
    body = b"[" * 90 + b",".join([b"1"] * 200_000) + b"]" * 90
    started = time.process_time()

    shown = show(body, JSON, limit=1_000)

    assert len(shown.text) <= 1_000
    assert shown.truncated
    assert time.process_time() - started < 5


def test_json_that_is_too_large_is_shown_in_its_beginning_and_still_redacted() -> None:
    body = b'{"password": "hunter2", "filling": "' + b"x" * (10 * MOST_PARSED) + b'"}'

    shown = show(body, JSON, limit=500)

    assert shown.text.startswith(f'{{"password": {REDACTED}, "filling": "xxx')
    assert (len(shown.text), shown.truncated) == (500, True)
    assert "too large to be read as JSON" in shown.note


# msgpack ----------------------------------------------------------------------------------------------------


def test_msgpack_is_shown_as_json() -> None:
    value = {"id": 42, "raw": b"\x00\xff", "at": NOON, 7: [1.5, None, True], "long": b"x" * 100}

    shown = show(msgspec.msgpack.encode(value), "application/x-msgpack")

    assert shown.kind is BodyKind.MSGPACK
    assert json.loads(shown.text) == {
        "id": 42,
        "raw": "00ff",
        "at": "2024-05-17T12:00:00+00:00",
        "7": [1.5, None, True],
        "long": "78" * 64 + "… (100 bytes)",
    }


def test_extensions_and_odd_keys_are_shown_as_text() -> None:
    ext = msgspec.msgpack.encode(msgspec.msgpack.Ext(5, b"ab"))

    assert show(ext, "application/msgpack").text == '"extension 5: 6162"'
    assert show(b"\x81\x90\x01", "application/msgpack").text == '{\n  "()": 1\n}'
    assert show(msgspec.msgpack.encode(float("nan")), "application/msgpack").text == "nan"


@pytest.mark.parametrize("body", [b"\xdd\xff\xff\xff\xff", b"\x91" * 100_000 + b"\xc0", b"\xc1"])
def test_what_is_called_msgpack_and_is_not_is_dumped_with_a_note(body: bytes) -> None:
    shown = show(body, "application/msgpack")

    assert shown.kind is BodyKind.BINARY
    assert "and it is not: " in shown.note


def test_msgpack_that_is_too_large_is_dumped() -> None:
    shown = show(msgspec.msgpack.encode("x" * 2 * MOST_PARSED), "application/msgpack", limit=200)

    assert (shown.kind, shown.truncated) == (BodyKind.BINARY, True)
    assert "too large to be read as msgpack" in shown.note


# Celery -----------------------------------------------------------------------------------------------------


def test_a_celery_message_shows_its_call() -> None:
    body = b'[["a.mp4", 2], {"codec": "av1"}, {"callbacks": null, "errbacks": null, "chain": null, "chord": null}]'

    shown = celery(body, eta="2024-05-17T12:00:00")

    assert shown.kind is BodyKind.CELERY
    assert json.loads(shown.text) == {
        "task": "video.encode",
        "id": "7f0c",
        "retries": 2,
        "eta": "2024-05-17T12:00:00",
        "args": ["a.mp4", 2],
        "kwargs": {"codec": "av1"},
    }


def test_what_follows_the_call_is_shown_if_there_is_any() -> None:
    body = b'[[], {}, {"callbacks": null, "chain": [{"task": "video.publish"}]}]'

    assert json.loads(celery(body).text)["chain"] == [{"task": "video.publish"}]


def test_its_arguments_may_be_msgpack() -> None:
    shown = celery(msgspec.msgpack.encode([["a"], {}, {}]), "application/x-msgpack")

    assert (shown.kind, json.loads(shown.text)["args"]) == (BodyKind.CELERY, ["a"])


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return exec, ("raise SystemExit('unpickled')",)


@pytest.mark.parametrize("body", [pickle.dumps(Bomb()), b"\xff", b"[]", b"[{}, [], {}]", b"x" * 2 * MOST_PARSED])
def test_arguments_that_are_not_read_are_shown_as_celery_described_them(body: bytes) -> None:
    shown = celery(body, "application/x-python-serialize" if body[0] == 0x80 else JSON)

    assert json.loads(shown.text)["args"] == "('a.mp4',)"
    assert shown.note == "its arguments are shown as Celery described them"


def test_its_secrets_are_hidden_however_they_are_written() -> None:
    assert "hunter2" not in celery(b'[[], {"password": "hunter2"}, {}]').text
    assert "hunter2" not in celery(b"\x80", "application/x-python-serialize", kwargsrepr="{'password': 'hunter2'}").text


def test_headers_that_are_not_celerys_make_no_celery_message() -> None:
    assert show(b"{}", JSON, {"task": "x", "id": "y"}).kind is BodyKind.JSON
    assert show(b"{}", JSON, {**TASK, "task": 7}).kind is BodyKind.JSON


# Text and bytes ---------------------------------------------------------------------------------------------


def test_text_is_text() -> None:
    assert show("Grüße\r\nzwei".encode(), "text/plain") == ShownBody(BodyKind.TEXT, "Grüße\nzwei")
    assert show(b"just words", None) == ShownBody(BodyKind.TEXT, "just words")
    assert show(b"<a/>", "application/soap+xml") == ShownBody(BodyKind.TEXT, "<a/>")


def test_a_charset_that_is_known_is_used_and_others_are_not() -> None:
    assert show("Grüße".encode("latin-1"), "text/plain; charset=ISO-8859-1").text == "Grüße"
    assert show("Grüße".encode("utf-16"), 'text/plain; charset="utf-16"').text == "Grüße"
    assert show(b"a", "text/plain; charset=unicode_escape").text == "a"


def test_text_that_is_no_utf8_shows_the_bytes_that_are_not() -> None:
    shown = show(b"a\xffb", "text/plain")

    assert (shown.kind, shown.text) == (BodyKind.TEXT, "a\\xffb")
    assert shown.note == "it is not UTF-8: bytes that make no sense are shown as escapes"


@pytest.mark.parametrize("limit", range(5_000, 5_010))
def test_a_letter_that_the_limit_cuts_in_two_does_not_spoil_the_rest(limit: int) -> None:
    shown = show("ü€".encode() * 10_000, "text/plain", limit=limit)

    assert shown.note == "only the beginning of 50000 bytes is shown"
    assert set(shown.text) == {"ü", "€"}


def test_a_secret_that_the_limit_cuts_in_two_is_hidden() -> None:
    body = b"see eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dBjftJeZ4CVP"

    assert "eyJ" not in show(body, "text/plain", limit=20).text


def test_bytes_are_dumped() -> None:
    shown = show(bytes(range(250, 256)) + b"hello, world", None)

    assert shown.kind is BodyKind.BINARY
    assert shown.text.splitlines() == [
        "00000000  fa fb fc fd fe ff 68 65  6c 6c 6f 2c 20 77 6f 72  |......hello, wor|",
        "00000010  6c 64                                             |ld|",
    ]


def test_a_dump_ends_at_the_limit() -> None:
    shown = show(b"\x00" * 10_000_000, None, limit=800)

    assert (len(shown.text) <= 800, shown.truncated) == (True, True)
    assert shown.note == "only the first 160 of 10000000 bytes are shown"


def test_secrets_are_masked_in_a_dump() -> None:
    shown = show(b"\x00\xff\x00\x01pwd=hunter2", None)

    assert shown.text == "00000000  00 ff 00 01 70 77 64 3d  2a 2a 2a 2a 2a 2a 2a     |....pwd=*******|"


def test_an_empty_body_is_empty() -> None:
    assert show(b"", JSON) == ShownBody(BodyKind.EMPTY, "", note="the body is empty")


# Secrets ----------------------------------------------------------------------------------------------------


def test_secrets_are_hidden_unless_asked_for() -> None:
    body = b'{"user": "ann", "password": "hunter2"}'

    assert "hunter2" not in show(body, JSON).text
    assert "hunter2" in show(body, JSON, redaction=None).text
    assert "hunter2" in show(b"password=hunter2", "text/plain", redaction=None).text
    assert "hunter2" in show(b"\x00\xff\x00\x01pwd=hunter2", None, redaction=None).text


# Hostile characters -----------------------------------------------------------------------------------------


@given(st.binary(max_size=60), st.sampled_from([None, JSON, "text/plain", "application/msgpack", "x/y"]), st.booleans())
def test_whatever_a_body_is_it_is_shown_and_does_nothing(body: bytes, content_type: str | None, as_task: bool) -> None:
    shown = show(body, content_type, TASK if as_task else {})

    for text in (shown.text, shown.note):
        assert all(char.isprintable() or char in "\n\t" or char.isspace() for char in text)
        assert not {"\r", "\x1b", "\u202e", "\u2028", "\x85"} & set(text)
        text.encode()


@given(st.text(max_size=40), st.integers(-5, 300))
def test_no_content_type_and_no_limit_make_it_raise(content_type: str, limit: int) -> None:
    show(b'{"a": [1, 2, 3]} and more', content_type, limit=limit)


@given(
    st.dictionaries(
        st.sampled_from(["task", "id", "retries", "argsrepr", "lang", "eta"]), st.none() | st.integers() | st.text()
    )
)
def test_no_headers_make_it_raise(headers: dict[str, Any]) -> None:
    show(b"[[], {}, {}]", JSON, headers)


def test_ten_megabytes_are_shown_at_once() -> None:
    for body in (b"[" + b"1," * 5_000_000 + b"1]", b"\xff" * 10_000_000, b"text " * 2_000_000):
        started = time.process_time()
        shown = show(body, None)
        assert shown.truncated
        assert len(shown.text) <= LIMIT
        assert time.process_time() - started < 2
