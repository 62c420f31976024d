"""The 14 properties of a message (sections 4.2.6.1 and 1.8.3).

On the wire: two octets of flags, high bit first in the order below, then the properties that are present.
`None` is absent, and an empty string is present and empty: the difference survives a round trip. Fourteen
properties leave two bits: one announces more flags and one means nothing. RabbitMQ 3.10 passes messages with
either on as they are, so a reader that refused them would be stopped by one odd message; they are ignored.

Every published message needs a `Properties` and its encoding, and few of the fourteen are ever present. So a
value holds only those, in the order of the wire, and what is absent is the class's own `None`: building and
encoding cost what is there, not what could be.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import lru_cache
from struct import Struct
from typing import Any, ClassVar, TypeAlias

from redrive.errors import EncodingError
from redrive.wire.values import (
    Table,
    brief_repr,
    encode_short_string,
    encode_table,
    encode_timestamp,
    malformed_error,
    read_foreign_string,
    read_table,
    read_timestamp,
)

TRANSIENT = 1
PERSISTENT = 2

_FLAGS = Struct(">H")


@dataclass(frozen=True, init=False, repr=False)
class Properties:
    """What travels with a body. Fields stand in the order of the wire."""

    content_type: str | None = None
    content_encoding: str | None = None
    headers: Table | None = None
    delivery_mode: int | None = None
    priority: int | None = None
    correlation_id: str | None = None
    reply_to: str | None = None
    expiration: str | None = None
    message_id: str | None = None
    timestamp: dt.datetime | int | None = None
    type: str | None = None
    user_id: str | None = None
    app_id: str | None = None
    cluster_id: str | None = None

    _encoded: ClassVar[bytes | None] = None  # an instance that was encoded has its own

    def __init__(
        self,
        *,
        content_type: str | None = None,
        content_encoding: str | None = None,
        headers: Table | None = None,
        delivery_mode: int | None = None,
        priority: int | None = None,
        correlation_id: str | None = None,
        reply_to: str | None = None,
        expiration: str | None = None,
        message_id: str | None = None,
        timestamp: dt.datetime | int | None = None,
        type: str | None = None,
        user_id: str | None = None,
        app_id: str | None = None,
        cluster_id: str | None = None,
    ) -> None:
        present = self.__dict__
        if content_type is not None:
            present["content_type"] = content_type
        if content_encoding is not None:
            present["content_encoding"] = content_encoding
        if headers is not None:
            present["headers"] = headers
        if delivery_mode is not None:
            present["delivery_mode"] = delivery_mode
        if priority is not None:
            present["priority"] = priority
        if correlation_id is not None:
            present["correlation_id"] = correlation_id
        if reply_to is not None:
            present["reply_to"] = reply_to
        if expiration is not None:
            present["expiration"] = expiration
        if message_id is not None:
            present["message_id"] = message_id
        if timestamp is not None:
            present["timestamp"] = timestamp
        if type is not None:
            present["type"] = type
        if user_id is not None:
            present["user_id"] = user_id
        if app_id is not None:
            present["app_id"] = app_id
        if cluster_id is not None:
            present["cluster_id"] = cluster_id

    def encode(self) -> bytes:
        """Encoded once when nothing in it can change: a publisher that reuses a value pays for it once."""
        if self._encoded is not None:
            return self._encoded
        present = self.__dict__.copy()
        present.pop("_encoded", None)  # which another thread may have put there since
        encoded = _encode(present)
        if "headers" not in present:
            self.__dict__["_encoded"] = encoded
        return encoded

    def __repr__(self) -> str:
        present = ((name, getattr(self, name)) for name in _NAMES)
        return f"Properties({', '.join(f'{name}={value!r}' for name, value in present if value is not None)})"


def _write_octet(value: int) -> bytes:
    try:
        return bytes((value,))
    except (TypeError, ValueError):
        raise EncodingError(f"{brief_repr(value)} is not a whole number within 0 and 255") from None


def _read_octet(data: bytes, pos: int, end: int) -> tuple[int, int]:
    if pos >= end:
        raise malformed_error("an octet is missing")
    return data[pos], pos + 1


_Writer: TypeAlias = Callable[[Any], bytes]
_Reader: TypeAlias = Callable[[bytes, int, int], tuple[Any, int]]

_TEXT: tuple[_Writer, _Reader] = (encode_short_string, read_foreign_string)
_OCTET: tuple[_Writer, _Reader] = (_write_octet, _read_octet)
_CODECS: dict[str, tuple[_Writer, _Reader]] = {
    "headers": (encode_table, read_table),
    "delivery_mode": _OCTET,
    "priority": _OCTET,
    "timestamp": (encode_timestamp, read_timestamp),
}
_NAMES = [field.name for field in fields(Properties)]
_FLAG = {name: 1 << (15 - place) for place, name in enumerate(_NAMES)}
_WRITERS = {name: (_FLAG[name], _CODECS.get(name, _TEXT)[0]) for name in _NAMES}
_READERS = {name: (_FLAG[name], _CODECS.get(name, _TEXT)[1]) for name in _NAMES}


def _encode(present: dict[str, Any]) -> bytes:
    flags = 0
    encoded = b""
    for name, value in present.items():
        flag, write = _WRITERS[name]
        flags |= flag
        try:
            encoded += write(value)
        except EncodingError as error:
            raise EncodingError(f"property {name}: {error}") from None
    return _FLAGS.pack(flags) + encoded


@lru_cache(256)
def _readers(flags: int) -> list[tuple[str, _Reader]]:
    """What to read for these flags. A program meets few combinations; a hostile peer cannot make it keep many."""
    return [(name, read) for name, (flag, read) in _READERS.items() if flags & flag]


def decode_properties(raw: bytes) -> Properties:
    """The properties in what follows the body size in a header frame."""
    end = len(raw)
    if end < 2:
        raise malformed_error("the property flags are cut short")
    properties = Properties()
    present = properties.__dict__
    pos = 2
    for name, read in _readers(_FLAGS.unpack_from(raw)[0]):
        present[name], pos = read(raw, pos, end)
    if pos != end:
        raise malformed_error(f"{end - pos} bytes after the last property")
    return properties
