"""The story of a failure, written into the headers of the message that failed.

A message that is published again, to wait or to be parked, carries what happened: how often it failed, every attempt
with its time and error, where it came from and, once it is parked, why, with the stack. All else that the publisher
wrote stays byte for byte, except what would harm the copy:

    x-death, x-first-death-*, x-last-death-*       3.10 would count on in them, and see cycles where there are none
    x-delivery-count, x-acquired-count             counted in another queue
    CC, BCC                                        would send copies to queues that had theirs
    x-opt-delivery-time                            quorum queues delay the copy until then (RabbitMQ 4.4)
    expiration                                     would kill what is kept here on purpose
    user_id                                        RabbitMQ refuses that of another user (406); kept as a header
    headers of an older story                      superseded

Properties must fit into one frame: larger ones close the connection, and would do so again with every redelivery. So a
story has a budget, which is for all properties together. When it does not suffice, these go, one after the other, each
only as far as needed:

    1. the oldest attempts (their number is told)     4. the last attempt
    2. the middle of the stack, then all of it        5. all but counts, times, reason and fingerprint
    3. the end of long words                          6. all but the count, and of how many nothing is told
                                                      7. even that: nothing is told

A publisher who leaves 512 bytes keeps the fifth. The seventh is for one who fills the frame up to the last bytes: the
copy is then not larger than the original. Its count is still the old one, so such a message must not be retried this
way: ask `has_room_for_counter` first, and park it.

Properties that cannot be read cannot be patched. The story then gets properties of its own, persistent, in which the
old ones are a header: every byte of them, or as many as the budget allows and their size. That needs a budget of 1 KiB;
the smallest frame of AMQP has four.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from struct import Struct
from typing import NamedTuple

import msgspec

from redrive.errors import RemoteProtocolError
from redrive.recovery.failure import Failure
from redrive.recovery.header_draft import (
    HeaderDraft,
    delay_field,
    encode_label,
    encode_moment,
    encode_number,
    encode_text,
    headers_of,
    size_of,
    trim_to,
)
from redrive.recovery.history import MOST, MOST_ATTEMPTS, NO_HISTORY, Attempt, History
from redrive.recovery.history import HeaderNames as HeaderNames
from redrive.text import truncate
from redrive.wire.properties import PERSISTENT, Properties
from redrive.wire.raw_properties import (
    RawValue,
    check_properties,
    patch_properties,
    raw_field,
    raw_text,
    read_user_id,
    with_new_headers,
)
from redrive.wire.values import encode_value

BUDGET = 64 * 1024
NAMES = HeaderNames()

_CORE = 512  # bytes: what is left at the fifth step is smaller
_TABLE = 4  # bytes: the length of a table, where there was none
# Bytes that the counts take beside the name of the first: a table's length; the names', types and numbers; a name.
_COUNT = 4 + 2 * 6 + len(HeaderNames.DROPPED)
_ATTEMPT_WORDS = 250  # characters; the newest message is there in full when it is parked
_LONGEST_FINGERPRINT = 32

_HARMFUL = (
    *(b"x-death", b"x-first-death-queue", b"x-first-death-reason", b"x-first-death-exchange"),
    *(b"x-last-death-queue", b"x-last-death-reason", b"x-last-death-exchange"),
    *(b"x-delivery-count", b"x-acquired-count", b"CC", b"BCC", b"x-opt-delivery-time"),
)
_TRACES = (  # all these names, in a few
    *(b"-death", b"x-delivery-count", b"x-acquired-count", b"CC", b"x-opt-delivery-time", b"x-redrive-"),
)
_HISTORY = HeaderNames.HISTORY.encode()
_DROPPED = HeaderNames.DROPPED.encode()
_SNOOZES = HeaderNames.SNOOZES.encode()
_CRASHES = HeaderNames.CRASHES.encode()
_QUARANTINE = HeaderNames.QUARANTINE.encode()
_FIRST_FAILED_AT = HeaderNames.FIRST_FAILED_AT.encode()
_NOT_BEFORE = HeaderNames.NOT_BEFORE.encode()
_EXCHANGE = HeaderNames.EXCHANGE.encode()
_ROUTING_KEY = HeaderNames.ROUTING_KEY.encode()
_QUEUE = HeaderNames.QUEUE.encode()
_ERROR = HeaderNames.ERROR.encode()
_MESSAGE = HeaderNames.MESSAGE.encode()
_STACK = HeaderNames.STACK.encode()
_FINGERPRINT = HeaderNames.FINGERPRINT.encode()
_HOST = HeaderNames.HOST.encode()
_APP = HeaderNames.APP.encode()
_PARKED_AT = HeaderNames.PARKED_AT.encode()
_USER_ID = HeaderNames.USER_ID.encode()
_RAW_PROPERTIES = HeaderNames.RAW_PROPERTIES.encode()
_RAW_SIZE = HeaderNames.RAW_SIZE.encode()
_FAILURE_RECORD = (
    *(_HISTORY, _DROPPED, _SNOOZES, _CRASHES, _FIRST_FAILED_AT, _NOT_BEFORE, _EXCHANGE, _ROUTING_KEY, _QUEUE),
    *(_ERROR, _MESSAGE, _STACK, _FINGERPRINT, _HOST, _APP, _PARKED_AT, _QUARANTINE),
)

_FIELD_FIRST_FAILED_AT = raw_field(_FIRST_FAILED_AT)
_FIELD_HISTORY = raw_field(_HISTORY)

_SIZED = Struct(">cI")
_NEW_PROPERTIES = Properties(delivery_mode=PERSISTENT).encode()


class ParkReason(StrEnum):
    EXHAUSTED = "exhausted"  # the last attempt failed
    PERMANENT = "permanent"  # an error that does not pass
    MALFORMED = "malformed"  # the body cannot be decoded or validated
    EXPIRED = "expired"  # older than the policy's max_age
    CRASHED = "crashed"  # kills whoever handles it
    UNCOUNTABLE = "uncountable"  # its headers have no room for the count of its attempts
    REQUESTED = "requested"  # its handler wanted it
    BROKER = "broker"  # the broker gave it up


class Origin(msgspec.Struct, frozen=True, gc=False):
    """Where a message came from, and who writes its story."""

    exchange: str  # by which it was delivered
    routing_key: str
    queue: str
    app: str
    host: str


def properties_for_retry(
    raw: bytes,
    history: History,
    failure: Failure | None,
    *,
    origin: Origin,
    attempt: int,
    delay: timedelta | None,
    not_before: datetime | None = None,
    mark: str = "",
    names: HeaderNames = NAMES,
    budget: int = BUDGET,
) -> bytes:
    """The properties of a copy that will be tried again.

    `attempt` is the number of the one that ended in `failure`. Without a failure no attempt is counted: it is a snooze,
    or a move into or out of quarantine, and `history` is the one `with_another_snooze` or `with_crashes`. `mark` is
    that of a message in quarantine (`recovery.admission`).
    """
    if history is NO_HISTORY and failure is not None and attempt == 1 and not_before is None:
        first = _first_retry(raw, failure, origin, attempt, delay, names)
        if first is not None and len(first) <= budget:
            return first
    attempts, dropped = _attempts(history, failure, attempt, delay)
    draft = HeaderDraft(
        failed={names.attempts.encode(): encode_number(_failed_attempts(history, failure, attempt))},
        core=_state(history, failure, not_before) | ({_QUARANTINE: encode_text(mark)} if mark else {}),
        facts=_origin(history, origin),
        words={names.reason.encode(): names.format_reason(attempts[-1].error_type, attempts[-1].message)}
        if attempts
        else {},
        attempts=attempts,
        dropped=dropped,
    )
    return _write_headers(raw, draft, names, budget)


def properties_for_parking(
    raw: bytes,
    history: History,
    failure: Failure | None,
    *,
    reason: ParkReason,
    origin: Origin,
    attempt: int,
    at: datetime,
    names: HeaderNames = NAMES,
    budget: int = BUDGET,
) -> bytes:
    """The properties of a copy for the dead-letter queue. Without a failure no attempt is counted."""
    attempts, dropped = _attempts(history, failure, attempt, None)
    core, facts = _state(history, failure, None), _origin(history, origin)
    core[names.reason.encode()] = encode_text(reason)
    facts[_HOST], facts[_APP], facts[_PARKED_AT] = (
        encode_label(origin.host),
        encode_label(origin.app),
        encode_moment(at),
    )
    if failure is not None:
        core[_FINGERPRINT], facts[_ERROR] = (
            encode_text(failure.fingerprint[:_LONGEST_FINGERPRINT]),
            encode_label(failure.error_type),
        )
    draft = HeaderDraft(
        failed={names.attempts.encode(): encode_number(_failed_attempts(history, failure, attempt))},
        core=core,
        facts=facts,
        words={_MESSAGE: failure.message} if failure is not None else {},
        stack=failure.stack if failure is not None else "",
        attempts=attempts,
        dropped=dropped,
    )
    return _write_headers(raw, draft, names, budget)


def has_room_for_counter(raw: bytes, *, names: HeaderNames = NAMES, budget: int = BUDGET) -> bool:
    """Is there room for the count? A message without is not retried by publishing it again: it would never end."""
    if len(raw) + _COUNT + len(names.attempts) <= budget:  # there nearly always is
        return True
    try:
        check_properties(raw)
    except RemoteProtocolError:
        return True
    counts = {names.attempts.encode(): encode_number(MOST), _DROPPED: encode_number(MOST)}
    return len(_patch(raw, counts, names)) <= budget


# The first time -------------------------------------------------------------------------------------


def _first_retry(
    raw: bytes, failure: Failure, origin: Origin, attempt: int, delay: timedelta | None, names: HeaderNames
) -> bytes | None:
    """What fails for the first time, as most do that fail: there is no older story, so the new one is written in one
    go, byte for byte what all of the below would come to. None if there is more to do than that.
    """
    try:
        check_properties(raw)
    except RemoteProtocolError:
        return None
    frame = _frame(names, failure.error_type, failure.fingerprint, attempt, delay)
    message = truncate(failure.message, _ATTEMPT_WORDS)
    at, told = encode_moment(failure.at), encode_text(message)
    size = frame.attempt_size + len(told) + len(at)
    story = (
        *(frame.failed, at, _origin_fields(origin.exchange, origin.routing_key, origin.queue)),
        *(frame.reason, encode_text(message.join(frame.around_message)), _FIELD_HISTORY),
        *(_SIZED.pack(b"A", size + 5), _SIZED.pack(b"F", size)),
        *(frame.attempt, told, frame.fingerprint, at, frame.delay),
    )
    return with_new_headers(raw, b"".join(story), unless=frame.traces)


@lru_cache(256)
def _origin_fields(exchange: str, routing_key: str, queue: str) -> bytes:
    return b"".join(
        (
            raw_field(_EXCHANGE, raw_text(exchange)),
            raw_field(_ROUTING_KEY, raw_text(routing_key)),
            raw_field(_QUEUE, raw_text(queue)),
        )
    )


class _HeaderFrame(NamedTuple):
    """A first story without its time, its origin and its words: for one kind of failure always the same."""

    failed: bytes  # how many attempts did; and the name of the time
    reason: bytes  # its name
    around_message: list[str]  # its words
    attempt: bytes  # up to its message
    fingerprint: bytes  # and the name of the time
    delay: bytes
    attempt_size: int  # of these three
    traces: tuple[bytes, ...]  # where none of these is found, nothing is superseded


@lru_cache(256)
def _frame(
    names: HeaderNames, error_type: str, fingerprint: str, attempt: int, delay: timedelta | None
) -> _HeaderFrame:
    count, reason = names.attempts.encode(), names.reason.encode()
    of_attempt = (
        b"".join((b"\x06number", encode_number(attempt), b"\x05error", encode_text(error_type), b"\x07message")),
        b"".join((b"\x0bfingerprint", encode_text(fingerprint), b"\x02at")),
        delay_field(delay),
    )
    return _HeaderFrame(
        raw_field(count, encode_number(attempt)) + _FIELD_FIRST_FAILED_AT,
        raw_field(reason),
        names.reason_parts(error_type),
        *of_attempt,
        sum(map(len, of_attempt)),
        (*_TRACES, count, reason),
    )


# What there is to tell ------------------------------------------------------------------------------


def _failed_attempts(history: History, failure: Failure | None, attempt: int) -> int:
    return history.failed if failure is None else max(history.failed, attempt)


def _attempts(
    history: History, failure: Failure | None, attempt: int, delay: timedelta | None
) -> tuple[tuple[Attempt, ...], int]:
    """All that are told, this one included, and how many are not: together at least as many as are counted.

    Those that a broker or Celery has counted are among the latter. A count that is not explained is not believed.
    """
    attempts, dropped = history.attempts, history.dropped
    if failure is not None:
        message = truncate(failure.message, _ATTEMPT_WORDS)
        newest = Attempt(attempt, failure.at, failure.error_type, message, failure.fingerprint, delay)
        attempts = (*attempts, newest)
        dropped += max(0, len(attempts) - MOST_ATTEMPTS)
        attempts = attempts[-MOST_ATTEMPTS:]
    return attempts, max(dropped, _failed_attempts(history, failure, attempt) - len(attempts))


def _state(history: History, failure: Failure | None, not_before: datetime | None) -> dict[bytes, RawValue]:
    state = {}
    if history.snoozes:
        state[_SNOOZES] = encode_number(history.snoozes)
    if history.crashes:
        state[_CRASHES] = encode_number(history.crashes)
    if history.first_failed_at is not None:
        state[_FIRST_FAILED_AT] = encode_moment(history.first_failed_at)
    elif failure is not None:
        state[_FIRST_FAILED_AT] = encode_moment(failure.at)
    if not_before is not None:
        state[_NOT_BEFORE] = encode_moment(not_before)
    return state


def _origin(history: History, origin: Origin) -> dict[bytes, RawValue]:
    """Of the original publish, if that is known: a retry comes by another way."""
    return {
        _EXCHANGE: raw_text(origin.exchange if history.exchange is None else history.exchange),
        _ROUTING_KEY: raw_text(origin.routing_key if history.routing_key is None else history.routing_key),
        _QUEUE: raw_text(origin.queue),
    }


# Making it fit --------------------------------------------------------------------------------------


def _write_headers(raw: bytes, draft: HeaderDraft, names: HeaderNames, budget: int) -> bytes:
    try:
        check_properties(raw)
    except RemoteProtocolError:
        return _with_new_properties(raw, draft, budget)
    user = read_user_id(raw)
    if user is not None:
        draft = draft._replace(core={**draft.core, _USER_ID: raw_text(user)})
    whole = _patch(raw, headers_of(draft), names)
    if len(whole) <= budget:
        return whole
    taken = len(_patch(raw, draft.failed, names)) - size_of(draft.failed)
    return _patch(raw, trim_to(draft, budget - taken), names)


def _with_new_properties(raw: bytes, draft: HeaderDraft, budget: int) -> bytes:
    room = budget - _TABLE - len(_NEW_PROPERTIES)
    headers = {_RAW_PROPERTIES: encode_value(raw)}
    if size_of(headers) > room - _CORE:
        headers[_RAW_SIZE] = encode_number(len(raw))
        excess = size_of(headers) - (room - _CORE)
        headers[_RAW_PROPERTIES] = encode_value(raw[: max(0, len(raw) - excess)])
    headers |= trim_to(draft, room - size_of(headers))
    return patch_properties(_NEW_PROPERTIES, set_headers=headers)


def _patch(raw: bytes, headers: Mapping[bytes, RawValue], names: HeaderNames) -> bytes:
    removing = _headers_to_remove(names)
    if not headers:  # an old count keeps what explains it
        removing -= {_DROPPED}
    return patch_properties(raw, set_headers=headers, remove_headers=removing, drop_expiration=True, drop_user_id=True)


@lru_cache(64)
def _headers_to_remove(names: HeaderNames) -> frozenset[bytes]:
    """What goes unless it is set. Not the count: where there is no room for the new one, the old one stays."""
    return frozenset((*_HARMFUL, *_FAILURE_RECORD, names.reason.encode()))
