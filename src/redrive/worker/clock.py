"""The time, as an argument: `SystemClock` in production, one moved by hand in tests."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    def now(self) -> datetime:
        """The moment, with its time zone."""

    def monotonic(self) -> float:
        """Seconds that only ever grow."""


class SystemClock:
    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.perf_counter()
