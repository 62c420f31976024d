"""The REST API: see `models` for what it takes and gives, `problems` for what it says when something is wrong."""

from __future__ import annotations

import asyncio
import json
import logging
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import aclosing
from dataclasses import replace
from itertools import islice
from typing import IO, Annotated, Any, cast
from urllib.parse import quote, unquote

from fastapi import APIRouter, Depends, Header, Path, Query, Request, Response, Security
from fastapi.responses import JSONResponse, StreamingResponse
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer
from pydantic import AfterValidator

from redrive.admin.access.roles import Permission
from redrive.admin.api import request_schemas as r
from redrive.admin.api import schemas as m
from redrive.admin.api.cursors import read_cursor, write_cursor
from redrive.admin.api.dependencies import CurrentService, is_valid_still
from redrive.admin.api.idempotency import IdempotentRoute
from redrive.admin.api.problems import MEDIA_TYPE
from redrive.admin.authorized_service import AuthorizedService
from redrive.admin.cache import Cached
from redrive.deadletters.edits import Edit
from redrive.errors import ConfigurationError, NotFound
from redrive.operations.archive import lines_of
from redrive.operations.browse import GroupBy, MessagePage
from redrive.operations.export_format import Exported, decode_letter
from redrive.operations.operation import (
    ControlRequest,
    Destination,
    ItemOutcome,
    Operation,
    OperationKind,
    OperationRequest,
    OperationState,
    Selection,
)
from redrive.operations.transforms import ByHand, Transform, from_patch

log = logging.getLogger("redrive.admin")

_LONGEST_WAIT = 30.0  # seconds that somebody may prefer to wait
_BEAT = 1.0  # seconds between two looks at an operation that is watched
_RECHECKED = 5.0  # seconds after which it is checked that whoever watches it may still do so
_IN_MEMORY = 8 * 1024 * 1024  # bytes of an export; more is on the disk
_PART = 64 * 1024
_MOST_IMPORTED = 1024 * 1024 * 1024  # bytes in one request
_LONGEST_LINE = 32 * 1024 * 1024  # bytes of one line in it; the command takes any message that RabbitMQ takes
_CHECKED_AT_ONCE = 100  # lines

_PROBLEM = {"model": m.ProblemOut, "content": {MEDIA_TYPE: {}}}
_PROBLEMS: dict[int | str, dict[str, Any]] = {
    401: {**_PROBLEM, "description": "Nobody, or nobody who is known."},
    403: {**_PROBLEM, "description": "Not allowed."},
    404: {**_PROBLEM, "description": "There is no such thing."},
    408: {**_PROBLEM, "description": "The rest of the request did not come."},
    409: {**_PROBLEM, "description": "Not now: an operation, an unsafe look, a plan that is too old."},
    413: {**_PROBLEM, "description": "More than any request needs; says how much would be taken."},
    422: {**_PROBLEM, "description": "It makes no sense; says what would."},
    429: {**_PROBLEM, "description": "Too many failed attempts."},
    502: {**_PROBLEM, "description": "The broker does not let this server do that."},
    503: {**_PROBLEM, "description": "The broker or the database is away, or the audit cannot be written."},
}

# For the document: `principal_of` reads what was sent.
_BEARER = HTTPBearer(auto_error=False, description="A token (JWT), or an API key.")

router = APIRouter(prefix="/admin", route_class=IdempotentRoute, responses=_PROBLEMS, dependencies=[Security(_BEARER)])

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

# Paths come as they were sent: a name's own / is not one of the path's.
Named = Annotated[str, Path(max_length=2000, description="Percent-encoded."), AfterValidator(unquote)]
Limit = Annotated[int, Query(ge=1, le=r.MOST, description="The number of items on a page, at most.")]
Cursor = Annotated[str | None, Query(max_length=200, description="`next_cursor` of the page before.")]
Words = Annotated[str, Query(max_length=10_000, description="Which messages: `error:Timeout since:2h`.")]
GroupedBy = Annotated[GroupBy, Query(description="What makes a group.")]
Became = Annotated[ItemOutcome | None, Query(description="Only those of which this became.")]
Fresh = Annotated[bool, Query(description="Look again, instead of showing what was seen half a minute ago.")]
Everything = Annotated[bool, Query(description="With what belongs to other applications.")]
Reveal = Annotated[bool, Query(description="With what looks like a secret. Goes into the audit.")]
Prefer = Annotated[str | None, Header(description="`wait=10`: answer when it is over, or after so many seconds.")]


def _key(
    idempotency_key: Annotated[str | None, Header(max_length=255, description="Sent again, it is done once.")] = None,
) -> None:
    """For the document: `IdempotentRoute` reads it."""


_ONCE = [Depends(_key)]


# Queues -------------------------------------------------------------------------------------------------
#
# The longer paths first: a name may hold anything.


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
    return _letters(await at.messages(queue, q, limit=limit, start=_start(cursor), fresh=fresh))


@router.post(
    "/dlq/queues/{queue:path}/messages",
    dependencies=_ONCE,
    summary="The same at a risk: although it costs deliveries, or of a queue that is not a dead-letter queue",
    operation_id="peek_messages",
    tags=["dead letters"],
)
async def peek_messages(at: CurrentService, queue: Named, asked: r.PeekIn) -> m.LettersOut:
    await at.need(Permission.SPEND, queue)
    start = _start(asked.cursor)
    return _letters(await at.messages(queue, asked.q, limit=asked.limit, start=start, fresh=True, risk=asked.risk()))


def _start(cursor: str | None) -> int:
    return int(read_cursor("messages", cursor)) if cursor is not None else 1


def _letters(seen: Cached[MessagePage]) -> m.LettersOut:
    page = seen.value
    return m.LettersOut(
        items=[m.LetterOut.mirror(letter) for letter in page.letters],
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
    dependencies=_ONCE,
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
    dependencies=_ONCE,
    summary="The same at a risk",
    operation_id="peek_groups",
    tags=["dead letters"],
)
async def peek_groups(at: CurrentService, queue: Named, asked: r.PeekGroupsIn) -> m.GroupsOut:
    await at.need(Permission.SPEND, queue)
    return m.GroupsOut.of(await at.groups(queue, asked.by, asked.q, fresh=True, risk=asked.risk()))


@router.get(
    "/dlq/queues/{queue:path}/export",
    summary="Messages as lines of JSON; they stay where they are",
    operation_id="export",
    tags=["dead letters"],
    response_class=StreamingResponse,
    responses={200: {"content": {"application/x-ndjson": {}}, "description": "A line for each message."}},
)
async def export(at: CurrentService, queue: Named, q: Words = "", reveal: Reveal = False) -> StreamingResponse:
    file = await _spooled(at.export(queue, q, reveal=reveal))
    name = quote(f"{queue}.ndjson", safe="")
    headers = {"Content-Disposition": f"attachment; filename*=UTF-8''{name}"}
    return StreamingResponse(_parts(file), media_type="application/x-ndjson", headers=headers)


async def _spooled(lines: AsyncGenerator[bytes, None]) -> IO[bytes]:
    """All of it, before any is sent: who reads slowly would keep the queue's messages from everybody else, and what
    goes wrong half-way is a problem, not half a file.
    """
    file = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY)  # noqa: SIM115 - it is closed when all is sent
    try:
        async with aclosing(lines):
            async for line in lines:
                file.write(line)
        file.seek(0)
    except BaseException:
        file.close()
        raise
    return cast(IO[bytes], file)


def _parts(file: IO[bytes]) -> Iterator[bytes]:
    with file:
        while part := file.read(_PART):
            yield part


@router.post(
    "/dlq/queues/{queue:path}/import",
    dependencies=_ONCE,
    summary="Put exported messages into a queue",
    operation_id="import",
    tags=["dead letters"],
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {"application/x-ndjson": {"schema": {"type": "string"}}},
            "description": "Lines as `export` writes them, with `reveal=true`.",
        }
    },
)
async def import_(at: CurrentService, request: Request, queue: Named) -> m.ImportedOut:
    await at.need_importing(queue)
    with tempfile.TemporaryFile() as file:
        size = 0
        async for chunk in request.stream():
            size += len(chunk)
            if size > _MOST_IMPORTED:
                raise ConfigurationError("more than a gigabyte: send it in parts, or use `redrive dlq import`")
            await asyncio.to_thread(file.write, chunk)
        await check_lines(file)
        return m.ImportedOut(lines=await at.restore(queue, decoded(file), "the admin API"))


async def check_lines(file: IO[bytes]) -> None:
    """Decode the whole file before anything of it is published: in threads, and in parts, since others need them."""
    file.seek(0)
    lines = decoded(file)
    while await asyncio.to_thread(_exhaust, lines, _CHECKED_AT_ONCE):
        pass
    file.seek(0)


def _exhaust(lines: Iterator[tuple[int, Exported]], most: int) -> int:
    return sum(1 for _ in islice(lines, most))


def decoded(file: IO[bytes]) -> Iterator[tuple[int, Exported]]:
    return ((number, decode_letter(line, number)) for number, line in lines_of(file, _LONGEST_LINE))


# Re-driving ---------------------------------------------------------------------------------------------


@router.post(
    "/dlq/queues/{queue:path}/re-drive/plan",
    dependencies=_ONCE,
    summary="What a re-drive would do; changes nothing",
    operation_id="plan",
    tags=["dead letters"],
)
async def plan(at: CurrentService, queue: Named, asked: r.OrderIn) -> m.PlanOut:
    return m.PlanOut.of(await at.plan(asked.order(queue, at.redrive_to(queue))))


@router.post(
    "/dlq/queues/{queue:path}/re-drive",
    dependencies=_ONCE,
    summary="Send messages back to work",
    operation_id="redrive",
    tags=["dead letters"],
    status_code=202,
    response_model=m.OperationOut,
    responses={200: {"model": m.OperationOut | m.PlanOut, "description": "It is over; or, for a dry run, the plan."}},
)
async def redrive(
    at: CurrentService,
    request: Request,
    queue: Named,
    asked: r.RedriveIn,
    prefer: Prefer = None,
) -> Response:
    if asked.dry_run:
        return _json(m.PlanOut.of(await at.plan(asked.order(queue, at.redrive_to(queue)))))
    if asked.plan_token is None:
        return await _accepted(at, request, await at.redrive(asked.order(queue, at.redrive_to(queue))), prefer)

    def changed(order: OperationRequest) -> OperationRequest:
        said = asked.model_fields_set
        if others := said - {"plan_token", "rate", "reason"}:
            raise ConfigurationError(
                f"{', '.join(sorted(others))}: the plan says that already; plan again to change it"
            )
        return replace(
            order,
            rate=asked.rate if "rate" in said else order.rate,
            reason=asked.reason if "reason" in said else order.reason,
        )

    return await _accepted(at, request, await at.carry_out(queue, asked.plan_token, changes=changed), prefer)


@router.post(
    "/dlq/queues/{queue:path}/move",
    dependencies=_ONCE,
    summary="Move messages to another dead-letter queue, with their failure records",
    operation_id="move",
    tags=["dead letters"],
    status_code=202,
    response_model=m.OperationOut,
    responses={200: {"model": m.OperationOut | m.PlanOut, "description": "It is over; or, for a dry run, the plan."}},
)
async def move(at: CurrentService, request: Request, queue: Named, asked: r.MoveIn, prefer: Prefer = None) -> Response:
    if asked.dry_run:
        return _json(m.PlanOut.of_plan((await at.plan(asked.order(queue))).plan))
    return await _accepted(at, request, await at.move(asked.order(queue)), prefer)


@router.post(
    "/dlq/queues/{queue:path}/discard",
    dependencies=_ONCE,
    summary="Take messages out for good; they are archived first",
    operation_id="discard",
    tags=["dead letters"],
    status_code=202,
    response_model=m.OperationOut,
    responses={200: {"model": m.OperationOut, "description": "It is over."}},
)
async def discard(
    at: CurrentService,
    request: Request,
    queue: Named,
    asked: r.DiscardIn,
    prefer: Prefer = None,
) -> Response:
    return await _accepted(at, request, await at.discard(queue, asked.order(queue), asked.confirm), prefer)


@router.post(
    "/dlq/queues/{queue:path}/messages/{id}/edit-and-re-drive",
    dependencies=_ONCE,
    summary="Change a message and send it back to work; the original is archived",
    operation_id="edit",
    tags=["dead letters"],
    status_code=202,
    response_model=m.OperationOut,
    responses={200: {"model": m.OperationOut | m.PreviewOut, "description": "It is over; or what would change."}},
)
async def edit(
    at: CurrentService,
    request: Request,
    queue: Named,
    id: Named,
    asked: r.EditIn,
    prefer: Prefer = None,
) -> Response:
    await at.need_editing(queue)
    found = (await at.message(queue, id)).value
    order = OperationRequest(
        OperationKind.REDRIVE,
        queue,
        Selection(ids=(found.letter.id,), limit=1),
        Destination.parse(asked.to) if asked.to is not None else at.redrive_to(queue),
        reason=asked.reason,
    )
    transform = _transform(asked)
    if asked.dry_run:
        seen = await at.preview(order, transform, force=asked.force)
        return _json(m.PreviewOut(items=[m.DifferenceOut(id=one.id, difference=one.text) for one in seen]))
    return await _accepted(at, request, await at.edit(order, transform, force=asked.force), prefer)


def _transform(asked: r.EditIn) -> Transform:
    if asked.patch is not None:
        if asked.body is not None or asked.set_headers or asked.remove_headers:
            raise ConfigurationError("a patch changes the body, and goes with nothing else")
        return from_patch(json.dumps(asked.patch))
    change = Edit(
        asked.body.encode() if asked.body is not None else None, dict(asked.set_headers), tuple(asked.remove_headers)
    )
    if change.is_nothing:
        raise ConfigurationError("nothing would change: say body, patch, set_headers or remove_headers")
    return ByHand(change)


async def _accepted(at: AuthorizedService, request: Request, operation: Operation, prefer: str | None) -> Response:
    """Where it can be watched; or how it ended, for who prefers to wait."""
    wait = _wait_of(prefer)
    if wait:
        operation = await _until_over(at, operation, wait)
    # Not by `url_for`: in an application that this one is mounted in, it looks among that one's routes.
    location = f"{quote(request.scope.get('root_path', ''))}{router.prefix}/operations/{operation.id}"
    status = 200 if wait and operation.state.is_over else 202
    response = _json(_told(at, operation), status, {"Location": location})
    if wait:
        response.headers["Preference-Applied"] = f"wait={wait:g}"
    return response


def _wait_of(prefer: str | None) -> float:
    for part in (prefer or "").replace(";", ",").split(","):
        name, _, value = part.strip().partition("=")
        if name.lower() == "wait" and value.isdecimal():
            return min(float(value), _LONGEST_WAIT)
    return 0.0


async def _until_over(at: AuthorizedService, operation: Operation, wait: float) -> Operation:
    """Or as it was last seen: it is under way, also if it cannot be looked at. Who hears less asks for it once more."""
    try:
        async with asyncio.timeout(wait):
            while not operation.state.is_over:
                await asyncio.sleep(0.05)
                operation = await at.operation(operation.id)
    except TimeoutError:
        pass
    except Exception as error:
        log.warning("operation %s is under way, and cannot be looked at: %s", operation.id, error)
    return operation


def _told(at: AuthorizedService, operation: Operation) -> m.OperationOut:
    return m.OperationOut.of(operation, interrupted=at.service.is_interrupted(operation))


def _json(told: m.ResponseModel, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(told.model_dump_json(), status, headers, media_type="application/json")


@router.get("/dlq/queues/{queue:path}", summary="One queue", operation_id="queue", tags=["dead letters"])
async def queue_(at: CurrentService, queue: Named) -> m.QueueOut:
    return m.QueueOut.of(await at.queue(queue))


# Operations ---------------------------------------------------------------------------------------------


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
        items=[_told(at, one) for one in found.items],
        next_cursor=write_cursor("operations", found.next) if found.next is not None else None,
    )


@router.get("/operations/{id}", summary="One operation", operation_id="operation", tags=["operations"])
async def operation(at: CurrentService, id: Named) -> m.OperationOut:
    return _told(at, await at.operation(id))


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
        told = _told(at, operation).model_dump_json()
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
        operation = await at.watched(operation.id)


@router.post(
    "/operations/{id}/pause", dependencies=_ONCE, summary="Pause it", operation_id="pause", tags=["operations"]
)
async def pause(at: CurrentService, id: Named) -> m.OperationOut:
    return _told(at, await at.steer(id, ControlRequest(OperationState.PAUSED)))


@router.post(
    "/operations/{id}/resume", dependencies=_ONCE, summary="Go on with it", operation_id="resume", tags=["operations"]
)
async def resume(at: CurrentService, id: Named) -> m.OperationOut:
    return _told(at, await at.steer(id, ControlRequest(OperationState.RUNNING)))


@router.post(
    "/operations/{id}/cancel",
    dependencies=_ONCE,
    summary="End it; what was moved stays moved",
    operation_id="cancel",
    tags=["operations"],
)
async def cancel(at: CurrentService, id: Named) -> m.OperationOut:
    return _told(at, await at.steer(id, ControlRequest(OperationState.CANCELLING)))


@router.patch("/operations/{id}", summary="Faster, or slower", operation_id="steer", tags=["operations"])
async def steer(at: CurrentService, id: Named, asked: r.SteerIn) -> m.OperationOut:
    return _told(at, await at.steer(id, ControlRequest(rate=asked.rate)))


# All else -----------------------------------------------------------------------------------------------


@router.get("/outbox", summary="What waits to be published", operation_id="outbox", tags=["outbox"])
async def outbox(at: CurrentService, limit: Limit = 50) -> m.OutboxOut:
    return m.OutboxOut.of(await at.outbox(limit))


RowId = Annotated[int, Path(ge=1, le=2**63 - 1, description="The number of the row.")]


@router.post(
    "/outbox/{id}/retry",
    dependencies=_ONCE,
    summary="Publish a parked row again",
    operation_id="retry_outbox",
    tags=["outbox"],
)
async def retry_outbox(at: CurrentService, id: RowId) -> m.RowsOut:
    return _rows(id, await at.retry_outbox(id))


@router.post(
    "/outbox/{id}/discard",
    dependencies=_ONCE,
    summary="Delete a parked row for good",
    operation_id="discard_outbox",
    tags=["outbox"],
)
async def discard_outbox(at: CurrentService, id: RowId) -> m.RowsOut:
    return _rows(id, await at.discard_outbox(id))


def _rows(id: int, count: int) -> m.RowsOut:
    if not count:
        raise NotFound(404, f"there is no parked row {id} in the outbox")
    return m.RowsOut(rows=count)


@router.get("/topology", summary="What the broker holds, and how it differs", operation_id="topology", tags=["broker"])
async def topology(at: CurrentService, all: Everything = False) -> m.TopologyOut:
    return m.TopologyOut.of(await at.topology(), everything=all)


@router.get("/doctor", summary="What is wrong with the broker", operation_id="doctor", tags=["broker"])
async def doctor(at: CurrentService) -> m.DoctorOut:
    return m.DoctorOut(items=[m.FindingOut.mirror(one) for one in await at.doctor()])


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


@router.get("/openapi.json", include_in_schema=False)
async def openapi(request: Request) -> JSONResponse:
    return JSONResponse(request.app.openapi())


for _route in router.routes:
    if isinstance(_route, APIRoute) and _route.operation_id is not None:
        _route.openapi_extra = {"x-role": str(ACTS[_route.operation_id].needs)}
