"""Wait for a database that is unavailable, with the messages in hand.

    available --a transaction fails--> unavailable --a probe succeeds--> available

A message whose own transaction cannot begin or commit is not to blame, and neither is its handler: it keeps its place,
unacknowledged, and nothing is counted. All consumers of a worker share one `Outage`, as they share the database. While
it lasts, one message at a time is a probe: it waits for a pause that grows with each failure, and tries again. The
others wait in line. The first one that succeeds ends the outage, and all go on.

When the worker stops, what waits here is given back to its queue.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import TypeVar

from redrive.recovery.backoff import Backoff
from redrive.worker.cancellation import is_cancelled
from redrive.worker.clock import Clock, wait
from redrive.worker.events import DATABASE, ConnectionChanged, Observer
from redrive.worker.transactions import DatabaseLost, Transaction, Transactions

T = TypeVar("T")

_PAUSES = Backoff(first=timedelta(milliseconds=200), ceiling=timedelta(seconds=3), jitter=0.2)


class Outage:
    def __init__(self, observer: Observer, clock: Clock) -> None:
        self.error: DatabaseLost | None = None  # why the database is unavailable; None: it is not
        self._observer = observer
        self._clock = clock
        self._probe_lock = asyncio.Lock()
        self._probes = 0  # the number of the next one in this outage
        self._ended = 0  # how many outages are over
        self._began = 0.0
        self._reached = False  # has a transaction begun since the last failure?
        self._stopping = asyncio.Event()

    async def ride_out(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do the work, and repeat it while the database is unavailable. Raise DatabaseLost on a stop."""
        while True:
            if self.error is None:
                try:
                    return await work()
                except DatabaseLost as error:
                    _stay_cancelled()
                    self._begin(error)
            else:
                async with self._probe_lock:
                    if self.error is not None:
                        await self._pause(self.error)
                        try:
                            return await self._probe(work)
                        except DatabaseLost as error:
                            _stay_cancelled()
                            self.error = error
                            self._probes += 1

    async def _probe(self, work: Callable[[], Awaitable[T]]) -> T:
        self._reached = False
        try:
            result = await work()
        except DatabaseLost:
            raise
        except BaseException:
            if self._reached:  # the handler failed, not the database
                self._on_recovery()
            raise
        self._on_recovery()
        return result

    @asynccontextmanager
    async def transaction(self, transactions: Transactions, *, blocking: bool) -> AsyncIterator[Transaction]:
        """Begin a transaction. A time limit that ends before it has begun is not the handler's, which has not begun."""
        transaction: Transaction | None = None
        try:
            async with transactions.begin(blocking=blocking) as transaction:
                yield transaction
        except asyncio.CancelledError:
            if transaction is not None and transaction.connection is not None:
                raise
            raise DatabaseLost("the transaction did not begin within the handler's time limit") from None
        finally:
            self._reached |= transaction is not None and transaction.connection is not None

    async def _pause(self, error: DatabaseLost) -> None:
        pause = _PAUSES.delay(self._probes, random.random())
        if await wait(self._stopping, self._clock, pause.total_seconds()):
            raise DatabaseLost(str(error))

    def observe(self) -> None:
        """Report the state before anything has changed."""
        self._observer.connection(ConnectionChanged(DATABASE, "open", None, 0))

    def _begin(self, error: DatabaseLost) -> None:
        """All that are being handled fail in the same moment: that is one failure."""
        if self.error is None:
            self.error, self._probes = error, 1
            self._began = self._clock.monotonic()
            self._observer.connection(ConnectionChanged(DATABASE, "unavailable", str(error), self._ended))

    def _on_recovery(self) -> None:
        if self.error is not None:
            self.error = None
            self._ended += 1
            lasted = timedelta(seconds=self._clock.monotonic() - self._began)
            self._observer.connection(ConnectionChanged(DATABASE, "open", None, self._ended, lasted))

    def stop(self) -> None:
        """What waits here has not begun, and must not hold up a worker that stops."""
        self._stopping.set()

    def __repr__(self) -> str:
        return f"<Outage {'unavailable' if self.error is not None else 'available'} outages={self._ended}>"


def _stay_cancelled() -> None:
    """The task may have been cancelled while it waited for the database."""
    if is_cancelled():
        raise asyncio.CancelledError
