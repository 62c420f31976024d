"""Exceptions that a handler raises to choose the outcome of its message, instead of leaving that to its policy.

raise RetryLater(after="30s")     retry, not sooner than that; counts as an attempt
raise Park("unknown customer")    park it now
raise Discard("obsolete")         acknowledge it without handling it
raise Snooze("5m")                retry after that, without using an attempt
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from redrive.errors import ConfigurationError
from redrive.recovery.durations import Duration, duration


class Signal(Exception):
    """The base of these exceptions."""

    def __reduce__(self) -> tuple[Any, ...]:  # so that one raised in another process arrives unchanged
        return _restore, (type(self), self.args, vars(self))


class RetryLater(Signal):
    def __init__(self, reason: str = "", *, after: Duration) -> None:
        super().__init__(reason or f"try again after {after}")
        self.after = _positive_duration(after, "RetryLater")


class Park(Signal):
    def __init__(self, reason: str = "parked by its handler") -> None:
        super().__init__(reason)


class Discard(Signal):
    def __init__(self, reason: str = "discarded by its handler") -> None:
        super().__init__(reason)


class Snooze(Signal):
    def __init__(self, after: Duration, reason: str = "") -> None:
        super().__init__(reason or f"snoozed for {after}")
        self.after = _positive_duration(after, "Snooze")


def _restore(kind: type[Signal], args: tuple[Any, ...], state: dict[str, Any]) -> Signal:
    signal = kind.__new__(kind, *args)
    vars(signal).update(state)
    return signal


def _positive_duration(value: Duration, what: str) -> timedelta:
    length = duration(value, what)
    if length <= timedelta(0):
        raise ConfigurationError(f"{what} {value!r}: want more than nothing")
    return length
