"""Periodic jobs next to the work."""

import asyncio
import logging

import pytest

from redrive.testing import ManualClock
from redrive.worker.clock import SystemClock
from redrive.worker.periodic import run_periodically


class Chore:
    """Fails the first time, and lets a test wait for each time."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.times = 0
        self.begun = asyncio.Queue[int]()
        self._loop = loop

    def __call__(self) -> int:
        self.times += 1
        self._loop.call_soon_threadsafe(self.begun.put_nowait, self.times)
        if self.times == 1:
            raise OSError("the database is down")
        return self.times


async def test_a_chore_is_done_at_once_and_every_hour_and_its_failure_stops_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    chore, clock = Chore(asyncio.get_running_loop()), ManualClock()
    async with asyncio.timeout(20), run_periodically(chore, "old rows", clock):
        for time in (1, 2, 3):
            assert await chore.begun.get() == time
            clock.advance("1h")
    assert "old rows: not deleted this time: the database is down" in caplog.text
    assert "old rows: 2 deleted" in caplog.text


async def test_it_ends_with_the_work() -> None:
    done = asyncio.Event()
    loop = asyncio.get_running_loop()

    def chore() -> int:
        loop.call_soon_threadsafe(done.set)
        return 0

    async with run_periodically(chore, "old rows", SystemClock()):
        await done.wait()
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("redrive-tidying")]
