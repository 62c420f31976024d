"""Outbox rows, read one by one, whatever SQL has written into them.

`Outbox.add` checks what it writes. An `INSERT` of an application's own does not, and neither does the database: SQLite
stores any value in any column, PostgreSQL has times that Python has not, and the table may be the application's own,
with columns that may be NULL. One row that cannot be read or encoded must not stop the others: such a row has an
`error` and is never sent, and the relay marks it as failed.

So the database returns only values that cannot fail on the way: `readable` selects a time as a number or as text, and
`any_text` keeps the bytes of SQLite's text that are not UTF-8 as surrogate escapes. Everything else is decided here,
for each row alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import sqlalchemy as sa

from redrive.database.types import storable
from redrive.errors import EncodingError
from redrive.wire.properties import PERSISTENT, Properties

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MOST_SHOWN = 1000  # characters of a column in a list: no valid one has more
_WHERE_NULL = {"message_id": "", "exchange": "", "routing_key": "", "attempts": 0}  # in a table of an application's own


@dataclass(frozen=True, slots=True)
class OutboxRow:
    id: int
    message_id: str
    exchange: str
    routing_key: str
    body: bytes
    properties: bytes  # as they lie on the wire
    ordering_key: str | None
    attempts: int
    error: str | None = None  # why it cannot be published; the other columns are then empty
    mark: bytes | None = None  # SQLite: the message id's bytes, to recognise the row


class Unreadable(Exception):
    """A column of a row holds a value that no message can have."""


# Selecting ----------------------------------------------------------------------------------------


def readable(column: sa.Column[Any], *, postgresql: bool) -> sa.ColumnElement[Any]:
    """Return the column as an expression whose every value can be fetched."""
    if postgresql:  # psycopg raises for infinity, for years before 1 and after 9999
        return sa.extract("epoch", column).label(column.key) if isinstance(column.type, sa.DateTime) else column
    if isinstance(column.type, sa.DateTime):
        return sa.type_coerce(column, sa.String).label(column.key)
    if isinstance(column.type, sa.LargeBinary | sa.Integer) and not column.primary_key:
        return sa.cast(column, column.type).label(column.key)
    return column


def mark(message_id: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
    """Return the bytes of a message id, which can be compared also where it is not text."""
    return sa.cast(message_id, sa.LargeBinary)


@contextmanager
def any_text(connection: sa.Connection) -> Iterator[sa.Connection]:
    """Let a connection to SQLite return text that is not UTF-8, with its bytes as surrogate escapes."""
    driver: Any = connection.connection.driver_connection
    driver.text_factory = lambda raw: raw.decode("utf-8", "surrogateescape")
    try:
        yield connection
    finally:
        driver.text_factory = str


def is_storable(key: object) -> bool:
    """Return whether an ordering key can be used in another statement."""
    return not isinstance(key, str) or _is_utf8(key)


# Reading ------------------------------------------------------------------------------------------


def read_row(found: Mapping[Any, Any]) -> OutboxRow:
    """Return the row, with an error instead of its contents if it cannot be published."""
    try:
        return _read_row(found)
    except (Unreadable, EncodingError) as error:
        why = str(error)
    except Exception as error:  # unforeseen: still this row's alone
        why = f"cannot be read: {type(error).__name__}: {error}"
    return OutboxRow(found["id"], "", "", "", b"", b"", None, found["attempts"] or 0, why, found.get("mark"))


def _read_row(found: Mapping[Any, Any]) -> OutboxRow:
    message_id, properties = _text(found, "message_id"), found["properties"]
    if found["body"] is None:
        raise Unreadable("body is NULL")
    if not is_storable(found["ordering_key"]):
        raise Unreadable(f"ordering_key is not UTF-8: {_printable(found['ordering_key'])}")
    return OutboxRow(
        found["id"],
        message_id,
        _text(found, "exchange"),
        _text(found, "routing_key"),
        bytes(found["body"]),
        bytes(properties) if properties is not None else _plain_properties(message_id, found["created_at"]),
        found["ordering_key"],
        found["attempts"] or 0,
        mark=found.get("mark"),
    )


def _text(found: Mapping[Any, Any], column: str) -> str:
    value = found[column]
    if value is None:
        raise Unreadable(f"{column} is NULL")
    if not isinstance(value, str):
        raise Unreadable(f"{column} is {type(value).__name__}, want text: {_printable(value)}")
    if not _is_utf8(value):
        raise Unreadable(f"{column} is not UTF-8: {_printable(value)}")
    return value


def _plain_properties(message_id: str, created_at: object) -> bytes:
    """Return the properties of a JSON message, as SQL alone can write it."""
    try:
        moment = read_moment(created_at)
    except ValueError as error:
        raise Unreadable(f"created_at {error}") from None
    if moment is not None and moment < _EPOCH:
        raise Unreadable(f"created_at is {moment:%Y-%m-%d}, and a message's timestamp begins in 1970")
    if len(message_id.encode()) > 255:
        raise Unreadable(f"message_id {message_id[:40]!r}… has {len(message_id.encode())} bytes; at most 255 fit")
    return Properties(
        content_type="application/json",
        delivery_mode=PERSISTENT,
        message_id=message_id,
        correlation_id=message_id,
        timestamp=moment,
    ).encode()


def read_moment(value: object) -> datetime | None:
    """Return a time as `readable` selects it: seconds since 1970, or text. Raise ValueError if it is none."""
    if value is None:
        return None
    try:
        match value:
            case int() | float() | Decimal():
                return _EPOCH + timedelta(microseconds=int(value * 1_000_000))
            case str():
                moment = datetime.fromisoformat(value)
                return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        pass
    raise ValueError(f"is not a time between year 1 and 9999: {_printable(value)}")


def displayed_row(found: Mapping[Any, Any], times: set[str]) -> dict[str, Any]:
    """Return a row for people: text that can be printed, and None for a time that is none."""
    return {
        name: displayed_moment(value) if name in times else _displayed_value(name, value)
        for name, value in found.items()
    }


def displayed_moment(value: object) -> datetime | None:
    try:
        return read_moment(value)
    except ValueError:
        return None


def _displayed_value(name: str, value: object) -> object:
    if value is None:
        return _WHERE_NULL.get(name)
    return _printable(value) if isinstance(value, str | bytes | memoryview) else value


def _printable(value: object) -> str:
    match value:
        case bytes() | memoryview():
            text = bytes(value).decode("utf-8", "backslashreplace")
        case str():
            text = value.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
        case _:
            text = str(value)
    return storable(text, _MOST_SHOWN)


def _is_utf8(text: str) -> bool:
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)
