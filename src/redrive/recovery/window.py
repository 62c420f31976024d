"""When a batch is complete: by the number of its messages, by their bytes, or by the age of the first.

A window decides and holds no message. Who fills a batch tells it of each message and is answered whether the batch
closes with it; an alarm set to `deadline` asks whether it is `due`. Closing empties the window: the next message is the
first of the next batch. The age is that of the first message, so that none waits longer than `timeout`, however slowly
others trickle in. Bytes close a batch when they reach the limit, which the last message may pass.

With keys there is a window for each, and only while it has messages. All have the same timeout, so the one that was
opened first is due first: they are kept in that order and none has to be searched for.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Generic, TypeVar

from redrive.errors import ConfigurationError
from redrive.recovery.durations import Duration, duration

K = TypeVar("K", bound=Hashable)


class Closing(StrEnum):
    """Why a batch is complete."""

    SIZE = "size"
    BYTES = "bytes"
    AGE = "age"
    FLUSH = "flush"  # nothing more will come


@dataclass(frozen=True, slots=True)
class BatchPolicy:
    size: int = 1000
    timeout: Duration = "1s"
    max_bytes: int | None = None

    def __post_init__(self) -> None:
        _check_count("size", self.size)
        if self.max_bytes is not None:
            _check_count("max_bytes", self.max_bytes)
        timeout = duration(self.timeout, "batch.timeout")
        if timeout <= timedelta(0):
            raise ConfigurationError(f"batch.timeout {self.timeout!r}: want more than nothing")
        object.__setattr__(self, "timeout", timeout)  # read once, not for each key


class BatchWindow:
    """`now` is the time of a clock that never goes back, in seconds: `loop.time()`."""

    __slots__ = ("_max_bytes", "_size", "_timeout", "bytes", "count", "deadline")

    def __init__(self, policy: BatchPolicy) -> None:
        self._size = policy.size
        self._max_bytes = policy.max_bytes
        self._timeout = duration(policy.timeout).total_seconds()
        self._empty()

    def _empty(self) -> None:
        self.count = 0
        self.bytes = 0
        self.deadline: float | None = None  # when to ask whether it is due

    def add(self, now: float, size: int = 0) -> Closing | None:
        """A message of `size` bytes came. Does the batch close with it?"""
        if self.deadline is None:
            self.deadline = now + self._timeout
        self.count += 1
        self.bytes += size
        return self._closed(self._reason(now))

    def due(self, now: float) -> Closing | None:
        """Time has passed. Does the batch close as it is?"""
        return self._closed(self._aged(now))

    def flush(self) -> Closing | None:
        """Nothing more will come. Is there a batch to close?"""
        return self._closed(Closing.FLUSH if self.count else None)

    def _reason(self, now: float) -> Closing | None:
        if self.count >= self._size:
            return Closing.SIZE
        if self._max_bytes is not None and self.bytes >= self._max_bytes:
            return Closing.BYTES
        return self._aged(now)

    def _aged(self, now: float) -> Closing | None:
        return Closing.AGE if self.deadline is not None and now >= self.deadline else None

    def _closed(self, reason: Closing | None) -> Closing | None:
        if reason is not None:
            self._empty()
        return reason

    def __repr__(self) -> str:
        until = "-" if self.deadline is None else f"{self.deadline:.3f}"
        return f"<BatchWindow {self.count}/{self._size} bytes={self.bytes} deadline={until}>"


class KeyedWindows(Generic[K]):
    """A window for each key: a batch holds messages of one key only."""

    __slots__ = ("_policy", "_windows")

    def __init__(self, policy: BatchPolicy) -> None:
        self._policy = policy
        self._windows: dict[
            K, BatchWindow
        ] = {}  # in the order in which they were opened, so in that of their deadlines

    @property
    def deadline(self) -> float | None:
        """When to ask which keys are due."""
        return next(iter(self._windows.values())).deadline if self._windows else None

    def add(self, key: K, now: float, size: int = 0) -> Closing | None:
        """A message of `size` bytes came for a key. Does the key's batch close with it?"""
        window = self._windows.get(key)
        if window is None:
            window = self._windows[key] = BatchWindow(self._policy)
        reason = window.add(now, size)
        if reason is not None:
            del self._windows[key]
        return reason

    def due(self, now: float) -> list[K]:
        """Time has passed. The keys whose batches close as they are, the oldest first."""
        ripe: list[K] = []
        for key, window in self._windows.items():
            if window.due(now) is None:
                break
            ripe.append(key)
        for key in ripe:
            del self._windows[key]
        return ripe

    def flush(self) -> list[K]:
        """Nothing more will come. The keys that have a batch to close, the oldest first."""
        keys = list(self._windows)
        self._windows.clear()
        return keys

    def __repr__(self) -> str:
        messages = sum(window.count for window in self._windows.values())
        return f"<KeyedWindows keys={len(self._windows)} messages={messages}>"


def _check_count(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigurationError(f"batch.{name} {value!r}: want a number from 1")
