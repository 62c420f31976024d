"""A message as Celery has it, and as it is on the wire.

kombu decodes what it gets: headers are Python values, a body with an encoding is text, and a compressed one is not
compressed any more. A copy of it is what the publisher sent, so all of that is done backwards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from kombu.compression import compress

from redrive.wire.properties import Properties

_PLAIN = ("priority", "delivery_mode", "correlation_id", "reply_to", "expiration", "message_id", "type", "app_id")
_OTHERS = ("user_id", "cluster_id", "timestamp")


def body_of(message: Any) -> bytes:
    body = message.body
    raw = body.encode(message.content_encoding or "utf-8") if isinstance(body, str) else bytes(body or b"")
    compression = (message.headers or {}).get("compression")
    return bytes(compress(raw, compression)[0]) if compression else raw


def properties_of(message: Any) -> Properties:
    told = message.properties or {}
    return Properties(
        content_type=message.content_type,
        content_encoding=message.content_encoding,
        headers=headers_of(message.headers or {}),
        **{name: plain(told[name]) for name in (*_PLAIN, *_OTHERS) if told.get(name) is not None},
    )


def headers_of(headers: Mapping[str, Any]) -> dict[str, Any]:
    """As values that AMQP knows."""
    return {str(name): plain(value) for name, value in headers.items()}


def plain(value: Any) -> Any:
    match value:
        case None | bool() | int() | float() | str() | bytes():
            return value
        case datetime():
            return value.replace(tzinfo=UTC) if value.tzinfo is None else value  # py-amqp's are UTC and do not say so
        case Mapping():
            return headers_of(value)
        case memoryview() | bytearray():
            return bytes(value)
        case Sequence() | set() | frozenset():
            return [plain(one) for one in value]
        case _:
            return str(value)
