"""The broker is killed while a re-drive runs: nothing is lost, and what may have arrived twice is reported.

A classic queue that is killed forgets the acks of its last seconds, so messages that were moved are in the dead-letter
queue again. The operation recognises them and acks them. An independent client (pika) counts what arrived.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from dead_lettering import DLQ, SOURCE, LockingMover, an_operation, an_order, operating, orders, prepare
from redrive.client import Connection
from redrive.database.engine import Database
from redrive.database.schema import Schema
from redrive.operations.actions import RedriveAction
from redrive.operations.control import OperationControl
from redrive.operations.operation import ItemOutcome, Operation, OperationRequest, OperationState
from redrive.operations.pipeline import UNDER_WAY, WINDOW
from redrive.operations.repository import OperationRepository
from redrive.testing import RabbitMQ
from redrive.testing.broker_process import EmbeddedBroker
from redrive.worker.clock import SystemClock

Node = RabbitMQ | EmbeddedBroker

YOUTH = 2.0  # seconds: RabbitMQ may lose confirmed messages of a quorum queue that is younger when it is killed


@pytest.fixture
def embedded(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(tmp_path / "embedded", data=tmp_path / "data") as node:
        yield node


@pytest.fixture(params=["embedded", "own_rabbitmq"])
def node(request: pytest.FixtureRequest) -> Node:
    found: Node = request.getfixturevalue(request.param)
    return found


class Progress:
    """Lets a test wait until so many messages were moved."""

    def __init__(self) -> None:
        self._moved = 0
        self._changed = asyncio.Condition()
        self._telling: set[asyncio.Task[None]] = set()

    def changed(self, steering: OperationControl) -> None:
        self._moved = steering.operation.counts.moved
        telling = asyncio.create_task(self._tell())
        self._telling.add(telling)
        telling.add_done_callback(self._telling.discard)

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def until(self, moved: int) -> None:
        async with asyncio.timeout(120), self._changed:
            await self._changed.wait_for(lambda: self._moved >= moved)


class Result(NamedTuple):
    over: Operation
    arrived: Counter[bytes]
    left: int  # in the dead-letter queue
    store: OperationRepository

    @property
    def duplicates(self) -> int:
        return self.arrived.total() - len(self.arrived)


async def redrive_while_killed(
    node: Node, folder: Path, order: OperationRequest, *, messages: int, kills: int, queue_type: str
) -> Result:
    database = Database(f"sqlite:///{folder / 'operations.db'}")
    Schema().upgrade(database)
    store, clock, progress = OperationRepository(database), SystemClock(), Progress()
    operation = replace(an_operation(order), owner="test")
    operation = replace(operation, counts=replace(operation.counts, planned=messages))
    store.add(operation)
    async with Connection(node.url) as connection:
        await prepare(connection, messages, queue_type)
    await asyncio.sleep(YOUTH if queue_type == "quorum" else 0)
    async with operating(node.url) as broker:
        mover = LockingMover(
            operation,
            broker,
            store,
            RedriveAction(broker, clock),
            clock=clock,
            keeps_order=queue_type == "classic" or isinstance(node, EmbeddedBroker),
            changed=progress.changed,
        )
        running = asyncio.create_task(mover.run())
        async with ended_by(running):
            for turn in range(kills):
                await progress.until(messages * (turn + 1) // (kills + 1))
                await asyncio.to_thread(node.kill)
                await asyncio.to_thread(node.start)
        over = await running
    arrived, left = await asyncio.to_thread(counted_by_pika, node.url)
    return Result(over, arrived, left, store)


@asynccontextmanager
async def ended_by(running: asyncio.Task[Operation]):  # type: ignore[no-untyped-def]
    """If the operation ends before the test expects it, show how."""
    try:
        yield
    except TimeoutError:
        if running.done():
            pytest.fail(f"the operation ended early: {running.result()}")
        running.cancel()
        raise


def counted_by_pika(url: str) -> tuple[Counter[bytes], int]:
    """What is in the queue for work, and how many are left in the dead-letter queue."""
    pika = pytest.importorskip("pika")
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    arrived: Counter[bytes] = Counter()
    for _, _, body in channel.consume(SOURCE, auto_ack=True, inactivity_timeout=2):
        if body is None:
            break
        arrived[body] += 1
    channel.cancel()
    left = channel.queue_declare(DLQ, passive=True).method.message_count
    connection.close()
    return arrived, left


def check(result: Result, messages: int, most_duplicated: int = WINDOW) -> None:
    over, counts = result.over, result.over.counts
    assert over.state is OperationState.SUCCEEDED, over.note
    assert result.arrived.keys() == {*orders(*range(messages))}, "a message is lost, or made up"
    assert counts.moved == messages, "more or less was counted than was planned"
    assert result.left == 0
    assert result.duplicates <= counts.possibly_duplicated <= most_duplicated
    moved = result.store.items(over.id, ItemOutcome.MOVED, limit=2 * messages)
    assert len({item.id for _, item in moved}) == len(moved) == messages
    doubtful = result.store.items(over.id, ItemOutcome.POSSIBLY_DUPLICATED, limit=messages)
    assert len(doubtful) == counts.possibly_duplicated


@pytest.mark.parametrize("rate", [None, 1000.0], ids=["unlimited", "rate"])
async def test_a_re_drive_whose_broker_is_killed_moves_each_message_once(
    node: Node, tmp_path: Path, rate: float | None
) -> None:
    result = await redrive_while_killed(
        node, tmp_path, an_order(rate=rate), messages=1500, kills=1, queue_type="classic"
    )

    check(result, 1500, UNDER_WAY if rate else WINDOW)


@pytest.mark.slow
@pytest.mark.parametrize("rate", [None, 1000.0], ids=["unlimited", "rate"])
@pytest.mark.parametrize("queue_type", ["classic", "quorum"])
async def test_a_re_drive_whose_broker_is_killed_five_times_moves_each_message_once(
    node: Node, tmp_path: Path, queue_type: str, rate: float | None, capsys: pytest.CaptureFixture[str]
) -> None:
    result = await redrive_while_killed(
        node, tmp_path, an_order(rate=rate), messages=5000, kills=5, queue_type=queue_type
    )

    with capsys.disabled():
        counts = result.over.counts
        print(f"\n{type(node).__name__} {queue_type}, rate {rate}: killed 5 times, {counts.moved} of 5000 moved, "
              f"{result.duplicates} arrived twice, {counts.possibly_duplicated} reported")  # fmt: skip
    check(result, 5000, 5 * UNDER_WAY if rate else WINDOW)
