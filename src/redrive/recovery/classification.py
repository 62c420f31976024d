"""Classify an error: is a retry worth while? The first of these that applies decides.

1. a signal that the handler raised (`redrive.recovery.handler_signals`)
2. the policy's `classify`, `only` and `never`
3. what is known of errors in general: data that cannot be decoded or validated never becomes valid; an HTTP status
   shows whose fault it was, and `Retry-After` how long to wait
4. every other error is transient
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from enum import StrEnum
from functools import lru_cache
from typing import Any

from redrive.recovery.exception_filter import is_one_of, status_of
from redrive.recovery.handler_signals import Discard, Park, RetryLater, Signal, Snooze
from redrive.recovery.retry import Retry


class FailureKind(StrEnum):
    TRANSIENT = "transient"
    PERMANENT = "permanent"
    REQUESTED = "requested"  # the handler raised Park
    DISCARDED = "discarded"
    SNOOZED = "snoozed"


@dataclass(frozen=True, slots=True)
class Classified:
    """An error with what it means: transient or permanent, and the wait it asks for."""

    kind: FailureKind
    after: timedelta | None = None  # not sooner than this


TRANSIENT = Classified(FailureKind.TRANSIENT)
PERMANENT = Classified(FailureKind.PERMANENT)

# Errors are recognised by the names of their classes, so no library must be installed for that.
_NEVER = {
    "ValidationError",
    "ValidationException",
    "DecodeError",
    "JSONDecodeError",
    "UnicodeDecodeError",
    "BadRequest",
    "BadRequestError",
    "BadRequestException",
    "UnprocessableEntity",
    "UnprocessableEntityError",
    "UnprocessableEntityException",
}
# Statuses below 500 that may pass: timeout, conflict, locked, too early, too many.
_MAY_PASS = {408, 409, 423, 425, 429}
_LONGEST_WAIT = timedelta(days=1)


def classify(error: BaseException, policy: Retry, now: datetime) -> Classified:
    """Return whether an error may pass. Raises whatever a callback of the policy raises."""
    if isinstance(error, Signal) and (own := _classify_signal(error)) is not None:
        return own
    said = _ask_policy(error, policy)
    if said is None:
        return _classify_by_type(error, now)
    return Classified(FailureKind.TRANSIENT, _retry_after(error, now)) if said else PERMANENT


def _classify_signal(signal: Signal) -> Classified | None:
    match signal:
        case RetryLater():
            return Classified(FailureKind.TRANSIENT, signal.after)
        case Snooze():
            return Classified(FailureKind.SNOOZED, signal.after)
        case Park():
            return Classified(FailureKind.REQUESTED)
        case Discard():
            return Classified(FailureKind.DISCARDED)
        case _:
            return None


def _ask_policy(error: BaseException, policy: Retry) -> bool | None:
    if policy.classify is not None and (said := policy.classify(error)) is not None:
        return bool(said)
    if policy.never != () and is_one_of(error, policy.never):
        return False
    if policy.only != ():
        return is_one_of(error, policy.only)
    return None


def _classify_by_type(error: BaseException, now: datetime) -> Classified:
    if _never_passes(type(error)):  # type: ignore[arg-type]  # the hash of a class, not of its instances
        return PERMANENT
    status = status_of(error)
    if status is not None and 400 <= status < 500 and status not in _MAY_PASS:
        return PERMANENT
    return Classified(FailureKind.TRANSIENT, _retry_after(error, now)) if status is not None else TRANSIENT


@lru_cache(1024)
def _never_passes(kind: type) -> bool:
    return any(base.__name__ in _NEVER for base in kind.__mro__)


def _retry_after(error: BaseException, now: datetime) -> timedelta | None:
    """Return the wait that `Retry-After` asks for, in seconds or as a date; None if it is not valid."""
    try:
        headers: Any = getattr(getattr(error, "response", None), "headers", None) or getattr(error, "headers", None)
        text = str(headers.get("Retry-After") or headers.get("retry-after") or "").strip()
    except Exception:  # the headers of another library can be any object
        return None
    if text.isascii() and text.isdigit() and len(text) < 10:
        wait = timedelta(seconds=int(text))
    else:
        try:
            when = parsedate_to_datetime(text)
        except (ValueError, OverflowError):  # not a date, or one outside the calendar
            return None
        wait = (when if when.tzinfo else when.replace(tzinfo=UTC)) - now
    return min(wait, _LONGEST_WAIT) if wait > timedelta(0) else None
