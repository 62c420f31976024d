"""The tables of operators: operations on dead-letter queues, the audit, API keys, sessions, plans and requests.

There are few operations, each with as many items as it has moved messages. The audit only grows (see
`redrive.operations.audit_log`). Keys and sessions are stored as digests, which are useless for signing in. Plans and
requests are kept until they expire. All of these tables belong to Redrive alone.
"""

from __future__ import annotations

import sqlalchemy as sa

from redrive.database.types import BIG_INTEGER, StringList, UtcDateTime, partial_index

_NAME = 255  # characters of an id, of a queue, of a person
_SENTENCE = 1_000
_NOTE = 10_000
RUNNING_STATES = ("PENDING", "RUNNING", "PAUSED", "CANCELLING")  # of an operation that is not over
_REFUSAL = "redrive_audit is append-only"


def operations_table(metadata: sa.MetaData) -> sa.Table:
    """The request as JSON, the progress, and the control request of an operation."""
    table = sa.Table(
        "redrive_operations",
        metadata,
        sa.Column("id", StringList(_NAME), primary_key=True),
        sa.Column("queue", StringList(_NAME), nullable=False),
        sa.Column("asked", sa.Text, nullable=False),  # the order
        sa.Column("created_at", UtcDateTime, nullable=False),
        sa.Column("state", sa.String(32), nullable=False),
        sa.Column("planned", BIG_INTEGER),
        sa.Column("moved", BIG_INTEGER, nullable=False),
        sa.Column("skipped", BIG_INTEGER, nullable=False),
        sa.Column("failed", BIG_INTEGER, nullable=False),
        sa.Column("returned", BIG_INTEGER, nullable=False),
        sa.Column("possibly_duplicated", BIG_INTEGER, nullable=False, server_default=sa.text("0")),
        sa.Column("scope", BIG_INTEGER),
        sa.Column("step", sa.Integer, nullable=False),
        sa.Column("started_at", UtcDateTime),
        sa.Column("beat_at", UtcDateTime),
        sa.Column("ended_at", UtcDateTime),
        sa.Column("owner", StringList(_NAME), nullable=False),
        sa.Column("note", StringList(_NOTE), nullable=False),
        sa.Column("wanted_state", sa.String(32)),
        sa.Column("wanted_rate", sa.Double),
    )
    sa.Index(f"{table.name}_created", table.c.created_at, table.c.id)
    sa.Index(f"{table.name}_queue", table.c.queue, table.c.created_at, table.c.id)
    partial_index(table, "running", [table.c.created_at], is_running(table))
    return table


def is_running(operations: sa.Table) -> sa.ColumnElement[bool]:
    """As literals, not as parameters: a plan that has to serve any value cannot use an index on some."""
    return operations.c.state.in_([sa.literal_column(f"'{state}'") for state in RUNNING_STATES])


def items_table(metadata: sa.MetaData) -> sa.Table:
    """The outcome of each message, numbered in the order in which it was recorded."""
    table = sa.Table(
        "redrive_operation_items",
        metadata,
        sa.Column("number", BIG_INTEGER, primary_key=True, autoincrement=True),
        sa.Column(
            "operation", StringList(_NAME), sa.ForeignKey("redrive_operations.id", ondelete="CASCADE"), nullable=False
        ),
        sa.Column("id", StringList(_SENTENCE), nullable=False),
        sa.Column("outcome", sa.String(32), nullable=False),
        sa.Column("at", UtcDateTime, nullable=False),
        sa.Column("message_id", StringList(_SENTENCE)),
        sa.Column("why", StringList(_SENTENCE), nullable=False),
        sa.Column("destination", StringList(_SENTENCE), nullable=False),
    )
    sa.Index(f"{table.name}_order", table.c.operation, table.c.number)
    sa.Index(f"{table.name}_outcome", table.c.operation, table.c.outcome, table.c.number)
    return table


def audit_table(metadata: sa.MetaData) -> sa.Table:
    """Who did what, or was not allowed to."""
    table = sa.Table(
        "redrive_audit",
        metadata,
        sa.Column("number", BIG_INTEGER, primary_key=True, autoincrement=True),
        sa.Column("at", UtcDateTime, nullable=False),
        sa.Column("who", StringList(_NAME), nullable=False),
        sa.Column("action", StringList(_NAME), nullable=False),
        sa.Column("queue", StringList(_NAME), nullable=False),
        sa.Column("allowed", sa.Boolean, nullable=False),
        sa.Column("operation", StringList(_NAME), nullable=False),
        sa.Column("filter", StringList(_NOTE), nullable=False),
        sa.Column("counts", sa.Text, nullable=False),  # JSON
        sa.Column("reason", StringList(_NOTE), nullable=False),
        sa.Column("detail", StringList(_NOTE), nullable=False),
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
        sa.Column("name", StringList(_NAME), nullable=False),
        sa.Column("role", sa.String(32), nullable=False),
        sa.Column("queues", sa.Text, nullable=False),  # patterns, as JSON
        sa.Column("created_at", UtcDateTime, nullable=False),
        sa.Column("created_by", StringList(_NAME), nullable=False),
        sa.Column("expires_at", UtcDateTime),
        sa.Column("revoked_at", UtcDateTime),
        sa.Column("used_at", UtcDateTime),
    )


def sessions_table(metadata: sa.MetaData) -> sa.Table:
    """Browsers that are signed in, and links by which one can sign in once."""
    table = sa.Table(
        "redrive_sessions",
        metadata,
        sa.Column("digest", sa.String(64), primary_key=True),  # of the cookie, or of the link
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("who", StringList(_NAME), nullable=False),
        sa.Column("role", sa.String(32), nullable=False),
        sa.Column("queues", sa.Text, nullable=False),
        sa.Column("key", sa.String(32)),  # with which it was opened: it ends when that is revoked
        sa.Column("created_at", UtcDateTime, nullable=False),
        sa.Column("seen_at", UtcDateTime, nullable=False),
        sa.Column("expires_at", UtcDateTime, nullable=False),
    )
    sa.Index(f"{table.name}_expires", table.c.expires_at)
    return table


def plans_table(metadata: sa.MetaData) -> sa.Table:
    """The plans that were shown to operators."""
    table = sa.Table(
        "redrive_plans",
        metadata,
        sa.Column("token", sa.String(64), primary_key=True),
        sa.Column("queue", StringList(_NAME), nullable=False),
        sa.Column("who", StringList(_NAME), nullable=False),
        sa.Column("asked", sa.Text, nullable=False),  # the order, as JSON
        sa.Column("eligible", BIG_INTEGER, nullable=False),
        sa.Column("expires_at", UtcDateTime, nullable=False),
    )
    sa.Index(f"{table.name}_expires", table.c.expires_at)
    return table


def requests_table(metadata: sa.MetaData) -> sa.Table:
    """Requests that came with an Idempotency-Key, and what was answered: the same once more."""
    table = sa.Table(
        "redrive_requests",
        metadata,
        sa.Column("who", StringList(_NAME), primary_key=True),
        sa.Column("key", sa.String(255), primary_key=True),
        sa.Column("digest", sa.String(64), nullable=False),  # of method, path and body
        sa.Column("status", sa.SmallInteger),  # NULL: it is still being answered, or its server died over it
        sa.Column("answer", sa.Text),
        sa.Column("location", StringList(_SENTENCE)),
        sa.Column("at", UtcDateTime, nullable=False),
        sa.Column("expires_at", UtcDateTime, nullable=False),
    )
    sa.Index(f"{table.name}_expires", table.c.expires_at)
    return table


def append_only_statements(kind: str) -> list[str]:
    """Let the database refuse whatever would change or delete an entry."""
    if kind == "postgresql":
        return [
            "CREATE OR REPLACE FUNCTION redrive_audit_refuse() RETURNS trigger LANGUAGE plpgsql AS $$ "
            f"BEGIN RAISE EXCEPTION '{_REFUSAL}'; END $$",
            "DROP TRIGGER IF EXISTS redrive_audit_append_only ON redrive_audit",
            "CREATE TRIGGER redrive_audit_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON redrive_audit "
            "FOR EACH STATEMENT EXECUTE FUNCTION redrive_audit_refuse()",
        ]
    return [
        f"CREATE TRIGGER IF NOT EXISTS redrive_audit_no_{verb.lower()} BEFORE {verb} ON redrive_audit "
        f"BEGIN SELECT RAISE(ABORT, '{_REFUSAL}'); END"
        for verb in ("UPDATE", "DELETE")
    ]
