"""Outbox rows, published: claimed in batches, pipelined, and marked only when the broker has confirmed.

What can die in between, and what then is:

    before the publish        the rows are free again: published by whoever comes next
    before the confirm        the rows are free again: published once more, with the same message id
    before the mark           the same: a duplicate that an inbox absorbs, never a loss

A row that the broker refuses (no queue is bound, too large, a full queue) is put off with a growing pause, and parked
after its last attempt; the others go on. RabbitMQ often does not say which of many messages it objects to, and ends the
channel for all: then each is sent alone, and who is to blame is known. A broker that is not there is nobody's fault:
rows wait, and nothing is counted.

Where rows cannot be locked (SQLite) there may be one relay. Whose turn it is the broker knows, and a connection that
broke may have lost it: so the turn is kept before rows are read, and before each send. Who has lost it waits for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Protocol

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
from redrive.recovery.backoff import Backoff
from redrive.wire.properties import Properties

log = logging.getLogger("redrive.runtime")

_PAUSES = Backoff(first=timedelta(seconds=1), ceiling=timedelta(minutes=5), jitter=0)
_TROUBLE = 1.0  # seconds until the next try, when the database or the broker is away


class Row(Protocol):
    @property
    def id(self) -> int: ...
    @property
    def exchange(self) -> str: ...
    @property
    def routing_key(self) -> str: ...
    @property
    def body(self) -> bytes: ...
    @property
    def properties(self) -> bytes: ...
    @property
    def ordering_key(self) -> str | None: ...
    @property
    def attempts(self) -> int: ...
    @property
    def error(self) -> str | None:
        """Why it cannot be published, if it cannot even be encoded."""


class Refusal(Protocol):
    def __call__(self, id: int, error: str, again_after: timedelta | None) -> object: ...


class Claim(Protocol):
    @property
    def rows(self) -> Sequence[Row]: ...

    def settle(self, published: Sequence[int], refused: Iterable[object]) -> None: ...


class Claims(Protocol):
    """Where the rows are. Called in a thread: a database blocks."""

    def claim(self, limit: int) -> AbstractContextManager[Claim]: ...


class Waits(Protocol):
    async def wait(self) -> None: ...


class Turn(Protocol):
    async def keep(self) -> None:
        """See that nobody else works on the rows; an error of Redrive's if somebody may."""


class Anytime:
    """For rows that are locked by whoever has claimed them."""

    async def keep(self) -> None: ...


class PublishesMany(Protocol):
    async def publish_many(self, messages: Iterable[tuple[str, str, bytes, Properties | bytes, bool]]) -> int: ...


class Relay:
    def __init__(
        self,
        claims: Claims,
        broker: PublishesMany,
        waker: Waits,
        *,
        refused: Refusal,
        attempts: int = 10,
        batch: int = 500,
        lanes: int = 2,
        turn: Turn | None = None,
    ) -> None:
        """`lanes`: so many batches at a time: while one is published, the next is read."""
        self.published = 0
        self.parked = 0
        self.last_error: BaseException | None = None
        self._claims = claims
        self._broker = broker
        self._waker = waker
        self._refused = refused
        self._attempts = attempts
        self._batch = batch
        self._lanes = lanes
        self._turn = turn or Anytime()
        self._sending = asyncio.Lock()

    async def run(self, stop: asyncio.Event) -> None:
        """Publish rows until `stop` is set; a batch that was begun is finished."""
        async with asyncio.TaskGroup() as group:
            for _ in range(self._lanes):
                group.create_task(self._lane(stop))

    async def _lane(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            try:
                found = await self.once()
            except (RedriveError, OSError, ConnectionError) as error:
                found = await self._trouble(error)
            except Exception as error:
                if not _is_database_error(error):
                    raise
                found = await self._trouble(error)
            if not found and not stop.is_set():
                await _either(self._waker.wait(), stop)

    async def _trouble(self, error: BaseException) -> int:
        said = str(error).partition("\n")[0]  # a database goes on with its statement, and with what is in it
        if self.last_error is None or said != str(self.last_error).partition("\n")[0]:
            log.warning("the outbox waits: %s", said)
        self.last_error = error
        await asyncio.sleep(_TROUBLE)
        return 1

    async def once(self) -> int:
        """One batch: claim, publish, mark. How many rows there were."""
        await self._turn.keep()
        batch = _Batch(self._claims, self._batch)
        rows = await asyncio.to_thread(batch.open)
        try:
            published, refused = await self._publish(rows) if rows else ([], [])
        except BaseException:
            await asyncio.to_thread(batch.abandon)
            raise
        await asyncio.to_thread(batch.close, published, refused)
        self.published += len(published)
        if rows:
            self.last_error = None
        if rows and not published and not refused:  # the broker was away
            await asyncio.sleep(_TROUBLE)
        return len(rows)

    async def _publish(self, rows: Sequence[Row]) -> tuple[list[int], list[object]]:
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

    async def _send(self, rows: Sequence[Row]) -> dict[int, PublishError]:
        """Publish; gives what went wrong, by the row's place. One lane at a time: whose fault it is must be known."""
        async with self._sending:
            errors = await self._pipeline(rows)
            for place in [place for place, error in errors.items() if _is_objection(error)]:
                error = errors[place] = await self._alone(rows[place])
                if error is not None and _is_nobodys_fault(error):
                    break  # the broker is away now: the others wait, too
        return {place: error for place, error in errors.items() if error is not None}

    async def _alone(self, row: Row) -> PublishError | None:
        error = (await self._pipeline([row])).get(0)
        if error is not None and _is_objection(error):
            return PublishRefused(row.exchange, row.routing_key, f"the broker would not have it ({error.__cause__})")
        return error

    async def _pipeline(self, rows: Sequence[Row]) -> dict[int, PublishError | None]:
        try:
            await self._turn.keep()
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

    def _refusal(self, row: Row, error: PublishError) -> object:
        attempt = row.attempts + 1
        if attempt < self._attempts:
            return self._refused(row.id, str(error), _PAUSES.delay(max(attempt, 1), 0))
        return self._park(row, attempt, str(error))

    def _park(self, row: Row, attempt: int, error: str) -> object:
        self.parked += 1
        log.error("outbox row %d is parked after %d attempts: %s", row.id, attempt, error)
        return self._refused(row.id, error, None)

    def __repr__(self) -> str:
        return f"<Relay published={self.published} parked={self.parked} lanes={self._lanes}>"


class _Batch:
    """A claim that is opened in one thread and closed in another, a while later."""

    def __init__(self, claims: Claims, limit: int) -> None:
        self._context = claims.claim(limit)
        self._claim: Claim | None = None

    def open(self) -> Sequence[Row]:
        self._claim = self._context.__enter__()
        return self._claim.rows

    def close(self, published: Sequence[int], refused: Iterable[object]) -> None:
        assert self._claim is not None
        try:
            self._claim.settle(published, refused)
        except BaseException as error:
            if not self._context.__exit__(type(error), error, error.__traceback__):
                raise
        else:
            self._context.__exit__(None, None, None)

    def abandon(self) -> None:
        error = RuntimeError("given up")
        try:
            self._context.__exit__(RuntimeError, error, None)
        except RuntimeError:
            pass


def rounds(rows: Sequence[Row]) -> Iterator[list[Row]]:
    """Rows in rounds: each key at most once in each, and in its order. What has no key goes in the first."""
    seen: dict[str, int] = {}
    by_round: dict[int, list[Row]] = {}
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
    """By its name: what runs here knows no database."""
    return any(kind.__module__.startswith(("sqlalchemy", "psycopg", "sqlite3")) for kind in type(error).__mro__)


async def _either(waiting: object, stop: asyncio.Event) -> None:
    """Wait for one of the two."""
    tasks = {asyncio.ensure_future(waiting), asyncio.ensure_future(stop.wait())}  # type: ignore[call-overload]
    _, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    await asyncio.gather(*pending, return_exceptions=True)
