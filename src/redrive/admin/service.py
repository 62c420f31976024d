"""Everything that can be done with dead letters, whoever asks: command line, REST, web console.

Looks and operations exclude each other on a queue, by the same lock in the broker, since who holds a queue's messages
hides them from others. A look waits its turn for a moment; an operation that runs says no to everybody else.

An operation is written down before it begins, and its audit entry before that: what cannot be recorded is not done.
Looks are recorded, too; those that show no secrets and cost nothing take place also when that fails.

What comes out of here has no secrets, unless the caller asks for them (`reveal`), which is recorded: so no interface
can forget to hide them.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from copy import copy
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from redrive.admin.cached_target import CachedTarget
from redrive.admin.target import BrokerTarget, ConnectedTarget
from redrive.deadletters.dead_letter import Summary, read_dead_letter
from redrive.deadletters.edits import Content, EditPreview, diff
from redrive.deadletters.hiding import hide_summary
from redrive.deadletters.redaction import REDACTION, redact_text
from redrive.deadletters.redrive_headers import harmless, restamped
from redrive.deadletters.search import Query, parse
from redrive.errors import (
    AuditUnavailable,
    ConfigurationError,
    EncodingError,
    LetterNotFound,
    NotFound,
    OperationConflict,
    OperationNotFound,
    OperationOver,
    RedriveError,
    TransformFailed,
)
from redrive.protocol.content import Delivery
from redrive.recovery.story import NAMES
from redrive.runtime.clock import Clock, SystemClock
from redrive.runtime.dlq import looking, planning
from redrive.runtime.dlq.acts import Discarding, Moving, Redriving, Transforming
from redrive.runtime.dlq.archive import Archive, archive_path
from redrive.runtime.dlq.audit import AuditEntry
from redrive.runtime.dlq.choosing import Chooser, Verdict
from redrive.runtime.dlq.letters import Exported, encode_letter
from redrive.runtime.dlq.looking import By, Found, Grouping, Page
from redrive.runtime.dlq.moving import DEFAULT_WAIT, PORTION, Act, Mover
from redrive.runtime.dlq.operation import Counts, Item, Kind, Operation, Order, Outcome, State, Way, Wish
from redrive.runtime.dlq.planning import Plan, Tally, Target
from redrive.runtime.dlq.ports import Moves
from redrive.runtime.dlq.spending import NO_RISK, Allowance, Risk
from redrive.runtime.dlq.steering import Changed
from redrive.runtime.dlq.transforming import Transform, transformed
from redrive.runtime.publishing import uuid7
from redrive.store.audit import Audit
from redrive.store.operations import OperationsStore
from redrive.topology.dead_ends import is_named_after
from redrive.topology.migration import Names, migrated_queue
from redrive.topology.peeking import PeekSafety

T = TypeVar("T")

log = logging.getLogger("redrive.admin")

STALE = timedelta(seconds=30)  # an operation that showed no life for so long has lost its runner
_BEAT = 1.0  # seconds
SPENT = "deliveries spent"  # in the audit, where a refusal is called otherwise
_PORTION_BYTES = 16 * 1024 * 1024  # of bodies that an import has in memory


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


class Service:
    def __init__(
        self,
        target: BrokerTarget | CachedTarget,
        store: OperationsStore,
        audit: Audit,
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

    def acting(self, by: str, *, reveals: bool = True) -> Service:
        """Return the same service for another principal. Without `reveals`, queries see what redaction shows."""
        another = copy(self)
        another.by = by
        another.reveals = reveals
        return another

    # Looking ------------------------------------------------------------------------------------------

    async def queues(self, names: Sequence[str] = (), *, oldest: bool = True) -> list[QueueView]:
        """Those that are named, or all dead-letter queues that can be found."""
        running = {each.order.queue: each for each in await self._store(self.store.running)}
        async with self.target.looking(*names) as view:
            found = list(names) or view.dead_letter_queues()
            return [await self._queue(view, name, running.get(name), oldest) for name in found]

    async def depths(
        self, names: Sequence[str] = (), last: Mapping[str, int] = MappingProxyType({})
    ) -> tuple[dict[str, int], frozenset[str]]:
        """Return the depths of dead-letter queues; and the queues that are being migrated, whose depths say nothing.

        A migration moves all messages out of a queue and back. Only a queue with fewer messages than at the last look
        (`last`), or without one, is asked for a migration: each such question leaves a line in the log of RabbitMQ.
        """
        async with self.target.looking(*names) as view:
            found = [name for name in names or view.dead_letter_queues() if not await _serves_a_migration(view, name)]
            depths: dict[str, int] = {}
            migrated = set()
            for name in found:
                depth = await _depth(view, name)
                if depth is None or depth < last.get(name, depth + 1):
                    if await _is_migrated(view, name):
                        migrated.add(name)
                        continue
                    depth = (await view.connection.queue_info(name)).messages  # a migration may have ended just now
                depths[name] = depth
        return depths, frozenset(migrated)

    async def _queue(self, view: ConnectedTarget, name: str, running: Operation | None, oldest: bool) -> QueueView:
        cost = await view.peeking(name)
        info = await view.connection.queue_info(name)
        died = None
        is_dead = view.is_dead_letter_queue(name)
        may_look = cost.is_free and not info.consumers and (self.named if is_dead is None else is_dead)
        if oldest and may_look and info.messages and running is None:
            try:
                async with self._held(view, name):
                    first = await looking.peek(view.broker, name, limit=1)
                died = first.letters[0].dead_at if first.letters else None
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
    ) -> Page:
        """Return some of the messages. `recorded`: the caller has written it into the audit."""
        query = self._query(text)
        await self._record_peek(queue, text, risk, recorded)
        async with self._look(queue, risk) as view:
            return looking.without_secrets(
                await looking.peek(view.broker, queue, query=query, limit=limit, start=start)
            )

    async def groups(
        self, queue: str, by: By = By.FINGERPRINT, text: str = "", *, risk: Risk = NO_RISK, recorded: bool = False
    ) -> Grouping:
        query = self._query(text)
        await self._record_peek(queue, text, risk, recorded)
        async with self._look(queue, risk) as view:
            return looking.grouped_without_secrets(await looking.group(view.broker, queue, by, query))

    async def message(
        self, queue: str, id: str, *, reveal: bool = False, risk: Risk = NO_RISK, recorded: bool = False
    ) -> Found:
        """Return one message. With `reveal` it has its secrets, and the audit says so, whatever is `recorded`."""
        if reveal:
            await self.record("reveal", queue, filter=f"id:{id}", reason=risk.reason)
        else:
            await self._record_peek(queue, f"id:{id}", risk, recorded)
        async with self._look(queue, risk) as view:
            found = await looking.find(view.broker, queue, id)
        if found is None:
            raise LetterNotFound(queue, id)
        return found if reveal else looking.found_without_secrets(found)

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
        async with self.target.looking(queue) as view:
            await self._check_look(view, queue, risk)
            async with self._held(view, queue), self._used(view, queue, risk):
                yield view

    async def _check_look(self, view: ConnectedTarget, queue: str, risk: Risk) -> None:
        await view.definition(queue)  # if there is none, that is the answer
        if not risk.any_queue:
            view.check_dead(queue, named=self.named)
        await view.check_look(queue, spend=risk.spend)

    @asynccontextmanager
    async def _used(self, view: ConnectedTarget, queue: str, risk: Risk) -> AsyncIterator[None]:
        """Take messages out of a queue that is locked. Where that costs deliveries, they are counted in the audit."""
        if not risk.any_queue:
            await view.check_unused(queue)
        cost = await view.peeking(queue)
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
        last = await self._store(self.audit.listed, queue, None, SPENT, 1)
        if not last or not await view.broker.depth(queue):
            return 0
        return last[0][1].counts.get("deliveries") or 0

    async def _record_spent(self, allowance: Allowance, spent: int, risk: Risk) -> None:
        counts = {"deliveries": spent, "limit": allowance.limit}
        await self.record(SPENT, allowance.queue, counts=counts, reason=risk.reason)

    @asynccontextmanager
    async def _held(self, view: ConnectedTarget, queue: str) -> AsyncIterator[None]:
        try:
            await view.broker.lock(queue)
        except OperationConflict as error:
            raise await self._named(error) from None
        try:
            yield
        finally:
            await view.broker.unlock(queue)

    async def _named(self, conflict: OperationConflict) -> OperationConflict:
        """With the operation that is in the way, if it is known here."""
        running = [
            each
            for each in await self._store(self.store.running)
            if each.order.queue == conflict.queue and each.state is not State.PENDING and self._lives(each)
        ]
        return OperationConflict(conflict.queue, f"operation {running[0].id}") if running else conflict

    # Planning -----------------------------------------------------------------------------------------

    async def plan(self, order: Order) -> Plan:
        order = self._signed(order)
        await self.record_look("plan", order.queue, _risk(order), filter=_filter(order), detail=str(_risk(order)))
        async with self._look(order.queue, _risk(order)) as view:
            view.check_move(order)
            order = _patient(order, view)
            chooser = await self._chooser(view, order, "")
            found = await planning.tally(view.broker, order, chooser)
            targets = tuple([await self._target(view, route, count) for route, count in found.routes.most_common()])
            also = planning.also_receiving(found, order, view.snapshot)
            consumers = (await view.connection.queue_info(order.queue)).consumers
            unseen, unproven = _unseen(found, order, view), _unproven(found, order, view)
            into_dead = view.is_dead_letter_queue(order.to.name) if order.to.way is Way.QUEUE else False
        now = self.clock.now()
        told = planning.warnings(
            found,
            order,
            targets=targets if order.kind is not Kind.DISCARD else (),
            also=also,
            consumers=consumers,
            inbox_windows=dict(self.target.inbox_windows),
            now=now,
            unseen=unseen,
            into_dead=into_dead,
            unproven=unproven,
        )
        return Plan(
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

    async def _target(self, view: ConnectedTarget, route: tuple[str, str], count: int) -> Target:
        exchange, key = route
        try:
            if exchange:
                return Target(exchange, key, count, await view.connection.exchange_exists(exchange))
            info = await view.connection.queue_info(key)
        except (NotFound, EncodingError):  # or it is no name: messages say what they like about where they came from
            return Target(exchange, key, count, False)
        except RedriveError:
            return Target(exchange, key, count)
        return Target(exchange, key, count, True, info.consumers)

    async def _chooser(self, view: ConnectedTarget, order: Order, operation: str) -> Chooser:
        return Chooser(
            order,
            operation=operation,
            began=self.clock.now(),
            retries=await self._retries(view, order),
            feeders=view.feeders(),
            budget=view.broker.budget,
        )

    async def _retries(self, view: ConnectedTarget, order: Order) -> dict[str, tuple[str, str]]:
        if order.to.way is not Way.RETRY:
            return {}
        source = view.source(order.queue)
        return await view.retries([source] if source is not None else [])

    def _signed(self, order: Order) -> Order:
        """With who asks, and the moment for which its query is meant."""
        selection = order.selection
        self._query(selection.query)  # a mistake in it is found now
        return replace(
            order,
            by=order.by or self.by,
            reason=redact_text(order.reason),
            selection=replace(selection, now=selection.now or self.clock.now()),
        )

    # Operating ----------------------------------------------------------------------------------------

    async def begin(self, order: Order, *, planned: int | None = None) -> Operation:
        """Write an operation down. `run` carries it out."""
        order = self._signed(order)
        now = self.clock.now()
        id = operation_id(now, os.urandom(10))
        operation = Operation(id, order, now, counts=Counts(planned=planned), owner=self.owner, beat_at=now)
        await self.record(
            order.kind,
            order.queue,
            operation=id,
            filter=_filter(order),
            counts={"planned": planned},
            reason=order.reason,
            detail=f"to {order.to}",
        )
        await self._store(self.store.add, operation)
        return operation

    async def run(
        self,
        operation: Operation,
        *,
        act: Callable[[Moves], Act] | None = None,
        changed: Changed = lambda _: None,
        started: Callable[[Mover], None] = lambda _: None,
    ) -> Operation:
        """Carry it out, here and now, to its end. `started` gets who does it, to steer; `changed` hears at once that it
        is about to be done.
        """
        changed(operation)
        try:
            async with self._living(operation) as begun, self.target.moving() as view:

                def seen(now: Operation) -> None:
                    begun.set()
                    changed(now)

                operation = await self._taken(view, operation)
                if operation.state.is_over:
                    return operation
                mover = await self._mover(view, operation, act, seen)
                async with self._used(view, operation.order.queue, _risk(operation.order)):
                    started(mover)
                    over = await mover.run()
        except RedriveError as error:
            named = await self._named(error) if isinstance(error, OperationConflict) else error
            await self._let_go(operation, named)
            raise named from None
        await self._record_end(over)
        return over

    async def _taken(self, view: ConnectedTarget, operation: Operation) -> Operation:
        """As it is now that its queue is nobody else's: whoever had it until now has written down the last of it."""
        order = operation.order
        view.check_move(order)
        await self._check_look(view, order.queue, _risk(order))
        await view.broker.lock(order.queue)
        now = await self.operation(operation.id)
        return replace(now, owner=operation.owner, state=now.state if now.state.is_over else operation.state)

    async def _mover(
        self, view: ConnectedTarget, operation: Operation, act: Callable[[Moves], Act] | None, changed: Changed
    ) -> Mover:
        order = operation.order
        return Mover(
            operation,
            view.broker,
            self.store,
            act(view.broker) if act is not None else self._act(view.broker, order),
            clock=self.clock,
            retries=await self._retries(view, order),
            feeders=view.feeders(),
            keeps_order=await view.keeps_order(order.queue),
            prefers_urgent=await view.prefers_urgent(order.queue),
            sight=view,
            changed=changed,
        )

    def _act(self, broker: Moves, order: Order) -> Act:
        if order.kind is Kind.MOVE:
            return Moving(broker)
        return Redriving(broker, self.clock, self.target.header_names)

    @asynccontextmanager
    async def _living(self, operation: Operation) -> AsyncIterator[asyncio.Event]:
        """Show that somebody is about to do it: to connect and to look round takes its time, and who shows no life for
        `STALE` is taken for gone. Until the event is set: it has begun, and shows that itself.
        """
        begun = asyncio.Event()
        beating = asyncio.create_task(self._beat(operation, begun), name=f"redrive-beginning-{operation.id}")
        try:
            yield begun
        finally:
            begun.set()  # not cancelled: what it is writing must not come after what is written next
            await beating

    async def _beat(self, operation: Operation, begun: asyncio.Event) -> None:
        while not begun.is_set():
            try:
                async with asyncio.timeout(_BEAT):
                    await begun.wait()
            except TimeoutError:
                await self._beat_once(operation)

    async def _beat_once(self, operation: Operation) -> None:
        """Taken over from oneself: then how far it is stays as it is, and nothing happens if somebody else has it."""
        owner = operation.owner
        try:
            await self._store(self.store.take_over, operation.id, owner, self.clock.now(), owner)
        except Exception as error:  # the next beat may succeed
            log.warning("operation %s: its memory did not answer: %s", operation.id, error)

    async def _let_go(self, operation: Operation, error: RedriveError) -> None:
        """It did not begin, or cannot go on. What had begun is interrupted, as it was, and whoever comes next may go on
        at once; unless its queue is gone, or somebody wants it to end.
        """
        stored = await self._store(self.store.get, operation.id)
        if stored is None or stored.state.is_over or stored.owner != operation.owner:
            return
        if stored.started_at is None:
            await self._fail(stored, error)
        elif isinstance(error, NotFound):
            note = f"it cannot go on: {error}. What was moved stays moved"
            over = replace(stored, state=State.FAILED, ended_at=self.clock.now(), note=note)
            await self._store(self.store.save, over)
            await self._record_end(over)
        elif State.CANCELLING in (operation.state, (await self._store(self.store.wishes, operation.id)).state):
            await self._close(stored)
        else:
            await self.leave(stored)

    async def _record_end(self, over: Operation) -> None:
        detail = f"{over.state}: {over.note}" if over.note else str(over.state)
        counts = over.counts.as_dict()
        await self.record(f"{over.order.kind} ended", over.order.queue, operation=over.id, counts=counts, detail=detail)

    async def _fail(self, operation: Operation, error: Exception) -> None:
        """It did not begin, or its memory failed: say so, if that is possible."""
        stored = await self._store(self.store.get, operation.id)
        if stored is not None and not stored.state.is_over:
            over = replace(stored, state=State.FAILED, ended_at=self.clock.now(), note=str(error))
            await self._store(self.store.save, over)

    async def resume(
        self, id: str, *, changed: Changed = lambda _: None, started: Callable[[Mover], None] = lambda _: None
    ) -> Operation:
        """Go on with an operation whose runner is gone; tell one that is paused to go on."""
        operation = await self.operation(id)
        if operation.state.is_over:
            raise OperationOver(operation.id, operation.state)
        if self._lives(operation):
            await self.wish(operation.id, Wish(State.RUNNING))
            return operation
        if not operation.order.kind.is_resumable:
            raise ConfigurationError(f"a {operation.order.kind} is not resumed: begin another for what is left")
        return await self.go_on(replace(operation, state=State.RUNNING), changed=changed, started=started)

    async def go_on(
        self,
        operation: Operation,
        *,
        changed: Changed = lambda _: None,
        started: Callable[[Mover], None] = lambda _: None,
    ) -> Operation:
        """Take over an operation whose runner is gone, as it is: one that was paused stays so."""
        if not await self._store(self.store.take_over, operation.id, self.owner, self.clock.now(), operation.owner):
            raise OperationConflict(operation.order.queue, f"operation {operation.id}, which somebody else resumed")
        await self.record("resume", operation.order.queue, operation=operation.id)
        return await self.run(replace(operation, owner=self.owner), changed=changed, started=started)

    async def leave(self, operation: Operation) -> None:
        """Nobody works on it any more, and whoever comes next may go on at once."""
        await self._store(self.store.save, replace(operation, beat_at=None))

    async def close_interrupted(self, operation: Operation) -> None:
        """It cannot be gone on with: say so, and what to do."""
        if await self._store(self.store.take_over, operation.id, self.owner, self.clock.now(), operation.owner):
            note = (
                f"its process was gone. What was moved is moved, and in its archive there; the rest is in the queue: "
                f"begin another {operation.order.kind} for it"
            )
            over = replace(operation, owner=self.owner, state=State.FAILED, ended_at=self.clock.now(), note=note)
            await self._store(self.store.save, over)
            counts = over.counts.as_dict()
            await self.record(
                f"{over.order.kind} ended", over.order.queue, operation=over.id, counts=counts, detail=note
            )

    # Out of a queue and into it --------------------------------------------------------------------------

    async def discard(self, plan: Plan, folder: Path, *, confirm: str, **watching: Any) -> tuple[Operation, Path]:
        """Write messages to an archive and let them go. `confirm` is the name of the queue, said once more."""
        queue = plan.order.queue
        if confirm != queue:
            raise ConfigurationError(
                f"to discard messages of {queue}, its name must be said once more, not {confirm!r}"
            )
        operation = await self.begin(plan.order, planned=plan.eligible)
        async with self._archive(operation, folder) as archive:
            return await self.run(operation, act=lambda _: Discarding(archive), **watching), archive.path

    async def redrive_changed(
        self, plan: Plan, transform: Transform, folder: Path, *, force: bool = False, **watching: Any
    ) -> tuple[Operation, Path]:
        """Send messages back to work, each changed; the originals go to an archive first."""
        order = replace(plan.order, kind=Kind.EDIT, transform=str(transform))
        operation = await self.begin(order, planned=plan.eligible)
        async with self._archive(operation, folder) as archive:

            def act(broker: Moves) -> Act:
                return Transforming(broker, self.clock, transform, archive, force=force, names=self.target.header_names)

            return await self.run(operation, act=act, **watching), archive.path

    @asynccontextmanager
    async def _archive(self, operation: Operation, folder: Path) -> AsyncIterator[Archive]:
        """Where the messages go first. Without it the operation has failed before it began."""
        try:
            archive = await asyncio.to_thread(Archive, archive_path(folder, operation.order.queue, operation.id))
        except (RedriveError, OSError) as error:
            await self._fail(operation, error)
            raise
        with archive:
            yield archive

    async def samples(self, order: Order, transform: Transform, *, force: bool = False) -> list[EditPreview]:
        """Return what a transform would make of some of the messages."""
        await self.record_look("plan", order.queue, _risk(order), filter=_filter(order), detail=str(transform))
        async with self._look(order.queue, _risk(order)) as view:
            chooser = await self._chooser(view, self._signed(order), "")
            chosen: list[EditPreview] = []
            enough = min(order.selection.limit or planning.MOST_SAMPLES, planning.MOST_SAMPLES)

            def see(delivery: Delivery, letter: Summary) -> bool:
                if chooser.choose(letter, delivery.body, delivery.raw_properties).verdict is Verdict.TAKE:
                    chosen.append(_sample(transform, delivery, letter, force))
                return len(chosen) >= enough

            await looking.visit(view.broker, order.queue, see)
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
            async with aclosing(looking.stream(view.broker, queue, depth)) as letters:
                async for delivery, letter in letters:
                    if query is None or query.matches(letter, delivery.body, delivery.raw_properties):
                        yield encode_letter(delivery, letter, redaction=redaction)

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
        async with self.target.moving() as view:
            await view.definition(queue)
            clean = harmless if may_use is None else self._restamping(view.source(queue), may_use)
            portions = _portions(lines)
            while (portion := await asyncio.to_thread(next, portions, None)) is not None:
                messages = [("", queue, one.body, clean(one.raw_properties), True) for _, one in portion]
                await view.broker.publish_many(messages)
                yield portion[-1][0]

    def _restamping(self, source: str | None, may_use: Callable[[str], bool]) -> Callable[[bytes], bytes]:
        known = source if source is not None and may_use(source) else None
        names = self.target.header_names.get(known or "", NAMES)
        return lambda raw: restamped(raw, known, names)

    def _lives(self, operation: Operation) -> bool:
        return operation.beat_at is not None and self.clock.now() - operation.beat_at < STALE

    def is_interrupted(self, operation: Operation) -> bool:
        """Not over, and nobody works on it any more."""
        return not operation.state.is_over and not self._lives(operation)

    # Operations ---------------------------------------------------------------------------------------

    async def operation(self, id: str) -> Operation:
        """By its id, or by the beginning of it if that is enough."""
        found = await self._store(self.store.find, id)
        if not found:
            raise OperationNotFound(id)
        if len(found) > 1:
            raise ConfigurationError(f"{id} is the beginning of {len(found)} operations: say more of it")
        return found[0]

    async def operations(
        self, queue: str | None = None, states: Collection[State] | None = None, limit: int = 50
    ) -> list[Operation]:
        return await self._store(self.store.listed, queue, states, limit)

    async def items(
        self, id: str, outcome: Outcome | None = None, limit: int = 100, after: int | None = None
    ) -> list[tuple[int, Item]]:
        return await self._store(self.store.items, id, outcome, limit, after)

    async def wish(self, id: str, wish: Wish) -> Operation:
        operation = await self.operation(id)
        rate = f"rate {wish.rate:g}" if wish.rate is not None else ""
        words = ", ".join(filter(None, (wish.state, rate)))
        await self.record("steer", operation.order.queue, operation=operation.id, detail=words)
        if wish.state is State.CANCELLING and self.is_interrupted(operation):
            return await self._close(operation)
        if not await self._store(self.store.wish, operation.id, wish):
            raise OperationOver(operation.id, (await self.operation(operation.id)).state)
        return operation

    async def _close(self, operation: Operation) -> Operation:
        """Nobody is there who would hear the wish."""
        note = "its process was gone; what was moved stays moved, the rest is in the queue"
        over = replace(operation, state=State.CANCELLED, ended_at=self.clock.now(), note=note)
        await self._store(self.store.save, over)
        return over

    # Memory -------------------------------------------------------------------------------------------

    async def _store(self, call: Callable[..., T], *args: object) -> T:
        return await asyncio.to_thread(call, *args)

    async def record(self, action: str, queue: str, **told: Any) -> None:
        entry = AuditEntry(self.clock.now(), self.by, str(action), queue, allowed=True, **told)
        await asyncio.to_thread(self.audit.write, entry)


_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"


def operation_id(moment: datetime, chance: bytes) -> str:
    """Sorts by time, and can be read aloud."""
    number = uuid7(moment, chance).int
    return "op_" + "".join(_ALPHABET[number >> shift & 31] for shift in range(125, -1, -5))


async def _depth(view: ConnectedTarget, queue: str) -> int | None:
    """Return how many messages are ready; None: there is no such queue."""
    try:
        return (await view.connection.queue_info(queue)).messages
    except NotFound:
        return None


async def _is_migrated(view: ConnectedTarget, queue: str) -> bool:
    return await _depth(view, Names(queue).journal) is not None


async def _serves_a_migration(view: ConnectedTarget, queue: str) -> bool:
    migrated = migrated_queue(queue)
    return migrated is not None and await _is_migrated(view, migrated)


def _patient(order: Order, view: ConnectedTarget) -> Order:
    """With a canary that waits for as long as the queue tries a message."""
    if order.ramp is None or order.ramp.wait is not None:
        return order
    tried = view.retry_time(order)
    wait = tried.total_seconds() if tried is not None else DEFAULT_WAIT
    return replace(order, ramp=replace(order.ramp, wait=wait))


def _unseen(found: Tally, order: Order, view: ConnectedTarget) -> tuple[str, ...]:
    """Return the destinations whose dead-letter queues are not known."""
    if order.to.way in (Way.OWN, Way.RETRY):
        return ()
    reached = {str(Target(*route, 0)): view.reached(*route) if route[0] else (route[1],) for route in found.routes}
    return tuple(
        name
        for name, queues in reached.items()
        if queues is None or not all(queue in found.sources or view.dead_letter_queues_of(queue) for queue in queues)
    )


def _unproven(found: Tally, order: Order, view: ConnectedTarget) -> tuple[str, ...]:
    """Return the destinations that only the messages name."""
    if order.kind is Kind.DISCARD or order.to.way not in (Way.OWN, Way.RETRY) or view.feeders().of(order.queue):
        return ()
    return tuple(sorted(source for source in found.sources if not is_named_after(order.queue, source)))


def _sample(transform: Transform, delivery: Delivery, letter: Summary, force: bool) -> EditPreview:
    whole = read_dead_letter(delivery.raw_properties, delivery.body, queue=letter.queue, position=letter.position)
    try:
        content = transformed(transform, delivery, whole, force=force)
    except TransformFailed as error:
        return EditPreview(letter.id, problem=redact_text(str(error)))
    if content is None:
        return EditPreview(letter.id)
    return EditPreview(letter.id, diff(Content(delivery.raw_properties, delivery.body), content))


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


def _risk(order: Order) -> Risk:
    return Risk(order.spend_deliveries, order.any_queue, order.reason)


def _filter(order: Order) -> str:
    selection = order.selection
    parts = [selection.query, f"group:{selection.group}" if selection.group else ""]
    parts += [f"id:{id}" for id in selection.ids[:20]]
    parts += [f"limit {selection.limit}" if selection.limit is not None else ""]
    return " ".join(filter(None, parts))
