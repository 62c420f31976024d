"""The tables: what is known of each file, who was told, and what happened.

Everything is written so that the same event twice, or late, changes nothing: a row for each file, of which each event
writes its own columns; a row for each event by the id of its message.
"""

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

metadata = sa.MetaData()
FILES = sa.Table(
    "files",
    metadata,
    sa.Column("id", sa.String(36), primary_key=True),
    sa.Column("name", sa.Text),
    sa.Column("kind", sa.String(10)),
    sa.Column("size", sa.Integer),
    sa.Column("rejected", sa.Text),
    sa.Column("thumbnail", sa.JSON),
    sa.Column("metadata", sa.JSON),
)
NOTIFICATIONS = sa.Table(
    "notifications",
    metadata,
    sa.Column("message_id", sa.String(64), primary_key=True),
    sa.Column("file", sa.String(36), index=True),
    sa.Column("text", sa.Text),
)
AUDIT = sa.Table(
    "audit",
    metadata,
    sa.Column("message_id", sa.String(64), primary_key=True),
    sa.Column("at", sa.DateTime(timezone=True)),
    sa.Column("event", sa.Text),
    sa.Column("file", sa.String(36), index=True),
)

_INSERT: dict[str, Any] = {"postgresql": postgresql.insert, "sqlite": sqlite.insert}


def once(session: AsyncSession | Session, table: sa.Table, **values: Any) -> sa.Insert:
    """Insert that, unless it is there already."""
    insert: sa.Insert = _INSERT[session.get_bind().dialect.name](table).values(values).on_conflict_do_nothing()
    return insert
