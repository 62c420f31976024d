"""The application: two consumers, and what happens when they fail.

POST /tickets ─> outbox ─> relay ─> ticket.opened ─┬─> tickets.assign ─> help desk ─> ticket.assigned (outbox)
                                                   └─> tickets.audit (batches) <──────────┘

the help desk answers        the ticket
200                          gets its agent; the event is committed with it
422                          is parked at once, in tickets.refused
429, 503 with Retry-After    waits as long as the help desk asks for
500, nothing for 10 s        is tried again after 5 s, 10 s, 20 s, ..., then parked in tickets.assign.dlq
errors again and again       waits in its queue: the breaker is open, and no attempt is used
"""

from __future__ import annotations

from pathlib import Path

import httpx
from sqlalchemy import insert, update
from sqlalchemy.ext.asyncio import AsyncSession

from examples.tickets.helpdesk import Helpdesk
from examples.tickets.messages import TicketAssigned, TicketOpened
from examples.tickets.records import AuditEntry, Base, Ticket
from examples.tickets.settings import Settings
from redrive import App, Batch, BreakerPolicy, Clock, Exponential, Retry, http_status

EVENTS = "tickets"

# Errors that are the help desk's fault. 422 is a ticket's own.
UNAVAILABLE = (httpx.TransportError, TimeoutError, http_status(500, 599))


def make_app(
    settings: Settings,
    *,
    broker: str | None = None,
    database: str | None = None,
    data: Path | None = None,
    clock: Clock | None = None,
) -> App:
    app = App("tickets", broker=broker, database=database, data=data, clock=clock)
    events = app.exchange(EVENTS, "topic")
    helpdesk = Helpdesk(settings.helpdesk)

    @app.on_start
    def create_tables() -> None:
        app.upgrade_database()
        app.database.create_tables(Base.metadata)

    @app.consumer(
        "tickets.assign",
        bind=events.on("ticket.opened"),
        retry=Retry(attempts=5, exponential=Exponential("5s", ceiling="5m"), never=http_status(422)),
        dlq={http_status(422): "tickets.refused"},
        concurrency=4,
        timeout="10s",
        breaker=BreakerPolicy(only=UNAVAILABLE, minimum_calls=4, window=4, pause="30s"),
        depends_on="helpdesk",
        inbox=True,
    )
    async def assign(ticket: TicketOpened, session: AsyncSession) -> None:
        """The agent, the event and the note that this message was handled are one transaction."""
        agent = await helpdesk.agent_for(ticket)
        await session.execute(update(Ticket).where(Ticket.id == ticket.id).values(agent=agent))
        await app.publish(events, "ticket.assigned", TicketAssigned(ticket.id, agent), session=session)

    @app.batch_consumer("tickets.audit", bind=events.on("ticket.*"), size=100, max_wait="1s", inbox=True)
    async def audit(batch: Batch[dict[str, str]], session: AsyncSession) -> None:
        rows = [{"ticket": item.body["id"], "event": item.message.routing_key} for item in batch]
        await session.execute(insert(AuditEntry), rows)

    return app


app = make_app(Settings.from_environment())
