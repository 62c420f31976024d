"""Transactions for handlers: an `AsyncSession` for coroutines, a `Session` for plain functions.

A `Session` blocks, so its steps run in threads: not in those that asyncio keeps for everybody, and not all in the same.
A note waits for as long as another transaction has noted the same message (on SQLite, for as long as there is another
one at all), and what it waits for is that one's end. If both were in line for the same threads, waiting notes could
have all of them, and no transaction would ever end.

    noting     waits for others; so many at a time
    ending     commit, rollback, close: always finds a thread
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from redrive.store.database import Database
from redrive.store.inbox import Inbox

SESSION_TYPES: tuple[type, ...] = (AsyncSession, Session)

T = TypeVar("T")

_NOTING = 32  # threads at most
_ENDING = 1000  # more than messages are handled at a time; a thread is made when all there are are busy


@dataclass(frozen=True, slots=True)
class _AsyncTransaction:
    session: AsyncSession
    inbox: Inbox

    async def note(self, consumer: str, message_ids: Sequence[str]) -> set[str]:
        return await self.inbox.note_async(self.session, consumer, message_ids)


@dataclass(frozen=True, slots=True)
class _BlockingTransaction:
    session: Session
    inbox: Inbox
    threads: Executor

    async def note(self, consumer: str, message_ids: Sequence[str]) -> set[str]:
        return await _in(self.threads, partial(self.inbox.note, self.session, consumer, message_ids))


class StoreTransactions:
    def __init__(self, database: Database, inbox: Inbox) -> None:
        self._inbox = inbox
        self._database = database
        self._noting = ThreadPoolExecutor(_NOTING, thread_name_prefix="redrive-note")
        self._ending = ThreadPoolExecutor(_ENDING, thread_name_prefix="redrive-commit")

    @asynccontextmanager
    async def begin(self, *, blocking: bool) -> AsyncIterator[_AsyncTransaction | _BlockingTransaction]:
        if not blocking:
            async with self._database.async_sessions()() as its_own, its_own.begin():
                yield _AsyncTransaction(its_own, self._inbox)
            return
        # Closed is closed: a function that outlived its time limit must not begin another transaction, and keep it.
        session = self._database.sessions()(close_resets_only=False)
        try:
            yield _BlockingTransaction(session, self._inbox, self._noting)
            await self._to_the_end(session.commit)
        except BaseException:
            await self._to_the_end(partial(_give_up, session))
            raise
        await self._to_the_end(session.close)

    async def _to_the_end(self, step: Callable[[], None]) -> None:
        """In a thread, and not left alone when the caller is cancelled: a session is for one at a time."""
        doing = asyncio.ensure_future(_in(self._ending, step))
        try:
            await asyncio.shield(doing)
        except asyncio.CancelledError:
            await asyncio.wait([doing])
            raise


def _give_up(session: Session) -> None:
    """A function that outlived its time limit may be using the session this moment, in its thread. Whatever it makes of
    that, nobody will commit it.
    """
    with suppress(SQLAlchemyError):
        session.rollback()
        session.close()


async def _in(threads: Executor, step: Callable[[], T]) -> T:
    """As `asyncio.to_thread`, in threads of our own."""
    return await asyncio.get_running_loop().run_in_executor(threads, partial(copy_context().run, step))
