"""Operations of a server, on every broker: each is carried out once, however long it takes to begin."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from dead_lettering import DLQ, SOURCE, a_service, an_order, bodies, eventually, orders, prepare
from redrive.admin.executor.local import LocalExecutor
from redrive.admin.executor.recovery import OrphanRecovery, owner_name
from redrive.admin.service import STALE, Service
from redrive.admin.target import BrokerTarget, ConnectedTarget
from redrive.client import Connection
from redrive.errors import ConnectionFailed
from redrive.operations.dlq_adapter import DlqAdapter
from redrive.operations.operation import Operation, OperationKind, OperationState
from redrive.testing.clock import ManualClock

MARK = "server:mark"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def service(amqp_url: str, tmp_path: Path, clock: ManualClock) -> Service:
    return a_service(amqp_url, tmp_path, clock=clock)


@pytest.fixture
async def executor(service: Service) -> AsyncIterator[LocalExecutor]:
    service.owner = owner_name(MARK)
    executor = LocalExecutor(service)
    yield executor
    await executor.close()


class Gate:
    """Whoever wants to move messages waits here, after the connections are open."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.waiting = 0

    def __call__(self, inspect: Any) -> Any:
        async def slow(
            target: BrokerTarget, taking: Connection, publishing: Connection | None = None
        ) -> ConnectedTarget:
            if publishing is not None:
                self.waiting += 1
                await self.open.wait()
            seen: ConnectedTarget = await inspect(target, taking, publishing)
            return seen

        return slow


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    gate = Gate()
    monkeypatch.setattr(BrokerTarget, "inspect", gate(BrokerTarget.inspect))
    return gate


async def pending(service: Service, gate: Gate) -> Operation:
    await eventually(lambda: gate.waiting > 0)
    [operation] = await service.operations()
    assert operation.state is OperationState.PENDING
    return operation


async def start(service: Service, executor: LocalExecutor, archives: Path | None = None, **order: Any) -> Operation:
    operation = await service.begin(an_order(**order), archives=archives)
    return await executor.start(operation.id)


async def test_what_is_about_to_begin_shows_that_it_lives(
    connection: Connection,
    service: Service,
    executor: LocalExecutor,
    clock: ManualClock,
    gate: Gate,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("redrive.admin.service._BEAT", 0.01)
    await prepare(connection, 3)
    asked = asyncio.create_task(start(service, executor))
    operation = await pending(service, gate)

    clock.advance(STALE)

    await eventually(lambda: service.store.find(operation.id)[0].beat_at == clock.now())
    gate.open.set()
    await asked


@pytest.mark.parametrize("kind", [OperationKind.REDRIVE, OperationKind.DISCARD])
async def test_a_server_does_not_adopt_what_it_is_about_to_begin(
    connection: Connection,
    service: Service,
    executor: LocalExecutor,
    clock: ManualClock,
    gate: Gate,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    kind: OperationKind,
) -> None:
    """Though its memory did not answer for so long that it seems to be gone."""
    monkeypatch.setattr("redrive.admin.service._BEAT", 3600)
    await prepare(connection, 3)
    archives = tmp_path / "archive" if kind is OperationKind.DISCARD else None
    asked = asyncio.create_task(start(service, executor, archives, kind=kind))
    operation = await pending(service, gate)
    clock.advance(STALE + timedelta(seconds=1))
    assert service.is_interrupted(operation)

    async with asyncio.timeout(10):  # whoever adopted it would wait at the gate
        await OrphanRecovery(service, MARK, executor).recover()
    gate.open.set()
    await asked
    await eventually(lambda: not executor.ids)

    assert (await service.operation(operation.id)).state is OperationState.SUCCEEDED
    actions = [entry.action for _, entry in service.audit.list_entries(by=None)]
    assert sorted(set(actions) - {"plan"}) == [kind, f"{kind} ended"]
    assert await bodies(connection, SOURCE) == (orders(0, 1, 2) if kind is OperationKind.REDRIVE else [])


async def test_what_does_not_begin_is_answered_and_not_known_any_more(
    connection: Connection, service: Service, executor: LocalExecutor
) -> None:
    await prepare(connection, 0)
    await connection.delete_queue(DLQ)

    with pytest.raises(Exception, match=DLQ):
        await start(service, executor)

    assert executor.ids == frozenset()
    [operation] = await service.operations()
    assert operation.state is OperationState.FAILED


class NobodyThere:
    """An executor that cannot reach the broker."""

    ids: frozenset[str] = frozenset()

    def __init__(self) -> None:
        self.tried: list[str] = []

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def start(self, id: str) -> Operation:
        self.tried.append(id)
        raise ConnectionFailed("nobody there")


async def test_what_cannot_go_on_is_tried_again_only_after_a_while(service: Service, clock: ManualClock) -> None:
    service.owner = f"{MARK}:elsewhere:1:ee"
    left = await service.begin(an_order())
    await service.leave(left)
    executor = NobodyThere()
    recovery = OrphanRecovery(service, MARK, executor)

    await recovery.recover()
    await recovery.recover()
    assert executor.tried == [left.id]

    clock.advance(STALE)
    await recovery.recover()
    assert executor.tried == [left.id] * 2


class Held:
    """A call that waits in its thread until it may go on."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.go_on = threading.Event()

    def before(self, call: Any, holds: Callable[..., bool]) -> Any:
        def held(*args: Any) -> Any:
            if holds(*args):
                self.reached.set()
                assert self.go_on.wait(30)
            return call(*args)

        return held


@pytest.mark.parametrize("where", ["its end is saved", "its end is recorded"])
async def test_a_server_that_stops_while_an_operation_ends_waits_for_the_end_and_no_longer(
    connection: Connection,
    service: Service,
    executor: LocalExecutor,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    where: str,
) -> None:
    held = Held()
    if where == "its end is saved":
        monkeypatch.setattr(service.store, "save", held.before(service.store.save, lambda one, *_: one.state.is_over))
    else:
        ends = held.before(service.audit.write, lambda entry, *_: entry.action.endswith("ended"))
        monkeypatch.setattr(service.audit, "write", ends)
    await prepare(connection, 3)
    operation = await start(service, executor)
    assert await asyncio.to_thread(held.reached.wait, 30)

    stopping = asyncio.create_task(executor.close())
    await asyncio.sleep(0)  # it has begun to wait
    held.go_on.set()
    async with asyncio.timeout(8):
        await stopping

    assert "cut off" not in caplog.text
    over = await service.operation(operation.id)
    assert (over.state, over.counts.moved) == (OperationState.SUCCEEDED, 3)
    assert next(entry.action for _, entry in service.audit.list_entries()) == "re-drive ended"


async def test_a_server_that_stops_while_an_operation_begins_leaves_it_to_the_next(
    connection: Connection,
    service: Service,
    executor: LocalExecutor,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    reached, go_on, depth = asyncio.Event(), asyncio.Event(), DlqAdapter.depth

    async def slow(broker: DlqAdapter, queue: str) -> int:
        reached.set()
        await go_on.wait()
        return await depth(broker, queue)

    monkeypatch.setattr(DlqAdapter, "depth", slow)
    await prepare(connection, 40)
    asked = asyncio.create_task(start(service, executor, rate=1.0))
    await reached.wait()

    stopping = asyncio.create_task(executor.close())
    await asyncio.sleep(0)  # it has begun to wait
    go_on.set()
    async with asyncio.timeout(8):
        await stopping
        await asyncio.gather(asked, return_exceptions=True)

    assert "cut off" not in caplog.text
    [left] = await service.operations()
    assert (left.state, left.beat_at) == (OperationState.RUNNING, None)


async def test_an_operation_that_does_not_come_to_its_end_in_time_stays_ended(
    connection: Connection, service: Service, executor: LocalExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redrive.admin.executor.local._STOP_WITHIN", 0.05)
    held = Held()
    ends = held.before(service.audit.write, lambda entry, *_: entry.action.endswith("ended"))
    monkeypatch.setattr(service.audit, "write", ends)
    await prepare(connection, 3)
    operation = await start(service, executor)
    assert await asyncio.to_thread(held.reached.wait, 30)

    await executor.close()
    held.go_on.set()

    assert (await service.operation(operation.id)).state is OperationState.SUCCEEDED
