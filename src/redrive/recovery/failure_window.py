"""How many of the latest calls failed, at the same small cost whether one call or a million came before.

"Latest" is one of two things. The last N calls: a ring of N flags, in which the new one takes the place of the oldest.
Or the last so many seconds: a ring of ten slices of time, each with its two sums, and a slice is forgotten as a whole
when its time has passed; so what counts is between nine and ten tenths of the time asked for.
"""

from __future__ import annotations

from typing import Protocol

# Ten slices: the share is never taken over less than nine tenths of the time that was asked for.
_SLICES = 10


class FailureWindow(Protocol):
    calls: int
    failures: int

    def add(self, now: float, failed: bool) -> None: ...

    def clear(self) -> None: ...


class CountWindow:
    """The last `size` calls, however long ago."""

    __slots__ = ("_failed", "_next", "_size", "calls", "failures")

    def __init__(self, size: int) -> None:
        self._size = size
        self.clear()

    def clear(self) -> None:
        self._failed = bytearray(self._size)
        self._next = 0
        self.calls = 0
        self.failures = 0

    def add(self, now: float, failed: bool) -> None:  # noqa: ARG002 - the other kind needs the time
        place = self._next
        if failed or self._failed[place]:  # seldom, and all else is done for every message
            self.failures += failed - self._failed[place]
            self._failed[place] = failed
        if self.calls < self._size:
            self.calls += 1
        place += 1
        self._next = place if place < self._size else 0

    def __repr__(self) -> str:
        return f"<LastCalls {self.failures} of {self.calls} failed, at most {self._size}>"


class TimeWindow:
    """The calls of the last `seconds`, however many."""

    __slots__ = ("_calls", "_failures", "_slice", "_width", "calls", "failures")

    def __init__(self, seconds: float) -> None:
        self._width = seconds / _SLICES
        self.clear()

    def clear(self) -> None:
        self._calls = [0] * _SLICES
        self._failures = [0] * _SLICES
        self._slice = 0  # counted from the clock's zero, not from the ring's
        self.calls = 0
        self.failures = 0

    def add(self, now: float, failed: bool) -> None:
        current = int(now // self._width)
        if current != self._slice:
            self._forget(current)
        place = current % _SLICES
        self._calls[place] += 1
        self._failures[place] += failed
        self.calls += 1
        self.failures += failed

    def _forget(self, current: int) -> None:
        """Time has moved on to slice `current`: those between the last one and it are as old as the ring is long."""
        for passed in range(max(self._slice, current - _SLICES) + 1, current + 1):
            place = passed % _SLICES
            self.calls -= self._calls[place]
            self.failures -= self._failures[place]
            self._calls[place] = self._failures[place] = 0
        self._slice = current

    def __repr__(self) -> str:
        return f"<LastSeconds {self.failures} of {self.calls} failed in {self._width * _SLICES:g} s>"
