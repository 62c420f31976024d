"""What an operation remembers of itself while it runs, also when its memory fails for a moment."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from datetime import UTC, datetime

import pytest

from dead_lettering import eventually
from redrive.errors import OperationConflict
from redrive.operations.control import OperationControl
from redrive.operations.operation import (
    ControlRequest,
    ItemOutcome,
    Operation,
    OperationItem,
    OperationKind,
    OperationRequest,
)
from redrive.worker.clock import SystemClock

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def items(*ids: str) -> list[OperationItem]:
    return [OperationItem(id, ItemOutcome.MOVED, NOW) for id in ids]


class Memory:
    """Remembers, or does not; and waits with either, if it is told to."""

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.counted: list[int] = []
        self.problems: list[Exception] = []
        self.busy = threading.Event()
        self.goes_on = threading.Event()
        self.goes_on.set()

    def save(self, operation: Operation, items: Sequence[OperationItem]) -> None:
        self.busy.set()
        self.goes_on.wait()
        problem = self.problems.pop(0) if self.problems else None
        if problem is None or isinstance(problem, OperationConflict):
            self.ids += [item.id for item in items]
            self.counted.append(operation.counts.moved)
        if problem is not None:
            raise problem

    def moved_ids(self, id: str) -> list[str]:  # noqa: ARG002
        return self.ids

    def control_request(self, id: str) -> ControlRequest:  # noqa: ARG002
        return ControlRequest()

    def clear_request(self, id: str, wish: ControlRequest) -> None: ...


@pytest.fixture
def memory() -> Memory:
    return Memory()


@pytest.fixture
def steering(memory: Memory) -> OperationControl:
    operation = Operation("op_1", OperationRequest(OperationKind.REDRIVE, "q.dlq", by="ada"), NOW)
    return OperationControl(operation, memory, SystemClock(), lambda _: None)


async def test_what_a_failing_database_did_not_take_is_written_later(
    memory: Memory, steering: OperationControl
) -> None:
    memory.problems = [ConnectionError("the database is away")]
    steering.add(items("1", "2"))
    with pytest.raises(ConnectionError):
        await steering.save()

    steering.add(items("3"))
    await steering.save()

    assert memory.ids == ["1", "2", "3"]
    assert memory.counted == [3]


async def test_a_beat_that_fails_loses_nothing_of_what_it_took_along(
    memory: Memory, steering: OperationControl
) -> None:
    memory.goes_on.clear()
    first = asyncio.create_task(steering.save())
    await asyncio.to_thread(memory.busy.wait)
    beat = asyncio.create_task(steering._beat())
    await eventually(lambda: bool(steering._writing._waiters))  # for its turn behind the first
    steering.add(items("1"))
    mine = asyncio.create_task(steering.save())
    await asyncio.sleep(0)
    memory.problems = [ConnectionError("the database was away"), ConnectionError("and still is")]
    memory.goes_on.set()

    with pytest.raises(ConnectionError):
        await first
    await beat  # a failing beat is no end
    await mine

    assert memory.ids == ["1"]


async def test_what_is_written_in_spite_of_a_conflict_is_not_written_again(
    memory: Memory, steering: OperationControl
) -> None:
    memory.problems = [OperationConflict("q.dlq", "somebody else")]
    steering.add(items("1"))
    with pytest.raises(OperationConflict):
        await steering.save()
    await steering.save()

    assert memory.ids == ["1"]
