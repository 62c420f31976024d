"""Rows that a relay has taken, and what became of them.

PostgreSQL: a claim is a transaction. Its rows are locked (`FOR UPDATE SKIP LOCKED`), so that several relays share the
work, and are free again the moment a relay dies. What was confirmed is deleted or marked in that same transaction.

SQLite has one writer, and a relay that held its lock while publishing would stop the application: rows are read
without one, published, and settled in a short transaction. Only one relay may work on it; `Relay` sees to that.

Order by key: rows of one key are published one after the other. Before a relay publishes a key's rows it takes an
advisory lock on the key and makes sure that no earlier row of it is pending (put off, or in another relay's hands);
if there is one, the key is left alone for now. A key that fails holds back only itself.

Nothing here remembers an id that it has "reached": a transaction that began earlier may commit later, with a smaller
one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa

from redrive.store.database import Database
from redrive.store.tables import RowState
from redrive.wire.properties import PERSISTENT, Properties

_MOST_ERROR = 1000


@dataclass(frozen=True, slots=True)
class OutboxRow:
    id: int
    message_id: str
    exchange: str
    routing_key: str
    body: bytes
    properties: bytes  # as they lie on the wire
    ordering_key: str | None
    attempts: int


@dataclass(frozen=True, slots=True)
class Refused:
    """A row that the broker would not take."""

    id: int
    error: str
    again_after: timedelta | None  # None: park it


class Claim:
    """Rows in the hands of one relay. Used within `Claims.claim`; everything is settled when that ends."""

    def __init__(self, claims: Claims, connection: sa.Connection | None, rows: Sequence[OutboxRow]) -> None:
        self.rows = tuple(rows)
        self._claims = claims
        self._connection = connection

    def settle(self, published: Sequence[int], refused: Iterable[Any]) -> None:
        """Say what became of the rows. Those that are not named stay as they were."""
        if self._connection is not None:
            self._claims.settle_on(self._connection, published, refused)
        else:
            with self._claims.database.engine.begin() as connection:
                self._claims.settle_on(connection, published, refused)


class Claims:
    def __init__(self, database: Database, table: sa.Table, *, keep: timedelta | None = None) -> None:
        """`keep`: how long a published row stays; None: it is deleted at once."""
        self.database = database
        self.table = table
        self._keep = keep

    # Taking -------------------------------------------------------------------------------------------

    @contextmanager
    def claim(self, limit: int) -> Iterator[Claim]:
        if self.database.is_postgresql:
            with self.database.engine.begin() as connection:
                rows = self._unordered_out(connection, self._select(connection, limit))
                yield Claim(self, connection, rows)
        else:
            with self.database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
                rows = self._earlier_out(connection, self._select(connection, limit))
            yield Claim(self, None, rows)

    def _select(self, connection: sa.Connection, limit: int) -> list[OutboxRow]:
        table = self.table
        due = sa.and_(table.c.state == int(RowState.PENDING), table.c.next_attempt_at <= self._now())
        query = sa.select(table).where(due).order_by(table.c.next_attempt_at, table.c.id).limit(limit)
        if self.database.is_postgresql:
            query = query.with_for_update(skip_locked=True)
        return sorted((_row(found) for found in connection.execute(query).mappings()), key=lambda row: row.id)

    def _now(self) -> Any:
        """The database's own time: rows are stamped by it."""
        if self.database.is_postgresql:
            return sa.func.clock_timestamp()
        return sa.func.strftime("%Y-%m-%d %H:%M:%f", "now")

    def _unordered_out(self, connection: sa.Connection, rows: list[OutboxRow]) -> list[OutboxRow]:
        """Leave out the keys that another relay has in hand."""
        keys = sorted({row.ordering_key for row in rows if row.ordering_key is not None})
        if not keys:
            return rows
        given = sa.select(sa.func.unnest(sa.cast(keys, sa.ARRAY(sa.Text))).label("key")).subquery()
        name = sa.func.hashtextextended(sa.literal(self.table.name) + ":" + given.c.key, 0)
        locked = connection.execute(sa.select(given.c.key, sa.func.pg_try_advisory_xact_lock(name)))
        mine = {key for key, got in locked if got}
        rows = [row for row in rows if row.ordering_key is None or row.ordering_key in mine]
        return self._earlier_out(connection, rows)

    def _earlier_out(self, connection: sa.Connection, rows: list[OutboxRow]) -> list[OutboxRow]:
        """Leave out the keys of which an earlier row is still pending."""
        firsts: dict[str, int] = {}
        for row in rows:
            if row.ordering_key is not None:
                firsts.setdefault(row.ordering_key, row.id)
        if not firsts:
            return rows
        table = self.table
        earliest = (
            sa.select(table.c.ordering_key, sa.func.min(table.c.id))
            .where(table.c.state == int(RowState.PENDING), table.c.ordering_key.in_(firsts))
            .group_by(table.c.ordering_key)
        )
        behind = {key for key, first in connection.execute(earliest) if first < firsts[key]}
        return [row for row in rows if row.ordering_key not in behind]

    # Settling -----------------------------------------------------------------------------------------

    def settle_on(self, connection: sa.Connection, published: Sequence[int], refused: Iterable[Refused]) -> None:
        table = self.table
        if published:
            mine = table.c.id.in_(published)
            if self._keep is None:
                connection.execute(sa.delete(table).where(mine))
            else:
                done = {"state": int(RowState.PUBLISHED), "published_at": self._now(), "last_error": None}
                connection.execute(sa.update(table).where(mine).values(**done))
        for row in refused:
            connection.execute(sa.update(table).where(table.c.id == row.id).values(**self._refusal(row)))

    def _refusal(self, row: Refused) -> dict[str, Any]:
        changes: dict[str, Any] = {"attempts": self.table.c.attempts + 1, "last_error": row.error[:_MOST_ERROR]}
        if row.again_after is None:
            return changes | {"state": int(RowState.PARKED)}
        return changes | {"next_attempt_at": self._after(row.again_after)}

    def _after(self, wait: timedelta) -> Any:
        if self.database.is_postgresql:
            return sa.func.clock_timestamp() + sa.cast(wait, sa.Interval)
        return (datetime.now(UTC) + wait).replace(tzinfo=None)

    # Looking and tidying ------------------------------------------------------------------------------

    def any_due(self) -> bool:
        table = self.table
        due = sa.and_(table.c.state == int(RowState.PENDING), table.c.next_attempt_at <= self._now())
        with self.database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            return connection.execute(sa.select(table.c.id).where(due).limit(1)).first() is not None

    def status(self) -> dict[str, Any]:
        """How many rows wait, since when, and how many are parked."""
        table = self.table
        pending = table.c.state == int(RowState.PENDING)
        with self.database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            count, oldest = connection.execute(
                sa.select(sa.func.count(), sa.func.min(table.c.created_at)).where(pending)
            ).one()
            parked = connection.execute(
                sa.select(sa.func.count()).where(table.c.state == int(RowState.PARKED))
            ).scalar_one()
        return {"pending": count, "oldest": oldest, "parked": parked}

    def listed(self, state: RowState, limit: int) -> list[dict[str, Any]]:
        """Rows in that state, oldest first, without their bodies."""
        table = self.table
        columns = [column for column in table.c if column.key not in ("body", "properties")]
        query = sa.select(*columns).where(table.c.state == int(state)).order_by(table.c.id).limit(limit)
        with self.database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            return [
                {column.key: value for column, value in zip(columns, row, strict=True)}
                for row in connection.execute(query)
            ]

    def retry(self, ids: Sequence[int] | None) -> int:
        """Let parked rows be tried again, from their first attempt; all of them if none are named."""
        changes = {"state": int(RowState.PENDING), "attempts": 0, "next_attempt_at": self._now()}
        return self._change(RowState.PARKED, ids, sa.update(self.table).values(**changes))

    def discard(self, ids: Sequence[int]) -> int:
        """Delete parked rows for good."""
        return self._change(RowState.PARKED, ids, sa.delete(self.table))

    def _change(self, state: RowState, ids: Sequence[int] | None, change: sa.Update | sa.Delete) -> int:
        change = change.where(self.table.c.state == int(state))
        if ids is not None:
            change = change.where(self.table.c.id.in_(ids))
        with self.database.engine.begin() as connection:
            return connection.execute(change).rowcount

    def prune(self, older_than: timedelta, *, batch: int = 1000) -> int:
        """Delete what was published longer ago than that, a little at a time."""
        table, removed = self.table, 0
        while True:
            old = (
                sa.select(table.c.id)
                .where(table.c.state == int(RowState.PUBLISHED), table.c.published_at < self._after(-older_than))
                .limit(batch)
            )
            with self.database.engine.begin() as connection:
                count = connection.execute(sa.delete(table).where(table.c.id.in_(old))).rowcount
            removed += count
            if count < batch:
                return removed


def _row(found: Any) -> OutboxRow:
    properties = found["properties"]
    return OutboxRow(
        found["id"],
        found["message_id"],
        found["exchange"],
        found["routing_key"],
        bytes(found["body"]),
        bytes(properties) if properties is not None else _plain_properties(found),
        found["ordering_key"],
        found["attempts"],
    )


def _plain_properties(found: Any) -> bytes:
    created = found["created_at"]
    moment = created if created.tzinfo is not None else created.replace(tzinfo=UTC)
    return Properties(
        content_type="application/json",
        delivery_mode=PERSISTENT,
        message_id=found["message_id"],
        correlation_id=found["message_id"],
        timestamp=moment,
    ).encode()
