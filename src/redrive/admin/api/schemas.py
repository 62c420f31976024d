"""Response schemas of the REST API.

A schema declares the fields that the API promises, and `mirror` reads them from the value of the same shape. Texts come
from messages and are hostile, so each is made printable: no character moves a cursor or turns the direction of writing.
Names by which something is found again (`exact`) stay as they are, unless JSON could not hold them.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field

from redrive.admin.authorized_queries import OutboxView, TopologyView
from redrive.admin.authorized_service import Planned
from redrive.admin.cache import Cached
from redrive.admin.service import QueueView
from redrive.deadletters.body_preview import show as show_body
from redrive.deadletters.redaction import REDACTION
from redrive.deadletters.timeline import explain
from redrive.operations.audit_entry import AuditEntry
from redrive.operations.browse import Grouping, MessageDetail
from redrive.operations.operation import Operation, OperationState
from redrive.operations.plan import RedrivePlan
from redrive.text import printable
from redrive.topology.plan import Action
from redrive.wire.values import brief_repr


class ResponseModel(BaseModel):
    """A response body."""

    model_config = ConfigDict(frozen=True)
    exact: ClassVar[frozenset[str]] = frozenset()  # fields that are not made printable

    @classmethod
    def mirror(cls, source: object, **other: Any) -> Self:
        """Return the fields in `other`, and all others as the attributes of `source`."""
        return cls(**{name: cls._field_value(name, source) for name in cls.model_fields if name not in other}, **other)

    @classmethod
    def _field_value(cls, name: str, source: object) -> Any:
        value = getattr(source, name)
        return _name(value) if name in cls.exact else _text(value)


class ProblemOut(ResponseModel):
    """RFC 9457."""

    type: str = Field(examples=["urn:redrive:problem:operation-in-progress"])
    title: str
    status: int
    detail: str
    instance: str
    error: str | None = Field(
        default=None,
        description="Which error of Redrive's it comes of, if it does: `redrive explain` knows it by this name.",
        examples=["operation-conflict"],
    )


# Queues and messages ------------------------------------------------------------------------------------


class QueueOut(ResponseModel):
    name: str
    depth: int = Field(description="How many messages are ready in it.")
    oldest: datetime | None = Field(description="When the first in the queue died, if that is known.")
    source: str | None = Field(description="The queue whose messages die into it.")
    type: str
    consumers: int
    peek_safety: str = Field(description="What a look costs: `safe`, or why not.")
    peek_note: str
    operation: str | None = Field(description="The operation that runs on it.")
    redrive_to: str = Field(
        description="Where a re-drive goes that does not say `to`: as the application's topology says, or `own`."
    )

    exact = frozenset(("name", "source"))

    @classmethod
    def of(cls, view: QueueView) -> Self:
        return cls.mirror(view, operation=view.operation.id if view.operation is not None else None)


class QueuesOut(ResponseModel):
    items: list[QueueOut]


class LetterOut(ResponseModel):
    """A dead letter, in a line."""

    exact = frozenset(("id", "message_id", "source", "exchange", "routing_key", "queue"))

    id: str
    position: int
    message_id: str | None
    correlation_id: str | None
    type: str | None
    source: str | None
    exchange: str | None
    routing_key: str | None
    reason: str
    error: str
    error_message: str
    fingerprint: str
    attempts: int
    dead_at: datetime | None
    redriven: int
    size: int


class LettersOut(ResponseModel):
    items: list[LetterOut]
    next_cursor: str | None
    depth: int
    scanned: int
    seen_at: datetime = Field(description="Messages are not looked at again for half a minute, unless `fresh=true`.")


class BodyOut(ResponseModel):
    kind: str
    text: str
    truncated: bool
    note: str


class MessageOut(LetterOut):
    """A dead letter with all it tells."""

    queue: str
    timeline: list[str]
    stack: str
    headers: dict[str, Any]
    content_type: str | None
    timestamp: datetime | None
    body: BodyOut
    seen_at: datetime
    revealed: bool

    @classmethod
    def whole(cls, seen: Cached[MessageDetail]) -> Self:
        found = seen.value
        dead_letter = found.dead_letter
        body = show_body(
            found.body,
            dead_letter.content_type,
            dead_letter.headers,
            redaction=None if found.revealed else REDACTION,
            content_encoding=dead_letter.content_encoding,
        )
        return cls.mirror(
            dead_letter,
            timeline=[event.text for event in explain(dead_letter)],
            headers={printable(name): _plain(value) for name, value in dead_letter.headers.items()},
            body=BodyOut.mirror(body),
            seen_at=seen.at,
            revealed=found.revealed,
        )


class GroupOut(ResponseModel):
    key: str
    count: int
    error: str
    error_message: str
    sources: dict[str, int]
    oldest: datetime | None
    newest: datetime | None
    redriven: int
    sample: str


class GroupsOut(ResponseModel):
    items: list[GroupOut]
    matched: int
    scanned: int
    depth: int
    seen_at: datetime

    @classmethod
    def of(cls, seen: Cached[Grouping]) -> Self:
        return cls.mirror(seen.value, items=list(map(GroupOut.mirror, seen.value.groups)), seen_at=seen.at)


# Plans and operations -----------------------------------------------------------------------------------


class TargetOut(ResponseModel):
    exchange: str
    routing_key: str
    count: int
    exists: bool | None
    consumers: int | None


class IneligibleOut(ResponseModel):
    reason: str
    count: int


class PlanOut(ResponseModel):
    plan_token: str | None = Field(description="Say it with re-drive, within a quarter of an hour.")
    queue: str
    depth: int
    scanned: int
    matched: int
    eligible: int
    ineligible: list[IneligibleOut]
    targets: list[TargetOut]
    also_receives: list[str] | None = Field(description="Other queues that get a copy; null: not known.")
    sample: list[LetterOut]
    warnings: list[str]

    @classmethod
    def of(cls, planned: Planned) -> Self:
        return cls.of_plan(planned.plan, planned.token)

    @classmethod
    def of_plan(cls, plan: RedrivePlan, token: str | None = None) -> Self:
        return cls.mirror(
            plan,
            plan_token=token,
            queue=_name(plan.order.queue),
            ineligible=[IneligibleOut(reason=why, count=count) for why, count in plan.ineligible],
            targets=list(map(TargetOut.mirror, plan.targets)),
            also_receives=list(plan.also_receives) if plan.also_receives is not None else None,
            sample=list(map(LetterOut.mirror, plan.sample)),
            warnings=[printable(warning) for warning in plan.warnings],
        )


class DifferenceOut(ResponseModel):
    id: str
    difference: str


class PreviewOut(ResponseModel):
    items: list[DifferenceOut]


class CountsOut(ResponseModel):
    planned: int | None
    moved: int
    skipped: int
    failed: int
    returned: int
    possibly_duplicated: int = Field(
        description="Messages that may have arrived twice: they were sent again, because the connection or the process "
        "ended before the confirm was recorded."
    )


class OperationOut(ResponseModel):
    id: str
    kind: str
    queue: str
    state: OperationState
    to: str
    counts: CountsOut
    scope: int | None
    step: int
    rate: float | None
    ramp: list[int] | None
    by: str
    reason: str
    note: str
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    interrupted: bool = Field(description="Its process is gone: resume it, or cancel it.")

    @classmethod
    def of(cls, operation: Operation, *, interrupted: bool) -> Self:
        order = operation.order
        return cls.mirror(
            operation,
            kind=order.kind,
            queue=_name(order.queue),
            to=printable(str(order.to)),
            counts=CountsOut.model_validate(operation.counts.as_dict()),
            rate=order.rate,
            ramp=list(order.ramp.steps) if order.ramp is not None else None,
            by=printable(order.by),
            reason=printable(order.reason),
            interrupted=interrupted,
        )


class OperationsOut(ResponseModel):
    items: list[OperationOut]
    next_cursor: str | None


class ItemOut(ResponseModel):
    id: str
    outcome: str
    at: datetime
    message_id: str | None
    why: str
    to: str

    exact = frozenset(("id", "message_id"))


class ItemsOut(ResponseModel):
    items: list[ItemOut]
    next_cursor: str | None


class ImportedOut(ResponseModel):
    lines: int


# All else -----------------------------------------------------------------------------------------------


class OutboxRowOut(ResponseModel):
    id: int
    message_id: str
    exchange: str
    routing_key: str
    ordering_key: str | None
    attempts: int
    created_at: datetime | None
    last_error: str | None


class OutboxOut(ResponseModel):
    pending: int
    oldest: datetime | None
    parked: int
    rows: list[OutboxRowOut]

    @classmethod
    def of(cls, view: OutboxView) -> Self:
        rows = [OutboxRowOut(**{name: _text(row[name]) for name in OutboxRowOut.model_fields}) for row in view.rows]
        return cls.mirror(view, rows=rows)


class RowsOut(ResponseModel):
    rows: int


class StepOut(ResponseModel):
    action: str
    what: str
    differences: list[str]
    note: str = Field(description="What to know of a queue that is taken as it is.")


class TopologyOut(ResponseModel):
    server: str
    complete: bool = Field(description="Is this everything that the broker holds?")
    exchanges: int
    queues: int
    bindings: int
    drift: list[StepOut] = Field(
        description="What differs from the application's topology, and queues that are taken as they are."
    )

    @classmethod
    def of(cls, view: TopologyView, *, everything: bool = False) -> Self:
        held = view.snapshot.definitions
        return cls(
            server=str(view.snapshot.server),
            complete=view.snapshot.complete,
            exchanges=len(held.exchanges),
            queues=len(held.queues),
            bindings=len(held.bindings),
            drift=[
                StepOut(
                    action=step.action,
                    what=printable(str(step.definition)),
                    differences=[printable(str(one)) for one in step.differences],
                    note=printable(step.note),
                )
                for step in view.drift.shown(everything=everything)
                if step.action is not Action.UNCHANGED
            ],
        )


class FindingOut(ResponseModel):
    id: str
    severity: str
    title: str
    subject: str
    evidence: str
    fix: str


class DoctorOut(ResponseModel):
    items: list[FindingOut]


class AuditOut(ResponseModel):
    number: int
    at: datetime
    by: str
    action: str
    queue: str
    allowed: bool
    operation: str
    filter: str
    counts: dict[str, int | None]
    reason: str
    detail: str

    @classmethod
    def of(cls, number: int, entry: AuditEntry) -> Self:
        return cls.mirror(entry, number=number, counts=dict(entry.counts))


class AuditsOut(ResponseModel):
    items: list[AuditOut]
    next_cursor: str | None


class MeOut(ResponseModel):
    name: str
    role: Literal["viewer", "operator", "admin"]
    queues: list[str]
    acts: list[str] = Field(description="What may be done.")


def _text(value: Any) -> Any:
    """Texts of messages are hostile: no character moves a cursor, or turns the direction of writing."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {_text(key): _text(one) for key, one in value.items()}
    return value


def _name(value: str | None) -> Any:
    """By which something is asked for again: as it is, unless JSON could not hold it."""
    if value is None:
        return None
    try:
        value.encode()
    except UnicodeEncodeError:
        return printable(value)
    return value


def _plain(value: object) -> Any:
    """A header's value as JSON has words for it."""
    match value:
        case None | bool() | int():
            return value
        case str():
            return printable(value)
        case dict():
            return {printable(str(key)): _plain(one) for key, one in value.items()}
        case list() | tuple():
            return [_plain(one) for one in value]
        case datetime():
            return value.isoformat()
        case _:
            return printable(brief_repr(value))
