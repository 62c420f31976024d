"""Transactions for handlers: an `AsyncSession` for coroutines, a `Session` for plain functions.

A `Session` blocks, so its steps run in threads: not in those that asyncio keeps for everybody, and not all in the same.
What waits for the end of another transaction must not be in line with it for the same threads: it could have all of
them, and no transaction would ever end.

    noting     connect and note: waits for others; so many at a time
    ending     commit, rollback, close: always finds a thread

The transaction is the consumer's. A handler that committed it would have its message noted as processed before it is,
and one that rolled it back would lose the note, and go on in a transaction without it: both are refused
(`GuardedSession`). Savepoints are the handler's own.
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

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import InvalidRequestError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session, SessionTransaction

from redrive.database.connection_errors import is_outage
from redrive.database.engine import Database
from redrive.outbox.inbox import Inbox
from redrive.worker.transactions import DatabaseLost

SESSION_TYPES: tuple[type, ...] = (AsyncSession, Session)

T = TypeVar("T")

_ENDS = (asyncio.CancelledError, KeyboardInterrupt, SystemExit, GeneratorExit)  # of the task or the process
_NOTING = 32  # threads at most
_ENDING = 1000  # more than messages are handled at a time; a thread is made when all there are are busy


class GuardedSession(Session):
    """For a handler: with a transaction that has begun, and that only the consumer ends."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.connected_by: sa.Connection | None = None  # None: the transaction has not begun in the database
        self._its = self.begin()

    def commit(self) -> NoReturn:
        _refuse("commit")

    def rollback(self) -> NoReturn:
        _refuse("roll back")

    def finish(self) -> None:
        if self.get_transaction() is not self._its:  # there are other ways: `close`, and the transaction's own
            _refuse("end")
        super().commit()

    def abandon(self) -> None:
        """A function that outlived its time limit may be using the session this moment, in its thread. Whatever it
        makes of that, nobody will commit it.
        """
        try:
            super().rollback()
            self.close()
        except SQLAlchemyError:  # then the connection must not stay in the pool, nor its transaction open
            with suppress(SQLAlchemyError):
                self.invalidate()


@event.listens_for(GuardedSession, "after_begin")
def _note_connection(session: Session, _: SessionTransaction, connection: sa.Connection) -> None:
    assert isinstance(session, GuardedSession)
    session.connected_by = connection


def _refuse(what: str) -> NoReturn:
    raise InvalidRequestError(
        f"a handler must not {what} its message's transaction: the consumer commits it when the handler returns, and "
        "rolls it back when it raises. To take back a part, use a savepoint: `with session.begin_nested(): ...`"
    )


@dataclass(frozen=True, slots=True)
class _AsyncTransaction:
    session: AsyncSession
    inbox: Inbox

    @property
    def connection(self) -> sa.Connection | None:
        session = self.session.sync_session
        assert isinstance(session, GuardedSession)
        return session.connected_by

    async def connect(self) -> None:
        await self.session.connection()

    async def note(self, consumer: str, message_ids: Sequence[str]) -> set[str]:
        return await self.inbox.note_async(self.session, consumer, message_ids)


@dataclass(frozen=True, slots=True)
class _BlockingTransaction:
    session: GuardedSession
    inbox: Inbox
    threads: Executor
    steps: list[Future[Any]] = field(default_factory=list)

    @property
    def connection(self) -> sa.Connection | None:
        return self.session.connected_by

    async def connect(self) -> None:
        await self._step(self.session.connection)

    async def note(self, consumer: str, message_ids: Sequence[str]) -> set[str]:
        return await self._step(partial(self.inbox.note, self.session, consumer, message_ids))

    async def _step(self, step: Callable[[], T]) -> T:
        self.steps.append(self.threads.submit(partial(copy_context().run, step)))
        return await asyncio.wrap_future(self.steps[-1])

    def unfinished_step(self) -> Future[Any] | None:
        """A step that is waited for no longer, and still waits itself: for a connection, or for another transaction."""
        return next((step for step in self.steps if not step.done()), None)


class StoreTransactions:
    def __init__(self, database: Database, inbox: Inbox) -> None:
        self._inbox = inbox
        self._database = database
        self._noting = ThreadPoolExecutor(_NOTING, thread_name_prefix="redrive-note")
        self._ending = ThreadPoolExecutor(_ENDING, thread_name_prefix="redrive-commit")

    @asynccontextmanager
    async def begin(self, *, blocking: bool) -> AsyncIterator[_AsyncTransaction | _BlockingTransaction]:
        transaction: _AsyncTransaction | _BlockingTransaction | None = None
        try:
            async with self._begin_blocking() if blocking else self._begin_async() as transaction:
                yield transaction
        except BaseException as error:
            if self._is_outage(error, transaction.connection if transaction is not None else None):
                raise DatabaseLost(_first_line(error)) from error
            raise

    def _is_outage(self, error: BaseException, connection: sa.Connection | None) -> bool:
        """Whose fault is it? Before there is a connection the handler has not begun. After that it is the database's if
        a statement on this very connection failed for that: the handler may have wrapped the error, or have one of
        another database.
        """
        if connection is None:
            return is_outage(error)
        return not isinstance(error, _ENDS) and self._database.outages.hit(connection)

    @asynccontextmanager
    async def _begin_async(self) -> AsyncIterator[_AsyncTransaction]:
        async with self._database.async_sessions()(sync_session_class=GuardedSession) as its_own:
            yield _AsyncTransaction(its_own, self._inbox)
            await its_own.run_sync(_finish)

    @asynccontextmanager
    async def _begin_blocking(self) -> AsyncIterator[_BlockingTransaction]:
        # Closed is closed: a function that outlived its time limit must not begin another transaction, and keep it.
        session = GuardedSession(self._database.engine, expire_on_commit=False, close_resets_only=False)
        transaction = _BlockingTransaction(session, self._inbox, self._noting)
        try:
            yield transaction
            await self._run_to_end(session.finish)
        except BaseException:
            await self._abandon(transaction)
            raise
        await self._run_to_end(session.close)

    async def _abandon(self, transaction: _BlockingTransaction) -> None:
        """Now, or when the step has ended that has the session: before that it cannot be closed."""
        if (step := transaction.unfinished_step()) is not None:
            step.add_done_callback(lambda _: transaction.session.abandon())
        else:
            await self._run_to_end(transaction.session.abandon)

    async def _run_to_end(self, step: Callable[[], None]) -> None:
        """In a thread, and not left alone when the caller is cancelled: a session is for one at a time."""
        doing = asyncio.ensure_future(_run_in(self._ending, step))
        try:
            await asyncio.shield(doing)
        except asyncio.CancelledError:
            await asyncio.wait([doing])
            raise


def _first_line(error: BaseException) -> str:
    """Without the statement, which SQLAlchemy adds below."""
    return str(error).partition("\n")[0] or type(error).__name__


def _finish(session: Session) -> None:
    assert isinstance(session, GuardedSession)
    session.finish()


async def _run_in(threads: Executor, step: Callable[[], T]) -> T:
    """As `asyncio.to_thread`, in threads of our own."""
    return await asyncio.get_running_loop().run_in_executor(threads, partial(copy_context().run, step))
