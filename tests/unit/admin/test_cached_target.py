"""One cached connection for all looks at a broker."""

import asyncio
import socket

import pytest

from redrive.admin.cached_target import CachedTarget
from redrive.admin.target import BrokerTarget
from redrive.testing.broker import ThreadedBroker
from tests.dead_lettering import eventually


async def _look(target: CachedTarget) -> None:
    async with target.connect_to_read():
        pass


def _inspections() -> list[asyncio.Task[object]]:
    return [task for task in asyncio.all_tasks() if task.get_name() == "redrive-inspection"]


async def test_close_ends_every_inspection_in_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redrive.admin.cached_target._FRESH", -1)  # each look starts an inspection
    with ThreadedBroker() as broker, socket.create_server(("127.0.0.1", 0)) as silent:
        management = f"http://guest:guest@127.0.0.1:{silent.getsockname()[1]}"  # it never answers
        target = CachedTarget(BrokerTarget(broker.url, management))
        looks = [asyncio.create_task(_look(target)) for _ in range(3)]
        await eventually(lambda: len(_inspections()) == 3)
        for look in looks:
            look.cancel()
        await asyncio.gather(*looks, return_exceptions=True)

        await target.close()

        assert not _inspections()
