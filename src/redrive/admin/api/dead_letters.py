"""Routes of dead-letter queues: their messages and failure groups."""

from __future__ import annotations

from redrive.admin.access.roles import Permission
from redrive.admin.api import request_schemas as r
from redrive.admin.api import schemas as m
from redrive.admin.api.cursors import read_cursor, write_cursor
from redrive.admin.api.dependencies import CurrentService
from redrive.admin.api.parameters import ONCE, Cursor, Fresh, GroupedBy, Limit, Named, Reveal, Words
from redrive.admin.api.routers import resource_router
from redrive.admin.cache import Cached
from redrive.operations.browse import GroupBy, MessagePage

router = resource_router()
queue_router = resource_router()  # included last: the name of a queue may contain anything, the other paths too


@router.get("/dlq/queues", summary="Dead-letter queues", operation_id="queues", tags=["dead letters"])
async def queues(at: CurrentService) -> m.QueuesOut:
    return m.QueuesOut(items=[m.QueueOut.of(view) for view in await at.queues()])


@router.get(
    "/dlq/queues/{queue:path}/messages",
    summary="Messages, oldest first; they stay where they are",
    operation_id="messages",
    tags=["dead letters"],
)
async def messages(
    at: CurrentService,
    queue: Named,
    limit: Limit = 20,
    cursor: Cursor = None,
    q: Words = "",
    fresh: Fresh = False,
) -> m.LettersOut:
    return _letters_out(await at.messages(queue, q, limit=limit, start=_start(cursor), fresh=fresh))


@router.post(
    "/dlq/queues/{queue:path}/messages",
    dependencies=ONCE,
    summary="The same at a risk: although it costs deliveries, or of a queue that is not a dead-letter queue",
    operation_id="peek_messages",
    tags=["dead letters"],
)
async def peek_messages(at: CurrentService, queue: Named, asked: r.PeekIn) -> m.LettersOut:
    await at.need(Permission.SPEND, queue)
    start = _start(asked.cursor)
    return _letters_out(
        await at.messages(queue, asked.q, limit=asked.limit, start=start, fresh=True, risk=asked.risk())
    )


def _start(cursor: str | None) -> int:
    return int(read_cursor("messages", cursor)) if cursor is not None else 1


def _letters_out(seen: Cached[MessagePage]) -> m.LettersOut:
    page = seen.value
    return m.LettersOut(
        items=[m.LetterOut.mirror(dead_letter) for dead_letter in page.dead_letters],
        next_cursor=write_cursor("messages", page.next) if page.next is not None else None,
        depth=page.depth,
        scanned=page.scanned,
        seen_at=seen.at,
    )


@router.get(
    "/dlq/queues/{queue:path}/messages/{id}", summary="One message", operation_id="message", tags=["dead letters"]
)
async def message(
    at: CurrentService, queue: Named, id: Named, reveal: Reveal = False, fresh: Fresh = False
) -> m.MessageOut:
    return m.MessageOut.whole(await at.message(queue, id, reveal=reveal, fresh=fresh))


@router.post(
    "/dlq/queues/{queue:path}/messages/{id}",
    dependencies=ONCE,
    summary="The same at a risk, without its secrets",
    operation_id="peek_message",
    tags=["dead letters"],
)
async def peek_message(at: CurrentService, queue: Named, id: Named, asked: r.RiskIn) -> m.MessageOut:
    await at.need(Permission.SPEND, queue)
    return m.MessageOut.whole(await at.message(queue, id, fresh=True, risk=asked.risk()))


@router.get(
    "/dlq/queues/{queue:path}/groups",
    summary="What failed in the same way, over the whole queue",
    operation_id="groups",
    tags=["dead letters"],
)
async def groups(
    at: CurrentService,
    queue: Named,
    by: GroupedBy = GroupBy.FINGERPRINT,
    q: Words = "",
    fresh: Fresh = False,
) -> m.GroupsOut:
    return m.GroupsOut.of(await at.groups(queue, by, q, fresh=fresh))


@router.post(
    "/dlq/queues/{queue:path}/groups",
    dependencies=ONCE,
    summary="The same at a risk",
    operation_id="peek_groups",
    tags=["dead letters"],
)
async def peek_groups(at: CurrentService, queue: Named, asked: r.PeekGroupsIn) -> m.GroupsOut:
    await at.need(Permission.SPEND, queue)
    return m.GroupsOut.of(await at.groups(queue, asked.by, asked.q, fresh=True, risk=asked.risk()))


@queue_router.get("/dlq/queues/{queue:path}", summary="One queue", operation_id="queue", tags=["dead letters"])
async def queue_(at: CurrentService, queue: Named) -> m.QueueOut:
    return m.QueueOut.of(await at.queue(queue))
