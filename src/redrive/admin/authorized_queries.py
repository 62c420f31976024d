"""Queries of one principal: limited to what it may see, recorded in the audit, and cached for a moment."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Hashable
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, TypeVar

from sqlalchemy.exc import SQLAlchemyError

from redrive.admin.access.roles import Permission
from redrive.admin.authorization import Authorization
from redrive.admin.cache import Cached
from redrive.admin.queries import QueueView
from redrive.database.application_tables import RowState
from redrive.errors import NotDeadLetterQueue, OperationConflict, OperationNotFound, PeekUnsafe, RedriveError
from redrive.operations.audit_entry import AuditEntry
from redrive.operations.browse import GroupBy, Grouping, MessageDetail, MessagePage
from redrive.operations.operation import ControlRequest, ItemOutcome, Operation, OperationItem, OperationState
from redrive.operations.peek_allowance import NO_RISK, Risk
from redrive.topology.definitions import Definitions
from redrive.topology.doctor import Finding
from redrive.topology.plan import Plan as TopologyPlan
from redrive.topology.plan import make_plan
from redrive.topology.snapshot import BrokerSnapshot

T = TypeVar("T")

_DEPTHS = 2.0  # seconds for which the depths of queues are as good as new
_WATCHED = 0.5  # seconds for which an operation's progress is
_EXAMINED = 5.0  # seconds for which the doctor's findings are
_ALL = ""  # what is seen of no single queue


@dataclass(frozen=True, slots=True)
class Listed(Generic[T]):
    """A part of something longer."""

    items: tuple[T, ...]
    next: str | None  # by which to ask for what comes after


@dataclass(frozen=True, slots=True)
class OutboxView:
    pending: int
    oldest: Any
    parked: int
    rows: tuple[dict[str, Any], ...]  # the first of those that are parked


@dataclass(frozen=True, slots=True)
class TopologyView:
    snapshot: BrokerSnapshot
    wanted: Definitions
    drift: TopologyPlan


class AuthorizedQueries(Authorization):
    # Looking ------------------------------------------------------------------------------------------

    async def queues(self, *, calm: bool = False) -> list[QueueView]:
        """Those that this person sees. Depths are of now; since when is of a look not long ago, and for who asks `calm`
        nothing is looked at for it.
        """
        await self.need(Permission.LOOK)
        service, snapshots = self.context.service, self.context.snapshots
        views = (await snapshots.get(_ALL, "depths", lambda: service.queues(oldest=False), kept=_DEPTHS)).value
        mine = [self._without_hidden_names(view) for view in views if self.sees(view.name)]
        if calm:
            return [self._with_known_age(view) for view in mine]
        return list(await asyncio.gather(*map(self._with_age, mine)))

    def _without_hidden_names(self, view: QueueView) -> QueueView:
        """Leave out the names of queues that this principal does not see."""
        source = view.source if view.source is not None and self.who.sees(view.source) else None
        return replace(view, source=source, redrive_to=str(self.redrive_to(view.name)))

    def _with_known_age(self, view: QueueView) -> QueueView:
        seen = self.context.snapshots.last_seen(view.name, "oldest") if view.depth else None
        return replace(view, oldest=seen.value[0].oldest) if seen is not None else view

    async def _with_age(self, view: QueueView) -> QueueView:
        if not view.depth or view.operation is not None:
            return view
        try:
            seen = await self.context.snapshots.get(
                view.name, "oldest", lambda: self.context.service.queues([view.name], oldest=True)
            )
        except RedriveError:  # then it is not known
            return view
        return replace(view, oldest=seen.value[0].oldest)

    async def queue(self, name: str) -> QueueView:
        await self.need(Permission.LOOK, name)
        service = self.context.service
        seen = await self.context.snapshots.get(
            name, "queue", lambda: service.queues([name], oldest=False), kept=_DEPTHS
        )
        return await self._with_age(self._without_hidden_names(seen.value[0]))

    async def _query_cached(
        self,
        queue: str,
        what: Hashable,
        look: Callable[[], Awaitable[T]],
        *,
        filter: str,
        fresh: bool = False,
        risk: Risk = NO_RISK,
    ) -> Cached[T]:
        """Return what is seen, or was seen not long ago, and record that this principal sees it.

        What an operator saw at a risk (`risk`) is shown again without another look: deliveries that were spent, to
        everybody who may look; a queue that is not a dead-letter queue, to operators.
        """
        await self._need_risk(queue, risk)
        at_any = what, Permission.ANY_QUEUE

        async def unless_busy() -> T:
            await self._check_busy(queue)
            return await look()

        async def record() -> None:
            await self.service.record_look("peek", queue, risk, filter=filter, detail=str(risk))

        fresh = fresh or risk.spend or risk.any_queue
        await self.context.peeks.get(queue, (self.who.identity, what), record, fresh=fresh)
        key = at_any if risk.any_queue else what
        try:
            return await self.context.snapshots.get(queue, key, unless_busy, fresh=fresh)
        except (PeekUnsafe, NotDeadLetterQueue) as error:
            known = self._seen_at_risk(queue, what if isinstance(error, PeekUnsafe) else at_any)
            if known is None or risk.spend or risk.any_queue:
                raise
            return Cached(known.value, known.at, str(error))

    def _seen_at_risk(self, queue: str, what: Hashable) -> Cached[Any] | None:
        is_any = isinstance(what, tuple) and what[-1] is Permission.ANY_QUEUE
        return (
            self.context.snapshots.last_seen(queue, what)
            if not is_any or self.may(Permission.ANY_QUEUE, queue)
            else None
        )

    async def _check_busy(self, queue: str) -> None:
        """Not while an operation has the queue: that is known without waiting for it."""
        try:
            running = await self._running_operations()
        except SQLAlchemyError:  # the broker's own lock says it, too, only later
            running = {}
        if (operation := running.get(queue)) is not None:
            raise OperationConflict(queue, f"operation {operation.id}")

    def _searcher(self, query: str) -> str:
        """Return who finds the same by a query: those who may reveal find more."""
        return "everything" if query and self.service.reveals else ""

    async def _running_operations(self) -> dict[str, Operation]:
        """Return the running operations that have a live process, by queue."""

        async def ask() -> dict[str, Operation]:
            found = await asyncio.to_thread(self.service.store.running_operations)
            return {one.order.queue: one for one in found if not self.service.is_interrupted(one)}

        return (await self.context.snapshots.get(_ALL, "running", ask, kept=_WATCHED)).value

    async def groups(
        self,
        queue: str,
        by: GroupBy = GroupBy.FINGERPRINT,
        query: str = "",
        *,
        fresh: bool = False,
        risk: Risk = NO_RISK,
    ) -> Cached[Grouping]:
        await self.need(Permission.LOOK, queue)
        look = partial(self.service.groups, queue, by, query, risk=risk, recorded=True)
        what = "groups", by, query, self._searcher(query)
        return await self._query_cached(queue, what, look, filter=query, fresh=fresh, risk=risk)

    def groups_seen_before(self, queue: str) -> Cached[Grouping] | None:
        return self.context.snapshots.last_seen(queue, ("groups", GroupBy.FINGERPRINT, "", ""))

    async def messages(
        self,
        queue: str,
        query: str = "",
        *,
        limit: int = 20,
        start: int = 1,
        fresh: bool = False,
        risk: Risk = NO_RISK,
    ) -> Cached[MessagePage]:
        await self.need(Permission.LOOK, queue)
        look = partial(self.service.peek, queue, query, limit=limit, start=start, risk=risk, recorded=True)
        what = "messages", query, limit, start, self._searcher(query)
        return await self._query_cached(queue, what, look, filter=query, fresh=fresh, risk=risk)

    async def message(
        self, queue: str, id: str, *, reveal: bool = False, fresh: bool = False, risk: Risk = NO_RISK
    ) -> Cached[MessageDetail]:
        """Return one message. With `reveal` it has its secrets: nothing of it is kept, and each look is recorded."""
        await self.need(Permission.REVEAL if reveal else Permission.LOOK, queue)
        if reveal:
            await self._need_risk(queue, risk)
            await self._check_busy(queue)
            return Cached(await self.service.message(queue, id, reveal=True, risk=risk), self.context.clock.now())
        look = partial(self.service.message, queue, id, risk=risk, recorded=True)
        return await self._query_cached(queue, ("message", id), look, filter=f"id:{id}", fresh=fresh, risk=risk)

    async def export(self, queue: str, query: str = "", *, reveal: bool = False) -> AsyncGenerator[bytes, None]:
        """Yield lines of JSON, without secrets unless `reveal`; only lines with secrets can be imported."""
        await self.need(Permission.REVEAL if reveal else Permission.EXPORT, queue)
        lines = self.service.export(queue, query, reveal=reveal)
        async with aclosing(lines):
            async for line in lines:
                yield line

    # Operations ---------------------------------------------------------------------------------------

    async def operations(
        self,
        queue: str | None = None,
        states: Collection[OperationState] | None = None,
        *,
        limit: int = 50,
        before: str | None = None,
    ) -> Listed[Operation]:
        """The newest first, of the queues that this person sees."""
        await self.need(Permission.LOOK, queue)
        found = await asyncio.to_thread(self.service.store.list_operations, queue, states, limit + 1, before)
        page = found[:limit]
        mine = tuple(one for one in page if self.sees(one.order.queue))
        return Listed(mine, page[-1].id if len(found) > limit else None)

    async def operation(self, id: str) -> Operation:
        await self.need(Permission.LOOK)
        found = await self.service.operation(id)
        if not self.sees(found.order.queue):
            raise OperationNotFound(id)
        return found

    async def cached_operation(self, id: str) -> Operation:
        """The same, for those who ask again and again: one question a moment for all of them."""
        seen = await self.context.snapshots.get(
            _ALL, ("operation", id), lambda: self.service.operation(id), fresh=False, kept=_WATCHED
        )
        if not self.sees(seen.value.order.queue):
            raise OperationNotFound(id)
        return seen.value

    async def items(
        self, id: str, outcome: ItemOutcome | None = None, *, limit: int = 100, after: int | None = None
    ) -> Listed[OperationItem]:
        """Return the outcome of each of its messages, in the order in which it was recorded."""
        operation = await self.operation(id)
        found = await self.service.items(operation.id, outcome, limit + 1, after)
        page = found[:limit]
        return Listed(tuple(item for _, item in page), str(page[-1][0]) if len(found) > limit else None)

    async def control_request(self, operation: Operation) -> ControlRequest:
        """Return what is requested of an operation and not applied yet."""
        return await asyncio.to_thread(self.service.store.control_request, operation.id)

    # All else -----------------------------------------------------------------------------------------

    async def outbox(self, limit: int = 50) -> OutboxView:
        await self._need_all(Permission.LOOK)
        outbox = self._outbox()
        status = await asyncio.to_thread(outbox.status)
        rows = await asyncio.to_thread(outbox.list_rows, RowState.PARKED, limit)
        return OutboxView(status["pending"], status["oldest"], status["parked"], tuple(rows))

    async def topology(self) -> TopologyView:
        await self._need_all(Permission.LOOK)
        async with self.context.cached_target.connect_to_read() as view:
            return TopologyView(view.snapshot, view.wanted, make_plan(view.wanted, view.snapshot))

    async def doctor(self) -> tuple[Finding, ...]:
        await self._need_all(Permission.LOOK)
        return (await self.context.snapshots.get(_ALL, "doctor", self._examine, kept=_EXAMINED)).value

    async def _examine(self) -> tuple[Finding, ...]:
        async with self.context.cached_target.connect_to_read() as view:
            return view.findings()

    async def audit(
        self,
        queue: str | None = None,
        by: str | None = None,
        action: str | None = None,
        *,
        limit: int = 50,
        before: int | None = None,
    ) -> Listed[tuple[int, AuditEntry]]:
        """The newest first, each with its number. What is about no queue is for those who see all of them."""
        await self._need_permission(Permission.READ_AUDIT, queue)
        found = await asyncio.to_thread(self.service.audit.list_entries, queue, by, action, limit + 1, before)
        page = found[:limit]
        mine = tuple((number, entry) for number, entry in page if self._sees_entry(entry))
        return Listed(mine, str(page[-1][0]) if len(found) > limit else None)

    def _sees_entry(self, entry: AuditEntry) -> bool:
        return self.who.sees(entry.queue) if entry.queue else self.who.is_unrestricted
