"""The outbox and inbox tables. Their names, and those of their columns, can be an application's own.

An outbox may hold 10^8 rows, of which a few are pending. Everything a relay asks goes through partial indexes that hold
the pending rows alone, so that what was published long ago costs nothing:

    ..._due     (next_attempt_at, id)   where pending: what is next
    ..._keys    (ordering_key, id)      where pending and keyed: is anything before it?
    ..._parked  (id)                    where parked: for whoever looks
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import IntEnum
from typing import Any

import sqlalchemy as sa

from redrive.errors import ConfigurationError

# SQLite counts rows by itself only in a column that is an INTEGER and nothing else.
_BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_MOMENT = sa.DateTime(timezone=True)


class RowState(IntEnum):
    PENDING = 0
    PUBLISHED = 1
    PARKED = 2


@dataclass(frozen=True, slots=True)
class OutboxNames:
    """`OutboxNames("nfe_outbox_event", {"body": "payload"})`: the table, and columns that have names of their own."""

    table: str = "redrive_outbox"
    columns: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in self.columns:
            if name not in OUTBOX_COLUMNS:
                close = get_close_matches(name, OUTBOX_COLUMNS, 1)
                raise ConfigurationError(
                    f"outbox.columns: there is no column {name}"
                    + (f", did you mean {close[0]}?" if close else f"; there are {', '.join(OUTBOX_COLUMNS)}")
                )

    def column(self, name: str) -> str:
        return self.columns.get(name, name)


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
    )
    _index(table, "due", [table.c.next_attempt_at, table.c.id], table.c.state == int(RowState.PENDING))
    keyed = sa.and_(table.c.state == int(RowState.PENDING), table.c.ordering_key.is_not(None))
    _index(table, "keys", [table.c.ordering_key, table.c.id], keyed)
    _index(table, "parked", [table.c.id], table.c.state == int(RowState.PARKED))
    _index(table, "published", [table.c.published_at], table.c.state == int(RowState.PUBLISHED))
    return table


def _index(table: sa.Table, name: str, columns: list[sa.Column[Any]], where: sa.ColumnElement[bool]) -> None:
    sa.Index(f"{table.name}_{name}", *columns, postgresql_where=where, sqlite_where=where)


def inbox_table(metadata: sa.MetaData, name: str = "redrive_inbox") -> sa.Table:
    """What was processed, by whom, and when: the key is what makes a second time impossible."""
    table = sa.Table(
        name,
        metadata,
        sa.Column("consumer", sa.String(255), primary_key=True),
        sa.Column("message_id", sa.String(255), primary_key=True),
        sa.Column("processed_at", _MOMENT, nullable=False, server_default=sa.func.current_timestamp()),
    )
    sa.Index(f"{name}_processed_at", table.c.processed_at)
    return table
