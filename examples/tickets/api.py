"""The API: a ticket and its event are committed together.

uvicorn examples.tickets.api:api
"""

from __future__ import annotations

import uuid

from fastapi import FastAPI
from sqlalchemy import select

from examples.tickets.app import EVENTS
from examples.tickets.app import app as default_app
from examples.tickets.messages import NewTicket, TicketOpened
from examples.tickets.records import Ticket
from redrive import App
from redrive.integrations.fastapi import Transaction, explain_errors, lifespan


def make_api(app: App) -> FastAPI:
    api = FastAPI(title="Tickets", lifespan=lifespan(app, connect=False))
    explain_errors(api)

    @api.post("/tickets", status_code=202)
    async def open_ticket(new: NewTicket, session: Transaction) -> dict[str, str]:
        ticket = TicketOpened(str(uuid.uuid4()), new.customer, new.subject)
        session.add(Ticket(id=ticket.id, customer=ticket.customer, subject=ticket.subject))
        await app.publish(EVENTS, "ticket.opened", ticket, session=session)
        return {"id": ticket.id}

    @api.get("/tickets/{id}")
    async def show(id: str, session: Transaction) -> dict[str, str | None]:
        agent = await session.scalar(select(Ticket.agent).where(Ticket.id == id))
        return {"id": id, "agent": agent}

    return api


api = make_api(default_app)
