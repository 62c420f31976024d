"""What is not shown of a message unless somebody asks for it: passwords, tokens, card numbers, and their like.

Two things give a secret away. Its key:

    a short one      must be a word of the key     "pin" hides userPin and pin_code, and not shipping
    a long one       anywhere in the key           "token" hides accessToken, TOKENS and x-token-2

with all that is below it, at any depth; {"name": "token", "value": …}, as lists of headers are written, counts as a
key. And its looks, wherever it stands: JSON web tokens, bearer tokens, private keys, the password in a URL, Brazilian
CPFs, card numbers (with a right check digit, since other long numbers are what an operator searches by).

Text is not parsed and still has keys: `password=…`, `"password": …` in a JSON that was cut off or stands inside a
string, `<password>…`. There more is hidden than must be, rather than less.

This keeps secrets off screens and out of tickets. It is no barrier for somebody who wants to get one past it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
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
_CARD = re.compile(r"(?<![\d.])[2-6](?:[ -]?\d){12,18}(?![\d])", re.ASCII)
_CARD_LENGTHS = {4: range(13, 20)}  # by the first digit; only old cards of one company have 13 digits
_CARD_LENGTH = range(14, 20)

_KEY = r"([A-Za-z_][\w.-]{0,63}+)"
_PAIR = re.compile(rf"(?<![\w.-]){_KEY}(?:\\?[\"'])?\s{{0,8}}+(=>|[:=])\s{{0,8}}+", re.ASCII)
_ELEMENT = re.compile(r"<([A-Za-z_][\w:.-]{0,63}+)(?:\s[^<>]{0,500}+)?>([^<]++)", re.ASCII)
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
        return isinstance(key, str) and _hides(self.keys, key[:_MOST_KEY])


REDACTION = Redaction()


def redact(value: object, redaction: Redaction = REDACTION, depth: int = 0) -> object:
    """The value without what is not for everybody's eyes. What it was made of is not changed."""
    if depth > MOST_DEPTH:
        return REDACTED
    match value:
        case Mapping():
            return _redacted_table(value, redaction, depth + 1)
        case list() | tuple():
            return [redact(element, redaction, depth + 1) for element in value]
        case str() if type(value) is str:
            return redact_text(value, redaction)
        case int() if redaction.cards and 10**12 <= value < 10**19 and _is_card(str(value)):
            return REDACTED
        case _:
            return value


def _redacted_table(table: Mapping[object, object], redaction: Redaction, depth: int) -> dict[object, object]:
    named = any(redaction.hides(table.get(key)) for key in ("name", "key", "Name", "Key"))
    return {
        key: REDACTED
        if value is not None and (redaction.hides(key) or (named and str(key).lower() == "value"))
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


@lru_cache(4096)
def _hides(keys: frozenset[str], key: str) -> bool:
    words = [word.lower() for word in _WORD.findall(_SEAM.sub(" ", key))]
    if any(word in keys or word.removesuffix("s") in keys for word in words):
        return True
    squeezed = "".join(words)
    return any(name in squeezed for name in keys if len(name) >= _LONG)


# Secrets in text --------------------------------------------------------------------------------------


def _secrets(text: str, redaction: Redaction) -> Iterator[_Span]:
    yield from _keyed(text, redaction)
    for pattern in redaction.patterns:
        for found in pattern.finditer(text):
            yield found.span("secret" if "secret" in pattern.groupindex else 0)
    if redaction.cards:
        yield from (found.span() for found in _CARD.finditer(text) if _is_card(found[0]))


def _keyed(text: str, redaction: Redaction) -> Iterator[_Span]:
    done = 0  # what lies inside of a value that goes is not looked at again
    for found in _PAIR.finditer(text):
        start = found.end()
        if start >= done and redaction.hides(found[1]):
            done = _value_end(text, start, found[2])
            if done > start:
                yield start, done
    for found in _ELEMENT.finditer(text) if "<" in text else ():
        if redaction.hides(found[1]):
            yield found.span(2)


def _value_end(text: str, start: int, separator: str) -> int:
    opening = text[start : start + 2]
    if opening == '\\"':
        return _after(text.find('\\"', start + 2), 2, text)
    match opening[:1]:
        case '"' | "'" as quote:
            return _quote_end(text, start + 1, quote)
        case "{" | "[":
            return _bracket_end(text, start)
        case _:
            found = (_LINE if separator == ":" else _BARE).match(text, start)
            return found.end() if found else start


def _after(found: int, size: int, text: str) -> int:
    return len(text) if found < 0 else found + size


def _quote_end(text: str, at: int, quote: str) -> int:
    while (end := text.find(quote, at)) >= 0:
        backslashes = end - len(text[at:end].rstrip("\\")) - at
        if backslashes % 2 == 0:
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


def _is_card(text: str) -> bool:
    """The check digit of ISO/IEC 7812: every second digit from the right counts twice, and the sum ends in 0."""
    digits = [int(digit) for digit in text if digit.isdigit()]
    if not digits or digits[0] not in range(2, 7) or len(digits) not in _CARD_LENGTHS.get(digits[0], _CARD_LENGTH):
        return False
    doubled = (sum(divmod(2 * digit, 10)) for digit in digits[-2::-2])
    return (sum(digits[-1::-2]) + sum(doubled)) % 10 == 0
