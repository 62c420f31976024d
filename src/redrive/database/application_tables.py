"""The tables of the outbox and the inbox. Their names, and those of their columns, can be an application's own.

An outbox may hold 10^8 rows, of which a few are pending. Every query of a relay goes through partial indexes that hold
the pending rows alone, so that rows that were published long ago cost nothing:

    ..._due     (next_attempt_at, id)   where pending: what is next
    ..._keys    (ordering_key, id)      where pending and keyed: is anything before it?
    ..._parked  (id)                    where parked: for operators
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import sqlalchemy as sa

from redrive.checks import checked
from redrive.database.types import BIG_INTEGER, partial_index
from redrive.errors import ConfigurationError
from redrive.text import did_you_mean

_MOMENT = sa.DateTime(timezone=True)


class RowState(IntEnum):
    PENDING = 0
    PUBLISHED = 1
    PARKED = 2


@checked("outbox")
@dataclass(frozen=True, slots=True)
class OutboxNames:
    """`OutboxNames("nfe_outbox_event", {"body": "payload"})`: the table, and columns that have names of their own."""

    table: str = "redrive_outbox"  # the table
    # columns that have names of their own: `{"body": "payload"}`
    columns: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_columns("outbox", self.columns, OUTBOX_COLUMNS)

    def column(self, name: str) -> str:
        """Return what a column is called in the application's table."""
        return self.columns.get(name, name)


@checked("inbox_table")
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
        """Return what a column is called in the application's table."""
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
        column("id", BIG_INTEGER, primary_key=True, autoincrement=True),
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
    partial_index(table, "due", [table.c.next_attempt_at, table.c.id], table.c.state == int(RowState.PENDING))
    keyed = sa.and_(table.c.state == int(RowState.PENDING), table.c.ordering_key.is_not(None))
    partial_index(table, "keys", [table.c.ordering_key, table.c.id], keyed)
    partial_index(table, "parked", [table.c.id], table.c.state == int(RowState.PARKED))
    partial_index(table, "published", [table.c.published_at], table.c.state == int(RowState.PUBLISHED))
    return table


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
