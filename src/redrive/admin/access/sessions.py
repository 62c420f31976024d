"""Browsers that are signed in, and links by which one signs in once.

A session ends eight hours after it was last used, and a day after it was opened; and with the key it was opened with.
Its cookie is random; the database has the digest alone. `expires_at` is the earlier of both ends and moves with the
use, so that what is over is found by one index, and is deleted whenever somebody signs in.

A link can be used once: whoever deletes its row has the session, in the same transaction.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from redrive.admin.access.roles import BY_SESSION, Principal, Role
from redrive.admin.access.secrets import digest_of, is_secret, new_secret
from redrive.database.engine import Database
from redrive.database.operator_tables import keys_table, sessions_table
from redrive.worker.clock import Clock

IDLE = timedelta(hours=8)
LONGEST = timedelta(hours=24)
INVITATION = timedelta(minutes=10)
GRAIN = timedelta(minutes=1)  # of `seen_at`
_SESSION, _LINK = "session", "link"


class Sessions:
    def __init__(self, database: Database, clock: Clock) -> None:
        self.database = database
        self._clock = clock
        self._mute_until = float("-inf")  # until then it is not tried again to write down that sessions are used
        metadata = sa.MetaData()
        self.table = sessions_table(metadata)
        self._keys = keys_table(metadata)

    def open(self, principal: Principal, key: str | None) -> str:
        """The value of the cookie. `key`: the id of the key that was shown, if it was one."""
        return self._add(_SESSION, principal, key, IDLE)

    def invite(self, principal: Principal, lasts: timedelta = INVITATION, key: str | None = None) -> str:
        """What a link must hold to open a session for this principal, once."""
        return self._add(_LINK, principal, key, lasts)

    def _add(self, kind: str, principal: Principal, key: str | None, lasts: timedelta) -> str:
        secret, now = new_secret(), self._clock.now()
        with self.database.engine.begin() as connection:
            self._delete_what_is_over(connection, now)
            row = _row(kind, principal.name, principal.role, json.dumps(principal.queues), key)
            connection.execute(sa.insert(self.table), row | _times(secret, now, lasts))
        return secret

    def accept(self, token: str) -> str | None:
        """The cookie of a new session, for the first who comes with the token in time."""
        if not is_secret(token):
            return None
        secret, now = new_secret(), self._clock.now()
        mine = sa.and_(self.table.c.digest == digest_of(token), self.table.c.kind == _LINK)
        with self.database.engine.begin() as connection:
            self._delete_what_is_over(connection, now)
            found = connection.execute(sa.select(self.table).where(mine)).mappings().first()
            if found is None or not connection.execute(sa.delete(self.table).where(mine)).rowcount:
                return None
            row = _row(_SESSION, found["who"], found["role"], found["queues"], found["key"])
            connection.execute(sa.insert(self.table), row | _times(secret, now, IDLE))
        return secret

    def find(self, cookie: str) -> Principal | None:
        """Whose it is, if it is not over."""
        if not is_secret(cookie):
            return None
        now, table, keys = self._clock.now(), self.table, self._keys
        unexpired = sa.or_(keys.c.expires_at.is_(None), keys.c.expires_at > now)
        is_live = sa.and_(keys.c.id.is_not(None), keys.c.revoked_at.is_(None), unexpired)
        query = (
            sa.select(table)
            .outerjoin(keys, table.c.key == keys.c.id)
            .where(table.c.digest == digest_of(cookie), table.c.kind == _SESSION, table.c.expires_at > now)
            .where(sa.or_(table.c.key.is_(None), is_live))
        )
        with self.database.reading_connection() as connection:
            row = connection.execute(query).mappings().first()
        if row is None:
            return None
        if now - row["seen_at"] >= GRAIN:
            self._note_use(row, now)
        return Principal(row["who"], Role(row["role"]), tuple(json.loads(row["queues"])), BY_SESSION, row["key"])

    def _note_use(self, row: Mapping[Any, Any], now: datetime) -> None:
        """A database that cannot be written for a while signs nobody out."""
        if self._clock.monotonic() < self._mute_until:
            return
        table, ends = self.table, min(now + IDLE, row["created_at"] + LONGEST)
        change = sa.update(table).where(table.c.digest == row["digest"], table.c.seen_at < now)
        try:
            with self.database.engine.begin() as connection:
                connection.execute(change.values(seen_at=now, expires_at=ends))
        except (SQLAlchemyError, OSError):
            self._mute_until = self._clock.monotonic() + GRAIN.total_seconds()

    def close(self, cookie: str) -> None:
        if is_secret(cookie):
            mine = sa.and_(self.table.c.digest == digest_of(cookie), self.table.c.kind == _SESSION)
            with self.database.engine.begin() as connection:
                connection.execute(sa.delete(self.table).where(mine))

    def _delete_what_is_over(self, connection: sa.Connection, now: datetime) -> None:
        connection.execute(sa.delete(self.table).where(self.table.c.expires_at <= now))

    def __repr__(self) -> str:
        return f"<Sessions of {self.database}>"


def _row(kind: str, who: str, role: str, queues: str, key: str | None) -> dict[str, Any]:
    return {"kind": kind, "who": who, "role": str(role), "queues": queues, "key": key}


def _times(secret: str, now: datetime, lasts: timedelta) -> dict[str, Any]:
    return {"digest": digest_of(secret), "created_at": now, "seen_at": now, "expires_at": now + lasts}
