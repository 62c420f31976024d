"""Read header values from their bytes: names, labels, numbers, times, tables. Any producer can write them.

Nothing here raises. A value of another type than expected, or one that cannot be read, is as good as missing; texts are
truncated and printable. The same few names and labels are in a hundred thousand messages, so each is decoded once and
cached. Long ones are not: producers choose them, and a cache of them has no bound.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache

from redrive.errors import RemoteProtocolError
from redrive.recovery.history import read_count, read_moment, read_name, read_text
from redrive.text import truncate
from redrive.wire.property_scan import skim_table
from redrive.wire.raw_properties import RawValue, split_array
from redrive.wire.values import FieldValue, read_value

MOST_CACHED = 256  # bytes

_MOST_LABEL = 200  # characters
_TEXT = b"Sx"
_STRING = _TEXT[0]


def name_in(raw: RawValue | None) -> str | None:
    """Return the name of a queue, exchange or key; None if it is none."""
    if raw is None or len(raw) > MOST_CACHED + 5:  # longer than any name
        return None
    return _cached_name(raw)


def label_in(raw: RawValue | None) -> str:
    """Return a short text; "" if there is none."""
    if raw is None:
        return ""
    return _cached_label(raw) if len(raw) <= MOST_CACHED else _cached_label.__wrapped__(raw)


def number_in(raw: RawValue | None) -> int:
    """Return a count; 0 if it is none."""
    if raw is None:
        return 0
    return _cached_number(raw) if len(raw) <= MOST_CACHED else read_count(value_of(raw))


def first_key_in(raw: RawValue | None) -> str | None:
    """Return the first of a list of routing keys."""
    if raw is None:
        return None
    return _cached_key(raw) if len(raw) <= MOST_CACHED else _cached_key.__wrapped__(raw)


def message_in(raw: RawValue | None) -> str:
    """Return an error message: what `label_in` returns, without its cache, since two are seldom the same."""
    if raw is None or raw[0] not in _TEXT:
        return ""
    return truncate(raw[5 : 5 + 4 * _MOST_LABEL + 4].decode("utf-8", "replace"), _MOST_LABEL)


def moment_in(raw: RawValue | None) -> datetime | None:
    """Return a time in UTC, written as text or as a timestamp."""
    if raw is None:
        return None
    if raw[0] == _STRING and len(raw) <= MOST_CACHED:  # as we write it, which is read without further ado
        return read_moment(raw[5:].decode("utf-8", "replace"))
    return read_moment(value_of(raw))


def short_text(raw: bytes | None) -> str | None:
    """Return a property of at most 255 characters."""
    return None if raw is None else truncate(raw.decode("utf-8", "surrogateescape"), 255)


@lru_cache(2048)
def _cached_name(raw: RawValue) -> str | None:
    return read_name(value_of(raw))


@lru_cache(2048)
def _cached_label(raw: RawValue) -> str:
    return truncate(read_text(value_of(raw)), _MOST_LABEL)


@lru_cache(2048)
def _cached_number(raw: RawValue) -> int:
    return read_count(value_of(raw))


@lru_cache(2048)
def _cached_key(raw: RawValue) -> str | None:
    keys = value_of(raw)
    return read_name(keys[0]) if isinstance(keys, list) and keys else None


def stack_in(value: object) -> str:
    """Return a stack trace in full, from a decoded value."""
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    return truncate(value, len(value)) if isinstance(value, str) else ""


def value_of(raw: RawValue) -> FieldValue:
    """Return the decoded value; None if it cannot be decoded."""
    try:
        return read_value(raw, 0, len(raw))[0]
    except RemoteProtocolError:
        return None


def tables_in(value: RawValue | None) -> list[RawValue]:
    """Return the tables in an array; none if it is not an array, or cannot be read."""
    if value is None or not value.startswith(b"A"):
        return []
    try:
        return [element for element in split_array(value) if element.startswith(b"F")]
    except RemoteProtocolError:
        return []


def fields_of(table: RawValue) -> Mapping[bytes, RawValue]:
    """Return the fields of a table, undecoded; none if it cannot be read."""
    try:
        return skim_table(table)
    except RemoteProtocolError:
        return {}
