"""Re-drive, move or discard messages: first what that would do, then a button that says exactly that.

One form is both: asked for (GET) it is planned, every time, so that a plan is an address; sent (POST) it is carried
out, if it still says what was planned. Whoever changed it after that sees the new plan first. How fast, and why, may be
said when saying yes; the rest is the plan's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlencode

from fastapi import APIRouter, Request
from pydantic import ValidationError
from starlette.responses import Response

from redrive.admin.access.roles import Act
from redrive.admin.desk import Desk, Planned
from redrive.admin.errors import PlanExpired, TargetUnroutable
from redrive.admin.web import models as m
from redrive.admin.web.console.forms import Mistakes, Typed, form_of, or_none, text_of
from redrive.admin.web.console.links import links_of
from redrive.admin.web.console.pages import page, seen
from redrive.admin.web.identity import At
from redrive.admin.web.rest import Named
from redrive.errors import ConfigurationError, PeekUnsafe
from redrive.recovery.history import read_moment
from redrive.runtime.dlq.operation import Order

router = APIRouter()

RAMP = "1,5,20,100"
_STOP = "10"
_OWN = "own"
_SELECTING = ("q", "group", "limit")
_FIELDS = (*_SELECTING, "to", "ramp", "stop", "step_wait", "most_redrives", "rate", "reason")
_SAID_LATER = frozenset(("rate", "reason"))
_NAMES = {"stop_if": "stop", "destination": "to", "wait": "step_wait"}  # of the API, as they are called in the form


@dataclass(slots=True)
class Form:
    """As it was typed."""

    text: dict[str, str]
    ids: tuple[str, ...] = ()
    canary: bool = True
    spend: bool = False  # only by a form that is posted: an address costs nothing
    mistakes: Mistakes = field(default_factory=Mistakes)

    @classmethod
    def of(cls, typed: Typed | Mapping[str, str], ids: list[str]) -> Form:
        first = "form" not in typed  # nobody filled it in yet: a canary is what one should begin with
        text = {name: text_of(typed, name) for name in _FIELDS}
        if first:
            text |= {"most_redrives": "3"}
        text |= {"to": text["to"] or _OWN, "ramp": text["ramp"] or RAMP, "stop": text["stop"] or _STOP}
        chosen = tuple(dict.fromkeys(filter(None, ids)))
        return cls(text, chosen, not chosen if first else "canary" in typed)

    @classmethod
    def posted(cls, typed: Typed) -> Form:
        form = cls.of(typed, typed.getlist("ids"))
        form.spend = "spend" in typed
        return form

    def __getitem__(self, name: str) -> str:
        return self.text[name]

    @property
    def fields(self) -> dict[str, Any]:
        """By which it is asked for again."""
        said: dict[str, Any] = {name: value for name, value in self.text.items() if value}
        return said | {"ids": list(self.ids), "canary": self.canary, "form": "1"}

    @property
    def planned_as(self) -> str:
        """All that a plan depends on."""
        said = {name: value for name, value in self.text.items() if name not in _SAID_LATER}
        return urlencode(said | {"ids": self.ids, "canary": self.canary, "spend": self.spend}, doseq=True)

    def order(self, queue: str) -> Order | None:
        """None: it cannot be meant so."""
        try:
            return m.OrderIn.model_validate(self._asked()).order(queue)
        except (ValidationError, ConfigurationError) as error:
            self.mistakes.add(error, _NAMES)
            return None

    def discarding(self, queue: str) -> Order | None:
        try:
            asked = {name: value for name, value in self._asked().items() if name in m.SelectionIn.model_fields}
            return m.DiscardIn.model_validate(asked | {"confirm": queue}).order(queue)
        except (ValidationError, ConfigurationError) as error:
            self.mistakes.add(error, _NAMES)
            return None

    def moving(self, queue: str) -> Order | None:
        """None: it cannot be meant so, or its destination is not given yet."""
        if self.text["to"] == _OWN:
            return None
        try:
            asked = {name: value for name, value in self._asked().items() if name in m.MoveIn.model_fields}
            return m.MoveIn.model_validate(asked).order(queue)
        except (ValidationError, ConfigurationError) as error:
            self.mistakes.add(error, _NAMES)
            return None

    def _asked(self) -> dict[str, Any]:
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


# Re-drive -----------------------------------------------------------------------------------------------


@router.get("/queues/{queue:path}/re-drive")
async def plan(request: Request, at: At, queue: Named) -> Response:
    await at.need(Act.PLAN, queue)
    form = Form.of(request.query_params, request.query_params.getlist("ids"))
    if "token" in request.query_params:  # of the plan before; an address is no place for it
        return seen(links_of(request)("queues", queue, "re-drive", **form.fields))
    return await _planned_page(request, at, queue, form)


async def _planned_page(request: Request, at: Desk, queue: str, form: Form) -> Response:
    order = form.order(queue)
    planned = await _planned(at, order, form) if order is not None and not form.mistakes else None
    return page(
        request,
        "redrive.html",
        at,
        status=422 if form.mistakes else 200,
        here="overview",
        queue=queue,
        view=await at.queue(queue),
        form=form,
        mistakes=form.mistakes,
        planned=planned,
        plan=planned.plan if planned is not None else None,
    )


async def _planned(at: Desk, order: Order, form: Form) -> Planned | None:
    try:
        return await at.plan(order)
    except ConfigurationError as error:
        form.mistakes.add(error, _NAMES)
    except PeekUnsafe as error:
        if "--spend-deliveries" not in error.fix:
            raise
        form.mistakes.fields["spend"] = error.why
    return None


@router.post("/queues/{queue:path}/re-drive")
async def redrive(request: Request, at: At, queue: Named) -> Response:
    await at.need(Act.REDRIVE, queue)
    typed, to = await form_of(request), links_of(request)
    form = Form.posted(typed)
    if form.planned_as != typed.get("planned_as"):
        if form.spend:
            return await _planned_page(request, at, queue, form)
        return seen(to("queues", queue, "re-drive", **form.fields, said="plan-changed"))
    order = form.order(queue)
    if order is None:
        return await _planned_page(request, at, queue, form)

    def changes(kept: Order) -> Order:
        return replace(kept, rate=order.rate, reason=order.reason)

    try:
        operation = await at.carry_out(queue, typed.get("token", ""), changes=changes)
    except PlanExpired:
        return seen(to("queues", queue, "re-drive", **form.fields, said="plan-expired"))
    except TargetUnroutable as error:
        form.mistakes.fields["to"] = str(error)
        return await _planned_page(request, at, queue, form)
    return seen(to("operations", operation.id))


# Move -------------------------------------------------------------------------------------------------


@router.get("/queues/{queue:path}/move")
async def move_plan(request: Request, at: At, queue: Named) -> Response:
    await at.need(Act.PLAN, queue)
    return await _move_page(request, at, queue, Form.of(request.query_params, request.query_params.getlist("ids")))


async def _move_page(request: Request, at: Desk, queue: str, form: Form) -> Response:
    order = form.moving(queue)
    planned = await _planned(at, order, form) if order is not None else None
    return page(
        request,
        "move.html",
        at,
        status=422 if form.mistakes else 200,
        here="overview",
        queue=queue,
        view=await at.queue(queue),
        form=form,
        destination="" if form["to"] == _OWN else form["to"],
        others=[one.name for one in await at.queues(calm=True) if one.name != queue],
        mistakes=form.mistakes,
        plan=planned.plan if planned is not None else None,
    )


@router.post("/queues/{queue:path}/move")
async def move(request: Request, at: At, queue: Named) -> Response:
    """No more than were shown."""
    await at.need(Act.REDRIVE, queue)
    typed, to = await form_of(request), links_of(request)
    form = Form.posted(typed)
    order, shown = form.moving(queue), text_of(typed, "shown")
    if order is None or not shown.isdecimal() or not int(shown):
        if form.spend:
            return await _move_page(request, at, queue, form)
        return seen(to("queues", queue, "move", **form.fields, said="plan-changed"))
    try:
        operation = await at.move(_as_shown(order, typed))
    except (ConfigurationError, TargetUnroutable) as error:
        form.mistakes.fields["to"] = str(error)
        return await _move_page(request, at, queue, form)
    return seen(to("operations", operation.id))


def _as_shown(order: Order, typed: Typed) -> Order:
    """No more than were shown: what died since then is at the end of the queue, and stays there. Where the urgent come
    first it is among them, so it is also said when they were shown.
    """
    shown = int(text_of(typed, "shown"))
    limit = min(shown, order.selection.limit or shown)
    return replace(order, selection=replace(order.selection, limit=limit, now=read_moment(text_of(typed, "shown_at"))))


# Discard ------------------------------------------------------------------------------------------------


@router.get("/queues/{queue:path}/discard")
async def discard_plan(request: Request, at: At, queue: Named) -> Response:
    await at.need(Act.DISCARD, queue)
    form = Form.of(request.query_params, request.query_params.getlist("ids"))
    return await _discard_page(request, at, queue, form)


async def _discard_page(request: Request, at: Desk, queue: str, form: Form, typed: str = "") -> Response:
    order = form.discarding(queue)
    planned = await _planned(at, order, form) if order is not None else None
    return page(
        request,
        "discard.html",
        at,
        status=422 if form.mistakes else 200,
        here="overview",
        queue=queue,
        view=await at.queue(queue),
        form=form,
        typed=typed,
        mistakes=form.mistakes,
        plan=planned.plan if planned is not None else None,
    )


@router.post("/queues/{queue:path}/discard")
async def discard(request: Request, at: At, queue: Named) -> Response:
    """No more than were shown."""
    await at.need(Act.DISCARD, queue)
    typed, to = await form_of(request), links_of(request)
    form = Form.posted(typed)
    confirm, shown = text_of(typed, "confirm"), text_of(typed, "shown")
    if confirm != queue:
        form.mistakes.fields["confirm"] = f"Nothing was discarded. Type {queue} to say that you mean it."
        return await _discard_page(request, at, queue, form, confirm)
    order = form.discarding(queue)
    if order is None or not shown.isdecimal() or not int(shown):
        return seen(to("queues", queue, "discard", **form.fields, said="plan-changed"))
    operation = await at.discard(queue, _as_shown(order, typed), confirm)
    return seen(to("operations", operation.id))
