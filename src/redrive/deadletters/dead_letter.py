"""Read what a message in a dead-letter queue contains: why it is there, where it came from, what happened before.

There are two kinds. One was parked by Redrive and has a failure record (`redrive.recovery.failure_headers`). The other
was put there by a broker and has `x-death`, in which RabbitMQ counts, for each queue and reason, how often the message
died:

    rejected         a consumer rejected it              expired    it waited longer than a TTL
    delivery_limit   it was delivered too often          maxlen     its queue was full

    what              from the failure record         without one
    source            x-redrive-queue                 the queue of the newest death that is a failure; if it only
                                                      expired, the queue in which it did so first: a queue in which
                                                      it was made to wait is not where it failed
    reason            a ParkReason                    that of its death in the source
    attempts          x-redrive-attempts              how often it was rejected in the source
    exchange, key     x-redrive-exchange, -key        those of its first death
    dead_at           x-redrive-parked-at             the newest time in x-death (RabbitMQ writes only that of the first
                                                      death of its kind)
    fingerprint       x-redrive-fingerprint           made of reason and source
    type              the property; for a Celery task, which has none, the name of the task

A message can have both. `x-death` next to a ParkReason came later, since parking removes it: the dead-letter queue was
full, or had a TTL. Next to the attempts of a message that was not parked it is how the message ended. If x-death has a
failure in another queue than x-redrive-queue names, x-death counts: any producer can write x-redrive-queue, and the
broker keeps it when it dead-letters the message.

Of x-death only the queue and the reason of the newest entry are surely the broker's, and only if the broker
dead-lettered the message: RabbitMQ 3.10 keeps the other entries and the x-first-death-* that a producer wrote. Whether
a message may go to the queue it names is decided where more is known (`redrive.operations.origins`).

The identity of a message is made of its `message_id`, for people, and a digest of its body and properties, since
publishers use a `message_id` twice. It must be the same at the next peek, and peeking changes messages: a quorum queue
counts in `x-delivery-count` and `x-acquired-count`, and 3.10 sorts the headers when it does. So these are left out, and
the order of headers does not count. Two messages that are the same in everything have one identity.

Any producer can write any of it, so nothing is trusted, and reading never raises (`redrive.deadletters.header_values`):
properties that cannot be read are `unreadable`, and nothing else is known of their message.

`read_summary` is for a hundred thousand messages: it skims the properties and decodes what lists, groups and searches
need. `read_dead_letter` reads everything. A `DeadLetter` is a `Summary` with more fields, made of the same summary.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from hashlib import blake2b, sha256
from typing import NamedTuple, Self, TypeAlias

from msgspec import Struct, field
from msgspec.structs import asdict, replace

from redrive.deadletters.header_values import (
    MOST_CACHED,
    fields_of,
    first_key_in,
    label_in,
    message_in,
    moment_in,
    name_in,
    number_in,
    short_text,
    stack_in,
    tables_in,
    value_of,
)
from redrive.errors import RemoteProtocolError
from redrive.recovery.failure_headers import NAMES, ParkReason
from redrive.recovery.history import Attempt, HeaderNames, read_history, read_moment, read_text
from redrive.wire.property_scan import ScannedProperties, skim
from redrive.wire.raw_properties import RawValue, read_content_encoding
from redrive.wire.values import FieldValue, as_datetime

UNKNOWN = "unknown"  # the reason of a message that tells none
MOST_DEATHS = 50  # that are read

_MOST_REASON = 40
_LONGEST_FINGERPRINT = 32
_DIGEST = 16  # hex digits
_RECOGNISED = 12  # characters of a message_id that are enough to know it again


class RedriveRecord(NamedTuple):
    """How a message was sent back to work."""

    at: datetime | None
    by: str
    operation: str
    from_queue: str
    reason: str


class DeathRecord(NamedTuple):
    """All deaths of a message in one queue for one reason."""

    queue: str
    reason: str
    times: int
    at: datetime | None  # of the first
    exchange: str | None
    routing_key: str | None
    parked: bool = False  # by Redrive, before it was re-driven; all others are the broker's
    error: str = ""
    redrive: RedriveRecord | None = None  # what was done about it


class Summary(Struct, frozen=True):
    """What lists, groups and searches need."""

    queue: str  # in which it was seen
    position: int
    id: str
    message_id: str | None = None
    correlation_id: str | None = None
    type: str | None = None
    source: str | None = None  # the queue it failed in
    exchange: str | None = None  # of the original publish
    routing_key: str | None = None
    reason: str = UNKNOWN
    error: str = ""
    error_message: str = ""
    fingerprint: str = ""
    attempts: int = 0
    dead_at: datetime | None = None
    redriven: int = 0
    last_operation: str | None = None
    size: int = 0  # of the body, in bytes
    parked: bool = False  # by Redrive; all others were put there by a broker, or by another program
    unreadable: bool = False
    named: str | None = None  # by x-redrive-queue
    deaths: tuple[DeathRecord, ...] = ()  # by the broker, since it was last re-driven; newest first

    def with_source(self, queue: str | None) -> Self:
        """Return the message as one that failed in this queue."""
        return replace(self, source=queue)


class DeadLetter(Summary, frozen=True, kw_only=True):
    """Everything that a message contains; its `error_message` is not truncated."""

    content_type: str | None = None
    timestamp: datetime | None = None
    app: str = ""  # that parked it
    host: str = ""
    stack: str = ""
    history: tuple[Attempt, ...] = ()  # oldest first
    dropped: int = 0  # older attempts, of which only the number is known
    past: tuple[DeathRecord, ...] = ()  # before that; newest first
    last_redrive: RedriveRecord | None = None
    headers: Mapping[str, FieldValue] = field(default_factory=dict)
    content_encoding: str | None = None


def read_summary(raw_properties: bytes, body: bytes, queue: str, position: int, names: HeaderNames = NAMES) -> Summary:
    """Return the summary of a message at a position in a queue."""
    try:
        skimmed = skim(raw_properties)
    except RemoteProtocolError:
        return _unreadable(raw_properties, body, queue, position)
    return _summary(raw_properties, skimmed, body, queue, position, names)


def read_dead_letter(
    raw_properties: bytes, body: bytes, *, queue: str, position: int, names: HeaderNames = NAMES
) -> DeadLetter:
    """Return a message at a position in a queue with everything it contains."""
    try:
        skimmed = skim(raw_properties)
    except RemoteProtocolError:
        return DeadLetter(**asdict(_unreadable(raw_properties, body, queue, position)))
    summary = _summary(raw_properties, skimmed, body, queue, position, names)
    headers = {name.decode("utf-8", "surrogateescape"): value_of(value) for name, value in skimmed.headers.items()}
    told = read_history(headers, summary.source or "", count_header=names.attempts, via_reject=False)
    message = read_text(headers.get(HeaderNames.MESSAGE)) if summary.parked else ""
    return DeadLetter(
        **asdict(summary) | {"error_message": message or summary.error_message},
        content_type=short_text(skimmed.content_type),
        timestamp=None if skimmed.timestamp is None else read_moment(as_datetime(skimmed.timestamp)),
        app=read_text(headers.get(HeaderNames.APP)),
        host=read_text(headers.get(HeaderNames.HOST)),
        stack=stack_in(headers.get(HeaderNames.STACK)),
        history=told.attempts,
        dropped=told.dropped,
        past=tuple(_read_deaths(skimmed.headers.get(_PAST))),
        last_redrive=_last_redrive(headers) if summary.redriven else None,
        headers=headers,
        content_encoding=read_content_encoding(raw_properties),
    )


def _unreadable(raw: bytes, body: bytes, queue: str, position: int) -> Summary:
    id, kind = _identity(raw, body, None), _stand_in_fingerprint(UNKNOWN, None)
    return Summary(queue, position, id, fingerprint=kind, size=len(body), unreadable=True)


# How it ended -----------------------------------------------------------------------------------------

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
# Exchange and routing key of the original publish; error, its message and fingerprint; time of death.
_Ending: TypeAlias = "tuple[str | None, str | None, str, str, str, datetime | None]"
_EVICTED = (_WAITED, "maxlen")  # it did not fail there: a full dead-letter queue does the same


def _summary(
    raw: bytes, skimmed: ScannedProperties, body: bytes, queue: str, position: int, names: HeaderNames
) -> Summary:
    headers = skimmed.headers
    reason = label_in(headers.get(names.reason.encode()))
    attempts = number_in(headers.get(names.attempts.encode()))
    parked = reason in _PARK_REASONS
    deaths = _read_deaths(headers.get(_X_DEATH))
    named = name_in(headers.get(_QUEUE))
    source = _source(named, deaths)
    if parked:
        exchange, routing_key, error, message, fingerprint, dead_at = _ending_by_parking(headers)
    else:
        exchange, routing_key, error, message, fingerprint, dead_at = _ending_by_death(headers, deaths, reason)
        reason = _reason(deaths, source) or label_in(headers.get(_FIRST_REASON))[:_MOST_REASON] or UNKNOWN
        attempts = max(attempts, _rejections(deaths, source))
    message_id = short_text(skimmed.message_id)
    return Summary(
        queue,
        position,
        _identity(_stable_bytes(raw, skimmed), body, message_id),
        message_id,
        short_text(skimmed.correlation_id),
        short_text(skimmed.type) or _task(headers),
        source,
        exchange,
        routing_key,
        reason,
        error,
        message,
        fingerprint[:_LONGEST_FINGERPRINT] or _stand_in_fingerprint(reason, source),
        attempts,
        dead_at,
        number_in(headers.get(_REDRIVEN)),
        label_in(headers.get(_OPERATION)) or None,
        len(body),
        parked,
        False,
        named,
        tuple(deaths),
    )


def _task(headers: Mapping[bytes, RawValue]) -> str | None:
    """Return the name of a Celery task, which is the type of its message."""
    return label_in(headers.get(b"task")) or None if b"retries" in headers and b"id" in headers else None


def _ending_by_parking(headers: Mapping[bytes, RawValue]) -> _Ending:
    return (
        name_in(headers.get(_EXCHANGE)),
        name_in(headers.get(_ROUTING_KEY)),
        label_in(headers.get(_ERROR)),
        message_in(headers.get(_MESSAGE)),
        label_in(headers.get(_FINGERPRINT)),
        moment_in(headers.get(_PARKED_AT)),
    )


def _ending_by_death(headers: Mapping[bytes, RawValue], deaths: list[DeathRecord], last_error: str) -> _Ending:
    """Return the end of a message that the broker dead-lettered. `last_error`: what its last retry, if any, wrote."""
    exchange, routing_key = _first_publish(headers, deaths)
    error, message, fingerprint = _newest_attempt(headers.get(_HISTORY)) or ("", last_error, "")
    at = max((death.at for death in deaths if death.at is not None), default=None)
    return exchange, routing_key, error, message, fingerprint, at


def _source(named: str | None, deaths: list[DeathRecord]) -> str | None:
    """The queue of the newest failure; else the one that its header names; else the one in which it expired first."""
    failed = next((death.queue for death in deaths if death.reason not in _EVICTED), None)
    if failed or named is not None:
        return failed or named
    pushed_out = next((death.queue for death in deaths if death.reason != _WAITED), None)
    return pushed_out or (deaths[-1].queue if deaths else None) or None


def _reason(deaths: list[DeathRecord], source: str | None) -> str:
    """Of its death in the source; of the newest if it has not died there, and came by a way of somebody's own."""
    there = [death.reason for death in deaths if death.queue == source] or [death.reason for death in deaths[:1]]
    return next((reason for reason in there if reason != _WAITED), there[0] if there else "")


def _rejections(deaths: list[DeathRecord], source: str | None) -> int:
    return max((death.times for death in deaths if death.reason == "rejected" and death.queue == source), default=0)


def _first_publish(headers: Mapping[bytes, RawValue], deaths: list[DeathRecord]) -> tuple[str | None, str | None]:
    """Return exchange and key of the failure record, or of the first death: the last, or the one that 3.10 names."""
    exchange, key = name_in(headers.get(_EXCHANGE)), name_in(headers.get(_ROUTING_KEY))
    if exchange is not None or not deaths:
        return exchange, key
    first = name_in(headers.get(_FIRST_QUEUE)), label_in(headers.get(_FIRST_REASON))
    named = (death for death in deaths if (death.queue, death.reason) == first)
    oldest = next(named, deaths[-1])
    return oldest.exchange, oldest.routing_key if key is None else key


def _newest_attempt(value: RawValue | None) -> tuple[str, str, str] | None:
    """Its error, message and fingerprint."""
    tables = tables_in(value)
    if not tables:
        return None
    newest = fields_of(tables[-1])
    return label_in(newest.get(b"error")), message_in(newest.get(b"message")), label_in(newest.get(b"fingerprint"))


# Identity ---------------------------------------------------------------------------------------------

_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]+")  # in a URL, a shell, a file's name
# Looking changes the counters. Stack and history are as good as any, and long: when and why it was parked says enough.
_LEFT_OUT = frozenset((b"x-delivery-count", b"x-acquired-count", _STACK, _HISTORY))
_NO_HEADERS = 0xDF  # the flag goes: a message without any has a table when it was looked at
_MANY = 64  # headers


def _stable_bytes(raw: bytes, skimmed: ScannedProperties) -> bytes:
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
def _stand_in_fingerprint(reason: str, source: str | None) -> str:
    """What is the same for all that died in the same way: as long as a fingerprint, since it stands in for one."""
    return blake2b(f"{reason}\n{source}".encode("utf-8", "backslashreplace"), digest_size=6).hexdigest()


# Deaths -----------------------------------------------------------------------------------------------


def _read_deaths(value: RawValue | None) -> list[DeathRecord]:
    tables = tables_in(value)
    if len(tables) > MOST_DEATHS:
        tables[MOST_DEATHS - 1 :] = tables[-1:]
    return [_read_death(table) if len(table) <= MOST_CACHED else _read_death.__wrapped__(table) for table in tables]


@lru_cache(2048)  # messages die by the hundred, in the same second
def _read_death(table: RawValue) -> DeathRecord:
    fields = fields_of(table)
    parked = b"fingerprint" in fields  # which no broker writes
    times = number_in(fields.get(b"count"))
    return DeathRecord(
        name_in(fields.get(b"queue")) or "",
        label_in(fields.get(b"reason"))[:_MOST_REASON],
        times if parked else max(1, times),  # that it is there says one
        moment_in(fields.get(b"time")),
        name_in(fields.get(b"exchange")),
        first_key_in(fields.get(b"routing-keys")),
        parked,
        label_in(fields.get(b"error")),
        _read_redrive(fields) if b"redriven-at" in fields else None,
    )


def _read_redrive(fields: Mapping[bytes, RawValue]) -> RedriveRecord:
    return RedriveRecord(
        at=moment_in(fields.get(b"redriven-at")),
        by=label_in(fields.get(b"redriven-by")),
        operation=label_in(fields.get(b"redriven-op")),
        from_queue=label_in(fields.get(b"redriven-from")),
        reason=label_in(fields.get(b"redriven-reason")),
    )


def _last_redrive(headers: Mapping[str, object]) -> RedriveRecord:
    return RedriveRecord(
        at=read_moment(headers.get("x-redriven-at")),
        by=read_text(headers.get("x-redriven-by")),
        operation=read_text(headers.get("x-redriven-op")),
        from_queue=read_text(headers.get("x-redriven-from")),
        reason=read_text(headers.get("x-redriven-reason")),
    )
