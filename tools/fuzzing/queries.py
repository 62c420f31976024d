"""`queries`: the language in which an operator says which dead letters are meant.

Whatever is typed is a query, or a SearchError that points at a character of it. A query is written back as one that is
equal and finds the same, and it says yes or no to every message, however odd.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from functools import cached_property

from fuzzing.mutation import Mutator
from fuzzing.targets import Broken, Target
from redrive.deadletters.dead_letter import DeadLetter, Summary, read_dead_letter, read_summary
from redrive.deadletters.search import Query, parse
from redrive.errors import SearchError
from redrive.wire.properties import Properties
from redrive.wire.values import Table

NOW = dt.datetime(2024, 5, 17, 12, tzinfo=dt.UTC)
TYPED = {
    "everything": "error:Timeout source:q.orders body.customer.id:42 header.tenant:acme redriven:>0 since:2h free",
    "quotes": 'error:"no answer" body."first name":x -type:=OrderPlaced "free \\"text\\" \\\\"',
    "numbers": "attempts:>=3 redriven:0 size:<10kb body.price:<=1.10 header.n:5 -size:>1mib",
    "times": "since:2024-05-17T12:00 until:2h since:2024-05-17T12:00:00+02:00 until:30d",
    "paths": "body.items.0.sku:A-1 body:text header.a.b:dotted group:3fa9 op:op_01 id:m-1 correlation:c key:order.*",
}
_WORDS = (
    "error", "source", "type", "reason", "key", "exchange", "op", "id", "correlation", "group", "attempts", "redriven",
    "size", "since", "until", "header", "body", ":", ":=", ":>", ":<=", ".", "-", "--", '"', "\\", '\\"', " ", "\n",
    "\0", "=", "<", ">", "2h", "1e999", "-1", "9" * 400, "0", "0042", "-0", "1e-400", "\u202e", "\ud800", "ß", "İ",
    "é" * 50, "a" * 2001, "9999-12-31T23:59:59-23", "99999999999d", "NaN", "Infinity", "null", "true", "kb", "mib",
    "2024-05-17T12:00", "10", "١", "½", "\x1b[31m", "error.x", "body.", "body..x", 'body."', "header.", "1" * 16,
    "x" * 300,
)  # fmt: skip
_BODIES = (
    b"",
    b"{}",
    b"[" * 5_000,
    b'{"customer": {"id": 42, "name": "Ann \\u00d6", "vip": true, "note": null}, "price": 1.10}',
    b'{"items": [{"sku": "A-1"}, [[["deep"]]]], "first name": "x", "n": 123456789012345678901234567890, "f": 1e308}',
    b'{"a": "\\ud800"}',
    b"\xff\x00\xfe",
    "\ufeff{}".encode(),
    b'{"a": NaN}',
    b'[1, 2.5, true, null, "x"]',
)
_HEADERS: Table = {"tenant": "acme", "n": 5, "a.b": b"\xff", "x-death": [{"queue": "q", "count": -1}, 7]}
_PROPERTIES = (
    b"\x00\x00",
    b"\xff",
    Properties(headers=_HEADERS).encode(),
    Properties(message_id="m-1", type="OrderPlaced", headers={"x-redrive-reason": "exhausted", "f": 1.5}).encode(),
)


class QueryTarget(Target):
    def run(self, data: bytes) -> set[str]:
        text = data.decode("utf-8", "surrogateescape")
        try:
            query = parse(text, NOW)
        except SearchError as error:
            if not 0 <= error.position <= len(text):
                raise Broken(f"points at {error.position} of {len(text)} characters") from None
            return {"refused " + " ".join(word for word in error.problem.split() if word.isalpha())}
        found = self._found(query)
        self._check_again(query, found)
        return {f"{term.field}{term.operator}{len(term.path)}{term.negated}{any(found)}" for term in query.terms}

    def _check_again(self, query: Query, found: list[bool]) -> None:
        written = str(query)
        try:
            again = parse(written, NOW)
        except SearchError as error:
            if "at most" in error.problem:
                return  # quotes made it longer than a query may be
            raise Broken(f"{query!r} was written as {written!r}, which is none: {error}") from None
        if again != query or self._found(again) != found:
            raise Broken(f"{query!r} came back as {again!r}")

    def _found(self, query: Query) -> list[bool]:
        return [query.matches(letter, body, raw) for letter, body, raw in self._messages]

    @cached_property
    def _messages(self) -> list[tuple[Summary | DeadLetter, bytes, bytes]]:
        return [
            (read(raw, body), body, raw)
            for number, body in enumerate(_BODIES)
            for read in (lambda raw, body: read_summary(raw, body, "q", 1), _whole)
            for raw in (_PROPERTIES[number % len(_PROPERTIES)],)
        ]

    def mutate(self, mutator: Mutator, data: bytes, others: Sequence[bytes]) -> bytes:
        return mutator.text(data, others, _WORDS)

    def made(self) -> dict[str, bytes]:
        return {name: text.encode() for name, text in TYPED.items()}


def _whole(raw: bytes, body: bytes) -> DeadLetter:
    return read_dead_letter(raw, body, queue="q", position=1)
