"""A broker target for a server: one connection for all looks, and a snapshot that is shared while it is fresh.

A command reads once and leaves (`BrokerTarget.connect_to_read`). A server is asked again and again, by many clients at
once: it keeps its connection, shares a snapshot for a moment, and answers within seconds when the broker is
unavailable, instead of waiting for it. Operations have connections of their own, as everywhere.

The lock that keeps a peek and an operation apart belongs to the connection, so peeks that share one would not notice
each other: they take turns here first.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from datetime import timedelta

from redrive.admin.target import BrokerTarget, ConnectedTarget
from redrive.client import Connection, LinkState
from redrive.errors import ConnectionFailed, ConnectionLost, OperationConflict, RedriveError
from redrive.inspection import connect
from redrive.operations.dlq_adapter import DlqAdapter
from redrive.operations.operation import Destination
from redrive.recovery.history import HeaderNames

_FRESH = 2.0  # seconds
_PATIENCE = 2.0  # seconds that a look waits for a connection which is being made
_TURN = 5.0  # seconds that a peek waits for another one at the same queue
_BETWEEN = 1.0  # seconds between two attempts to connect


class CachedTarget:
    def __init__(self, target: BrokerTarget) -> None:
        self.target = target
        self._stack = AsyncExitStack()
        self._connection: Connection | None = None
        self._connecting: asyncio.Task[Connection] | None = None
        self._failed: tuple[float, RedriveError] | None = None  # when, and why
        self._latest: tuple[float, asyncio.Task[ConnectedTarget]] | None = None  # the last inspection, and its start
        self._inspections: set[asyncio.Task[ConnectedTarget]] = set()  # in progress; an older one may still be awaited
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)  # by queue

    @property
    def inbox_windows(self) -> Mapping[str, timedelta]:
        return self.target.inbox_windows

    @property
    def header_names(self) -> Mapping[str, HeaderNames]:
        return self.target.header_names

    def redrive_to(self, queue: str) -> Destination:
        return self.target.redrive_to(queue)

    def connect_to_move(self) -> AbstractAsyncContextManager[ConnectedTarget]:
        return self.target.connect_to_move()

    @asynccontextmanager
    async def connect_to_read(self, *queues: str) -> AsyncIterator[ConnectedTarget]:
        """Give the target over the shared connection, with a fresh snapshot. `queues`: those that are asked about; the
        broker is inspected again if the last snapshot lacks one of them, which may be younger.
        """
        connection = await self._connection_for_reading()
        seen = await self._inspect(connection)
        known = seen.snapshot.definitions
        if seen.snapshot.complete and any(known.queue(queue) is None for queue in queues):
            self._latest = None
            seen = await self._inspect(connection)
        yield replace(seen, broker=_SharedDlqAdapter(seen.connection, self._turns))

    async def close(self) -> None:
        tasks = [task for task in (self._connecting, *self._inspections) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._connection = None
        await self._stack.aclose()

    # The connection -----------------------------------------------------------------------------------

    async def _connection_for_reading(self) -> Connection:
        if self._connection is None:
            return await self._connect_once()
        connection, state = self._connection, LinkState.CLOSED
        with suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE):
                state = await connection.until(LinkState.OPEN, LinkState.CLOSED)
        if state is not LinkState.OPEN:
            raise ConnectionLost(f"the broker is away: {connection.last_error}; it is being looked for")
        return connection

    async def _connect_once(self) -> Connection:
        """Connect, once for all who wait; right after a failure raise that, instead of trying again."""
        now = asyncio.get_running_loop().time()
        if self._failed is not None and now - self._failed[0] < _BETWEEN:
            raise ConnectionFailed(str(self._failed[1]))
        if self._connecting is None:
            self._connecting = asyncio.create_task(self._open(), name="redrive-connecting")
        try:
            async with asyncio.timeout(_PATIENCE):
                return await asyncio.shield(self._connecting)
        except TimeoutError:
            raise ConnectionFailed("the broker does not answer; it is asked again") from None

    async def _open(self) -> Connection:
        opening = connect(self.target.broker, data=self.target.data, name="redrive console")
        try:
            self._connection = await self._stack.enter_async_context(opening)
        except RedriveError as error:
            self._failed = asyncio.get_running_loop().time(), error
            raise
        else:
            self._failed = None
            return self._connection
        finally:
            self._connecting = None

    # The snapshot -------------------------------------------------------------------------------------

    async def _inspect(self, connection: Connection) -> ConnectedTarget:
        now = asyncio.get_running_loop().time()
        if self._latest is None or now - self._latest[0] > _FRESH:
            inspection = asyncio.create_task(self.target.inspect(connection), name="redrive-inspection")
            self._inspections.add(inspection)
            inspection.add_done_callback(self._inspections.discard)
            self._latest = now, inspection
        latest = self._latest
        try:
            return await asyncio.shield(latest[1])
        except RedriveError:
            if self._latest is latest:  # inspect again next time
                self._latest = None
            raise

    def __repr__(self) -> str:
        return f"<CachedTarget {self._connection!r}>"


class _SharedDlqAdapter(DlqAdapter):
    """Peeks over a connection that is shared."""

    def __init__(self, connection: Connection, turns: Mapping[str, asyncio.Lock]) -> None:
        super().__init__(connection, connection)
        self._turns = turns

    async def lock(self, queue: str, patience: float = _TURN) -> None:
        turn = self._turns[queue]
        try:
            async with asyncio.timeout(patience):
                await turn.acquire()
        except TimeoutError:
            raise OperationConflict(queue, "a look that takes long") from None
        try:
            await super().lock(queue, patience)
        except BaseException:
            turn.release()
            raise

    async def unlock(self, queue: str) -> None:
        try:
            await super().unlock(queue)
        finally:
            self._turns[queue].release()
