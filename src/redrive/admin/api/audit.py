"""Routes of the audit log and of the principal that is signed in."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query

from redrive.admin.access.roles import Permission
from redrive.admin.api import schemas as m
from redrive.admin.api.cursors import read_cursor, write_cursor
from redrive.admin.api.dependencies import CurrentService
from redrive.admin.api.parameters import Cursor, Limit
from redrive.admin.api.routers import resource_router

router = resource_router()


@router.get("/audit", summary="Who did what, newest first", operation_id="audit", tags=["audit"])
async def audit(
    at: CurrentService,
    queue: Annotated[str | None, Query(max_length=300, description="Only of this queue.")] = None,
    by: Annotated[str | None, Query(max_length=300, description="Only what this person did.")] = None,
    action: Annotated[str | None, Query(max_length=100, description="Only this: `re-drive`, `discard`.")] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> m.AuditsOut:
    before = int(read_cursor("audit", cursor)) if cursor is not None else None
    found = await at.audit(queue, by, action, limit=limit, before=before)
    return m.AuditsOut(
        items=[m.AuditOut.of(number, entry) for number, entry in found.items],
        next_cursor=write_cursor("audit", found.next) if found.next is not None else None,
    )


@router.get("/me", summary="Who is asking", operation_id="me", tags=["audit"])
async def me(at: CurrentService) -> m.MeOut:
    who = at.who
    return m.MeOut(
        name=who.name,
        role=who.role.value,
        queues=list(who.queues),
        acts=[str(act) for act in Permission if who.may(act)],
    )
