"""What an operation would do, before anybody does it: how many, where to, who else gets them, what to mind.

A plan looks at the queue and changes nothing. It goes through all of it, or until as many messages are found as the
operation is allowed to move.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from redrive.deadletters.dead_letter import Summary
from redrive.operations.browse import for_each
from redrive.operations.operation import DestinationKind, OperationKind, OperationRequest
from redrive.operations.origins import displayed_name
from redrive.operations.ports import BrowsePort
from redrive.operations.selector import Ignored, MessageSelector, Route, Skipped
from redrive.protocol.messages import Delivery
from redrive.recovery.durations import format_duration, format_roughly
from redrive.topology.routing import targets as queues_reached
from redrive.topology.snapshot import BrokerSnapshot

MOST_SAMPLES = 5
MOST_TARGETS = 100
OTHER_ROUTES: Route = ("", "(others)")  # stands for all beyond these


@dataclass(frozen=True, slots=True)
class PlanTarget:
    exchange: str
    routing_key: str
    count: int
    exists: bool | None = None  # None: could not be seen
    consumers: int | None = None

    def __str__(self) -> str:
        return f"{self.exchange} ({self.routing_key})" if self.exchange else self.routing_key


@dataclass(frozen=True, slots=True)
class RedrivePlan:
    order: OperationRequest
    made_at: datetime
    depth: int
    scanned: int
    matched: int  # of those that were looked at
    eligible: int
    ineligible: tuple[tuple[str, int], ...]  # reason and count, the most frequent first
    targets: tuple[PlanTarget, ...]
    also_receives: tuple[str, ...] | None  # other queues that get a copy; None: not known
    sample: tuple[Summary, ...]
    warnings: tuple[str, ...]

    @property
    def is_complete(self) -> bool:
        return self.scanned >= self.depth


@dataclass(frozen=True, slots=True)
class PlanTally:
    """What was found in the queue."""

    depth: int
    scanned: int
    matched: int
    eligible: int
    ineligible: Counter[str]
    routes: Counter[Route]
    sources: Counter[str]
    sample: tuple[Summary, ...]
    oldest: datetime | None


async def scan(broker: BrowsePort, order: OperationRequest, chooser: MessageSelector) -> PlanTally:
    ineligible: Counter[str] = Counter()
    routes: Counter[Route] = Counter()
    sources: Counter[str] = Counter()
    sample: list[Summary] = []
    oldest: datetime | None = None
    limit = order.selection.limit

    def see(delivery: Delivery, dead_letter: Summary) -> bool:
        nonlocal oldest
        choice = chooser.choose(dead_letter, delivery.body, delivery.raw_properties)
        if isinstance(choice, Ignored):
            return False
        if isinstance(choice, Skipped):
            ineligible[str(choice)] += 1
            return False
        route = choice.exchange, choice.routing_key
        routes[route if len(routes) < MOST_TARGETS or route in routes else OTHER_ROUTES] += 1
        if source := choice.origin or dead_letter.source:
            sources[source] += 1
        if dead_letter.dead_at is not None and (oldest is None or dead_letter.dead_at < oldest):
            oldest = dead_letter.dead_at
        if len(sample) < MOST_SAMPLES:
            sample.append(dead_letter)
        return limit is not None and routes.total() >= limit

    scanned, depth = await for_each(broker, order.queue, see)
    eligible, skipped = routes.total(), ineligible.total()
    return PlanTally(depth, scanned, eligible + skipped, eligible, ineligible, routes, sources, tuple(sample), oldest)


def also_receives(found: PlanTally, order: OperationRequest, snapshot: BrokerSnapshot) -> tuple[str, ...] | None:
    """Who gets a copy although the message did not fail there."""
    if order.kind is OperationKind.DISCARD or order.to.way in (
        DestinationKind.OWN,
        DestinationKind.QUEUE,
        DestinationKind.RETRY,
    ):
        return ()
    if not snapshot.complete:
        return None
    reached: set[str] = set()
    for exchange, key in found.routes:
        reached |= queues_reached(snapshot.definitions, exchange, key)
    if order.to.way is DestinationKind.ORIGINAL:
        reached -= set(found.sources)
    return tuple(sorted(reached))


def warnings(
    found: PlanTally,
    order: OperationRequest,
    *,
    targets: tuple[PlanTarget, ...],
    also: tuple[str, ...] | None,
    consumers: int,  # of the dead-letter queue
    inbox_windows: dict[str, timedelta],  # how long a duplicate is recognised, by queue
    now: datetime,
    unseen: tuple[str, ...] = (),  # destinations whose dead-letter queues are not known
    into_dead: bool | None = False,  # is the destination a dead-letter queue? None: not known
    unproven: tuple[str, ...] = (),  # destinations that only the messages name
) -> tuple[str, ...]:
    """Return what the operator should know before the operation starts."""
    told = list(_destination_warnings(order, targets, into_dead))
    if unproven:
        names = ", ".join(map(displayed_name, unproven[:10]))
        unknown = "no queue is known to dead-letter to " + order.queue
        if order.to.way is DestinationKind.ORIGINAL:
            unknown = "whether that leads to the queues they failed in is not known"
        told.append(
            f"only the messages name {names}: {unknown} (--app or --management may help). Any producer can write that"
        )
    if order.ramp is not None and unseen:
        told.append(
            f"whether messages sent to {', '.join(unseen[:10])} come back cannot be seen, because the dead-letter "
            "queues are not known: the canary stops as undecided (--app or --management may help)"
        )
    if also:
        told.append(f"{', '.join(also[:10])} will receive these messages, too, although they did not fail there")
    if also is None:
        told.append("who else receives these messages cannot be seen without the management API")
    if consumers:
        many = "a consumer takes" if consumers == 1 else f"{consumers} consumers take"
        told.append(f"{many} messages out of {order.queue} at the same time: not all may be found")
    if order.kind is not OperationKind.MOVE:
        told += _duplicate_warnings(found, inbox_windows, now)
    return tuple(told)


def _destination_warnings(
    order: OperationRequest, targets: tuple[PlanTarget, ...], into_dead: bool | None
) -> Iterator[str]:
    moves = order.kind is OperationKind.MOVE
    for target in targets:
        if target.exists is False:
            yield f"{target} does not exist: nothing can be moved there"
        elif target.consumers == 0 and not target.exchange and not into_dead and not moves:
            yield f"{target} has no consumer: messages will wait there"
    if into_dead and order.kind in (OperationKind.REDRIVE, OperationKind.EDIT):
        yield (
            f"{order.to.name} is a dead-letter queue, and a re-drive removes the failure record: reason, attempts and "
            f"source will be missing there. To keep them: redrive dlq move {order.queue} --to {order.to.name}"
        )
    if moves and into_dead is None:
        yield f"whether {order.to.name} is a dead-letter queue cannot be seen without --app or --management"


def _duplicate_warnings(found: PlanTally, inbox_windows: dict[str, timedelta], now: datetime) -> Iterator[str]:
    age = now - found.oldest if found.oldest is not None else None
    for queue, window in inbox_windows.items():
        if found.sources[queue] and age is not None and age > window:
            yield (
                f"the oldest died {format_roughly(age)} ago, and the inbox of {queue} "
                f"remembers {format_duration(window)}: "
                "a message that was processed in part before may be processed twice"
            )
