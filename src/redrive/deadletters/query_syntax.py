"""The syntax of a query for dead letters: text into terms, and terms into their canonical text.

`redrive.deadletters.search` describes the language. Whatever is typed ends in terms or in a `SearchError` that points
at the character.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from redrive.errors import SearchError
from redrive.text import did_you_mean

_SPACE = re.compile(r"\s*+")
_WORD = re.compile(r"\S++")
_FIELD = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*+(?=[:.])")
_FREE = re.compile(r'[^\s":-][^\s":]*+')  # without quotes, and no field
_BARE = re.compile(r'[^\s"=<>]\S*+')  # a value without quotes
_SEGMENT = re.compile(r'[^\s".:]++')
_HEADER = re.compile(r'[^\s":]++')
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*+)"', re.DOTALL)
_ESCAPE = re.compile(r'\\(["\\])')
_DECIMAL = re.compile(r"-?[0-9]{1,300}(?:\.[0-9]{1,50})?(?:[eE][-+]?[0-9]{1,3})?")
_OPERATOR = re.compile(r"[<>]=?|=")

# Fields, and the attributes of a dead letter that they search.
TEXTS: dict[str, tuple[str, ...]] = {
    "error": ("error", "error_message"),
    "source": ("source",),
    "type": ("type",),
    "reason": ("reason",),
    "key": ("routing_key",),
    "exchange": ("exchange",),
    "op": ("last_operation",),
    "id": ("id", "message_id"),
    "correlation": ("correlation_id",),
}
NUMBERS = ("attempts", "redriven", "size")
_MOMENTS = ("since", "until")
_WITH_PATHS = ("header", "body")
_FIELDS = (*TEXTS, "group", *NUMBERS, *_MOMENTS, *_WITH_PATHS)
_MEANT = {
    "routing_key": "key",
    "fingerprint": "group",
    "operation": "op",
    "queue": "source",
    "message": "error",
    "message_id": "id",
    "correlation_id": "correlation",
    "headers": "header",
}


@dataclass(frozen=True, slots=True)
class Term:
    field: str  # "" of free text
    value: str
    operator: str = ":"  # contains, or equals if it is a number; or one of = > >= < <=
    path: tuple[str, ...] = ()  # below `body`; of `header` its name
    negated: bool = False

    def __str__(self) -> str:
        minus = "-" if self.negated else ""
        if not self.field:
            return minus + (self.value if _FREE.fullmatch(self.value) else _quote(self.value))
        bare = _SEGMENT if self.field == "body" else _HEADER
        path = "".join("." + (part if bare.fullmatch(part) else _quote(part)) for part in self.path)
        value = self.value if _BARE.fullmatch(self.value) else _quote(self.value)
        return f"{minus}{self.field}{path}:{self.operator.removeprefix(':')}{value}"


def terms_of(text: str) -> Iterator[tuple[Term, int]]:
    """Return each term with the place of its value, at which an error about it points."""
    at = _past_space(text, 0)
    while at < len(text):
        negated = text[at] == "-"
        if negated and (at + 1 == len(text) or text[at + 1].isspace() or text[at + 1] == "-"):
            raise SearchError("a - stands before the term that must not match", text, at)
        term, place, end = _term(text, at + negated, negated)
        if end < len(text) and not text[end].isspace():
            raise SearchError("after a closing quote comes a space", text, end)
        yield term, place
        at = _past_space(text, end)


def _term(text: str, at: int, negated: bool) -> tuple[Term, int, int]:
    """A term, the place of its value, and where it ends."""
    if text[at] == '"':
        value, end = _read_quoted(text, at)
        return Term("", value, negated=negated), at, end
    found, word = _FIELD.match(text, at), _word(text, at)
    if found is None or (text[found.end()] == "." and ":" not in word and '"' not in word):
        return Term("", word, negated=negated), at, at + len(word)
    name, path, place = _read_field(text, at, found)
    operator, value, end = _read_value(text, place, name)
    return Term(name, value, operator, path, negated), place, end


def _read_field(text: str, at: int, found: re.Match[str]) -> tuple[str, tuple[str, ...], int]:
    """The name of a field, its path, and the place behind the colon."""
    name, end = found[0].lower(), found.end()
    if name not in _FIELDS:
        raise _unknown(text, at, found[0])
    if text[end] == "." and name not in _WITH_PATHS:
        raise SearchError(f"{name} has no parts: write {name}:value", text, end)
    path: tuple[str, ...] = ()
    while end < len(text) and text[end] == ".":
        part, end = _read_part(text, end + 1, _SEGMENT if name == "body" else _HEADER)
        path += (part,)
    if end == len(text) or text[end] != ":":
        raise SearchError(f"here a : and a value must follow, as in {name}.{'.'.join(path) or 'name'}:value", text, end)
    if name == "header" and len(path) != 1:
        raise SearchError("which header? Write header.NAME:value, with a name that has quotes as a whole", text, at)
    return name, path, end + 1


def _read_part(text: str, at: int, bare: re.Pattern[str]) -> tuple[str, int]:
    if at < len(text) and text[at] == '"':
        return _read_quoted(text, at)
    found = bare.match(text, at)
    if found is None:
        raise SearchError("a name is missing after the .", text, at)
    return found[0], found.end()


def _read_value(text: str, at: int, name: str) -> tuple[str, str, int]:
    found = _OPERATOR.match(text, at)
    operator = found[0] if found and (found[0] == "=" or _compares(text, found.end(), name)) else ":"
    at += len(operator) if operator != ":" else 0
    if operator == "=" and name in NUMBERS:
        operator = ":"  # which is the same
    if at < len(text) and text[at] == '"':
        return operator, *_read_quoted(text, at)
    value = _word(text, at)
    if not value:
        raise SearchError(f"a value is missing after {name}:", text, at)
    return operator, value, at + len(value)


def _compares(text: str, at: int, name: str) -> bool:
    """Is a < or > an operator? In a header and in a body only before a number, and in words never."""
    return name in NUMBERS or (name in _WITH_PATHS and decimal_in(_word(text, at)) is not None)


def _read_quoted(text: str, at: int) -> tuple[str, int]:
    found = _QUOTED.match(text, at)
    if found is None:
        raise SearchError('a closing " is missing for this one', text, at)
    return _ESCAPE.sub(r"\1", found[1]), found.end()


def _quote(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _word(text: str, at: int) -> str:
    found = _WORD.match(text, at)
    return found[0] if found else ""


def _past_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


def _unknown(text: str, at: int, name: str) -> SearchError:
    meant = _MEANT.get(name.lower(), name.lower())
    hint = did_you_mean(meant, _FIELDS, f"; there are {', '.join(sorted(_FIELDS))}.")
    return SearchError(f'unknown field {name}{hint} To look for the text itself, put it in quotes: "{name}…"', text, at)


def decimal_in(text: str) -> int | float | None:
    """Return the number that a text is; None if it is none."""
    if _DECIMAL.fullmatch(text) is None:
        return None
    return int(text) if text.lstrip("-").isdecimal() else float(text)
