"""One clock for a test: the embedded broker's and the application's. It stands still until the test advances it.

    clock = ManualClock()
    with ThreadedBroker(clock=clock) as broker:
        app = App("shop", broker=broker.url, clock=clock)
        ...
        clock.advance("15s")      # TTLs, breakers, time limits, batch windows: what is due happens now

Timers fire in the order of their times, each at its own time; what a timer starts and is due within the same advance
fires, too. The embedded broker's timers run in its thread, and `advance` returns when they have run: dead letters are
in their queues then. An application's timers wake its tasks, which run when the test next awaits something: they find
the time that `advance` has reached.

Time is kept in whole microseconds, so that fifty advances of 100 ms are exactly five seconds. A float that a timer was
set to may be a hair beyond its microsecond; `_reached` remembers it, so that no timer fires before its time has come by
its own arithmetic.
"""

from __future__ import annotations

import asyncio
import threading
from bisect import bisect_left, insort
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import asynccontextmanager
from contextvars import copy_context
from datetime import UTC, datetime, timedelta
from itertools import count

from redrive.errors import ConfigurationError
from redrive.recovery.durations import Duration, duration, format_duration

_MICROSECOND = timedelta(microseconds=1)
_PATIENCE = 10.0  # seconds of real time for the broker's thread to run a timer


class ManualTimer:
    def __init__(self, clock: ManualClock, action: Callable[[], None], *, awaited: bool) -> None:
        """`awaited`: an advance returns when the action has run."""
        self.due = 0.0  # seconds since the clock's start
        self.awaited = awaited
        self.loop = _running_loop()
        self._clock = clock
        self._context = copy_context()
        self._action: Callable[[], None] | None = action

    def cancel(self) -> None:
        self._action = None
        self._clock.remove(self)

    def run(self) -> None:
        action, self._action = self._action, None
        if action is not None:
            self._context.run(action)


class ManualClock:
    """For `App(clock=)`, `ThreadedBroker(clock=)` and `Broker(clock=)`; one may serve several of them."""

    def __init__(self, start: datetime | None = None) -> None:
        """`start`: with a time zone; the present moment if None."""
        self._start = start if start is not None else datetime.now(UTC).replace(microsecond=0)
        if self._start.tzinfo is None:
            raise ConfigurationError(
                f"ManualClock({start!r}): want a time zone, as datetime(2026, 1, 1, tzinfo=UTC) has"
            )
        self._epoch = self._start.timestamp()
        self._microseconds = 0
        self._reached = 0.0  # when the latest timer that fired was due
        self._until: int | None = None  # where the advance in progress ends
        self._timers: list[tuple[int, int, ManualTimer]] = []  # sorted by time
        self._order: dict[ManualTimer, tuple[int, int]] = {}
        self._count = count()
        self._lock = threading.Lock()  # protects what is above; no timer runs while it is held
        self._advancing = threading.Lock()
        self._advancer: int | None = None  # the thread that advances
        self.before_advance: list[Callable[[], None]] = []  # called in the thread that advances, before time passes

    # The time -----------------------------------------------------------------------------------------

    def now(self) -> datetime:
        """The moment that the clock shows."""
        return self._start + self.ahead

    def monotonic(self) -> float:
        """Seconds since the start."""
        return max(self._microseconds / 1_000_000, self._reached)

    def time(self) -> float:
        """Seconds since the epoch."""
        return self._epoch + self.monotonic()

    @property
    def ahead(self) -> timedelta:
        """How far it was advanced since the start."""
        return timedelta(microseconds=self._microseconds)

    # Waiting ------------------------------------------------------------------------------------------

    def call_later(self, seconds: float, action: Callable[[], None]) -> ManualTimer:
        """Call a function in this event loop after that time."""
        timer = ManualTimer(self, action, awaited=False)
        with self._lock:
            return self._add(timer, self.monotonic() + seconds)

    def call_at(self, when: float, action: Callable[[], None]) -> ManualTimer:
        """Call a function at that time, for the embedded broker: an advance from another thread returns afterwards."""
        timer = ManualTimer(self, action, awaited=True)
        with self._lock:
            return self._add(timer, when - self._epoch)

    @asynccontextmanager
    async def timeout(self, seconds: float) -> AsyncIterator[asyncio.Timeout]:
        """End what is done within this context with a TimeoutError when the clock has advanced this far."""
        async with asyncio.timeout(None) as limit:
            timer = self.call_later(seconds, lambda: limit.reschedule(0))
            try:
                yield limit
            finally:
                timer.cancel()

    def _add(self, timer: ManualTimer, seconds: float) -> ManualTimer:
        timer.due, due = seconds, round(seconds * 1_000_000)
        if due <= self._microseconds and self._until is None and timer.loop is not None:
            self._reached = max(self._reached, seconds)
            timer.loop.call_soon(timer.run)
        else:
            place = self._order[timer] = due, next(self._count)
            insort(self._timers, (*place, timer))
        return timer

    def remove(self, timer: ManualTimer) -> None:
        """Forget a timer that was cancelled."""
        with self._lock:
            if (place := self._order.pop(timer, None)) is not None:
                del self._timers[bisect_left(self._timers, place)]

    # Advancing ----------------------------------------------------------------------------------------

    def advance(self, by: Duration) -> None:
        """Let time pass, a `timedelta` or a text like "15s", and fire what is due. Any thread may call this."""
        microseconds = duration(by, "advance") // _MICROSECOND
        if microseconds < 0:
            raise ConfigurationError(f"advance {by!r}: time passes in one direction")
        if self._advancer == threading.get_ident():
            raise RuntimeError("the clock cannot be advanced by one of its timers: it is being advanced")
        with self._advancing:
            self._advancer = threading.get_ident()
            try:
                for prepare in tuple(self.before_advance):
                    prepare()
                self._fire_until(self._microseconds + microseconds)
            finally:
                self._advancer = self._until = None

    def _fire_until(self, until: int) -> None:
        self._until = until
        while (timer := self._next(until)) is not None:
            self._fire(timer)

    def _next(self, until: int) -> ManualTimer | None:
        """Move on to the next timer, or to the end."""
        with self._lock:
            if not self._timers or self._timers[0][0] > until:
                self._microseconds, self._until = until, None
                return None
            due, _, timer = self._timers.pop(0)
            del self._order[timer]
            self._microseconds = max(self._microseconds, due)
            self._reached = max(self._reached, timer.due)
            return timer

    @staticmethod
    def _fire(timer: ManualTimer) -> None:
        if timer.loop is None or timer.loop is _running_loop():
            timer.run()
            return
        done: Future[None] = Future()

        def run() -> None:
            try:
                timer.run()
            except BaseException as error:
                done.set_exception(error)
            else:
                done.set_result(None)

        if timer.loop.is_closed():  # what waited there is gone
            return
        timer.loop.call_soon_threadsafe(run if timer.awaited else timer.run)
        if timer.awaited and timer.loop.is_running():
            try:
                done.result(_PATIENCE)
            except TimeoutError:
                raise RuntimeError("the broker's event loop is blocked, and cannot run a timer that is due") from None

    def __repr__(self) -> str:
        with self._lock:
            timers = f"timers={len(self._timers)}"
            if self._timers:
                timers += f" next={format_duration(timedelta(microseconds=self._timers[0][0]) - self.ahead)}"
            return f"<ManualClock {self.now().isoformat()} +{format_duration(self.ahead)} {timers}>"


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
