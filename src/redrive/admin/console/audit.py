"""The audit page: what operators did, newest first."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from redrive.admin.api.cursors import read_cursor, write_cursor
from redrive.admin.api.dependencies import CurrentService
from redrive.admin.api.parameters import Cursor
from redrive.admin.console.rendering import page

router = APIRouter()

_PAGE = 100


@router.get("/audit")
async def audit(
    request: Request,
    at: CurrentService,
    queue: Annotated[str, Query(max_length=300)] = "",
    by: Annotated[str, Query(max_length=300)] = "",
    action: Annotated[str, Query(max_length=100)] = "",
    cursor: Cursor = None,
) -> Response:
    before = int(read_cursor("audit", cursor)) if cursor is not None else None
    found = await at.audit(queue or None, by or None, action or None, limit=_PAGE, before=before)
    return page(
        request,
        "audit.html",
        at,
        here="audit",
        entries=found.items,
        queue=queue,
        by=by,
        action=action,
        cursor=cursor,
        next=write_cursor("audit", found.next) if found.next is not None else None,
    )
