"""Bodies as values: JSON unless the message says otherwise, and the type that the handler asks for.

A body that does not decode, or does not fit the type, is `Malformed`: it will not be better next time.
"""

from __future__ import annotations

import typing
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

import msgspec

from redrive.errors import ConfigurationError

Decode: TypeAlias = "Callable[[bytes], Any]"
JSON = "application/json"
MSGPACK = "application/msgpack"
TEXT = "text/plain"
BYTES = "application/octet-stream"


class Malformed(Exception):
    """A body that its handler cannot get: not decodable, or not what the handler's type says."""


class Codec(Protocol):
    """Makes values of bytes, and bytes of values, for one content type."""

    def decoder(self, wanted: Any) -> Decode:
        """Return a function that makes a value of the wanted type from bytes."""

    def encode(self, value: Any) -> bytes:
        """Return the bytes of a value."""


class JsonCodec:
    def decoder(self, wanted: Any) -> Decode:
        if (validate := getattr(wanted, "model_validate_json", None)) is not None:  # pydantic
            return typing.cast(Decode, validate)
        return msgspec.json.Decoder(wanted).decode

    def encode(self, value: Any) -> bytes:
        if (dump := getattr(value, "model_dump_json", None)) is not None:
            return str(dump()).encode()
        return msgspec.json.encode(value)


class MsgpackCodec:
    def decoder(self, wanted: Any) -> Decode:
        if (validate := getattr(wanted, "model_validate", None)) is not None:
            return lambda body: validate(msgspec.msgpack.decode(body))
        return msgspec.msgpack.Decoder(wanted).decode

    def encode(self, value: Any) -> bytes:
        if (dump := getattr(value, "model_dump", None)) is not None:
            return msgspec.msgpack.encode(dump())
        return msgspec.msgpack.encode(value)


class TextCodec:
    def decoder(self, wanted: Any) -> Decode:
        return lambda body: msgspec.convert(body.decode(), wanted, strict=False)

    def encode(self, value: Any) -> bytes:
        return str(value).encode()


class Codecs:
    """Codecs by content type; parameters like `; charset=utf-8` do not count."""

    def __init__(self, more: typing.Mapping[str, Codec] | None = None) -> None:
        json: Codec = JsonCodec()
        self._by_type: dict[str, Codec] = {
            JSON: json,
            "text/json": json,
            MSGPACK: MsgpackCodec(),
            "application/x-msgpack": MsgpackCodec(),
            TEXT: TextCodec(),
            **(more or {}),
        }

    def codec(self, content_type: str) -> Codec | None:
        """An `application/...+json` is JSON."""
        plain = content_type.partition(";")[0].strip().lower()
        return self._by_type.get(plain) or (self._by_type[JSON] if plain.endswith("+json") else None)

    def reader(self, wanted: Any) -> BodyReader:
        return BodyReader(self, wanted)

    def encode(self, value: Any, content_type: str | None) -> tuple[bytes, str]:
        """A value as bytes, and the content type to say so. Bytes and text are what they are."""
        if isinstance(value, bytes | bytearray | memoryview):
            return bytes(value), content_type or BYTES
        if isinstance(value, str) and content_type in (None, TEXT):
            return value.encode(), content_type or TEXT
        codec = self.codec(content_type or JSON)
        if codec is None:
            raise ConfigurationError(f"nothing is known that writes {content_type}: App(codecs=...) can teach it")
        try:
            return codec.encode(value), content_type or JSON
        except (TypeError, ValueError, msgspec.MsgspecError) as error:
            raise ConfigurationError(
                f"{type(value).__name__} cannot be written as {content_type or JSON}: {error}"
            ) from error


class BodyReader:
    """Reads bodies as one type. What it takes to do so is made once for each content type."""

    def __init__(self, codecs: Codecs, wanted: Any) -> None:
        self._codecs = codecs
        self._wanted = wanted
        self._decoders: dict[bytes, Decode] = {}
        if wanted is not bytes:
            self._decoders[b""] = self._decoder(JSON)  # now: a type that cannot be decoded is the programmer's mistake

    def read(self, body: bytes, raw_properties: bytes) -> Any:
        if self._wanted is bytes:
            return body
        content_type = raw_content_type(raw_properties)
        try:
            decode = self._decoders.get(content_type) or self._learn(content_type)
            return decode(body)
        except Exception as error:
            raise Malformed(f"{type(error).__name__}: {error}") from error

    def _learn(self, content_type: bytes) -> Decode:
        decode = self._decoder(content_type.decode("utf-8", "replace"))
        if len(self._decoders) < 64:  # content types come from strangers
            self._decoders[content_type] = decode
        return decode

    def _decoder(self, content_type: str) -> Decode:
        if self._wanted is str:
            return lambda body: body.decode()
        plain = content_type.partition(";")[0].strip().lower()
        codec = self._codecs.codec(plain) or (self._codecs.codec(JSON) if plain == BYTES else None)
        if codec is None:
            return _unreadable(content_type)
        try:
            return codec.decoder(self._wanted)
        except TypeError as error:
            raise ConfigurationError(f"{self._wanted!r} is no type that a body can be read as: {error}") from None


def _unreadable(content_type: str) -> Decode:
    def decode(body: bytes) -> Any:  # noqa: ARG001 - it is not even looked at
        raise Malformed(f"nothing is known that reads {content_type}")

    return decode


def raw_content_type(raw_properties: bytes) -> bytes:
    """The content type as it lies on the wire, where it is the first property; nothing if there is none."""
    if len(raw_properties) < 3 or not raw_properties[0] & 0x80:
        return b""
    return raw_properties[3 : 3 + raw_properties[2]]
