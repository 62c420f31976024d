"""The kinds of argument a method can have, each written and read by itself."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from redrive.errors import EncodingError, RemoteProtocolError
from redrive.wire import argument_types
from redrive.wire.argument_types import ArgumentType


def kind(annotation: object) -> ArgumentType:
    found = get_args(annotation)[1]
    assert isinstance(found, ArgumentType)
    return found


OCTET, SHORT, LONG, LONGLONG = map(
    kind, (argument_types.Octet, argument_types.Short, argument_types.Long, argument_types.LongLong)
)
SHORTSTR, FOREIGN, EXPLANATION = map(
    kind, (argument_types.ShortStr, argument_types.ForeignStr, argument_types.Explanation)
)
LONGSTR, TABLE = map(kind, (argument_types.LongStr, argument_types.Arguments))

EXAMPLES: dict[str, tuple[ArgumentType, object, bytes]] = {
    "octet": (OCTET, 255, b"\xff"),
    "short": (SHORT, 258, b"\x01\x02"),
    "long": (LONG, 0x01020304, b"\x01\x02\x03\x04"),
    "longlong": (LONGLONG, (1 << 64) - 1, b"\xff" * 8),
    "shortstr": (SHORTSTR, "schön", b"\x06sch\xc3\xb6n"),
    "foreign": (FOREIGN, "\udcff", b"\x01\xff"),
    "explanation": (EXPLANATION, "because", b"\x07because"),
    "longstr": (LONGSTR, b"\x00guest", b"\x00\x00\x00\x06\x00guest"),
    "table": (TABLE, {"k": None}, b"\x00\x00\x00\x03\x01kV"),
}


@pytest.mark.parametrize(("kind", "value", "raw"), EXAMPLES.values(), ids=EXAMPLES)
def test_an_argument_is_written_big_end_first(kind: ArgumentType, value: object, raw: bytes) -> None:
    assert kind.write(value) == raw


@pytest.mark.parametrize(("kind", "value", "raw"), EXAMPLES.values(), ids=EXAMPLES)
def test_an_argument_is_read_in_the_midst_of_others(kind: ArgumentType, value: object, raw: bytes) -> None:
    assert kind.read(b"<<" + raw + b">>", 2, len(raw) + 4) == (value, len(raw) + 2)


@pytest.mark.parametrize(("kind", "raw"), [(kind, raw) for kind, _, raw in EXAMPLES.values()], ids=EXAMPLES)
def test_an_argument_that_is_cut_short_is_malformed(kind: ArgumentType, raw: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        kind.read(raw, 0, len(raw) - 1)


@pytest.mark.parametrize(("kind", "bits"), [(OCTET, 8), (SHORT, 16), (LONG, 32), (LONGLONG, 64)])
@pytest.mark.parametrize("value", [-1, None, "7", 1.5, 10**5000], ids=["negative", "None", "str", "float", "huge"])
def test_an_integer_argument_is_a_whole_number_that_fits(kind: ArgumentType, bits: int, value: object) -> None:
    with pytest.raises(EncodingError, match=f"is not a whole number within 0 and {(1 << bits) - 1}"):
        kind.write(value)


@pytest.mark.parametrize(("kind", "bits"), [(OCTET, 8), (SHORT, 16), (LONG, 32), (LONGLONG, 64)])
def test_an_integer_argument_has_its_number_of_bits(kind: ArgumentType, bits: int) -> None:
    assert kind.write((1 << bits) - 1) == b"\xff" * (bits // 8)
    with pytest.raises(EncodingError):
        kind.write(1 << bits)


def test_a_name_of_our_own_that_is_not_utf8_is_refused_before_rabbitmq_ends_the_connection() -> None:
    with pytest.raises(EncodingError, match="UTF-8"):
        SHORTSTR.write("\udcff")


def test_a_name_of_the_peer_that_is_not_utf8_is_malformed() -> None:
    with pytest.raises(RemoteProtocolError, match="not UTF-8"):
        SHORTSTR.read(b"\x01\xff", 0, 2)


def test_an_explanation_that_rabbitmq_cut_inside_a_letter_is_read() -> None:
    assert EXPLANATION.read(b"\x04\xc3\xa9\xc3.", 0, 5) == ("é\N{REPLACEMENT CHARACTER}.", 5)


def test_a_long_string_may_be_a_bytearray() -> None:
    assert LONGSTR.write(bytearray(b"raw")) == b"\x00\x00\x00\x03raw"


def test_a_long_string_that_is_not_bytes_is_refused_without_showing_it() -> None:
    with pytest.raises(EncodingError, match="must be bytes, not str") as refused:
        LONGSTR.write("secret")
    assert "secret" not in str(refused.value)


def test_a_long_string_whose_length_lies_is_malformed() -> None:
    with pytest.raises(RemoteProtocolError, match="a long string of 9 bytes has only 3"):
        LONGSTR.read(b"\x00\x00\x00\x09raw", 0, 7)


@pytest.mark.parametrize("value", [["x-max-length"], None, "x"])
def test_arguments_that_are_no_table_are_refused(value: Any) -> None:
    with pytest.raises(EncodingError, match="where AMQP carries a table"):
        TABLE.write(value)
