"""Request schemas of the REST API. The forms of the console are validated by the same rules."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from redrive.operations.browse import GroupBy
from redrive.operations.operation import (
    CanarySchedule,
    Destination,
    DestinationKind,
    OperationKind,
    OperationRequest,
    Selection,
)
from redrive.operations.peek_allowance import Risk
from redrive.recovery.durations import duration

MOST = 500  # of anything on one page
_MOST_IDS = 1000
_LONG = 10_000


class RequestModel(BaseModel):
    """A request body. Unknown fields are refused."""

    model_config = ConfigDict(extra="forbid")


Query = Annotated[str, Field(max_length=_LONG, description="Which messages: `error:Timeout since:2h`.")]
_SPEND: bool = Field(False, description="Look although that counts towards a delivery limit. Never the last delivery.")
_ANY_QUEUE: bool = Field(False, description="Also a queue that is not a dead-letter queue, or that has consumers.")


class RiskIn(RequestModel):
    spend_deliveries: bool = _SPEND
    any_queue: bool = _ANY_QUEUE
    reason: str = Field("", max_length=1000, description="For the audit.")

    def risk(self) -> Risk:
        return Risk(self.spend_deliveries, self.any_queue, self.reason)


class PeekIn(RiskIn):
    limit: int = Field(20, ge=1, le=MOST, description="The number of items on a page, at most.")
    cursor: str | None = Field(None, max_length=200, description="`next_cursor` of the page before.")
    q: Query = ""


class PeekGroupsIn(RiskIn):
    by: GroupBy = Field(GroupBy.FINGERPRINT, description="What makes a group.")
    q: Query = ""


class SelectionIn(RequestModel):
    limit: int | None = Field(None, ge=1, le=2**31 - 1, description="At most this number of messages.")
    ids: list[Annotated[str, Field(min_length=1, max_length=300)]] = Field(
        default_factory=list, max_length=_MOST_IDS, description="These messages."
    )
    q: Query = ""
    group: str = Field("", max_length=64, description="A fingerprint, or its beginning.")
    reason: str = Field("", max_length=1000, description="For the audit and the messages' lineage.")
    spend_deliveries: bool = _SPEND
    any_queue: bool = _ANY_QUEUE

    def _order(self, kind: OperationKind, queue: str, to: Destination | None = None, **other: Any) -> OperationRequest:
        return OperationRequest(
            kind,
            queue,
            Selection(self.q, None, tuple(self.ids), self.group, self.limit),
            to or Destination(),
            reason=self.reason,
            spend_deliveries=self.spend_deliveries,
            any_queue=self.any_queue,
            **other,
        )


class StopIf(RequestModel):
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
        None, min_length=1, max_length=20, examples=[[1, 5, 20, 100]], description="A canary: the sizes of its steps."
    )
    stop_if: StopIf = Field(StopIf(returned_pct=10.0), description="When a canary stops itself.")
    step_wait: str | None = Field(None, max_length=20, examples=["30s"], description="A canary's wait for failures.")
    most_redrives: int | None = Field(3, ge=1, le=2**31 - 1, description="Re-driven so often: skipped.")
    keep_counters: bool = Field(False, description="Go on counting attempts instead of starting at zero.")

    def order(self, queue: str, default: Destination) -> OperationRequest:
        """Return what is asked for. `default`: where messages go if `to` is not given."""
        ramp = None
        if self.ramp is not None:
            wait = duration(self.step_wait, "step_wait").total_seconds() if self.step_wait is not None else None
            ramp = CanarySchedule(tuple(self.ramp), self.stop_if.returned_pct, wait)
        return self._order(
            OperationKind.REDRIVE,
            queue,
            Destination.parse(self.to) if self.to is not None else default,
            rate=self.rate,
            ramp=ramp,
            keep_counters=self.keep_counters,
            most_redrives=self.most_redrives,
        )


class RedriveIn(OrderIn):
    plan_token: str | None = Field(None, max_length=64, description="Carry out a plan, and nothing else.")
    dry_run: bool = Field(False, description="Say what would be done, and do nothing.")


class MoveIn(SelectionIn):
    to: str = Field(min_length=1, max_length=300, description="Another dead-letter queue.")
    rate: float | None = Field(None, gt=0, le=1e6, description="Messages a second.")
    dry_run: bool = Field(False, description="Say what would be done, and do nothing.")

    def order(self, queue: str) -> OperationRequest:
        return self._order(OperationKind.MOVE, queue, Destination(DestinationKind.QUEUE, self.to), rate=self.rate)


class DiscardIn(SelectionIn):
    confirm: str = Field(max_length=300, description="The name of the queue, once more.")

    def order(self, queue: str) -> OperationRequest:
        return self._order(OperationKind.DISCARD, queue)


class EditIn(RequestModel):
    body: str | None = Field(None, description="The new body, as text.")
    patch: list[dict[str, Any]] | None = Field(None, max_length=1000, description="A JSON Patch (RFC 6902).")
    set_headers: dict[str, str] = Field(default_factory=dict, max_length=100, description="Give it these headers.")
    remove_headers: list[str] = Field(default_factory=list, max_length=100, description="Take these headers out.")
    force: bool = Field(False, description="Also a body that is called JSON and is none.")
    to: str | None = Field(None, min_length=1, max_length=600, description="Where to: as in a re-drive.")
    reason: str = Field("", max_length=1000, description="For the audit and the message's lineage.")
    dry_run: bool = Field(False, description="Say what would be done, and do nothing.")


class SteerIn(RequestModel):
    rate: float = Field(gt=0, le=1e6, description="Messages a second.")
