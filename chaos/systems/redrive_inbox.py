"""Redrive with the inbox: the effect, and the note that the message was handled, in one transaction."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession

from chaos.systems.redrive import AGAIN, DATABASE_AWAY, main, make_app
from chaos.work import QUEUE, Handling, Job
from redrive import App, Message

_EFFECTS = sa.table("effects", sa.column("number"))


def worker(job: Job) -> App:
    app, handling = make_app(job), Handling(job)

    @app.consumer(QUEUE, retry=AGAIN, concurrency=10, prefetch=20, inbox=True, breaker=DATABASE_AWAY)
    async def handle(order: dict[str, str], message: Message, session: AsyncSession) -> None:
        number = handling.decide(order["name"], message.attempt)
        await session.execute(sa.insert(_EFFECTS).values(number=number))

    return app


app = worker(Job.given())

if __name__ == "__main__":
    main(worker)
