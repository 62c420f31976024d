"""Everything that can be done with dead letters, for the command line, REST and the web console alike.

Queries are in `redrive.admin.queries`. This module has the lifecycle of an operation:

    begin        write the audit entry and the operation's row, in one transaction: what cannot be recorded is not done
    run          carry it out in this process: connect, lock the queue, run to the end, record the end
    take_over    become the owner of an operation whose process is gone
    claim        become the owner of an operation that another process hands over
    wish         ask the process that runs it to pause, go on, cancel, or change the rate

Everything that an operation needs is in its row, down to the file of its archive, so any process that has the id can
run it. The exception is an edit: its transform is code, or the content of a message, and is passed to `run`.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import assert_never

from redrive.admin.queries import STALE as STALE
from redrive.admin.queries import Queries, risk_of
from redrive.admin.queries import QueueView as QueueView
from redrive.deadletters.redrive_headers import properties_for_import, without_stamps
from redrive.errors import ConfigurationError, NotFound, OperationConflict, OperationOver, RedriveError
from redrive.operations.actions import DiscardAction, MoveAction, RedriveAction, TransformAction
from redrive.operations.archive import Archive, archive_path
from redrive.operations.control import Changed, OperationControl, heartbeat_until
from redrive.operations.export_format import Exported
from redrive.operations.operation import (
    ControlRequest,
    Counts,
    ItemOutcome,
    Operation,
    OperationItem,
    OperationKind,
    OperationRequest,
    OperationState,
)
from redrive.operations.pipeline import PORTION, MessageAction
from redrive.operations.plan import RedrivePlan
from redrive.operations.ports import OperationPort
from redrive.operations.runner import OperationRunner
from redrive.operations.transforms import Transform
from redrive.recovery.failure_headers import NAMES
from redrive.worker.publisher import uuid7

log = logging.getLogger("redrive.admin")

_BEAT = 1.0  # seconds
_PORTION_BYTES = 16 * 1024 * 1024  # of bodies that an import has in memory
_GONE = "its process was gone"


@dataclass(frozen=True, slots=True)
class Change:
    """How an edit changes messages: the part of an operation that is not in its row."""

    transform: Transform
    force: bool = False  # also if a body is not what its content type says


class Service(Queries):
    # Running an operation -----------------------------------------------------------------------------

    async def begin(
        self, order: OperationRequest, *, planned: int | None = None, archives: Path | None = None
    ) -> Operation:
        """Record an operation and its audit entry. `archives`: the folder of its archive, if it needs one."""
        order = self._with_requester(order)
        now = self.clock.now()
        id = operation_id(now, os.urandom(10))
        if archives is not None:
            order = replace(order, archive=str(archive_path(archives, order.queue, id)))
        operation = Operation(id, order, now, counts=Counts(planned=planned), owner=self.owner, beat_at=now)
        entry = self._entry(
            order.kind,
            order.queue,
            operation=id,
            filter=str(order.selection),
            counts={"planned": planned},
            reason=order.reason,
            detail=f"to {order.to}",
        )
        await asyncio.to_thread(self.audit.write, entry, lambda connection: self.store.insert(connection, operation))
        return operation

    async def begin_discard(self, plan: RedrivePlan, archives: Path, *, confirm: str) -> Operation:
        """Record that messages are archived and removed from the queue. `confirm`: the name of the queue once more."""
        queue = plan.order.queue
        if confirm != queue:
            raise ConfigurationError(
                f"to discard messages of {queue}, its name must be said once more, not {confirm!r}"
            )
        return await self.begin(plan.order, planned=plan.eligible, archives=archives)

    async def begin_edit(self, plan: RedrivePlan, transform: Transform, archives: Path) -> Operation:
        """Record a re-drive that changes messages and archives the originals. `run` needs the change as well."""
        order = replace(plan.order, kind=OperationKind.EDIT, transform=str(transform))
        return await self.begin(order, planned=plan.eligible, archives=archives)

    async def run(
        self, operation: Operation, change: Change | None = None, *, changed: Changed = lambda _: None
    ) -> Operation:
        """Carry it out, here and now, to its end. `changed` is called before it begins and after every progress."""
        begun = asyncio.Event()

        def progress(steering: OperationControl) -> None:
            if steering.has_begun:
                begun.set()
            changed(steering)

        try:
            async with self._heartbeat(operation, begun), self._archive(operation) as archive:
                over = await self._run(operation, self._action(operation.order, archive, change), progress)
        except RedriveError as error:
            await self.abandon(operation.id, error)
            raise
        if over is None:
            return await self.operation(operation.id)
        await self._record_end(over)
        return over

    async def _run(
        self, operation: Operation, action: Callable[[OperationPort], MessageAction], changed: Changed
    ) -> Operation | None:
        """Run it to its end. Return None if it was over already."""
        order = operation.order
        async with self.target.connect_to_move() as view:
            view.check_move(order)
            await self._check_look(view, order.queue, risk_of(order))
            async with self._lock(view, order.queue):
                # As it is now that its queue is nobody else's: the last owner has recorded its progress.
                operation = replace(await self.operation(operation.id), owner=self.owner)
                if operation.state.is_over:
                    return None
                async with self._take_messages(view, order.queue, risk_of(order)):
                    mover = OperationRunner(
                        operation,
                        view.broker,
                        self.store,
                        action(view.broker),
                        clock=self.clock,
                        retries=await self._retries(view, order),
                        feeders=view.feeders(),
                        leads=view.publish_routes().leads,
                        keeps_order=await view.keeps_order(order.queue),
                        prefers_urgent=await view.prefers_urgent(order.queue),
                        sight=view,
                        changed=changed,
                    )
                    changed(mover.control)
                    return await mover.run()

    def _action(
        self, order: OperationRequest, archive: Archive | None, change: Change | None
    ) -> Callable[[OperationPort], MessageAction]:
        names = self.target.header_names
        match order.kind:
            case OperationKind.REDRIVE:
                return lambda broker: RedriveAction(broker, self.clock, names)
            case OperationKind.MOVE:
                return MoveAction
            case OperationKind.DISCARD:
                assert archive is not None
                discarding = DiscardAction(archive)
                return lambda _: discarding
            case OperationKind.EDIT:
                assert archive is not None
                assert change is not None, "the transform of an edit is not in its row"
                how, force = change.transform, change.force
                return lambda broker: TransformAction(broker, self.clock, how, archive, force=force, names=names)
            case other:
                assert_never(other)

    @asynccontextmanager
    async def _archive(self, operation: Operation) -> AsyncIterator[Archive | None]:
        """Open the file that takes the messages first. If that fails, the operation has failed before it began."""
        if not operation.order.archive:
            yield None
            return
        try:
            archive = await asyncio.to_thread(Archive, Path(operation.order.archive))
        except OSError as error:
            await self._end(operation, OperationState.FAILED, str(error))
            raise
        with archive:
            yield archive

    @asynccontextmanager
    async def _heartbeat(self, operation: Operation, begun: asyncio.Event) -> AsyncIterator[None]:
        """Write heartbeats until the operation has begun and writes its own: connecting and inspecting the broker takes
        time, and an operation without a heartbeat for `STALE` is considered to have lost its process.
        """

        async def beat() -> None:
            try:  # from itself to itself: nothing happens if another process has it now
                await asyncio.to_thread(self.store.take_over, operation.id, self.owner, self.clock.now(), self.owner)
            except Exception as error:  # the next beat may succeed
                log.warning("operation %s: its memory did not answer: %s", operation.id, error)

        async with heartbeat_until(beat, begun, lambda: _BEAT):
            yield

    # Ending -------------------------------------------------------------------------------------------

    async def abandon(self, id: str, error: RedriveError) -> None:
        """Give up an operation of this process that did not begin, or cannot go on.

        One that had begun is left interrupted, as it was, and another process may go on at once; unless its queue is
        gone, or it is to be cancelled.
        """
        stored = await asyncio.to_thread(self.store.get, id)
        if stored is None or stored.state.is_over or stored.owner != self.owner:
            return
        if stored.started_at is None:
            await self._end(stored, OperationState.FAILED, str(error))
        elif isinstance(error, NotFound):
            note = f"it cannot go on: {error}. What was moved stays moved"
            await self._record_end(await self._end(stored, OperationState.FAILED, note))
        elif OperationState.CANCELLING in (
            stored.state,
            (await asyncio.to_thread(self.store.control_request, stored.id)).state,
        ):
            await self._close(stored)
        else:
            await self.leave(stored)

    async def leave(self, operation: Operation) -> None:
        """Let another process go on with it at once."""
        await asyncio.to_thread(self.store.save, replace(operation, beat_at=None))

    async def _end(self, operation: Operation, state: OperationState, note: str) -> Operation:
        over = replace(operation, state=state, ended_at=self.clock.now(), note=note)
        await asyncio.to_thread(self.store.save, over)
        return over

    async def _close(self, operation: Operation) -> Operation:
        """Cancel an operation whose process is gone."""
        note = f"{_GONE}; what was moved stays moved, the rest is in the queue"
        return await self._end(operation, OperationState.CANCELLED, note)

    async def _record_end(self, over: Operation) -> None:
        detail = f"{over.state}: {over.note}" if over.note else str(over.state)
        counts = over.counts.as_dict()
        await self.record(f"{over.order.kind} ended", over.order.queue, operation=over.id, counts=counts, detail=detail)

    # Taking over --------------------------------------------------------------------------------------

    async def claim(self, id: str, owner: str) -> Operation:
        """Become the owner of an operation that `owner`, another process, hands over."""
        operation = await self.operation(id)
        return await self._claim(replace(operation, owner=owner))

    async def take_over(self, operation: Operation, state: OperationState | None = None) -> Operation:
        """Become the owner of an operation whose process is gone. It goes on as it is, or in this state."""
        if not operation.order.kind.is_resumable:
            raise ConfigurationError(f"a {operation.order.kind} is not resumed: begin another for what is left")
        operation = await self._claim(operation, state)
        await self.record("resume", operation.order.queue, operation=operation.id)
        return operation

    async def _claim(self, operation: Operation, state: OperationState | None = None) -> Operation:
        """Of several processes that try, one succeeds."""
        id, now = operation.id, self.clock.now()
        if not await asyncio.to_thread(self.store.take_over, id, self.owner, now, operation.owner, state):
            raise OperationConflict(operation.order.queue, f"operation {id}, which another process resumed")
        return replace(operation, owner=self.owner, state=state or operation.state, beat_at=now)

    async def resume(self, id: str, *, changed: Changed = lambda _: None) -> Operation:
        """Go on here with an operation whose process is gone; ask one that is paused to go on."""
        operation = await self.operation(id)
        if operation.state.is_over:
            raise OperationOver(operation.id, operation.state)
        if self._lives(operation):
            await self.request_control(operation.id, ControlRequest(OperationState.RUNNING))
            return operation
        return await self.run(await self.take_over(operation, OperationState.RUNNING), changed=changed)

    async def close_orphan(self, operation: Operation) -> None:
        """End an operation that no other process can go on with, and say what to do about the rest."""
        try:
            operation = await self._claim(operation)
        except OperationConflict:
            return
        note = (
            f"{_GONE}. What was moved is moved, and in its archive there; the rest is in the queue: "
            f"begin another {operation.order.kind} for it"
        )
        over = await self._end(operation, OperationState.FAILED, note)
        await self.record(
            f"{over.order.kind} ended", over.order.queue, operation=over.id, counts=over.counts.as_dict(), detail=note
        )

    # Import --------------------------------------------------------------------------

    async def restore(
        self,
        lines: Iterable[tuple[int, Exported]],
        queue: str,
        file: str,
        *,
        may_use: Callable[[str], bool] | None = None,
    ) -> AsyncGenerator[int, None]:
        """Put exported messages into a queue. Tells after each portion up to which line everything is there.

        A file can say anything about where a message came from. `may_use`, of a restricted principal, makes all of them
        messages of the queue that dead-letters here, if that is one and may be used, and forgets their counters.
        """
        await self.record("import", queue, detail=f"from {file}")
        async with self.target.connect_to_move() as view:
            await view.definition(queue)
            clean = properties_for_import if may_use is None else self._stamp_remover(view.source(queue), may_use)
            portions = _portions(lines)
            while (portion := await asyncio.to_thread(next, portions, None)) is not None:
                messages = [("", queue, one.body, clean(one.raw_properties), True) for _, one in portion]
                await view.broker.publish_many(messages)
                yield portion[-1][0]

    def _stamp_remover(self, source: str | None, may_use: Callable[[str], bool]) -> Callable[[bytes], bytes]:
        known = source if source is not None and may_use(source) else None
        names = self.target.header_names.get(known or "", NAMES)
        return lambda raw: without_stamps(raw, known, names)

    # Operations ---------------------------------------------------------------------------------------

    async def operations(
        self, queue: str | None = None, states: Collection[OperationState] | None = None, limit: int = 50
    ) -> list[Operation]:
        return await asyncio.to_thread(self.store.list_operations, queue, states, limit)

    async def items(
        self, id: str, outcome: ItemOutcome | None = None, limit: int = 100, after: int | None = None
    ) -> list[tuple[int, OperationItem]]:
        return await asyncio.to_thread(self.store.items, id, outcome, limit, after)

    async def request_control(self, id: str, wish: ControlRequest) -> Operation:
        operation = await self.operation(id)
        rate = f"rate {wish.rate:g}" if wish.rate is not None else ""
        words = ", ".join(filter(None, (wish.state, rate)))
        await self.record("steer", operation.order.queue, operation=operation.id, detail=words)
        if wish.state is OperationState.CANCELLING and self.is_interrupted(operation):
            return await self._close(operation)
        if not await asyncio.to_thread(self.store.request_control, operation.id, wish):
            raise OperationOver(operation.id, (await self.operation(operation.id)).state)
        return operation


_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"


def operation_id(moment: datetime, chance: bytes) -> str:
    """Sorts by time, and can be read aloud."""
    number = uuid7(moment, chance).int
    return "op_" + "".join(_ALPHABET[number >> shift & 31] for shift in range(125, -1, -5))


def _portions(lines: Iterable[tuple[int, Exported]]) -> Iterator[list[tuple[int, Exported]]]:
    portion: list[tuple[int, Exported]] = []
    size = 0
    for number, message in lines:
        portion.append((number, message))
        size += len(message.body)
        if len(portion) == PORTION or size > _PORTION_BYTES:
            yield portion
            portion, size = [], 0
    if portion:
        yield portion
