"""What must be in the same transaction as the application's own data: messages to publish, and messages processed.
And what must outlive a process: operations on dead-letter queues, and who did what.

| module               | what                                                                |
|----------------------|---------------------------------------------------------------------|
| `types`              | moments and text that mean the same on every database               |
| `engine`             | engines and sessions, synchronous and not, on SQLite and PostgreSQL |
| `schema`             | `redrive db upgrade`: the tables, made and changed by Alembic       |
| `application_tables` | the tables of the outbox and the inbox                              |
| `bulk_insert`        | many rows by one statement                                          |
| `connection_errors`  | is the database unavailable, or is a statement wrong?               |
| `operator_tables`    | the tables of operators                                             |

On SQLAlchemy 2, with SQLite (the embedded default) and PostgreSQL.
"""
