"""Wake the relay when there are new rows: LISTEN/NOTIFY on PostgreSQL, polling on SQLite.

A notification can be missed (the connection that listens may be down), so it only ever shortens the wait: the rows are
asked for all the same, if less often.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Self

from redrive.database.engine import Database
from redrive.worker.clock import Clock, wait

log = logging.getLogger("redrive.outbox")

POLL = 0.1  # seconds, where nobody tells
POLL_WHILE_LISTENING = 2.0
_RECONNECT = 1.0


class OutboxListener:
    """`await waker.wait(since)` returns when rows may have been added, or when it is time to look anyway."""

    def __init__(self, database: Database, channel: str, clock: Clock) -> None:
        self._database = database
        self._channel = channel
        self._clock = clock
        self._woken = asyncio.Event()
        self._listening = False
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        if self._database.is_postgresql:
            self._task = asyncio.create_task(self._listen(), name="redrive-outbox-listen")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def wait(self, since: float) -> None:
        """`since`: when the last look began, in seconds of the clock. What was added after that may not be seen yet."""
        due = since + (POLL_WHILE_LISTENING if self._listening else POLL)
        await wait(self._woken, self._clock, due - self._clock.monotonic())
        self._woken.clear()

    async def _listen(self) -> None:
        import psycopg  # an extra: only who uses PostgreSQL needs it

        url = self._database.url.set(drivername="postgresql").render_as_string(hide_password=False)
        while True:
            try:
                async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
                    await connection.execute(psycopg.sql.SQL("LISTEN {}").format(psycopg.sql.Identifier(self._channel)))
                    self._listening = True
                    self._woken.set()  # whatever came while nobody listened
                    async for _ in connection.notifies():
                        self._woken.set()
            except psycopg.Error as error:
                log.warning("nobody tells of new outbox rows now, they are asked for instead: %s", error)
            finally:
                self._listening = False
            await asyncio.sleep(_RECONNECT)
