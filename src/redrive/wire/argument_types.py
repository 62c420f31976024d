"""The kinds of argument an AMQP method can have (section 4.2.5), as annotations for `method` declarations.

`ShortStr` is for names that the speaker itself chose: they must be UTF-8, or RabbitMQ answers FRAME_ERROR and
ends the connection. `ForeignStr` is for exchange names and routing keys that travel with a message: RabbitMQ
passes any bytes on, so a client that insisted on UTF-8 would lose its connection to one odd message, again after
every reconnect. `Explanation` is for people: RabbitMQ's quotes names and is cut after 252 bytes, in the middle of
a character if one stands there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from struct import Struct
from struct import error as StructError
from typing import Annotated, Any

from redrive.errors import EncodingError
from redrive.wire import values
from redrive.wire.values import brief_repr, malformed_error


@dataclass(frozen=True, slots=True)
class ArgumentType:
    """How one kind of argument is written and read: `read(data, pos, end)` gives the value and where it ends."""

    name: str
    write: Callable[[Any], bytes]
    read: Callable[[bytes, int, int], tuple[Any, int]]


def _integer(name: str, code: str) -> ArgumentType:
    struct = Struct(">" + code)
    top = (1 << 8 * struct.size) - 1

    def write(value: int) -> bytes:
        try:
            return struct.pack(value)
        except StructError:
            raise EncodingError(f"{brief_repr(value)} is not a whole number within 0 and {top}") from None

    def read(data: bytes, pos: int, end: int) -> tuple[int, int]:
        if end - pos < struct.size:
            raise malformed_error(f"a {name} is cut short")
        return struct.unpack_from(data, pos)[0], pos + struct.size

    return ArgumentType(name, write, read)


_LENGTH = Struct(">I")


def _write_long_string(value: bytes) -> bytes:
    if not isinstance(value, bytes | bytearray):  # not shown: it may be a password
        raise EncodingError(f"a long string must be bytes, not {type(value).__name__}")
    return _LENGTH.pack(len(value)) + value


def _read_long_string(data: bytes, pos: int, end: int) -> tuple[bytes, int]:
    start, stop = values.bounds(data, pos, end, "long string")
    return data[start:stop], stop


# Bits share octets with their neighbours, so `method` packs them itself and this kind only marks them.
BIT = ArgumentType(
    "bit", lambda value: b"\x01" if value else b"\x00", lambda data, pos, _: (bool(data[pos] & 1), pos + 1)
)

Bit = Annotated[bool, BIT]
Octet = Annotated[int, _integer("octet", "B")]
Short = Annotated[int, _integer("short", "H")]
Long = Annotated[int, _integer("long", "I")]
LongLong = Annotated[int, _integer("longlong", "Q")]
ShortStr = Annotated[str, ArgumentType("shortstr", values.encode_name, values.read_short_string)]
ForeignStr = Annotated[str, ArgumentType("shortstr", values.encode_short_string, values.read_foreign_string)]
Explanation = Annotated[str, ArgumentType("shortstr", values.encode_explanation, values.read_explanation)]
LongStr = Annotated[bytes, ArgumentType("longstr", _write_long_string, _read_long_string)]
Arguments = Annotated[values.Table, ArgumentType("table", values.encode_table, values.read_table)]
