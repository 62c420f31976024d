"""Dead letters as text: one JSON object a line (NDJSON), for people, for `jq`, and for the way back.

    format                       1. A reader refuses a number it does not know
    queue, position, id, …       what the message tells about itself, for people and scripts. Not read back, but for
                                 the queue and the id, by which messages are named
    headers                      for people, too: what JSON has no word for is text here
    exchange, routing_key        as the message was delivered
    properties                   its properties byte for byte as they were on the wire, base64
    body                         if it is UTF-8, which comes out byte for byte

What is not UTF-8 stands under its name with `_base64` behind it instead. So everything that a message is comes back
exactly, also after somebody has changed the text of a `body` by hand.

A line can be printed: characters that a terminal obeys, or that show another text than is there, are escapes in it. It
can be redacted (`redrive.deadletters.redaction`). Then it holds no `properties`, since they contain the secrets; it is
marked as redacted, and no message is ever made of it.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from math import isfinite
from typing import NoReturn, Protocol

import msgspec

from redrive.deadletters.dead_letter import DeadLetter, Summary
from redrive.deadletters.hidden_secrets import hide_body
from redrive.deadletters.redaction import Redaction, redact
from redrive.errors import LetterError, RemoteProtocolError
from redrive.text import printable_json
from redrive.wire.properties import decode_properties
from redrive.wire.raw_properties import check_properties
from redrive.wire.values import brief_repr

FORMAT = 1
LONGEST_NAME = 255  # bytes, of an exchange and of a routing key

_RENAMED = {"exchange": "published_exchange", "routing_key": "published_routing_key"}
_READABLE = [name for name in Summary.__struct_fields__ if name not in ("queue", "named", "deaths", *_RENAMED)]


class Delivered(Protocol):
    """What is needed of a delivery."""

    @property
    def exchange(self) -> str: ...
    @property
    def routing_key(self) -> str: ...
    @property
    def raw_properties(self) -> bytes: ...
    @property
    def body(self) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Exported:
    """A message out of a line. It can be encoded again: it is a delivery in all that matters."""

    exchange: str
    routing_key: str
    raw_properties: bytes
    body: bytes
    queue: str = ""  # in which it was, if the line says so
    id: str = ""


# Writing ----------------------------------------------------------------------------------------------


def encode_dead_letter(delivery: Delivered, dead_letter: Summary, *, redaction: Redaction | None = None) -> bytes:
    """The line, with its line break."""
    line: dict[str, object] = {"format": FORMAT, **({} if redaction is None else {"redacted": True})}
    line |= _exact_name("queue", dead_letter.queue)
    told = {name: _readable(getattr(dead_letter, name)) for name in _READABLE}
    told |= {name: _readable(getattr(dead_letter, field)) for field, name in _RENAMED.items()}
    told["headers"] = _readable(_headers(delivery, dead_letter))
    line |= told if redaction is None else _redact(told, redaction)
    line |= _exact_name("exchange", delivery.exchange) | _exact_name("routing_key", delivery.routing_key)
    if redaction is None:
        line["properties"] = b64encode(delivery.raw_properties).decode()
    line |= _exact("body", delivery.body if redaction is None else _redact_body(delivery, redaction))
    return printable_json(msgspec.json.encode(line).decode()).encode() + b"\n"


def _exact(name: str, data: bytes) -> dict[str, object]:
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": b64encode(data).decode()}


def _exact_name(name: str, value: str) -> dict[str, object]:
    return _exact(name, value.encode("utf-8", "surrogateescape"))


def _headers(delivery: Delivered, dead_letter: Summary) -> Mapping[str, object] | None:
    if isinstance(dead_letter, DeadLetter):
        return dead_letter.headers
    try:
        return decode_properties(delivery.raw_properties).headers
    except RemoteProtocolError:
        return None


def _redact_body(delivery: Delivered, redaction: Redaction) -> bytes:
    try:
        properties = decode_properties(delivery.raw_properties)
    except RemoteProtocolError:
        return hide_body(delivery.body, None, redaction)
    encoding = properties.content_encoding
    return hide_body(delivery.body, properties.content_type, redaction, content_encoding=encoding)


def _readable(value: object) -> object:
    """For people: what JSON cannot say is said in text."""
    match value:
        case str():
            return value.encode("utf-8", "backslashreplace").decode()
        case bool() | None:
            return value
        case float() if isfinite(value):
            return value
        case int():
            return int(value)
        case datetime():
            return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
        case bytes() | bytearray():
            return b64encode(value).decode()
        case Mapping():
            return {str(_readable(name)): _readable(each) for name, each in value.items()}
        case list() | tuple():
            return [_readable(each) for each in value]
        case Decimal() | float():
            return str(value)
        case _:
            return brief_repr(value)


def _redact(told: dict[str, object], redaction: Redaction) -> dict[str, object]:
    hidden = redact(told, redaction)
    assert isinstance(hidden, dict)
    return hidden


# Reading ----------------------------------------------------------------------------------------------


def decode_dead_letter(line: bytes, number: int) -> Exported:
    """The message in a line, or LetterError."""
    try:
        found = msgspec.json.decode(line)
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise LetterError(number, f"it is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise LetterError(number, f"a message is a JSON object, and this is {type(found).__name__}")
    fields = _Fields(found, number)
    fields.check_format()
    return Exported(
        exchange=fields.name("exchange"),
        routing_key=fields.name("routing_key"),
        raw_properties=fields.properties(),
        body=fields.exact("body"),
        queue=fields.name("queue") if {"queue", "queue_base64"} & found.keys() else "",
        id=fields.text("id") if "id" in found else "",
    )


class _Fields:
    """The fields of one line, each checked when it is taken."""

    def __init__(self, fields: Mapping[str, object], line: int) -> None:
        self._fields = fields
        self._line = line

    def check_format(self) -> None:
        match self._fields.get("format"):
            case bool():
                self._refuse(f'"format" must be {FORMAT}')
            case int(version) if version > FORMAT:
                self._refuse(f"it is of format {version}, and this version knows {FORMAT}: use a newer Redrive")
            case version if version != FORMAT:
                self._refuse(f'"format" must be {FORMAT}' if "format" in self._fields else 'there is no "format"')
        if self._fields.get("redacted"):
            self._refuse("it was redacted when it was exported: what it hides is not in it. Export it in full")

    def text(self, name: str) -> str:
        value = self._fields.get(name)
        if not isinstance(value, str):
            self._refuse(f'"{name}" must be text' if name in self._fields else f'there is no "{name}"')
        return value

    def exact(self, name: str) -> bytes:
        plain, packed = name in self._fields, f"{name}_base64" in self._fields
        if plain and packed:
            self._refuse(f'there are both "{name}" and "{name}_base64": which one counts?')
        if not plain and not packed:
            self._refuse(f'there is neither "{name}" nor "{name}_base64"')
        return self.text(name).encode() if plain else self._base64(f"{name}_base64")

    def name(self, name: str) -> str:
        data = self.exact(name)
        if len(data) > LONGEST_NAME:
            self._refuse(f'"{name}" has {len(data)} bytes; AMQP carries at most {LONGEST_NAME}')
        return data.decode("utf-8", "surrogateescape")

    def properties(self) -> bytes:
        raw = self._base64("properties")
        try:
            check_properties(raw)
        except RemoteProtocolError as error:
            self._refuse(f'"properties" are none that AMQP knows: {error.text}')
        return raw

    def _base64(self, name: str) -> bytes:
        text = self.text(name)
        try:
            return b64decode(text, validate=True)
        except (Base64Error, ValueError) as error:
            self._refuse(f'"{name}" is no base64: {error}')

    def _refuse(self, why: str) -> NoReturn:
        raise LetterError(self._line, why)
