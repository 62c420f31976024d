"""What one person does with dead letters: looked up among what they may, and written down if it does anything.

REST and console are thin around this. Whoever may not do something is told so, and the audit as well.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Hashable, Iterable
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, Generic, NoReturn, TypeVar, assert_never

from sqlalchemy.exc import SQLAlchemyError

from redrive.admin.access.roles import Act, Principal
from redrive.admin.jobs import Change, Discard, GoOn, Redrive
from redrive.admin.office import Office
from redrive.admin.running import Crew
from redrive.admin.service import QueueView
from redrive.admin.snapshots import Seen
from redrive.deadletters.edits import EditPreview
from redrive.errors import (
    AuditUnavailable,
    ConfigurationError,
    NoOutbox,
    NotAllowed,
    NotDeadLetterQueue,
    NotEditable,
    NotFound,
    OperationConflict,
    OperationNotFound,
    PeekUnsafe,
    PlanDiffers,
    PlanExpired,
    QueueNotAccepted,
    RedriveError,
    TargetUnroutable,
)
from redrive.runtime.dlq.audit import AuditEntry
from redrive.runtime.dlq.letters import Exported
from redrive.runtime.dlq.looking import By, Found, Grouping, Page
from redrive.runtime.dlq.operation import Destination, Item, Kind, Operation, Order, Outcome, State, Way, Wish
from redrive.runtime.dlq.planning import Plan
from redrive.runtime.dlq.spending import NO_RISK, Risk
from redrive.runtime.dlq.transforming import Transform
from redrive.store.plans import Kept, digest_of, is_plan_of
from redrive.store.tables import RowState
from redrive.topology.definitions import Definitions
from redrive.topology.doctor import Finding, examine
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
class Planned:
    plan: Plan
    token: str


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


class Desk:
    def __init__(self, office: Office, who: Principal) -> None:
        self.office = office
        self.who = who
        self.service = office.service.acting(who.name, reveals=who.role >= Act.REVEAL.needs)

    def may(self, act: Act, queue: str | None = None) -> bool:
        return self.who.may(act, queue)

    async def need(self, act: Act, queue: str | None = None) -> None:
        """Raise what is against it: a permission that is missing, or a queue that this server does not accept."""
        await self._need_permission(act, queue)
        if queue is not None and not self._accepts(queue):
            accepted = sorted(filter(self.sees, self.office.accepted or ()))
            raise QueueNotAccepted(queue, self.office.target.describe_queue(queue), self.office.name, accepted)

    async def _need_permission(self, act: Act, queue: str | None) -> None:
        if not self.may(act, queue):
            await self._refuse(self.who.not_allowed(act, queue), queue or "")

    def _accepts(self, queue: str) -> bool:
        return self.office.accepted is None or queue in self.office.accepted

    def sees(self, queue: str) -> bool:
        """Return whether what concerns this dead-letter queue is shown."""
        return self.who.sees(queue) and self._accepts(queue)

    async def _refuse(self, refused: NotAllowed, queue: str) -> NoReturn:
        entry = AuditEntry(
            self.office.clock.now(), self.who.name, str(refused.act), queue, allowed=False, detail=str(refused)
        )
        try:
            await asyncio.to_thread(self.service.audit.write, entry)
        except AuditUnavailable as error:
            raise refused from error
        raise refused

    async def _need_all(self, act: Act) -> None:
        """What names everybody's queues is for those who see all of them."""
        await self.need(act)
        if not self.who.is_unrestricted:
            raise self.who.not_allowed(act, "*")

    async def _restricted(self, act: Act, order: Order) -> Order:
        """Return the order with the queues that this principal may send to: where each message goes is decided later,
        perhaps by another server. A destination that is named is checked now, before the broker is asked, which would
        tell what is there. What goes to an exchange gets wherever that is bound to: only an unrestricted principal may.
        """
        match order.to.way:
            case Way.QUEUE:
                await self._need_permission(act, order.to.name)
            case Way.EXCHANGE | Way.ORIGINAL:
                if not self.who.is_unrestricted:
                    await self._refuse(self.who.not_allowed(act, "*"), order.queue)
            case Way.OWN | Way.RETRY:
                pass
            case other:
                assert_never(other)
        await self._need_risk(order.queue, Risk(order.spend_deliveries, order.any_queue))
        hidden = not self.may(Act.REVEAL, order.queue)
        return replace(order, allowed=self.who.queues, selection=replace(order.selection, redacted=hidden))

    async def _need_risk(self, queue: str, risk: Risk) -> None:
        if risk.spend:
            await self.need(Act.SPEND, queue)
        if risk.any_queue:
            await self.need(Act.ANY_QUEUE, queue)

    async def _need_reach(self, order: Order) -> None:
        """To resume an operation is to send its messages: only where this principal may send them."""
        if self.who.is_unrestricted or order.kind is Kind.DISCARD or set(order.allowed) <= set(self.who.queues):
            return
        if order.to.way is Way.QUEUE:
            await self._need_permission(Act.STEER, order.to.name)
        else:
            await self._refuse(self.who.not_allowed(Act.STEER, "*"), order.queue)

    # Looking ------------------------------------------------------------------------------------------

    async def queues(self, *, calm: bool = False) -> list[QueueView]:
        """Those that this person sees. Depths are of now; since when is of a look not long ago, and for who asks `calm`
        nothing is looked at for it.
        """
        await self.need(Act.LOOK)
        service, snapshots = self.office.service, self.office.snapshots
        views = (await snapshots.get(_ALL, "depths", lambda: service.queues(oldest=False), kept=_DEPTHS)).value
        mine = [self._named(view) for view in views if self.sees(view.name)]
        if calm:
            return [self._with_known_age(view) for view in mine]
        return list(await asyncio.gather(*map(self._with_age, mine)))

    def _named(self, view: QueueView) -> QueueView:
        """Leave out the names of queues that this principal does not see."""
        source = view.source if view.source is not None and self.who.sees(view.source) else None
        return replace(view, source=source, redrive_to=str(self.redrive_to(view.name)))

    def _with_known_age(self, view: QueueView) -> QueueView:
        seen = self.office.snapshots.known(view.name, "oldest") if view.depth else None
        return replace(view, oldest=seen.value[0].oldest) if seen is not None else view

    async def _with_age(self, view: QueueView) -> QueueView:
        if not view.depth or view.operation is not None:
            return view
        try:
            seen = await self.office.snapshots.get(
                view.name, "oldest", lambda: self.office.service.queues([view.name], oldest=True)
            )
        except RedriveError:  # then it is not known
            return view
        return replace(view, oldest=seen.value[0].oldest)

    async def queue(self, name: str) -> QueueView:
        await self.need(Act.LOOK, name)
        service = self.office.service
        seen = await self.office.snapshots.get(
            name, "queue", lambda: service.queues([name], oldest=False), kept=_DEPTHS
        )
        return await self._with_age(self._named(seen.value[0]))

    async def _looked(
        self,
        queue: str,
        what: Hashable,
        look: Callable[[], Awaitable[T]],
        *,
        filter: str,
        fresh: bool = False,
        risk: Risk = NO_RISK,
    ) -> Seen[T]:
        """Return what is seen, or was seen not long ago, and record that this principal sees it.

        What an operator saw at a risk (`risk`) is shown again without another look: deliveries that were spent, to
        everybody who may look; a queue that is not a dead-letter queue, to operators.
        """
        await self._need_risk(queue, risk)
        at_any = what, Act.ANY_QUEUE

        async def unless_busy() -> T:
            await self._check_busy(queue)
            return await look()

        async def record() -> None:
            await self.service.record_look("peek", queue, risk, filter=filter, detail=str(risk))

        fresh = fresh or risk.spend or risk.any_queue
        await self.office.peeks.get(queue, (self.who.identity, what), record, fresh=fresh)
        key = at_any if risk.any_queue else what
        try:
            return await self.office.snapshots.get(queue, key, unless_busy, fresh=fresh)
        except (PeekUnsafe, NotDeadLetterQueue) as error:
            known = self._seen_at_a_risk(queue, what if isinstance(error, PeekUnsafe) else at_any)
            if known is None or risk.spend or risk.any_queue:
                raise
            return Seen(known.value, known.at, str(error))

    def _seen_at_a_risk(self, queue: str, what: Hashable) -> Seen[Any] | None:
        is_any = isinstance(what, tuple) and what[-1] is Act.ANY_QUEUE
        return self.office.snapshots.known(queue, what) if not is_any or self.may(Act.ANY_QUEUE, queue) else None

    async def _check_busy(self, queue: str) -> None:
        """Not while an operation has the queue: that is known without waiting for it."""
        try:
            running = await self._running()
        except SQLAlchemyError:  # the broker's own lock says it, too, only later
            running = {}
        if (operation := running.get(queue)) is not None:
            raise OperationConflict(queue, f"operation {operation.id}")

    def _searching(self, query: str) -> str:
        """Return who finds the same by a query: those who may reveal find more."""
        return "everything" if query and self.service.reveals else ""

    async def _running(self) -> dict[str, Operation]:
        """By queue, those that somebody works on."""

        async def ask() -> dict[str, Operation]:
            found = await asyncio.to_thread(self.service.store.running)
            return {one.order.queue: one for one in found if not self.service.is_interrupted(one)}

        return (await self.office.snapshots.get(_ALL, "running", ask, kept=_WATCHED)).value

    async def groups(
        self, queue: str, by: By = By.FINGERPRINT, query: str = "", *, fresh: bool = False, risk: Risk = NO_RISK
    ) -> Seen[Grouping]:
        await self.need(Act.LOOK, queue)

        async def look() -> Grouping:
            return await self.service.groups(queue, by, query, risk=risk, recorded=True)

        what = "groups", by, query, self._searching(query)
        return await self._looked(queue, what, look, filter=query, fresh=fresh, risk=risk)

    def groups_seen_before(self, queue: str) -> Seen[Grouping] | None:
        return self.office.snapshots.known(queue, ("groups", By.FINGERPRINT, "", ""))

    async def messages(
        self,
        queue: str,
        query: str = "",
        *,
        limit: int = 20,
        start: int = 1,
        fresh: bool = False,
        risk: Risk = NO_RISK,
    ) -> Seen[Page]:
        await self.need(Act.LOOK, queue)

        async def look() -> Page:
            return await self.service.peek(queue, query, limit=limit, start=start, risk=risk, recorded=True)

        what = "messages", query, limit, start, self._searching(query)
        return await self._looked(queue, what, look, filter=query, fresh=fresh, risk=risk)

    async def message(
        self, queue: str, id: str, *, reveal: bool = False, fresh: bool = False, risk: Risk = NO_RISK
    ) -> Seen[Found]:
        """Return one message. With `reveal` it has its secrets: nothing of it is kept, and each look is recorded."""
        await self.need(Act.REVEAL if reveal else Act.LOOK, queue)
        if reveal:
            await self._need_risk(queue, risk)
            await self._check_busy(queue)
            return Seen(await self.service.message(queue, id, reveal=True, risk=risk), self.office.clock.now())

        async def look() -> Found:
            return await self.service.message(queue, id, risk=risk, recorded=True)

        return await self._looked(queue, ("message", id), look, filter=f"id:{id}", fresh=fresh, risk=risk)

    # Planning and re-driving --------------------------------------------------------------------------

    def redrive_to(self, queue: str) -> Destination:
        """Return where a re-drive of a dead-letter queue goes by default: as its topology says, or `own` if this
        principal may not send there.
        """
        to = self.office.target.redrive_to(queue)
        return to if self._may_send_to(to) else Destination()

    def _may_send_to(self, to: Destination) -> bool:
        match to.way:
            case Way.QUEUE:
                return self.who.sees(to.name)
            case Way.EXCHANGE | Way.ORIGINAL:
                return self.who.is_unrestricted
            case Way.OWN | Way.RETRY:
                return True  # decided for each message
            case other:
                assert_never(other)

    async def plan(self, order: Order) -> Planned:
        act = Act.DISCARD if order.kind is Kind.DISCARD else Act.PLAN
        await self.need(act, order.queue)
        plan = await self.service.plan(await self._restricted(act, order))
        if plan.also_receives:
            plan = replace(plan, also_receives=tuple(filter(self.who.sees, plan.also_receives)))
        return Planned(plan, await self._keep(plan.order, plan.eligible, _asked(order)))

    async def _keep(self, order: Order, eligible: int, digest: str) -> str:
        """Return the token by which a plan is carried out."""
        now = self.office.clock.now()
        return await asyncio.to_thread(self.office.plans.keep, order, eligible, self.who.identity, now, digest)

    async def redrive(self, order: Order) -> Operation:
        """Without a plan of one's own. A canary gets one all the same: how long it waits depends on it."""
        await self.need(Act.REDRIVE, order.queue)
        order, planned = await self._restricted(Act.REDRIVE, order), None
        if order.ramp is not None:
            plan = await self.service.plan(order)
            order, planned = plan.order, plan.eligible
        return await self._begin(order, planned)

    async def carry_out(
        self, queue: str, token: str, *, changes: Callable[[Order], Order] = lambda one: one
    ) -> Operation:
        """A plan that was shown. `changes`: how fast, and why, may be said when saying yes."""
        await self.need(Act.REDRIVE, queue)
        kept = await asyncio.to_thread(self.office.plans.take, token, queue, self.who.identity, self.office.clock.now())
        if kept is None or kept.order.kind is not Kind.REDRIVE:
            raise PlanExpired
        order = await self._restricted(Act.REDRIVE, changes(kept.order))  # its queues may have changed since
        return await self._begin(order, kept.eligible)

    async def carry_out_as_shown(self, order: Order, token: str) -> Operation:
        """Carry out the plan that a form showed, if the form still asks for that: the same messages, no more of them
        than were shown, and nothing if another operation worked on the queue since. Rate and reason are the order's.
        """
        act = Act.DISCARD if order.kind is Kind.DISCARD else Act.REDRIVE
        await self.need(act, order.queue)
        kept = await self._take_shown(order.queue, token, _asked(order))
        restricted = await self._restricted(act, kept.order)  # its queues may have changed since
        chosen = replace(restricted, rate=order.rate, reason=order.reason)
        if order.kind is not Kind.DISCARD:
            return await self._begin(chosen, kept.eligible)
        limited = replace(chosen.selection, limit=max(1, kept.eligible))
        return await self.discard(order.queue, replace(chosen, selection=limited), order.queue)

    def is_plan_of(self, order: Order, token: str) -> bool:
        """Return whether the plan of this token was made for this order. Rate and reason may differ."""
        return is_plan_of(token, _asked(order))

    async def _take_shown(self, queue: str, token: str, digest: str) -> Kept:
        if not is_plan_of(token, digest):
            raise PlanDiffers
        kept = await asyncio.to_thread(self.office.plans.take, token, queue, self.who.identity, self.office.clock.now())
        if kept is None:
            raise PlanExpired(operation=await self.carried_out(queue, token))
        newest = await asyncio.to_thread(self.service.store.listed, queue, None, 1, None)
        shown_at = kept.order.selection.now
        if newest and shown_at is not None and newest[0].created_at > shown_at:
            raise PlanDiffers(queue_changed=True)
        return kept

    async def carried_out(self, queue: str, token: str) -> str:
        """Return the id of the operation that this plan became, or nothing."""
        order = await asyncio.to_thread(self.office.plans.taken, token, queue, self.who.identity)
        if order is None:
            return ""
        found = await asyncio.to_thread(self.service.store.listed, queue, None, 50, None)
        return next((one.id for one in found if one.order.selection.now == order.selection.now), "")

    async def _begin(self, order: Order, planned: int | None) -> Operation:
        await self._check_target(order)
        return await self._crew.begin(Redrive(self.who.name, order, planned))

    async def _check_target(self, order: Order) -> None:
        """A destination that somebody names, and that is not there, is a mistake: found now, not message by message."""
        if order.to.way not in (Way.QUEUE, Way.EXCHANGE):
            return
        async with self.office.cached_target.looking() as view:
            if order.to.way is Way.EXCHANGE:
                there = await view.connection.exchange_exists(order.to.name)
            else:
                try:
                    there = bool(await view.connection.queue_info(order.to.name))
                except NotFound:
                    there = False
        if not there:
            raise TargetUnroutable(f"{'exchange' if order.to.way is Way.EXCHANGE else 'queue'} {order.to.name}")

    async def move(self, order: Order) -> Operation:
        """Move messages to another dead-letter queue, with their failure records."""
        await self.need(Act.REDRIVE, order.queue)
        plan = await self.service.plan(await self._restricted(Act.REDRIVE, order))
        return await self._begin(plan.order, plan.eligible)

    async def discard(self, queue: str, order: Order, confirm: str) -> Operation:
        await self.need(Act.DISCARD, queue)
        if confirm != queue:
            raise ConfigurationError(f"to discard messages of {queue}, say its name once more as `confirm`")
        order = await self._restricted(Act.DISCARD, replace(order, kind=Kind.DISCARD))
        plan = await self.service.plan(order)
        return await self._crew.begin(Discard(self.who.name, plan, self.office.archives, confirm))

    async def edit(
        self, order: Order, transform: Transform, *, force: bool = False, token: str | None = None
    ) -> Operation:
        """Send messages back to work, changed. The originals are archived. `token`: of the change that was shown, which
        is the only one that is sent.
        """
        await self.need_editing(order.queue)
        if token is not None:
            kept = await self._take_shown(order.queue, token, _asked(order, transform, force))
            order = replace(order, selection=kept.order.selection)
        plan = await self.service.plan(await self._restricted(Act.EDIT, order))
        return await self._crew.begin(Change(self.who.name, plan, self.office.archives, transform, force))

    @property
    def _crew(self) -> Crew:
        return self.office.runner.crew

    async def preview(self, order: Order, transform: Transform, *, force: bool = False) -> list[EditPreview]:
        """Return what a change would make of each selected message."""
        await self.need_editing(order.queue)
        order = await self._restricted(Act.EDIT, order)
        return await self.service.samples(order, transform, force=force)

    async def keep_edit(self, order: Order, transform: Transform, *, force: bool = False) -> str:
        """Return the token by which a change that was shown is sent."""
        signed = replace(order, selection=replace(order.selection, now=self.office.clock.now()))
        return await self._keep(signed, 1, _asked(order, transform, force))

    async def need_editing(self, queue: str) -> None:
        await self.need(Act.EDIT, queue)
        if not self.office.settings.editing:
            raise NotEditable

    async def need_importing(self, queue: str) -> None:
        """Raise what is against an import before its body is read: the permission, or that the queue does not exist."""
        await self.need(Act.IMPORT, queue)
        async with self.office.cached_target.looking(queue) as view:
            await view.definition(queue)

    # Out and in ---------------------------------------------------------------------------------------

    async def export(self, queue: str, query: str = "", *, reveal: bool = False) -> AsyncGenerator[bytes, None]:
        """Lines of JSON. Without secrets, unless somebody may see them; only those that have all can be imported."""
        await self.need(Act.REVEAL if reveal else Act.EXPORT, queue)
        lines = self.service.export(queue, query, reveal=reveal)
        async with aclosing(lines):
            async for line in lines:
                yield line

    async def restore(self, queue: str, lines: Iterable[tuple[int, Exported]], name: str) -> int:
        """Put exported messages into a queue. How many lines are in it now."""
        await self.need(Act.IMPORT, queue)
        upto = 0
        progress = self.service.restore(lines, queue, name, may_use=None if self.who.is_unrestricted else self.who.sees)
        async with aclosing(progress):
            async for line in progress:
                upto = line
        self.office.snapshots.outdate(queue)
        return upto

    # Operations ---------------------------------------------------------------------------------------

    async def operations(
        self,
        queue: str | None = None,
        states: Collection[State] | None = None,
        *,
        limit: int = 50,
        before: str | None = None,
    ) -> Listed[Operation]:
        """The newest first, of the queues that this person sees."""
        await self.need(Act.LOOK, queue)
        found = await asyncio.to_thread(self.service.store.listed, queue, states, limit + 1, before)
        page = found[:limit]
        mine = tuple(one for one in page if self.sees(one.order.queue))
        return Listed(mine, page[-1].id if len(found) > limit else None)

    async def operation(self, id: str) -> Operation:
        await self.need(Act.LOOK)
        found = await self.service.operation(id)
        if not self.sees(found.order.queue):
            raise OperationNotFound(id)
        return found

    async def watched(self, id: str) -> Operation:
        """The same, for those who ask again and again: one question a moment for all of them."""
        seen = await self.office.snapshots.get(
            _ALL, ("operation", id), lambda: self.service.operation(id), fresh=False, kept=_WATCHED
        )
        if not self.sees(seen.value.order.queue):
            raise OperationNotFound(id)
        return seen.value

    async def items(
        self, id: str, outcome: Outcome | None = None, *, limit: int = 100, after: int | None = None
    ) -> Listed[Item]:
        """What became of its messages, in the order in which that was written down."""
        operation = await self.operation(id)
        found = await self.service.items(operation.id, outcome, limit + 1, after)
        page = found[:limit]
        return Listed(tuple(item for _, item in page), str(page[-1][0]) if len(found) > limit else None)

    async def wanted(self, operation: Operation) -> Wish:
        """Return what is requested of an operation and not applied yet."""
        return await asyncio.to_thread(self.service.store.wishes, operation.id)

    async def steer(self, id: str, wish: Wish) -> Operation:
        """Pause, go on, cancel, faster or slower. It is heard within a second."""
        found = await self.operation(id)
        await self.need(Act.STEER, found.order.queue)
        if wish.state is State.RUNNING:
            await self._need_reach(found.order)
        if wish.state is State.RUNNING and self.service.is_interrupted(found):
            if wish.rate is not None:
                await self.service.wish(found.id, Wish(rate=wish.rate))
            return await self._crew.begin(GoOn(self.who.name, found, asked=True))
        await self.service.wish(found.id, wish)
        return await self.service.operation(found.id)

    # All else -----------------------------------------------------------------------------------------

    async def outbox(self, limit: int = 50) -> OutboxView:
        await self._need_all(Act.LOOK)
        claims = self._claims()
        status = await asyncio.to_thread(claims.status)
        rows = await asyncio.to_thread(claims.listed, RowState.PARKED, limit)
        return OutboxView(status["pending"], status["oldest"], status["parked"], tuple(rows))

    async def retry_outbox(self, id: int | None) -> int:
        """Let a parked row be published again; all of them with None."""
        await self.need(Act.RETRY_OUTBOX)
        claims = self._claims()
        await self.service.record("outbox retry", "", filter="all" if id is None else f"row {id}")
        return await asyncio.to_thread(claims.retry, None if id is None else [id])

    async def discard_outbox(self, id: int) -> int:
        await self.need(Act.DISCARD_OUTBOX)
        claims = self._claims()
        await self.service.record("outbox discard", "", filter=f"row {id}")
        return await asyncio.to_thread(claims.discard, [id])

    def _claims(self) -> Any:
        if self.office.outbox is None:
            raise NoOutbox
        return self.office.outbox

    async def topology(self) -> TopologyView:
        await self._need_all(Act.LOOK)
        async with self.office.cached_target.looking() as view:
            return TopologyView(view.snapshot, view.wanted, make_plan(view.wanted, view.snapshot))

    async def doctor(self) -> tuple[Finding, ...]:
        await self._need_all(Act.LOOK)
        return (await self.office.snapshots.get(_ALL, "doctor", self._examine, kept=_EXAMINED)).value

    async def _examine(self) -> tuple[Finding, ...]:
        topology = self.office.target.topology
        async with self.office.cached_target.looking() as view:
            return examine(view.snapshot, topology if topology.queues else None, vhost=view.connection.url.virtual_host)

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
        await self._need_permission(Act.READ_AUDIT, queue)
        found = await asyncio.to_thread(self.service.audit.listed, queue, by, action, limit + 1, before)
        page = found[:limit]
        mine = tuple((number, entry) for number, entry in page if self._sees_entry(entry))
        return Listed(mine, str(page[-1][0]) if len(found) > limit else None)

    def _sees_entry(self, entry: AuditEntry) -> bool:
        return self.who.sees(entry.queue) if entry.queue else self.who.is_unrestricted


def _asked(order: Order, *more: object) -> str:
    """Return a digest of all that a plan depends on. The rate and the reason may be given when it is carried out."""
    return digest_of(replace(order, rate=None, reason=""), *more)
