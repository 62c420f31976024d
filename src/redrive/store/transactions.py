"""Transactions for handlers: an `AsyncSession` for coroutines, a `Session` for plain functions.

A `Session` blocks, so its steps run in threads: not in those that asyncio keeps for everybody, and not all in the same.
A note waits for as long as another transaction has noted the same message (on SQLite, for as long as there is another
one at all), and what it waits for is that one's end. If both were in line for the same threads, waiting notes could
have all of them, and no transaction would ever end.

    noting     waits for others; so many at a time
    ending     commit, rollback, close: always finds a thread

The transaction is the consumer's. A handler that committed it would have its message noted as processed before it is,
and one that rolled it back would lose the note, and go on in a transaction without it: both are refused (`ItsSession`).
Savepoints are the handler's own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NoReturn, TypeVar

from sqlalchemy.exc import InvalidRequestError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from redrive.store.database import Database
from redrive.store.inbox import Inbox

SESSION_TYPES: tuple[type, ...] = (AsyncSession, Session)

T = TypeVar("T")

_NOTING = 32  # threads at most
_ENDING = 1000  # more than messages are handled at a time; a thread is made when all there are are busy


class ItsSession(Session):
    """For a handler: with a transaction that has begun, and that only the consumer ends."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._its = self.begin()

    def commit(self) -> NoReturn:
        _refuse("commit")

    def rollback(self) -> NoReturn:
        _refuse("roll back")

    def finish(self) -> None:
        if self.get_transaction() is not self._its:  # there are other ways: `close`, and the transaction's own
            _refuse("end")
        super().commit()

    def give_up(self) -> None:
        """A function that outlived its time limit may be using the session this moment, in its thread. Whatever it
        makes of that, nobody will commit it.
        """
        try:
            super().rollback()
            self.close()
        except SQLAlchemyError:  # then the connection must not stay in the pool, nor its transaction open
            with suppress(SQLAlchemyError):
                self.invalidate()


def _refuse(what: str) -> NoReturn:
    raise InvalidRequestError(
        f"a handler must not {what} its message's transaction: the consumer commits it when the handler returns, and "
        "rolls it back when it raises. To take back a part, use a savepoint: `with session.begin_nested(): ...`"
    )


@dataclass(frozen=True, slots=True)
class _AsyncTransaction:
    session: AsyncSession
    inbox: Inbox

    async def note(self, consumer: str, message_ids: Sequence[str]) -> set[str]:
        return await self.inbox.note_async(self.session, consumer, message_ids)


@dataclass(frozen=True, slots=True)
class _BlockingTransaction:
    session: ItsSession
    inbox: Inbox
    threads: Executor
    notes: list[Future[set[str]]] = field(default_factory=list)

    async def note(self, consumer: str, message_ids: Sequence[str]) -> set[str]:
        note = partial(copy_context().run, self.inbox.note, self.session, consumer, message_ids)
        self.notes.append(self.threads.submit(note))
        return await asyncio.wrap_future(self.notes[-1])

    def still_noting(self) -> Future[set[str]] | None:
        """A note that is waited for no longer, and still waits itself: for a connection, or for another transaction."""
        return next((note for note in self.notes if not note.done()), None)


class StoreTransactions:
    def __init__(self, database: Database, inbox: Inbox) -> None:
        self._inbox = inbox
        self._database = database
        self._noting = ThreadPoolExecutor(_NOTING, thread_name_prefix="redrive-note")
        self._ending = ThreadPoolExecutor(_ENDING, thread_name_prefix="redrive-commit")

    @asynccontextmanager
    async def begin(self, *, blocking: bool) -> AsyncIterator[_AsyncTransaction | _BlockingTransaction]:
        if not blocking:
            async with self._database.async_sessions()(sync_session_class=ItsSession) as its_own:
                yield _AsyncTransaction(its_own, self._inbox)
                await its_own.run_sync(_finish)
            return
        # Closed is closed: a function that outlived its time limit must not begin another transaction, and keep it.
        session = ItsSession(self._database.engine, expire_on_commit=False, close_resets_only=False)
        transaction = _BlockingTransaction(session, self._inbox, self._noting)
        try:
            yield transaction
            await self._to_the_end(session.finish)
        except BaseException:
            await self._give_up(transaction)
            raise
        await self._to_the_end(session.close)

    async def _give_up(self, transaction: _BlockingTransaction) -> None:
        """Now, or when the note has ended that has the session: before that it cannot be closed."""
        if (noting := transaction.still_noting()) is not None:
            noting.add_done_callback(lambda _: transaction.session.give_up())
        else:
            await self._to_the_end(transaction.session.give_up)

    async def _to_the_end(self, step: Callable[[], None]) -> None:
        """In a thread, and not left alone when the caller is cancelled: a session is for one at a time."""
        doing = asyncio.ensure_future(_in(self._ending, step))
        try:
            await asyncio.shield(doing)
        except asyncio.CancelledError:
            await asyncio.wait([doing])
            raise


def _finish(session: Session) -> None:
    assert isinstance(session, ItsSession)
    session.finish()


async def _in(threads: Executor, step: Callable[[], T]) -> T:
    """As `asyncio.to_thread`, in threads of our own."""
    return await asyncio.get_running_loop().run_in_executor(threads, partial(copy_context().run, step))
