"""Transactions for handlers: an `AsyncSession` for coroutines, a `Session` for plain functions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from redrive.store.database import Database
from redrive.store.inbox import Inbox

SESSION_TYPES: tuple[type, ...] = (AsyncSession, Session)


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

    async def note(self, consumer: str, message_ids: Sequence[str]) -> set[str]:
        return await asyncio.to_thread(self.inbox.note, self.session, consumer, message_ids)


class StoreTransactions:
    def __init__(self, database: Database, inbox: Inbox) -> None:
        self._inbox = inbox
        self._database = database

    @asynccontextmanager
    async def begin(self, *, blocking: bool) -> AsyncIterator[_AsyncTransaction | _BlockingTransaction]:
        if not blocking:
            async with self._database.async_sessions()() as its_own, its_own.begin():
                yield _AsyncTransaction(its_own, self._inbox)
            return
        # Closed is closed: a function that outlived its time limit must not begin another transaction, and keep it.
        session = self._database.sessions()(close_resets_only=False)
        try:
            yield _BlockingTransaction(session, self._inbox)
            await _to_the_end(session.commit)
        except BaseException:
            await _to_the_end(partial(_give_up, session))
            raise
        await _to_the_end(session.close)


def _give_up(session: Session) -> None:
    """A function that outlived its time limit may be using the session this moment, in its thread. Whatever it makes of
    that, nobody will commit it.
    """
    with suppress(SQLAlchemyError):
        session.rollback()
        session.close()


async def _to_the_end(step: Callable[[], None]) -> None:
    """In a thread, and not left alone when the caller is cancelled: a session is for one at a time."""
    doing = asyncio.ensure_future(asyncio.to_thread(step))
    try:
        await asyncio.shield(doing)
    except asyncio.CancelledError:
        await asyncio.wait([doing])
        raise
