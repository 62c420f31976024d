"""Field values as RabbitMQ compares them.

RabbitMQ is written in Erlang, and there a field value is a pair of a type and a term: `I 1` and `l 1` are the same
number with two names. Two values *match* if their terms are the same; two bindings *are* the same if the names are,
too, and so it is for everything inside of an array or table, since its elements are pairs. Hence text matches the
same bytes (both are binaries), `true` matches neither 1 nor "true", and tables match if their fields come in the
same order.

Of a decoded value only the widths of numbers are unknown: `[I 1]` and `[l 1]` are one here, and two in RabbitMQ.
"""

from __future__ import annotations

import datetime as dt
import struct
from collections.abc import Hashable, Mapping
from decimal import Decimal
from typing import TypeAlias

from redrive.wire.values import FieldValue, Table

Term: TypeAlias = Hashable

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_SECOND = dt.timedelta(seconds=1)


def type_name(value: FieldValue) -> str:
    """What RabbitMQ calls the type, in its error texts."""
    match value:
        case bool():
            return "bool"
        case int():
            return "signedint" if -(1 << 31) <= value < 1 << 31 else "long"
        case float():
            return "double"
        case str():
            return "longstr"
        case bytes() | bytearray():
            return "binary"
        case dt.datetime():
            return "timestamp"
        case Decimal():
            return "decimal"
        case Mapping():
            return "table"
        case None:
            return "void"
        case _:
            return "array"


def term(value: FieldValue, *, equate_numbers: bool = False) -> Term:
    """Something that equals another such thing if RabbitMQ finds the values equal, and only then.

    Binaries are bytes, atoms are str, numbers are int. A float is one of these, equal to a whole number of the same
    size, only when numbers are to be equated; otherwise it is its bits, in which 0.0 and -0.0 differ.
    """
    match value:
        case str():
            return value.encode("utf-8", "surrogateescape")
        case bytes() | bytearray():
            return bytes(value)
        case bool():
            return "true" if value else "false"
        case int():
            return value
        case float():
            return value if equate_numbers else ("float", struct.pack(">d", value))
        case None:
            return "undefined"
        case dt.datetime():
            return seconds(value)
        case Decimal():
            return ("decimal", *value.as_tuple())
        case Mapping():
            return tuple((term(name), *_pair(inner, equate_numbers)) for name, inner in value.items())
        case _:
            return tuple(_pair(element, equate_numbers) for element in value)


def _pair(value: FieldValue, equate_numbers: bool) -> tuple[str, Term]:
    return type_name(value), term(value, equate_numbers=equate_numbers)


def seconds(moment: dt.datetime) -> int:
    return (moment - _EPOCH) // _SECOND


def identity(arguments: Table) -> Term:
    """What makes arguments the same ones: names, types and values, in any order."""
    return tuple((name, *_pair(arguments[name], False)) for name in sorted(arguments))


# As Erlang prints them ------------------------------------------------------------------------------


def format_term(value: FieldValue) -> str:
    """A value as `~tp` prints it: what RabbitMQ puts into an error text."""
    match value:
        case str():
            return _binary(value.encode("utf-8", "surrogateescape"))
        case bytes() | bytearray():
            return _binary(bytes(value))
        case bool():
            return "true" if value else "false"
        case None:
            return "undefined"
        case dt.datetime():
            return str(seconds(value))
        case Decimal():
            places = -int(value.as_tuple().exponent)
            return f"{{{places},{int(value.scaleb(places))}}}"
        case Mapping():
            fields = (f"{{{format_term(name)},{_format_pair(inner)}}}" for name, inner in value.items())
            return f"[{','.join(fields)}]"
        case list() | tuple():
            return f"[{','.join(f'{{{_format_pair(element)}}}' for element in value)}]"
        case _:
            return str(value)


def _format_pair(value: FieldValue) -> str:
    return f"{type_name(value)},{format_term(value)}"


def _binary(raw: bytes) -> str:
    if not raw:
        return "<<>>"
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return f"<<{','.join(map(str, raw))}>>"
    for character, escape in (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t")):
        text = text.replace(character, escape)
    if not text.isprintable():
        return f"<<{','.join(map(str, raw))}>>"
    return f'<<"{text}">>' if text.isascii() else f'<<"{text}"/utf8>>'
