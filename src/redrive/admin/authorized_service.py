"""Operations of one principal: planned, started and controlled by it, where it may.

REST and console are thin around this. Queries are in `redrive.admin.authorized_queries`. An operation is recorded first
(`Service.begin`), and then an executor gets its id.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass, replace

from redrive.admin.access.roles import Permission
from redrive.admin.authorized_queries import AuthorizedQueries
from redrive.admin.service import Change
from redrive.deadletters.edits import EditPreview
from redrive.errors import ConfigurationError, NotEditable, NotFound, PlanDiffers, PlanExpired, TargetUnroutable
from redrive.operations.export_format import Exported
from redrive.operations.operation import (
    ControlRequest,
    DestinationKind,
    Operation,
    OperationKind,
    OperationRequest,
    OperationState,
)
from redrive.operations.plan import RedrivePlan
from redrive.operations.plan_tokens import StoredPlan, digest_of, is_plan_of
from redrive.operations.transforms import Transform


@dataclass(frozen=True, slots=True)
class Planned:
    plan: RedrivePlan
    token: str


class AuthorizedService(AuthorizedQueries):
    # Planning and re-driving --------------------------------------------------------------------------

    async def plan(self, order: OperationRequest) -> Planned:
        act = Permission.DISCARD if order.kind is OperationKind.DISCARD else Permission.PLAN
        await self.need(act, order.queue)
        plan = await self.service.plan(await self._restrict(act, order))
        if plan.also_receives:
            plan = replace(plan, also_receives=tuple(filter(self.who.sees, plan.also_receives)))
        return Planned(plan, await self._keep(plan.order, plan.eligible, _request_digest(order)))

    async def _keep(self, order: OperationRequest, eligible: int, digest: str) -> str:
        """Return the token by which a plan is carried out."""
        now = self.context.clock.now()
        return await asyncio.to_thread(self.context.plans.keep, order, eligible, self.who.identity, now, digest)

    async def redrive(self, order: OperationRequest) -> Operation:
        """Without a plan of one's own. A canary gets one all the same: how long it waits depends on it."""
        await self.need(Permission.REDRIVE, order.queue)
        order, planned = await self._restrict(Permission.REDRIVE, order), None
        if order.ramp is not None:
            plan = await self.service.plan(order)
            order, planned = plan.order, plan.eligible
        return await self._begin(order, planned)

    async def carry_out(
        self, queue: str, token: str, *, changes: Callable[[OperationRequest], OperationRequest] = lambda one: one
    ) -> Operation:
        """A plan that was shown. `changes`: how fast, and why, may be said when saying yes."""
        await self.need(Permission.REDRIVE, queue)
        kept = await self._take(queue, token)
        if kept is None or kept.order.kind is not OperationKind.REDRIVE:
            raise PlanExpired
        order = await self._restrict(Permission.REDRIVE, changes(kept.order))  # its queues may have changed since
        return await self._begin(order, kept.eligible)

    async def carry_out_as_shown(self, order: OperationRequest, token: str) -> Operation:
        """Carry out the plan that a form showed, if the form still asks for that: the same messages, no more of them
        than were shown, and nothing if another operation worked on the queue since. Rate and reason are the order's.
        """
        act = Permission.DISCARD if order.kind is OperationKind.DISCARD else Permission.REDRIVE
        await self.need(act, order.queue)
        kept = await self._take_shown(order.queue, token, _request_digest(order))
        restricted = await self._restrict(act, kept.order)  # its queues may have changed since
        chosen = replace(restricted, rate=order.rate, reason=order.reason)
        if order.kind is not OperationKind.DISCARD:
            return await self._begin(chosen, kept.eligible)
        limited = replace(chosen.selection, limit=max(1, kept.eligible))
        return await self.discard(order.queue, replace(chosen, selection=limited), order.queue)

    def is_plan_of(self, order: OperationRequest, token: str) -> bool:
        """Return whether the plan of this token was made for this order. Rate and reason may differ."""
        return is_plan_of(token, _request_digest(order))

    async def _take_shown(self, queue: str, token: str, digest: str) -> StoredPlan:
        if not is_plan_of(token, digest):
            raise PlanDiffers
        kept = await self._take(queue, token)
        if kept is None:
            raise PlanExpired(operation=await self.operation_of_plan(queue, token))
        newest = await asyncio.to_thread(self.service.store.list_operations, queue, None, 1, None)
        shown_at = kept.order.selection.now
        if newest and shown_at is not None and newest[0].created_at > shown_at:
            raise PlanDiffers(queue_changed=True)
        return kept

    async def _take(self, queue: str, token: str) -> StoredPlan | None:
        return await asyncio.to_thread(
            self.context.plans.take, token, queue, self.who.identity, self.context.clock.now()
        )

    async def operation_of_plan(self, queue: str, token: str) -> str:
        """Return the id of the operation that this plan became, or nothing."""
        order = await asyncio.to_thread(self.context.plans.carried_out_order, token, queue, self.who.identity)
        if order is None:
            return ""
        found = await asyncio.to_thread(self.service.store.list_operations, queue, None, 50, None)
        return next((one.id for one in found if one.order.selection.now == order.selection.now), "")

    async def _begin(self, order: OperationRequest, planned: int | None) -> Operation:
        await self._check_target(order)
        operation = await self.service.begin(order, planned=planned)
        return await self.context.executor.start(operation.id)

    async def _check_target(self, order: OperationRequest) -> None:
        """A destination that somebody names, and that is not there, is a mistake: found now, not message by message."""
        if order.to.way not in (DestinationKind.QUEUE, DestinationKind.EXCHANGE):
            return
        async with self.context.cached_target.connect_to_read() as view:
            if order.to.way is DestinationKind.EXCHANGE:
                there = await view.connection.exchange_exists(order.to.name)
            else:
                try:
                    there = bool(await view.connection.queue_info(order.to.name))
                except NotFound:
                    there = False
        if not there:
            raise TargetUnroutable(
                f"{'exchange' if order.to.way is DestinationKind.EXCHANGE else 'queue'} {order.to.name}"
            )

    async def move(self, order: OperationRequest) -> Operation:
        """Move messages to another dead-letter queue, with their failure records."""
        await self.need(Permission.REDRIVE, order.queue)
        plan = await self.service.plan(await self._restrict(Permission.REDRIVE, order))
        return await self._begin(plan.order, plan.eligible)

    async def discard(self, queue: str, order: OperationRequest, confirm: str) -> Operation:
        await self.need(Permission.DISCARD, queue)
        if confirm != queue:
            raise ConfigurationError(f"to discard messages of {queue}, say its name once more as `confirm`")
        order = await self._restrict(Permission.DISCARD, replace(order, kind=OperationKind.DISCARD))
        plan = await self.service.plan(order)
        operation = await self.service.begin_discard(plan, self.context.archives, confirm=confirm)
        return await self.context.executor.start(operation.id)

    async def edit(
        self, order: OperationRequest, transform: Transform, *, force: bool = False, token: str | None = None
    ) -> Operation:
        """Send messages back to work, changed. The originals are archived. `token`: of the change that was shown, which
        is the only one that is sent.
        """
        await self.need_editing(order.queue)
        if token is not None:
            kept = await self._take_shown(order.queue, token, _request_digest(order, transform, force))
            order = replace(order, selection=kept.order.selection)
        plan = await self.service.plan(await self._restrict(Permission.EDIT, order))
        operation = await self.service.begin_edit(plan, transform, self.context.archives)
        return await self.context.local.start(operation.id, Change(transform, force))

    async def preview(self, order: OperationRequest, transform: Transform, *, force: bool = False) -> list[EditPreview]:
        """What a change would do: ids with differences."""
        await self.need_editing(order.queue)
        order = await self._restrict(Permission.EDIT, order)
        return await self.service.samples(order, transform, force=force)

    async def keep_edit(self, order: OperationRequest, transform: Transform, *, force: bool = False) -> str:
        """Return the token by which a change that was shown is sent."""
        signed = replace(order, selection=replace(order.selection, now=self.context.clock.now()))
        return await self._keep(signed, 1, _request_digest(order, transform, force))

    async def need_editing(self, queue: str) -> None:
        await self.need(Permission.EDIT, queue)
        if not self.context.settings.editing:
            raise NotEditable

    async def need_importing(self, queue: str) -> None:
        """Raise what is against an import before its body is read: the permission, or that the queue does not exist."""
        await self.need(Permission.IMPORT, queue)
        async with self.context.cached_target.connect_to_read(queue) as view:
            await view.definition(queue)

    # Out and in ---------------------------------------------------------------------------------------

    async def restore(self, queue: str, lines: Iterable[tuple[int, Exported]], name: str) -> int:
        """Put exported messages into a queue. How many lines are in it now."""
        await self.need(Permission.IMPORT, queue)
        upto = 0
        progress = self.service.restore(lines, queue, name, may_use=None if self.who.is_unrestricted else self.who.sees)
        async with aclosing(progress):
            async for line in progress:
                upto = line
        self.context.snapshots.invalidate(queue)
        return upto

    # Operations ---------------------------------------------------------------------------------------

    async def steer(self, id: str, wish: ControlRequest) -> Operation:
        """Pause, go on, cancel, faster or slower. It is heard within a second."""
        found = await self.operation(id)
        await self.need(Permission.STEER, found.order.queue)
        if wish.state is OperationState.RUNNING:
            await self._need_reach(found.order)
        if wish.state is OperationState.RUNNING and self.service.is_interrupted(found):
            if wish.rate is not None:
                await self.service.request_control(found.id, ControlRequest(rate=wish.rate))
            await self.service.take_over(found, OperationState.RUNNING)
            return await self.context.executor.start(found.id)
        await self.service.request_control(found.id, wish)
        return await self.service.operation(found.id)

    # All else -----------------------------------------------------------------------------------------

    async def retry_outbox(self, id: int | None) -> int:
        """Let a parked row be published again; all of them with None."""
        await self.need(Permission.RETRY_OUTBOX)
        outbox = self._outbox()
        await self.service.record("outbox retry", "", filter="all" if id is None else f"row {id}")
        return await asyncio.to_thread(outbox.retry, None if id is None else [id])

    async def discard_outbox(self, id: int) -> int:
        await self.need(Permission.DISCARD_OUTBOX)
        outbox = self._outbox()
        await self.service.record("outbox discard", "", filter=f"row {id}")
        return await asyncio.to_thread(outbox.discard, [id])


def _request_digest(order: OperationRequest, *more: object) -> str:
    """Return a digest of all that a plan depends on. The rate and the reason may be given when it is carried out."""
    return digest_of(replace(order, rate=None, reason=""), *more)
