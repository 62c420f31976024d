"""The record of a migration, kept where the messages are: in a queue of the broker.

The queue holds one record, and for a moment two: the new one is confirmed before the old one is acked. Whoever finds
two takes the later one. A queue without a record is as good as none: it is what a migration that dies in its first or
its last moment leaves behind.

Only who holds the lock reads or writes: an exclusive queue, which the broker takes away with its owner's connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from redrive.errors import MigrationRefused, RedriveError, ReplyCode, ResourceLocked
from redrive.migration.calls import MigrationCalls
from redrive.migration.steps import MigrationNames, MigrationRecord
from redrive.protocol.messages import Delivery
from redrive.topology.definitions import Arguments, QueueDefinition
from redrive.wire.properties import PERSISTENT, Properties

_AS_JSON = Properties(content_type="application/json", delivery_mode=PERSISTENT)

# A broker needs a moment to notice that a process is dead.
_PATIENCE, _TRIES = 0.2, 15


@asynccontextmanager
async def migration_lock(operations: MigrationCalls, names: MigrationNames) -> AsyncIterator[None]:
    for tries in range(_TRIES, -1, -1):
        try:
            await operations.lock(names.lock)
            break
        except ResourceLocked:
            if not tries:
                raise MigrationRefused(
                    names.queue,
                    ["another migration of it is running; if it died just now, the broker will notice in a minute"],
                ) from None
        await asyncio.sleep(_PATIENCE)
    try:
        yield
    finally:
        with suppress(RedriveError):  # without a connection there is no lock either
            await operations.delete_idle(names.lock, "classic")


class MigrationJournal:
    def __init__(self, operations: MigrationCalls, names: MigrationNames) -> None:
        self._operations = operations
        self._names = names
        self._records = 0

    async def read(self) -> MigrationRecord | None:
        """The latest record, and with it the only one."""
        if await self._operations.usage(self._names.journal) is None:
            return None
        found: list[tuple[MigrationRecord, Delivery]] = []
        while (delivery := await self._operations.broker.get(self._names.journal)) is not None:
            found.append((self._decode(delivery), delivery))
        found.sort(key=lambda pair: pair[0].sequence)
        for _, delivery in found[:-1]:
            delivery.ack()
        self._records = len(found[-1:])
        for record, delivery in found[-1:]:
            delivery.nack(requeue=True)
            return record
        return None

    def _decode(self, delivery: Delivery) -> MigrationRecord:
        record = MigrationRecord.decode(delivery.body)
        if record is None or record.names != self._names:
            delivery.nack(requeue=True)
            reason = f"queue {self._names.journal} holds something that is no record of a migration: look into it"
            raise MigrationRefused(self._names.queue, [reason])
        return record

    async def open(self, arguments: Arguments) -> None:
        await self._operations.make(QueueDefinition(self._names.journal, arguments=arguments))

    async def write(self, record: MigrationRecord) -> None:
        self._operations.check()
        await self._operations.broker.publish("", self._names.journal, record.encode(), _AS_JSON)
        self._records += 1
        while self._records > 1:
            await self._forget_oldest()

    async def erase(self, kind: str) -> None:
        while self._records:
            await self._forget_oldest()
        for _ in range(_TRIES):  # to a quorum queue, who has just taken a message is a consumer for a moment
            if await self._operations.delete_idle(self._names.journal, kind):
                return
            await asyncio.sleep(_PATIENCE)
        raise ResourceLocked(ReplyCode.RESOURCE_LOCKED, f"queue {self._names.journal} is used by somebody else")

    async def _forget_oldest(self) -> None:
        self._operations.check()
        delivery = await self._operations.broker.get(self._names.journal)
        if delivery is not None:
            delivery.ack()
        self._records -= 1
