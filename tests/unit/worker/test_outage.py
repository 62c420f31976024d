"""Waiting for a database, without one."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from redrive.recovery.backoff import Backoff
from redrive.worker.clock import SystemClock
from redrive.worker.events import ConnectionChanged, Observer
from redrive.worker.outage import Outage
from redrive.worker.transactions import DatabaseLost


class Seen(Observer):
    def __init__(self) -> None:
        self.states: list[tuple[str, int]] = []
        self.changed = asyncio.Event()

    def connection(self, event: ConnectionChanged) -> None:
        self.states.append((event.state, event.reconnects))
        self.changed.set()


class Work:
    """Fails for its first calls, and counts how many run at the same time."""

    def __init__(self, failures: int) -> None:
        self.calls = self.running = self.most = 0
        self._failures = failures

    async def __call__(self) -> str:
        self.calls += 1
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(0)
        self.running -= 1
        if self.calls <= self._failures:
            raise DatabaseLost("refused")
        return "done"


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redrive.worker.outage._PAUSES", Backoff(first=timedelta(milliseconds=1)))


async def test_work_is_repeated_until_the_database_is_back_and_that_is_reported_once() -> None:
    seen, work = Seen(), Work(failures=3)
    outage = Outage(seen, SystemClock())

    assert await outage.ride_out(work) == "done"

    assert work.calls == 4
    assert seen.states == [("unavailable", 0), ("open", 1)]
    assert outage.error is None


async def test_during_an_outage_one_piece_of_work_runs_at_a_time() -> None:
    seen, work = Seen(), Work(failures=20)
    outage = Outage(seen, SystemClock())
    beginning = asyncio.create_task(outage.ride_out(Work(failures=1000)))
    await seen.changed.wait()
    beginning.cancel()
    await asyncio.gather(beginning, return_exceptions=True)

    waiting = [asyncio.create_task(outage.ride_out(work)) for _ in range(10)]
    while outage.error is not None:
        assert work.most <= 1
        await asyncio.sleep(0)

    assert await asyncio.gather(*waiting) == ["done"] * 10
    assert seen.states == [("unavailable", 0), ("open", 1)]


async def test_a_probe_that_never_reaches_the_database_ends_no_outage() -> None:
    outage, calls = Outage(Seen(), SystemClock()), 0

    async def work() -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise DatabaseLost("refused")
        raise ValueError("before its transaction")

    with pytest.raises(ValueError, match="before its transaction"):
        await outage.ride_out(work)
    assert outage.error is not None


async def test_who_waits_when_the_worker_stops_is_let_go() -> None:
    seen = Seen()
    outage = Outage(seen, SystemClock())
    waiting = [asyncio.create_task(outage.ride_out(Work(failures=1000))) for _ in range(3)]
    await seen.changed.wait()

    outage.stop()

    ended = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(error) for error in ended] == [DatabaseLost] * 3


async def test_a_task_that_is_cancelled_while_it_waits_for_the_database_stays_cancelled() -> None:
    seen, begun = Seen(), asyncio.Event()

    async def work() -> None:
        begun.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            raise DatabaseLost("no transaction") from None

    task = asyncio.create_task(Outage(seen, SystemClock()).ride_out(work))
    await begun.wait()
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen.states == []
