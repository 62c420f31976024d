"""What the API takes and gives, as JSON: the words of the OpenAPI document."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field

from redrive.admin.authorized_queries import OutboxView, TopologyView
from redrive.admin.desk import Planned
from redrive.admin.service import QueueView
from redrive.admin.snapshots import Seen
from redrive.deadletters.body_preview import ShownBody
from redrive.deadletters.body_preview import show as show_body
from redrive.deadletters.dead_letter import Summary
from redrive.deadletters.redaction import REDACTION
from redrive.deadletters.timeline import explain
from redrive.recovery.durations import duration
from redrive.runtime.dlq.audit import AuditEntry
from redrive.runtime.dlq.looking import By, Found, Group, Grouping
from redrive.runtime.dlq.operation import Destination, Item, Kind, Operation, Order, Ramp, Selection, State, Way
from redrive.runtime.dlq.planning import Plan, Target
from redrive.runtime.dlq.spending import Risk
from redrive.text import printable
from redrive.topology.doctor import Finding
from redrive.topology.plan import Action
from redrive.wire.values import shown

MOST = 500  # of anything on one page
_MOST_IDS = 1000
_LONG = 10_000


class Told(BaseModel):
    """What the API gives."""

    model_config = ConfigDict(frozen=True)


class Asked(BaseModel):
    """What the API takes. A word that it does not know is a mistake, not a wish that is overlooked."""

    model_config = ConfigDict(extra="forbid")


class ProblemOut(Told):
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


class QueueOut(Told):
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

    @classmethod
    def of(cls, view: QueueView) -> Self:
        return cls(
            name=_name(view.name),
            depth=view.depth,
            oldest=view.oldest,
            source=_name(view.source),
            type=view.type,
            consumers=view.consumers,
            peek_safety=view.peek_safety,
            peek_note=view.peek_note,
            operation=view.operation.id if view.operation is not None else None,
            redrive_to=printable(view.redrive_to),
        )


class QueuesOut(Told):
    items: list[QueueOut]


class LetterOut(Told):
    """A dead letter, in a line."""

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

    @classmethod
    def of(cls, letter: Summary) -> Self:
        return cls(**_line(letter))


class LettersOut(Told):
    items: list[LetterOut]
    next_cursor: str | None
    depth: int
    scanned: int
    seen_at: datetime = Field(description="Messages are not looked at again for half a minute, unless `fresh=true`.")


class BodyOut(Told):
    kind: str
    text: str
    truncated: bool
    note: str

    @classmethod
    def of(cls, body: ShownBody) -> Self:
        return cls(kind=body.kind, text=body.text, truncated=body.truncated, note=body.note)


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
    def whole(cls, seen: Seen[Found]) -> Self:
        found = seen.value
        letter = found.letter
        redaction = None if found.revealed else REDACTION
        return cls(
            **_line(letter),
            queue=_name(letter.queue),
            timeline=[event.text for event in explain(letter)],
            stack=printable(letter.stack),
            headers={printable(name): _plain(value) for name, value in letter.headers.items()},
            content_type=_text(letter.content_type),
            timestamp=letter.timestamp,
            body=BodyOut.of(
                show_body(
                    found.body,
                    letter.content_type,
                    letter.headers,
                    redaction=redaction,
                    content_encoding=letter.content_encoding,
                )
            ),
            seen_at=seen.at,
            revealed=found.revealed,
        )


class GroupOut(Told):
    key: str
    count: int
    error: str
    error_message: str
    sources: dict[str, int]
    oldest: datetime | None
    newest: datetime | None
    redriven: int
    sample: str

    @classmethod
    def of(cls, group: Group) -> Self:
        return cls(**{name: _text(getattr(group, name)) for name in cls.model_fields})


class GroupsOut(Told):
    items: list[GroupOut]
    matched: int
    scanned: int
    depth: int
    seen_at: datetime

    @classmethod
    def of(cls, seen: Seen[Grouping]) -> Self:
        found = seen.value
        return cls(
            items=[GroupOut.of(group) for group in found.groups],
            matched=found.matched,
            scanned=found.scanned,
            depth=found.depth,
            seen_at=seen.at,
        )


# Orders, plans and operations ---------------------------------------------------------------------------

Query = Annotated[str, Field(max_length=_LONG, description="Which messages: `error:Timeout since:2h`.")]
_SPEND: bool = Field(False, description="Look although that counts towards a delivery limit. Never the last delivery.")
_ANY_QUEUE: bool = Field(False, description="Also a queue that is not a dead-letter queue, or that has consumers.")


class RiskIn(Asked):
    spend_deliveries: bool = _SPEND
    any_queue: bool = _ANY_QUEUE
    reason: str = Field("", max_length=1000, description="For the audit.")

    def risk(self) -> Risk:
        return Risk(self.spend_deliveries, self.any_queue, self.reason)


class PeekIn(RiskIn):
    limit: int = Field(20, ge=1, le=MOST, description="At most so many on a page.")
    cursor: str | None = Field(None, max_length=200, description="`next_cursor` of the page before.")
    q: Query = ""


class PeekGroupsIn(RiskIn):
    by: By = Field(By.FINGERPRINT, description="What makes a group.")
    q: Query = ""


class SelectionIn(Asked):
    limit: int | None = Field(None, ge=1, le=2**31 - 1, description="At most so many.")
    ids: list[Annotated[str, Field(min_length=1, max_length=300)]] = Field(
        default_factory=list, max_length=_MOST_IDS, description="These messages."
    )
    q: Query = ""
    group: str = Field("", max_length=64, description="A fingerprint, or its beginning.")
    reason: str = Field("", max_length=1000, description="For the audit and the messages' lineage.")
    spend_deliveries: bool = _SPEND
    any_queue: bool = _ANY_QUEUE

    def selection(self) -> Selection:
        return Selection(self.q, None, tuple(self.ids), self.group, self.limit)


class StopIf(Asked):
    returned_pct: float = Field(10.0, ge=0, lt=100, description="More than this many of a hundred come back.")


class OrderIn(SelectionIn):
    to: str | None = Field(
        None,
        min_length=1,
        max_length=600,
        description="`own`: the queue each failed in; `retry`: its retry exchange; `original`; `exchange:NAME:KEY`; or "
        "a queue. Default: the queue's `redrive_to`.",
    )
    rate: float | None = Field(None, gt=0, le=1e6, description="Messages a second.")
    ramp: list[Annotated[int, Field(ge=1, le=2**31 - 1)]] | None = Field(
        None, min_length=1, max_length=20, examples=[[1, 5, 20, 100]], description="A canary: so many first."
    )
    stop_if: StopIf = Field(StopIf(returned_pct=10.0), description="When a canary stops itself.")
    step_wait: str | None = Field(None, max_length=20, examples=["30s"], description="A canary's wait for failures.")
    most_redrives: int | None = Field(3, ge=1, le=2**31 - 1, description="Re-driven so often: skipped.")
    keep_counters: bool = Field(False, description="Go on counting attempts instead of starting anew.")

    def order(self, queue: str, default: Destination) -> Order:
        """Return what is asked for. `default`: where messages go if `to` is not given."""
        ramp = None
        if self.ramp is not None:
            wait = duration(self.step_wait, "step_wait").total_seconds() if self.step_wait is not None else None
            ramp = Ramp(tuple(self.ramp), self.stop_if.returned_pct, wait)
        return Order(
            Kind.REDRIVE,
            queue,
            self.selection(),
            Destination.parse(self.to) if self.to is not None else default,
            self.rate,
            ramp,
            reason=self.reason,
            keep_counters=self.keep_counters,
            most_redrives=self.most_redrives,
            spend_deliveries=self.spend_deliveries,
            any_queue=self.any_queue,
        )


class RedriveIn(OrderIn):
    plan_token: str | None = Field(None, max_length=64, description="Carry out a plan, and nothing else.")
    dry_run: bool = Field(False, description="Say what would be done, and do nothing.")


class MoveIn(SelectionIn):
    to: str = Field(min_length=1, max_length=300, description="Another dead-letter queue.")
    rate: float | None = Field(None, gt=0, le=1e6, description="Messages a second.")
    dry_run: bool = Field(False, description="Say what would be done, and do nothing.")

    def order(self, queue: str) -> Order:
        return Order(
            Kind.MOVE,
            queue,
            self.selection(),
            Destination(Way.QUEUE, self.to),
            self.rate,
            reason=self.reason,
            spend_deliveries=self.spend_deliveries,
            any_queue=self.any_queue,
        )


class DiscardIn(SelectionIn):
    confirm: str = Field(max_length=300, description="The name of the queue, once more.")

    def order(self, queue: str) -> Order:
        return Order(
            Kind.DISCARD,
            queue,
            self.selection(),
            reason=self.reason,
            spend_deliveries=self.spend_deliveries,
            any_queue=self.any_queue,
        )


class EditIn(Asked):
    body: str | None = Field(None, description="The new body, as text.")
    patch: list[dict[str, Any]] | None = Field(None, max_length=1000, description="A JSON Patch (RFC 6902).")
    set_headers: dict[str, str] = Field(default_factory=dict, max_length=100, description="Give it these headers.")
    remove_headers: list[str] = Field(default_factory=list, max_length=100, description="Take these headers out.")
    force: bool = Field(False, description="Also a body that is called JSON and is none.")
    to: str | None = Field(None, min_length=1, max_length=600, description="Where to: as in a re-drive.")
    reason: str = Field("", max_length=1000, description="For the audit and the message's lineage.")
    dry_run: bool = Field(False, description="Say what would be done, and do nothing.")


class TargetOut(Told):
    exchange: str
    routing_key: str
    count: int
    exists: bool | None
    consumers: int | None

    @classmethod
    def of(cls, target: Target) -> Self:
        return cls(**{name: _text(getattr(target, name)) for name in cls.model_fields})


class IneligibleOut(Told):
    reason: str
    count: int


class PlanOut(Told):
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
    def of_plan(cls, plan: Plan, token: str | None = None) -> Self:
        return cls(
            plan_token=token,
            queue=_name(plan.order.queue),
            depth=plan.depth,
            scanned=plan.scanned,
            matched=plan.matched,
            eligible=plan.eligible,
            ineligible=[IneligibleOut(reason=why, count=count) for why, count in plan.ineligible],
            targets=[TargetOut.of(target) for target in plan.targets],
            also_receives=list(plan.also_receives) if plan.also_receives is not None else None,
            sample=[LetterOut.of(letter) for letter in plan.sample],
            warnings=[printable(warning) for warning in plan.warnings],
        )


class DifferenceOut(Told):
    id: str
    difference: str


class PreviewOut(Told):
    items: list[DifferenceOut]


class CountsOut(Told):
    planned: int | None
    moved: int
    skipped: int
    failed: int
    returned: int
    possibly_duplicated: int = Field(
        description="Messages that may have arrived twice: they were sent again, because the connection or the process "
        "ended before the confirm was recorded."
    )


class OperationOut(Told):
    id: str
    kind: str
    queue: str
    state: State
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
        return cls(
            id=operation.id,
            kind=order.kind,
            queue=_name(order.queue),
            state=operation.state,
            to=printable(str(order.to)),
            counts=CountsOut.model_validate(operation.counts.as_dict()),
            scope=operation.scope,
            step=operation.step,
            rate=order.rate,
            ramp=list(order.ramp.steps) if order.ramp is not None else None,
            by=printable(order.by),
            reason=printable(order.reason),
            note=printable(operation.note),
            created_at=operation.created_at,
            started_at=operation.started_at,
            ended_at=operation.ended_at,
            interrupted=interrupted,
        )


class OperationsOut(Told):
    items: list[OperationOut]
    next_cursor: str | None


class ItemOut(Told):
    id: str
    outcome: str
    at: datetime
    message_id: str | None
    why: str
    to: str

    @classmethod
    def of(cls, item: Item) -> Self:
        return cls(**{name: _shown(name, value) for name, value in item._asdict().items()})


class ItemsOut(Told):
    items: list[ItemOut]
    next_cursor: str | None


class SteerIn(Asked):
    rate: float = Field(gt=0, le=1e6, description="Messages a second.")


class ImportedOut(Told):
    lines: int


# All else -----------------------------------------------------------------------------------------------


class OutboxRowOut(Told):
    id: int
    message_id: str
    exchange: str
    routing_key: str
    ordering_key: str | None
    attempts: int
    created_at: datetime | None
    last_error: str | None


class OutboxOut(Told):
    pending: int
    oldest: datetime | None
    parked: int
    rows: list[OutboxRowOut]

    @classmethod
    def of(cls, view: OutboxView) -> Self:
        rows = [OutboxRowOut(**{name: _text(row[name]) for name in OutboxRowOut.model_fields}) for row in view.rows]
        return cls(pending=view.pending, oldest=view.oldest, parked=view.parked, rows=rows)


class RowsOut(Told):
    rows: int


class StepOut(Told):
    action: str
    what: str
    differences: list[str]


class TopologyOut(Told):
    server: str
    complete: bool = Field(description="Is this everything that the broker holds?")
    exchanges: int
    queues: int
    bindings: int
    drift: list[StepOut] = Field(description="What differs from the application's topology; empty: nothing.")

    @classmethod
    def of(cls, view: TopologyView) -> Self:
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
                )
                for step in view.drift.steps
                if step.action is not Action.UNCHANGED
            ],
        )


class FindingOut(Told):
    id: str
    severity: str
    title: str
    subject: str
    evidence: str
    fix: str

    @classmethod
    def of(cls, finding: Finding) -> Self:
        return cls(**{name: _text(str(getattr(finding, name))) for name in cls.model_fields})


class DoctorOut(Told):
    items: list[FindingOut]


class AuditOut(Told):
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
        told = {name: _text(getattr(entry, name)) for name in cls.model_fields if name not in ("number", "counts")}
        return cls(number=number, counts=dict(entry.counts), **told)


class AuditsOut(Told):
    items: list[AuditOut]
    next_cursor: str | None


class MeOut(Told):
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


def _line(letter: Summary) -> dict[str, Any]:
    return {name: _shown(name, getattr(letter, name)) for name in LetterOut.model_fields}


def _name(value: str | None) -> Any:
    """By which something is asked for again: as it is, unless JSON could not hold it."""
    if value is None:
        return None
    try:
        value.encode()
    except UnicodeEncodeError:
        return printable(value)
    return value


_NAMES = frozenset(("id", "message_id", "source", "exchange", "routing_key", "queue"))


def _shown(name: str, value: Any) -> Any:
    return _name(value) if name in _NAMES else _text(value)


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
            return printable(shown(value))
