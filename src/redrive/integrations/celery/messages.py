"""A message as Celery has it, and as it is on the wire.

kombu decodes what it gets: headers are Python values, a body with an encoding is text, and a compressed one is not
compressed any more. A copy of it is what the publisher sent, so all of that is done backwards.

RabbitMQ's management API returns a null header as the text "undefined". A dead task that an operator gets and publishes
again with the management UI or `rabbitmqadmin` has that text in its headers, and Celery rejects it as invalid.
`restore_nulls` undoes that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from kombu.compression import compress

from redrive.wire.properties import Properties

_PLAIN = ("priority", "delivery_mode", "correlation_id", "reply_to", "expiration", "message_id", "type", "app_id")
_OTHERS = ("user_id", "cluster_id", "timestamp")

# Headers of Celery's protocol that may be null, and in which the text "undefined" has no other meaning.
_NULLABLE = {
    *("shadow", "eta", "expires", "group", "group_index", "timelimit", "root_id", "parent_id"),
    *("ignore_result", "stamped_headers"),
}


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


def restore_nulls(headers: dict[str, Any]) -> None:
    """Set Celery's own headers to null where RabbitMQ's management API made the text "undefined" of it."""
    for name in _NULLABLE & headers.keys():
        match headers[name]:
            case "undefined":
                headers[name] = None
            case list() as values:  # `timelimit`
                headers[name] = [None if one == "undefined" else one for one in values]


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
