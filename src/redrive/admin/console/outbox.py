"""The outbox page: rows that failed for good, to be retried or discarded."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from redrive.admin.api.dependencies import CurrentService
from redrive.admin.api.parameters import RowId
from redrive.admin.console.rendering import page, see_other
from redrive.admin.console.urls import links_of

router = APIRouter()

_MOST_ROWS = 100


@router.get("/outbox")
async def outbox(request: Request, at: CurrentService) -> Response:
    found = await at.outbox(_MOST_ROWS)
    return page(request, "outbox.html", at, here="outbox", outbox=found)


@router.post("/outbox/retry")
async def retry_all(request: Request, at: CurrentService) -> Response:
    await at.retry_outbox(None)
    return see_other(links_of(request)("outbox", said="all-retried"))


@router.post("/outbox/{id}/retry")
async def retry(request: Request, at: CurrentService, id: RowId) -> Response:
    count = await at.retry_outbox(id)
    return see_other(links_of(request)("outbox", said="retried" if count else "row-gone"))


@router.get("/outbox/{id}/discard")
async def discard_form(request: Request, at: CurrentService, id: RowId) -> Response:
    rows = (await at.outbox(_MOST_ROWS)).rows
    row = next((row for row in rows if row["id"] == id), None)
    if row is None:
        return see_other(links_of(request)("outbox", said="row-gone"))
    return page(request, "discard_row.html", at, here="outbox", row=row)


@router.post("/outbox/{id}/discard")
async def discard(request: Request, at: CurrentService, id: RowId) -> Response:
    count = await at.discard_outbox(id)
    return see_other(links_of(request)("outbox", said="row-discarded" if count else "row-gone"))
