"""The time of `redrive.worker.clock`, moved by hand."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

NOON = datetime(2026, 5, 17, 12, 0, 0, 123456, tzinfo=UTC)


class HandClock:
    def __init__(self, start: datetime = NOON) -> None:
        self._start = self._now = start

    def now(self) -> datetime:
        return self._now

    def monotonic(self) -> float:
        return (self._now - self._start).total_seconds()

    def advance(self, by: timedelta) -> None:
        self._now += by
