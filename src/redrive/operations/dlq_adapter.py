"""What operations on dead letters ask of a broker, over two connections: one takes and locks, the other publishes.

Two, because a broker that takes no messages now (an alarm) stops reading from who publishes, acks included.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable
from contextlib import suppress
from datetime import timedelta

from redrive.client.browser import QueueBrowser
from redrive.client.connection import Connection
from redrive.client.publisher import AnyPublish
from redrive.client.transport import Transport
from redrive.errors import ConnectionLost, OperationConflict, RedriveError, ResourceLocked
from redrive.operations.peek_allowance import Allowance
from redrive.wire.methods.queue import QueueDeclare, QueueDeclareOk, QueueDelete, QueueDeleteOk

_LOCK_PATIENCE = 5.0  # seconds


def lock_name(queue: str) -> str:
    """Of the exclusive queue that is the lock. Names are limited to 255 bytes, and those of queues use them."""
    return f"redrive.lock.{hashlib.sha256(queue.encode()).hexdigest()[:16]}"


class DlqAdapter:
    def __init__(self, taking: Connection, publishing: Connection) -> None:
        self._taking = taking
        self._publishing = publishing
        self._links: dict[
            str, tuple[Transport, Transport]
        ] = {}  # that take and publish, since the queue's lock was taken
        self.allowances: dict[str, Allowance] = {}  # of queues in which deliveries count

    @property
    def budget(self) -> int:
        return min(self._taking.properties_max, self._publishing.properties_max)

    # Looking ------------------------------------------------------------------------------------------

    async def depth(self, queue: str) -> int:
        return (await self._taking.queue_info(queue)).messages

    async def consumers(self, queue: str) -> int:
        return (await self._taking.queue_info(queue)).consumers

    async def browse(self, queue: str, at_most: int) -> QueueBrowser:
        allowance = self.allowances.get(queue)
        if allowance is not None:
            allowance.spend()
        return await QueueBrowser.open(self._taking, queue, at_most=at_most, seen=allowance.see if allowance else None)

    # Moving -------------------------------------------------------------------------------------------

    async def lock(self, queue: str, patience: float = _LOCK_PATIENCE) -> None:
        """An exclusive queue: the broker keeps it for this connection, and lets go of it when that ends.

        Looks hold it, too, and not for long, so it is worth to wait for a moment.
        """
        declare = QueueDeclare(queue=lock_name(queue), exclusive=True)
        deadline = asyncio.get_running_loop().time() + patience
        while True:
            try:
                await self._taking.ask(declare, QueueDeclareOk)
                break
            except ResourceLocked:
                if asyncio.get_running_loop().time() >= deadline:
                    raise OperationConflict(queue, "another operation, or a look that takes long") from None
            await asyncio.sleep(0.1)
        self._links[queue] = await self._taking.link(), await self._publishing.link()

    async def unlock(self, queue: str) -> None:
        links = self._links.pop(queue, None)
        if links is not None and links[0].alive:
            with suppress(RedriveError):  # then the lock went with the connection
                await self._taking.ask(QueueDelete(queue=lock_name(queue)), QueueDeleteOk)

    def check(self) -> None:
        """Both connections are those of the lock. One that was lost and is back again has lost something all the same:
        the lock and what was in hand, or the answers to what was published.
        """
        links = list(dict.fromkeys(link for pair in self._links.values() for link in pair))
        lost = [link.lost.result() for link in links if not link.alive]
        if lost or not links:
            raise ConnectionLost(f"the connection was lost ({'; '.join(map(str, lost)) or 'and the lock with it'})")

    async def wait_until_restored(self, patience: float) -> None:
        try:
            async with asyncio.timeout(patience):
                await self._taking.link()
                await self._publishing.link()
        except TimeoutError:
            away = timedelta(seconds=patience)
            raise ConnectionLost(f"the broker was away for {away}: {self._taking.last_error}") from None

    async def publish_many(self, messages: Iterable[AnyPublish]) -> int:
        return await self._publishing.publish_many(messages)

    def __repr__(self) -> str:
        return f"<DeadLetterBroker {self._taking!r}>"
