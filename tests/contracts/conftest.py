"""Fixtures of the broker contract: what RabbitMQ promises, and every broker that wants to stand in for it must keep.

The tests know a broker by a URL (`amqp_url`, a virtual host of the test's own) and speak to it through the client. They
assert what AMQP 0-9-1 or RabbitMQ promises and nothing more. Where RabbitMQ's versions differ, the test asks for the
version and says what differs.
"""

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from redrive.client import Connection


@pytest.fixture
async def cleanliness() -> AsyncIterator[None]:
    """No task outlives its test, no exception escapes into the event loop, and no test waits for ever."""
    loop = asyncio.get_running_loop()
    complaints: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: complaints.append(context))
    alarm = threading.Timer(60, loop.call_soon_threadsafe, [_wake_up, loop])
    alarm.start()
    yield
    alarm.cancel()
    for _ in range(5):
        await asyncio.sleep(0)
    left_behind = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    assert not left_behind
    assert not complaints


def _wake_up(loop: asyncio.AbstractEventLoop) -> None:
    for task in asyncio.all_tasks(loop):
        task.cancel("the test hangs")


@pytest.fixture
async def connection(amqp_url: str, cleanliness: None) -> AsyncIterator[Connection]:  # noqa: ARG001 - before and after
    async with Connection(amqp_url, name="contract") as connection:
        yield connection


@pytest.fixture
async def other(amqp_url: str, cleanliness: None) -> AsyncIterator[Connection]:  # noqa: ARG001
    """A second connection to the same virtual host."""
    async with Connection(amqp_url, name="contract, the other") as connection:
        yield connection
