"""The REST API: the routes of all resources, and the permission that each needs.

See `schemas` and `request_schemas` for what it returns and takes, `problems` for its errors.
"""

from __future__ import annotations

from collections.abc import Mapping

from fastapi import Request
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute

from redrive.admin.access.roles import Permission
from redrive.admin.api import actions, audit, dead_letters, export, operations, outbox, topology
from redrive.admin.api.routers import resource_router

router = resource_router()

# The permission that each operation needs; the OpenAPI document has its role (`x-role`). `AuthorizedService` checks it.
ACTS: Mapping[str, Permission] = {
    **dict.fromkeys(("queues", "queue", "messages", "message", "groups"), Permission.LOOK),
    **dict.fromkeys(("operations", "operation", "items", "events"), Permission.LOOK),
    **dict.fromkeys(("outbox", "topology", "doctor", "me"), Permission.LOOK),
    **dict.fromkeys(("peek_messages", "peek_message", "peek_groups"), Permission.SPEND),
    "plan": Permission.PLAN,
    **dict.fromkeys(("redrive", "move"), Permission.REDRIVE),
    **dict.fromkeys(("pause", "resume", "cancel", "steer"), Permission.STEER),
    "retry_outbox": Permission.RETRY_OUTBOX,
    "audit": Permission.READ_AUDIT,
    "export": Permission.EXPORT,
    "edit": Permission.EDIT,
    "discard": Permission.DISCARD,
    "import": Permission.IMPORT,
    "discard_outbox": Permission.DISCARD_OUTBOX,
}

# The longer paths first: a name may contain anything.
for _part in (
    dead_letters.router,
    export.router,
    actions.router,
    dead_letters.queue_router,
    operations.router,
    outbox.router,
    topology.router,
    audit.router,
):
    router.routes.extend(_part.routes)


@router.get("/openapi.json", include_in_schema=False)
async def openapi(request: Request) -> JSONResponse:
    return JSONResponse(request.app.openapi())


for _route in router.routes:
    if isinstance(_route, APIRoute) and _route.operation_id is not None:
        _route.openapi_extra = {**(_route.openapi_extra or {}), "x-role": str(ACTS[_route.operation_id].needs)}
