"""Remove the secrets of a whole message: what may be shown, and searched, without the permission to reveal.

`redrive.deadletters.redaction` does it to values; this module applies it to the body, the headers, the error texts and
the stack of a message. Names stay, since messages are found by them: ids, queues, exchanges, routing keys.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar, cast

import msgspec
from msgspec import structs

from redrive.deadletters.compression import MOST_READ, compress, decompress
from redrive.deadletters.dead_letter import DeadLetter, DeathRecord, RedriveRecord, Summary
from redrive.deadletters.json_patch import Number, read_json, write_json
from redrive.deadletters.redaction import REDACTED, REDACTION, Redaction, mask, redact, redact_text
from redrive.errors import NotJson

S = TypeVar("S", bound=Summary)

_MSGPACK = "msgpack"
_CUT_NUMBER = re.compile(r"(?:[0-9][ .-]?){7,}(?=…)|(?<=…)(?:[ .-]?[0-9]){7,}")


def hide_summary(dead_letter: S, redaction: Redaction = REDACTION) -> S:
    """Return a message without the secrets in what a summary has of it."""
    error, message = redact_text(dead_letter.error, redaction), _hide_message(dead_letter.error_message, redaction)
    return structs.replace(dead_letter, error=error, error_message=message)


def hide_dead_letter(dead_letter: DeadLetter, redaction: Redaction = REDACTION) -> DeadLetter:
    """Return a message without secrets."""
    return structs.replace(
        hide_summary(dead_letter, redaction),
        stack=redact_text(dead_letter.stack, redaction),
        history=tuple(replace(each, message=_hide_message(each.message, redaction)) for each in dead_letter.history),
        deaths=tuple(_hide_death(each, redaction) for each in dead_letter.deaths),
        past=tuple(_hide_death(each, redaction) for each in dead_letter.past),
        last_redrive=_hide_redrive(dead_letter.last_redrive, redaction),
        headers=cast("Mapping[str, Any]", redact(dead_letter.headers, redaction)),
    )


def _hide_message(message: str, redaction: Redaction) -> str:
    """Hide also long numbers at a place where the text was cut: the rest of a card number is missing there."""
    return _CUT_NUMBER.sub(REDACTED, redact_text(message, redaction))


def _hide_death(death: DeathRecord, redaction: Redaction) -> DeathRecord:
    return death._replace(error=redact_text(death.error, redaction), redrive=_hide_redrive(death.redrive, redaction))


def _hide_redrive(redrive: RedriveRecord | None, redaction: Redaction) -> RedriveRecord | None:
    return redrive._replace(reason=redact_text(redrive.reason, redaction)) if redrive is not None else None


def hide_header(name: str, value: object, redaction: Redaction = REDACTION) -> object:
    return REDACTED if redaction.hides(name) else redact(value, redaction)


def hide_body(
    body: bytes,
    content_type: str | None = None,
    redaction: Redaction = REDACTION,
    *,
    content_encoding: str | None = None,
) -> bytes:
    """Return a body without secrets: by its keys if it is JSON or msgpack, by what is recognised in it if not. One that
    has none is returned as it is. A compressed body is compressed again, without what is beyond `MOST_READ` bytes.
    """
    plain = decompress(body, content_encoding, MOST_READ)
    shown = _hide(plain.body, content_type, redaction)
    if plain.body is body:
        return shown
    return body if shown == plain.body and not plain.truncated else compress(shown, content_encoding)


def _hide(body: bytes, content_type: str | None, redaction: Redaction) -> bytes:
    try:
        told = _with_integers(read_json(body))
        shown = redact(told, redaction)
        return body if shown == told else write_json(shown)
    except (NotJson, RecursionError):
        pass
    if _MSGPACK in (content_type or ""):
        try:
            told = msgspec.msgpack.decode(body)
            shown = redact(told, redaction)
            return body if shown == told else msgspec.msgpack.encode(shown)
        except (msgspec.MsgspecError, RecursionError, ValueError, TypeError):
            pass
    try:
        return redact_text(body.decode(), redaction).encode()
    except UnicodeDecodeError:
        return mask(body, redaction)


def _with_integers(value: object) -> object:
    """A card number may be written as a number, and is looked for in those that Python can count with."""
    match value:
        case Number(text) if len(text) < 20 and text.isdecimal():
            return int(text)
        case dict():
            return {name: _with_integers(each) for name, each in value.items()}
        case list():
            return [_with_integers(each) for each in value]
        case _:
            return value
