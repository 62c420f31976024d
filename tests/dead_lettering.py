"""Dead letters for tests: queues full of them, and a memory for operations that forgets with the test."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from redrive.admin.service import Service
from redrive.admin.target import BrokerTarget
from redrive.client import Connection, Properties
from redrive.client.publisher import Publish
from redrive.database.engine import Database
from redrive.database.schema import Schema
from redrive.operations.actions import RedriveAction
from redrive.operations.audit_log import AuditLog
from redrive.operations.dlq_adapter import DlqAdapter
from redrive.operations.operation import (
    ControlRequest,
    ItemOutcome,
    Operation,
    OperationItem,
    OperationKind,
    OperationRequest,
    OperationState,
)
from redrive.operations.repository import OperationRepository
from redrive.operations.runner import OperationRunner
from redrive.protocol.messages import Delivery
from redrive.worker.clock import Clock, SystemClock

DLQ = "orders.dlq"
SOURCE = "orders"
DEAD_AT = datetime(2024, 5, 17, 12, tzinfo=UTC)


class Memory:
    """What a database would keep."""

    def __init__(self) -> None:
        self.operation: Operation | None = None
        self.items: list[OperationItem] = []
        self.wished = ControlRequest()

    def save(self, operation: Operation, items: Sequence[OperationItem]) -> None:
        self.operation = operation
        self.items += items

    def moved_ids(self, id: str) -> list[str]:  # noqa: ARG002
        return [item.id for item in self.outcomes(ItemOutcome.MOVED)]

    def control_request(self, id: str) -> ControlRequest:  # noqa: ARG002
        return self.wished

    def clear_request(self, id: str, wish: ControlRequest) -> None:  # noqa: ARG002
        if self.wished == wish:
            self.wished = ControlRequest()

    def outcomes(self, outcome: ItemOutcome) -> list[OperationItem]:
        return [item for item in self.items if item.outcome is outcome]


def dead_letter(number: int, **headers: Any) -> Publish:
    """As a worker parks one."""
    story = {
        "x-redrive-queue": SOURCE,
        "x-redrive-exchange": "events",
        "x-redrive-routing-key": "order.new",
        "x-redrive-reason": "exhausted",
        "x-redrive-error": "TimeoutError",
        "x-redrive-message": f"no answer to {number}",
        "x-redrive-fingerprint": "3fa9c0ffee" if number % 2 else "77d1beef00",
        "x-redrive-attempts": 3,
        "x-redrive-parked-at": DEAD_AT.isoformat(),
    }
    properties = Properties(
        content_type="application/json",
        delivery_mode=2,
        priority=3,
        message_id=f"m-{number}",
        correlation_id=f"c-{number}",
        type="OrderPlaced",
        timestamp=DEAD_AT,
        headers={"tenant": "acme", **story, **headers},
    )
    return Publish("", DLQ, b'{"order": %d}' % number, properties)


async def prepare(connection: Connection, count: int, queue_type: str = "classic", **arguments: Any) -> None:
    """A queue for work, and its dead-letter queue with so many messages."""
    await connection.declare_queue(SOURCE, arguments={"x-queue-type": queue_type})
    await connection.declare_queue(DLQ, arguments={"x-queue-type": queue_type, **arguments})
    await connection.publish_many(dead_letter(number) for number in range(count))
    await until_depth(connection, DLQ, count)


async def eventually(condition: Callable[[], bool], within: float = 20) -> None:
    async with asyncio.timeout(within):
        while not condition():  # noqa: ASYNC110 - of things that tell nobody
            await asyncio.sleep(0.01)


async def until_depth(connection: Connection, queue: str, count: int, within: float = 20) -> None:
    """A quorum queue tells its depth a moment later than the truth."""
    async with asyncio.timeout(within):
        while (await connection.queue_info(queue)).messages != count:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


@asynccontextmanager
async def operating(url: str, publishes_to: str = "") -> AsyncIterator[DlqAdapter]:
    publishing = Connection(publishes_to or url, name="operator publishes")
    async with Connection(url, name="operator") as taking, publishing:
        yield DlqAdapter(taking, publishing)


def an_order(**changes: Any) -> OperationRequest:
    return replace(OperationRequest(OperationKind.REDRIVE, DLQ, by="ada", reason="INC-42"), **changes)


def an_operation(order: OperationRequest | None = None, id: str = "op_test") -> Operation:
    return Operation(id, order or an_order(), datetime.now(UTC))


class LockingMover(OperationRunner):
    """Takes the lock itself, as the service does for others."""

    async def run(self) -> Operation:
        await self._broker.lock(self.queue)
        try:
            return await super().run()
        finally:
            await self._broker.unlock(self.queue)


def a_mover(
    broker: DlqAdapter, order: OperationRequest | None = None, memory: Memory | None = None, **options: Any
) -> OperationRunner:
    clock = SystemClock()
    operation = options.pop("operation", None) or an_operation(order, options.pop("id", "op_test"))
    return LockingMover(operation, broker, memory or Memory(), RedriveAction(broker, clock), clock=clock, **options)


async def redrive(
    url: str, order: OperationRequest | None = None, memory: Memory | None = None, **options: Any
) -> Operation:
    async with operating(url) as broker:
        return await a_mover(broker, order, memory, **options).run()


def a_service(url: str, folder: Path, *, by: str = "ada", clock: Clock | None = None, **known: Any) -> Service:
    """As an operator has it; what is `known` of the place is said by name. Those of one folder share their memory."""
    database = Database.embedded(folder)
    Schema().upgrade(database)
    return Service(BrokerTarget(url, **known), OperationRepository(database), AuditLog(database), by=by, clock=clock)


async def bodies(connection: Connection, queue: str) -> list[bytes]:
    """Everything that is in a queue, taken."""
    found = []
    while (delivery := await connection.get(queue)) is not None:
        found.append(delivery.body)
        delivery.ack()
    return found


@asynccontextmanager
async def handling(connection: Connection, queue: str) -> AsyncIterator[list[bytes]]:
    """A consumer that handles everything; gives the bodies it has handled."""
    handled: list[bytes] = []

    async def handle(delivery: Delivery) -> None:
        handled.append(delivery.body)
        delivery.ack()

    async with await connection.consume(queue, handle):
        yield handled


def orders(*numbers: int) -> list[bytes]:
    return [b'{"order": %d}' % number for number in numbers]


OVER = OperationState.SUCCEEDED
