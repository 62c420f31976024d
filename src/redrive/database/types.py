"""Types of columns, and indexes, that mean the same on SQLite and on PostgreSQL.

SQLite keeps no time zone, and PostgreSQL answers in that of the session: a `UtcDateTime` goes in and comes out in UTC.

Names, ids and errors come from brokers and from messages of anybody, and hold what a database refuses: NUL (PostgreSQL
has no such character) and bytes that are no UTF-8 (which Redrive carries as surrogate escapes). A record must not fail
for that, so a `StringList` column writes them as `\\x00` and `\\udcff`, and cuts what is too long.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

# SQLite counts rows by itself only in a column that is an INTEGER and nothing else.
BIG_INTEGER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


class UtcDateTime(sa.TypeDecorator[datetime]):
    impl = sa.DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: sa.Dialect) -> datetime | None:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"{value} has no time zone: which moment is that?")
        moment = value.astimezone(UTC)
        return moment if dialect.name == "postgresql" else moment.replace(tzinfo=None)

    def process_result_value(self, value: datetime | None, dialect: sa.Dialect) -> datetime | None:  # noqa: ARG002
        if value is None:
            return None
        return value.astimezone(UTC) if value.tzinfo is not None else value.replace(tzinfo=UTC)


class StringList(sa.TypeDecorator[str]):
    """Text of at most so many characters, whatever they are."""

    impl = sa.Text
    cache_ok = True

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    def process_bind_param(self, value: str | None, dialect: sa.Dialect) -> str | None:  # noqa: ARG002
        return storable(value, self.most) if value is not None else None


def storable(text: str, most: int) -> str:
    """Return the text as any database can store it, cut to `most` characters."""
    if text.isascii() and len(text) <= most and "\0" not in text:  # as most are
        return text
    text = text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")
    return text if len(text) <= most else text[: most - 1] + "…"


def partial_index(table: sa.Table, name: str, columns: list[sa.Column[Any]], where: sa.ColumnElement[bool]) -> None:
    """Give a table an index that holds only the rows for which `where` is true."""
    sa.Index(f"{table.name}_{name}", *columns, postgresql_where=where, sqlite_where=where)
