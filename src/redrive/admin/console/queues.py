"""A queue: what failed in the same way first, then its messages, then one of them with its whole story."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from redrive.admin.access.roles import Permission
from redrive.admin.api import request_schemas as r
from redrive.admin.api import schemas as m
from redrive.admin.api.cursors import read_cursor, write_cursor
from redrive.admin.api.dependencies import CurrentService
from redrive.admin.api.parameters import Cursor, Fresh, Named, Reveal, Words
from redrive.admin.authorized_service import AuthorizedService
from redrive.admin.cache import Cached
from redrive.admin.console.forms import Mistakes, Typed, form_of, text_of
from redrive.admin.console.rendering import page, see_other
from redrive.admin.console.urls import links_of
from redrive.deadletters.query_syntax import Term
from redrive.deadletters.timeline import explain
from redrive.errors import NotDeadLetterQueue, OperationConflict, PeekUnsafe, SearchError
from redrive.operations.browse import OTHERS, GroupBy, MessageDetail, MessagePage
from redrive.operations.peek_allowance import Risk

router = APIRouter()

_PAGE = 50
_MOST_OF_A_HEADER = 4000  # characters
_MOST_SHOWN = 200  # groups


@dataclass(frozen=True, slots=True)
class NotPeeked:
    """Why nothing of a queue is shown."""

    why: str
    fix: str = ""
    risk: str = ""  # the field by which an operator accepts it: spend, any_queue


def _risk_of(typed: Typed) -> Risk:
    """What an operator accepts, by a form that is posted: an address never costs anything."""
    return Risk("spend" in typed, "any_queue" in typed, text_of(typed, "reason"))


# A message ----------------------------------------------------------------------------------------------


@router.get("/queues/{queue:path}/messages/{id}")
async def message(
    request: Request,
    at: CurrentService,
    queue: Named,
    id: Named,
    reveal: Reveal = False,
    fresh: Fresh = False,
) -> Response:
    try:
        found = await at.message(queue, id, reveal=reveal, fresh=fresh)
    except (PeekUnsafe, NotDeadLetterQueue) as error:
        return await _not_looked_page(request, at, queue, id, error)
    if fresh:
        return see_other(links_of(request)("queues", queue, "messages", id, said="looked"))
    told, letter = m.MessageOut.whole(found), found.value.dead_letter
    return page(
        request,
        "message.html",
        at,
        here="overview",
        queue=queue,
        seen=found,
        letter=letter,
        told=told,
        timeline=explain(letter),
        header_lines=[(name, _single_text(value)) for name, value in sorted(told.headers.items())],
        facts=list(_facts(found.value)),
        command=_command(queue, letter.id),
        curl=_curl(request, queue, letter.id),
    )


async def _not_looked_page(
    request: Request, at: AuthorizedService, queue: str, id: str, error: PeekUnsafe | NotDeadLetterQueue
) -> Response:
    return page(
        request,
        "not_looked.html",
        at,
        status=409,
        here="overview",
        queue=queue,
        id=id,
        view=await at.queue(queue),
        title="Looking could lose messages" if isinstance(error, PeekUnsafe) else "This is not a dead-letter queue",
        not_looked=_why_not(error),
    )


@router.post("/queues/{queue:path}/messages/{id}")
async def message_at_a_risk(request: Request, at: CurrentService, queue: Named, id: Named) -> Response:
    await at.need(Permission.SPEND, queue)
    await at.message(queue, id, fresh=True, risk=_risk_of(await form_of(request)))
    return see_other(links_of(request)("queues", queue, "messages", id, said="looked"))


def _single_text(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=1, default=str)
    return text if len(text) <= _MOST_OF_A_HEADER else f"{text[:_MOST_OF_A_HEADER]}… ({len(text)} characters)"


def _facts(found: MessageDetail) -> Iterator[tuple[str, str]]:
    letter = found.dead_letter
    route = f"{letter.exchange or '(default exchange)'} · {letter.routing_key}" if letter.routing_key else ""
    told = {
        "Failed in": letter.source,
        "Published to": route,
        "Type": letter.type,
        "Message id": letter.message_id,
        "Correlation id": letter.correlation_id,
        "Parked by": " on ".join(filter(None, (letter.app, letter.host))),
        "Position": str(letter.position),
    }
    yield from ((name, value) for name, value in told.items() if value)


def _command(queue: str, id: str) -> str:
    return f"redrive dlq redrive {shlex.quote(queue)} --id {shlex.quote(id)}"


def _curl(request: Request, queue: str, id: str) -> str:
    links = links_of(request)
    address = f"{request.url.scheme}://{request.url.netloc}{links('admin', 'dlq', 'queues', queue, 're-drive')}"
    body = shlex.quote(json.dumps({"ids": [id]}))
    return (
        f"curl -X POST {shlex.quote(address)} \\\n"
        f'  -H "Authorization: Bearer $REDRIVE_KEY" \\\n'
        f"  -H 'Content-Type: application/json' \\\n"
        f"  -d {body}"
    )


# Messages -----------------------------------------------------------------------------------------------


@router.get("/queues/{queue:path}/messages")
async def messages(
    request: Request,
    at: CurrentService,
    queue: Named,
    q: Words = "",
    limit: Annotated[int, Query(ge=1, le=r.MOST)] = _PAGE,
    cursor: Cursor = None,
    fresh: Fresh = False,
) -> Response:
    start = int(read_cursor("messages", cursor)) if cursor is not None else 1
    mistakes, not_looked, found = Mistakes(), None, None
    try:
        found = await at.messages(queue, q, limit=limit, start=start, fresh=fresh)
    except SearchError as error:
        mistakes.add(error)
    except (PeekUnsafe, NotDeadLetterQueue, OperationConflict) as error:
        not_looked = _why_not(error)
    if fresh and found is not None:
        return see_other(links_of(request)("queues", queue, "messages", q=q, said="looked"))
    return page(
        request,
        "messages.html",
        at,
        status=422 if mistakes else 200,
        here="overview",
        queue=queue,
        view=await at.queue(queue),
        q=q,
        seen=found,
        mistakes=mistakes,
        not_looked=not_looked,
        limit=limit,
        start=start,
        next=_next(found),
    )


@router.post("/queues/{queue:path}/messages")
async def messages_at_a_risk(request: Request, at: CurrentService, queue: Named) -> Response:
    await at.need(Permission.SPEND, queue)
    typed = await form_of(request)
    q = text_of(typed, "q")
    await at.messages(queue, q, limit=_PAGE, fresh=True, risk=_risk_of(typed))
    return see_other(links_of(request)("queues", queue, "messages", q=q, said="looked"))


def _next(found: Cached[MessagePage] | None) -> str | None:
    if found is None or found.value.next is None:
        return None
    return write_cursor("messages", found.value.next)


def _why_not(error: PeekUnsafe | NotDeadLetterQueue | OperationConflict) -> NotPeeked:
    if isinstance(error, OperationConflict):
        return NotPeeked(str(error))
    if isinstance(error, NotDeadLetterQueue):
        return NotPeeked(error.why, risk="any_queue")
    return NotPeeked(error.why, error.lasting_fix, "spend" if error.may_be_spent else "")


# A queue ------------------------------------------------------------------------------------------------


@router.get("/queues/{queue:path}")
async def queue_(
    request: Request,
    at: CurrentService,
    queue: Named,
    by: GroupBy = GroupBy.FINGERPRINT,
    fresh: Fresh = False,
) -> Response:
    not_looked, found = None, None
    try:
        found = await at.groups(queue, by, fresh=fresh)
    except (PeekUnsafe, NotDeadLetterQueue, OperationConflict) as error:
        not_looked = _why_not(error)
    if fresh and found is not None and not found.why_old:
        return see_other(
            links_of(request)("queues", queue, by=by if by is not GroupBy.FINGERPRINT else "", said="looked")
        )
    groups = found.value.groups if found is not None else ()
    return page(
        request,
        "queue.html",
        at,
        here="overview",
        queue=queue,
        view=await at.queue(queue),
        by=by,
        ways=list(GroupBy),
        seen=found,
        groups=groups[:_MOST_SHOWN],
        more=max(0, len(groups) - _MOST_SHOWN),
        largest=max((group.count for group in groups), default=1),
        selecting=_group_fields,
        not_looked=not_looked,
    )


@router.post("/queues/{queue:path}")
async def queue_at_a_risk(request: Request, at: CurrentService, queue: Named) -> Response:
    await at.need(Permission.SPEND, queue)
    await at.groups(queue, fresh=True, risk=_risk_of(await form_of(request)))
    return see_other(links_of(request)("queues", queue, said="looked"))


def _group_fields(by: GroupBy, key: str) -> dict[str, str]:
    """Return the fields that select the messages of a group: its fingerprint, or a query; none for the rest."""
    if not key or key == OTHERS:
        return {}
    if by is GroupBy.FINGERPRINT:
        return {"group": key}
    return {"q": str(Term(by, key, "="))}
