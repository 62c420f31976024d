"""The event loop's clock, in the hands of a test."""

from __future__ import annotations

import asyncio


class Clock:
    """It runs as ever, and the test can put it forward: timers that are due then go off at once."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._real_time = loop.time
        self._ahead = 0.0
        loop.time = self._time  # type: ignore[method-assign]

    def _time(self) -> float:
        return self._real_time() + self._ahead

    async def advance(self, seconds: float) -> None:
        """Put it forward and let those act whose time has come."""
        self._ahead += seconds
        for _ in range(5):
            await asyncio.sleep(0)
