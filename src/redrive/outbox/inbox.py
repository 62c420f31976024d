"""A message that was processed is not processed again.

The row that says so, the handler's writes and its outbox rows are one transaction. Two workers with the same message:
the second one's insert waits for the first one's transaction, and then either finds the row (a duplicate: skipped)
or, if that was rolled back, goes on. There is no moment in which both believe to be first.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from redrive.database.application_tables import InboxNames, inbox_table
from redrive.database.engine import Database


class Inbox:
    def __init__(
        self,
        database: Database,
        names: InboxNames | str = InboxNames(),  # noqa: B008 - frozen
        *,
        metadata: sa.MetaData | None = None,
    ) -> None:
        self.database = database
        self.table = inbox_table(metadata if metadata is not None else sa.MetaData(), names)
        insert = (postgresql if database.is_postgresql else sqlite).insert(self.table)
        self._note: Any = insert.on_conflict_do_nothing().returning(self.table.c.message_id)

    def note(self, session: Session, consumer: str, message_ids: Iterable[str]) -> set[str]:
        """Note messages as processed, in the session's transaction. Those that had been noted before are left out."""
        rows = _rows(consumer, message_ids)
        return set(session.execute(self._note, rows).scalars()) if rows else set()

    async def note_async(self, session: AsyncSession, consumer: str, message_ids: Iterable[str]) -> set[str]:
        rows = _rows(consumer, message_ids)
        return set((await session.execute(self._note, rows)).scalars()) if rows else set()

    def prune(self, older_than: timedelta, *, consumer: str | None = None, batch: int = 1000) -> int:
        """Forget what was processed longer ago than that, by one consumer or by all, a little at a time. A message that
        comes again after that is processed again.
        """
        table = self.table
        before: Any = datetime.now(UTC) - older_than
        if not self.database.is_postgresql:
            before = before.replace(tzinfo=None)
        key = sa.tuple_(table.c.consumer, table.c.message_id)
        old = sa.select(table.c.consumer, table.c.message_id).where(table.c.processed_at < before).limit(batch)
        if consumer is not None:
            old = old.where(table.c.consumer == consumer)
        return self.database.delete_in_batches(table, key.in_(old), batch)


def _rows(consumer: str, message_ids: Iterable[str]) -> list[dict[str, str]]:
    """In one order for everybody: two batches that share messages must not wait for each other."""
    return [{"consumer": consumer, "message_id": one} for one in sorted(set(message_ids))]
