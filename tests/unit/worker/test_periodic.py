"""Chores beside the work."""

import asyncio
import logging
from datetime import timedelta

import pytest

from redrive.worker.periodic import run_periodically


class Chore:
    """Fails the first time, and lets a test wait for a number of times."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.times = 0
        self.enough = asyncio.Event()
        self._loop = loop

    def __call__(self) -> int:
        self.times += 1
        if self.times == 1:
            raise OSError("the database is down")
        if self.times == 3:
            self._loop.call_soon_threadsafe(self.enough.set)
        return self.times


async def test_a_chore_is_done_at_once_and_again_and_its_failure_stops_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    chore = Chore(asyncio.get_running_loop())
    async with asyncio.timeout(20), run_periodically(chore, "old rows", every=timedelta(milliseconds=1)):
        await chore.enough.wait()
    assert "old rows: not deleted this time: the database is down" in caplog.text
    assert "old rows: 2 deleted" in caplog.text


async def test_it_ends_with_the_work() -> None:
    done = asyncio.Event()
    loop = asyncio.get_running_loop()

    def chore() -> int:
        loop.call_soon_threadsafe(done.set)
        return 0

    async with run_periodically(chore, "old rows"):
        await done.wait()
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("redrive-tidying")]
