"""The topology page: what the broker holds and what the application wants, with a picture."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from fastapi import APIRouter, Request
from starlette.responses import Response

from redrive.admin.api.dependencies import CurrentService
from redrive.admin.authorized_queries import TopologyView
from redrive.admin.console.rendering import page, theme_of
from redrive.topology.definitions import Definitions
from redrive.topology.draw import FORMATS, Node, NodeKind, picture_of
from redrive.topology.plan import Action
from redrive.topology.snapshot import BrokerSnapshot

router = APIRouter()

# A picture brings its own style, which the policy of the pages would not allow when it is opened by itself.
_PICTURE_POLICY = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"
_BY_THE_SYSTEM = "@media (prefers-color-scheme: dark)"
_BY_CHOICE = {"auto": _BY_THE_SYSTEM, "light": "@media not all", "dark": "@media all"}


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
        has_wishes=bool(at.context.target.topology.queues),
        drift=[step for step in found.drift.steps if step.action in (Action.CREATE, Action.CONFLICT)],
        extra=found.drift.count(Action.EXTRA),
        queues=[(queue, state(queue.name)) for queue in held.queues],
        exchanges=held.exchanges,
        bindings=held.bindings,
    )


@router.get("/topology.svg")
async def topology_picture(request: Request, at: CurrentService) -> Response:
    found = await at.topology()
    drawn = _draw(found).replace(_BY_THE_SYSTEM, _BY_CHOICE[theme_of(request)])
    headers = {"Content-Security-Policy": _PICTURE_POLICY}
    return Response(drawn, media_type="image/svg+xml", headers=headers)


def _draw(found: TopologyView) -> str:
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
