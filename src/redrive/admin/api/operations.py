"""Routes of operations: their progress, their items, and the control of running ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import Query, Request
from fastapi.responses import StreamingResponse

from redrive.admin.api import request_schemas as r
from redrive.admin.api import schemas as m
from redrive.admin.api.cursors import read_cursor, write_cursor
from redrive.admin.api.dependencies import CurrentService, is_valid_still
from redrive.admin.api.parameters import ONCE, Became, Cursor, Limit, Named
from redrive.admin.api.responses import operation_out
from redrive.admin.api.routers import resource_router
from redrive.admin.authorized_service import AuthorizedService
from redrive.operations.operation import ControlRequest, Operation, OperationState

_BEAT = 1.0  # seconds between two looks at an operation that is watched
_RECHECKED = 5.0  # seconds after which it is checked that whoever watches it may still do so

router = resource_router()


@router.get("/operations", summary="Operations, newest first", operation_id="operations", tags=["operations"])
async def operations(
    at: CurrentService,
    queue: Annotated[str | None, Query(max_length=300, description="Only of this queue.")] = None,
    state: Annotated[list[OperationState] | None, Query(description="Only in one of these states.")] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> m.OperationsOut:
    before = read_cursor("operations", cursor) if cursor is not None else None
    found = await at.operations(queue, state, limit=limit, before=before)
    return m.OperationsOut(
        items=[operation_out(at, one) for one in found.items],
        next_cursor=write_cursor("operations", found.next) if found.next is not None else None,
    )


@router.get("/operations/{id}", summary="One operation", operation_id="operation", tags=["operations"])
async def operation(at: CurrentService, id: Named) -> m.OperationOut:
    return operation_out(at, await at.operation(id))


@router.get("/operations/{id}/items", summary="What became of its messages", operation_id="items", tags=["operations"])
async def items(
    at: CurrentService, id: Named, outcome: Became = None, limit: Limit = 100, cursor: Cursor = None
) -> m.ItemsOut:
    after = int(read_cursor("items", cursor)) if cursor is not None else None
    found = await at.items(id, outcome, limit=limit, after=after)
    return m.ItemsOut(
        items=[m.ItemOut.mirror(item) for item in found.items],
        next_cursor=write_cursor("items", found.next) if found.next is not None else None,
    )


@router.get(
    "/operations/{id}/events",
    summary="Its progress, as server-sent events",
    operation_id="events",
    tags=["operations"],
    response_class=StreamingResponse,
    responses={
        200: {"content": {"text/event-stream": {}}, "description": "An event for each change, until it is over."}
    },
)
async def events(at: CurrentService, request: Request, id: Named) -> StreamingResponse:
    first = await at.operation(id)
    headers = {"X-Accel-Buffering": "no"}
    return StreamingResponse(_events(at, request, first), media_type="text/event-stream", headers=headers)


async def _events(at: AuthorizedService, request: Request, operation: Operation) -> AsyncIterator[str]:
    last, checked = "", asyncio.get_running_loop().time()
    while True:
        told = operation_out(at, operation).model_dump_json()
        if told != last:
            yield f"event: operation\ndata: {told}\n\n"
            last = told
        else:
            yield ": still there\n\n"
        if operation.state.is_over or await request.is_disconnected():
            return
        await asyncio.sleep(_BEAT)
        now = asyncio.get_running_loop().time()
        if now - checked >= _RECHECKED:
            if not await is_valid_still(request, at.who, operation.order.queue):
                return
            checked = now
        operation = await at.cached_operation(operation.id)


@router.post("/operations/{id}/pause", dependencies=ONCE, summary="Pause it", operation_id="pause", tags=["operations"])
async def pause(at: CurrentService, id: Named) -> m.OperationOut:
    return operation_out(at, await at.steer(id, ControlRequest(OperationState.PAUSED)))


@router.post(
    "/operations/{id}/resume", dependencies=ONCE, summary="Go on with it", operation_id="resume", tags=["operations"]
)
async def resume(at: CurrentService, id: Named) -> m.OperationOut:
    return operation_out(at, await at.steer(id, ControlRequest(OperationState.RUNNING)))


@router.post(
    "/operations/{id}/cancel",
    dependencies=ONCE,
    summary="End it; what was moved stays moved",
    operation_id="cancel",
    tags=["operations"],
)
async def cancel(at: CurrentService, id: Named) -> m.OperationOut:
    return operation_out(at, await at.steer(id, ControlRequest(OperationState.CANCELLING)))


@router.patch("/operations/{id}", summary="Faster, or slower", operation_id="steer", tags=["operations"])
async def steer(at: CurrentService, id: Named, asked: r.SteerIn) -> m.OperationOut:
    return operation_out(at, await at.steer(id, ControlRequest(rate=asked.rate)))
