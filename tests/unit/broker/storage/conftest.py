"""A journal, a gate before its disk, and a clock in the test's hands. No test leaves anything behind."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from redrive.broker.storage import SQLiteJournal
from redrive.broker.storage.datafile import DataFile
from unit.broker.storage.gate import Gate
from unit.client.clock import Clock


@pytest.fixture
def complaints() -> list[dict[str, Any]]:
    """What the loop had to complain about, for tests that expect it."""
    return []


@pytest.fixture(autouse=True)
async def cleanliness(complaints: list[dict[str, Any]]) -> AsyncIterator[None]:
    """No test waits for ever, and no thread of a journal outlives its test."""
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: complaints.append(context))
    alarm = threading.Timer(60, loop.call_soon_threadsafe, [_wake_up, loop])
    alarm.start()
    yield
    alarm.cancel()
    assert not [thread for thread in threading.enumerate() if thread.name == "redrive-journal"]


def _wake_up(loop: asyncio.AbstractEventLoop) -> None:
    for task in asyncio.all_tasks(loop):
        task.cancel("the test hangs")


@pytest.fixture
async def clock() -> Clock:
    return Clock(asyncio.get_running_loop())


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate = Gate(DataFile.write)
    monkeypatch.setattr(DataFile, "write", gate.as_method())
    yield gate
    gate.open()


@pytest.fixture
async def journal(tmp_path: Path, gate: Gate) -> AsyncIterator[SQLiteJournal]:
    journal = SQLiteJournal(tmp_path)
    yield journal
    gate.open()
    if journal.failure is None:
        await journal.close()
