"""The headers of a failure record, in parts that are trimmed until they fit into a budget.

The dearest parts go first: old attempts, the stack, long texts, all attempts, everything but what the next decision is
made from, and at last everything but the count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from struct import Struct
from typing import NamedTuple

from redrive.recovery.durations import milliseconds
from redrive.recovery.history import MOST, Attempt, HeaderNames
from redrive.text import elide_lines, truncate
from redrive.wire.raw_properties import RawValue, raw_array, raw_long

_FEW_WORDS = 80
_SHORTEST_STACK = 200
_MOST_LABEL = 200

_HISTORY = HeaderNames.HISTORY.encode()
_DROPPED = HeaderNames.DROPPED.encode()
_STACK = HeaderNames.STACK.encode()

_INT = Struct(">ci")
_SIZED = Struct(">cI")


class HeaderDraft(NamedTuple):
    """A story in the parts by which it is shortened, the dearest first."""

    failed: Mapping[bytes, RawValue]  # how many attempts did
    core: Mapping[bytes, RawValue]  # what the next decision is made from, and what parked messages are grouped by
    facts: Mapping[bytes, RawValue]
    words: Mapping[bytes, str]
    stack: str = ""
    attempts: tuple[Attempt, ...] = ()
    dropped: int = 0


def headers_of(draft: HeaderDraft) -> dict[bytes, RawValue]:
    headers = {**draft.failed, **draft.core, **draft.facts}
    for name, text in draft.words.items():
        headers[name] = encode_text(text)
    if draft.stack:
        headers[_STACK] = encode_text(draft.stack)
    if draft.attempts:
        headers[_HISTORY] = raw_array(map(encode_attempt, draft.attempts))
    if draft.dropped:
        headers[_DROPPED] = encode_number(draft.dropped)
    return headers


def trim_to(draft: HeaderDraft, room: int) -> dict[bytes, RawValue]:
    for shorten in _TRIMMERS:
        headers = headers_of(draft)
        excess = size_of(headers) - room
        if excess <= 0:
            return headers
        draft = shorten(draft, excess)
    headers = headers_of(draft)
    return headers if size_of(headers) <= room else {}


def _fewer_attempts(draft: HeaderDraft, excess: int) -> HeaderDraft:
    goes, freed = 0, -(len(_DROPPED) + 6)  # what it takes to say that some are missing
    for attempt in draft.attempts[:-1]:
        if freed >= excess:
            break
        goes += 1
        freed += len(encode_attempt(attempt))
    return draft._replace(attempts=draft.attempts[goes:], dropped=draft.dropped + goes)


def _shorter_stack(draft: HeaderDraft, excess: int) -> HeaderDraft:
    room = len(encode_text(draft.stack)) - 5 - excess
    return draft._replace(stack=elide_lines(draft.stack, room) if room >= _SHORTEST_STACK else "")


def _shorter_texts(draft: HeaderDraft, _: int) -> HeaderDraft:
    return draft._replace(
        words={name: truncate(text, _FEW_WORDS) for name, text in draft.words.items()},
        attempts=tuple(replace(attempt, message=truncate(attempt.message, _FEW_WORDS)) for attempt in draft.attempts),
    )


def _no_attempts(draft: HeaderDraft, _: int) -> HeaderDraft:
    return draft._replace(attempts=(), dropped=draft.dropped + len(draft.attempts))


def _core_alone(draft: HeaderDraft, _: int) -> HeaderDraft:
    return HeaderDraft(draft.failed, draft.core, {}, {}, dropped=draft.dropped)


def _count_alone(draft: HeaderDraft, _: int) -> HeaderDraft:
    """With the number of attempts that are not told: without it the count would not be believed."""
    return HeaderDraft(draft.failed, {}, {}, {}, dropped=draft.dropped)


_TRIMMERS: tuple[Callable[[HeaderDraft, int], HeaderDraft], ...] = (
    *(_fewer_attempts, _shorter_stack, _shorter_texts, _no_attempts, _core_alone, _count_alone),
)


def size_of(headers: Mapping[bytes, RawValue]) -> int:
    return sum(1 + len(name) + len(value) for name, value in headers.items())


# Values ---------------------------------------------------------------------------------------------


def encode_attempt(attempt: Attempt) -> RawValue:
    at = encode_moment(attempt.at) if attempt.at is not None else None
    return _encode_attempt(attempt.number, attempt.error_type, attempt.message, attempt.fingerprint, at, attempt.delay)


def _encode_attempt(
    number: int, error_type: str, message: str, fingerprint: str, at: RawValue | None, delay: timedelta | None
) -> RawValue:
    """One table of the history. There are as many as the message has failed, so it is put together by hand."""
    parts = [
        *(b"\x06number", encode_number(number), b"\x05error", encode_text(error_type)),
        *(b"\x07message", encode_text(message), b"\x0bfingerprint", encode_text(fingerprint)),
    ]
    if at is not None:
        parts += (b"\x02at", at)
    body = b"".join((*parts, delay_field(delay)))
    return _SIZED.pack(b"F", len(body)) + body


def delay_field(delay: timedelta | None) -> bytes:
    return b"" if delay is None else b"\x08delay-ms" + raw_long(max(0, milliseconds(delay)))


def encode_number(value: int) -> RawValue:
    return _INT.pack(b"I", max(0, min(value, MOST)))


def encode_moment(at: datetime) -> RawValue:
    """As people read it, to the millisecond: AMQP's own timestamps know only seconds."""
    if at.tzinfo is not UTC:
        at = at.astimezone(UTC)
    return b"S\0\0\0\x18%04d-%02d-%02dT%02d:%02d:%02d.%03dZ" % (
        *(at.year, at.month, at.day, at.hour, at.minute, at.second, at.microsecond // 1000),
    )


def encode_label(text: str) -> RawValue:
    return encode_text(truncate(text, _MOST_LABEL))


def encode_text(text: str) -> RawValue:
    """Text of our own. It is always UTF-8, so that it is read back as text."""
    try:
        raw = text.encode()
    except UnicodeEncodeError:
        raw = text.encode("utf-8", "backslashreplace")
    return _SIZED.pack(b"S", len(raw)) + raw
