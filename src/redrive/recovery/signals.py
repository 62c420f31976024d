"""What a handler can say about its message by raising it, instead of leaving the decision to its policy.

raise RetryLater(after="30s")     try again, not sooner than that; counts as an attempt
raise Park("unknown customer")    to the dead-letter queue, now
raise Discard("obsolete")         done with it, on purpose
raise Snooze("5m")                not now; comes back without having used an attempt
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from redrive.errors import ConfigurationError
from redrive.recovery.durations import Duration, duration


class Signal(Exception):
    """A handler's own verdict."""

    def __reduce__(self) -> tuple[Any, ...]:  # one that is raised in another process comes back as it was
        return _as_it_was, (type(self), self.args, vars(self))


class RetryLater(Signal):
    def __init__(self, reason: str = "", *, after: Duration) -> None:
        super().__init__(reason or f"try again after {after}")
        self.after = _positive(after, "RetryLater")


class Park(Signal):
    def __init__(self, reason: str = "parked by its handler") -> None:
        super().__init__(reason)


class Discard(Signal):
    def __init__(self, reason: str = "discarded by its handler") -> None:
        super().__init__(reason)


class Snooze(Signal):
    def __init__(self, after: Duration, reason: str = "") -> None:
        super().__init__(reason or f"snoozed for {after}")
        self.after = _positive(after, "Snooze")


def _as_it_was(kind: type[Signal], args: tuple[Any, ...], state: dict[str, Any]) -> Signal:
    signal = kind.__new__(kind, *args)
    vars(signal).update(state)
    return signal


def _positive(value: Duration, what: str) -> timedelta:
    length = duration(value, what)
    if length <= timedelta(0):
        raise ConfigurationError(f"{what} {value!r}: want more than nothing")
    return length
