"""Handlers run together, or one alone, in the order in which they asked."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from redrive.worker.quarantine import HandlerLock


class Scene:
    """Handlers that take the lock, and end when they are told to."""

    def __init__(self) -> None:
        self.lock = HandlerLock()
        self.log: list[str] = []
        self._ends: dict[str, asyncio.Event] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def begin(self, name: str) -> None:
        self._ends[name] = asyncio.Event()
        self._tasks[name] = asyncio.create_task(self._alone(name) if name.startswith("alone") else self._shared(name))
        await self.turns()

    async def end(self, name: str) -> None:
        self._ends[name].set()
        await self.turns()

    async def cancel(self, name: str) -> None:
        self._tasks[name].cancel()
        with suppress(asyncio.CancelledError):
            await self._tasks[name]
        await self.turns()

    async def _shared(self, name: str) -> None:
        if self.lock.contended:
            await self.lock.wait()
        else:
            self.lock.running += 1
        try:
            await self._work(name)
        finally:
            self.lock.leave()

    async def _alone(self, name: str) -> None:
        async with self.lock.exclusive():
            await self._work(name)

    async def _work(self, name: str) -> None:
        self.log.append(name)
        await self._ends[name].wait()

    @staticmethod
    async def turns() -> None:
        for _ in range(5):
            await asyncio.sleep(0)


@pytest.fixture
async def scene() -> Scene:
    return Scene()


async def test_handlers_run_together(scene: Scene) -> None:
    await scene.begin("a")
    await scene.begin("b")
    assert scene.log == ["a", "b"]
    assert not scene.lock.contended


async def test_one_that_runs_alone_waits_for_those_that_run_and_lets_none_begin(scene: Scene) -> None:
    await scene.begin("a")
    await scene.begin("alone")
    await scene.begin("b")
    assert scene.log == ["a"]

    await scene.end("a")
    assert scene.log == ["a", "alone"]

    await scene.end("alone")
    assert scene.log == ["a", "alone", "b"]
    assert not scene.lock.contended


async def test_those_that_waited_come_before_the_next_that_runs_alone(scene: Scene) -> None:
    await scene.begin("alone 1")
    await scene.begin("a")
    await scene.begin("b")
    await scene.begin("alone 2")
    await scene.end("alone 1")
    assert scene.log == ["alone 1", "a", "b"]

    await scene.end("a")
    await scene.end("b")
    assert scene.log[3:] == ["alone 2"]


@pytest.mark.parametrize("cancelled", ["alone 2", "a"])
async def test_one_that_stops_waiting_holds_up_no_other(scene: Scene, cancelled: str) -> None:
    await scene.begin("alone 1")
    await scene.begin(cancelled)
    await scene.begin("b")
    await scene.cancel(cancelled)
    await scene.end("alone 1")
    assert scene.log == ["alone 1", "b"]
    await scene.end("b")
    assert (scene.lock.running, scene.lock.contended) == (0, False)


async def test_one_that_is_cancelled_in_its_turn_gives_it_back(scene: Scene) -> None:
    await scene.begin("alone 1")
    await scene.begin("alone 2")
    scene._ends["alone 1"].set()
    await asyncio.sleep(0)  # it has left, and the other has its turn without having run
    await scene.cancel("alone 2")
    await scene.begin("b")
    assert scene.log[-1] == "b"
    assert scene.lock.running == 1


async def test_what_must_be_done_before_is_awaited_inside_the_lock(scene: Scene) -> None:
    async def prepare() -> None:
        scene.log.append(f"prepared with {scene.lock.running}")

    scene.lock.before_alone.append(prepare)
    await scene.begin("alone")
    assert scene.log == ["prepared with 1", "alone"]
