"""What a message tells about its earlier failures.

Attempts are counted where a crash cannot reset them: in the message, by a header of ours, or by the broker.

    own header          written with every republished retry
    x-death             counted by the broker for each reject. Read only where rejecting is how a retry goes: 3.10 goes
                        on counting in the x-death of a message that a client republishes, 4.x shows it until the next
                        death and then starts at 1 again
    x-delivery-count    counted by quorum queues. Read only where returning to the queue is how a retry goes

The largest wins. All of these were written by whoever published the message, until somebody else overwrote them, so
nothing is trusted: what is no number counts as 0, what is too large as `MOST`, what is no time is unknown, what is no
text is empty, and of endless lists the newest part is read. Reading never raises.

Nor is a count believed that no Redrive worker can have written: whoever counts in `x-redrive-attempts` also writes what
explains it, an entry of `x-redrive-history` for each attempt or their number in `x-redrive-attempts-dropped`. The count
is at most what these explain: 99 without a history is 0, and without a count the time of the first failure is unknown.
A counter with another name is believed as it is: it has that name because consumers that are not Redrive's count in it,
too, and those keep no history.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from string import Formatter
from typing import ClassVar, TypeGuard

from redrive.checks import checked
from redrive.errors import ConfigurationError
from redrive.text import truncate

MOST = 2**31 - 1  # of anything that is counted: what an AMQP int holds
MOST_ATTEMPTS = 100  # that are told one by one

_MOST_DELAY = 2**32 - 1  # milliseconds; RabbitMQ knows no longer TTL
_MOST_TEXT = 1_000
_MOST_NAME = 255  # bytes of an exchange, a queue or a routing key
_LONGEST_NAME = 64
_LONGEST_WORDING = 64

_NUMBER = re.compile(r"\s*+\+?0*+([0-9]*+)(?:\.[0-9]*+)?\s*+", re.ASCII)


@checked("headers")
@dataclass(frozen=True, slots=True)
class HeaderNames:
    """How the headers are called. Other people's consumers count too: two can have the names that those understand,
    and the reason the words.
    """

    attempts: str = "x-redrive-attempts"  # how many attempts failed
    reason: str = "x-redrive-reason"  # a retry: the newest error; a parked message: its ParkReason
    wording: str = "{error}: {message}"  # of a retry's reason, for whoever expects it in other words

    HISTORY: ClassVar = "x-redrive-history"  # the attempts, oldest first
    DROPPED: ClassVar = "x-redrive-attempts-dropped"  # how many are missing from it
    SNOOZES: ClassVar = "x-redrive-snoozes"  # how often it was put off without using an attempt
    CRASHES: ClassVar = "x-redrive-crashes"  # how often its worker died while it handled this message alone
    QUARANTINE: ClassVar = "x-redrive-quarantine"  # which worker watches it, and how: see `recovery.admission`
    FIRST_FAILED_AT: ClassVar = "x-redrive-first-failed-at"  # when it failed for the first time
    NOT_BEFORE: ClassVar = "x-redrive-not-before"  # until when it waits
    EXCHANGE: ClassVar = "x-redrive-exchange"  # where it was first published
    ROUTING_KEY: ClassVar = "x-redrive-routing-key"  # by which key
    QUEUE: ClassVar = "x-redrive-queue"  # where it failed
    # Of parked messages alone:
    ERROR: ClassVar = "x-redrive-error"  # the type of the last error
    MESSAGE: ClassVar = "x-redrive-message"  # what it said
    STACK: ClassVar = "x-redrive-stack"  # where it was raised, cut in the middle if it is long
    FINGERPRINT: ClassVar = "x-redrive-fingerprint"  # the identity of this kind of failure
    HOST: ClassVar = "x-redrive-host"  # the machine whose worker parked it
    APP: ClassVar = "x-redrive-app"  # the application
    PARKED_AT: ClassVar = "x-redrive-parked-at"  # when
    # What cannot stay where it was:
    USER_ID: ClassVar = "x-redrive-user-id"  # the user_id of the publisher, over which RabbitMQ would close the channel
    RAW_PROPERTIES: ClassVar = "x-redrive-raw-properties"  # properties that could not be read
    RAW_SIZE: ClassVar = "x-redrive-raw-properties-size"  # of which the header holds the beginning
    EXPIRATION: ClassVar = "x-redrive-expiration"  # while a queue is migrated: what the message must not expire by
    ONLY_EXPIRATION: ClassVar = "x-redrive-only-expiration"  # the same, of a message that had no other header
    # Written when a parked message is sent back to work:
    REDRIVEN: ClassVar = "x-redriven-count"  # how often, with this time
    REDRIVEN_AT: ClassVar = "x-redriven-at"  # when
    REDRIVEN_BY: ClassVar = "x-redriven-by"  # by whom
    REDRIVEN_OPERATION: ClassVar = "x-redriven-op"  # in which operation
    REDRIVEN_FROM: ClassVar = "x-redriven-from"  # out of which dead-letter queue
    REDRIVEN_REASON: ClassVar = "x-redriven-reason"  # why, in the operator's words
    REDRIVEN_DEATHS: ClassVar = "x-redriven-deaths"  # its deaths, newest first, in the form of x-death

    def __post_init__(self) -> None:
        for which in ("attempts", "reason"):
            name = getattr(self, which)
            if not isinstance(name, str) or not (
                name.isascii() and name.isprintable() and 0 < len(name) <= _LONGEST_NAME
            ):
                raise ConfigurationError(f"header name {which} {name!r}: want 1 to {_LONGEST_NAME} ASCII characters")
            if name in _TAKEN:
                raise ConfigurationError(f"header name {which} {name!r} is taken: it means something else")
        if self.attempts == self.reason:
            raise ConfigurationError(f"header names attempts and reason are both {self.attempts!r}: give them two")
        self._check_wording()

    def _check_wording(self) -> None:
        try:
            parts = list(Formatter().parse(self.wording))
        except (TypeError, ValueError):
            parts = [("", "neither", "", None)]
        if (
            any(name not in (None, "error", "message") or form or change for _, name, form, change in parts)
            or not 0 < len(self.wording) <= _LONGEST_WORDING
            or not self.wording.isprintable()
        ):
            raise ConfigurationError(
                f"header wording {self.wording!r}: want 1 to {_LONGEST_WORDING} characters, in which {{error}} and "
                "{message} may stand"
            )

    def format_reason(self, error_type: str, message: str) -> str:
        """The reason of a retry."""
        return message.join(self.reason_parts(error_type))

    def reason_parts(self, error_type: str) -> list[str]:
        """That reason, in the pieces between which the message stands."""
        pieces = [""]
        for text, name, _, _ in Formatter().parse(self.wording):
            pieces[-1] += text + error_type * (name == "error")
            if name == "message":
                pieces.append("")
        return pieces


# Headers that others write and give a meaning to.
FOREIGN: Mapping[str, str] = {
    "x-death": "the broker's count of deaths, by queue and reason. Counts attempts where rejecting is how a retry goes",
    "x-delivery-count": "a quorum queue's count of deliveries. Counts attempts where returning is how a retry goes",
    "x-acquired-count": "a quorum queue's count of how often a message was taken, from RabbitMQ 4 on",
    "x-delay": "milliseconds that an exchange of the delayed-message plugin keeps it",
    "CC": "more queues that get a copy; taken out by a re-drive, which is for one queue",
    "BCC": "as CC, and removed by the broker",
    "x-opt-delivery-time": "when quorum queues deliver it, from RabbitMQ 4.4 on; taken out of every copy",
    **{
        f"x-{which}-death-{what}": f"the {what} of the {which} death, by the broker"
        for which in ("first", "last")
        for what in ("queue", "reason", "exchange")
    },
}

_TAKEN = {name for key, name in vars(HeaderNames).items() if key.isupper()} | FOREIGN.keys()


@dataclass(frozen=True, slots=True)
class Attempt:
    """One that failed, as the message remembers it."""

    number: int  # from 1
    at: datetime | None
    error_type: str
    message: str
    fingerprint: str
    delay: timedelta | None = None  # how long it then waited; None if there was no other attempt


@dataclass(frozen=True, slots=True)
class History:
    """What a message tells about its earlier failures."""

    failed: int = 0  # attempts
    snoozes: int = 0
    crashes: int = 0  # of the worker, while it handled this message alone
    first_failed_at: datetime | None = None
    not_before: datetime | None = None
    attempts: tuple[Attempt, ...] = ()  # oldest first
    dropped: int = 0  # older ones, of which only the number is known
    exchange: str | None = None  # of the original publish, if known
    routing_key: str | None = None
    redriven: int = 0
    unreadable: bool = False  # the properties cannot be decoded, so nothing is known

    def with_another_snooze(self) -> History:
        """Return the history with one more snooze."""
        return replace(self, snoozes=min(self.snoozes + 1, MOST))

    def with_crashes(self, crashes: int) -> History:
        """Return the history with this number of crashes."""
        return replace(self, crashes=min(crashes, MOST))


_READ = {
    *(HeaderNames.HISTORY, HeaderNames.DROPPED, HeaderNames.SNOOZES, HeaderNames.CRASHES, HeaderNames.REDRIVEN),
    *(HeaderNames.FIRST_FAILED_AT, HeaderNames.NOT_BEFORE, HeaderNames.EXCHANGE, HeaderNames.ROUTING_KEY),
    *("x-death", "x-delivery-count"),
}
_OWN_COUNTER = HeaderNames().attempts
NO_HISTORY = History()
UNREADABLE = History(unreadable=True)


def read_history(
    headers: Mapping[str, object],
    queue: str,
    *,
    count_header: str = _OWN_COUNTER,
    via_reject: bool,
    delivery_count: bool = False,
) -> History:
    """What the headers of a delivery from `queue` tell. `via_reject` and `delivery_count` say which of the broker's
    counts are those of our attempts.
    """
    if count_header not in headers and headers.keys().isdisjoint(_READ):  # most messages have never failed
        return NO_HISTORY
    deaths = _tables(headers.get("x-death"))
    rejections = [death for death in deaths if _is_rejection(death, queue)] if via_reject else []
    own_exchange, own_key = (
        read_name(headers.get(HeaderNames.EXCHANGE)),
        read_name(headers.get(HeaderNames.ROUTING_KEY)),
    )
    first_exchange, first_key = _first_publish(headers, deaths) if deaths and own_exchange is None else (None, None)
    attempts, left_out = _read_attempts(headers.get(HeaderNames.HISTORY))
    dropped = min(left_out + read_count(headers.get(HeaderNames.DROPPED)), MOST)
    counted = read_count(headers.get(count_header))
    failed = max(
        min(counted, len(attempts) + dropped) if count_header == _OWN_COUNTER else counted,
        read_count(headers.get("x-delivery-count")) if delivery_count else 0,
        *(max(1, read_count(death.get("count"))) for death in rejections),  # that it is there says one
    )
    return History(
        failed=failed,
        snoozes=read_count(headers.get(HeaderNames.SNOOZES)),
        crashes=read_count(headers.get(HeaderNames.CRASHES)),
        first_failed_at=_first_failure(headers, rejections) if failed else None,
        not_before=read_moment(headers.get(HeaderNames.NOT_BEFORE)),
        attempts=attempts,
        dropped=dropped,
        exchange=first_exchange if own_exchange is None else own_exchange,
        routing_key=first_key if own_key is None else own_key,
        redriven=read_count(headers.get(HeaderNames.REDRIVEN)),
    )


def _first_failure(headers: Mapping[str, object], rejections: Sequence[Mapping[object, object]]) -> datetime | None:
    """Our own header; else the broker's `time`, which is that of the first death of its kind."""
    own = read_moment(headers.get(HeaderNames.FIRST_FAILED_AT))
    return own or min(filter(None, (read_moment(death.get("time")) for death in rejections)), default=None)


# Deaths ---------------------------------------------------------------------------------------------


def _tables(value: object) -> list[Mapping[object, object]]:
    return [entry for entry in value if isinstance(entry, Mapping)] if isinstance(value, list | tuple) else []


def _is_rejection(death: Mapping[object, object], queue: str) -> bool:
    return death.get("reason") == "rejected" and read_name(death.get("queue")) == queue


def _first_publish(
    headers: Mapping[str, object], deaths: Sequence[Mapping[object, object]]
) -> tuple[str | None, str | None]:
    """Exchange and routing key before the first death. The oldest comes last; not always on 3.10, which names it."""
    first = headers.get("x-first-death-queue"), headers.get("x-first-death-reason")
    oldest = next((death for death in deaths if (death.get("queue"), death.get("reason")) == first), deaths[-1])
    exchange, keys = read_name(oldest.get("exchange")), oldest.get("routing-keys")
    return exchange, read_name(keys[0]) if isinstance(keys, list | tuple) and keys else None


def broker_can_count(headers: Mapping[str, object]) -> bool:
    """Can a broker count one more rejection in the x-death of this message?

    RabbitMQ 3.10 cannot if it is not a list of tables, or has counts that are not numbers. It leaves an empty list, or
    what is not a list, as it is, and such a message would be retried without end; at the rest the queue's process ends,
    and may lose the message. A count below zero takes too long, and if there are two entries of a queue and reason, it
    is undefined which one is counted.
    """
    value = headers.get("x-death")
    if value is None:
        return "x-death" not in headers
    if not isinstance(value, list | tuple):
        return False
    kinds = [(death.get("queue"), death.get("reason")) for death in value if _is_death(death)]
    return bool(kinds) and len(kinds) == len(value) == len(set(kinds))


def _is_death(death: object) -> TypeGuard[Mapping[object, object]]:
    if not isinstance(death, Mapping):
        return False
    count, keys = death.get("count"), death.get("routing-keys", [])
    return (
        isinstance(death.get("queue"), str)
        and isinstance(death.get("reason"), str)
        and isinstance(count, int)
        and not isinstance(count, bool)
        and count >= 0
        and isinstance(keys, list | tuple)
    )


# Attempts -------------------------------------------------------------------------------------------


def _read_attempts(value: object) -> tuple[tuple[Attempt, ...], int]:
    """The newest attempts, and how many older ones there were."""
    if not isinstance(value, list | tuple):
        return (), 0
    return tuple(map(_read_attempt, _tables(value[-MOST_ATTEMPTS:]))), max(0, len(value) - MOST_ATTEMPTS)


def _read_attempt(table: Mapping[object, object]) -> Attempt:
    delay = table.get("delay-ms")
    return Attempt(
        number=read_count(table.get("number")),
        at=read_moment(table.get("at")),
        error_type=read_text(table.get("error")),
        message=read_text(table.get("message")),
        fingerprint=read_text(table.get("fingerprint")),
        delay=None if delay is None else timedelta(milliseconds=read_count(delay, _MOST_DELAY)),
    )


# Values that anybody may have written ---------------------------------------------------------------


def read_count(value: object, most: int = MOST) -> int:
    """A number from 0 to `most`, whatever it was: "3" and 3.0 are 3, what is no number is 0."""
    match value:
        case None | bool():
            return 0
        case int() | float() | Decimal():
            return _whole(value, most)
        case str():
            return _count_in(value, most)
        case bytes() | bytearray():
            return _count_in(value[:_MOST_TEXT].decode("ascii", "replace"), most)
        case _:
            return 0


def _whole(value: int | float | Decimal, most: int) -> int:
    try:
        return most if value >= most else max(0, int(value))
    except (ValueError, ArithmeticError):  # not a number, in the words of floats and of decimals
        return 0


def _count_in(text: str, most: int) -> int:
    found = _NUMBER.fullmatch(text[:_MOST_TEXT])
    if found is None:
        return 0
    return min(int(found[1] or 0), most) if len(found[1]) <= 10 else most


def read_moment(value: object) -> datetime | None:
    """An aware time, in UTC; one without a zone is taken for UTC."""
    try:
        if isinstance(value, str):
            value = datetime.fromisoformat(value[:40])
        if not isinstance(value, datetime):
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
    except (ValueError, OverflowError):  # no time, or one that is beyond the calendar in UTC
        return None


def read_text(value: object) -> str:
    """Words for a person: what is not UTF-8 is shown as such."""
    if isinstance(value, bytes | bytearray):
        value = value[: 4 * _MOST_TEXT].decode("utf-8", "replace")
    return truncate(value, _MOST_TEXT) if isinstance(value, str) else ""


def read_name(value: object) -> str | None:
    """The name of an exchange or queue, or a routing key: byte for byte what it was. None if it cannot be one."""
    if isinstance(value, bytes | bytearray):
        value = value[: _MOST_NAME + 1].decode("utf-8", "surrogateescape")
    if not isinstance(value, str) or len(value) > _MOST_NAME:
        return None
    try:
        return value if len(value.encode("utf-8", "surrogateescape")) <= _MOST_NAME else None
    except UnicodeEncodeError:  # half a surrogate pair, which never came over a wire
        return None
