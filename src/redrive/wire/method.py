"""A method is declared once, as a class with annotated fields; its codec is compiled from the declaration.

    @method(50, 40, sender=CLIENT, replies="queue.delete-ok")
    class QueueDelete(Method):
        ticket: Short = 0
        queue: ShortStr = ""
        if_unused: Bit = False
        if_empty: Bit = False
        no_wait: Bit = False

Consecutive bits share octets, low bit first (section 4.2.5.2). What follows the last field is a
FRAME_ERROR, as in RabbitMQ: a method that is longer than it should be was not understood.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from enum import Enum
from itertools import groupby
from struct import Struct
from typing import Any, ClassVar, TypeVar, dataclass_transform

from redrive.errors import EncodingError
from redrive.wire.argument_types import BIT, ArgumentType
from redrive.wire.values import malformed_error


class Sender(Enum):
    """Who may send a method."""

    CLIENT = "client"
    SERVER = "server"
    EITHER = "either"


_ID = Struct(">HH")


class Method:
    """The common face of every AMQP method."""

    __slots__ = ()

    id: ClassVar[tuple[int, int]]
    name: ClassVar[str]  # as the specification writes it: "queue.declare-ok"
    sender: ClassVar[Sender]
    has_content: ClassVar[bool]  # followed by a header frame and body frames
    replies: ClassVar[tuple[str, ...]]  # names of the methods that answer it
    _prefix: ClassVar[bytes]
    _parts: ClassVar[tuple[_Part, ...]]

    def encode(self) -> bytes:
        """The payload of a method frame."""
        return self._prefix + b"".join(part.write(self) for part in self._parts)


@dataclass(frozen=True, slots=True)
class _Part:
    """One field, or a run of bits."""

    write: Callable[[Method], bytes]
    read: Callable[[bytes, int, int], tuple[dict[str, Any], int]]


METHODS: dict[bytes, type[Method]] = {}
"""Every declared method by the four bytes that open its frame's payload."""

HOT: dict[bytes, Callable[[bytes], Method | None]] = {}
"""Hand-written readers for what comes with every message; None when there is anything to complain about."""

_M = TypeVar("_M", bound=type)


@dataclass_transform(frozen_default=True, kw_only_default=True)
def method(
    class_id: int,
    method_id: int,
    *,
    sender: Sender,
    replies: str | tuple[str, ...] = (),
    content: bool = False,
) -> Callable[[_M], _M]:
    def declare(declared: _M) -> _M:
        cls: Any = dataclass(frozen=True, slots=True, kw_only=True)(declared)
        cls.id = (class_id, method_id)
        cls.name = _specification_name(cls.__name__)
        cls.sender = sender
        cls.has_content = content
        cls.replies = (replies,) if isinstance(replies, str) else replies
        cls._prefix = _ID.pack(class_id, method_id)
        cls._parts = tuple(_compile(cls))
        METHODS[cls._prefix] = cls
        return cls  # type: ignore[no-any-return]

    return declare


def decode_method(payload: bytes) -> Method:
    """The method in a method frame's payload. The caller has found its class in `METHODS`."""
    if (quick := HOT.get(payload[:4])) is not None and (found := quick(payload)) is not None:
        return found
    return decode_declared(payload)


def decode_declared(payload: bytes) -> Method:
    """`decode_method` by the declaration alone."""
    cls = METHODS[payload[:4]]
    pos, end = 4, len(payload)
    values: dict[str, Any] = {}
    for part in cls._parts:
        found, pos = part.read(payload, pos, end)
        values |= found
    if pos != end:
        raise malformed_error(f"{end - pos} bytes after the end of {cls.name}")
    return cls(**values)


def _specification_name(class_name: str) -> str:
    """QueueDeclareOk -> queue.declare-ok"""
    first, *rest = re.findall("[A-Z][a-z]*", class_name)
    return f"{first}.{'-'.join(rest)}".lower()


def _compile(cls: type[Any]) -> Iterator[_Part]:
    annotations = vars(sys.modules[cls.__module__])
    kinds = [(field.name, annotations[str(field.type)].__metadata__[0]) for field in fields(cls)]
    for is_bits, run in groupby(kinds, key=lambda named: named[1] is BIT):
        if is_bits:
            yield _bits([name for name, _ in run])
        else:
            yield from (_field(cls.name, name, kind) for name, kind in run)


def _field(method_name: str, name: str, kind: ArgumentType) -> _Part:
    def write(source: Method) -> bytes:
        try:
            return kind.write(getattr(source, name))
        except EncodingError as error:
            raise EncodingError(f"{method_name}, {name}: {error}") from None

    def read(data: bytes, pos: int, end: int) -> tuple[dict[str, Any], int]:
        value, pos = kind.read(data, pos, end)
        return {name: value}, pos

    return _Part(write, read)


def _bits(names: list[str]) -> _Part:
    size = (len(names) + 7) // 8

    def write(source: Method) -> bytes:
        packed = sum(1 << position for position, name in enumerate(names) if getattr(source, name))
        return packed.to_bytes(size, "little")

    def read(data: bytes, pos: int, end: int) -> tuple[dict[str, Any], int]:
        if end - pos < size:
            raise malformed_error("the bits of a method are cut short")
        packed = int.from_bytes(data[pos : pos + size], "little")
        return {name: bool(packed >> position & 1) for position, name in enumerate(names)}, pos + size

    return _Part(write, read)
