"""Carry out an operation: take, choose, publish, confirm, write down, ack.

    lock     one operation for each queue, by a lock in the broker, which the caller holds (`Service.run`)
    scope    what is ready in the queue now; what arrives later is not touched
    step     all of it, or as many as the canary says
      pass     hold the queue; for each portion of chosen messages, in order:
                   publish (mandatory) and wait for the confirms
                   write down what became of each
                   ack those that were confirmed
               then give back all others, in order
      outcome  of a canary's step: how many came back, and are the others settled? Whoever goes on with a canary asks
               that first. If it cannot be told, the operation stops: see `canary` and `returns`

What can die between which two steps:

    before the confirm is    the message is still in the queue, and is sent again. If the broker had it, it arrives
    recorded                 twice, with its message_id unchanged, so that an inbox absorbs it
    before the broker has    the message is in the queue again. It has an item, so it is recognised and acked, not
    stored the ack           sent (`reconciliation`)

Nothing is lost. The first case is counted as `possibly_duplicated`: exactly, where the connection was lost, because the
messages without a confirm are known; by as many as may have been in flight, where the process was killed, because they
are not. At most three quarters of what is left of `WINDOW` are in flight at a time (`in_flight`), so the first five
losses of an operation together leave at most `WINDOW` such messages, and each further one `UNDER_WAY`.

A lost connection is survived: the lock is taken again, the queue is reconciled, and the next pass goes on where the
last one ended. So does another process that resumes the operation. A message that is not accepted at its destination
stays in the queue, and is reported; when nothing is accepted any more the operation ends.

A pass does not last longer than a few minutes, because RabbitMQ ends a consumer that keeps a message for half an hour.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta

from redrive.deadletters.dead_letter import read_summary
from redrive.errors import Closed, ConnectionLost, RedriveError
from redrive.operations.canary import steps
from redrive.operations.canary_guard import CanaryGuard
from redrive.operations.control import Changed, OperationControl
from redrive.operations.operation import Operation, OperationState
from redrive.operations.pipeline import QUIET, MessageAction, OperationPipeline, most_in_flight
from redrive.operations.ports import BrowsedMessages, OperationPort, OperationStore
from redrive.operations.reconciliation import Reconciliation, key_of
from redrive.operations.returns import Returns, Sight
from redrive.operations.selector import Leads, MessageSelector, Route
from redrive.topology.dlq_detection import Feeders
from redrive.worker.clock import Clock

log = logging.getLogger("redrive.dlq")

_LONGEST_PASS = timedelta(minutes=10).total_seconds()
_BROKER_PATIENCE = 120.0
_RECOVERY = 10.0  # seconds within which a queue has its messages back after a loss
_EVERYTHING = 2**31
_MOST_IN_VAIN = 3  # passes, where each may have found only what came since it began


class OperationRunner:
    def __init__(
        self,
        operation: Operation,
        broker: OperationPort,
        memory: OperationStore,
        act: MessageAction,
        *,
        clock: Clock,
        retries: Mapping[str, Route] | None = None,
        feeders: Feeders | None = None,
        leads: Leads | None = None,
        keeps_order: bool = True,
        prefers_urgent: bool = False,
        sight: Sight | None = None,
        changed: Changed = lambda _: None,
    ) -> None:
        """`keeps_order`: does the queue put what it gets back where it was? `prefers_urgent`: does what comes later
        stand before the rest if it has a higher priority? `sight`: what is known of the broker's queues, for a canary.
        `changed` is called after every progress.
        """
        order = operation.order
        self.control = OperationControl(operation, memory, clock, changed)
        self.queue = order.queue
        self._broker = broker
        self._memory = memory
        self._clock = clock
        self._retries = retries or {}
        self._feeders = feeders
        self._leads = leads
        self._keeps_order = keeps_order
        self._prefers_urgent = prefers_urgent
        self._goes_on = operation.started_at is not None  # with what another process has begun
        returns = Returns(operation, broker, sight) if order.ramp is not None else None
        self._pipeline = OperationPipeline(self.control, broker, act, clock, returns)
        self._guard: CanaryGuard | None = None
        if order.ramp is not None and returns is not None:
            self._guard = CanaryGuard(order.ramp, returns, self.control, broker, clock)
        self._passes = 0
        self._empty_passes = 0  # passes in a row that found nothing to move
        self._lost_acks = self._goes_on  # perhaps: the queue may have messages that were moved

    @property
    def operation(self) -> Operation:
        return self.control.operation

    # The whole of it ----------------------------------------------------------------------------------

    async def run(self) -> Operation:
        """Run to the end, whatever that is. The caller holds the lock of the queue.

        Raises only if the operation cannot begin, or if its memory fails.
        """
        await self._begin()
        async with self.control.heartbeat():
            state, note = await self._work()
        await self.control.change_to(replace(self.operation, state=state, ended_at=self._clock.now(), note=note))
        return self.operation

    async def _begin(self) -> None:
        scope = self.operation.scope
        if scope is None:
            scope = await self._broker.depth(self.queue)
        began = self.operation.started_at or self._clock.now()
        state = OperationState.RUNNING if self.operation.state is OperationState.PENDING else self.operation.state
        counts = self.operation.counts
        if self._goes_on:
            in_flight = min(most_in_flight(self.control), max(0, scope - counts.moved))
            counts = replace(counts, possibly_duplicated=counts.possibly_duplicated + in_flight)
        self.control.has_begun = True
        await self.control.change_to(replace(self.operation, state=state, scope=scope, started_at=began, counts=counts))
        await self.control.poll()  # before anything is moved: it may have been cancelled while no process ran it

    async def _work(self) -> tuple[OperationState, str]:
        try:
            ended = await self._steps()
            await self._reconcile()
            return ended
        except RedriveError as error:
            log.warning("operation %s on %s failed: %s", self.operation.id, self.queue, error)
            return OperationState.FAILED, f"{error}. Nothing is lost: what was not moved is in the queue"

    async def _steps(self) -> tuple[OperationState, str]:
        # The outcome of a step that another process took is not known yet.
        if self.operation.counts.moved and (why := await self._objection()):
            return self._stopped_by_guard(why, ended=self._room(None) == 0)
        for number, size in steps(self.operation.order.ramp, self.operation.counts.moved):
            await self.control.change_to(replace(self.operation, step=number))
            before = self.operation.counts.moved
            ended = await self._step(size)
            if self.operation.counts.moved > before and (why := await self._objection()):
                return self._stopped_by_guard(why, ended=ended)
            if self.control.is_cancelled:
                return OperationState.CANCELLED, "what was moved stays moved"
            if ended:
                break
        failed = self.operation.counts.failed
        if failed:
            return OperationState.PARTIAL, f"{failed} could not be moved, and stay in the queue: see its items"
        return OperationState.SUCCEEDED, ""

    def _stopped_by_guard(self, why: str, *, ended: bool) -> tuple[OperationState, str]:
        return OperationState.STOPPED_BY_GUARD, why if ended else f"{why}: the rest was left where it is"

    async def _step(self, size: int | None) -> bool:
        """Move up to that number of messages. Return whether there is nothing more to move."""
        target = None if size is None else self.operation.counts.moved + size
        while not self.control.is_cancelled:
            await self.control.wait_while_paused()
            await self._reconcile()
            room = self._room(target)
            if room == 0:
                return self._room(None) == 0
            try:
                if await self._pass(room):
                    return True
            except RedriveError as error:
                await self._recover(error)
        return True

    def _room(self, target: int | None) -> int | None:
        """How many may still be moved; None: all there are."""
        counts, limit = self.operation.counts, self.operation.order.selection.limit
        bounds = [bound - counts.moved for bound in (target, limit, counts.planned) if bound is not None]
        return max(0, min(bounds)) if bounds else None

    async def _recover(self, error: RedriveError) -> None:
        """Wait until a lost connection is back, and take the lock again. Raise any other error."""
        try:
            self._broker.check()
        except RedriveError:
            log.warning("operation %s: %s; waiting for the broker", self.operation.id, error)
            self._lost_acks = True
            await self._reconnect()
        else:
            raise error

    async def _reconnect(self) -> None:
        """Take the lock again, also if the connection is lost once more meanwhile."""
        while True:
            await self._broker.wait_until_restored(_BROKER_PATIENCE)
            try:
                return await self._broker.lock(self.queue)
            except (ConnectionLost, Closed) as error:
                log.warning("operation %s: %s; waiting for the broker again", self.operation.id, error)

    # Reconciliation -----------------------------------------------------------------------------------

    async def _reconcile(self) -> None:
        """If acks may be lost, ack what this operation has moved already, and what the queue has again."""
        while self._lost_acks:
            try:
                await self._wait_until_recovered()
                if self.operation.counts.moved:
                    await self._ack_already_moved()
                self._broker.check()
                self._lost_acks = False
            except RedriveError as error:
                await self._recover(error)

    async def _wait_until_recovered(self) -> None:
        """Wait until the queue has at least what was not moved: a quorum queue reports less for a moment, and another
        one gets back what a lost connection held. Give up after a while: others may have removed messages.
        """
        until = self._clock.monotonic() + _RECOVERY
        while await self._broker.depth(self.queue) < self._left and self._clock.monotonic() < until:  # noqa: ASYNC110
            await asyncio.sleep(0.05)

    async def _ack_already_moved(self) -> None:
        reconciliation = Reconciliation(
            await asyncio.to_thread(self._count_moved),
            remaining=self._left,
            is_newer=self._selector(mixed=True).is_newer,
            keeps_order=self._keeps_order,
        )
        scope = self.operation.scope or 0
        held = await self._broker.browse(self.queue, _EVERYTHING if self._is_mixed else scope)
        try:
            await self._read(held, reconciliation)
            found, doubtful = reconciliation.split_moved()
            held.ack(found)
        finally:
            await held.release()
        log.info("operation %s: %d messages of %s had been moved already", self.operation.id, len(found), self.queue)
        await self._count_duplicated(doubtful)

    async def _count_duplicated(self, more: int) -> None:
        """Count messages that are sent again. They are moved when that is done."""
        counts = self.operation.counts
        counts = replace(
            counts, possibly_duplicated=counts.possibly_duplicated + more, moved=max(0, counts.moved - more)
        )
        await self.control.change_to(replace(self.operation, counts=counts))

    def _count_moved(self) -> Counter[int]:
        return Counter(map(key_of, self._memory.moved_ids(self.operation.id)))

    async def _read(self, held: BrowsedMessages, reconciliation: Reconciliation) -> None:
        """Read the queue until nothing comes that was there when the operation began."""
        position, quiet_since = 0, self._clock.monotonic()
        while came := await held.next(QUIET):
            for delivery in came:
                position += 1
                dead_letter = read_summary(delivery.raw_properties, delivery.body, self.queue, position)
                if reconciliation.add(delivery, dead_letter):
                    quiet_since = self._clock.monotonic()
            if self._clock.monotonic() - quiet_since > QUIET:
                break

    # A pass -------------------------------------------------------------------------------------------

    async def _pass(self, room: int | None) -> bool:
        """Go through the queue once, and move as many. Whether its end was reached."""
        self._broker.check()
        depth = await self._broker.depth(self.queue)
        left = self._left
        mixed = self._is_mixed
        at_most = (depth if left else 0) if mixed else min(depth, left)
        if not at_most:
            return True
        self._passes += 1
        held = await self._broker.browse(self.queue, at_most)
        if mixed:  # not every message tells when it died: in no case more than were there
            room = left if room is None else min(room, left)
        until = self._clock.monotonic() + _LONGEST_PASS
        try:
            ended = await self._pipeline.run(held, self._selector(mixed), at_most=at_most, room=room, until=until)
        finally:
            await held.release()
        self._broker.check()
        return ended and not (self._prefers_urgent and await self._is_more_behind(at_most))

    async def _is_more_behind(self, seen: int) -> bool:
        """What is urgent and came since the pass began stood before the rest, of which so many were not reached."""
        self._empty_passes = 0 if self._pipeline.chosen else self._empty_passes + 1
        there = await self._broker.depth(self.queue)
        return there > seen - self._pipeline.acked and self._empty_passes < _MOST_IN_VAIN

    @property
    def _is_mixed(self) -> bool:
        """May what came later stand among what was there? In some queues once a pass has given back the rest, in others
        at any time.
        """
        return self._prefers_urgent or (not self._keeps_order and (self._goes_on or self._passes > 0))

    @property
    def _left(self) -> int:
        """How many of the messages that were there when it began were not moved."""
        return max(0, (self.operation.scope or 0) - self.operation.counts.moved)

    def _selector(self, mixed: bool) -> MessageSelector:
        return MessageSelector(
            self.operation.order,
            operation=self.operation.id,
            began=self._asked_at,
            mixed=mixed,
            retries=self._retries,
            feeders=self._feeders,
            leads=self._leads,
            budget=self._broker.budget,
        )

    @property
    def _asked_at(self) -> datetime:
        """After which nothing is meant. On a priority queue that is when it was planned: more may have come
        before those that were shown until it began.
        """
        began = self.operation.started_at or self._clock.now()
        planned = self.operation.order.selection.now if self._prefers_urgent else None
        return min(began, planned) if planned is not None else began

    # Canary -------------------------------------------------------------------------------------------

    async def _objection(self) -> str:
        """Return why the canary must not go on; nothing if it may."""
        while self._guard is not None:
            try:
                return await self._guard.objection()
            except RedriveError as error:
                await self._recover(error)
        return ""

    def __repr__(self) -> str:
        return f"<Mover of {self.queue} {self.operation.id} {self.operation.state}>"
