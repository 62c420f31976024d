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
from redrive.topology.plan import Action, own_part
from redrive.topology.snapshot import BrokerSnapshot

router = APIRouter()

_DRIFT = (Action.CREATE, Action.CONFLICT, Action.MISSING)

# A picture brings its own style, which the policy of the pages would not allow when it is opened by itself.
_PICTURE_POLICY = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"
_BY_THE_SYSTEM = "@media (prefers-color-scheme: dark)"
_BY_CHOICE = {"auto": _BY_THE_SYSTEM, "light": "@media not all", "dark": "@media all"}


@router.get("/topology")
async def topology(request: Request, at: CurrentService, all: bool = False) -> Response:
    """`all`: with what belongs to other applications."""
    found = await at.topology()
    held, state = _held(found, everything=all), found.snapshot.state
    whole = found.snapshot.definitions
    return page(
        request,
        "topology.html",
        at,
        here="topology",
        snapshot=found.snapshot,
        has_wishes=bool(found.wanted),
        everything=all,
        others=len(whole.queues) - len(held.queues),
        drift=[step for step in found.drift.steps if step.action in _DRIFT],
        taken=found.drift.steps_by(Action.EXISTING),
        extra=len(found.drift.steps_by(Action.EXTRA, Action.OTHER)),
        queues=[(queue, state(queue.name)) for queue in held.queues],
        exchanges=held.exchanges,
        bindings=held.bindings,
    )


@router.get("/topology.svg")
async def topology_picture(request: Request, at: CurrentService, all: bool = False) -> Response:
    found = await at.topology()
    drawn = _draw(found, everything=all).replace(_BY_THE_SYSTEM, _BY_CHOICE[theme_of(request)])
    headers = {"Content-Security-Policy": _PICTURE_POLICY}
    return Response(drawn, media_type="image/svg+xml", headers=headers)


def _held(found: TopologyView, *, everything: bool) -> Definitions:
    """What the broker holds of the application; without an application, or if asked for, everything."""
    held = found.snapshot.definitions
    return own_part(held, found.wanted) if found.wanted and not everything else held


def _draw(found: TopologyView, *, everything: bool) -> str:
    """What the broker holds, with how much is in it; over plain AMQP, what is wanted of it."""
    held = _held(found, everything=everything) if found.snapshot.complete else found.wanted
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
