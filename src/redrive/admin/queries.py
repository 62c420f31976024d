"""Read dead-letter queues: list, peek, group, find, plan, preview, export. Nothing here moves a message.

Queries and operations exclude each other on a queue, by the same lock in the broker, because a process that holds a
queue's messages hides them from others. A query waits a moment for the lock; a running operation refuses everybody
else.

Queries are recorded in the audit. Those that show no secrets and cost nothing take place also when that fails.

Results contain no secrets unless the caller asks for them (`reveal`), which is recorded: so no interface can forget to
hide them.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from copy import copy
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any, Self, assert_never

from redrive.admin.cached_target import CachedTarget
from redrive.admin.target import BrokerTarget, ConnectedTarget
from redrive.deadletters.dead_letter import Summary, read_dead_letter
from redrive.deadletters.edits import Content, EditPreview, diff
from redrive.deadletters.hidden_secrets import hide_summary
from redrive.deadletters.redaction import REDACTION, redact_text
from redrive.deadletters.search import Query, parse
from redrive.errors import (
    AuditUnavailable,
    ConfigurationError,
    EncodingError,
    LetterNotFound,
    NotFound,
    OperationConflict,
    OperationNotFound,
    RedriveError,
    TransformFailed,
)
from redrive.migration.steps import MigrationNames, migrated_queue
from redrive.operations import browse, plan
from redrive.operations.audit_entry import AuditEntry
from redrive.operations.audit_log import AuditLog
from redrive.operations.browse import GroupBy, Grouping, MessageDetail, MessagePage
from redrive.operations.canary_guard import DEFAULT_WAIT
from redrive.operations.export_format import encode_dead_letter
from redrive.operations.operation import DestinationKind, Operation, OperationKind, OperationRequest, OperationState
from redrive.operations.peek_allowance import NO_RISK, Allowance, Risk
from redrive.operations.plan import PlanTally, PlanTarget, RedrivePlan
from redrive.operations.repository import OperationRepository
from redrive.operations.selector import MessageSelector, Selected
from redrive.operations.transforms import Transform, apply_transform
from redrive.protocol.messages import Delivery
from redrive.topology.dlq_detection import is_named_after
from redrive.topology.peek_safety import PeekSafety
from redrive.worker.clock import Clock, SystemClock

log = logging.getLogger("redrive.admin")

STALE = timedelta(seconds=30)  # an operation without a heartbeat for so long has lost its process
SPENT = "deliveries spent"  # in the audit, where a refusal is called otherwise


@dataclass(frozen=True, slots=True)
class QueueView:
    name: str
    depth: int
    consumers: int
    type: str
    source: str | None
    peek_safety: PeekSafety
    peek_note: str
    oldest: datetime | None  # when the first in the queue died; None if it was not looked at, or does not tell
    operation: Operation | None  # that runs on it
    redrive_to: str = "own"  # where a re-drive goes by default


class Queries:
    def __init__(
        self,
        target: BrokerTarget | CachedTarget,
        store: OperationRepository,
        audit: AuditLog,
        *,
        by: str,
        clock: Clock | None = None,
        named: bool = True,
    ) -> None:
        """`by`: who is acting, for the audit and the messages' lineage. `named`: queues of which nothing is known are
        taken for dead-letter queues, because a person named them.
        """
        self.named = named
        self.reveals = True  # queries see secrets
        self.target = target
        self.store = store
        self.audit = audit
        self.by = by
        self.clock = clock or SystemClock()
        self.owner = f"{socket.gethostname()}:{os.getpid()}:{os.urandom(4).hex()}"

    def for_principal(self, by: str, *, reveals: bool = True) -> Self:
        """Return the same service for another principal. Without `reveals`, queries see what redaction shows."""
        another = copy(self)
        another.by = by
        another.reveals = reveals
        return another

    # Looking ------------------------------------------------------------------------------------------

    async def queues(self, names: Sequence[str] = (), *, oldest: bool = True) -> list[QueueView]:
        """Those that are named, or all dead-letter queues that can be found."""
        running = {each.order.queue: each for each in await asyncio.to_thread(self.store.running_operations)}
        async with self.target.connect_to_read(*names) as view:
            found = list(names) or view.dead_letter_queues()
            return [await self._queue(view, name, running.get(name), oldest) for name in found]

    async def depths(
        self, names: Sequence[str] = (), last: Mapping[str, int] = MappingProxyType({})
    ) -> tuple[dict[str, int], frozenset[str]]:
        """Return the depths of dead-letter queues; and the queues that are being migrated, whose depths say nothing.

        A migration moves all messages out of a queue and back. Only a queue with fewer messages than at the last look
        (`last`), or without one, is asked for a migration: each such question leaves a line in the log of RabbitMQ.
        """
        async with self.target.connect_to_read(*names) as view:
            depths: dict[str, int] = {}
            migrated = set()
            for name in names or view.dead_letter_queues():
                if await _is_migrated(view, migrated_queue(name)):
                    continue  # it is a queue of a migration
                depth = await _depth(view, name)
                if depth is None or depth < last.get(name, depth + 1):
                    if await _is_migrated(view, name):
                        migrated.add(name)
                        continue
                    depth = (await view.connection.queue_info(name)).messages  # a migration may have ended just now
                depths[name] = depth
        return depths, frozenset(migrated)

    async def _queue(self, view: ConnectedTarget, name: str, running: Operation | None, oldest: bool) -> QueueView:
        cost = await view.peek_cost(name)
        info = await view.connection.queue_info(name)
        died = None
        is_dead = view.is_dead_letter_queue(name)
        may_look = cost.is_free and not info.consumers and (self.named if is_dead is None else is_dead)
        if oldest and may_look and info.messages and running is None:
            try:
                async with self._lock(view, name):
                    first = await browse.peek(view.broker, name, limit=1)
                died = first.dead_letters[0].dead_at if first.dead_letters else None
            except OperationConflict:
                pass  # somebody else looks, or works on it: what is left can be told all the same
        return QueueView(
            name,
            info.messages,
            info.consumers,
            (await view.definition(name)).type,
            view.source(name),
            cost.safety,
            cost.why,
            died,
            running,
            str(self.target.redrive_to(name)),
        )

    async def peek(
        self,
        queue: str,
        text: str = "",
        *,
        limit: int = 20,
        start: int = 1,
        risk: Risk = NO_RISK,
        recorded: bool = False,
    ) -> MessagePage:
        """Return some of the messages. `recorded`: the caller has written it into the audit."""
        query = self._query(text)
        await self._record_peek(queue, text, risk, recorded)
        async with self._look(queue, risk) as view:
            return browse.page_without_secrets(
                await browse.peek(view.broker, queue, query=query, limit=limit, start=start)
            )

    async def groups(
        self,
        queue: str,
        by: GroupBy = GroupBy.FINGERPRINT,
        text: str = "",
        *,
        risk: Risk = NO_RISK,
        recorded: bool = False,
    ) -> Grouping:
        query = self._query(text)
        await self._record_peek(queue, text, risk, recorded)
        async with self._look(queue, risk) as view:
            return browse.grouping_without_secrets(await browse.group(view.broker, queue, by, query))

    async def message(
        self, queue: str, id: str, *, reveal: bool = False, risk: Risk = NO_RISK, recorded: bool = False
    ) -> MessageDetail:
        """Return one message. With `reveal` it has its secrets, and the audit says so, whatever is `recorded`."""
        if reveal:
            await self.record("reveal", queue, filter=f"id:{id}", reason=risk.reason)
        else:
            await self._record_peek(queue, f"id:{id}", risk, recorded)
        async with self._look(queue, risk) as view:
            found = await browse.find(view.broker, queue, id)
        if found is None:
            raise LetterNotFound(queue, id)
        return found if reveal else browse.detail_without_secrets(found)

    async def _record_peek(self, queue: str, filter: str, risk: Risk, recorded: bool) -> None:
        if not recorded:
            await self.record_look("peek", queue, risk, filter=filter, detail=str(risk))

    async def record_look(self, action: str, queue: str, risk: Risk, **told: Any) -> None:
        """Record a look that shows no secrets and changes nothing. Without a risk it takes place also if the audit
        cannot be written: while the database is unavailable, dead letters are what operators need to see.
        """
        try:
            await self.record(action, queue, reason=risk.reason, **told)
        except AuditUnavailable as error:
            if risk.spend or risk.any_queue:
                raise
            log.warning("not in the audit: %s of %s by %s: %s", action, queue, self.by, error)

    def _query(self, text: str) -> Query | None:
        return parse(text, self.clock.now(), None if self.reveals else REDACTION) if text else None

    @asynccontextmanager
    async def _look(self, queue: str, risk: Risk) -> AsyncIterator[ConnectedTarget]:
        async with self.target.connect_to_read(queue) as view:
            await self._check_look(view, queue, risk)
            async with self._lock(view, queue), self._take_messages(view, queue, risk):
                yield view

    async def _check_look(self, view: ConnectedTarget, queue: str, risk: Risk) -> None:
        await view.definition(queue)  # if there is none, that is the answer
        if not risk.any_queue:
            view.check_dead(queue, named=self.named)
        await view.check_peek(queue, spend=risk.spend)

    @asynccontextmanager
    async def _take_messages(self, view: ConnectedTarget, queue: str, risk: Risk) -> AsyncIterator[None]:
        """Take messages out of a queue that is locked. Where that costs deliveries, they are counted in the audit."""
        if not risk.any_queue:
            await view.check_unused(queue)
        cost = await view.peek_cost(queue)
        if cost.is_free:
            yield
            return
        allowance = Allowance(queue, cost.limit, await self._deliveries(view, queue))
        allowance.check()
        view.broker.allowances[queue] = allowance
        await self._record_spent(allowance, allowance.spent + 1, risk)
        try:
            yield
        finally:
            await self._record_spent(allowance, allowance.spent, risk)

    async def _deliveries(self, view: ConnectedTarget, queue: str) -> int:
        """Return how often the messages of a queue were given back, as far as looks of Redrive have measured it."""
        last = await asyncio.to_thread(self.audit.list_entries, queue, None, SPENT, 1)
        if not last or not await view.broker.depth(queue):
            return 0
        return last[0][1].counts.get("deliveries") or 0

    async def _record_spent(self, allowance: Allowance, spent: int, risk: Risk) -> None:
        counts = {"deliveries": spent, "limit": allowance.limit}
        await self.record(SPENT, allowance.queue, counts=counts, reason=risk.reason)

    @asynccontextmanager
    async def _lock(self, view: ConnectedTarget, queue: str) -> AsyncIterator[None]:
        try:
            await view.broker.lock(queue)
        except OperationConflict as error:
            raise await self._with_holder(error) from None
        try:
            yield
        finally:
            await view.broker.unlock(queue)

    async def _with_holder(self, conflict: OperationConflict) -> OperationConflict:
        """With the operation that is in the way, if it is known here."""
        running = [
            each
            for each in await asyncio.to_thread(self.store.running_operations)
            if each.order.queue == conflict.queue and each.state is not OperationState.PENDING and self._lives(each)
        ]
        return OperationConflict(conflict.queue, f"operation {running[0].id}") if running else conflict

    # Planning -----------------------------------------------------------------------------------------

    async def plan(self, order: OperationRequest) -> RedrivePlan:
        order = self._with_requester(order)
        risk = risk_of(order)
        await self.record_look("plan", order.queue, risk, filter=str(order.selection), detail=str(risk))
        async with self._look(order.queue, risk) as view:
            view.check_move(order)
            order = _with_canary_wait(order, view)
            chooser = await self._selector(view, order, "")
            found = await plan.scan(view.broker, order, chooser)
            targets = tuple([await self._target(view, route, count) for route, count in found.routes.most_common()])
            also = plan.also_receives(found, order, view.snapshot)
            consumers = (await view.connection.queue_info(order.queue)).consumers
            unseen, unproven = _unseen(found, order, view), _unproven(found, order, view)
            into_dead = view.is_dead_letter_queue(order.to.name) if order.to.way is DestinationKind.QUEUE else False
        now = self.clock.now()
        told = plan.warnings(
            found,
            order,
            targets=targets if order.kind is not OperationKind.DISCARD else (),
            also=also,
            consumers=consumers,
            inbox_windows=dict(self.target.inbox_windows),
            now=now,
            unseen=unseen,
            into_dead=into_dead,
            unproven=unproven,
        )
        return RedrivePlan(
            order,
            now,
            found.depth,
            found.scanned,
            found.matched,
            found.eligible,
            tuple(found.ineligible.most_common()),
            targets,
            also,
            tuple(map(hide_summary, found.sample)),
            told,
        )

    async def _target(self, view: ConnectedTarget, route: tuple[str, str], count: int) -> PlanTarget:
        exchange, key = route
        try:
            if exchange:
                return PlanTarget(exchange, key, count, await view.connection.exchange_exists(exchange))
            info = await view.connection.queue_info(key)
        except (NotFound, EncodingError):  # or it is no name: messages say what they like about where they came from
            return PlanTarget(exchange, key, count, False)
        except RedriveError:
            return PlanTarget(exchange, key, count)
        return PlanTarget(exchange, key, count, True, info.consumers)

    async def _selector(self, view: ConnectedTarget, order: OperationRequest, operation: str) -> MessageSelector:
        return MessageSelector(
            order,
            operation=operation,
            began=self.clock.now(),
            retries=await self._retries(view, order),
            feeders=view.feeders(),
            leads=view.publish_routes().leads,
            budget=view.broker.budget,
        )

    async def _retries(self, view: ConnectedTarget, order: OperationRequest) -> dict[str, tuple[str, str]]:
        if order.to.way is not DestinationKind.RETRY:
            return {}
        source = view.source(order.queue)
        return await view.retries([source] if source is not None else [])

    def _with_requester(self, order: OperationRequest) -> OperationRequest:
        """With who asks, and the moment for which its query is meant."""
        selection = order.selection
        self._query(selection.query)  # a mistake in it is found now
        return replace(
            order,
            by=order.by or self.by,
            reason=redact_text(order.reason),
            selection=replace(selection, now=selection.now or self.clock.now()),
        )

    async def samples(self, order: OperationRequest, transform: Transform, *, force: bool = False) -> list[EditPreview]:
        """Return what a transform would make of some of the messages."""
        await self.record_look("plan", order.queue, risk_of(order), filter=str(order.selection), detail=str(transform))
        async with self._look(order.queue, risk_of(order)) as view:
            chooser = await self._selector(view, self._with_requester(order), "")
            chosen: list[EditPreview] = []
            enough = min(order.selection.limit or plan.MOST_SAMPLES, plan.MOST_SAMPLES)

            def see(delivery: Delivery, dead_letter: Summary) -> bool:
                if isinstance(chooser.choose(dead_letter, delivery.body, delivery.raw_properties), Selected):
                    chosen.append(_sample(transform, delivery, dead_letter, force))
                return len(chosen) >= enough

            await browse.for_each(view.broker, order.queue, see)
        return chosen

    async def export(
        self, queue: str, text: str = "", *, reveal: bool = False, risk: Risk = NO_RISK
    ) -> AsyncGenerator[bytes, None]:
        """Lines of JSON, one for each message. They stay where they are."""
        query = self._query(text)
        redaction = None if reveal else REDACTION
        await self.record("export", queue, filter=text, detail="with secrets" if reveal else "redacted")
        async with self._look(queue, risk) as view:
            depth = await view.broker.depth(queue)
            async with aclosing(browse.stream(view.broker, queue, depth)) as dead_letters:
                async for delivery, dead_letter in dead_letters:
                    if query is None or query.matches(dead_letter, delivery.body, delivery.raw_properties):
                        yield encode_dead_letter(delivery, dead_letter, redaction=redaction)

    # Operations and audit -----------------------------------------------------------------------------

    async def operation(self, id: str) -> Operation:
        """By its id, or by the beginning of it if that is enough."""
        found = await asyncio.to_thread(self.store.find, id)
        if not found:
            raise OperationNotFound(id)
        if len(found) > 1:
            raise ConfigurationError(f"{id} is the beginning of {len(found)} operations: say more of it")
        return found[0]

    def _lives(self, operation: Operation) -> bool:
        return operation.beat_at is not None and self.clock.now() - operation.beat_at < STALE

    def is_interrupted(self, operation: Operation) -> bool:
        """Return whether it is not over, and its process is gone."""
        return not operation.state.is_over and not self._lives(operation)

    async def record(self, action: str, queue: str, **told: Any) -> None:
        await asyncio.to_thread(self.audit.write, self._entry(action, queue, **told))

    def _entry(self, action: str, queue: str, **told: Any) -> AuditEntry:
        return AuditEntry(self.clock.now(), self.by, str(action), queue, allowed=True, **told)


async def _depth(view: ConnectedTarget, queue: str) -> int | None:
    """Return how many messages are ready; None: there is no such queue."""
    try:
        return (await view.connection.queue_info(queue)).messages
    except NotFound:
        return None


async def _is_migrated(view: ConnectedTarget, queue: str | None) -> bool:
    return queue is not None and await _depth(view, MigrationNames(queue).journal) is not None


def _with_canary_wait(order: OperationRequest, view: ConnectedTarget) -> OperationRequest:
    """With a canary that waits for as long as the queue tries a message."""
    if order.ramp is None or order.ramp.wait is not None:
        return order
    tried = view.retry_time(order)
    wait = tried.total_seconds() if tried is not None else DEFAULT_WAIT
    return replace(order, ramp=replace(order.ramp, wait=wait))


def _unseen(found: PlanTally, order: OperationRequest, view: ConnectedTarget) -> tuple[str, ...]:
    """Return the destinations whose dead-letter queues are not known."""
    if order.to.way in (DestinationKind.OWN, DestinationKind.RETRY):
        return ()
    reached = {
        str(PlanTarget(*route, 0)): view.reachable_queues(*route) if route[0] else (route[1],) for route in found.routes
    }
    return tuple(
        name
        for name, queues in reached.items()
        if queues is None or not all(queue in found.sources or view.dead_letter_queues_of(queue) for queue in queues)
    )


def _unproven(found: PlanTally, order: OperationRequest, view: ConnectedTarget) -> tuple[str, ...]:
    """Return the destinations that only the messages name."""
    if order.kind is OperationKind.DISCARD:
        return ()
    knows_feeders = bool(view.feeders().of(order.queue))
    match order.to.way:
        case DestinationKind.OWN | DestinationKind.RETRY:
            named = found.sources if not knows_feeders else ()
            return tuple(sorted(source for source in named if not is_named_after(order.queue, source)))
        case DestinationKind.ORIGINAL:
            leads, routes = view.publish_routes().leads, found.routes.keys() - {plan.OTHER_ROUTES}
            proven = {route for route in routes for queue in found.sources if knows_feeders and leads(*route, queue)}
            return tuple(sorted(str(PlanTarget(*route, 0)) for route in routes - proven))
        case DestinationKind.QUEUE | DestinationKind.EXCHANGE:
            return ()
        case other:
            assert_never(other)


def _sample(transform: Transform, delivery: Delivery, dead_letter: Summary, force: bool) -> EditPreview:
    whole = read_dead_letter(
        delivery.raw_properties, delivery.body, queue=dead_letter.queue, position=dead_letter.position
    )
    try:
        content = apply_transform(transform, delivery, whole, force=force)
    except TransformFailed as error:
        return EditPreview(dead_letter.id, problem=redact_text(str(error)))
    if content is None:
        return EditPreview(dead_letter.id)
    return EditPreview(dead_letter.id, diff(Content(delivery.raw_properties, delivery.body), content))


def risk_of(order: OperationRequest) -> Risk:
    return Risk(order.spend_deliveries, order.any_queue, order.reason)
