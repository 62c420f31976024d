"""The process that moves messages, as its server sees it."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dead_lettering import an_order, eventually
from redrive.admin.apart import Apart, Task
from redrive.admin.jobs import Redrive
from redrive.admin.running import is_gone
from redrive.admin.target import BrokerTarget
from redrive.errors import Closed
from redrive.runtime.dlq.operation import State
from redrive.store.database import Database
from redrive.store.operations import OperationsStore
from redrive.store.schema import Schema


@pytest.fixture
async def crew(tmp_path: Path) -> AsyncIterator[Apart]:
    """Nothing is moved, so it needs no broker."""
    target = BrokerTarget(broker="amqp://127.0.0.1:1/")
    crew = Apart(Task(target, f"sqlite:///{tmp_path / 'operations.db'}", "server:mark", "ann"))
    yield crew
    await crew.stop()


async def test_what_a_process_that_died_was_about_to_do_is_nobodys_at_once(crew: Apart) -> None:
    process = await crew._up()
    owner = crew.owner
    crew._ids.add("op_1")
    assert not is_gone(owner)

    process.kill()
    await eventually(lambda: crew.owner != owner)

    assert is_gone(owner)
    assert crew.ids == frozenset()


async def test_another_takes_its_place_when_it_is_needed(crew: Apart) -> None:
    process = await crew._up()
    owner = crew.owner
    process.kill()
    await process.wait()

    other = await crew._up()

    assert other is not process
    assert crew.owner not in ("", owner)
    assert await crew._up() is other


async def test_an_operation_is_known_before_it_has_begun(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'operations.db'}")
    Schema().upgrade(database)
    silent = await asyncio.start_server(lambda *_: None, "127.0.0.1")
    port = silent.sockets[0].getsockname()[1]
    crew = Apart(Task(BrokerTarget(broker=f"amqp://127.0.0.1:{port}/"), str(database.url), "server:mark", "ann"))

    asked = asyncio.create_task(crew.begin(Redrive("ada", an_order())))
    await eventually(lambda: len(crew.ids) == 1)

    [operation] = OperationsStore(database).running()
    assert (operation.id, operation.state) == (*crew.ids, State.PENDING)
    process = await crew._up()
    process.kill()
    with pytest.raises(Closed):
        await asked
    silent.close()
    await database.close()
