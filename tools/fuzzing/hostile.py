"""Messages that somebody made to do harm: their properties and bodies, as they lie on the wire.

Most clients refuse to write such properties, and brokers pass them on all the same. So they are put together here, byte
by byte where the codec would say no: floats that are no numbers, texts that are no UTF-8, tables deeper than it reads.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Sequence
from random import Random
from struct import pack
from typing import Any

import msgspec

from redrive.recovery.history import HeaderNames
from redrive.wire.values import encode_value

MARK = "<zz onload=alert(1)>"  # no page may hold this as it is
ESCAPES = f"\x1b[2J\x1b]0;{MARK}\x07\u202e\u200b\x9b31m\r\x08"

_TEXTS = ("", "7", " 7 ", "-1", "9" * 400, "0x7", "NaN", "1e309", "٣", MARK, ESCAPES, "x" * 300, "é" * 5_000)
_NUMBERS = (0, 1, -1, 2, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63))
_TIMES = (0, 1, 253402300799, 253402300800, 2**63 - 1, 2**64 - 1, 1_700_000_000)
_COUNTERS = (
    "x-retries", "x-retry-count", "x-delivery-count", "x-acquired-count", "x-delay", "x-first-death-queue",
    "x-first-death-reason", "x-first-death-exchange", "x-last-death-queue", "CC", "BCC", "x-redriven-count",
    "x-redriven-op", "x-redriven-deaths", "x-redriven-at", "x-redriven-by", "x-redriven-from", "x-redriven-reason",
    "x-redrive-attempts", "x-redrive-reason", "x-retry-reason", "task", "id", "retries", "lang", "eta", "argsrepr",
)  # fmt: skip
_NAMES = (name for key, name in vars(HeaderNames).items() if key.isupper())
_OWN = tuple(sorted(name for name in _NAMES if name != HeaderNames.NOT_BEFORE))
_SHORT = ("content_encoding", "correlation_id", "reply_to", "message_id", "type", "app_id", "cluster_id")
_FLAGS = {
    "content_type": 15, "content_encoding": 14, "headers": 13, "delivery_mode": 12, "priority": 11,
    "correlation_id": 10, "reply_to": 9, "expiration": 8, "message_id": 7, "timestamp": 6, "type": 5, "user_id": 4,
    "app_id": 3, "cluster_id": 2,
}  # fmt: skip


def message(chance: Random) -> tuple[bytes, bytes]:
    """Properties and a body."""
    return properties(chance), _body(chance)


def properties(chance: Random) -> bytes:
    present: dict[str, bytes] = {}
    for name in _SHORT:
        if chance.random() < 0.2:
            present[name] = _short_string(chance)
    if chance.random() < 0.5:
        kinds = ("application/json", "application/msgpack", "text/plain", "application/x-python-serialize", MARK)
        present["content_type"] = _short(chance.choice(kinds).encode())
    if chance.random() < 0.2:
        present["expiration"] = _short(chance.choice((b"abc", b"-1", b"60000", b"99999999999999", b"\xff", b"")))
    for name, values in (("delivery_mode", (0, 1, 2, 255)), ("priority", (0, 9, 255))):
        if chance.random() < 0.2:
            present[name] = bytes((chance.choice(values),))
    if chance.random() < 0.2:
        present["timestamp"] = pack(">Q", chance.choice(_TIMES))
    if chance.random() < 0.9:
        present["headers"] = _headers(chance)
    flags = sum(1 << _FLAGS[name] for name in present)
    return pack(">H", flags) + b"".join(present[name] for name in _FLAGS if name in present)


def _short(data: bytes) -> bytes:
    return bytes((len(data[:255]),)) + data[:255]


def _short_string(chance: Random) -> bytes:
    texts = (b"m-1", b"\xff\xfe", b"x" * 255, ESCAPES.encode(), MARK.encode(), b"", b"\0", b"a/b?c#d")
    return _short(chance.choice(texts))


# Headers ------------------------------------------------------------------------------------------------------------


def _headers(chance: Random) -> bytes:
    fields: list[bytes] = []
    for _ in range(chance.choice((1, 1, 2, 4, 8))):
        name, raw = chance.choice(_KINDS)(chance)
        fields.append(_short(name.encode("utf-8", "surrogateescape")) + raw)
    if chance.random() < 0.05:  # one name twice
        fields.append(fields[0])
    return _table(fields)


def _table(fields: Sequence[bytes]) -> bytes:
    inside = b"".join(fields)
    return pack(">I", len(inside)) + inside


def _counter(chance: Random) -> tuple[str, bytes]:
    return chance.choice(_COUNTERS), _value(chance)


def _own_header(chance: Random) -> tuple[str, bytes]:
    return chance.choice(_OWN), _value(chance)


def _not_before(chance: Random) -> tuple[str, bytes]:
    """Past, far, or no time at all. What is due soon a handler may have asked for, and it would be waited for."""
    times = ("0001-01-01T00:00:00", "9999-12-31T23:59:59-23:59", "2024-01-01", "tomorrow", "9" * 50)
    return HeaderNames.NOT_BEFORE, encode_value(chance.choice(times)) if chance.random() < 0.7 else _value(chance)


def _story(chance: Random) -> tuple[str, bytes]:
    """A forged history, cut, huge, or of a shape that nobody writes."""
    attempt: dict[str, Any] = {
        "number": chance.choice(_NUMBERS), "at": chance.choice(("2024-01-01T00:00:00+00:00", MARK, "9" * 99)),
        "error": chance.choice(_TEXTS), "message": ESCAPES, "fingerprint": MARK, "delay-ms": chance.choice(_NUMBERS),
    }  # fmt: skip
    match chance.randrange(4):
        case 0:
            return HeaderNames.HISTORY, encode_value([attempt] * chance.choice((1, 3, 150)))
        case 1:
            return HeaderNames.HISTORY, encode_value(json.dumps([attempt])[: chance.randrange(1, 60)])
        case 2:
            return HeaderNames.HISTORY, encode_value([attempt, 7, None, [attempt], {}, {"at": {}}])
        case _:
            return HeaderNames.STACK, encode_value(ESCAPES * chance.choice((1, 500)))


def _deaths(chance: Random) -> tuple[str, bytes]:
    return chance.choice(("x-death", "x-death", "x-redriven-deaths")), _x_death(chance)


def _x_death(chance: Random) -> bytes:
    """Of wrong types, in circles, without end."""
    deaths = [_death(chance) for _ in range(chance.choice((0, 1, 1, 2, 5, 100)))]
    if chance.random() < 0.3 and deaths:
        deaths = [deaths[0]] * 100  # the same queue, over and over
    inside = b"".join(deaths)
    if chance.random() < 0.15:
        return _value(chance)
    return b"A" + pack(">I", len(inside)) + inside


def _death(chance: Random) -> bytes:
    if chance.random() < 0.15:
        return _value(chance)
    parts = {
        "count": chance.choice((b"l" + pack(">q", chance.choice(_NUMBERS)), b"d" + pack(">d", float("nan")), b"V")),
        "reason": encode_value(chance.choice(("rejected", "expired", "maxlen", "delivery_limit", MARK, "", 7))),
        "queue": encode_value(chance.choice(("h.republish", "h.reject", "", ESCAPES, "q" * 300, 9, None, [""]))),
        "time": b"T" + pack(">Q", chance.choice(_TIMES)),
        "exchange": encode_value(chance.choice(("hostile", "", 7, MARK))),
        "routing-keys": encode_value(chance.choice(([""], [], "k", [7], [[]], [MARK] * 50))),
    }
    kept = [_short(name.encode()) + raw for name, raw in parts.items() if chance.random() < 0.85]
    return b"F" + _table(kept)


def _deep(chance: Random) -> tuple[str, bytes]:
    """Tables and arrays in each other, up to what is read and beyond."""
    field = _value(chance)
    for _ in range(chance.choice((3, 29, 30, 31, 32, 33, 500))):
        if chance.random() < 0.5:
            field = b"F" + _table([_short(b"k") + field])
        else:
            field = b"A" + pack(">I", len(field)) + field
    return chance.choice(("deep", "x-death", HeaderNames.HISTORY)), field


def _large(chance: Random) -> tuple[str, bytes]:
    size = chance.choice((10_000, 60_000, 100_000, 129_000))
    return chance.choice(("large", MARK)), b"S" + pack(">I", size) + b"x" * size


def _odd_name(chance: Random) -> tuple[str, bytes]:
    return chance.choice((MARK, ESCAPES, "", "\udcff\udcfe", "password", "n" * 255)), _value(chance)


_KINDS: tuple[Callable[[Random], tuple[str, bytes]], ...] = (
    _counter, _counter, _own_header, _own_header, _not_before, _story, _deaths, _deaths, _deep, _large, _odd_name,
)  # fmt: skip


def _value(chance: Random) -> bytes:
    """A field value of any type, and of none."""
    match chance.randrange(12):
        case 0:
            return encode_value(chance.choice(_TEXTS))
        case 1:
            return encode_value(chance.choice(_NUMBERS))
        case 2:
            return b"d" + pack(">d", chance.choice((float("nan"), float("inf"), -1.5, 1e308, 5e-324)))
        case 3:
            return b"T" + pack(">Q", chance.choice(_TIMES))
        case 4:
            return b"S" + pack(">I", 3) + b"\xff\xfe\xfd"
        case 5:
            return b"x" + pack(">I", 4) + chance.randbytes(4)
        case 6:
            return chance.choice((b"V", b"t\x01", b"t\x00", b"t\x07", b"b\x80", b"B\xff", b"s\x80\x00", b"u\xff\xff"))
        case 7:
            return b"D" + bytes((chance.choice((0, 1, 255)),)) + pack(">i", chance.choice((0, -(2**31), 7)))
        case 8:
            return b"f" + pack(">f", chance.choice((float("-inf"), 1.5)))
        case 9:
            return encode_value(chance.choice(([], [[]], [1, "x", None], {}, {"": {}}, {"a": [MARK]})))
        case 10:
            return b"L" + pack(">Q", 2**64 - 1)
        case _:
            return b"i" + pack(">I", 2**32 - 1)


# Bodies -------------------------------------------------------------------------------------------------------------

_BODIES = (
    b"", b"{}", b'{"id": 1}', b'{"id": "1"}', b'{"id": NaN}', b'{"id": 1' + b"0" * 5_000 + b"}", b"[" * 10_000, b"nul",
    b"[" * 10_000 + b"]" * 10_000, b'{"a":' * 5_000, b'{"id": 1, "id": 2}', b'"\\ud800"', b"\xff\xfe\x00", b"\x00" * 99,
    ESCAPES.encode(), MARK.encode(), json.dumps({"id": 1, MARK: ESCAPES, "password": "x"}).encode(), b"\x93\x01\xc0",
    msgspec.msgpack.encode({"id": 7, "when": dt.datetime(2024, 1, 1, tzinfo=dt.UTC)}), b"\xdf\xff\xff\xff\xff",
    b'[[1], {"k": 2}, {"callbacks": null}]', b"\x80\x04\x95\x00", b"x" * 200_000, b'{"id": 1e400}', "\ufeff{}".encode(),
)  # fmt: skip


def _body(chance: Random) -> bytes:
    body = chance.choice(_BODIES)
    if chance.random() < 0.1 and body:
        at = chance.randrange(len(body))
        body = body[:at] + chance.randbytes(1) + body[at + 1 :]
    return body


def cut(raw: bytes, chance: Random) -> bytes:
    """Properties that end too early, or go on behind their end."""
    return raw[: chance.randrange(2, len(raw) + 1)] if chance.random() < 0.5 else raw + chance.randbytes(3)
