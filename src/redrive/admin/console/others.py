"""Outbox, topology, doctor and audit."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from redrive.admin.api.cursors import read_cursor, write_cursor
from redrive.admin.api.dependencies import CurrentService
from redrive.admin.api.rest import Cursor, RowId
from redrive.admin.authorized_queries import TopologyView
from redrive.admin.console.formatting import counted
from redrive.admin.console.rendering import page, seen, theme_of
from redrive.admin.console.urls import links_of
from redrive.topology.definitions import Definitions
from redrive.topology.draw import FORMATS, Node, NodeKind, picture_of
from redrive.topology.plan import Action
from redrive.topology.snapshot import BrokerSnapshot

router = APIRouter()

_MOST_ROWS = 100
_PAGE = 100

# A picture brings its own style, which the policy of the pages would not allow when it is opened by itself.
_PICTURE_POLICY = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"
_BY_THE_SYSTEM = "@media (prefers-color-scheme: dark)"
_BY_CHOICE = {"auto": _BY_THE_SYSTEM, "light": "@media not all", "dark": "@media all"}


# Outbox -------------------------------------------------------------------------------------------------


@router.get("/outbox")
async def outbox(request: Request, at: CurrentService) -> Response:
    found = await at.outbox(_MOST_ROWS)
    return page(request, "outbox.html", at, here="outbox", outbox=found)


@router.post("/outbox/retry")
async def retry_all(request: Request, at: CurrentService) -> Response:
    await at.retry_outbox(None)
    return seen(links_of(request)("outbox", said="all-retried"))


@router.post("/outbox/{id}/retry")
async def retry(request: Request, at: CurrentService, id: RowId) -> Response:
    count = await at.retry_outbox(id)
    return seen(links_of(request)("outbox", said="retried" if count else "row-gone"))


@router.get("/outbox/{id}/discard")
async def discard_form(request: Request, at: CurrentService, id: RowId) -> Response:
    rows = (await at.outbox(_MOST_ROWS)).rows
    row = next((row for row in rows if row["id"] == id), None)
    if row is None:
        return seen(links_of(request)("outbox", said="row-gone"))
    return page(request, "discard_row.html", at, here="outbox", row=row)


@router.post("/outbox/{id}/discard")
async def discard(request: Request, at: CurrentService, id: RowId) -> Response:
    count = await at.discard_outbox(id)
    return seen(links_of(request)("outbox", said="row-discarded" if count else "row-gone"))


# Topology -----------------------------------------------------------------------------------------------


@router.get("/topology")
async def topology(request: Request, at: CurrentService) -> Response:
    found = await at.topology()
    held, state = found.snapshot.definitions, found.snapshot.state
    return page(
        request,
        "topology.html",
        at,
        here="topology",
        snapshot=found.snapshot,
        has_wishes=bool(at.office.target.topology.queues),
        drift=[step for step in found.drift.steps if step.action in (Action.CREATE, Action.CONFLICT)],
        extra=found.drift.count(Action.EXTRA),
        queues=[(queue, state(queue.name)) for queue in held.queues],
        exchanges=held.exchanges,
        bindings=held.bindings,
    )


@router.get("/topology.svg")
async def topology_picture(request: Request, at: CurrentService) -> Response:
    found = await at.topology()
    drawn = _drawn(found).replace(_BY_THE_SYSTEM, _BY_CHOICE[theme_of(request)])
    headers = {"Content-Security-Policy": _PICTURE_POLICY}
    return Response(drawn, media_type="image/svg+xml", headers=headers)


def _drawn(found: TopologyView) -> str:
    """What the broker holds, with how much is in it; over plain AMQP, what is wanted of it."""
    held = found.snapshot.definitions if found.snapshot.complete else found.wanted
    picture = picture_of(_without_unused(held))
    return FORMATS["svg"](replace(picture, nodes=tuple(_with_depths(picture.nodes, found.snapshot))))


def _without_unused(held: Definitions) -> Definitions:
    """Every virtual host has exchanges that nobody asked for."""
    used = {binding.source for binding in held.bindings} | {queue.dead_letter_exchange for queue in held.queues}
    exchanges = [one for one in held.exchanges if not one.name.startswith("amq.") or one.name in used]
    return Definitions.of(exchanges, held.queues, held.bindings)


def _with_depths(nodes: Iterable[Node], snapshot: BrokerSnapshot) -> Iterable[Node]:
    for node in nodes:
        depth = snapshot.state(node.name).messages if node.kind not in _EXCHANGES else None
        if depth:
            what = "dead" if node.kind is NodeKind.DEAD else "waiting"
            yield replace(node, caption=f"{node.caption} · {depth} {what}")
        else:
            yield node


_EXCHANGES = frozenset((NodeKind.EXCHANGE, NodeKind.DELAYS, NodeKind.MISSING))


# Doctor and audit ---------------------------------------------------------------------------------------


@router.get("/doctor")
async def doctor(request: Request, at: CurrentService) -> Response:
    findings = await at.doctor()
    return page(request, "doctor.html", at, here="doctor", findings=findings, counted=counted)


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
