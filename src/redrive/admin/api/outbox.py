"""Routes of the outbox."""

from __future__ import annotations

from redrive.admin.api import schemas as m
from redrive.admin.api.dependencies import CurrentService
from redrive.admin.api.parameters import ONCE, Limit, RowId
from redrive.admin.api.routers import resource_router
from redrive.errors import NotFound

router = resource_router()


@router.get("/outbox", summary="What waits to be published", operation_id="outbox", tags=["outbox"])
async def outbox(at: CurrentService, limit: Limit = 50) -> m.OutboxOut:
    return m.OutboxOut.of(await at.outbox(limit))


@router.post(
    "/outbox/{id}/retry",
    dependencies=ONCE,
    summary="Publish a parked row again",
    operation_id="retry_outbox",
    tags=["outbox"],
)
async def retry_outbox(at: CurrentService, id: RowId) -> m.RowsOut:
    return _rows(id, await at.retry_outbox(id))


@router.post(
    "/outbox/{id}/discard",
    dependencies=ONCE,
    summary="Delete a parked row for good",
    operation_id="discard_outbox",
    tags=["outbox"],
)
async def discard_outbox(at: CurrentService, id: RowId) -> m.RowsOut:
    return _rows(id, await at.discard_outbox(id))


def _rows(id: int, count: int) -> m.RowsOut:
    if not count:
        raise NotFound(404, f"there is no parked row {id} in the outbox")
    return m.RowsOut(rows=count)
