"""Re-drive a queue as a process of its own, which is killed before its Nth side effect.

    python -m crashes.programs.redriving URL DATABASE OPERATION DIE_BEFORE [ARCHIVE]

Side effects are what others can see: the lock, the hold, each portion that is published, what is written down,
each ack, the release. DIE_BEFORE 0 lives. It prints the number of its side effects. With an ARCHIVE it discards: the
messages are written there, which is a side effect, too.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from redrive.client import Connection
from redrive.client.browser import QueueBrowser
from redrive.client.publisher import AnyPublish
from redrive.database.engine import Database
from redrive.operations.actions import DiscardAction, RedriveAction
from redrive.operations.archive import Archive
from redrive.operations.dlq_adapter import DlqAdapter
from redrive.operations.operation import Operation, OperationItem, OperationKind, OperationRequest
from redrive.operations.pipeline import MessageAction
from redrive.operations.repository import OperationRepository
from redrive.operations.runner import OperationRunner
from redrive.protocol.messages import Delivery
from redrive.worker.clock import SystemClock

DLQ = "orders.dlq"


class Life:
    def __init__(self, die_before: int) -> None:
        self.effects = 0
        self._die_before = die_before

    def effect(self) -> None:
        self.effects += 1
        if self.effects == self._die_before:
            os.kill(os.getpid(), signal.SIGKILL)


class MortalHold:
    def __init__(self, hold: QueueBrowser, life: Life) -> None:
        self._hold = hold
        self._life = life

    @property
    def taken(self) -> int:
        return self._hold.taken

    @taken.setter
    def taken(self, _: int) -> None:
        raise AttributeError

    async def next(self, patience: float) -> Sequence[Delivery]:
        return await self._hold.next(patience)

    def ack(self, deliveries: Iterable[Delivery]) -> bool:
        self._life.effect()
        return self._hold.ack(deliveries)

    async def release(self) -> int:
        self._life.effect()
        return await self._hold.release()


class MortalBroker(DlqAdapter):
    def __init__(self, taking: Connection, publishing: Connection, life: Life) -> None:
        super().__init__(taking, publishing)
        self._life = life

    async def lock(self, queue: str, patience: float = 5.0) -> None:
        self._life.effect()
        await super().lock(queue, patience)

    async def browse(self, queue: str, at_most: int) -> MortalHold:  # type: ignore[override]
        self._life.effect()
        return MortalHold(await super().browse(queue, at_most), self._life)

    async def publish_many(self, messages: Iterable[AnyPublish]) -> int:
        self._life.effect()
        return await super().publish_many(messages)


class MortalStore(OperationRepository):
    def __init__(self, database: Database, life: Life) -> None:
        super().__init__(database)
        self._life = life

    def save(self, operation: Operation, items: Sequence[OperationItem] = ()) -> None:
        self._life.effect()
        super().save(operation, items)


class MortalArchive(Archive):
    def __init__(self, path: Path, life: Life) -> None:
        super().__init__(path)
        self._life = life

    def write(self, lines: Iterable[bytes]) -> None:
        self._life.effect()
        super().write(lines)


async def main(url: str, database: str, id: str, die_before: int, archive: str = "") -> None:
    life = Life(die_before)
    store = MortalStore(Database(database), life)
    operation = store.get(id)
    if operation is None:
        kind = OperationKind.DISCARD if archive else OperationKind.REDRIVE
        operation = Operation(id, OperationRequest(kind, DLQ, by="ada"), datetime.now(UTC))
        store.add(operation)
    async with Connection(url) as taking, Connection(url) as publishing:
        broker = MortalBroker(taking, publishing, life)
        clock = SystemClock()
        act: MessageAction = (
            DiscardAction(MortalArchive(Path(archive), life)) if archive else RedriveAction(broker, clock)
        )
        await broker.lock(DLQ)
        over = await OperationRunner(operation, broker, store, act, clock=clock).run()
    print(life.effects, over.state, over.counts.moved)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), *sys.argv[5:]))
