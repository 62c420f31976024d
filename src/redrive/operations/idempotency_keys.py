"""Requests that must not be carried out twice, however often they are sent: those with an Idempotency-Key.

    begin     the first of its key: do it.   The same again: here is what was answered.
              Still being done, or another request under the same key: said so
    keep      it is still being done
    finish    what was answered
    forget    nothing was done: the key is free again

A server that dies over a request leaves its key taken for a minute: what became of it is not known, and who asks again
is told so for that long. Then the key is free, and whoever asks next gets it. So whoever takes longer says that it is
still there, every `KEEP_EVERY`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum, auto

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from redrive.database.engine import Database
from redrive.database.operator_tables import requests_table

LASTS = timedelta(hours=24)
_UNANSWERED = timedelta(minutes=1)
KEEP_EVERY = _UNANSWERED / 4


@dataclass(frozen=True, slots=True)
class StoredAnswer:
    status: int
    body: str
    location: str | None = None


class KeyStanding(Enum):
    NEW = auto()
    UNDER_WAY = auto()
    OTHER = auto()  # the key was used for something else


class IdempotencyKeys:
    def __init__(self, database: Database) -> None:
        self.database = database
        self.table = requests_table(sa.MetaData())

    def begin(self, who: str, key: str, digest: str, now: datetime) -> KeyStanding | StoredAnswer:
        table = self.table
        row = {"who": who, "key": key, "digest": digest, "at": now, "expires_at": now + LASTS}
        stale = sa.or_(
            table.c.expires_at < now,
            sa.and_(table.c.status.is_(None), table.c.at < now - _UNANSWERED),
        )
        try:
            with self.database.engine.begin() as connection:
                connection.execute(sa.delete(table).where(stale))
                connection.execute(sa.insert(table), row)
            return KeyStanding.NEW
        except IntegrityError:
            return self._standing(who, key, digest)

    def _standing(self, who: str, key: str, digest: str) -> KeyStanding | StoredAnswer:
        with self.database.reading_connection() as connection:
            found = connection.execute(sa.select(self.table).where(*self._is(who, key))).first()
        if found is None or (found.digest == digest and found.status is None):
            return KeyStanding.UNDER_WAY
        if found.digest != digest:
            return KeyStanding.OTHER
        return StoredAnswer(found.status, found.answer, found.location)

    def keep(self, who: str, key: str, now: datetime) -> None:
        unanswered = self.table.c.status.is_(None)
        with self.database.engine.begin() as connection:
            connection.execute(sa.update(self.table).where(*self._is(who, key), unanswered).values(at=now))

    def finish(self, who: str, key: str, answer: StoredAnswer) -> None:
        change = {"status": answer.status, "answer": answer.body, "location": answer.location}
        with self.database.engine.begin() as connection:
            connection.execute(sa.update(self.table).where(*self._is(who, key)).values(**change))

    def forget(self, who: str, key: str) -> None:
        with self.database.engine.begin() as connection:
            connection.execute(sa.delete(self.table).where(*self._is(who, key)))

    def _is(self, who: str, key: str) -> tuple[sa.ColumnElement[bool], ...]:
        return self.table.c.who == who, self.table.c.key == key
