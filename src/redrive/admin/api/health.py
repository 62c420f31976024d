"""For whoever watches the server: is it alive, is it ready, and how many dead letters are there.

`/healthz` and `/readyz` are open and tell nothing but whether. `/metrics` is for those who may look: it tells of the
queues that they see, and of the outbox to those who see all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import NamedTuple

from fastapi import APIRouter, Request
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Gauge, generate_latest
from sqlalchemy import text
from starlette.responses import PlainTextResponse, Response

from redrive.admin.api.dependencies import CurrentService, context_of
from redrive.admin.authorized_service import AuthorizedService
from redrive.admin.context import AdminContext
from redrive.database.engine import Database

router = APIRouter(include_in_schema=False)

_WITHIN = 5.0  # seconds


@router.get("/healthz")
async def healthz() -> Response:
    return PlainTextResponse("ok\n")


class Told(NamedTuple):
    about: str
    labels: tuple[str, ...] = ()


# What `/metrics` tells, each as `redrive_` and its name. Those of the outbox only where there is one.
GAUGES: Mapping[str, Told] = {
    "dead_letters": Told("Messages in a dead-letter queue.", ("queue",)),
    "dead_letters_oldest_seconds": Told("How long ago the first of them died.", ("queue",)),
    "operations_running": Told("Operations that are not over."),
    "operations_interrupted": Told("Those of them on which nobody works."),
    "outbox_pending": Told("Rows that wait to be published."),
    "outbox_parked": Told("Rows that the broker would not take."),
    "outbox_oldest_seconds": Told("How long the first of them has waited."),
}


@router.get("/readyz")
async def readyz(request: Request) -> Response:
    missing = await _missing(context_of(request))
    if missing:
        return PlainTextResponse("".join(f"{what} is away\n" for what in missing), 503)
    return PlainTextResponse("ok\n")


async def _missing(context: AdminContext) -> list[str]:
    async def broker() -> None:
        async with context.cached_target.connect_to_read():
            pass

    async def database() -> None:
        await asyncio.to_thread(_ask, context.database)

    missing = []
    for what, ask in (("the broker", broker), ("the database", database)):
        try:
            async with asyncio.timeout(_WITHIN):
                await ask()
        except Exception:  # whatever it is, it is not ready
            missing.append(what)
    return missing


def _ask(database: Database) -> None:
    with database.reading_connection() as connection:
        connection.execute(text("SELECT 1"))


@router.get("/metrics")
async def metrics(at: CurrentService) -> Response:
    return Response(await _render_metrics(at), media_type=CONTENT_TYPE_LATEST)


async def _render_metrics(at: AuthorizedService) -> bytes:
    registry = CollectorRegistry()

    def gauge(name: str) -> Gauge:
        known = GAUGES[name]
        return Gauge(f"redrive_{name}", known.about, known.labels, registry=registry)

    depth, age = gauge("dead_letters"), gauge("dead_letters_oldest_seconds")
    now = at.context.clock.now()
    for view in await at.queues():
        depth.labels(view.name).set(view.depth)
        if view.oldest is not None:
            age.labels(view.name).set(max(0.0, (now - view.oldest).total_seconds()))
    running = [
        one for one in await asyncio.to_thread(at.service.store.running_operations) if at.who.sees(one.order.queue)
    ]
    gauge("operations_running").set(len(running))
    stalled = [one for one in running if at.service.is_interrupted(one)]
    gauge("operations_interrupted").set(len(stalled))
    if at.context.outbox is not None and at.who.is_unrestricted:
        status = await asyncio.to_thread(at.context.outbox.status)
        gauge("outbox_pending").set(status["pending"])
        gauge("outbox_parked").set(status["parked"])
        waited = (now - status["oldest"]).total_seconds() if status["oldest"] is not None else 0.0
        gauge("outbox_oldest_seconds").set(max(0.0, waited))
    return generate_latest(registry)
