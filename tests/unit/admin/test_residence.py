"""One cached connection for all looks at a broker."""

import asyncio
import socket

import pytest

from redrive.admin.place import Place
from redrive.admin.residence import Residence
from redrive.testing.broker import ThreadedBroker
from tests.dead_lettering import eventually


async def _look(residence: Residence) -> None:
    async with residence.looking():
        pass


def _surveys() -> list[asyncio.Task[object]]:
    return [task for task in asyncio.all_tasks() if task.get_name() == "redrive-snapshot"]


async def test_close_ends_every_survey_in_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redrive.admin.residence._FRESH", -1)  # each look starts a snapshot
    with ThreadedBroker() as broker, socket.create_server(("127.0.0.1", 0)) as silent:
        management = f"http://guest:guest@127.0.0.1:{silent.getsockname()[1]}"  # it never answers
        residence = Residence(Place(broker.url, management))
        looks = [asyncio.create_task(_look(residence)) for _ in range(3)]
        await eventually(lambda: len(_surveys()) == 3)
        for look in looks:
            look.cancel()
        await asyncio.gather(*looks, return_exceptions=True)

        await residence.close()

        assert not _surveys()
