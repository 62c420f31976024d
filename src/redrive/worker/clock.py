"""The time, as an argument: `SystemClock` in production, `redrive.testing.ManualClock` in tests.

Whatever an application waits for, it waits for by its clock: a breaker's pause, a handler's time limit, a batch that is
not full, a database that is unavailable. Waits for a socket (connect, heartbeats, confirms, the limit of a drain) are
real time: a clock that stands still must not hide a broker that does not answer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime, timedelta
from typing import Protocol

from redrive.errors import ConfigurationError


class Timer(Protocol):
    def cancel(self) -> None: ...


class Clock(Protocol):
    @property
    def ahead(self) -> timedelta:
        """How far it was advanced: rows in a database have the database's own time, to which this is added."""

    def now(self) -> datetime:
        """The moment, with its time zone."""

    def monotonic(self) -> float:
        """Seconds that only ever grow."""

    def timeout(self, seconds: float) -> AbstractAsyncContextManager[asyncio.Timeout]:
        """End what is done within this context with a TimeoutError after that time, as `asyncio.timeout` does."""

    def call_later(self, seconds: float, action: Callable[[], None]) -> Timer:
        """Call a function after that time, in the event loop that runs now."""


class SystemClock:
    ahead = timedelta(0)

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.perf_counter()

    def timeout(self, seconds: float) -> asyncio.Timeout:
        return asyncio.timeout(seconds)

    def call_later(self, seconds: float, action: Callable[[], None]) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(seconds, action)


async def wait(event: asyncio.Event, clock: Clock, seconds: float) -> bool:
    """Wait for an event, at most that long. Return whether it happened."""
    try:
        async with clock.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False


def check_clock(clock: Clock) -> None:
    """Raise ConfigurationError if an application cannot use this clock, though it has the methods of one."""
    use = "redrive.testing.ManualClock is one for tests (the fixture redrive_clock)"
    if isinstance(clock, type):
        raise ConfigurationError(f"clock: got the class {clock.__name__}, want an object: {use}", option="clock")
    now: object = clock.now()
    if not isinstance(now, datetime) or now.tzinfo is None:
        raise ConfigurationError(
            f"clock {type(clock).__name__}: now() returned {now!r}, want a datetime with a time zone: {use}",
            option="clock",
        )
