"""Who did what with dead letters, or was not allowed to: written before it is done, and never changed.

What cannot be recorded is not done: `write` raises AuditUnavailable, and the caller goes no further.

The database itself refuses to change or delete entries, by triggers, whoever asks (`append_only_statements` in
`redrive.database.operator_tables`). They guard against mistakes and against whoever got hold of the application, not
against the owner of the database, who can switch them off: that is also how old entries are removed (docs/audit.md).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from redrive.database.engine import Database
from redrive.database.operator_tables import audit_table
from redrive.deadletters.redaction import redact_text
from redrive.errors import AuditUnavailable, ConfigurationError
from redrive.operations.audit_entry import AuditEntry


class AuditLog:
    def __init__(self, database: Database) -> None:
        self.database = database
        self.table = audit_table(sa.MetaData())

    def write(self, entry: AuditEntry, also: Callable[[sa.Connection], None] = lambda _: None) -> None:
        """Commit an entry, and in the same transaction what it records (`also`): both, or neither."""
        try:
            with self.database.engine.begin() as connection:
                self.add(connection, entry)
                also(connection)
        except (SQLAlchemyError, OSError, ConfigurationError) as error:
            raise AuditUnavailable(_why(error, self.database)) from error

    def add(self, connection: sa.Connection, entry: AuditEntry) -> None:
        """Within a transaction of the same database that also does what is recorded: both, or neither."""
        connection.execute(sa.insert(self.table), _row(entry))

    def list_entries(
        self,
        queue: str | None = None,
        by: str | None = None,
        action: str | None = None,
        limit: int = 50,
        before: int | None = None,
    ) -> list[tuple[int, AuditEntry]]:
        """The newest first, each with its number. `before`: the number of the last one on the page before."""
        table = self.table
        query = sa.select(table).order_by(table.c.number.desc()).limit(limit)
        for column, wanted in ((table.c.queue, queue), (table.c.who, by), (table.c.action, action)):
            if wanted is not None:
                query = query.where(column == wanted)
        if before is not None:
            query = query.where(table.c.number < before)
        with self.database.reading_connection() as connection:
            return [(row["number"], _entry(row)) for row in connection.execute(query).mappings()]


def _why(error: Exception, database: Database) -> str:
    """What the database said, without the statement: that begins in its second line."""
    said = str(getattr(error, "orig", None) or error).partition("\n")[0]
    if "no such table" in said or "does not exist" in said:
        return f"{said} in {database}. Make the tables with `redrive db upgrade`"
    return f"{said} ({database}). Try again when that is fixed"


def _row(entry: AuditEntry) -> dict[str, Any]:
    return {
        "at": entry.at,
        "who": entry.by,
        "action": entry.action,
        "queue": entry.queue,
        "allowed": entry.allowed,
        "operation": entry.operation,
        "filter": redact_text(entry.filter),
        "counts": json.dumps(dict(entry.counts)),
        "reason": redact_text(entry.reason),
        "detail": redact_text(entry.detail),
    }


def _entry(row: Mapping[Any, Any]) -> AuditEntry:
    return AuditEntry(
        at=row["at"],
        by=row["who"],
        action=row["action"],
        queue=row["queue"],
        allowed=row["allowed"],
        operation=row["operation"],
        filter=row["filter"],
        counts=json.loads(row["counts"]),
        reason=row["reason"],
        detail=row["detail"],
    )
