"""Every test of the client leaves nothing behind, upsets nobody and comes to an end. Time is in the test's hands."""

import asyncio
import threading
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from redrive.client import Connection
from unit.client.clock import Clock
from unit.client.scripted import QUICK, ScriptedBroker, WiredLink


@pytest.fixture(autouse=True)
async def cleanliness() -> AsyncIterator[None]:
    """No task outlives its test, no exception escapes into the event loop, and no test waits for ever."""
    loop = asyncio.get_running_loop()
    complaints: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: complaints.append(context))
    alarm = threading.Timer(20, loop.call_soon_threadsafe, [_wake_up, loop])  # by a clock that no test changes
    alarm.start()
    yield
    alarm.cancel()
    for _ in range(5):  # whoever was told to end has the time to do so
        await asyncio.sleep(0)
    left_behind = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    assert not left_behind
    assert not complaints


def _wake_up(loop: asyncio.AbstractEventLoop) -> None:
    for task in asyncio.all_tasks(loop):
        task.cancel("the test hangs")


@pytest.fixture
async def clock() -> Clock:
    return Clock(asyncio.get_running_loop())


@pytest.fixture
async def broker() -> AsyncIterator[ScriptedBroker]:
    async with ScriptedBroker() as broker:
        yield broker


@pytest.fixture
async def wired() -> AsyncIterator[WiredLink]:
    wired = await WiredLink().open()
    yield wired
    wired.end()


@pytest.fixture
async def connection(broker: ScriptedBroker) -> AsyncIterator[Connection]:
    connection = Connection(broker.url, backoff=QUICK)
    yield await connection.open()
    await connection.close(within=timedelta(milliseconds=50))
