"""Outbox rows, published: claimed in batches, pipelined, and marked only when the broker has confirmed.

What can die in between, and what then is:

    before the publish        the rows are free again: published by whoever comes next
    before the confirm        the rows are free again: published once more, with the same message id
    before the mark           the same: a duplicate that an inbox absorbs, never a loss

A row that the broker refuses (no queue is bound, too large, a full queue) is put off with a growing pause, and parked
after its last attempt; the others go on. RabbitMQ often does not say which of many messages it objects to, and ends the
channel for all: then each is sent alone, and who is to blame is known. A broker that is not there is nobody's fault:
rows wait, and nothing is counted.

Where rows cannot be locked (SQLite) there may be one relay, and a lock in the broker says which. A connection that
broke may have lost it: so the lock is checked before rows are read, and before each send. A relay that has lost it
waits for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from datetime import timedelta
from typing import Any, Protocol

from redrive.errors import (
    ChannelClosed,
    ConnectionClosed,
    EncodingError,
    NotPublished,
    PublishError,
    PublishErrors,
    PublishRefused,
    PublishUnknown,
    RedriveError,
    ReplyCode,
)
from redrive.outbox.listener import OutboxListener
from redrive.outbox.repository import ClaimedBatch, OutboxRepository, RefusedRow
from redrive.outbox.rows import OutboxRow
from redrive.recovery.backoff import Backoff
from redrive.wire.properties import Properties
from redrive.worker.clock import Clock, SystemClock, wait

log = logging.getLogger("redrive.outbox")

_PAUSES = Backoff(first=timedelta(seconds=1), ceiling=timedelta(minutes=5), jitter=0)
_TROUBLE = 1.0  # seconds until the next try, when the database or the broker is away


class LockPort(Protocol):
    async def keep(self) -> None:
        """Raise a RedriveError if another relay may be working on the rows."""


class BatchPublisher(Protocol):
    async def publish_many(self, messages: Iterable[tuple[str, str, bytes, Properties | bytes, bool]]) -> int: ...


class Relay:
    def __init__(
        self,
        claims: OutboxRepository,
        broker: BatchPublisher,
        waker: OutboxListener,
        *,
        attempts: int = 10,
        batch: int = 500,
        lanes: int = 2,
        lock: LockPort | None = None,
        clock: Clock | None = None,
    ) -> None:
        """`lanes`: so many batches at a time: while one is published, the next is read."""
        self.published = 0
        self.parked = 0
        self.last_error: BaseException | None = None
        self._claims = claims
        self._broker = broker
        self._waker = waker
        self._attempts = attempts
        self._batch = batch
        self._lanes = lanes
        self._lock = lock
        self._clock = clock or SystemClock()
        self._stop = asyncio.Event()
        self._sending = asyncio.Lock()

    async def run(self, stop: asyncio.Event) -> None:
        """Publish rows until `stop` is set; a batch that was begun is finished."""
        self._stop = stop
        async with asyncio.TaskGroup() as group:
            for _ in range(self._lanes):
                group.create_task(self._run_lane())

    async def _run_lane(self) -> None:
        while not self._stop.is_set():
            since = self._clock.monotonic()
            try:
                found = await self.relay_batch()
            except (RedriveError, OSError, ConnectionError) as error:
                found = await self._wait_after_error(error)
            except Exception as error:
                if not _is_database_error(error):
                    raise
                found = await self._wait_after_error(error)
            if not found and not self._stop.is_set():
                await _wait_either(self._waker.wait(since), self._stop)

    async def _wait_after_error(self, error: BaseException) -> int:
        said = str(error).partition("\n")[0]  # a database goes on with its statement, and with what is in it
        if self.last_error is None or said != str(self.last_error).partition("\n")[0]:
            log.warning("the outbox waits: %s", said)
        self.last_error = error
        await self._pause()
        return 1

    async def relay_batch(self) -> int:
        """One batch: claim, publish, mark. How many rows there were."""
        if self._lock is not None:
            await self._lock.keep()
        stack = ExitStack()
        claim = await asyncio.to_thread(stack.enter_context, self._claims.claim(self._batch))
        rows = claim.rows
        try:
            published, refused = await self._publish(rows) if rows else ([], [])
        except BaseException:
            await asyncio.to_thread(_abandon, stack)
            raise
        await asyncio.to_thread(_settle, stack, claim, published, refused)
        self.published += len(published)
        if rows:
            self.last_error = None
        if rows and not published and not refused:  # the broker was away
            await self._pause()
        return len(rows)

    async def _pause(self) -> None:
        await wait(self._stop, self._clock, _TROUBLE)

    async def _publish(self, rows: Sequence[OutboxRow]) -> tuple[list[int], list[RefusedRow]]:
        """In rounds, so that no row of a key is sent before the one in front of it is confirmed."""
        published: list[int] = []
        refused = [self._park(row, row.attempts + 1, row.error) for row in rows if row.error is not None]
        stuck: set[str] = set()
        for some in rounds([row for row in rows if row.error is None]):
            going = [row for row in some if row.ordering_key not in stuck]
            errors = await self._send(going)
            for index, row in enumerate(going):
                error = errors.get(index)
                if error is None:
                    published.append(row.id)
                    continue
                if row.ordering_key is not None:
                    stuck.add(row.ordering_key)
                if not _is_nobodys_fault(error):
                    refused.append(self._refusal(row, error))
        return published, refused

    async def _send(self, rows: Sequence[OutboxRow]) -> dict[int, PublishError]:
        """Publish; gives what went wrong, by the row's place. One lane at a time: whose fault it is must be known."""
        async with self._sending:
            errors = await self._pipeline(rows)
            for place in [place for place, error in errors.items() if _is_objection(error)]:
                error = errors[place] = await self._send_alone(rows[place])
                if error is not None and _is_nobodys_fault(error):
                    break  # the broker is away now: the others wait, too
        return {place: error for place, error in errors.items() if error is not None}

    async def _send_alone(self, row: OutboxRow) -> PublishError | None:
        error = (await self._pipeline([row])).get(0)
        if error is not None and _is_objection(error):
            return PublishRefused(row.exchange, row.routing_key, f"the broker would not have it ({error.__cause__})")
        return error

    async def _pipeline(self, rows: Sequence[OutboxRow]) -> dict[int, PublishError | None]:
        try:
            if self._lock is not None:
                await self._lock.keep()
        except RedriveError as error:  # what was confirmed before is marked all the same
            return {place: NotPublished(row.exchange, row.routing_key, str(error)) for place, row in enumerate(rows)}
        try:
            await self._broker.publish_many(
                (row.exchange, row.routing_key, row.body, row.properties, True) for row in rows
            )
        except PublishErrors as group:
            failed = [error for error in group.exceptions if isinstance(error, PublishError)]
            return {error.index: error for error in failed if error.index is not None}
        return {}

    def _refusal(self, row: OutboxRow, error: PublishError) -> RefusedRow:
        attempt = row.attempts + 1
        if attempt < self._attempts:
            return RefusedRow(row.id, str(error), _PAUSES.delay(max(attempt, 1), 0))
        return self._park(row, attempt, str(error))

    def _park(self, row: OutboxRow, attempt: int, error: str) -> RefusedRow:
        self.parked += 1
        log.error("outbox row %d is parked after %d attempts: %s", row.id, attempt, error)
        return RefusedRow(row.id, error, None)

    def __repr__(self) -> str:
        return f"<Relay published={self.published} parked={self.parked} lanes={self._lanes}>"


# A claim is opened in one thread and closed in another, a while later.


def _settle(stack: ExitStack, claim: ClaimedBatch, published: Sequence[int], refused: Iterable[RefusedRow]) -> None:
    with stack:
        claim.settle(published, refused)


def _abandon(stack: ExitStack) -> None:
    with suppress(RuntimeError), stack:
        raise RuntimeError("abandoned")


def rounds(rows: Sequence[OutboxRow]) -> Iterator[list[OutboxRow]]:
    """Rows in rounds: each key at most once in each, and in its order. What has no key goes in the first."""
    seen: dict[str, int] = {}
    by_round: dict[int, list[OutboxRow]] = {}
    for row in rows:
        number = 0
        if row.ordering_key is not None:
            number = seen.get(row.ordering_key, 0)
            seen[row.ordering_key] = number + 1
        by_round.setdefault(number, []).append(row)
    for number in sorted(by_round):
        yield by_round[number]


def _is_nobodys_fault(error: PublishError) -> bool:
    """Was the broker away? What cannot be encoded (a name that is too long) will never be published: any error but one
    of the connection's is the row's own.
    """
    if isinstance(error, NotPublished):
        cause = error.__cause__
        return cause is None or (isinstance(cause, RedriveError | OSError) and not isinstance(cause, EncodingError))
    return isinstance(error, PublishUnknown)


def _is_objection(error: PublishError | None) -> bool:
    """Did the broker end the channel, or the connection, because of something that was sent?"""
    if not isinstance(error, PublishUnknown):
        return False
    match error.__cause__:
        case ChannelClosed():
            return True
        case ConnectionClosed(code=code):
            return code != ReplyCode.CONNECTION_FORCED  # that is an operator's doing
        case _:
            return False


def _is_database_error(error: Exception) -> bool:
    """By its module: the drivers are optional."""
    return any(kind.__module__.startswith(("sqlalchemy", "psycopg", "sqlite3")) for kind in type(error).__mro__)


async def _wait_either(waiting: Coroutine[Any, Any, None], stop: asyncio.Event) -> None:
    """Wait for one of the two. If the first fails, its error is raised."""
    tasks: set[asyncio.Task[Any]] = {asyncio.create_task(waiting), asyncio.create_task(stop.wait())}
    done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    await asyncio.gather(*pending, return_exceptions=True)
    for task in done:
        task.result()
