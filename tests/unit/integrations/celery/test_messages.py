"""A copy of what kombu decoded is what the publisher sent."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from kombu.compression import compress
from kombu.message import Message

from redrive.integrations.celery.messages import body_of, plain, properties_of, restore_nulls
from redrive.wire.properties import decode_properties


def message(body: Any = b"[]", encoding: str | None = "utf-8", **headers: Any) -> Message:
    properties = {"correlation_id": "t-1", "delivery_mode": 2, "priority": 0, "reply_to": ""}
    return Message(
        body, content_type="application/json", content_encoding=encoding, headers=headers, properties=properties
    )


@pytest.mark.parametrize(
    ("body", "encoding", "raw"),
    [
        ("größe", "utf-8", "größe".encode()),
        ("größe", "latin-1", "größe".encode("latin-1")),
        (b"\x80\xff", "utf-8", b"\x80\xff"),
        (memoryview(b"abc"), "binary", b"abc"),
        (None, None, b""),
    ],
)
def test_a_body_is_the_bytes_it_was(body: Any, encoding: str | None, raw: bytes) -> None:
    assert body_of(message(body, encoding)) == raw


def test_a_body_that_was_compressed_is_compressed_again() -> None:
    packed, kind = compress(b"[[1], {}, {}]", "gzip")
    came = message(packed, "utf-8", compression=kind)
    assert came.body == b"[[1], {}, {}]"

    assert message(body_of(came), "utf-8", compression=kind).body == came.body
    assert body_of(came) == packed


def test_properties_are_those_it_came_with() -> None:
    found = decode_properties(properties_of(message(task="add", id="t-1", timelimit=[None, None])).encode())

    assert (found.content_type, found.content_encoding) == ("application/json", "utf-8")
    assert (found.correlation_id, found.delivery_mode, found.priority, found.reply_to) == ("t-1", 2, 0, "")
    assert found.headers == {"task": "add", "id": "t-1", "timelimit": [None, None]}


def test_values_are_those_that_amqp_knows() -> None:
    naive = datetime(2024, 5, 17, 12)  # noqa: DTZ001 - as py-amqp gives it

    assert plain({"at": naive, "in": ({1}, bytearray(b"x"))}) == {"at": naive.replace(tzinfo=UTC), "in": [[1], b"x"]}
    assert plain(object) == "<class 'object'>"


def test_null_headers_that_the_management_api_returned_as_undefined_are_null_again() -> None:
    nullable = dict.fromkeys(
        (
            "shadow", "eta", "expires", "group", "group_index", "root_id", "parent_id", "ignore_result",
            "stamped_headers",
        ),
        "undefined",
    )  # fmt: skip
    headers = {**nullable, "task": "add", "timelimit": ["undefined", 30]}

    restore_nulls(headers)

    assert headers == {**dict.fromkeys(nullable), "task": "add", "timelimit": [None, 30]}


def test_headers_that_are_never_null_or_not_celerys_keep_the_text_undefined() -> None:
    kept = {
        "task": "undefined", "id": "undefined", "argsrepr": "undefined", "x-tenant": "undefined", "retries": 0,
        "stamps": {"tenant": "undefined"}, "eta": "2026-11-18T08:00:00+00:00", "timelimit": None, "group": b"undefined",
    }  # fmt: skip
    headers = dict(kept)

    restore_nulls(headers)

    assert headers == kept
