"""What is dead, where, since when, and why; and what is being done about it.

Who opens the page has the queues looked at, as long as that is free and does not take long. A page that asks again by
itself does so `calm`: depths are read, and for the rest it shows what was seen before. Nothing looks by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from fastapi import APIRouter, Request
from starlette.responses import Response

from redrive.admin.api.dependencies import CurrentService
from redrive.admin.authorized_queries import OutboxView
from redrive.admin.authorized_service import AuthorizedService
from redrive.admin.cache import Cached
from redrive.admin.console.rendering import page
from redrive.admin.console.sparkline import Sparkline, trend_of
from redrive.admin.service import QueueView
from redrive.errors import RedriveError
from redrive.operations.browse import FailureGroup, Grouping
from redrive.operations.operation import OperationState
from redrive.topology.doctor import Finding, Severity
from redrive.topology.peek_safety import PeekSafety

router = APIRouter()

_DEEPEST = 20  # queues that are gone through for their commonest error
_MOST_MESSAGES = 5_000  # in one of them
_WITHIN = 2.0  # seconds that the page waits for that; whoever comes next sees it
_RUNNING = frozenset(state for state in OperationState if not state.is_over)
_LATELY = 5  # operations


@dataclass(frozen=True, slots=True)
class QueueLine:
    """One queue."""

    view: QueueView
    top: FailureGroup | None
    groups: int
    looked_at: int  # messages, when the error was found
    why_not: str  # there is no top error
    trend: Sparkline | None

    @property
    def dead(self) -> int:
        return dead_count(self.view)


@dataclass(frozen=True, slots=True)
class Totals:
    dead: int
    queues: int  # in which something is dead
    oldest: datetime | None


@router.get("/")
async def overview(request: Request, at: CurrentService, calm: bool = False) -> Response:
    views = await at.queues(calm=calm)
    dead = sorted(filter(_matters, views), key=lambda view: (-dead_count(view), view.name))
    lines = await asyncio.gather(*(_line(at, view, calm or place >= _DEEPEST) for place, view in enumerate(dead)))
    operations = (await at.operations(limit=20)).items
    running = (await at.operations(states=_RUNNING, limit=20)).items
    return page(
        request,
        "overview.html",
        at,
        here="overview",
        lines=lines,
        empty=[view for view in views if not _matters(view)],
        totals=_totals(dead),
        running=running,
        lately=[one for one in operations if one.state.is_over][:_LATELY],
        interrupted={one.id for one in running if at.service.is_interrupted(one)},
        outbox=await _outbox(at),
        worst=_worst(await _findings(at)),
        calm=calm,
    )


def _matters(view: QueueView) -> bool:
    """An operation holds messages, which the queue does not count meanwhile."""
    return view.depth > 0 or view.operation is not None


async def _line(at: AuthorizedService, view: QueueView, calm: bool) -> QueueLine:
    seen, why_not = _known_groups(at, view), ""
    if not calm:
        seen, why_not = await _query_groups(at, view)
    groups = seen.value.groups if seen is not None else ()
    looked_at = seen.value.matched if seen is not None else 0
    return QueueLine(view, groups[0] if groups else None, len(groups), looked_at, why_not, _trend(at, view))


def _known_groups(at: AuthorizedService, view: QueueView) -> Cached[Grouping] | None:
    return at.groups_seen_before(view.name)


async def _query_groups(at: AuthorizedService, view: QueueView) -> tuple[Cached[Grouping] | None, str]:
    if view.operation is not None:
        return _known_groups(at, view), "an operation works on it"
    if view.peek_safety is not PeekSafety.SAFE:
        return _known_groups(at, view), "not looked into: that would count"
    if view.depth > _MOST_MESSAGES:
        return _known_groups(at, view), "so many that the overview does not go through them"
    try:
        async with asyncio.timeout(_WITHIN):
            return await at.groups(view.name), ""
    except TimeoutError:
        return _known_groups(at, view), "still being looked at"
    except RedriveError as error:
        return _known_groups(at, view), str(error)


def _trend(at: AuthorizedService, view: QueueView) -> Sparkline | None:
    trends = at.context.trends
    return trend_of((*trends.of(view.name), dead_count(view)), at.context.sampled_every)


def _totals(dead: Sequence[QueueView]) -> Totals:
    oldest = min((view.oldest for view in dead if view.oldest is not None), default=None)
    return Totals(sum(map(dead_count, dead)), len(dead), oldest)


def dead_count(view: QueueView) -> int:
    """How many are dead: those that wait, or those that an operation has not moved yet."""
    running = view.operation
    if running is None or running.state.is_over:
        return view.depth
    return max(view.depth, (running.scope or 0) - running.counts.moved)


async def _outbox(at: AuthorizedService) -> OutboxView | None:
    if at.context.outbox is None or not at.who.is_unrestricted:
        return None
    return await at.outbox(limit=1)


async def _findings(at: AuthorizedService) -> tuple[Finding, ...]:
    if not at.who.is_unrestricted:
        return ()
    try:
        return await at.doctor()
    except RedriveError:  # the doctor's own page says why
        return ()


def _worst(findings: Sequence[Finding]) -> tuple[Finding, int] | None:
    """The first is the worst. What is merely good to know is no news here."""
    bad = [finding for finding in findings if finding.severity is not Severity.INFO]
    return (bad[0], len(bad)) if bad else None
