"""Redrive: a consumer with three attempts; its topology, its worker and its publisher are as they come."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

from sqlalchemy.exc import DBAPIError

from chaos.systems.producing import publish_all
from chaos.work import ATTEMPTS, HEARTBEAT, QUEUE, WAIT, DatabaseAway, Handling, Job, name_of
from redrive import App, BreakerPolicy, Message, Retry

if TYPE_CHECKING:
    from collections.abc import Callable

AGAIN = Retry(attempts=ATTEMPTS, delay=f"{round(WAIT * 1000)}ms")
# Three attempts, a second apart, do not outlast a database that is away: whoever depends on one waits for it.
DATABASE_AWAY = BreakerPolicy(window=20, minimum_calls=5, pause="2s", ceiling="10s", only=(DatabaseAway, DBAPIError))


def make_app(job: Job) -> App:
    return App(
        "chaos", broker=f"{job.url}?heartbeat={HEARTBEAT}", database=job.database, queue_type=job.kind, patience="20s"
    )


def worker(job: Job) -> App:
    app, handling = make_app(job), Handling(job)

    breaker = None if job.database is None else DATABASE_AWAY

    @app.consumer(QUEUE, retry=AGAIN, concurrency=10, prefetch=20, breaker=breaker)
    async def handle(order: dict[str, str], message: Message) -> None:
        if job.database is None:
            handling.handle(order["name"], message.attempt)
        else:
            await asyncio.to_thread(handling.handle, order["name"], message.attempt)

    return app


async def _publish(app: App, name: str) -> None:
    """With an id of its own, which stays when it is sent again: the inbox knows it by that."""
    await app.publish("", QUEUE, {"name": name}, message_id=name)


def main(make: Callable[[Job], App]) -> None:
    """`declare` and `publish`; `redrive worker` does the rest."""
    job = Job.given()
    app = make(job)

    async def run() -> None:
        if job.database is not None:
            app.upgrade_database()
        async with app:  # which declares everything
            if sys.argv[1] == "publish":
                await publish_all(job, lambda number: _publish(app, name_of(number)))

    asyncio.run(run())


app = worker(Job.given())

if __name__ == "__main__":
    main(worker)
