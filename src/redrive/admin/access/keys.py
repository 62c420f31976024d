"""API keys: `rdk_<id>_<secret>`, shown once, when it is made. The database has the digest of the secret alone.

Why a key is refused is nobody's business: one that never was, is malformed, revoked or expired gets the same answer,
and an unknown id costs the same work as a wrong secret. The audit gets the difference.

What is done to keys and its entry in the audit are one transaction: what cannot be recorded is not done, and what is
recorded was done.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from redrive.admin.access.roles import ALL_QUEUES, Principal, Role
from redrive.admin.access.secrets import digest_of, is_secret, new_secret
from redrive.database.engine import Database
from redrive.database.operator_tables import keys_table, sessions_table
from redrive.errors import ConfigurationError, KeyNotFound, Unauthenticated
from redrive.operations.audit_entry import AuditEntry
from redrive.operations.audit_log import AuditLog
from redrive.text import printable
from redrive.worker.clock import Clock

PREFIX = "rdk_"
REFUSAL = (
    "this key is not valid here: `redrive admin keys ls`, run with the server's data folder or database, lists the "
    "keys that are"
)
_ID_LENGTH = 12
_LONGEST = 255  # characters of a name or a pattern
_MOST_PATTERNS = 100
_OF_NOBODY = digest_of("")  # what a secret for an unknown id is compared with; no secret is empty
GRAIN = timedelta(minutes=1)  # of `used_at`


class KeyState(StrEnum):
    LIVE = "live"
    EXPIRED = "expired"
    REVOKED = "revoked"


@dataclass(frozen=True, slots=True)
class Key:
    """All but the secret."""

    id: str
    name: str
    role: Role
    queues: tuple[str, ...]
    created_at: datetime
    created_by: str
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    used_at: datetime | None = None  # to the minute

    def state(self, now: datetime) -> KeyState:
        if self.revoked_at is not None:
            return KeyState.REVOKED
        return KeyState.EXPIRED if self.expires_at is not None and self.expires_at <= now else KeyState.LIVE

    @property
    def principal(self) -> Principal:
        return Principal(self.name, self.role, self.queues, f"key {self.id}")


class Keys:
    def __init__(self, database: Database, clock: Clock) -> None:
        self.database = database
        self._clock = clock
        self._audit = AuditLog(database)
        self._mute_until = float("-inf")  # until then it is not tried again to write down that keys are used
        metadata = sa.MetaData()
        self.table = keys_table(metadata)
        self._sessions = sessions_table(metadata)

    # Making and ending --------------------------------------------------------------------------------

    def create(
        self,
        name: str,
        role: Role,
        queues: Sequence[str] = ALL_QUEUES,
        expires: timedelta | None = None,
        by: str = "",
    ) -> tuple[Key, str]:
        """The key, and its text: that is nowhere else, and never shown again."""
        _check(name, queues)
        now = self._clock.now()
        secret = new_secret()
        key = Key(new_secret(_ID_LENGTH), name, role, tuple(queues), now, by, _end(now, expires))
        with self.database.engine.begin() as connection:
            self._lock_names(connection)
            taken = sa.select(self.table.c.id).where(self.table.c.name == name, self.table.c.revoked_at.is_(None))
            if connection.execute(taken).first() is not None:
                raise ConfigurationError(
                    f"there is a key {name} already: choose another name, or end that one first with "
                    f"`redrive admin keys revoke {name}`"
                )
            connection.execute(sa.insert(self.table), _row(key) | {"digest": digest_of(secret)})
            self._audit.add(connection, _entry(now, by, "key created", key))
        return key, f"{PREFIX}{key.id}_{secret}"

    def revoke(self, id_or_name: str, by: str = "") -> Key:
        """End it, and all sessions that were opened with it. A name means the one of it that is not revoked."""
        now = self._clock.now()
        table, sessions = self.table, self._sessions
        with self.database.engine.begin() as connection:
            self._lock_names(connection)
            key = self._find_key(connection, id_or_name)
            connection.execute(sa.delete(sessions).where(sessions.c.key == key.id))
            if key.revoked_at is None:
                connection.execute(sa.update(table).where(table.c.id == key.id).values(revoked_at=now))
                self._audit.add(connection, _entry(now, by, "key revoked", key))
        return key if key.revoked_at is not None else replace(key, revoked_at=now)

    def _find_key(self, connection: sa.Connection, id_or_name: str) -> Key:
        table = self.table
        choices = [sa.and_(table.c.name == id_or_name, table.c.revoked_at.is_(None))]
        if is_secret(id_or_name, _ID_LENGTH):
            choices.insert(0, table.c.id == id_or_name)
        for choice in choices:
            row = connection.execute(sa.select(table).where(choice)).mappings().first()
            if row is not None:
                return _key(row)
        raise KeyNotFound(printable(id_or_name))

    def _lock_names(self, connection: sa.Connection) -> None:
        """Two who make a key of the same name at the same moment; SQLite's transactions wait for each other anyway."""
        if self.database.is_postgresql:
            lock = sa.func.pg_advisory_xact_lock(sa.func.hashtextextended(self.table.name, 0))
            connection.execute(sa.select(lock))

    # Asking -------------------------------------------------------------------------------------------

    def verify(self, text: str) -> Principal:
        return self.verify_key(text).principal

    def verify_key(self, text: str) -> Key:
        """The key that this is the text of. `Unauthenticated`: there is none, or not any more."""
        prefix, (id, between, secret) = text[: len(PREFIX)], text[len(PREFIX) :].partition("_")
        if prefix != PREFIX or not between or not is_secret(id, _ID_LENGTH) or not is_secret(secret):
            raise Unauthenticated(REFUSAL, "a malformed key")
        with self.database.reading_connection() as connection:
            row = connection.execute(sa.select(self.table).where(self.table.c.id == id)).mappings().first()
        is_right = hmac.compare_digest(digest_of(secret), _OF_NOBODY if row is None else row["digest"])
        if row is None or not is_right:
            raise Unauthenticated(
                REFUSAL,
                f"key {id}: " + (f"there is none in {self.database.location}" if row is None else "a wrong secret"),
            )
        key, now = _key(row), self._clock.now()
        state = key.state(now)
        if state is not KeyState.LIVE:
            raise Unauthenticated(REFUSAL, f"key {id} ({key.name}) is {state}")
        if key.used_at is None or now - key.used_at >= GRAIN:
            self._note_use(key, now)
        return key

    def _note_use(self, key: Key, now: datetime) -> None:
        """Nice to know, and nothing to refuse anybody for: a database may be read-only for a while."""
        if self._clock.monotonic() < self._mute_until:
            return
        table = self.table
        unused = sa.or_(table.c.used_at.is_(None), table.c.used_at <= now - GRAIN)
        try:
            with self.database.engine.begin() as connection:
                connection.execute(sa.update(table).where(table.c.id == key.id, unused).values(used_at=now))
        except (SQLAlchemyError, OSError):
            self._mute_until = self._clock.monotonic() + GRAIN.total_seconds()

    def list_keys(self) -> list[Key]:
        """All there ever were, the newest first."""
        order = self.table.c.created_at.desc(), self.table.c.id
        with self.database.reading_connection() as connection:
            return [_key(row) for row in connection.execute(sa.select(self.table).order_by(*order)).mappings()]

    def any(self) -> bool:
        """Is there one that somebody can come in with?"""
        now = self._clock.now()
        ends, revoked = self.table.c.expires_at, self.table.c.revoked_at
        live = sa.select(self.table.c.id).where(revoked.is_(None), sa.or_(ends.is_(None), ends > now)).limit(1)
        with self.database.reading_connection() as connection:
            return connection.execute(live).first() is not None

    def __repr__(self) -> str:
        return f"<Keys of {self.database}>"


def is_name(text: str) -> bool:
    """Names end up in headers, logs and on screens: nothing in one breaks a line, hides, or turns the writing."""
    return 0 < len(text) <= _LONGEST and text.isprintable() and text == text.strip()


def _check(name: str, queues: Sequence[str]) -> None:
    if not is_name(name):
        raise ConfigurationError(f"{printable(name)[:80]!r} is no name for a key: want up to 255 visible characters")
    if isinstance(queues, str) or not 0 < len(queues) <= _MOST_PATTERNS:
        raise ConfigurationError(f"queues of a key: want 1 to {_MOST_PATTERNS} patterns; '*' is every queue")
    for pattern in queues:
        if not is_name(pattern):
            raise ConfigurationError(f"{printable(pattern)[:80]!r} is no pattern for queues: want one like 'orders.*'")


def _end(now: datetime, expires: timedelta | None) -> datetime | None:
    if expires is None:
        return None
    if expires <= timedelta(0):
        raise ConfigurationError("a key that expires at once is of no use: say for how long, as in '90d'")
    try:
        return now + expires
    except OverflowError:
        raise ConfigurationError("a key that expires so late: leave the expiry out") from None


def _row(key: Key) -> dict[str, Any]:
    return {
        "id": key.id,
        "name": key.name,
        "role": str(key.role),
        "queues": json.dumps(key.queues),
        "created_at": key.created_at,
        "created_by": key.created_by,
        "expires_at": key.expires_at,
    }


def _key(row: Mapping[Any, Any]) -> Key:
    return Key(
        id=row["id"],
        name=row["name"],
        role=Role(row["role"]),
        queues=tuple(json.loads(row["queues"])),
        created_at=row["created_at"],
        created_by=row["created_by"],
        expires_at=row["expires_at"],
        revoked_at=row["revoked_at"],
        used_at=row["used_at"],
    )


def _entry(now: datetime, by: str, action: str, key: Key) -> AuditEntry:
    ends = f", until {key.expires_at:%Y-%m-%d %H:%M}" if key.expires_at is not None else ""
    detail = f"{key.id} {key.name}: {key.role} of {' '.join(key.queues)}{ends}"
    return AuditEntry(now, by, action, "", allowed=True, detail=detail)
