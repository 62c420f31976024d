"""What must be in the same transaction as the application's own data: messages to publish, and messages processed.
And what must outlive a process: operations on dead-letter queues, and who did what.

| module      | what                                                                                         |
|-------------|----------------------------------------------------------------------------------------------|
| `tables`    | the tables; outbox and inbox with names of your choice                                       |
| `columns`   | moments and text that mean the same on every database                                        |
| `database`  | engines and sessions, synchronous and not, on SQLite and PostgreSQL                          |
| `outbox`    | `outbox.add(session, ...)`: a message that is published if, and only if, you commit          |
| `claims`    | rows that a relay has taken: claimed, published, put off, parked                             |
| `outbox_relay`| publishes the rows of the outbox, and marks them when the broker has confirmed             |
| `inbox`     | a message that was processed is not processed again                                          |
| `operations`| operations on dead-letter queues: progress, wishes, what became of each message              |
| `audit`     | who did what with dead letters; only ever added to                                           |
| `waking`    | how a relay notices new rows                                                                 |
| `schema`    | `redrive db upgrade`: the tables, made and changed by Alembic                                |

On SQLAlchemy 2, with SQLite (the embedded default) and PostgreSQL.
"""
