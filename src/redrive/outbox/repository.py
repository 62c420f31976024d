"""Rows that a relay has taken, and what became of them.

PostgreSQL: a claim is a transaction. Its rows are locked (`FOR UPDATE SKIP LOCKED`), so that several relays share the
work, and are free again the moment a relay dies. What was confirmed is deleted or marked in that same transaction.

SQLite has one writer, and a relay that held its lock while publishing would stop the application: rows are read
without one, published, and settled in a short transaction. Only one relay may work on it (`outbox_relay`). That
is known from the broker, and can be out of date for a moment: so a row is settled only if it still waits and is
the same one. Its id alone does not say so: SQLite gives the id of a deleted last row to the next one, in tables that
were made without AUTOINCREMENT.

Order by key: rows of one key are published one after the other. Before a relay publishes a key's rows it takes an
advisory lock on the key and makes sure that no earlier row of it is pending (put off, or in another relay's hands);
if there is one, the key is left alone for now, and the rows of others are looked for. A key that fails holds back only
itself.

A claim is bounded in rows and in bytes: first it is decided which rows, without their bodies, then these are read.

Nothing here remembers an id that it has "reached": a transaction that began earlier may commit later, with a smaller
one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from typing import Any, NamedTuple

import sqlalchemy as sa

from redrive.database.application_tables import RowState
from redrive.database.engine import Database
from redrive.database.types import storable
from redrive.outbox.rows import (
    OutboxRow,
    any_text,
    displayed_moment,
    displayed_row,
    is_storable,
    mark,
    read_row,
    readable,
)
from redrive.worker.clock import Clock, SystemClock

_MOST_ERROR = 1000
_MOST_ATTEMPTS = 1_000_000_000
_MOST_BYTES = 32 * 1024 * 1024  # bodies in one claim, except if one alone is larger


class ClaimCandidate(NamedTuple):
    """A row that is due. Whether it may be published is another question."""

    id: int
    ordering_key: str | None
    size: int


@dataclass(frozen=True, slots=True)
class RefusedRow:
    """A row that the broker would not take."""

    id: int
    error: str
    again_after: timedelta | None  # None: park it


class ClaimedBatch:
    """Rows in the hands of one relay. Used within `OutboxRepository.claim`; everything is settled when that ends."""

    def __init__(self, claims: OutboxRepository, connection: sa.Connection | None, rows: Sequence[OutboxRow]) -> None:
        self.rows = tuple(rows)
        self._claims = claims
        self._connection = connection

    def settle(self, published: Sequence[int], refused: Iterable[Any]) -> None:
        """Say what became of the rows. Those that are not named stay as they were."""
        if self._connection is not None:
            self._claims.settle_on(self._connection, self.rows, published, refused)
        else:
            with self._claims.database.engine.begin() as connection:
                self._claims.settle_on(connection, self.rows, published, refused)


class OutboxRepository:
    def __init__(
        self, database: Database, table: sa.Table, *, keep: timedelta | None = None, clock: Clock | None = None
    ) -> None:
        """`keep`: how long a published row stays; None: it is deleted at once. `clock`: one that a test advances."""
        self.database = database
        self.table = table
        self._keep = keep
        self._clock = clock or SystemClock()

    # Taking -------------------------------------------------------------------------------------------

    @contextmanager
    def claim(self, limit: int) -> Iterator[ClaimedBatch]:
        if self.database.is_postgresql:
            with self.database.engine.begin() as connection:
                yield ClaimedBatch(self, connection, self._take(connection, limit))
        else:
            with self._reading_connection() as connection:
                rows = self._take(connection, limit)
            yield ClaimedBatch(self, None, rows)

    @contextmanager
    def _reading_connection(self) -> Iterator[sa.Connection]:
        """A connection for reading rows that any SQL may have written."""
        with self.database.reading_connection() as connection:
            if self.database.is_postgresql:
                yield connection
            else:
                with any_text(connection):
                    yield connection

    def _take(self, connection: sa.Connection, limit: int) -> list[OutboxRow]:
        """What may be published now. Keys that have to wait are passed over, however many rows they have."""
        waiting: set[str] = set()
        while True:
            found = self._due(connection, limit, waiting)
            mine = self._without_keys_of_others(connection, found) if self.database.is_postgresql else found
            chosen = self._without_those_behind(connection, mine)
            waiting |= _keys(found) - _keys(chosen)
            if chosen or not found:
                return self._read(connection, fitting_rows(chosen, _MOST_BYTES))

    def _due(self, connection: sa.Connection, limit: int, without: set[str]) -> list[ClaimCandidate]:
        table = self.table
        due = [_is(table, RowState.PENDING), table.c.next_attempt_at <= self._now()]
        if without:
            due.append(sa.or_(table.c.ordering_key.is_(None), table.c.ordering_key.not_in(without)))
        size = (sa.func.octet_length if self.database.is_postgresql else sa.func.length)(table.c.body)
        query = sa.select(table.c.id, table.c.ordering_key, sa.func.coalesce(size, 0)).where(*due)
        query = query.order_by(table.c.next_attempt_at, table.c.id).limit(limit)
        if self.database.is_postgresql:
            query = query.with_for_update(skip_locked=True)
        # A key that no statement can name holds up no other row: its own row fails when it is read.
        return sorted(
            ClaimCandidate(id, key if is_storable(key) else None, size) for id, key, size in connection.execute(query)
        )

    def _read(self, connection: sa.Connection, chosen: Sequence[ClaimCandidate]) -> list[OutboxRow]:
        if not chosen:
            return []
        table = self.table
        columns = self._readable(table.c)
        if not self.database.is_postgresql:
            columns.append(mark(table.c.message_id).label("mark"))
        query = sa.select(*columns).where(table.c.id.in_([one.id for one in chosen])).order_by(table.c.id)
        return [read_row(found) for found in connection.execute(query).mappings()]

    def _readable(self, columns: Iterable[sa.Column[Any]]) -> list[sa.ColumnElement[Any]]:
        return [readable(column, postgresql=self.database.is_postgresql) for column in columns]

    def _now(self) -> Any:
        """The database's own time: rows are stamped by it. One moment for all rows, so that an index can be asked."""
        if self._clock.ahead:
            return self._time_after(timedelta(0))
        if self.database.is_postgresql:
            return sa.func.statement_timestamp()
        return sa.func.strftime("%Y-%m-%d %H:%M:%f", "now")

    def _without_keys_of_others(self, connection: sa.Connection, rows: list[ClaimCandidate]) -> list[ClaimCandidate]:
        """Leave out the keys that another relay has in hand."""
        keys = sorted(_keys(rows))
        if not keys:
            return rows
        given = sa.select(sa.func.unnest(sa.cast(keys, sa.ARRAY(sa.Text))).label("key")).subquery()
        name = sa.func.hashtextextended(sa.literal(self.table.name) + ":" + given.c.key, 0)
        locked = connection.execute(sa.select(given.c.key, sa.func.pg_try_advisory_xact_lock(name)))
        mine = {key for key, got in locked if got}
        return [row for row in rows if row.ordering_key is None or row.ordering_key in mine]

    def _without_those_behind(self, connection: sa.Connection, rows: list[ClaimCandidate]) -> list[ClaimCandidate]:
        """Of each key, take what is before the first row that is left out: put off, or in another relay's hands."""
        if not _keys(rows):
            return rows
        table, ids = self.table, [row.id for row in rows if row.ordering_key is not None]
        keys = sa.select(table.c.ordering_key).where(table.c.id.in_(ids)).distinct().subquery()
        other = table.alias()
        first_left_out = (
            sa.select(other.c.id)
            .where(_is(other, RowState.PENDING), other.c.ordering_key == keys.c.ordering_key, other.c.id.not_in(ids))
            .order_by(other.c.id)
            .limit(1)
            .scalar_subquery()
        )
        ends = {key: end for key, end in connection.execute(sa.select(keys, first_left_out)) if end is not None}
        behind = [row for row in rows if row.ordering_key in ends and row.id > ends[row.ordering_key]]
        for key in _keys(behind):
            self._line_up(connection, ends[key], [row.id for row in behind if row.ordering_key == key])
        return [row for row in rows if row.id <= ends.get(row.ordering_key, row.id)]

    def _line_up(self, connection: sa.Connection, head: int, ids: Sequence[int]) -> None:
        """What stands behind a row that was put off is put off with it: else it would be found again and again, and
        when the row is due at last, all of these would be found before it.
        """
        table, front = self.table, self.table.alias()
        moment = sa.select(front.c.next_attempt_at).where(front.c.id == head).scalar_subquery()
        changes = {"next_attempt_at": sa.func.coalesce(moment, table.c.next_attempt_at)}
        connection.execute(sa.update(table).where(table.c.id.in_(ids)).values(**changes))

    # Settling -----------------------------------------------------------------------------------------

    def settle_on(
        self,
        connection: sa.Connection,
        claimed: Sequence[OutboxRow],
        published: Sequence[int],
        refused: Iterable[RefusedRow],
    ) -> None:
        table = self.table
        known = {row.id: row.mark for row in claimed}
        if published:
            self._change_all(connection, self._publication(), {id: known[id] for id in published})
        for row in refused:
            change = sa.update(table).values(**self._refusal(row))
            self._change_all(connection, change, {row.id: known[row.id]})

    def _change_all(
        self, connection: sa.Connection, change: sa.Update | sa.Delete, rows: Mapping[int, bytes | None]
    ) -> None:
        """These rows, if they wait as they did when they were claimed. On PostgreSQL they do: they are locked.

        SQLite, to which no statement is a journey, is told of each by itself: it takes longer over a list of pairs.
        """
        table = self.table
        if self.database.is_postgresql:
            connection.execute(change.where(table.c.id.in_(list(rows))))
            return
        its_mark = sa.bindparam("its_mark", type_=sa.LargeBinary)
        the_same = (table.c.id == sa.bindparam("its_id"), mark(table.c.message_id).is_not_distinct_from(its_mark))
        each = [{"its_id": id, "its_mark": mark} for id, mark in rows.items()]
        connection.execute(change.where(*the_same, _is(table, RowState.PENDING)), each)

    def _publication(self) -> sa.Update | sa.Delete:
        if self._keep is None:
            return sa.delete(self.table)
        done = {"state": int(RowState.PUBLISHED), "published_at": self._now(), "last_error": None}
        return sa.update(self.table).values(**done)

    def _refusal(self, row: RefusedRow) -> dict[str, Any]:
        attempts = self.table.c.attempts
        counted = sa.case((attempts < _MOST_ATTEMPTS, attempts + 1), else_=attempts)  # not beyond the column's end
        changes: dict[str, Any] = {"attempts": counted, "last_error": storable(row.error, _MOST_ERROR)}
        if row.again_after is None:
            return changes | {"state": int(RowState.PARKED)}
        return changes | {"next_attempt_at": self._time_after(row.again_after)}

    def _time_after(self, wait: timedelta) -> Any:
        wait += self._clock.ahead
        if self.database.is_postgresql:
            return sa.func.statement_timestamp() + sa.cast(wait, sa.Interval)
        return (datetime.now(UTC) + wait).replace(tzinfo=None)

    # Looking and tidying ------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """How many rows wait, since when, and how many are parked."""
        table = self.table
        pending = _is(table, RowState.PENDING)
        first = sa.func.min(table.c.created_at)
        oldest_seen = sa.extract("epoch", first) if self.database.is_postgresql else sa.type_coerce(first, sa.String)
        with self._reading_connection() as connection:
            count, oldest = connection.execute(sa.select(sa.func.count(), oldest_seen).where(pending)).one()
            parked = connection.execute(sa.select(sa.func.count()).where(_is(table, RowState.PARKED))).scalar_one()
        return {"pending": count, "oldest": displayed_moment(oldest), "parked": parked}

    def list_rows(self, state: RowState, limit: int) -> list[dict[str, Any]]:
        """Rows in that state, oldest first, without their bodies."""
        table = self.table
        columns = [column for column in table.c if column.key not in ("body", "properties")]
        times = {column.key for column in columns if isinstance(column.type, sa.DateTime)}
        query = sa.select(*self._readable(columns)).where(_is(table, state)).order_by(table.c.id).limit(limit)
        with self._reading_connection() as connection:
            return [displayed_row(row, times) for row in connection.execute(query).mappings()]

    def retry(self, ids: Sequence[int] | None) -> int:
        """Let parked rows be tried again, from their first attempt; all of them if none are named."""
        changes = {"state": int(RowState.PENDING), "attempts": 0, "next_attempt_at": self._now()}
        return self._change(RowState.PARKED, ids, sa.update(self.table).values(**changes))

    def discard(self, ids: Sequence[int]) -> int:
        """Delete parked rows for good."""
        return self._change(RowState.PARKED, ids, sa.delete(self.table))

    def _change(self, state: RowState, ids: Sequence[int] | None, change: sa.Update | sa.Delete) -> int:
        change = change.where(_is(self.table, state))
        if ids is not None:
            change = change.where(self.table.c.id.in_(ids))
        with self.database.engine.begin() as connection:
            return connection.execute(change).rowcount

    def prune(self, older_than: timedelta, *, batch: int = 1000) -> int:
        """Delete what was published longer ago than that, a little at a time."""
        table = self.table
        old = sa.select(table.c.id).where(
            _is(table, RowState.PUBLISHED), table.c.published_at < self._time_after(-older_than)
        )
        return self.database.delete_in_batches(table, table.c.id.in_(old.limit(batch)), batch)


def _is(table: sa.FromClause, state: RowState) -> sa.ColumnElement[bool]:
    """As a literal, not as a parameter: a plan that has to serve any value cannot use an index on some."""
    return table.c.state == sa.literal_column(str(int(state)))


def fitting_rows(candidates: Sequence[ClaimCandidate], budget: int) -> list[ClaimCandidate]:
    """The first of them, as many as fit into so many bytes; one, if it is too large by itself."""
    sums = accumulate(one.size for one in candidates)
    return [
        one for place, (one, so_far) in enumerate(zip(candidates, sums, strict=True)) if not place or so_far <= budget
    ]


def _keys(rows: Iterable[ClaimCandidate]) -> set[str]:
    return {row.ordering_key for row in rows if row.ordering_key is not None}
