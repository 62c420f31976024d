"""A place where somebody stays: one connection for all looks, and what the broker holds is asked anew after a moment.

A command looks once and leaves (`Place.looking`). A server is asked again and again, by many at once: it keeps its
connection, shares a snapshot for as long as that is fresh, and answers within seconds when the broker is away, instead
of waiting for it. Operations have connections of their own, as everywhere.

The lock that keeps a look and an operation apart belongs to the connection, so those who share one would not notice
each other: they take turns here first.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from datetime import timedelta

from redrive.admin.place import Place, View
from redrive.client import Connection, State
from redrive.client.dead_letters import DeadLetterBroker
from redrive.errors import ConnectionFailed, ConnectionLost, OperationConflict, RedriveError
from redrive.inspection import connect
from redrive.recovery.history import HeaderNames
from redrive.runtime.dlq.operation import Destination

_FRESH = 2.0  # seconds
_PATIENCE = 2.0  # seconds that a look waits for a connection which is being made
_TURN = 5.0  # seconds that a look waits for another one at the same queue
_BETWEEN = 1.0  # seconds between two tries to connect


class Residence:
    def __init__(self, place: Place) -> None:
        self.place = place
        self._stack: AsyncExitStack | None = None
        self._connection: Connection | None = None
        self._connecting: asyncio.Task[Connection] | None = None
        self._failed: tuple[float, RedriveError] | None = None  # when, and why
        self._view: tuple[float, asyncio.Task[View]] | None = None  # the latest snapshot, and when it was started
        self._surveys: set[asyncio.Task[View]] = set()  # in progress; an older one may still be awaited
        self._turns = _Turns()

    @property
    def inbox_windows(self) -> Mapping[str, timedelta]:
        return self.place.inbox_windows

    @property
    def header_names(self) -> Mapping[str, HeaderNames]:
        return self.place.header_names

    def redrive_to(self, queue: str) -> Destination:
        return self.place.redrive_to(queue)

    def moving(self) -> AbstractAsyncContextManager[View]:
        return self.place.moving()

    @asynccontextmanager
    async def looking(self, *queues: str) -> AsyncIterator[View]:
        """`queues`: those that matter. One that the last snapshot does not know may be younger than it."""
        connection = await self._connected()
        view = await self._seen(connection)
        known = view.snapshot.definitions
        if view.snapshot.complete and any(known.queue(queue) is None for queue in queues):
            self._view = None
            view = await self._seen(connection)
        yield replace(view, broker=_Sharing(view.connection, self._turns))

    async def close(self) -> None:
        tasks = [task for task in (self._connecting, *self._surveys) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        stack, self._stack, self._connection = self._stack, None, None
        if stack is not None:
            await stack.aclose()

    # The connection -----------------------------------------------------------------------------------

    async def _connected(self) -> Connection:
        if self._connection is None:
            return await self._first()
        connection, state = self._connection, State.CLOSED
        with suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE):
                state = await connection.until(State.OPEN, State.CLOSED)
        if state is not State.OPEN:
            raise ConnectionLost(f"the broker is away: {connection.last_error}; it is being looked for")
        return connection

    async def _first(self) -> Connection:
        """One tries, and all others wait for what comes of it; and who comes right after a failure hears of that."""
        now = asyncio.get_running_loop().time()
        if self._failed is not None and now - self._failed[0] < _BETWEEN:
            raise ConnectionFailed(str(self._failed[1]))
        if self._connecting is None:
            self._connecting = asyncio.create_task(self._open(), name="redrive-residence")
        try:
            async with asyncio.timeout(_PATIENCE):
                return await asyncio.shield(self._connecting)
        except TimeoutError:
            raise ConnectionFailed("the broker does not answer; it is asked again") from None

    async def _open(self) -> Connection:
        stack = AsyncExitStack()
        try:
            connection = await stack.enter_async_context(
                connect(self.place.broker, data=self.place.data, name="redrive console")
            )
        except BaseException as error:
            await stack.aclose()
            if isinstance(error, RedriveError):
                self._failed = asyncio.get_running_loop().time(), error
            raise
        else:
            self._stack, self._connection, self._failed = stack, connection, None
            return connection
        finally:
            self._connecting = None

    # What it holds ------------------------------------------------------------------------------------

    async def _seen(self, connection: Connection) -> View:
        now = asyncio.get_running_loop().time()
        if self._view is None or now - self._view[0] > _FRESH:
            snapshot = asyncio.create_task(self.place.view(connection), name="redrive-snapshot")
            self._surveys.add(snapshot)
            snapshot.add_done_callback(self._surveys.discard)
            self._view = now, snapshot
        asked = self._view
        try:
            return await asyncio.shield(asked[1])
        except RedriveError:
            if self._view is asked:  # ask again next time
                self._view = None
            raise

    def __repr__(self) -> str:
        return f"<Residence {self._connection!r}>"


class _Turns(dict[str, asyncio.Lock]):
    def __missing__(self, queue: str) -> asyncio.Lock:
        return self.setdefault(queue, asyncio.Lock())


class _Sharing(DeadLetterBroker):
    """Looks over a connection that others look over as well."""

    def __init__(self, connection: Connection, turns: _Turns) -> None:
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
