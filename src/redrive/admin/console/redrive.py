"""Re-drive, move or discard messages: first what that would do, then a button that says exactly that.

Each has one form. Its first button asks for it (GET): it is planned, every time, so that a plan is an address. Its last
button (POST) carries the token of the plan that is shown, and acts on that plan, if the fields still ask for the same
messages (`AuthorizedService.carry_out_as_shown`). If they do not, nothing is done, and the page shows the new plan
first. The rate, the reason and the name that confirms a discard are taken as they are sent; the rest is the plan's.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from fastapi import APIRouter, Request
from pydantic import ValidationError
from starlette.responses import Response

from redrive.admin.access.roles import Permission
from redrive.admin.api import request_schemas as r
from redrive.admin.api.dependencies import CurrentService
from redrive.admin.api.parameters import Named
from redrive.admin.authorized_service import AuthorizedService, Planned
from redrive.admin.console.forms import Mistakes, Typed, form_of, or_none, text_of
from redrive.admin.console.rendering import NOTICES, page, see_other
from redrive.admin.console.urls import links_of
from redrive.errors import ConfigurationError, PeekUnsafe, PlanDiffers, PlanExpired, TargetUnroutable
from redrive.operations.operation import Destination, OperationRequest

router = APIRouter()

RAMP = "1,5,20,100"
_STOP = "10"
_SELECTING = ("q", "group", "limit")
_FIELDS = (*_SELECTING, "to", "ramp", "stop", "step_wait", "most_redrives", "rate", "reason")
_NAMES = {"stop_if": "stop"}  # of the API, as they are called in the form


@dataclass(slots=True)
class RedriveForm:
    """As it was typed."""

    text: dict[str, str]
    ids: tuple[str, ...] = ()
    canary: bool = True
    spend: bool = False  # only by a form that is posted: an address costs nothing
    first: bool = False  # it was not filled in yet
    mistakes: Mistakes = field(default_factory=Mistakes)

    @classmethod
    def of(cls, typed: Typed | Mapping[str, str], ids: list[str], to: str = "") -> RedriveForm:
        """Return the form with what was typed. `to`: the destination if none was."""
        first = "form" not in typed  # then a canary is what one should begin with
        text = {name: text_of(typed, name) for name in _FIELDS}
        if first:
            text |= {"most_redrives": "3"}
        text |= {"to": text["to"] or to, "ramp": text["ramp"] or RAMP, "stop": text["stop"] or _STOP}
        chosen = tuple(dict.fromkeys(filter(None, ids)))
        return cls(text, chosen, not chosen if first else "canary" in typed, first=first)

    @classmethod
    def from_post(cls, typed: Typed, to: str = "") -> RedriveForm:
        form = cls.of(typed, typed.getlist("ids"), to)
        form.spend = "spend" in typed
        return form

    def __getitem__(self, name: str) -> str:
        return self.text[name]

    @property
    def fields(self) -> dict[str, Any]:
        """By which it is asked for again."""
        said: dict[str, Any] = {name: value for name, value in self.text.items() if value}
        return said | {"ids": list(self.ids), "canary": self.canary, "form": "1"}

    def order(self, queue: str) -> OperationRequest | None:
        """None: it cannot be meant so."""
        try:
            return r.OrderIn.model_validate(self._values()).order(queue, Destination())
        except (ValidationError, ConfigurationError) as error:
            self.mistakes.add(error, _NAMES)
            return None

    def discard_request(self, queue: str) -> OperationRequest | None:
        try:
            asked = {name: value for name, value in self._values().items() if name in r.SelectionIn.model_fields}
            return r.DiscardIn.model_validate(asked | {"confirm": queue}).order(queue)
        except (ValidationError, ConfigurationError) as error:
            self.mistakes.add(error, _NAMES)
            return None

    def move_request(self, queue: str) -> OperationRequest | None:
        """None: it cannot be meant so, or its destination is not given yet."""
        if not self.text["to"]:
            if not self.first:
                self.mistakes.fields["to"] = "Enter the name of another dead-letter queue."
            return None
        try:
            asked = {name: value for name, value in self._values().items() if name in r.MoveIn.model_fields}
            return r.MoveIn.model_validate(asked).order(queue)
        except (ValidationError, ConfigurationError) as error:
            self.mistakes.add(error, _NAMES)
            return None

    def _values(self) -> dict[str, Any]:
        text = self.text
        ramp = [part.strip() for part in text["ramp"].split(",")] if self.canary else None
        return {
            "limit": or_none(text["limit"]),
            "ids": list(self.ids),
            "q": text["q"],
            "group": text["group"],
            "reason": text["reason"],
            "spend_deliveries": self.spend,
            "to": text["to"],
            "rate": or_none(text["rate"]),
            "ramp": ramp,
            "stop_if": {"returned_pct": text["stop"]},
            "step_wait": or_none(text["step_wait"]) if self.canary else None,
            "most_redrives": or_none(text["most_redrives"]),
        }


# The address of a page, and the function that shows it.
Shown: TypeAlias = "tuple[str, Callable[[Request, AuthorizedService, str, RedriveForm, str], Awaitable[Response]]]"


# Re-drive -----------------------------------------------------------------------------------------------


@router.get("/queues/{queue:path}/re-drive")
async def plan(request: Request, at: CurrentService, queue: Named) -> Response:
    await at.need(Permission.PLAN, queue)
    form = RedriveForm.of(request.query_params, request.query_params.getlist("ids"), str(at.redrive_to(queue)))
    return await _plan_page(request, at, queue, form)


async def _plan_page(
    request: Request, at: AuthorizedService, queue: str, form: RedriveForm, notice: str = ""
) -> Response:
    order = form.order(queue)
    return await _page(request, at, queue, form, "redrive.html", order if not form.mistakes else None, notice=notice)


async def _page(
    request: Request,
    at: AuthorizedService,
    queue: str,
    form: RedriveForm,
    template: str,
    order: OperationRequest | None,
    **what: Any,
) -> Response:
    """Return the page of a form, with the plan of its order if there is one."""
    planned = await _plan(at, order, form) if order is not None else None
    return page(
        request,
        template,
        at,
        status=422 if form.mistakes else 200,
        here="overview",
        queue=queue,
        view=await at.queue(queue),
        form=form,
        mistakes=form.mistakes,
        planned=planned,
        plan=planned.plan if planned is not None else None,
        **what,
    )


async def _plan(at: AuthorizedService, order: OperationRequest, form: RedriveForm) -> Planned | None:
    try:
        return await at.plan(order)
    except ConfigurationError as error:
        form.mistakes.add(error, _NAMES)
    except PeekUnsafe as error:
        if not error.may_be_spent:
            raise
        form.mistakes.fields["spend"] = error.why
    return None


@router.post("/queues/{queue:path}/re-drive")
async def redrive(request: Request, at: CurrentService, queue: Named) -> Response:
    await at.need(Permission.REDRIVE, queue)
    typed = await form_of(request)
    form = RedriveForm.from_post(typed, str(at.redrive_to(queue)))
    order = form.order(queue)
    if order is None:
        return await _plan_page(request, at, queue, form)
    try:
        return await _carry_out(request, at, form, order, text_of(typed, "token"), ("re-drive", _plan_page))
    except TargetUnroutable as error:
        form.mistakes.fields["to"] = str(error)
        return await _plan_page(request, at, queue, form)


async def _carry_out(
    request: Request, at: AuthorizedService, form: RedriveForm, order: OperationRequest, token: str, shown: Shown
) -> Response:
    """Carry out the plan that was shown, or show the plan of what the form asks for now, and say why."""
    to, (address, show) = links_of(request), shown
    try:
        operation = await at.carry_out_as_shown(order, token)
    except PlanExpired as error:
        if error.operation:
            return see_other(to("operations", error.operation, said="once"))
        if form.spend:  # a plan that costs deliveries has no address
            return await show(request, at, order.queue, form, NOTICES[why_not(error)] if token else "")
        return see_other(to("queues", order.queue, address, **form.fields, said=why_not(error)))
    return see_other(to("operations", operation.id))


def why_not(error: PlanExpired) -> str:
    """Return the key of the notice that says why a plan was not carried out."""
    if isinstance(error, PlanDiffers):
        return "queue-changed" if error.queue_changed else "plan-changed"
    return "plan-expired"


# Move -------------------------------------------------------------------------------------------------


@router.get("/queues/{queue:path}/move")
async def move_plan(request: Request, at: CurrentService, queue: Named) -> Response:
    await at.need(Permission.PLAN, queue)
    return await _move_page(
        request, at, queue, RedriveForm.of(request.query_params, request.query_params.getlist("ids"))
    )


async def _move_page(
    request: Request, at: AuthorizedService, queue: str, form: RedriveForm, notice: str = ""
) -> Response:
    shown = {
        "destination": form["to"],
        "others": [one.name for one in await at.queues(calm=True) if one.name != queue],
    }
    return await _page(request, at, queue, form, "move.html", form.move_request(queue), notice=notice, **shown)


@router.post("/queues/{queue:path}/move")
async def move(request: Request, at: CurrentService, queue: Named) -> Response:
    await at.need(Permission.REDRIVE, queue)
    typed = await form_of(request)
    form = RedriveForm.from_post(typed)
    order = form.move_request(queue)
    if order is None:
        return await _move_page(request, at, queue, form)
    try:
        return await _carry_out(request, at, form, order, text_of(typed, "token"), ("move", _move_page))
    except (ConfigurationError, TargetUnroutable) as error:
        form.mistakes.fields["to"] = str(error)
        return await _move_page(request, at, queue, form)


# Discard ------------------------------------------------------------------------------------------------


@router.get("/queues/{queue:path}/discard")
async def discard_plan(request: Request, at: CurrentService, queue: Named) -> Response:
    await at.need(Permission.DISCARD, queue)
    form = RedriveForm.of(request.query_params, request.query_params.getlist("ids"))
    return await _discard_page(request, at, queue, form)


async def _discard_page(
    request: Request, at: AuthorizedService, queue: str, form: RedriveForm, notice: str = "", typed: str = ""
) -> Response:
    order = form.discard_request(queue)
    return await _page(request, at, queue, form, "discard.html", order, notice=notice, typed=typed)


@router.post("/queues/{queue:path}/discard")
async def discard(request: Request, at: CurrentService, queue: Named) -> Response:
    await at.need(Permission.DISCARD, queue)
    typed = await form_of(request)
    form = RedriveForm.from_post(typed)
    order, token, confirm = form.discard_request(queue), text_of(typed, "token"), text_of(typed, "confirm")
    if order is not None and at.is_plan_of(order, token) and confirm != queue:
        form.mistakes.fields["confirm"] = f"Nothing was discarded. Type {queue} to say that you mean it."
    if order is None or form.mistakes:
        return await _discard_page(request, at, queue, form, typed=confirm)
    return await _carry_out(request, at, form, order, token, ("discard", _discard_page))
