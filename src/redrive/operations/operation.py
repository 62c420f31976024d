"""An operation on a dead-letter queue: what was asked for, how far it is, and how it ended.

    PENDING -> RUNNING <-> PAUSED
                  |
                  +-> CANCELLING -> CANCELLED       somebody asked; what was moved stays moved
                  +-> SUCCEEDED                     everything that was selected is where it should be
                  +-> PARTIAL                       it came to its end, and some items failed
                  +-> STOPPED_BY_GUARD              too much of it came back, or that could not be known ("undecided")
                  +-> FAILED                        it could not go on: the note says why

An operation is a value. Its runner makes the next value of it and stores that. To pause, cancel or slow it down, any
process stores a `ControlRequest` next to it, in the same database, and the runner reads it there.

What is counted:

    planned     selected and eligible when it began, if a plan was made
    moved       confirmed by the broker at the destination, or written to the archive, and gone from the queue
    skipped     selected, and not eligible: the items say why
    failed      should have been moved and could not: it is still in the queue
    returned    moved, failed again, and back in a dead-letter queue of its queue. It counts as moved, too

`moved` is never more than `planned`. Beside these, `possibly_duplicated` counts how often a message was sent and the
connection or the process ended before the confirm was recorded. It was sent again, so it may have arrived twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import NamedTuple

from redrive.errors import ConfigurationError
from redrive.topology.model import Destination as Destination
from redrive.topology.model import DestinationKind as DestinationKind


class OperationKind(StrEnum):
    REDRIVE = "re-drive"
    DISCARD = "discard"
    EDIT = "edit-and-re-drive"
    MOVE = "move"  # to another dead-letter queue, with its failure record

    @property
    def is_resumable(self) -> bool:
        """Can another process go on with it? The others have an archive on the machine that began them."""
        return self in (OperationKind.REDRIVE, OperationKind.MOVE)


class OperationState(StrEnum):
    PENDING = "PENDING"
    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    CANCELLING = "CANCELLING"
    CANCELLED = "CANCELLED"
    SUCCEEDED = "SUCCEEDED"
    PARTIAL = "PARTIAL"
    STOPPED_BY_GUARD = "STOPPED_BY_GUARD"
    FAILED = "FAILED"

    @property
    def is_over(self) -> bool:
        return self in _OVER


_OVER = frozenset(
    (
        OperationState.CANCELLED,
        OperationState.SUCCEEDED,
        OperationState.PARTIAL,
        OperationState.STOPPED_BY_GUARD,
        OperationState.FAILED,
    )
)


class ItemOutcome(StrEnum):
    """Of one message."""

    MOVED = "moved"
    SKIPPED = "skipped"
    FAILED = "failed"
    RETURNED = "returned"
    POSSIBLY_DUPLICATED = "possibly_duplicated"  # sent, and the connection was lost before the confirm


@dataclass(frozen=True, slots=True)
class Selection:
    """Which messages are meant: those that match everything that is said here, the first `limit` of them."""

    query: str = ""  # in the language of `redrive.deadletters.search`
    now: datetime | None = (
        None  # the moment for which it is meant: of a query's "2h", and of what was there to be shown
    )
    ids: tuple[str, ...] = ()
    group: str = ""  # the beginning of a fingerprint
    limit: int | None = None
    redacted: bool = False  # the query sees messages without their secrets

    def __post_init__(self) -> None:
        if self.limit is not None and self.limit < 1:
            raise ConfigurationError(f"limit {self.limit}: want 1 or more, or none", option="limit")

    @property
    def is_everything(self) -> bool:
        return not (self.query or self.ids or self.group)

    def __str__(self) -> str:
        """Return it as the audit shows it."""
        parts = [self.query, f"group:{self.group}" if self.group else "", *(f"id:{id}" for id in self.ids[:20])]
        return " ".join(filter(None, (*parts, f"limit {self.limit}" if self.limit is not None else "")))


@dataclass(frozen=True, slots=True)
class CanarySchedule:
    """A canary: so many first, then more and more, and everything else in a last step, if not too much comes back."""

    steps: tuple[int, ...] = (1, 5, 20, 100)
    returned_pct: float = 10.0  # more than this many of a hundred come back: stop
    wait: float | None = None  # seconds in which a delivered message may still fail; None: as the plan finds fit

    def __post_init__(self) -> None:
        if not self.steps or any(step < 1 for step in self.steps) or list(self.steps) != sorted(self.steps):
            raise ConfigurationError(f"ramp {list(self.steps)}: want growing numbers, as 1,5,20,100", option="ramp")
        if not 0 <= self.returned_pct < 100:
            raise ConfigurationError(
                f"stop_if.returned_pct {self.returned_pct:g}: want 0 or more, and less than 100", option="stop_if"
            )
        if self.wait is not None and self.wait < 0:
            raise ConfigurationError(f"wait {self.wait:g}: want 0 seconds or more", option="step_wait")


@dataclass(frozen=True, slots=True)
class OperationRequest:
    """What somebody asks for."""

    kind: OperationKind
    queue: str
    selection: Selection = field(default_factory=Selection)
    to: Destination = field(default_factory=Destination)
    rate: float | None = None  # messages a second; None: as fast as it goes
    ramp: CanarySchedule | None = None
    by: str = ""
    reason: str = ""
    keep_counters: bool = False
    most_redrives: int | None = 3  # a message that was re-driven so often already is skipped
    spend_deliveries: bool = False  # look although it counts towards a delivery limit
    any_queue: bool = False  # also a queue that is not known to be a dead-letter queue, or has consumers
    transform: str = ""  # in words, for the record
    archive: str = ""  # the file that takes what is discarded, or the originals of what is edited
    allowed: tuple[str, ...] = ("*",)  # patterns of the queues that its principal may send to

    def __post_init__(self) -> None:
        if not self.queue:
            raise ConfigurationError("which queue? An operation needs the name of a dead-letter queue")
        if self.rate is not None and not self.rate > 0:
            raise ConfigurationError(f"rate {self.rate:g}: want messages a second, more than 0", option="rate")
        if self.kind is OperationKind.MOVE and (self.to.way is not DestinationKind.QUEUE or self.to.name == self.queue):
            raise ConfigurationError(f"destination {self.to}: want the name of another dead-letter queue", option="to")
        if self.most_redrives is not None and self.most_redrives < 1:
            raise ConfigurationError(
                f"most_redrives {self.most_redrives}: want 1 or more, or none", option="most_redrives"
            )

    @property
    def is_restricted(self) -> bool:
        return "*" not in self.allowed

    def may_send_to(self, queue: str) -> bool:
        return any(fnmatchcase(queue, pattern) for pattern in self.allowed)


@dataclass(frozen=True, slots=True)
class Counts:
    planned: int | None = None
    moved: int = 0
    skipped: int = 0
    failed: int = 0
    returned: int = 0
    possibly_duplicated: int = 0

    def as_dict(self) -> Mapping[str, int | None]:
        return {
            "planned": self.planned,
            "moved": self.moved,
            "skipped": self.skipped,
            "failed": self.failed,
            "returned": self.returned,
            "possibly_duplicated": self.possibly_duplicated,
        }


@dataclass(frozen=True, slots=True)
class Operation:
    id: str
    order: OperationRequest
    created_at: datetime
    state: OperationState = OperationState.PENDING
    counts: Counts = field(default_factory=Counts)
    scope: int | None = None  # how many messages were in the queue when it began: it does not go beyond
    step: int = 0  # of the ramp, from 1
    started_at: datetime | None = None
    beat_at: datetime | None = None  # when its runner was last seen
    ended_at: datetime | None = None
    owner: str = ""  # who runs it: host and process
    note: str = ""  # for people: why it ended as it did, and what to do

    @property
    def total(self) -> int | None:
        """Return how many messages it is to move; None: not all are selected, and no plan has counted them."""
        if self.counts.planned is not None:
            return self.counts.planned
        selection = self.order.selection
        if self.scope is None or not selection.is_everything:
            return None
        return self.scope if selection.limit is None else min(self.scope, selection.limit)


class OperationItem(NamedTuple):
    """What became of one message."""

    id: str
    outcome: ItemOutcome
    at: datetime
    message_id: str | None = None
    why: str = ""  # it was skipped, or failed
    to: str = ""


@dataclass(frozen=True, slots=True)
class ControlRequest:
    """What somebody wants of a running operation."""

    state: OperationState | None = None  # PAUSED, RUNNING or CANCELLING
    rate: float | None = None
