"""What time it is for a broker, and waking up at a time. A test has a clock of its own that it moves by hand."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol


class Alarm(Protocol):
    def cancel(self) -> None: ...


class Clock(Protocol):
    def time(self) -> float:
        """Seconds since the epoch."""

    def call_at(self, when: float, action: Callable[[], None]) -> Alarm:
        """Have `action` called at that time, or soon if it has passed."""


class LoopClock:
    """The wall clock, with alarms on the running event loop."""

    def time(self) -> float:
        return time.time()

    def call_at(self, when: float, action: Callable[[], None]) -> Alarm:
        return asyncio.get_running_loop().call_later(max(0.0, when - time.time()), action)


class Lifetime:
    """A clock until its broker ends: an alarm that is left over then wakes nobody."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._over = False

    def time(self) -> float:
        return self._clock.time()

    def call_at(self, when: float, action: Callable[[], None]) -> Alarm:
        return self._clock.call_at(when, lambda: None if self._over else action())

    def end(self) -> None:
        self._over = True
