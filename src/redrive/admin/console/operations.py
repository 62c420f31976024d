"""What runs and what ran: how far it is, what became of its messages, and how to steer it."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Query, Request
from pydantic import ValidationError
from starlette.responses import Response

from redrive.admin.access.roles import Permission
from redrive.admin.api import request_schemas as r
from redrive.admin.api.cursors import read_cursor, write_cursor
from redrive.admin.api.dependencies import CurrentService
from redrive.admin.api.parameters import Cursor, Named
from redrive.admin.authorized_service import AuthorizedService
from redrive.admin.console.forms import Mistakes, form_of, text_of
from redrive.admin.console.rendering import page, see_other
from redrive.admin.console.urls import links_of
from redrive.errors import ConfigurationError
from redrive.operations.operation import ControlRequest, ItemOutcome, OperationState

router = APIRouter()

_PAGE = 50
_WISHES = {
    "pause": ControlRequest(OperationState.PAUSED),
    "resume": ControlRequest(OperationState.RUNNING),
    "cancel": ControlRequest(OperationState.CANCELLING),
}


@router.get("/operations")
async def operations(
    request: Request,
    at: CurrentService,
    queue: Annotated[str, Query(max_length=300)] = "",
    state: Annotated[str, Query(max_length=40)] = "",
    cursor: Cursor = None,
) -> Response:
    before = read_cursor("operations", cursor) if cursor is not None else None
    states = [OperationState(state)] if state in list(OperationState) else None
    found = await at.operations(queue or None, states, limit=_PAGE, before=before)
    return page(
        request,
        "operations.html",
        at,
        here="operations",
        operations=found.items,
        interrupted={one.id for one in found.items if at.service.is_interrupted(one)},
        queue=queue,
        state=state,
        states=list(OperationState),
        cursor=cursor,
        next=write_cursor("operations", found.next) if found.next is not None else None,
    )


@router.get("/operations/{id}")
async def operation(
    request: Request, at: CurrentService, id: Named, outcome: ItemOutcome | None = None, cursor: Cursor = None
) -> Response:
    return await _page(request, at, id, outcome, cursor)


async def _page(
    request: Request,
    at: AuthorizedService,
    id: str,
    outcome: ItemOutcome | None = None,
    cursor: str | None = None,
    mistakes: Mistakes | None = None,
    typed_rate: str | None = None,
) -> Response:
    found = await at.operation(id)
    wanted_rate = (await at.control_request(found)).rate
    rate = found.order.rate if wanted_rate is None else wanted_rate
    after = int(read_cursor("items", cursor)) if cursor is not None else None
    counts = found.counts
    many = {
        ItemOutcome.FAILED: counts.failed,
        ItemOutcome.RETURNED: counts.returned,
        ItemOutcome.SKIPPED: counts.skipped,
        ItemOutcome.MOVED: counts.moved,
        **({ItemOutcome.POSSIBLY_DUPLICATED: counts.possibly_duplicated} if counts.possibly_duplicated else {}),
    }
    chosen = outcome or next((one for one, count in many.items() if count), ItemOutcome.MOVED)
    items = await at.items(found.id, chosen, limit=_PAGE, after=after)
    return page(
        request,
        "operation.html",
        at,
        status=422 if mistakes else 200,
        here="operations",
        operation=found,
        order=found.order,
        counts=counts,
        interrupted=at.service.is_interrupted(found),
        may_steer=at.may(Permission.STEER, found.order.queue) and not found.state.is_over,
        outcome=chosen,
        many=many,
        items=items.items,
        next=write_cursor("items", items.next) if items.next is not None else None,
        mistakes=mistakes or Mistakes(),
        wanted_rate=wanted_rate,
        shown_rate=f"{rate:g}" if rate is not None else "",
        typed_rate=typed_rate,
        address=links_of(request)("operations", id),  # also of the page that answers a form
    )


@router.post("/operations/{id}/{wish}")
async def steer(request: Request, at: CurrentService, id: Named, wish: str) -> Response:
    """Whichever button is pressed, a rate that was changed is set, too."""
    typed, mistakes = await form_of(request), Mistakes()
    rate = text_of(typed, "rate")
    try:
        if wish != "rate" and wish not in _WISHES:
            raise ConfigurationError(f"{wish}: an operation is paused, resumed, cancelled, or gets another rate")
        wanted = _WISHES.get(wish, ControlRequest())
        if wish == "rate" or rate != text_of(typed, "shown_rate"):
            wanted = replace(wanted, rate=r.SteerIn.model_validate({"rate": rate}).rate)
        await at.steer(id, wanted)
    except (ValidationError, ConfigurationError) as error:
        mistakes.add(error)
        return await _page(request, at, id, mistakes=mistakes, typed_rate=rate)
    return see_other(links_of(request)("operations", id, said="heard"))
