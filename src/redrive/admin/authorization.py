"""What one principal may do, and what the audit says about a refusal."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import NoReturn, assert_never

from redrive.admin.access.roles import Permission, Principal
from redrive.admin.context import AdminContext
from redrive.errors import AuditUnavailable, NoOutbox, NotAllowed, QueueNotAccepted
from redrive.operations.audit_entry import AuditEntry
from redrive.operations.operation import Destination, DestinationKind, OperationKind, OperationRequest
from redrive.operations.peek_allowance import Risk
from redrive.outbox.repository import OutboxRepository


class Authorization:
    def __init__(self, context: AdminContext, who: Principal) -> None:
        self.context = context
        self.who = who
        self.service = context.service.for_principal(who.name, reveals=who.role >= Permission.REVEAL.needs)

    def may(self, act: Permission, queue: str | None = None) -> bool:
        return self.who.may(act, queue)

    async def need(self, act: Permission, queue: str | None = None) -> None:
        """Raise what is against it: a permission that is missing, or a queue that this server does not accept."""
        await self._need_permission(act, queue)
        if queue is not None and not self._accepts(queue):
            accepted = sorted(filter(self.sees, self.context.accepted or ()))
            raise QueueNotAccepted(queue, self.context.target.describe_queue(queue), self.context.name, accepted)

    async def _need_permission(self, act: Permission, queue: str | None) -> None:
        if not self.may(act, queue):
            await self._refuse(self.who.not_allowed(act, queue), queue or "")

    def _accepts(self, queue: str) -> bool:
        return self.context.accepted is None or queue in self.context.accepted

    def sees(self, queue: str) -> bool:
        """Return whether what concerns this dead-letter queue is shown."""
        return self.who.sees(queue) and self._accepts(queue)

    async def _refuse(self, refused: NotAllowed, queue: str) -> NoReturn:
        entry = AuditEntry(
            self.context.clock.now(), self.who.name, str(refused.act), queue, allowed=False, detail=str(refused)
        )
        try:
            await asyncio.to_thread(self.service.audit.write, entry)
        except AuditUnavailable as error:
            raise refused from error
        raise refused

    async def _need_all(self, act: Permission) -> None:
        """What names everybody's queues is for those who see all of them."""
        await self.need(act)
        if not self.who.is_unrestricted:
            raise self.who.not_allowed(act, "*")

    async def _restrict(self, act: Permission, order: OperationRequest) -> OperationRequest:
        """Return the order with the queues that this principal may send to: where each message goes is decided later,
        perhaps by another server. A destination that is named is checked now, before the broker is asked, which would
        tell what is there. What goes to an exchange gets wherever that is bound to: only an unrestricted principal may.
        """
        match order.to.way:
            case DestinationKind.QUEUE:
                await self._need_permission(act, order.to.name)
            case DestinationKind.EXCHANGE | DestinationKind.ORIGINAL:
                if not self.who.is_unrestricted:
                    await self._refuse(self.who.not_allowed(act, "*"), order.queue)
            case DestinationKind.OWN | DestinationKind.RETRY:
                pass
            case other:
                assert_never(other)
        await self._need_risk(order.queue, Risk(order.spend_deliveries, order.any_queue))
        hidden = not self.may(Permission.REVEAL, order.queue)
        return replace(order, allowed=self.who.queues, selection=replace(order.selection, redacted=hidden))

    async def _need_risk(self, queue: str, risk: Risk) -> None:
        if risk.spend:
            await self.need(Permission.SPEND, queue)
        if risk.any_queue:
            await self.need(Permission.ANY_QUEUE, queue)

    async def _need_reach(self, order: OperationRequest) -> None:
        """To resume an operation is to send its messages: only where this principal may send them."""
        if (
            self.who.is_unrestricted
            or order.kind is OperationKind.DISCARD
            or set(order.allowed) <= set(self.who.queues)
        ):
            return
        if order.to.way is DestinationKind.QUEUE:
            await self._need_permission(Permission.STEER, order.to.name)
        else:
            await self._refuse(self.who.not_allowed(Permission.STEER, "*"), order.queue)

    def redrive_to(self, queue: str) -> Destination:
        """Return where a re-drive of a dead-letter queue goes by default: as its topology says, or `own` if this
        principal may not send there.
        """
        to = self.context.target.redrive_to(queue)
        return to if self._may_send_to(to) else Destination()

    def _may_send_to(self, to: Destination) -> bool:
        match to.way:
            case DestinationKind.QUEUE:
                return self.who.sees(to.name)
            case DestinationKind.EXCHANGE | DestinationKind.ORIGINAL:
                return self.who.is_unrestricted
            case DestinationKind.OWN | DestinationKind.RETRY:
                return True  # decided for each message
            case other:
                assert_never(other)

    def _outbox(self) -> OutboxRepository:
        if self.context.outbox is None:
            raise NoOutbox
        return self.context.outbox
