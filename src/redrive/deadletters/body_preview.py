"""A body for people: what it says if that can be told, its bytes if not.

    JSON         indented. Numbers stand as they were written: 1.10 is not 1.1
    msgpack      as JSON, with what JSON has no word for (bytes, times) as text
    Celery       task, id, retries, args and kwargs, out of headers and body (protocol 2). Pickled arguments are never
                 loaded: to load a pickle is to run it. They are shown as Celery itself described them
    text         as it is
    gzip         and deflate (`content_encoding`) as what they stand for
    anything     else as a hex dump

The content type is what the publisher says, and publishers err: a body that is not what it is called is shown as what
it is, and the note says so. Without a content type the bytes decide.

Bodies are hostile. What is printed moves no cursor, turns no direction of writing and hides nothing: `printable` writes
such characters as escapes. No more is decoded than is shown, except for JSON and msgpack, which have no half: these are
read up to `MOST_PARSED` bytes, and beyond as text and bytes. What is printed of them ends at the limit, however it is
nested. Secrets are left out (`redrive.deadletters.redaction`) unless the caller asks for all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from itertools import chain
from typing import NamedTuple

import msgspec

from redrive.deadletters.compression import decompress
from redrive.deadletters.redaction import REDACTION, Redaction, mask, redact_text
from redrive.deadletters.redaction import redact as redact
from redrive.recovery.history import read_count, read_text
from redrive.text import printable
from redrive.wire.values import brief_repr as shortened

LIMIT = 64 * 1024
MOST_PARSED = 1024 * 1024

_MOST_DEPTH = 60  # of what is printed: indentation makes more unreadable, and large
_MOST_BYTES = 64  # of a byte string inside of a value
_MARGIN = 4096  # beyond the limit, so that a secret which is cut in two is known for one
_BLANKS = 64  # that may stand before JSON which is not called so
_DUMP_LINE = 79  # characters, for 16 bytes
_CHARSETS = {
    **dict.fromkeys(("", "utf-8", "utf8", "us-ascii", "ascii"), "utf-8"),
    **dict.fromkeys(("iso-8859-1", "latin-1", "latin1"), "latin-1"),
    **dict.fromkeys(("windows-1252", "cp1252"), "cp1252"),
    **dict.fromkeys(("utf-16", "utf-16le", "utf-16be"), "utf-16"),
}
_TEXTS = ("application/xml", "application/x-www-form-urlencoded", "application/yaml", "application/javascript")
_MSGPACKS = ("application/msgpack", "application/x-msgpack", "application/vnd.msgpack")


class BodyKind(StrEnum):
    EMPTY = "empty"
    JSON = "json"
    MSGPACK = "msgpack"
    CELERY = "celery"
    TEXT = "text"
    BINARY = "binary"


@dataclass(frozen=True, slots=True)
class ShownBody:
    kind: BodyKind
    text: str
    truncated: bool = False
    note: str = ""  # what the reader should know: that it is cut, or not what it is called


def show(
    body: bytes,
    content_type: str | None = None,
    headers: Mapping[str, object] | None = None,
    limit: int = LIMIT,
    redaction: Redaction | None = REDACTION,
    content_encoding: str | None = None,
) -> ShownBody:
    """About `limit` characters of a body. With None for `redaction`, secrets are shown, too."""
    if not body:
        return ShownBody(BodyKind.EMPTY, "", note="the body is empty")
    media = _media(content_type)
    window = _Window(max(1, limit), redaction)
    plain = decompress(body, content_encoding, MOST_PARSED + 1)
    if plain.problem:
        shown = _with_note(_dump(body, window), plain.problem)
    elif plain.truncated:
        shown = _beginning(plain.body, media, window)
    else:
        shown = _celery(plain.body, media, headers or {}, window) or _show_as_declared(plain.body, media, window)
    return replace(shown, text=printable(shown.text), note=printable(shown.note))


def _beginning(body: bytes, media: _Media, window: _Window) -> ShownBody:
    """Of a body that is larger than what was decompressed, or was cut off: JSON and msgpack have no half."""
    shown = _text(body, media, window) if body and _looks_like_text(body) else _dump(body, window)
    return _with_note(replace(shown, truncated=True), "its compressed data is too large, or incomplete: this is a part")


class _Media(NamedTuple):
    name: str
    charset: str

    @property
    def is_json(self) -> bool:
        return is_json(self.name)

    @property
    def is_msgpack(self) -> bool:
        return self.name in _MSGPACKS

    @property
    def is_text(self) -> bool:
        return self.name.startswith("text/") or self.name in _TEXTS or self.name.endswith("+xml")

    @property
    def is_unspecific(self) -> bool:
        return self.name in ("", "application/octet-stream", "application/data")


def is_json(content_type: str | None) -> bool:
    """Return whether a content type means JSON."""
    name = (content_type or "").partition(";")[0].strip().lower()
    return name in ("application/json", "text/json") or name.endswith("+json")


class _Window(NamedTuple):
    limit: int
    redaction: Redaction | None


def _media(content_type: str | None) -> _Media:
    name, _, parameters = (content_type or "")[:255].partition(";")
    _, _, charset = parameters.lower().partition("charset=")
    return _Media(name.strip().lower(), _CHARSETS.get(charset.partition(";")[0].strip(' "'), "utf-8"))


def _show_as_declared(body: bytes, media: _Media, window: _Window) -> ShownBody:
    if media.is_json or (not media.is_text and body[:_BLANKS].lstrip()[:1] in (b"{", b"[")):
        return _json(body, media, window)
    if media.is_msgpack:
        return _msgpack(body, media, window)
    return _text(body, media, window) if media.is_text or _looks_like_text(body) else _dump(body, window)


# JSON and msgpack -------------------------------------------------------------------------------------


class _Literal(str):
    """A number, as it was written."""

    __slots__ = ()


_read_json = msgspec.json.Decoder(float_hook=_Literal).decode
_read_msgpack = msgspec.msgpack.Decoder().decode
# RecursionError: nested too deep. ValueError: not UTF-8.
_UNREADABLE = (msgspec.MsgspecError, RecursionError, ValueError)


def _json(body: bytes, media: _Media, window: _Window) -> ShownBody:
    if len(body) > MOST_PARSED:
        return _with_note(_text(body, media, window), "too large to be read as JSON, so it is shown as it is")
    try:
        return _print_value(BodyKind.JSON, _read_json(body), window)
    except _UNREADABLE as error:
        shown = _text(body, media, window) if media.is_json or _looks_like_text(body) else _dump(body, window)
        return _with_note(shown, f"called {media.name}, and it is not: {error}") if media.is_json else shown


def _msgpack(body: bytes, media: _Media, window: _Window) -> ShownBody:
    if len(body) > MOST_PARSED:
        return _with_note(_dump(body, window), "too large to be read as msgpack, so its bytes are shown")
    try:
        return _print_value(BodyKind.MSGPACK, _read_msgpack(body), window)
    except _UNREADABLE as error:
        shown = _text(body, media, window) if _looks_like_text(body) else _dump(body, window)
        return _with_note(shown, f"called {media.name}, and it is not: {error}")


def _with_note(shown: ShownBody, note: str) -> ShownBody:
    return replace(shown, note="; ".join(filter(None, (note, shown.note))))


def _print_value(kind: BodyKind, value: object, window: _Window) -> ShownBody:
    if window.redaction is not None:
        value = redact(value, window.redaction)
    parts, size = [], 0
    for part in _value_parts(value, 0):
        parts.append(part)
        size += len(part)
        if size > window.limit:
            text = "".join(parts)[: window.limit]
            return ShownBody(kind, text, True, f"only the first {window.limit} characters are shown")
    return ShownBody(kind, "".join(parts))


def _value_parts(value: object, depth: int) -> Iterator[str]:
    match value:
        case dict() if value:
            named = ((f"{_quote(_key(key))}: ", element) for key, element in value.items())
            return _block("{", named, "}", depth)
        case list() | tuple() if value:
            return _block("[", (("", element) for element in value), "]", depth)
        case dict():
            return iter(("{}",))
        case list() | tuple():
            return iter(("[]",))
        case _:
            return iter((_scalar(value),))


def _block(opening: str, elements: Iterator[tuple[str, object]], closing: str, depth: int) -> Iterator[str]:
    if depth >= _MOST_DEPTH:
        yield f"{opening}…{closing}"
        return
    indent = "  " * (depth + 1)
    between = f"{opening}\n{indent}"
    for name, element in elements:
        yield between + name
        yield from _value_parts(element, depth + 1)
        between = f",\n{indent}"
    yield f"\n{'  ' * depth}{closing}"


def _key(key: object) -> str:
    return key if isinstance(key, str) else _scalar(key).strip('"')


def _scalar(value: object) -> str:
    match value:
        case _Literal():
            return str(value)
        case str():
            return _quote(value)
        case None | bool():
            return {None: "null", True: "true", False: "false"}[value]
        case int() | float():
            return shortened(value)
        case bytes():
            return _quote(_hex(value))
        case datetime():
            return _quote(value.isoformat())
        case msgspec.msgpack.Ext():
            return _quote(f"extension {value.code}: {_hex(bytes(value.data))}")
        case _:
            return _quote(shortened(value))


def _quote(text: str) -> str:
    return msgspec.json.encode(text.encode("utf-8", "backslashreplace").decode()).decode()


def _hex(data: bytes) -> str:
    return data[:_MOST_BYTES].hex() + (f"… ({len(data)} bytes)" if len(data) > _MOST_BYTES else "")


# Celery -----------------------------------------------------------------------------------------------


def _celery(body: bytes, media: _Media, headers: Mapping[str, object], window: _Window) -> ShownBody | None:
    """Protocol 2: what to do is in the headers, and the body is [args, kwargs, embed]."""
    task, identity = headers.get("task"), headers.get("id")
    if not (isinstance(task, str) and isinstance(identity, str) and {"argsrepr", "lang", "retries"} & headers.keys()):
        return None
    call: dict[str, object] = {"task": task, "id": identity, "retries": read_count(headers.get("retries"))}
    call |= {name: headers[name] for name in ("eta", "expires") if headers.get(name) is not None}
    arguments = _arguments(body, media)
    if arguments is not None:
        return _print_value(BodyKind.CELERY, call | arguments, window)
    described = {"args": read_text(headers.get("argsrepr")), "kwargs": read_text(headers.get("kwargsrepr"))}
    return _with_note(
        _print_value(BodyKind.CELERY, call | described, window), "its arguments are shown as Celery described them"
    )


def _arguments(body: bytes, media: _Media) -> dict[str, object] | None:
    read: Callable[[bytes], object] = _read_msgpack if media.is_msgpack else _read_json
    if len(body) > MOST_PARSED or not (media.is_msgpack or media.is_json or media.is_unspecific):
        return None
    try:
        match read(body):
            case [list(args), dict(kwargs), *rest]:
                embed = rest[0] if rest and isinstance(rest[0], dict) else {}
                return {"args": args, "kwargs": kwargs, **{name: value for name, value in embed.items() if value}}
            case _:
                return None
    except _UNREADABLE:
        return None


# Text and bytes ---------------------------------------------------------------------------------------


def _looks_like_text(body: bytes) -> bool:
    head = body[:_MARGIN]
    controls = sum(head.count(code) for code in chain(range(9), range(14, 27), range(28, 32)))
    return _decode_beginning(body, _MARGIN, "utf-8") is not None and controls * 20 <= len(head) and 0 not in head


def _text(body: bytes, media: _Media, window: _Window) -> ShownBody:
    text, note = _decode_beginning(body, window.limit + _MARGIN, media.charset), ""
    if text is None:
        text = body[: window.limit + _MARGIN].decode("utf-8", "backslashreplace")
        note = f"it is not {media.charset.upper()}: bytes that make no sense are shown as escapes"
    if window.redaction is not None:
        text = redact_text(text, window.redaction)
    text = text.replace("\r\n", "\n")
    truncated = len(text) > window.limit or len(body) > window.limit + _MARGIN
    cut = f"only the beginning of {len(body)} bytes is shown" if truncated else ""
    return ShownBody(BodyKind.TEXT, text[: window.limit], truncated, "; ".join(filter(None, (note, cut))))


def _decode_beginning(body: bytes, most: int, charset: str) -> str | None:
    """The beginning as text; None if it is none. The last letter may be cut in two, if that was done here."""
    head = body[:most]
    try:
        return head.decode(charset)
    except UnicodeDecodeError as error:
        if len(head) < len(body) and len(head) - error.start < 4:
            return head[: error.start].decode(charset)
        return None


def _dump(body: bytes, window: _Window) -> ShownBody:
    """As `hexdump -C` writes it. There are no keys in it by which to redact, only patterns."""
    most = max(16, window.limit // _DUMP_LINE * 16)
    head = body[: most + _MARGIN]
    if window.redaction is not None:
        head = mask(head, window.redaction)
    text = "\n".join(_dump_line(head[at : at + 16], at) for at in range(0, min(most, len(head)), 16))
    truncated = len(body) > most
    return ShownBody(
        BodyKind.BINARY, text, truncated, f"only the first {most} of {len(body)} bytes are shown" * truncated
    )


def _dump_line(data: bytes, at: int) -> str:
    letters = "".join(chr(code) if 32 <= code < 127 else "." for code in data)
    return f"{at:08x}  {data[:8].hex(' '):<23}  {data[8:].hex(' '):<23}  |{letters}|"
