"""A clock that a test moves by hand: a retry after fifteen seconds takes no time.

clock = FakeClock()
clock.call_at(clock.now() + 15, ring)
clock.advance(timedelta(seconds=15))      # rings
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from heapq import heappop, heappush
from itertools import count

_NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)


class FakeAlarm:
    def __init__(self, action: Callable[[], None]) -> None:
        self._action: Callable[[], None] | None = action

    def cancel(self) -> None:
        self._action = None

    def ring(self) -> None:
        action, self._action = self._action, None
        if action is not None:
            action()


class FakeClock:
    def __init__(self, start: datetime = _NEW_YEAR) -> None:
        self._now = start.timestamp()
        self._alarms: list[tuple[float, int, FakeAlarm]] = []
        self._order = count()

    def now(self) -> float:
        return self._now

    def call_at(self, when: float, action: Callable[[], None]) -> FakeAlarm:
        alarm = FakeAlarm(action)
        heappush(self._alarms, (when, next(self._order), alarm))
        return alarm

    def advance(self, by: timedelta) -> None:
        """Let time pass. Alarms ring in the order of their times, each at its own."""
        until = self._now + by.total_seconds()
        while self._alarms and self._alarms[0][0] <= until:
            when, _, alarm = heappop(self._alarms)
            self._now = max(self._now, when)
            alarm.ring()
        self._now = until

    def __repr__(self) -> str:
        return f"<FakeClock {self._now:.3f} alarms={len(self._alarms)}>"
