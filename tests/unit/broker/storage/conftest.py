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
    """What the loop had to complain about. A test that expects it takes it away."""
    return []


@pytest.fixture(autouse=True)
async def cleanliness(request: pytest.FixtureRequest, complaints: list[dict[str, Any]]) -> AsyncIterator[None]:
    """No test waits for ever or upsets the loop, and no thread of a journal outlives its test."""
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: complaints.append(context))
    patience = 60 if request.node.get_closest_marker("slow") is None else 1200
    alarm = threading.Timer(patience, loop.call_soon_threadsafe, [_wake_up, loop])
    alarm.start()
    before = set(threading.enumerate())  # a broker of the whole run may have a journal, too
    yield
    alarm.cancel()
    assert not complaints
    assert not [thread for thread in set(threading.enumerate()) - before if thread.name == "redrive-journal"]


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
