"""The tables, made and changed step by step: `redrive db upgrade`, `redrive db sql`.

Alembic does it, with a version table of Redrive's own, so that it stays out of the way of an application's migrations.
Who prefers to have the tables in their own migrations puts them into their own metadata (`Outbox(metadata=...)`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from io import StringIO
from typing import TYPE_CHECKING

import sqlalchemy as sa

from redrive.errors import ConfigurationError
from redrive.store.database import Database
from redrive.store.tables import OutboxNames, inbox_table, outbox_table

if TYPE_CHECKING:  # whoever works with the tables needs no Alembic, and it takes its time to load
    from alembic.operations import Operations

VERSION_TABLE = "redrive_version"
LATEST = "0001"


@dataclass(frozen=True, slots=True)
class Schema:
    outbox: OutboxNames = field(default_factory=OutboxNames)
    inbox: str = "redrive_inbox"

    def upgrade(self, database: Database) -> bool:
        """Make the tables, if they are not there. Whether anything was done."""
        from alembic.migration import MigrationContext
        from alembic.operations import Operations

        with database.engine.begin() as connection:
            context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
            if context.get_current_revision() == LATEST:
                return False
            if context.get_current_revision() is not None:
                version = context.get_current_revision()
                raise ConfigurationError(
                    f"the database was made by a newer Redrive (version {version}): upgrade Redrive"
                )
            self._make(Operations(context), database.kind)
            context._ensure_version_table()
            connection.execute(context._version.insert().values(version_num=LATEST))
        return True

    def check(self, database: Database, *tables: str) -> None:
        """Are these tables there? Asked before work begins: a message whose handling fails for want of a table is
        parked in the end, and it is not its fault.
        """
        known = sa.inspect(database.engine)
        if missing := [table for table in tables if not known.has_table(table)]:
            raise ConfigurationError(
                f"there is no table {' nor '.join(missing)} in {database}: make it with `redrive db upgrade module:app`"
            )

    def sql(self, kind: str) -> str:
        """The same as text, for databases that people change by hand."""
        from alembic.migration import MigrationContext
        from alembic.operations import Operations

        buffer = StringIO()
        context = MigrationContext.configure(dialect_name=kind, opts={"as_sql": True, "output_buffer": buffer})
        self._make(Operations(context), kind)
        return buffer.getvalue()

    def _make(self, operations: Operations, kind: str) -> None:
        metadata = sa.MetaData()
        tables = [outbox_table(metadata, self.outbox), inbox_table(metadata, self.inbox)]
        for table in tables:
            operations.execute(sa.schema.CreateTable(table, if_not_exists=True))
            for index in sorted(table.indexes, key=lambda index: str(index.name)):
                operations.execute(sa.schema.CreateIndex(index, if_not_exists=True))
        if kind == "postgresql":
            for statement in notify_statements(self.outbox.table):
                operations.execute(sa.text(statement))


def channel_of(table: str) -> str:
    """The channel on which PostgreSQL tells that rows were added."""
    return f"{table}_added"


def notify_statements(table: str) -> list[str]:
    """Tell listeners when a transaction that added rows has committed: also one that knows nothing of Redrive."""
    function = f"{table}_notify"
    return [
        f'CREATE OR REPLACE FUNCTION "{function}"() RETURNS trigger LANGUAGE plpgsql AS $$ '
        f"BEGIN PERFORM pg_notify('{channel_of(table)}', ''); RETURN NULL; END $$",
        f'DROP TRIGGER IF EXISTS "{function}" ON "{table}"',
        f'CREATE TRIGGER "{function}" AFTER INSERT ON "{table}" FOR EACH STATEMENT EXECUTE FUNCTION "{function}"()',
    ]
