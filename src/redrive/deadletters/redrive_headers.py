"""The properties of a message that is sent back to work.

Its counters start at zero, and its past is kept. What would be counted on, or would do harm, goes:

    our counters and story             a re-driven message has all its attempts again
    x-death, x-first-death-*,          3.10 goes on counting in the x-death of a republished message, 4.x starts again
    x-last-death-*                     at 1
    x-delivery-count, -acquired-       counted in the dead-letter queue
    CC, BCC                            would send a copy to a second queue
    x-opt-delivery-time                quorum queues delay the message until then (RabbitMQ 4.4), be it for years
    user_id                            RabbitMQ closes the channel over that of another user (406); kept as a header
    expiration                         the message may expire again
    Celery's retries and expires       counted in the message as well, and what it counts ends at `max_retries`; a task
                                       that is over its time would be thrown away at once. They stay, as 0 and nothing

and is kept as lineage, which nothing counts in and nobody strips:

    x-redriven-count                   how often it was re-driven, with this one
    x-redriven-at, -by, -op            when, by whom, in which operation
    x-redriven-from, -reason           out of which dead-letter queue, and why
    x-redriven-deaths                  the deaths, newest first, in the form of x-death: those of the broker as it wrote
                                       them, and each parking as one more, with its error and fingerprint. The newest
                                       says how it was re-driven, and so all earlier ones do

Two headers of the story stay, and are written if only x-death knew them: exchange and routing key of the original
publish. The message comes back by another way, and handlers ask for them.

All else is byte for byte what the publisher wrote: priority, delivery_mode, message_id, correlation_id, type,
timestamp, and every other header.

Properties must fit into one frame. When they do not, the oldest deaths go first, then all of them, then the reason,
then all but the count and the operation, by which a message that comes back is known. `has_room_for_lineage`
returns whether there is room for those two; a message without is sent back unmarked, so ask before. Properties that
cannot be read cannot be patched: such a message gets new ones, in which the old ones are a header.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from struct import Struct

from redrive.deadletters.dead_letter import Summary
from redrive.errors import RemoteProtocolError
from redrive.recovery.failure_headers import BUDGET, NAMES
from redrive.recovery.history import MOST, HeaderNames, read_count
from redrive.text import truncate
from redrive.wire.properties import PERSISTENT, Properties
from redrive.wire.raw_properties import (
    RawValue,
    find_header,
    patch_properties,
    raw_array,
    raw_field,
    raw_long,
    raw_text,
    raw_timestamp,
    read_user_id,
    split_array,
    split_table,
)
from redrive.wire.values import encode_value, read_value

MOST_DEATHS = 20  # that are remembered

_MOST_WORDS = 200  # characters of a name or a reason
_COPIES = frozenset((b"CC", b"BCC"))
_DELIVERY_TIME = b"x-opt-delivery-time"
_DELIVERIES = frozenset((b"x-delivery-count", b"x-acquired-count"))
_HARMFUL = frozenset(
    (
        *(b"x-death", _DELIVERY_TIME, *_DELIVERIES, *_COPIES),
        *(
            f"x-{which}-death-{what}".encode()
            for which in ("first", "last")
            for what in ("queue", "reason", "exchange")
        ),
    )
)
_COUNTERS = frozenset(
    name.encode()
    for name in (
        *(HeaderNames.HISTORY, HeaderNames.DROPPED, HeaderNames.SNOOZES, HeaderNames.CRASHES),
        *(HeaderNames.FIRST_FAILED_AT,),
    )
)
_PARKING = frozenset(
    name.encode()
    for name in (
        *(HeaderNames.NOT_BEFORE, HeaderNames.QUEUE, HeaderNames.ERROR, HeaderNames.MESSAGE, HeaderNames.STACK),
        *(HeaderNames.FINGERPRINT, HeaderNames.HOST, HeaderNames.APP, HeaderNames.PARKED_AT, HeaderNames.QUARANTINE),
    )
)
_HISTORY, _DROPPED = HeaderNames.HISTORY.encode(), HeaderNames.DROPPED.encode()
_QUEUE = HeaderNames.QUEUE.encode()
_EXCHANGE = HeaderNames.EXCHANGE.encode()
_ROUTING_KEY = HeaderNames.ROUTING_KEY.encode()
_USER_ID = HeaderNames.USER_ID.encode()
_RAW_PROPERTIES = HeaderNames.RAW_PROPERTIES.encode()
_RAW_SIZE = HeaderNames.RAW_SIZE.encode()
_COUNT, _OPERATION = HeaderNames.REDRIVEN.encode(), HeaderNames.REDRIVEN_OPERATION.encode()
_AT, _BY = HeaderNames.REDRIVEN_AT.encode(), HeaderNames.REDRIVEN_BY.encode()
_FROM, _REASON = HeaderNames.REDRIVEN_FROM.encode(), HeaderNames.REDRIVEN_REASON.encode()
_DEATHS = HeaderNames.REDRIVEN_DEATHS.encode()
_CELERY = (b"task", b"id", b"retries")  # headers by which a task of Celery's (protocol 2) is known
_RETRIES, _EXPIRES, _NOTHING = b"retries", b"expires", b"V"
_LINEAGE = frozenset((_COUNT, _OPERATION, _AT, _BY, _FROM, _REASON, _DEATHS))

_NEW_PROPERTIES = Properties(delivery_mode=PERSISTENT).encode()
_LEAST_OF_THE_OLD = 64  # bytes
_MOST_ADDED = 4096  # bytes, by the count, an operation, and three names
_SIZED = Struct(">cI")


def properties_for_redrive(
    raw: bytes,
    dead_letter: Summary,
    *,
    operation: str,
    by: str,
    at: datetime,
    reason: str,
    from_queue: str,
    keep_counters: bool = False,
    names: HeaderNames = NAMES,
    budget: int = BUDGET,
) -> bytes:
    """The properties of the copy. With `keep_counters` its attempts are counted on instead of from zero."""
    lineage = {_COUNT: _number(dead_letter.redriven + 1), **_lineage_headers(operation, by, at, reason, from_queue)}
    if dead_letter.unreadable:
        return _with_new_properties(raw, lineage, budget)
    deaths = _deaths(raw, dead_letter, _lineage_fields(operation, by, at, reason, from_queue))
    removing = _headers_to_remove(names, keep_counters)
    setting = _headers_to_keep(raw, dead_letter, names, keep_counters)
    for told in _shrinking_lineages(lineage, deaths):
        copy = _patch(raw, setting | told, removing)
        if len(copy) <= budget:
            return copy
    return _patch(raw, {}, removing)


def has_room_for_lineage(raw: bytes, dead_letter: Summary, *, names: HeaderNames = NAMES, budget: int = BUDGET) -> bool:
    """Is there room for the count and for an operation of up to 40 bytes?"""
    if dead_letter.unreadable or len(raw) + _MOST_ADDED <= budget:
        return True
    needed = {_COUNT: _number(MOST), _OPERATION: _text("0" * 40)}
    setting = _headers_to_keep(raw, dead_letter, names, False)
    return len(_patch(raw, setting | needed, _headers_to_remove(names, False))) <= budget


def properties_for_move(raw: bytes, dead_letter: Summary, *, budget: int = BUDGET) -> bytes:
    """The properties of a dead letter that goes to another dead-letter queue: with its whole failure record.

    Deliveries that were counted in the old queue are not part of it.
    """
    if dead_letter.unreadable:
        return _with_new_properties(raw, {}, budget)
    return patch_properties(properties_for_import(raw), remove_headers=_DELIVERIES)


def properties_for_import(raw: bytes) -> bytes:
    """Of a dead letter that is put back among the dead: as it was, but for what would do harm there, too."""
    user = read_user_id(raw)
    kept = {_USER_ID: raw_text(user)} if user is not None else {}
    return patch_properties(
        raw,
        set_headers=kept,
        remove_headers=_COPIES | {_DELIVERY_TIME},
        drop_expiration=True,
        drop_user_id=user is not None,
    )


def without_stamps(raw: bytes, source: str | None, names: HeaderNames = NAMES) -> bytes:
    """The same, without what the file says about where the message came from and how often it was tried.

    `source` is the queue that it belongs to from now on, if that is known.
    """
    counters = _COUNTERS | {NAMES.attempts.encode(), names.attempts.encode()}
    forgotten = _HARMFUL | counters | {_QUEUE, _EXCHANGE, _ROUTING_KEY}
    return patch_properties(
        properties_for_import(raw),
        set_headers={_QUEUE: _name(source)} if source is not None else {},
        remove_headers=forgotten - {_HISTORY},
    )


# What goes and what stays -----------------------------------------------------------------------------


@lru_cache(64)
def _headers_to_remove(names: HeaderNames, keep_counters: bool) -> frozenset[bytes]:
    counters = frozenset() if keep_counters else _COUNTERS | {names.attempts.encode()}
    return _HARMFUL | _PARKING | _LINEAGE | counters | {names.reason.encode(), _EXCHANGE, _ROUTING_KEY}


def _headers_to_keep(
    raw: bytes, dead_letter: Summary, names: HeaderNames, keep_counters: bool
) -> dict[bytes, RawValue]:
    """What the copy must know, in headers of the same names in which a retry has it."""
    kept: dict[bytes, RawValue] = {}
    if dead_letter.exchange is not None:
        kept[_EXCHANGE] = _name(dead_letter.exchange)
    if dead_letter.routing_key is not None:
        kept[_ROUTING_KEY] = _name(dead_letter.routing_key)
    user = read_user_id(raw)
    if user is not None:
        kept[_USER_ID] = raw_text(user)
    if not keep_counters:
        kept |= _celery_reset(raw)
    elif attempts := max(dead_letter.attempts, _attempts_in(raw, names)):
        kept[names.attempts.encode()] = _number(attempts)
        kept[_DROPPED] = _number(attempts - len(_tables(find_header(raw, _HISTORY))))
    return kept


def _attempts_in(raw: bytes, names: HeaderNames) -> int:
    """What the message says itself. Whoever read the letter may not have known in which header."""
    value = find_header(raw, names.attempts.encode())
    try:
        return 0 if value is None else read_count(read_value(value, 0, len(value))[0])
    except RemoteProtocolError:
        return 0


def _celery_reset(raw: bytes) -> dict[bytes, RawValue]:
    """A task of Celery's begins with no retry behind it, and with all the time it needs."""
    if any(name not in raw or find_header(raw, name) is None for name in _CELERY):
        return {}
    expires = {_EXPIRES: _NOTHING} if find_header(raw, _EXPIRES) is not None else {}
    return {_RETRIES: _number(0), **expires}


def _patch(raw: bytes, setting: Mapping[bytes, RawValue], removing: frozenset[bytes]) -> bytes:
    return patch_properties(raw, set_headers=setting, remove_headers=removing, drop_expiration=True, drop_user_id=True)


# Lineage ----------------------------------------------------------------------------------------------


def _shrinking_lineages(lineage: dict[bytes, RawValue], deaths: list[RawValue]) -> Iterator[dict[bytes, RawValue]]:
    """What there is to tell, and then less of it, the dearest last."""
    while deaths:
        yield {**lineage, _DEATHS: raw_array(deaths)}
        deaths = deaths[: len(deaths) // 2]
    yield lineage
    yield {name: value for name, value in lineage.items() if name != _REASON}
    yield {name: lineage[name] for name in (_COUNT, _OPERATION)}
    yield {_COUNT: lineage[_COUNT]}


def _deaths(raw: bytes, dead_letter: Summary, ended: bytes) -> list[RawValue]:
    """Those that were remembered, and before them those since, of which the newest says how they ended."""
    since = _tables(find_header(raw, b"x-death"))
    if dead_letter.parked:
        since.append(_parking_death(dead_letter))
    if since:
        since[0] += ended
    deaths = [*since, *_tables(find_header(raw, _DEATHS))][:MOST_DEATHS]
    return [_SIZED.pack(b"F", len(fields)) + fields for fields in deaths]


def _parking_death(dead_letter: Summary) -> bytes:
    """A parking, as the broker would write it, with what only we know at its end."""
    before, after = _parking_fields(
        dead_letter.attempts,
        dead_letter.reason,
        dead_letter.source or "",
        dead_letter.exchange or "",
        dead_letter.routing_key or "",
        dead_letter.error,
        dead_letter.fingerprint,
    )
    if dead_letter.dead_at is None:
        return before + after
    return before + _TIME + raw_timestamp(max(0, int(dead_letter.dead_at.timestamp()))) + after


_TIME = raw_field(b"time")


@lru_cache(1024)  # those that died in the same way differ in their times
def _parking_fields(
    attempts: int, reason: str, source: str, exchange: str, routing_key: str, error: str, fingerprint: str
) -> tuple[bytes, bytes]:
    """What stands before the time of a parking, and what behind it."""
    before = (
        raw_field(b"count", raw_long(attempts)),
        raw_field(b"reason", _name(reason)),
        raw_field(b"queue", _name(source)),
    )
    after = (
        raw_field(b"exchange", _name(exchange)),
        raw_field(b"routing-keys", raw_array([_name(routing_key)])),
        raw_field(b"error", _text(error)),
        raw_field(b"fingerprint", _text(fingerprint)),
    )
    return b"".join(before), b"".join(after)


def _tables(value: RawValue | None) -> list[bytes]:
    """The fields of each table in an array, as they lie there; none if they cannot be read."""
    if value is None or not value.startswith(b"A"):
        return []
    try:
        tables = [element[1:] for element in split_array(value) if element.startswith(b"F")]
        for table in tables:
            split_table(table)  # what cannot be read must not be sent
    except RemoteProtocolError:
        return []
    return [table[4:] for table in tables]


def _with_new_properties(raw: bytes, lineage: Mapping[bytes, RawValue], budget: int) -> bytes:
    whole = {**lineage, _RAW_PROPERTIES: encode_value(raw)}
    copy = patch_properties(_NEW_PROPERTIES, set_headers=whole)
    if len(copy) <= budget:
        return copy
    whole[_RAW_SIZE] = _number(len(raw))
    excess = len(patch_properties(_NEW_PROPERTIES, set_headers=whole)) - budget
    whole[_RAW_PROPERTIES] = encode_value(raw[: max(_LEAST_OF_THE_OLD, len(raw) - excess)])
    return patch_properties(_NEW_PROPERTIES, set_headers=whole)


# Values -----------------------------------------------------------------------------------------------
# The messages of one operation share all but their counts and times, so most of these are made once.


@lru_cache(256)
def _lineage_headers(operation: str, by: str, at: datetime, reason: str, from_queue: str) -> Mapping[bytes, RawValue]:
    return {
        _OPERATION: _text(operation),
        _AT: _moment(at),
        _BY: _text(by),
        _FROM: _text(from_queue),
        _REASON: _text(reason),
    }


@lru_cache(256)
def _lineage_fields(operation: str, by: str, at: datetime, reason: str, from_queue: str) -> bytes:
    """The same at the end of a death."""
    told = _lineage_headers(operation, by, at, reason, from_queue)
    return b"".join(raw_field(name.removeprefix(b"x-"), told[name]) for name in (_AT, _BY, _OPERATION, _FROM, _REASON))


def _number(value: int) -> RawValue:
    return encode_value(max(0, min(value, MOST)))


@lru_cache(256)
def _moment(at: datetime) -> RawValue:
    return raw_text(at.astimezone(UTC).isoformat(timespec="milliseconds")[:-6] + "Z")


@lru_cache(1024)
def _text(text: str) -> RawValue:
    return raw_text(truncate(text, _MOST_WORDS))


@lru_cache(1024)
def _name(text: str) -> RawValue:
    """Byte for byte."""
    return raw_text(text)
