"""The application: users who signed up, in batches into the database; and what becomes of those it does not take.

POST /api/v1/users ─> raffle_exchange ─> raffle_queue ─> to_row ─> insert_users ─> users
                           ^                 │  │
                           │      it failed, │  │ it failed for the third time, or is no JSON
                   10 s    │     publish and │  │ reject
raffle_retry_10s ──────────┘             ack │  v
      ^                                      │ raffle_dlx ─> raffle_dlq ─> insert_late ─> users
      └───────────── raffle_retry_exchange <─┘                 ^    │
                                                               └────┘ it failed: back, after a growing pause
"""

from __future__ import annotations

from sqlalchemy.ext.asyncio import AsyncSession

from examples.raffle import settings
from examples.raffle.users import DatabaseAway, Row, dead_letter_to_row, insert, metadata, to_row
from redrive import App, HeaderNames, Naming, Retry

NAMING = Naming(
    retry_exchange="raffle_retry_exchange",
    retry_queue="raffle_retry_10s",
    retry_key="raffle_retry_10s",
    back_exchange="raffle_exchange",
    back_key="raffle_queue",
    dlq_exchange="raffle_dlx",
    dlq_queue="raffle_dlq",
    dlq_key="raffle_dlq",
)

# Callers of the API wait no longer for a broker that is away: they are told, and may come again.
app = App("raffle", naming=NAMING, patience="2s")
exchange = app.exchange("raffle_exchange", "direct")


@app.on_start
def prepare() -> None:
    """Create the table, whichever part starts first."""
    app.database.create_tables(metadata)


def may_have_a_culprit(error: BaseException) -> bool:
    """Is it worth looking which row it was? Not when the database is away, or takes too long for all of them."""
    return not isinstance(error, DatabaseAway | TimeoutError)


@app.batch_consumer(
    "raffle_queue",
    bind=exchange.on("raffle_queue"),
    retry=Retry(attempts=settings.MAX_RETRIES, delay=f"{settings.RETRY_TTL_MS}ms"),
    headers=HeaderNames(attempts="x-retries", reason="x-retry-reason", wording="db_error: {message}"),
    park="reject",
    size=settings.USERS_BATCH_SIZE,
    max_wait=f"{settings.USERS_BATCH_TIMEOUT_MS}ms",
    prepare=to_row,
    processors=settings.USERS_PROC_CONCURRENCY,
    batchers=settings.USERS_BATCH_CONCURRENCY,
    isolate=may_have_a_culprit,
    database_outage="retry",  # as the document counts it: db_error
    timeout="1m",  # a commit included
)
async def insert_users(rows: list[Row], session: AsyncSession) -> None:
    await insert(session, rows)


@app.dlq_batch_consumer(
    "raffle_queue",
    size=settings.USERS_BATCH_SIZE,
    max_wait=f"{settings.USERS_BATCH_TIMEOUT_MS}ms",
    prepare=dead_letter_to_row,
    processors=settings.USERS_PROC_CONCURRENCY,
    isolate=may_have_a_culprit,
    database_outage="retry",
    timeout="1m",
)
async def insert_late(rows: list[Row], session: AsyncSession) -> None:
    """The last resort: what fails here goes back to the dead-letter queue."""
    await insert(session, rows)
