"""The right to be the only relay of an outbox: an exclusive queue, which the broker gives to one connection.

It goes with the connection. When that is back after a break, the queue may be another relay's by now, or still be held
for our old connection, which the broker does not know to be dead: so it is declared again.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta

from redrive.client.connection import Connection, LinkState
from redrive.errors import ConfigurationError, ConnectionLost, RedriveError, ResourceLocked
from redrive.worker.clock import Clock, wait

_STANDBY = 1.0  # seconds between the attempts of a relay that waits for the lock


class RelayLock:
    def __init__(self, connection: Connection, name: str, patience: timedelta, clock: Clock) -> None:
        self._connection = connection
        self._name = name
        self._patience = patience.total_seconds()
        self._clock = clock
        self._taken: int | None = None  # after how many reconnects

    async def acquire(self, stop: asyncio.Event, *, standby: bool) -> None:
        """Take the lock. If another relay has it, wait for it until `stop` (`standby`), or raise."""
        while not stop.is_set():
            try:
                await self._take()
                return
            except ResourceLocked:
                if not standby:
                    raise ConfigurationError(
                        "another relay works on this outbox, and SQLite is for one: stop it first"
                    ) from None
            await wait(stop, self._clock, _STANDBY)

    async def _take(self) -> None:
        await self._connection.link()
        reconnects = self._connection.reconnects
        await self._connection.declare_queue(self._name, durable=False, exclusive=True)
        self._taken = reconnects

    async def keep(self) -> None:
        """Raise a RedriveError if another relay may have the lock now."""
        if self._connection.state is LinkState.OPEN and self._connection.reconnects == self._taken:
            return
        try:
            async with asyncio.timeout(self._patience):
                await self._take()
        except ResourceLocked:
            raise RedriveError("another relay has taken over, and SQLite is for one: its end is waited for") from None
        except TimeoutError:
            raise ConnectionLost(f"not connected ({self._connection.last_error})") from None

    def __repr__(self) -> str:
        return f"<RelayLock {self._name} taken={self._taken}>"
