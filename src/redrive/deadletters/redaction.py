"""What is not shown of a message unless somebody asks for it: passwords, tokens, card numbers, and their like.

Two things give a secret away. Its key:

    a short one      must be a word of the key     "pin" hides userPin and pin_code, and not shipping
    a long one       anywhere in the key           "token" hides accessToken, TOKENS and x-token-2

with all that is below it, at any depth; {"name": "token", "value": …}, as lists of headers are written, counts as a
key. And its looks, wherever it stands: JSON web tokens, bearer tokens, private keys, the password in a URL, Brazilian
CPFs, card numbers (with a right check digit, since other long numbers are what an operator searches by). A card stands
beside other numbers, an amount or a date: of digits with single spaces or dashes between them, each part that begins
and ends at one of these may be it.

Text is not parsed and still has keys: `password=…`, `--password …`, `"password": …` in a JSON that was cut off or
stands inside a string, `<password>…`. There more is hidden than must be, rather than less.

This keeps secrets off screens and out of tickets. It is no barrier for somebody who wants to get one past it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate
from typing import TypeAlias

REDACTED = "[redacted]"
MOST_DEPTH = 100  # what is deeper is not shown at all

KEYS = frozenset(
    (
        *("password", "passwd", "passphrase", "pwd", "senha", "secret", "token", "jwt", "bearer", "credential"),
        *("authorization", "auth", "apikey", "accesskey", "privatekey", "cookie", "sessionid", "otp", "pin"),
        *("card", "cardnumber", "creditcard", "pan", "cvv", "cvc", "iban", "ssn", "cpf"),
    )
)
PATTERNS = (
    re.compile(r"(?<![\w-])eyJ[\w-]{5,}+\.[\w-]{2,}+\.[\w-]*+", re.ASCII),  # a JSON web token
    re.compile(r"\b(?:bearer|basic)[ \t]{1,4}(?P<secret>[\w.~+/-]{8,}+=*+)", re.ASCII | re.IGNORECASE),
    re.compile(r"://[^\s/:@]{0,200}+:(?P<secret>[^\s/@]{1,200}+)@"),  # a URL with a password
    re.compile(r"-----BEGIN [A-Z ]{0,40}?PRIVATE KEY-----.*?(?:-----END[^\r\n]{0,60}|\Z)", re.DOTALL),
    re.compile(r"(?<![\d.-])\d{3}\.\d{3}\.\d{3}-\d{2}(?![\d-])", re.ASCII),  # a CPF
    re.compile(r"(?<![A-Z0-9])(?:AKIA|ASIA)[A-Z0-9]{16}(?![A-Z0-9])"),  # an AWS key
)

_LONG = 5  # characters: of a name that is looked for anywhere in a key
_MOST_KEY = 100
_SEAM = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_WORD = re.compile(r"[^\W\d_]+")
_NUMBERS = re.compile(r"\d++(?:[ -]\d++)*+", re.ASCII)
_DIGITS = re.compile(r"\d++", re.ASCII)
# How many digits a card has, by its first one; only old cards of one company have 13.
_CARD_LENGTHS = {2: range(14, 20), 3: range(14, 20), 4: range(13, 20), 5: range(14, 20), 6: range(14, 20)}
_LEAST_CARD = 13
_NO_LENGTH = range(0)
_TWICE = [sum(divmod(2 * digit, 10)) for digit in range(10)]

_KEY = r"(\w[\w.-]{0,63}+)"
_OPTION = re.compile(rf"(?<![\w-])--{_KEY}[\"']?,?\s{{1,8}}+(?!-)", re.ASCII)
_PAIR = re.compile(rf"(?<!\w){_KEY}(?:\\{{0,15}}+[\"'])?\s{{0,8}}+(=>|[:=])\s{{0,8}}+", re.ASCII)
_QUOTE = re.compile(r"(\\{0,15}+)([\"'])")
_ELEMENT = re.compile(r"<([A-Za-z_][\w:.-]{0,63}+)(?:\s[^<>]{0,500}+)?>", re.ASCII)
_ELEMENT_TEXT = re.compile(r"(?:[^<]++|<!\[CDATA\[.*?(?:\]\]>|\Z))*+", re.DOTALL)
_LINE = re.compile(r"[^\r\n,}\]<]*+")  # a value after a colon, and after an equals sign:
_BARE = re.compile(r"[^\s,;&}\])<]*+")

_Span: TypeAlias = "tuple[int, int]"


@dataclass(frozen=True, slots=True)
class Redaction:
    """What to hide."""

    keys: frozenset[str] = KEYS  # in small letters, without separators
    patterns: tuple[re.Pattern[str], ...] = PATTERNS  # a group named "secret" is the part of it that goes
    cards: bool = field(default=True, kw_only=True)

    def hides(self, key: object) -> bool:
        key = _as_text(key)
        return isinstance(key, str) and _hides(self.keys, key[:_MOST_KEY])


REDACTION = Redaction()


def redact(value: object, redaction: Redaction = REDACTION, depth: int = 0) -> object:
    """The value without what is not for everybody's eyes. What it was made of is not changed."""
    if depth > MOST_DEPTH:
        return REDACTED
    match value:
        case Mapping():
            return _redact_table(value, redaction, depth + 1)
        case list() | tuple():
            return [redact(element, redaction, depth + 1) for element in value]
        case str() if type(value) is str:
            return redact_text(value, redaction)
        case int() if redaction.cards and 10**12 <= value < 10**19 and any(_cards(str(value), 0, 19)):
            return REDACTED
        case _:
            return value


def _redact_table(table: Mapping[object, object], redaction: Redaction, depth: int) -> dict[object, object]:
    named = any(redaction.hides(table.get(key)) for key in _NAMING)
    return {
        key: REDACTED
        if value is not None and (redaction.hides(key) or (named and str(_as_text(key)).lower() == "value"))
        else redact(value, redaction, depth)
        for key, value in table.items()
    }


def redact_text(text: str, redaction: Redaction = REDACTION) -> str:
    spans = sorted(_secrets(text, redaction))
    if not spans:
        return text
    parts: list[str] = []
    done = 0
    for start, end in spans:
        if start >= done:
            parts += (text[done:start], REDACTED)
        done = max(done, end)
    return "".join((*parts, text[done:]))


def mask(data: bytes, redaction: Redaction = REDACTION) -> bytes:
    """Bytes of the same length, with stars where secrets were."""
    text = data.decode("latin-1")
    masked = bytearray(data)
    for start, end in _secrets(text, redaction):
        masked[start:end] = b"*" * (end - start)
    return bytes(masked)


# Keys -------------------------------------------------------------------------------------------------

_NAMING: tuple[str | bytes, ...] = ("name", "key", "Name", "Key", b"name", b"key", b"Name", b"Key")


def _as_text(key: object) -> object:
    """MessagePack has keys that are bytes."""
    return key.decode("utf-8", "replace") if isinstance(key, bytes) else key


@lru_cache(4096)
def _hides(keys: frozenset[str], key: str) -> bool:
    words = [word.lower() for word in _WORD.findall(_SEAM.sub(" ", key))]
    if any(word in keys or word.removesuffix("s") in keys for word in words):
        return True
    squeezed = "".join(words)
    return any(name in squeezed for name in keys if len(name) >= _LONG)


# Secrets in text --------------------------------------------------------------------------------------


def _secrets(text: str, redaction: Redaction) -> Iterator[_Span]:
    yield from _keyed_secrets(text, redaction)
    for pattern in redaction.patterns:
        for found in pattern.finditer(text):
            yield found.span("secret" if "secret" in pattern.groupindex else 0)
    if redaction.cards:
        for found in _NUMBERS.finditer(text):
            if found.end() - found.start() >= _LEAST_CARD:
                yield from _cards(text, *found.span())


def _keyed_secrets(text: str, redaction: Redaction) -> Iterator[_Span]:
    done = 0  # what lies inside of a value that goes is not looked at again
    for found in _PAIR.finditer(text):
        start = found.end()
        if start >= done and redaction.hides(found[1]):
            done = _value_end(text, start, found[2])
            if done > start:
                yield start, done
    for found in _OPTION.finditer(text) if "--" in text else ():
        if redaction.hides(found[1]) and (done := _value_end(text, found.end(), "=")) > found.end():
            yield found.end(), done
    done = 0
    for found in _ELEMENT.finditer(text) if "<" in text else ():
        if found.end() >= done and redaction.hides(found[1]):
            start, done = found.end(), _end(_ELEMENT_TEXT, text, found.end())
            if done > start:
                yield start, done


def _value_end(text: str, start: int, separator: str) -> int:
    if opening := _QUOTE.match(text, start):
        return _quote_end(text, opening.end(), opening[2], len(opening[1]))
    if text[start : start + 1] in ("{", "["):
        return _bracket_end(text, start)
    return _end(_LINE if separator == ":" else _BARE, text, start)


def _end(pattern: re.Pattern[str], text: str, start: int) -> int:
    found = pattern.match(text, start)
    return found.end() if found else start


def _quote_end(text: str, at: int, quote: str, depth: int) -> int:
    """`depth`: how many backslashes the opening quote has, 1 in a JSON that is a string of another. The closing one has
    as many; a quote of the text itself is escaped once more, and a backslash of the text is twice as many and two.
    """
    while (end := text.find(quote, at)) >= 0:
        backslashes = end - len(text[at:end].rstrip("\\")) - at
        if backslashes % (2 * depth + 2) == depth:
            return end + 1
        at = end + 1
    return len(text)


_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*+(?:"|\Z)|[\[\]{}]', re.DOTALL)


def _bracket_end(text: str, start: int) -> int:
    depth = 0
    for found in _BRACKET.finditer(text, start):
        if found[0] in "[{":
            depth += 1
        elif found[0] in "]}":
            depth -= 1
            if depth <= 0:
                return found.end()
    return len(text)


def _cards(text: str, start: int, end: int) -> Iterator[_Span]:
    """Those among numbers that stand side by side."""
    groups = [found.span() for found in _DIGITS.finditer(text, start, end)]
    if text[start - 1 : start] == ".":  # the first is a fraction
        del groups[0]
    digits = [int(digit) for begin, last in groups for digit in text[begin:last]]
    sums = _check_sums(digits, 0), _check_sums(digits, 1)
    after = 0  # how many digits are before this one
    for place, (first, its_end) in enumerate(groups):
        before, after = after, after + its_end - first
        lengths = _CARD_LENGTHS.get(digits[before], _NO_LENGTH)
        till = before
        for begin, last in groups[place : place + lengths.stop]:
            till += last - begin
            if till - before >= lengths.stop:
                break
            summed = sums[till % 2]
            if till - before in lengths and (summed[till] - summed[before]) % 10 == 0:
                yield first, last


def _check_sums(digits: Sequence[int], parity: int) -> list[int]:
    """The check digit of ISO/IEC 7812: every second digit from the right counts twice, and the sum ends in 0. These are
    the sums up to each place, so that those of all parts are known; `parity`: of the places that count twice.
    """
    counted = (_TWICE[digit] if place % 2 == parity else digit for place, digit in enumerate(digits))
    return list(accumulate(counted, initial=0))
