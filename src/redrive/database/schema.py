"""The tables, made and changed step by step: `redrive db upgrade`, `redrive db sql`.

Alembic does it, with a version table of Redrive's own, so that it stays out of the way of an application's migrations.
Who prefers to have the tables in their own migrations puts them into their own metadata (`Outbox(metadata=...)`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from io import StringIO
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from redrive.database.application_tables import InboxNames, OutboxNames, inbox_table, outbox_table
from redrive.database.engine import Database
from redrive.database.operator_tables import (
    append_only_statements,
    audit_table,
    items_table,
    keys_table,
    operations_table,
    plans_table,
    requests_table,
    sessions_table,
)
from redrive.errors import ConfigurationError

if TYPE_CHECKING:  # whoever works with the tables needs no Alembic, and it takes its time to load
    from alembic.operations import Operations

VERSION_TABLE = "redrive_version"
STEPS = (
    "0001",  # outbox and inbox
    "0002",  # operations on dead-letter queues, their items, and the audit
    "0003",  # API keys, sessions, plans and requests of the admin API
    "0004",  # possibly duplicated messages of an operation
)
LATEST = STEPS[-1]


@dataclass(frozen=True, slots=True)
class Schema:
    outbox: OutboxNames = field(default_factory=OutboxNames)
    inbox: InboxNames | str = field(default_factory=InboxNames)

    @property
    def tables(self) -> frozenset[str]:
        """The names of all tables that Redrive makes in a database: for tools that must leave them alone."""
        metadata = sa.MetaData()
        outbox_table(metadata, self.outbox)
        inbox_table(metadata, self.inbox)
        for make in (
            operations_table,
            items_table,
            audit_table,
            keys_table,
            sessions_table,
            plans_table,
            requests_table,
        ):
            make(metadata)
        return frozenset((VERSION_TABLE, *metadata.tables))

    def upgrade(self, database: Database) -> bool:
        """Make the tables, or what is missing of them. Whether anything was done.

        Of several processes that do so at the same moment one does it, and the others wait for it.
        """
        with database.reading_connection() as connection:
            if not _missing(connection):
                return False
        return self._upgrade(database)

    def _upgrade(self, database: Database) -> bool:
        from alembic.migration import MigrationContext
        from alembic.operations import Operations

        with database.exclusive_transaction(VERSION_TABLE) as connection:
            steps = _missing(connection)
            if not steps:
                return False
            context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
            context._ensure_version_table()
            for step in steps:
                self._take(step, Operations(context), database.kind)
            connection.execute(context._version.delete())
            connection.execute(context._version.insert().values(version_num=LATEST))
        return True

    def check(self, database: Database, *tables: str) -> None:
        """Raise one error if some of these tables do not exist. Called before work begins."""
        database.require_tables(tables, create="make it with `redrive db upgrade module:app`")

    def sql(self, kind: str) -> str:
        """The same as text, for databases that people change by hand."""
        from alembic.migration import MigrationContext
        from alembic.operations import Operations

        buffer = StringIO()
        context = MigrationContext.configure(dialect_name=kind, opts={"as_sql": True, "output_buffer": buffer})
        for step in STEPS:
            self._take(step, Operations(context), kind)
        return buffer.getvalue()

    def _take(self, step: str, operations: Operations, kind: str) -> None:
        metadata = sa.MetaData()
        statements: list[str] = []
        match step:
            case "0001":
                _make(operations, outbox_table(metadata, self.outbox), inbox_table(metadata, self.inbox))
                statements = notify_statements(self.outbox.table) if kind == "postgresql" else []
            case "0002":
                _make(operations, operations_table(metadata), items_table(metadata), audit_table(metadata))
                statements = append_only_statements(kind)
            case "0003":
                _make(operations, keys_table(metadata), sessions_table(metadata))
                _make(operations, plans_table(metadata), requests_table(metadata))
            case "0004":
                _add_column(operations, operations_table(metadata).c.possibly_duplicated, kind)
        for statement in statements:
            operations.execute(sa.text(statement))


def _missing(connection: sa.Connection) -> tuple[str, ...]:
    """The steps that the database has not taken."""
    if not sa.inspect(connection).has_table(VERSION_TABLE):
        return STEPS
    version = connection.execute(sa.text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar()
    if version is None:
        return STEPS
    if version not in STEPS:
        raise ConfigurationError(f"the database was made by a newer Redrive (version {version}): upgrade Redrive")
    return STEPS[STEPS.index(version) + 1 :]


def _make(operations: Operations, *tables: sa.Table) -> None:
    for table in tables:
        operations.execute(sa.schema.CreateTable(table, if_not_exists=True))
        for index in sorted(table.indexes, key=lambda index: str(index.name)):
            operations.execute(sa.schema.CreateIndex(index, if_not_exists=True))


def _add_column(operations: Operations, column: sa.Column[Any], kind: str) -> None:
    """Add a column that a table made by an earlier version does not have. A table that is made now has it."""
    context, table = operations.get_context(), column.table.name
    definition = sa.schema.CreateColumn(column).compile(dialect=context.dialect)
    if kind == "postgresql":
        operations.execute(sa.text(f"ALTER TABLE {table} ADD COLUMN IF NOT EXISTS {definition}"))
    elif not context.as_sql and column.name not in _columns(operations.get_bind(), table):
        operations.execute(sa.text(f"ALTER TABLE {table} ADD COLUMN {definition}"))


def _columns(connection: sa.Connection, table: str) -> set[str]:
    return {column["name"] for column in sa.inspect(connection).get_columns(table)}


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
