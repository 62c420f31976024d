"""Routes that act on dead letters: plan, re-drive, move, discard and edit."""

from __future__ import annotations

import json
from dataclasses import replace

from fastapi import Request, Response

from redrive.admin.api import request_schemas as r
from redrive.admin.api import schemas as m
from redrive.admin.api.dependencies import CurrentService
from redrive.admin.api.parameters import ONCE, Named, Prefer
from redrive.admin.api.responses import accepted_response, json_response
from redrive.admin.api.routers import resource_router
from redrive.deadletters.edits import Edit
from redrive.errors import ConfigurationError
from redrive.operations.operation import Destination, OperationKind, OperationRequest, Selection
from redrive.operations.transforms import ByHand, Transform, from_patch

router = resource_router()


@router.post(
    "/dlq/queues/{queue:path}/re-drive/plan",
    dependencies=ONCE,
    summary="What a re-drive would do; changes nothing",
    operation_id="plan",
    tags=["dead letters"],
)
async def plan(at: CurrentService, queue: Named, asked: r.OrderIn) -> m.PlanOut:
    return m.PlanOut.of(await at.plan(asked.order(queue, at.redrive_to(queue))))


@router.post(
    "/dlq/queues/{queue:path}/re-drive",
    dependencies=ONCE,
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
        return json_response(m.PlanOut.of(await at.plan(asked.order(queue, at.redrive_to(queue)))))
    if asked.plan_token is None:
        return await accepted_response(at, request, await at.redrive(asked.order(queue, at.redrive_to(queue))), prefer)

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

    return await accepted_response(at, request, await at.carry_out(queue, asked.plan_token, changes=changed), prefer)


@router.post(
    "/dlq/queues/{queue:path}/move",
    dependencies=ONCE,
    summary="Move messages to another dead-letter queue, with their failure records",
    operation_id="move",
    tags=["dead letters"],
    status_code=202,
    response_model=m.OperationOut,
    responses={200: {"model": m.OperationOut | m.PlanOut, "description": "It is over; or, for a dry run, the plan."}},
)
async def move(at: CurrentService, request: Request, queue: Named, asked: r.MoveIn, prefer: Prefer = None) -> Response:
    if asked.dry_run:
        return json_response(m.PlanOut.of_plan((await at.plan(asked.order(queue))).plan))
    return await accepted_response(at, request, await at.move(asked.order(queue)), prefer)


@router.post(
    "/dlq/queues/{queue:path}/discard",
    dependencies=ONCE,
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
    return await accepted_response(at, request, await at.discard(queue, asked.order(queue), asked.confirm), prefer)


@router.post(
    "/dlq/queues/{queue:path}/messages/{id}/edit-and-re-drive",
    dependencies=ONCE,
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
        Selection(ids=(found.dead_letter.id,), limit=1),
        Destination.parse(asked.to) if asked.to is not None else at.redrive_to(queue),
        reason=asked.reason,
    )
    transform = _transform(asked)
    if asked.dry_run:
        seen = await at.preview(order, transform, force=asked.force)
        return json_response(m.PreviewOut(items=[m.DifferenceOut(id=one.id, difference=one.text) for one in seen]))
    return await accepted_response(at, request, await at.edit(order, transform, force=asked.force), prefer)


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
