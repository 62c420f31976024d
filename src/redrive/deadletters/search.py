"""The language in which an operator says which dead letters are meant.

    error:Timeout source:q.orders body.customer.id:42 header.tenant:acme redriven:>0 since:2h "free text"

A query is a list of terms, and a message must match them all. With a `-` before it a term must not match.

    error, source, type, reason, key, exchange,    contain the value, in small or capital letters; `type:=OrderPlaced`
    op, id, correlation                            is that and nothing else
    group                                          the fingerprint begins with the value
    attempts, redriven, size                       numbers: `redriven:0`, `attempts:>=3`, `size:<10kb`
    since, until                                   when it died: `2h` ago, or `2024-05-17T12:00` (UTC unless it says)
    header.NAME                                    a header; a number equals the value, a text contains it
    body.PATH                                      the same in a JSON body: `body.items.0.sku`, `body."first name"`
    body                                           the body, whatever it is, contains the value
    anything else                                  stands in what is known of the message, or in its body

`error` looks at the type and at the message of the error, and `id` also at the publisher's message_id. A list matches
if one of its elements does. Values with spaces stand in quotes, in which \\" is a quote and \\\\ a backslash.

What a message does not tell matches nothing: one that does not say when it died is in no `since:`. Bodies larger than
`MOST_BODY` are searched in their beginning, and not as JSON; nor are those that are nested too deep to be read. A query
has at most `MOST_TERMS` terms and `MOST_TEXT` characters. Compressed bodies (`content_encoding` gzip or deflate) are
searched decompressed; `size` is that of the body in the queue.

A query made with a `redaction` sees of a message what is shown without the permission to reveal, and no more: it cannot
be used to guess what is hidden.

A query is a value, made for one moment: "2h ago" is the same for the first message of a queue and for the last. Its
text is the canonical one, and reading that again gives an equal query. Whatever is typed ends in a query or in a
SearchError that points at the character.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from functools import cached_property
from operator import eq, ge, gt, le, lt
from typing import Any, TypeAlias

import msgspec

from redrive.deadletters.compression import MOST_READ, decompress
from redrive.deadletters.dead_letter import Summary
from redrive.deadletters.hidden_secrets import hide_body, hide_header, hide_summary
from redrive.deadletters.query_syntax import NUMBERS, TEXTS, Term, decimal_in, terms_of
from redrive.deadletters.redaction import Redaction
from redrive.errors import ConfigurationError, RemoteProtocolError, SearchError
from redrive.recovery.durations import duration
from redrive.recovery.history import read_moment
from redrive.wire.properties import decode_properties
from redrive.wire.raw_properties import find_header, read_content_encoding
from redrive.wire.values import read_value

MOST_TEXT = 2_000  # characters of a query
MOST_TERMS = 32  # of a query: each of them is compared with every message
MOST_BODY = MOST_READ

_MOST_ELEMENTS = 1_000  # of a list that is compared element by element

Bytes: TypeAlias = "bytes | Callable[[], bytes]"


# A query ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Query:
    """Terms, at a moment. `parse` makes one."""

    terms: tuple[Term, ...]
    now: datetime
    redaction: Redaction | None
    _tests: tuple[_Test, ...] = field(compare=False, repr=False)  # the cheap ones first

    def matches(self, dead_letter: Summary, body: Bytes = b"", raw_properties: Bytes = b"") -> bool:
        """Body and properties are only asked for when all else matches."""
        content = _Content(body, raw_properties, self.redaction)
        if self.redaction is not None:
            dead_letter = hide_summary(dead_letter, self.redaction)
        return all(test(dead_letter, content) for test in self._tests)

    def __str__(self) -> str:
        return " ".join(map(str, self.terms))


def parse(text: str, now: datetime, redaction: Redaction | None = None) -> Query:
    """Return the query, or raise `SearchError`. With a `redaction` it sees messages without their secrets."""
    now = read_moment(now) or now
    if len(text) > MOST_TEXT:
        raise SearchError(f"a query has at most {MOST_TEXT} characters", text, MOST_TEXT)
    found: list[tuple[Term, _Test]] = []
    for term, at in terms_of(text):
        if len(found) == MOST_TERMS:
            raise SearchError(f"a query has at most {MOST_TERMS} terms", text, at)
        found.append((term, _test(term, now, text, at)))
    by_price = sorted(found, key=lambda each: _PRICES.get(each[0].field, 0))
    return Query(tuple(term for term, _ in found), now, redaction, tuple(test for _, test in by_price))


_PRICES = {"header": 1, "body": 2, "": 2}


# Testing a message ------------------------------------------------------------------------------------

_MISSING = object()


class _Content:
    """Body and properties of one message, each asked for, and decoded, once and if at all."""

    def __init__(self, body: Bytes, raw_properties: Bytes, redaction: Redaction | None = None) -> None:
        self._body = body
        self._raw_properties = raw_properties
        self._redaction = redaction
        self._folded: dict[str, str] = {}

    def fold(self, text: str) -> str:
        """Return the text in the form in which texts are compared: made once, however many terms ask for it."""
        folded = self._folded.get(text)
        if folded is None:
            folded = self._folded[text] = text.casefold()
        return folded

    @cached_property
    def body(self) -> bytes:
        body = self._body() if callable(self._body) else self._body
        try:
            body = decompress(body, read_content_encoding(self.raw_properties), MOST_BODY).body
        except RemoteProtocolError:  # the properties are not readable
            pass
        return body if self._redaction is None else hide_body(body, self._content_type, self._redaction)

    @property
    def _content_type(self) -> str | None:
        try:
            return decode_properties(self.raw_properties).content_type
        except RemoteProtocolError:
            return None

    @cached_property
    def small_letters(self) -> bytes:
        return self.body[:MOST_BODY].lower()

    @cached_property
    def folded_body(self) -> str:
        return self.body[:MOST_BODY].decode("utf-8", "replace").casefold()

    @cached_property
    def json(self) -> object:
        body = self.body
        if len(body) > MOST_BODY or body.lstrip()[:1] not in (b"{", b"["):
            return _MISSING
        try:
            return msgspec.json.decode(body)
        except (msgspec.MsgspecError, RecursionError, ValueError):
            return _MISSING

    @cached_property
    def raw_properties(self) -> bytes:
        return self._raw_properties() if callable(self._raw_properties) else self._raw_properties

    def header(self, name: str) -> object:
        try:
            raw = find_header(self.raw_properties, name.encode("utf-8", "surrogateescape"))
            if raw is None:
                return _MISSING
            value = read_value(raw, 0, len(raw))[0]
            return value if self._redaction is None else hide_header(name, value, self._redaction)
        except (RemoteProtocolError, UnicodeEncodeError):
            return _MISSING

    def contains(self, folded: str) -> bool:
        if folded.isascii():
            return folded.encode() in self.small_letters
        return folded in self.folded_body


_Test: TypeAlias = Callable[[Summary, _Content], bool]


def _test(term: Term, now: datetime, text: str, at: int) -> _Test:
    match term.field:
        case "":
            test = _free_test(term.value.casefold())
        case "body" if not term.path:
            test = _body_test(term)
        case "body" | "header":
            test = _value_test(term)
        case "group":
            test = _group_test(term)
        case "since" | "until":
            test = _time_test(term, now, text, at)
        case name if name in NUMBERS:
            test = _number_test(term, text, at)
        case _:
            test = _text_test(term)
    return _negated(test) if term.negated else test


def _negated(test: _Test) -> _Test:
    return lambda dead_letter, content: not test(dead_letter, content)


def _text_test(term: Term) -> _Test:
    names, value, folded = TEXTS[term.field], term.value, term.value.casefold()
    if term.operator == "=":
        return lambda dead_letter, _: any((getattr(dead_letter, name) or "") == value for name in names)
    return lambda dead_letter, content: any(folded in content.fold(getattr(dead_letter, name) or "") for name in names)


def _group_test(term: Term) -> _Test:
    value = term.value.lower()
    if term.operator == "=":
        return lambda dead_letter, _: dead_letter.fingerprint == value
    return lambda dead_letter, _: dead_letter.fingerprint.startswith(value)


_ANYWHERE = tuple(name for names in TEXTS.values() for name in names)


def _free_test(folded: str) -> _Test:
    def test(dead_letter: Summary, content: _Content) -> bool:
        known = any(folded in content.fold(getattr(dead_letter, name) or "") for name in _ANYWHERE)
        return known or dead_letter.fingerprint.startswith(folded) or content.contains(folded)

    return test


def _body_test(term: Term) -> _Test:
    folded = term.value.casefold()
    if term.operator == "=":
        exact = term.value.encode("utf-8", "surrogatepass")
        return lambda _, content: content.body == exact
    return lambda _, content: content.contains(folded)


# Times and numbers ------------------------------------------------------------------------------------

_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {":": eq, "=": eq, ">": gt, ">=": ge, "<": lt, "<=": le}
_UNITS = {"": 1, "b": 1, "kb": 1000, "mb": 1000**2, "kib": 1024, "mib": 1024**2}
_COUNT = re.compile(r"([0-9]{1,15})([a-z]{0,3})")


def _time_test(term: Term, now: datetime, text: str, at: int) -> _Test:
    if term.operator != ":":
        raise SearchError(f"{term.field}: is a comparison already: leave the {term.operator} out", text, at)
    moment = _moment(term.value, now)
    if moment is None:
        raise SearchError(
            f"{term.field}: wants a time ago, like 2h, 15m or 1d, or a time, like 2024-05-17T12:00", text, at
        )
    if term.field == "since":
        return lambda dead_letter, _: dead_letter.dead_at is not None and dead_letter.dead_at >= moment
    return lambda dead_letter, _: dead_letter.dead_at is not None and dead_letter.dead_at <= moment


def _moment(value: str, now: datetime) -> datetime | None:
    try:
        return now - duration(value)
    except ConfigurationError:
        return read_moment(value) if len(value) <= 40 else None
    except OverflowError:  # before the calendar begins: since ever
        return datetime.min.replace(tzinfo=UTC)


def _number_test(term: Term, text: str, at: int) -> _Test:
    found, name = _COUNT.fullmatch(term.value.lower()), term.field
    if found is None or found[2] not in (_UNITS if name == "size" else ("",)):
        example = "like >10kb" if name == "size" else "like 3 or >=3"
        raise SearchError(f"{name}: wants a number, {example}", text, at)
    wanted, compare = int(found[1]) * _UNITS[found[2]], _COMPARISONS[term.operator]
    return lambda dead_letter, _: compare(getattr(dead_letter, name), wanted)


# Values inside of bodies and headers ------------------------------------------------------------------


def _value_test(term: Term) -> _Test:
    fits, path = _matcher(term), term.path
    if term.field == "header":
        return lambda _, content: fits(content.header(path[0]), content)
    return lambda _, content: fits(_value_at(content.json, path), content)


def _value_at(value: object, path: tuple[str, ...]) -> object:
    for part in path:
        match value:
            case Mapping():
                value = value.get(part, _MISSING)
            case list() if part.isascii() and part.isdecimal() and len(part) < 10 and int(part) < len(value):
                value = value[int(part)]
            case _:
                return _MISSING
    return value


def _matcher(term: Term) -> Callable[[object, _Content], bool]:
    number, compare = decimal_in(term.value), _COMPARISONS[term.operator]

    def fits(value: object, content: _Content) -> bool:
        match value:
            case bool() | None:
                return term.operator in ":=" and str(_JSON_WORDS[value]) == term.value.casefold()
            case int() | float() | Decimal():
                return number is not None and compare(value, number)
            case str():
                return _text_matches(term, value, content)
            case bytes():
                return _text_matches(term, value.decode("utf-8", "replace"), content)
            case datetime():
                return _text_matches(term, value.isoformat(), content)
            case list():
                return any(
                    fits(element, content) for element in value[:_MOST_ELEMENTS] if not isinstance(element, list)
                )
            case _:
                return False

    return fits


_JSON_WORDS = {True: "true", False: "false", None: "null"}


def _text_matches(term: Term, text: str, content: _Content) -> bool:
    match term.operator:
        case ":":
            return term.value.casefold() in content.fold(text)
        case "=":
            return text == term.value
        case _:
            number, wanted = decimal_in(text), decimal_in(term.value)
            return number is not None and wanted is not None and _COMPARISONS[term.operator](number, wanted)
