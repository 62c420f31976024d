"""The memory used by queues and delayed exchanges, and the alarm when it exceeds the limit.

As in RabbitMQ, an alarm stops publishers only: they are notified (`connection.blocked`) and not read from until
consumers have made room.

An alarm begins at once and ends in the next turn of the event loop: publishers then continue with what they had sent,
and that must not happen in the middle of a purge.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

DEFAULT_LIMIT = 1024 * 1024 * 1024
_CLEAR_AT = 0.8  # of the limit, so that the alarm does not come and go with every message
_OVERHEAD = 512  # bytes that a message takes besides its properties and body, roughly


class MemoryAlarm:
    __slots__ = ("_ending", "_on_change", "alarm", "held", "limit")

    def __init__(self, limit: int, on_change: Callable[[str | None], None]) -> None:
        self.limit = limit
        self.held = 0
        self.alarm: str | None = None
        self._on_change = on_change
        self._ending = False  # is the check for the end of the alarm scheduled?

    def take(self, size: int) -> None:
        self.held += size + _OVERHEAD
        if self.held > self.limit and self.alarm is None:
            self._change("low on memory")

    def release(self, size: int) -> None:
        self.held -= size + _OVERHEAD
        if self.alarm is not None and not self._ending and self._has_room():
            self._ending = True
            asyncio.get_running_loop().call_soon(self._end)

    def _end(self) -> None:
        self._ending = False
        if self._has_room():
            self._change(None)

    def _has_room(self) -> bool:
        return self.held < self.limit * _CLEAR_AT

    def _change(self, alarm: str | None) -> None:
        self.alarm = alarm
        self._on_change(alarm)

    def __repr__(self) -> str:
        return f"<MemoryAlarm {self.held}/{self.limit} bytes{' ALARM' * (self.alarm is not None)}>"
