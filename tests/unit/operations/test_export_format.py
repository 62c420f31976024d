"""Dead letters as lines: what was written comes back exactly, and what cannot be a message says why."""

from __future__ import annotations

import base64
import datetime as dt
import json
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.deadletters.dead_letter import Summary, read_dead_letter, read_summary
from redrive.deadletters.redaction import REDACTED, REDACTION
from redrive.errors import LetterError
from redrive.operations.export_format import FORMAT, Exported, decode_dead_letter, encode_dead_letter
from redrive.wire.properties import Properties
from redrive.wire.raw_properties import patch_properties

NOON = dt.datetime(2024, 5, 17, 12, tzinfo=dt.UTC)
ORDER = Properties(
    content_type="application/json",
    headers={
        "tenant": "acme",
        "x-redrive-reason": "exhausted",
        "x-redrive-queue": "q.orders",
        "x-redrive-exchange": "domain.events",
        "x-redrive-parked-at": NOON,
        "blob": b"\xff",
        "when": NOON,
        "list": [1, 2.5, {"a": None}],
    },
    message_id="m-1",
    type="OrderPlaced",
)


def message(body: bytes = b'{"id":42}', raw: bytes = ORDER.encode(), **other: Any) -> Exported:
    given = {"exchange": "dlx", "routing_key": "q.orders", "queue": "q.orders.dlq", **other}
    found = Exported(raw_properties=raw, body=body, **given)
    return Exported(raw_properties=raw, body=body, **given, id=letter_of(found).id)


def letter_of(message: Exported, *, full: bool = True) -> Summary:
    if full:
        return read_dead_letter(message.raw_properties, message.body, queue=message.queue, position=7)
    return read_summary(message.raw_properties, message.body, message.queue, 7)


def written(message: Exported, **other: Any) -> bytes:
    return encode_dead_letter(message, letter_of(message), **other)


def fields(**changes: Any) -> bytes:
    """A line with some fields changed; None takes one out."""
    line = {**json.loads(written(message())), **changes}
    return json.dumps({name: value for name, value in line.items() if value is not None}).encode()


# There and back --------------------------------------------------------------------------------------------

bodies = st.binary() | st.text().map(lambda text: text.encode("utf-8", "surrogatepass"))
names = st.binary(max_size=255).map(lambda data: data.decode("utf-8", "surrogateescape"))
values = st.none() | st.integers(-(1 << 63), (1 << 63) - 1) | st.text(max_size=9) | st.binary(max_size=9) | st.floats()
raws = st.dictionaries(st.text(max_size=9), values, max_size=4).map(
    lambda headers: Properties(
        headers={name: str(value) if isinstance(value, float) else value for name, value in headers.items()},
        message_id="m",
    ).encode()
)


@given(bodies, raws, names, names, names, st.booleans())
def test_what_is_written_comes_back_exactly(
    body: bytes, raw: bytes, exchange: str, key: str, queue: str, full: bool
) -> None:
    before = message(body, raw, exchange=exchange, routing_key=key, queue=queue)

    line = encode_dead_letter(before, letter_of(before, full=full))

    assert decode_dead_letter(line, 1) == before
    assert line.endswith(b"\n")
    assert line[:-1].decode().isprintable()


def test_what_was_read_can_be_written_again() -> None:
    line = written(message())
    again = decode_dead_letter(line, 1)

    assert encode_dead_letter(again, letter_of(again)) == line


def test_every_type_of_header_comes_back_as_it_was() -> None:
    kinds = [
        b"b\x80",
        b"u\x80\x00",
        b"f\x7f\x80\x00\x00",
        b"d\x7f\xf8" + bytes(6),
        b"T" + b"\xff" * 8,
        b"D\x02" + bytes(4),
    ]
    headers = {b"h%d" % number: kind for number, kind in enumerate(kinds)}
    before = message(raw=patch_properties(ORDER.encode(), set_headers=headers))

    assert decode_dead_letter(written(before), 1) == before


def test_people_read_it_first() -> None:
    line = json.loads(written(message()))

    assert list(line)[:5] == ["format", "queue", "position", "id", "message_id"]
    assert list(line)[-4:] == ["exchange", "routing_key", "properties", "body"]
    assert line["format"] == FORMAT
    assert (line["queue"], line["position"], line["message_id"]) == ("q.orders.dlq", 7, "m-1")
    assert (line["source"], line["reason"], line["dead_at"]) == ("q.orders", "exhausted", "2024-05-17T12:00:00Z")
    assert line["published_exchange"] == "domain.events"
    assert (line["exchange"], line["routing_key"]) == ("dlx", "q.orders")
    assert line["body"] == '{"id":42}'
    assert base64.b64decode(line["properties"]) == ORDER.encode()


def test_headers_are_readable() -> None:
    headers = json.loads(written(message()))["headers"]

    assert headers["tenant"] == "acme"
    assert headers["blob"] == base64.b64encode(b"\xff").decode()
    assert headers["when"] == "2024-05-17T12:00:00Z"
    assert headers["list"] == [1, 2.5, {"a": None}]


def test_headers_are_not_read_back() -> None:
    assert decode_dead_letter(fields(headers={"tenant": "other"}), 1) == message()


def test_a_body_may_be_changed_by_hand() -> None:
    assert decode_dead_letter(fields(body='{"id":43}'), 1).body == b'{"id":43}'


def test_a_body_that_is_not_utf8_is_base64() -> None:
    line = json.loads(written(message(b"\xff\x00")))

    assert line["body_base64"] == "/wA="
    assert "body" not in line


@pytest.mark.parametrize("hostile", ["\x1b[2J", "\x9b31m", "\u202e", "\u2028", "\x7f", "\U000e0001", "\r\n"])
def test_nothing_in_a_line_acts(hostile: str) -> None:
    before = message(f"a{hostile}b ü 漢 🙂".encode(), routing_key=hostile, queue=hostile)

    line = written(before)

    assert line[:-1].decode().isprintable()
    assert "ü 漢 🙂" in line.decode()
    assert decode_dead_letter(line, 1) == before


@pytest.mark.parametrize("full", [True, False])
def test_a_message_whose_properties_cannot_be_read_is_written_and_not_read_back(full: bool) -> None:
    unreadable = message(raw=b"\xff\xff\x01")
    line = encode_dead_letter(unreadable, letter_of(unreadable, full=full))

    assert json.loads(line)["unreadable"] is True
    assert base64.b64decode(json.loads(line)["properties"]) == b"\xff\xff\x01"
    with pytest.raises(LetterError, match='line 3: "properties" are none that AMQP knows'):
        decode_dead_letter(line, 3)


def test_queue_and_id_may_be_missing() -> None:
    found = decode_dead_letter(fields(queue=None, id=None), 1)

    assert (found.queue, found.id) == ("", "")


# Redacted --------------------------------------------------------------------------------------------------

SECRET = "hunter2hunter2"


@pytest.mark.parametrize(
    "body",
    [
        json.dumps({"user": {"password": SECRET}, "price": 1}).encode(),
        f"user=ann password={SECRET}".encode(),
        b"\xff\x00 password=" + SECRET.encode(),
    ],
)
def test_a_redacted_line_does_not_hold_the_secret_in_any_form(body: bytes) -> None:
    raw = patch_properties(ORDER.encode(), set_headers={b"x-token": b"S\x00\x00\x00\x0e" + SECRET.encode()})

    line = json.loads(written(message(body, raw), redaction=REDACTION))

    everything = json.dumps(line) + base64.b64decode(line.get("body_base64", "")).decode("latin-1")
    assert SECRET not in everything
    assert line["redacted"] is True
    assert line["headers"]["x-token"] == REDACTED
    assert "properties" not in line


def test_what_is_no_secret_stays_in_a_redacted_line() -> None:
    line = json.loads(written(message(b'{"price":1.10,"token":"a","card":4111111111111111}'), redaction=REDACTION))

    assert line["body"] == f'{{"price":1.10,"token":"{REDACTED}","card":"{REDACTED}"}}'
    assert (line["queue"], line["routing_key"], line["reason"]) == ("q.orders.dlq", "q.orders", "exhausted")


def test_a_card_number_is_hidden_wherever_it_stands() -> None:
    assert "4111111111111111" not in written(message(b'[{"n":4111111111111111}]'), redaction=REDACTION).decode()


def test_a_redacted_line_is_not_read_back() -> None:
    with pytest.raises(LetterError, match="line 9: it was redacted when it was exported"):
        decode_dead_letter(written(message(), redaction=REDACTION), 9)


# Refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b"", "it is no JSON"),
        (b'{"format":1', "it is no JSON"),
        (b"\xff", "it is no JSON"),
        (b"[" * 100_000, "it is no JSON"),
        (b'"text"', "a message is a JSON object, and this is str"),
        (b"{}", 'there is no "format"'),
        (fields(format=2), "it is of format 2, and this version knows 1: use a newer Redrive"),
        (fields(format="1"), '"format" must be 1'),
        (fields(format=True), '"format" must be 1'),
        (fields(format=0), '"format" must be 1'),
        (fields(exchange=None), 'there is neither "exchange" nor "exchange_base64"'),
        (fields(routing_key=7), '"routing_key" must be text'),
        (fields(routing_key="ü" * 128), '"routing_key" has 256 bytes; AMQP carries at most 255'),
        (fields(exchange=None, exchange_base64="/" * 344), '"exchange" has 258 bytes'),
        (fields(properties=None), 'there is no "properties"'),
        (fields(properties="AA"), '"properties" is no base64'),
        (fields(properties="AAA ="), '"properties" is no base64'),
        (fields(properties="ü"), '"properties" is no base64'),
        (fields(properties="/////w=="), '"properties" are none that AMQP knows'),
        (fields(properties=""), '"properties" are none that AMQP knows: the property flags are cut short'),
        (fields(body=None), 'there is neither "body" nor "body_base64"'),
        (fields(body_base64=""), 'there are both "body" and "body_base64"'),
        (fields(body={"id": 42}), '"body" must be text'),
        (fields(body=None, body_base64="!"), '"body_base64" is no base64'),
        (fields(id=1), '"id" must be text'),
    ],
)
def test_a_line_that_is_no_message_says_why(line: bytes, problem: str) -> None:
    with pytest.raises(LetterError) as caught:
        decode_dead_letter(line, 12)

    assert caught.value.line == 12
    assert str(caught.value).startswith("line 12: ")
    assert problem in str(caught.value)


def test_an_error_survives_a_process_boundary() -> None:
    assert str(pickle.loads(pickle.dumps(LetterError(3, "no")))) == "line 3: no"


@given(st.binary())
def test_whatever_a_line_is_it_is_a_message_or_an_error(line: bytes) -> None:
    with pytest.raises(LetterError):
        decode_dead_letter(line, 1)
