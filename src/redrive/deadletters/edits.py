"""A message that somebody changes before it goes back to work, and what that changes, for people to see.

An `Edit` says what is to be different: the body, some headers, some properties. All else stays byte for byte, down to
the type in which a header is written: one that is set to the value it has is not encoded again.

What a broker would end the connection for is refused here, before anything is sent:

    a name or property of more than 255 bytes; a value AMQP has no type for; properties that do not fit into a frame

and so is what would not do what was meant:

    headers in which brokers and Redrive keep their books (x-death, x-redrive…, CC): a re-drive writes or removes them
    user_id, expiration: a re-drive takes them out
    a body that is called JSON and is none; unless it is forced

`diff` shows both sides as lines: JSON indented, bytes in hex. It is made for a terminal and for hostile messages:
nothing in it moves a cursor, secrets are left out unless the caller asks for all of it, and it ends. A change is never
hidden by the last of these: where there is one that cannot be seen, a line says so.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from difflib import SequenceMatcher
from typing import NamedTuple, TypeAlias

from redrive.deadletters.body_preview import BodyKind, is_json, show
from redrive.deadletters.json_patch import read_json
from redrive.deadletters.redaction import REDACTED, REDACTION, Redaction, mask, redact
from redrive.errors import EditRefused, EncodingError, NotJson, RemoteProtocolError
from redrive.recovery.failure_headers import BUDGET
from redrive.text import did_you_mean, printable
from redrive.wire.properties import Properties, decode_properties
from redrive.wire.raw_properties import RawValue, check_properties, find_header, patch_properties, with_property
from redrive.wire.values import FieldValue, encode_short_string, encode_value, read_value

PropertyValue: TypeAlias = "str | int | datetime | None"

EDITABLE = (
    *("content_type", "content_encoding", "delivery_mode", "priority", "correlation_id", "reply_to", "message_id"),
    *("timestamp", "type", "app_id"),
)
_WHY_NOT = {
    "headers": "set and remove headers one by one",
    "user_id": "RabbitMQ takes it from that user alone, so a re-drive leaves it out",
    "expiration": "a re-drive takes it out, since the message would expire again",
    "cluster_id": "AMQP has no use for it any more",
}
_BOOKS = frozenset(("x-death", "x-delivery-count", "x-acquired-count", "CC", "BCC", "x-opt-delivery-time"))
_BOOKS_BEGIN = ("x-redrive-", "x-redriven-", "x-first-death-", "x-last-death-")


class Content(NamedTuple):
    raw_properties: bytes
    body: bytes


class EditPreview(NamedTuple):
    """What a change would make of one message: a difference, nothing (it is skipped), or a problem."""

    id: str
    difference: str | None = None
    problem: str = ""  # why the message cannot be changed

    @property
    def text(self) -> str:
        if self.problem:
            return f"cannot be changed: {self.problem}"
        return "is skipped" if self.difference is None else self.difference


@dataclass(frozen=True, slots=True)
class Edit:
    body: bytes | None = None  # None: as it is
    set_headers: Mapping[str, FieldValue] = field(default_factory=dict)
    remove_headers: Collection[str] = ()
    properties: Mapping[str, PropertyValue] = field(default_factory=dict)  # of `EDITABLE`; None takes one out

    def __post_init__(self) -> None:
        if self.body is not None and not isinstance(self.body, bytes):
            raise EditRefused(f"a body is bytes, and this is {type(self.body).__name__}")
        if isinstance(self.remove_headers, str):
            raise EditRefused("remove_headers is a list of names, and this is one text")
        for name in self.properties:
            if name not in EDITABLE:
                raise EditRefused(_not_editable_text(name))
        for name in self.set_headers:
            if name in self.remove_headers:
                raise EditRefused(f"header {name}: set and removed at once")
            if name in _BOOKS or str(name).startswith(_BOOKS_BEGIN):
                raise EditRefused(f"header {name}: a re-drive writes or removes it, so setting it would be in vain")

    @property
    def is_nothing(self) -> bool:
        return self.body is None and not (self.set_headers or self.remove_headers or self.properties)


def _not_editable_text(name: str) -> str:
    if name in _WHY_NOT:
        return f"property {name} cannot be set: {_WHY_NOT[name]}"
    return f"unknown property {name}" + did_you_mean(str(name), EDITABLE, f": want {', '.join(EDITABLE)}")


# Doing it ---------------------------------------------------------------------------------------------


def apply_edit(content: Content, edit: Edit, *, force: bool = False, budget: int = BUDGET) -> Content:
    """The message as it will be, or EditRefused. With `force` a body need not be what its content type says."""
    raw, body = content
    try:
        check_properties(raw)
    except RemoteProtocolError as error:
        raise EditRefused(f"its properties cannot be read, so they cannot be changed: {error.text}") from None
    changed = patch_properties(
        raw,
        set_headers=dict(_set_headers(raw, edit.set_headers)),
        remove_headers=[_header_name(name) for name in edit.remove_headers],
    )
    for name, value in edit.properties.items():
        changed = with_property(changed, name, _encode_property(name, value))
    if len(changed) > max(budget, len(raw)):
        raise EditRefused(f"its properties would have {len(changed)} bytes, and a frame holds {budget}")
    if edit.body is not None:
        body = edit.body
    if not force and (body != content.body or "content_type" in edit.properties):
        _check_body(changed, body)
    return Content(changed, body)


def _set_headers(raw: bytes, headers: Mapping[str, FieldValue]) -> Iterator[tuple[bytes, RawValue]]:
    for name, value in headers.items():
        encoded_name = _header_name(name)
        if not _has_value(find_header(raw, encoded_name), value):
            try:
                yield encoded_name, encode_value(value)
            except EncodingError as error:
                raise EditRefused(f"header {printable(name)}: {error}") from None


def _is_the_same(one: object, other: object) -> bool:
    """Also in its types, all the way down: 1 is not true."""
    if type(one) is not type(other) or one != other:
        return False
    if isinstance(one, dict) and isinstance(other, dict):
        return all(_is_the_same(value, other[name]) for name, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return all(map(_is_the_same, one, other))
    return True


def _has_value(raw: RawValue | None, value: FieldValue) -> bool:
    """The value of a header, in whatever type its publisher wrote it."""
    if raw is None:
        return False
    try:
        return _is_the_same(read_value(raw, 0, len(raw))[0], value)
    except (RemoteProtocolError, RecursionError):
        return False


def _header_name(name: str) -> bytes:
    try:
        return encode_short_string(name)[1:]
    except EncodingError as error:
        raise EditRefused(f"the name of a header: {error}") from None


def _encode_property(name: str, value: PropertyValue) -> bytes | None:
    if value is None:
        return None
    try:
        return Properties(**{name: value}).encode()[2:]  # type: ignore[arg-type]
    except EncodingError as error:
        raise EditRefused(f"property {name}: {error}") from None


def _check_body(raw: bytes, body: bytes) -> None:
    properties = decode_properties(raw)
    if properties.content_encoding or not is_json(properties.content_type):
        return
    try:
        read_json(body)
    except NotJson as error:
        raise EditRefused(
            f"the body is called {printable(properties.content_type or '')}, and it is not: {error}. "
            "Change the content type, or force it"
        ) from None


# Showing it -------------------------------------------------------------------------------------------

LIMIT = 64 * 1024  # characters of a diff
_MOST_LINES = 2_000  # that are compared on either side, between the first difference and the last
_MOST_SHOWN = 8 * 1024 * 1024  # characters of a body that are looked at
_MOST_LINE = 400  # characters; longer ones go on in the next
_CONTEXT = 3
_HEX = 16  # bytes in a line

_Lines: TypeAlias = list[str]


def diff(old: Content, new: Content, *, redaction: Redaction | None = REDACTION, limit: int = LIMIT) -> str:
    """What changes, as a unified diff of properties and headers and one of the body; empty if nothing does."""
    parts = [
        *_section("properties", old.raw_properties, new.raw_properties, *_head_lines(old, new, redaction)),
        *_section("body", old.body, new.body, *_body_lines(old, new, redaction)),
    ]
    text = "\n".join(parts)
    return text if len(text) <= limit else f"{text[:limit]}\n(and more: only the first {limit} characters are shown)"


def _section(name: str, old: bytes, new: bytes, before: _Lines, after: _Lines) -> Iterator[str]:
    if old == new:
        return
    yield f"--- {name} ({len(old)} bytes)"
    yield f"+++ {name} ({len(new)} bytes)"
    hunks = list(_hunks(before, after))
    yield from hunks or ["(they differ only in how they are written, or in what is not shown)"]


def _hunks(old: Sequence[str], new: Sequence[str]) -> Iterator[str]:
    """What is the same at both ends is left out first: the rest is short, and comparing is dear."""
    first = _common(old, new)
    last = _common(old[first:][::-1], new[first:][::-1])
    start = max(0, first - _CONTEXT)
    a, b = (lines[start : len(lines) - max(0, last - _CONTEXT)] for lines in (old, new))
    cut = max(len(a), len(b)) > _MOST_LINES
    a, b = a[:_MOST_LINES], b[:_MOST_LINES]
    if first == len(old) == len(new):
        return
    for group in SequenceMatcher(None, a, b).get_grouped_opcodes(_CONTEXT):
        (_, a1, _, b1, _), (_, _, a2, _, b2) = group[0], group[-1]
        yield f"@@ -{_span(start + a1, a2 - a1)} +{_span(start + b1, b2 - b1)} @@"
        for tag, i1, i2, j1, j2 in group:
            if tag == "equal":
                yield from (f" {line}" for line in a[i1:i2])
            else:
                yield from (f"-{line}" for line in a[i1:i2])
                yield from (f"+{line}" for line in b[j1:j2])
    if cut:
        yield f"(and more: only {_MOST_LINES} lines from the first difference on are compared)"


def _span(start: int, size: int) -> str:
    """As `diff -u` writes it: lines count from 1, and of none the one before is named."""
    return f"{start + (size > 0)},{size}"


def _common(one: Sequence[str], other: Sequence[str]) -> int:
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _head_lines(old: Content, new: Content, redaction: Redaction | None) -> tuple[_Lines, _Lines]:
    return _property_lines(old.raw_properties, redaction), _property_lines(new.raw_properties, redaction)


def _property_lines(raw: bytes, redaction: Redaction | None) -> _Lines:
    try:
        properties = decode_properties(raw)
    except RemoteProtocolError:
        return _hex_lines(raw, redaction)
    known = {name: getattr(properties, name) for name in (*EDITABLE, *_WHY_NOT) if name != "headers"}
    lines = [f"{name}: {_value(value)}" for name, value in known.items() if value is not None]
    headers: Mapping[str, object] = properties.headers or {}
    for name, value in headers.items():
        hidden = REDACTED if redaction and redaction.hides(name) else redact(value, redaction) if redaction else value
        lines.append(f"header {name}: {_value(hidden)}")
    return _short_lines(lines)


def _value(value: object) -> str:
    match value:
        case str():
            return value
        case datetime():
            return value.isoformat()
        case bytes() | bytearray():
            return f"0x{value.hex()}"
        case _:
            return repr(value)


def _body_lines(old: Content, new: Content, redaction: Redaction | None) -> tuple[_Lines, _Lines]:
    before, after = (show(body, _content_type(raw), None, _MOST_SHOWN, redaction) for raw, body in (old, new))
    if BodyKind.BINARY in (before.kind, after.kind):
        return _hex_lines(old.body, redaction), _hex_lines(new.body, redaction)
    return _text_lines(before.text), _text_lines(after.text)


def _text_lines(text: str) -> _Lines:
    return _short_lines(text.split("\n")) if text else []


def _content_type(raw: bytes) -> str | None:
    try:
        return decode_properties(raw).content_type
    except RemoteProtocolError:
        return None


def _short_lines(lines: Sequence[str]) -> _Lines:
    """Made visible first, and then cut: an escape is longer than what it stands for."""
    return [
        line[at : at + _MOST_LINE]
        for line in (printable(line).replace("\n", "\\n") for line in lines)
        for at in range(0, max(1, len(line)), _MOST_LINE)
    ]


def _hex_lines(data: bytes, redaction: Redaction | None) -> _Lines:
    """Without the offsets of a hex dump: these would make all lines differ behind the first that does."""
    data = data[:_MOST_SHOWN]
    if redaction is not None:
        data = mask(data, redaction)
    return [_hex_line(data[at : at + _HEX]) for at in range(0, len(data), _HEX)]


def _hex_line(data: bytes) -> str:
    letters = "".join(chr(code) if 32 <= code < 127 else "." for code in data)
    return f"{data.hex(' '):<{3 * _HEX - 1}}  |{letters}|"
