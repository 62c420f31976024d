"""What must be in the same transaction as the application's own data: messages to publish, and messages processed.

| module      | what                                                                                         |
|-------------|----------------------------------------------------------------------------------------------|
| `tables`    | the outbox and inbox tables, with names of your choice                                       |
| `database`  | engines and sessions, synchronous and not, on SQLite and PostgreSQL                          |
| `outbox`    | `outbox.add(session, ...)`: a message that is published if, and only if, you commit          |
| `claims`    | rows that a relay has taken: claimed, published, put off, parked                             |
| `inbox`     | a message that was processed is not processed again                                          |
| `waking`    | how a relay hears of new rows                                                                |
| `schema`    | `redrive db upgrade`: the tables, made and changed by Alembic                                |

On SQLAlchemy 2, with SQLite (the embedded default) and PostgreSQL.
"""
