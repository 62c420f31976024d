"""The child process that runs operations, as its server sees it."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dead_lettering import a_service, an_order, eventually
from redrive.admin.executor.recovery import owner_name, process_is_gone
from redrive.admin.executor.subprocess import SubprocessExecutor, WorkerConfig
from redrive.admin.service import Service
from redrive.admin.target import BrokerTarget
from redrive.database.engine import Database
from redrive.errors import Closed, ConnectionFailed, RedriveError
from redrive.operations.operation import OperationState

NOWHERE = "amqp://127.0.0.1:1/"
MARK = "server:mark"


@pytest.fixture
def service(tmp_path: Path) -> Service:
    service = a_service(NOWHERE, tmp_path)
    service.owner = owner_name(MARK)
    return service


def an_executor(service: Service, url: str, folder: Path) -> SubprocessExecutor:
    database = str(Database.embedded(folder).url)
    return SubprocessExecutor(service, WorkerConfig(BrokerTarget(url), database, MARK, service.owner))


@pytest.fixture
async def executor(service: Service, tmp_path: Path) -> AsyncIterator[SubprocessExecutor]:
    """Nothing is moved, so it needs no broker."""
    executor = an_executor(service, NOWHERE, tmp_path)
    yield executor
    await executor.close()


@pytest.fixture
async def silent() -> AsyncIterator[str]:
    """The URL of a server that accepts connections and answers nothing."""
    writers: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(lambda _, writer: writers.append(writer), "127.0.0.1")
    yield f"amqp://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    server.close()
    for writer in writers:
        writer.close()


async def test_a_child_that_died_has_no_operations(executor: SubprocessExecutor, service: Service) -> None:
    process = await executor._running_process()
    executor._operations["op_1"] = await service.begin(an_order())

    process.kill()
    await eventually(lambda: executor.ids == frozenset())

    assert process_is_gone(f"{MARK}:{service.owner.split(':')[2]}:{process.pid}:ff")


async def test_another_child_is_started_when_it_is_needed(executor: SubprocessExecutor) -> None:
    process = await executor._running_process()
    process.kill()
    await process.wait()

    other = await executor._running_process()

    assert other is not process
    assert await executor._running_process() is other


async def test_the_error_of_the_child_is_raised_and_recorded(executor: SubprocessExecutor, service: Service) -> None:
    operation = await service.begin(an_order())

    with pytest.raises(ConnectionFailed, match=r"127\.0\.0\.1:1"):
        await executor.start(operation.id)

    failed = await service.operation(operation.id)
    assert (failed.state, executor.ids) == (OperationState.FAILED, frozenset())
    assert "127.0.0.1:1" in failed.note


async def test_an_operation_is_the_childs_before_it_has_begun(service: Service, silent: str, tmp_path: Path) -> None:
    executor = an_executor(service, silent, tmp_path)
    operation = await service.begin(an_order())

    starting = asyncio.create_task(executor.start(operation.id))
    await eventually(lambda: service.store.find(operation.id)[0].owner != service.owner)

    claimed = await service.operation(operation.id)
    assert (claimed.state, executor.ids) == (OperationState.PENDING, frozenset((operation.id,)))
    process = await executor._running_process()
    process.kill()
    with pytest.raises(Closed):
        await starting
    left = await service.operation(operation.id)
    assert (left.state, process_is_gone(left.owner)) == (OperationState.PENDING, True)  # for the recovery


async def test_an_operation_that_the_child_could_not_claim_has_failed(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redrive.admin.executor.subprocess._MAIN", "import sys; sys.exit(1)")
    executor = an_executor(service, NOWHERE, tmp_path)
    operation = await service.begin(an_order())

    with pytest.raises(RedriveError, match="does not start"):
        await executor.start(operation.id)

    failed = await service.operation(operation.id)
    assert (failed.state, executor.ids) == (OperationState.FAILED, frozenset())
    assert "does not start" in failed.note


async def test_an_operation_of_another_owner_is_not_started(executor: SubprocessExecutor, service: Service) -> None:
    operation = await service.begin(an_order())
    assert service.store.take_over(operation.id, "server:mark:elsewhere:1:ff", service.clock.now(), service.owner)

    with pytest.raises(RedriveError, match="which another process resumed"):
        await executor.start(operation.id)

    assert (await service.operation(operation.id)).state is OperationState.PENDING
