"""`bodies`: what a handler gets of a body, and what a person is shown of it.

An input is a content type, a line's end, and a body. A handler gets a value of its type or `Malformed`, which is the
publisher's fault; what was read as JSON or msgpack and is written again reads as the same. A person is shown text in
which no character moves a cursor, hides or turns the direction of writing, about as much as was asked for.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import msgspec

from fuzzing.mutation import Mutator
from fuzzing.targets import Broken, Target
from redrive.deadletters.body_preview import show
from redrive.deadletters.redaction import REDACTION
from redrive.errors import ConfigurationError
from redrive.wire.properties import Properties
from redrive.worker.codecs import BodyReader, Codecs, Malformed

LIMIT = 2_000
_MARGIN = 6  # of an escape that stands for one character
_TASK = {"task": "mail.send", "id": "7", "lang": "py", "retries": 2, "argsrepr": "(1,)", "eta": "\x1b[2J"}


class Order(msgspec.Struct):
    id: int
    lines: list[str] = []
    total: float | None = None


_WORDS = (
    "application/json", "application/msgpack", "text/plain", "application/x-www-form-urlencoded", "text/csv", "\n",
    "application/vnd.api+json", "; charset=utf-16", "; charset=latin-1", "; charset=nonsense", "application/xml",
    "{", "}", "[", "]", ":", ",", '"', "\\", "\\u", "\\ud800", "\\udc00", "null", "true", "NaN", "Infinity", "-",
    "1e999", "9" * 5_000, "0.1", "1.10", "[" * 2_000, '{"a":' * 500, '"id"', "1", "\x1b[31m", "\u202e", "\u200b",
    "\x00", "\x7f", "password", "Bearer abc.def.ghi", "4111111111111111", "\r\n", "\ufeff", "é", "\U000e0001",
    "a" * 3_000,
)  # fmt: skip
_READS: tuple[Any, ...] = (Order, dict[str, Any], list[int], str, bytes, int, Any)


class BodyTarget(Target):
    def run(self, data: bytes) -> set[str]:
        content_type, _, body = data.partition(b"\n")
        raw = _properties(content_type)
        words = {f"{reader} {self._read(reader, read, body, raw)}" for reader, read in self._readers.items()}
        for headers in ({}, _TASK):
            for redaction in (None, REDACTION):
                shown = show(body, content_type.decode("utf-8", "replace"), headers, LIMIT, redaction)
                _check_shown(shown.text, shown.note)
                words.add(f"shown {shown.kind} {shown.truncated} {bool(shown.note)}")
        return words

    @cached_property
    def _readers(self) -> dict[str, BodyReader]:
        codecs = Codecs()
        return {str(wanted): codecs.reader(wanted) for wanted in _READS}

    def _read(self, name: str, reader: BodyReader, body: bytes, raw: bytes) -> str:
        try:
            value = reader.read(body, raw)
        except Malformed as error:
            return type(error.__cause__).__name__
        if name == str(Any):
            self._check_again(value, reader)
        return type(value).__name__

    def _check_again(self, value: Any, reader: BodyReader) -> None:
        try:
            written, content_type = Codecs().encode(value, "application/msgpack")
        except ConfigurationError:
            return  # msgpack has no word for it, as for integers of more than eight bytes
        again = reader.read(written, _properties(content_type.encode()))
        if Codecs().encode(again, content_type)[0] != written:
            raise Broken(f"{value!r:.200} came back as {again!r:.200}")

    def mutate(self, mutator: Mutator, data: bytes, others: Sequence[bytes]) -> bytes:
        return mutator.text(data, others, _WORDS)

    def made(self) -> dict[str, bytes]:
        value = {"id": 7, "lines": ["a", "b"], "total": 1.5, "password": "hunter2", "deep": [[{"a": None}]]}
        return {
            "json": b"application/json\n" + msgspec.json.encode(value),
            "msgpack": b"application/msgpack\n" + msgspec.msgpack.encode(value),
            "ext": b"application/msgpack\n" + msgspec.msgpack.encode([msgspec.msgpack.Ext(5, b"xyz"), b"\xff", -1]),
            "text": "text/plain; charset=utf-8\nzoë said: Bearer abc.def.ghi\r\n".encode(),
            "utf16": b"text/plain; charset=utf-16\n" + "zoë".encode("utf-16"),
            "nothing": b"\n" + bytes(range(256)),
            "celery": b'application/json\n[[1, "two"], {"k": null}, {"callbacks": null, "chain": [1]}]',
        }


def _properties(content_type: bytes) -> bytes:
    """As they lie on the wire, whatever the bytes are."""
    short = content_type[:255]
    return b"\x80\x00" + bytes((len(short),)) + short if short else Properties().encode()


def _check_shown(text: str, note: str) -> None:
    for char in {*text, *note}:
        if unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp") and char not in "\n\t":
            raise Broken(f"{char!r} is shown as it is")
    if len(text) > LIMIT * _MARGIN:
        raise Broken(f"{len(text)} characters are shown, and {LIMIT} were asked for")
