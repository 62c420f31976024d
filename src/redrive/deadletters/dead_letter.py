"""What a message in a dead-letter queue tells: why it is there, where it came from, what happened before.

There are two kinds. One was parked by Redrive and has a story (`redrive.recovery.story`). The other was put there by a
broker and has `x-death`, in which RabbitMQ counts, for each queue and reason, how often the message died:

    rejected         a consumer refused it               expired    it waited longer than a TTL
    delivery_limit   it was delivered too often          maxlen     its queue was full

    what              from the story                  without one
    source            x-redrive-queue                 the queue of the newest death that is a failure; if it only
                                                      expired, the queue in which it did so first: a queue in which
                                                      it was made to wait is not where it failed
    reason            a ParkReason                    that of its death in the source
    attempts          x-redrive-attempts              how often it was rejected in the source
    exchange, key     x-redrive-exchange, -key        those of its first death
    dead_at           x-redrive-parked-at             the newest time in x-death (RabbitMQ writes only that of the first
                                                      death of its kind)
    fingerprint       x-redrive-fingerprint           made of reason and source
    type              the property; for a task of Celery's, which has none, the name of the task

A message can have both. `x-death` beside a ParkReason came later, since parking takes it away: the dead-letter queue
was full, or had a TTL. Beside the attempts of a message that was not parked it is how the message ended. If x-death has
a failure in another queue than x-redrive-queue names, x-death counts: any producer can write x-redrive-queue, and the
broker keeps it when it dead-letters the message.

Of x-death only the queue and the reason of the newest entry are surely the broker's, and only if the broker
dead-lettered the message: RabbitMQ 3.10 keeps the other entries and the x-first-death-* that a producer wrote. Whether
a message may go to the queue it names is decided where more is known (`redrive.runtime.dlq.origins`).

The identity of a message is made of its `message_id`, for people, and a digest of its body and properties, since
publishers use a `message_id` twice. It must be the same at the next look, and looking changes messages: a quorum queue
counts in `x-delivery-count` and `x-acquired-count`, and 3.10 sorts the headers when it does. So these are left out, and
the order of headers does not count. Two messages that are the same in everything have one identity.

All of it was written by whoever published the message, so nothing is trusted, and reading never raises: properties that
cannot be read are `unreadable`, and nothing else is known of their message.

`read_summary` is for a hundred thousand messages: it skims the properties and decodes what lists, groups and searches
need. `read_dead_letter` reads all there is. What both tell is the same, because the second asks the first.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from hashlib import blake2b, sha256
from typing import NamedTuple, TypeAlias

from redrive.errors import RemoteProtocolError
from redrive.recovery.history import (
    Attempt,
    HeaderNames,
    read_count,
    read_history,
    read_moment,
    read_name,
    read_text,
)
from redrive.recovery.story import NAMES, ParkReason
from redrive.text import truncate
from redrive.wire.patch import RawValue, read_content_encoding, split_array
from redrive.wire.skim import Skimmed, skim, skim_table
from redrive.wire.values import FieldValue, as_datetime, read_value

UNKNOWN = "unknown"  # the reason of a message that tells none
MOST_DEATHS = 50  # that are read

_MOST_LABEL = 200  # also of an error's message in a summary; a dead letter has it in full
_MOST_REASON = 40
_LONGEST_FINGERPRINT = 32
_DIGEST = 16  # hex digits
_RECOGNISED = 12  # characters of a message_id that are enough to know it again


class Redrive(NamedTuple):
    """How a message was sent back to work."""

    at: datetime | None
    by: str
    operation: str
    from_queue: str
    reason: str


class Death(NamedTuple):
    """All deaths of a message in one queue for one reason."""

    queue: str
    reason: str
    times: int
    at: datetime | None  # of the first
    exchange: str | None
    routing_key: str | None
    parked: bool = False  # by Redrive, before it was re-driven; all others are the broker's
    error: str = ""
    redrive: Redrive | None = None  # what was done about it


class Summary(NamedTuple):
    """What lists, groups and searches need."""

    queue: str  # in which it was seen
    position: int
    id: str
    message_id: str | None
    correlation_id: str | None
    type: str | None
    source: str | None  # the queue it failed in
    exchange: str | None  # of the original publish
    routing_key: str | None
    reason: str
    error: str
    error_message: str
    fingerprint: str
    attempts: int
    dead_at: datetime | None
    redriven: int
    last_operation: str | None
    size: int  # of the body, in bytes
    parked: bool  # by Redrive; all others were put there by a broker, or by somebody else
    unreadable: bool
    named: str | None = None  # by x-redrive-queue
    deaths: tuple[Death, ...] = ()  # by the broker, since it was last re-driven; newest first


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """Everything that a message tells about itself."""

    queue: str
    position: int
    id: str
    message_id: str | None
    correlation_id: str | None
    type: str | None
    source: str | None
    exchange: str | None
    routing_key: str | None
    reason: str
    error: str
    error_message: str
    fingerprint: str
    attempts: int
    dead_at: datetime | None
    redriven: int
    last_operation: str | None
    size: int
    parked: bool
    unreadable: bool
    named: str | None = None
    deaths: tuple[Death, ...] = ()
    content_type: str | None = None
    timestamp: datetime | None = None
    app: str = ""  # that parked it
    host: str = ""
    stack: str = ""
    history: tuple[Attempt, ...] = ()  # oldest first
    dropped: int = 0  # older attempts, of which only the number is known
    past: tuple[Death, ...] = ()  # before that; newest first
    last_redrive: Redrive | None = None
    headers: Mapping[str, FieldValue] = field(default_factory=dict)
    content_encoding: str | None = None


Letter: TypeAlias = "DeadLetter | Summary"


def read_summary(raw_properties: bytes, body: bytes, queue: str, position: int, names: HeaderNames = NAMES) -> Summary:
    try:
        skimmed = skim(raw_properties)
    except RemoteProtocolError:
        return _unreadable(raw_properties, body, queue, position)
    return _summary(raw_properties, skimmed, body, queue, position, names)


def read_dead_letter(
    raw_properties: bytes, body: bytes, *, queue: str, position: int, names: HeaderNames = NAMES
) -> DeadLetter:
    try:
        skimmed = skim(raw_properties)
    except RemoteProtocolError:
        return DeadLetter(*_unreadable(raw_properties, body, queue, position))
    summary = _summary(raw_properties, skimmed, body, queue, position, names)
    headers = {name.decode("utf-8", "surrogateescape"): _value(value) for name, value in skimmed.headers.items()}
    told = read_history(headers, summary.source or "", count_header=names.attempts, via_reject=False)
    message = read_text(headers.get(HeaderNames.MESSAGE)) if summary.parked else ""
    return DeadLetter(
        *summary._replace(error_message=message or summary.error_message),
        content_type=_short_text(skimmed.content_type),
        timestamp=None if skimmed.timestamp is None else read_moment(as_datetime(skimmed.timestamp)),
        app=read_text(headers.get(HeaderNames.APP)),
        host=read_text(headers.get(HeaderNames.HOST)),
        stack=_read_stack(headers.get(HeaderNames.STACK)),
        history=told.attempts,
        dropped=told.dropped,
        past=tuple(_read_deaths(skimmed.headers.get(_PAST))),
        last_redrive=_last_redrive(headers) if summary.redriven else None,
        headers=headers,
        content_encoding=read_content_encoding(raw_properties),
    )


def _unreadable(raw: bytes, body: bytes, queue: str, position: int) -> Summary:
    nothing = _Ending(None, None, None, UNKNOWN, "", "", _kind(UNKNOWN, None), 0, None)
    return Summary(
        queue, position, _identity(raw, body, None), None, None, None, *nothing, 0, None, len(body), False, True
    )


# What it tells ----------------------------------------------------------------------------------------

_X_DEATH = b"x-death"
_PAST = b"x-redriven-deaths"
_OPERATION = b"x-redriven-op"
_FIRST_QUEUE, _FIRST_REASON = b"x-first-death-queue", b"x-first-death-reason"
_QUEUE = HeaderNames.QUEUE.encode()
_EXCHANGE = HeaderNames.EXCHANGE.encode()
_ROUTING_KEY = HeaderNames.ROUTING_KEY.encode()
_ERROR = HeaderNames.ERROR.encode()
_MESSAGE = HeaderNames.MESSAGE.encode()
_FINGERPRINT = HeaderNames.FINGERPRINT.encode()
_PARKED_AT = HeaderNames.PARKED_AT.encode()
_HISTORY = HeaderNames.HISTORY.encode()
_STACK = HeaderNames.STACK.encode()
_REDRIVEN = HeaderNames.REDRIVEN.encode()
_PARK_REASONS = frozenset(map(str, ParkReason))
_WAITED = "expired"
_EVICTED = (_WAITED, "maxlen")  # it did not fail there: a full dead-letter queue does the same


class _Ending(NamedTuple):
    """Why and where it all ended."""

    source: str | None
    exchange: str | None
    routing_key: str | None
    reason: str
    error: str
    error_message: str
    fingerprint: str
    attempts: int
    dead_at: datetime | None


def _summary(raw: bytes, skimmed: Skimmed, body: bytes, queue: str, position: int, names: HeaderNames) -> Summary:
    headers = skimmed.headers
    reason = _label(headers.get(names.reason.encode()))
    parked = reason in _PARK_REASONS
    deaths = _read_deaths(headers.get(_X_DEATH))
    ending = _parked(headers, deaths, reason, names) if parked else _died(headers, deaths, reason, names)
    message_id = _short_text(skimmed.message_id)
    return Summary(
        queue,
        position,
        _identity(_stable(raw, skimmed), body, message_id),
        message_id,
        _short_text(skimmed.correlation_id),
        _short_text(skimmed.type) or _task(headers),
        *ending,
        _number(headers.get(_REDRIVEN)),
        _label(headers.get(_OPERATION)) or None,
        len(body),
        parked,
        False,
        _name(headers.get(_QUEUE)),
        tuple(deaths),
    )


def _task(headers: Mapping[bytes, RawValue]) -> str | None:
    """What kind of message it is, if it does not say so itself: for Celery's, the name of the task."""
    return _label(headers.get(b"task")) or None if b"retries" in headers and b"id" in headers else None


def _parked(headers: Mapping[bytes, RawValue], deaths: list[Death], reason: str, names: HeaderNames) -> _Ending:
    source = _source(_name(headers.get(_QUEUE)), deaths)
    return _Ending(
        source,
        _name(headers.get(_EXCHANGE)),
        _name(headers.get(_ROUTING_KEY)),
        reason,
        _label(headers.get(_ERROR)),
        _message(headers.get(_MESSAGE)),
        _label(headers.get(_FINGERPRINT))[:_LONGEST_FINGERPRINT] or _kind(reason, source),
        _number(headers.get(names.attempts.encode())),
        _moment(headers.get(_PARKED_AT)),
    )


def _died(headers: Mapping[bytes, RawValue], deaths: list[Death], told: str, names: HeaderNames) -> _Ending:
    """By the broker. `told` is what the last retry, if there was one, wrote about its error."""
    first_queue, first_reason = _name(headers.get(_FIRST_QUEUE)), _label(headers.get(_FIRST_REASON))
    source = _source(_name(headers.get(_QUEUE)), deaths)
    reason = _reason(deaths, source) or first_reason[:_MOST_REASON] or UNKNOWN
    exchange, routing_key = _published(headers, deaths, first_queue, first_reason)
    error, message, fingerprint = _newest_attempt(headers.get(_HISTORY)) or ("", told, "")
    return _Ending(
        source,
        exchange,
        routing_key,
        reason,
        error,
        message,
        fingerprint[:_LONGEST_FINGERPRINT] or _kind(reason, source),
        max(_number(headers.get(names.attempts.encode())), _rejections(deaths, source)),
        max((death.at for death in deaths if death.at is not None), default=None),
    )


def _source(named: str | None, deaths: list[Death]) -> str | None:
    """The queue of the newest failure; else the one that its header names; else the one in which it expired first."""
    failed = next((death.queue for death in deaths if death.reason not in _EVICTED), None)
    if failed or named is not None:
        return failed or named
    pushed_out = next((death.queue for death in deaths if death.reason != _WAITED), None)
    return pushed_out or (deaths[-1].queue if deaths else None) or None


def _reason(deaths: list[Death], source: str | None) -> str:
    """Of its death in the source; of the newest if it has not died there, and came by a way of somebody's own."""
    there = [death.reason for death in deaths if death.queue == source] or [death.reason for death in deaths[:1]]
    return next((reason for reason in there if reason != _WAITED), there[0] if there else "")


def _rejections(deaths: list[Death], source: str | None) -> int:
    return max((death.times for death in deaths if death.reason == "rejected" and death.queue == source), default=0)


def _published(
    headers: Mapping[bytes, RawValue], deaths: list[Death], first_queue: str | None, first_reason: str
) -> tuple[str | None, str | None]:
    """By the story, or as it was before the first death. That comes last; not always on 3.10, which names it."""
    exchange, key = _name(headers.get(_EXCHANGE)), _name(headers.get(_ROUTING_KEY))
    if exchange is not None or not deaths:
        return exchange, key
    named = (death for death in deaths if death.queue == first_queue and death.reason == first_reason)
    oldest = next(named, deaths[-1])
    return oldest.exchange, oldest.routing_key if key is None else key


def _newest_attempt(value: RawValue | None) -> tuple[str, str, str] | None:
    """Its error, message and fingerprint."""
    tables = _tables(value)
    if not tables:
        return None
    newest = _fields(tables[-1])
    return _label(newest.get(b"error")), _message(newest.get(b"message")), _label(newest.get(b"fingerprint"))


# Identity ---------------------------------------------------------------------------------------------

_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]+")  # in a URL, a shell, a file's name
# Looking changes the counters. Stack and history are as good as any, and long: when and why it was parked says enough.
_LEFT_OUT = frozenset((b"x-delivery-count", b"x-acquired-count", _STACK, _HISTORY))
_NO_HEADERS = 0xDF  # the flag goes: a message without any has a table when it was looked at
_MANY = 64  # headers


def _stable(raw: bytes, skimmed: Skimmed) -> bytes:
    """What is the same at the next look."""
    headers = skimmed.headers
    layout = tuple(headers)
    names, order = _order(layout) if len(layout) <= _MANY else _order.__wrapped__(layout)
    flags = bytes((raw[0] & _NO_HEADERS, raw[1]))
    return b"".join((flags, skimmed.before, skimmed.after, names, *map(headers.__getitem__, order)))


@lru_cache(256)  # of the messages in one queue most have the same headers
def _order(layout: tuple[bytes, ...]) -> tuple[bytes, list[bytes]]:
    order = sorted(name for name in layout if name not in _LEFT_OUT)
    return b"".join(bytes((len(name),)) + name for name in order), order


def _identity(stable: bytes, body: bytes, message_id: str | None) -> str:
    digest = sha256(b"%d:%b" % (len(stable), stable), usedforsecurity=False)
    digest.update(body)
    short = digest.hexdigest()[:_DIGEST]
    known = _UNSAFE.sub("", message_id[:_RECOGNISED]).strip("-.") if message_id else ""
    return f"{known}-{short}" if known else short


@lru_cache(1024)
def _kind(reason: str, source: str | None) -> str:
    """What is the same for all that died in the same way: as long as a fingerprint, since it stands in for one."""
    return blake2b(f"{reason}\n{source}".encode("utf-8", "backslashreplace"), digest_size=6).hexdigest()


# Deaths -----------------------------------------------------------------------------------------------


def _read_deaths(value: RawValue | None) -> list[Death]:
    tables = _tables(value)
    if len(tables) > MOST_DEATHS:
        tables[MOST_DEATHS - 1 :] = tables[-1:]
    return [_read_death(table) if len(table) <= _MOST_CACHED else _read_death.__wrapped__(table) for table in tables]


@lru_cache(2048)  # messages die by the hundred, in the same second
def _read_death(table: RawValue) -> Death:
    fields = _fields(table)
    parked = b"fingerprint" in fields  # which no broker writes
    times = _number(fields.get(b"count"))
    return Death(
        _name(fields.get(b"queue")) or "",
        _label(fields.get(b"reason"))[:_MOST_REASON],
        times if parked else max(1, times),  # that it is there says one
        _moment(fields.get(b"time")),
        _name(fields.get(b"exchange")),
        _first_key(fields.get(b"routing-keys")),
        parked,
        _label(fields.get(b"error")),
        _read_redrive(fields) if b"redriven-at" in fields else None,
    )


def _read_redrive(fields: Mapping[bytes, RawValue]) -> Redrive:
    return Redrive(
        at=_moment(fields.get(b"redriven-at")),
        by=_label(fields.get(b"redriven-by")),
        operation=_label(fields.get(b"redriven-op")),
        from_queue=_label(fields.get(b"redriven-from")),
        reason=_label(fields.get(b"redriven-reason")),
    )


def _last_redrive(headers: Mapping[str, object]) -> Redrive:
    return Redrive(
        at=read_moment(headers.get("x-redriven-at")),
        by=read_text(headers.get("x-redriven-by")),
        operation=read_text(headers.get("x-redriven-op")),
        from_queue=read_text(headers.get("x-redriven-from")),
        reason=read_text(headers.get("x-redriven-reason")),
    )


def _tables(value: RawValue | None) -> list[RawValue]:
    """The tables in an array; none if it is no array, or one that cannot be read."""
    if value is None or not value.startswith(b"A"):
        return []
    try:
        return [element for element in split_array(value) if element.startswith(b"F")]
    except RemoteProtocolError:
        return []


def _fields(table: RawValue) -> Mapping[bytes, RawValue]:
    try:
        return skim_table(table)
    except RemoteProtocolError:
        return {}


# Values that anybody may have written -----------------------------------------------------------------
# The same few names and words stand in a hundred thousand messages: they are decoded once, and kept once. Long ones are
# not: strangers write them, and a cache of them has no bound.

_MOST_CACHED = 256  # bytes
_TEXT = b"Sx"
_STRING = _TEXT[0]


def _name(raw: RawValue | None) -> str | None:
    if raw is None or len(raw) > _MOST_CACHED + 5:  # longer than any name
        return None
    return _cached_name(raw)


def _label(raw: RawValue | None) -> str:
    if raw is None:
        return ""
    return _cached_label(raw) if len(raw) <= _MOST_CACHED else _cached_label.__wrapped__(raw)


def _number(raw: RawValue | None) -> int:
    if raw is None:
        return 0
    return _cached_number(raw) if len(raw) <= _MOST_CACHED else read_count(_value(raw))


def _first_key(raw: RawValue | None) -> str | None:
    if raw is None:
        return None
    return _cached_key(raw) if len(raw) <= _MOST_CACHED else _cached_key.__wrapped__(raw)


def _message(raw: RawValue | None) -> str:
    """Seldom the same twice, so it takes the short way to what `_label` would say."""
    if raw is None or raw[0] not in _TEXT:
        return ""
    return truncate(raw[5 : 5 + 4 * _MOST_LABEL + 4].decode("utf-8", "replace"), _MOST_LABEL)


def _moment(raw: RawValue | None) -> datetime | None:
    if raw is None:
        return None
    if raw[0] == _STRING and len(raw) <= _MOST_CACHED:  # as we write it, which is read without further ado
        return read_moment(raw[5:].decode("utf-8", "replace"))
    return read_moment(_value(raw))


def _short_text(raw: bytes | None) -> str | None:
    return None if raw is None else truncate(raw.decode("utf-8", "surrogateescape"), 255)


@lru_cache(2048)
def _cached_name(raw: RawValue) -> str | None:
    return read_name(_value(raw))


@lru_cache(2048)
def _cached_label(raw: RawValue) -> str:
    return truncate(read_text(_value(raw)), _MOST_LABEL)


@lru_cache(2048)
def _cached_number(raw: RawValue) -> int:
    return read_count(_value(raw))


@lru_cache(2048)
def _cached_key(raw: RawValue) -> str | None:
    keys = _value(raw)
    return read_name(keys[0]) if isinstance(keys, list) and keys else None


def _read_stack(value: object) -> str:
    """As long as it was written."""
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    return truncate(value, len(value)) if isinstance(value, str) else ""


def _value(raw: RawValue) -> FieldValue:
    """Decoded; None if it cannot be."""
    try:
        return read_value(raw, 0, len(raw))[0]
    except RemoteProtocolError:
        return None
