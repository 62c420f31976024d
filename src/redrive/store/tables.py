"""The tables. The names of outbox and inbox, and those of the outbox's columns, can be an application's own.

An outbox may hold 10^8 rows, of which a few are pending. Everything a relay asks goes through partial indexes that hold
the pending rows alone, so that what was published long ago costs nothing:

    ..._due     (next_attempt_at, id)   where pending: what is next
    ..._keys    (ordering_key, id)      where pending and keyed: is anything before it?
    ..._parked  (id)                    where parked: for whoever looks

Of operations on dead-letter queues there are few, each with as many items as it has moved messages. The audit only
grows (see `redrive.store.audit`). Keys and sessions are kept as digests: who reads them cannot sign in with them. Plans
and requests are remembered for as long as somebody may come back to them. All of these are of Redrive alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import sqlalchemy as sa

from redrive.errors import ConfigurationError
from redrive.runtime.dlq.operation import State
from redrive.store.columns import Moment, Words
from redrive.text import did_you_mean

# SQLite counts rows by itself only in a column that is an INTEGER and nothing else.
_BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_MOMENT = sa.DateTime(timezone=True)
_NAME = 255  # characters of an id, of a queue, of a person
_SENTENCE = 1_000
_NOTE = 10_000


class RowState(IntEnum):
    PENDING = 0
    PUBLISHED = 1
    PARKED = 2


@dataclass(frozen=True, slots=True)
class OutboxNames:
    """`OutboxNames("nfe_outbox_event", {"body": "payload"})`: the table, and columns that have names of their own."""

    table: str = "redrive_outbox"  # the table
    # columns that have names of their own: `{"body": "payload"}`
    columns: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_columns("outbox", self.columns, OUTBOX_COLUMNS)

    def column(self, name: str) -> str:
        return self.columns.get(name, name)


@dataclass(frozen=True, slots=True)
class InboxNames:
    """`InboxNames("nfe_inbox_processed", {"message_id": "event_id"})`: as those of the outbox."""

    table: str = "redrive_inbox"  # the table
    columns: Mapping[str, str] = field(default_factory=dict)  # columns that have names of their own

    def __post_init__(self) -> None:
        _check_columns("inbox", self.columns, INBOX_COLUMNS)

    @classmethod
    def of(cls, names: InboxNames | str) -> InboxNames:
        """A text names the table, and the columns keep their names."""
        return cls(names) if isinstance(names, str) else names

    def column(self, name: str) -> str:
        return self.columns.get(name, name)


def _check_columns(table: str, renamed: Iterable[str], known: Sequence[str]) -> None:
    for name in renamed:
        if name not in known:
            hint = did_you_mean(name, known, f"; there are {', '.join(known)}")
            raise ConfigurationError(f"{table}.columns: there is no column {name}{hint}")


INBOX_COLUMNS = ("consumer", "message_id", "processed_at")
OUTBOX_COLUMNS = (
    "id",
    "message_id",
    "exchange",
    "routing_key",
    "body",
    "properties",
    "ordering_key",
    "state",
    "attempts",
    "created_at",
    "next_attempt_at",
    "published_at",
    "last_error",
)


def outbox_table(metadata: sa.MetaData, names: OutboxNames = OutboxNames()) -> sa.Table:  # noqa: B008 - frozen
    """The outbox in your own metadata: `key` of each column is ours, its name is yours."""

    def column(key: str, kind: Any, **options: Any) -> sa.Column[Any]:
        return sa.Column(names.column(key), kind, key=key, **options)

    now = sa.func.current_timestamp()
    table = sa.Table(
        names.table,
        metadata,
        column("id", _BIG, primary_key=True, autoincrement=True),
        column("message_id", sa.String(255), nullable=False),
        column("exchange", sa.String(255), nullable=False),
        column("routing_key", sa.String(255), nullable=False),
        column("body", sa.LargeBinary, nullable=False),
        column(
            "properties", sa.LargeBinary
        ),  # as they lie on the wire; NULL: a JSON message, as SQL alone can write it
        column("ordering_key", sa.String(255)),
        column("state", sa.SmallInteger, nullable=False, server_default=sa.text(str(int(RowState.PENDING)))),
        column("attempts", sa.Integer, nullable=False, server_default=sa.text("0")),
        column("created_at", _MOMENT, nullable=False, server_default=now),
        column("next_attempt_at", _MOMENT, nullable=False, server_default=now),
        column("published_at", _MOMENT),
        column("last_error", sa.Text),
        sqlite_autoincrement=True,  # an id is never given twice, even if the row is gone: relays know rows by it
    )
    _index(table, "due", [table.c.next_attempt_at, table.c.id], table.c.state == int(RowState.PENDING))
    keyed = sa.and_(table.c.state == int(RowState.PENDING), table.c.ordering_key.is_not(None))
    _index(table, "keys", [table.c.ordering_key, table.c.id], keyed)
    _index(table, "parked", [table.c.id], table.c.state == int(RowState.PARKED))
    _index(table, "published", [table.c.published_at], table.c.state == int(RowState.PUBLISHED))
    return table


def _index(table: sa.Table, name: str, columns: list[sa.Column[Any]], where: sa.ColumnElement[bool]) -> None:
    sa.Index(f"{table.name}_{name}", *columns, postgresql_where=where, sqlite_where=where)


def inbox_table(metadata: sa.MetaData, names: InboxNames | str = InboxNames()) -> sa.Table:  # noqa: B008 - frozen
    """What was processed, by whom, and when: the key is what makes a second time impossible."""
    names = InboxNames.of(names)

    def column(key: str, kind: Any, **options: Any) -> sa.Column[Any]:
        return sa.Column(names.column(key), kind, key=key, **options)

    table = sa.Table(
        names.table,
        metadata,
        column("consumer", sa.String(255), primary_key=True),
        column("message_id", sa.String(255), primary_key=True),
        column("processed_at", _MOMENT, nullable=False, server_default=sa.func.current_timestamp()),
    )
    sa.Index(f"{names.table}_processed_at", table.c.processed_at)
    return table


# Operations on dead-letter queues -----------------------------------------------------------------


def operations_table(metadata: sa.MetaData) -> sa.Table:
    """What was asked for, as JSON; how far it is; and what somebody wants of it meanwhile."""
    table = sa.Table(
        "redrive_operations",
        metadata,
        sa.Column("id", Words(_NAME), primary_key=True),
        sa.Column("queue", Words(_NAME), nullable=False),
        sa.Column("asked", sa.Text, nullable=False),  # the order
        sa.Column("created_at", Moment, nullable=False),
        sa.Column("state", sa.String(32), nullable=False),
        sa.Column("planned", _BIG),
        sa.Column("moved", _BIG, nullable=False),
        sa.Column("skipped", _BIG, nullable=False),
        sa.Column("failed", _BIG, nullable=False),
        sa.Column("returned", _BIG, nullable=False),
        sa.Column("possibly_duplicated", _BIG, nullable=False, server_default=sa.text("0")),
        sa.Column("scope", _BIG),
        sa.Column("step", sa.Integer, nullable=False),
        sa.Column("started_at", Moment),
        sa.Column("beat_at", Moment),
        sa.Column("ended_at", Moment),
        sa.Column("owner", Words(_NAME), nullable=False),
        sa.Column("note", Words(_NOTE), nullable=False),
        sa.Column("wanted_state", sa.String(32)),
        sa.Column("wanted_rate", sa.Double),
    )
    sa.Index(f"{table.name}_created", table.c.created_at, table.c.id)
    sa.Index(f"{table.name}_queue", table.c.queue, table.c.created_at, table.c.id)
    _index(table, "running", [table.c.created_at], is_running(table))
    return table


def is_running(operations: sa.Table) -> sa.ColumnElement[bool]:
    """As literals, not as parameters: a plan that has to serve any value cannot use an index on some."""
    return operations.c.state.in_([sa.literal_column(f"'{state}'") for state in State if not state.is_over])


def items_table(metadata: sa.MetaData) -> sa.Table:
    """What became of each message, numbered in the order in which it was written down."""
    table = sa.Table(
        "redrive_operation_items",
        metadata,
        sa.Column("number", _BIG, primary_key=True, autoincrement=True),
        sa.Column(
            "operation", Words(_NAME), sa.ForeignKey("redrive_operations.id", ondelete="CASCADE"), nullable=False
        ),
        sa.Column("id", Words(_SENTENCE), nullable=False),
        sa.Column("outcome", sa.String(32), nullable=False),
        sa.Column("at", Moment, nullable=False),
        sa.Column("message_id", Words(_SENTENCE)),
        sa.Column("why", Words(_SENTENCE), nullable=False),
        sa.Column("destination", Words(_SENTENCE), nullable=False),
    )
    sa.Index(f"{table.name}_order", table.c.operation, table.c.number)
    sa.Index(f"{table.name}_outcome", table.c.operation, table.c.outcome, table.c.number)
    return table


def audit_table(metadata: sa.MetaData) -> sa.Table:
    """Who did what, or was not allowed to."""
    table = sa.Table(
        "redrive_audit",
        metadata,
        sa.Column("number", _BIG, primary_key=True, autoincrement=True),
        sa.Column("at", Moment, nullable=False),
        sa.Column("who", Words(_NAME), nullable=False),
        sa.Column("action", Words(_NAME), nullable=False),
        sa.Column("queue", Words(_NAME), nullable=False),
        sa.Column("allowed", sa.Boolean, nullable=False),
        sa.Column("operation", Words(_NAME), nullable=False),
        sa.Column("filter", Words(_NOTE), nullable=False),
        sa.Column("counts", sa.Text, nullable=False),  # JSON
        sa.Column("reason", Words(_NOTE), nullable=False),
        sa.Column("detail", Words(_NOTE), nullable=False),
    )
    sa.Index(f"{table.name}_queue", table.c.queue, table.c.number)
    sa.Index(f"{table.name}_who", table.c.who, table.c.number)
    return table


# Who may come in, and what they asked for -----------------------------------------------------------


def keys_table(metadata: sa.MetaData) -> sa.Table:
    """API keys. A revoked one stays, so that the audit's names keep their meaning."""
    return sa.Table(
        "redrive_keys",
        metadata,
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("digest", sa.String(64), nullable=False),  # SHA-256 of the secret, which is random and long
        sa.Column("name", Words(_NAME), nullable=False),
        sa.Column("role", sa.String(32), nullable=False),
        sa.Column("queues", sa.Text, nullable=False),  # patterns, as JSON
        sa.Column("created_at", Moment, nullable=False),
        sa.Column("created_by", Words(_NAME), nullable=False),
        sa.Column("expires_at", Moment),
        sa.Column("revoked_at", Moment),
        sa.Column("used_at", Moment),
    )


def sessions_table(metadata: sa.MetaData) -> sa.Table:
    """Browsers that are signed in, and links by which one can sign in once."""
    table = sa.Table(
        "redrive_sessions",
        metadata,
        sa.Column("digest", sa.String(64), primary_key=True),  # of the cookie, or of the link
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("who", Words(_NAME), nullable=False),
        sa.Column("role", sa.String(32), nullable=False),
        sa.Column("queues", sa.Text, nullable=False),
        sa.Column("key", sa.String(32)),  # with which it was opened: it ends when that is revoked
        sa.Column("created_at", Moment, nullable=False),
        sa.Column("seen_at", Moment, nullable=False),
        sa.Column("expires_at", Moment, nullable=False),
    )
    sa.Index(f"{table.name}_expires", table.c.expires_at)
    return table


def plans_table(metadata: sa.MetaData) -> sa.Table:
    """What somebody was shown before they said yes to it."""
    table = sa.Table(
        "redrive_plans",
        metadata,
        sa.Column("token", sa.String(64), primary_key=True),
        sa.Column("queue", Words(_NAME), nullable=False),
        sa.Column("who", Words(_NAME), nullable=False),
        sa.Column("asked", sa.Text, nullable=False),  # the order, as JSON
        sa.Column("eligible", _BIG, nullable=False),
        sa.Column("expires_at", Moment, nullable=False),
    )
    sa.Index(f"{table.name}_expires", table.c.expires_at)
    return table


def requests_table(metadata: sa.MetaData) -> sa.Table:
    """Requests that came with an Idempotency-Key, and what was answered: the same once more."""
    table = sa.Table(
        "redrive_requests",
        metadata,
        sa.Column("who", Words(_NAME), primary_key=True),
        sa.Column("key", sa.String(255), primary_key=True),
        sa.Column("digest", sa.String(64), nullable=False),  # of method, path and body
        sa.Column("status", sa.SmallInteger),  # NULL: it is still being answered, or its server died over it
        sa.Column("answer", sa.Text),
        sa.Column("location", Words(_SENTENCE)),
        sa.Column("at", Moment, nullable=False),
        sa.Column("expires_at", Moment, nullable=False),
    )
    sa.Index(f"{table.name}_expires", table.c.expires_at)
    return table
