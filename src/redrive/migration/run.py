"""Give a queue other arguments: the steps of `redrive.migration.steps`, carried out.

    await migrate("q.orders", wanted, connection, watcher)

Each step is a method that does its work and returns the record of the step that follows; the record is written before
that step begins. Every step can be done again from its beginning, because each of its operations asks for a state
rather than for a change: to bind what is bound, to delete what is gone, to carry from an empty queue does nothing.

Two pauses hold it together. After a binding is changed, messages that were routed before may still be on their way to
a queue (`settle`); and a quorum queue younger than a second may lose confirmed messages when its broker is killed, so
nothing is entrusted to it before (`youth`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeAlias

from redrive.errors import (
    BrokerError,
    ConnectionClosed,
    ConnectionLost,
    MigrationPaused,
    MigrationRefused,
    NotFound,
    PublishError,
    RedriveError,
    ResourceLocked,
)
from redrive.migration.calls import MigrationCalls, QueueUsage
from redrive.migration.journal import MigrationJournal, migration_lock
from redrive.migration.plan import MigrationPlan, plan_migration
from redrive.migration.ports import MigrationOptions, MigrationResult, Migrator, QueueMonitor
from redrive.migration.steps import (
    MigrationNames,
    MigrationRecord,
    MigrationStep,
    detour,
    direct_bindings,
    entrance,
    explain,
    helpers,
    is_switched,
    policy_risk,
    wait_queue_arguments,
    was_carried,
)
from redrive.migration.transfer import Choice, QueueTransfer, TransferRoute
from redrive.topology.definitions import (
    BindingDefinition,
    Definition,
    Definitions,
    ExchangeDefinition,
    QueueDefinition,
)
from redrive.topology.plan import differences_between
from redrive.topology.snapshot import BrokerSnapshot

Tell: TypeAlias = Callable[[str], None]

# How often what others do meanwhile is put right before they must stop: binding the queue, publishing to it by name.
_ROUNDS = 20
# How long a queue may take to become empty: so many seconds, and one more for so many messages.
_HALF_A_MINUTE, _SLOWEST = 30.0, 50
_TOO_BUSY = (
    "the producers leave no moment in which nothing waits: stop them for a second, or allow that some messages come "
    "after younger ones (--allow-reorder)"
)


async def preview(queue: str, wanted: Definitions, broker: Migrator, watcher: QueueMonitor) -> MigrationPlan | None:
    """What `migrate` would do. Changes nothing. None: a migration was begun, and would be resumed."""
    calls = MigrationCalls(broker)
    if await calls.ready(MigrationNames(queue).journal):
        return None
    return plan_migration(queue, wanted, await _look(queue, calls, watcher))


async def _look(queue: str, calls: MigrationCalls, watcher: QueueMonitor) -> BrokerSnapshot:
    """Return what the broker holds, with the figures of the queue as of now: a monitor's may be seconds old."""
    snapshot, usage = await watcher.snapshot(), await calls.usage(queue)
    return snapshot if usage is None else snapshot.with_counts({queue: (usage.messages, usage.consumers)})


async def migrate(
    queue: str,
    wanted: Definitions,
    broker: Migrator,
    watcher: QueueMonitor,
    terms: MigrationOptions = MigrationOptions(),  # noqa: B008 - frozen
    *,
    user: str | None = None,
    tell: Tell = lambda _: None,
) -> MigrationResult:
    """Give a queue its wanted arguments, or go on with what was begun.

    `user` is the one under whom messages are published here. Raises `MigrationRefused` when nothing was changed, and
    `MigrationPaused` when it stopped half-way.
    """
    operations, names = MigrationCalls(broker), MigrationNames(queue)
    async with migration_lock(operations, names):
        journal = MigrationJournal(operations, names)
        migration = Migration(operations, watcher, journal, names, terms, user=user, tell=tell)
        try:
            record = await journal.read()
            migration.result.resumed = record is not None
            if record is None:
                record = await migration.begin(wanted)
        except (ConnectionLost, PublishError) as error:  # it may have begun
            raise MigrationPaused(queue, "begin", str(error)) from error
        if record is not None:
            await migration.run(record)
        return migration.result


class Migration:
    def __init__(
        self,
        operations: MigrationCalls,
        watcher: QueueMonitor,
        journal: MigrationJournal,
        names: MigrationNames,
        terms: MigrationOptions,
        *,
        user: str | None,
        tell: Tell,
    ) -> None:
        self.result = MigrationResult(names.queue)
        self._operations = operations
        self._watcher = watcher
        self._journal = journal
        self._names = names
        self._terms = terms
        self._user = user
        self._report = tell
        self._is_unused = False  # was the old queue seen unused in this life?
        self._rounds = 0  # how often it was not empty when it was to be deleted
        self._steps: dict[MigrationStep, Callable[[MigrationRecord], Awaitable[MigrationRecord | None]]] = {
            MigrationStep.PREPARE: self._prepare,
            MigrationStep.DETOUR: self._detour,
            MigrationStep.DIVERT: self._divert,
            MigrationStep.EMPTY: self._empty,
            MigrationStep.REPLACE: self._replace,
            MigrationStep.RETURN: self._return,
            MigrationStep.SWITCH: self._switch,
            MigrationStep.RETREAT: self._retreat,
            MigrationStep.RESTORE: self._restore,
            MigrationStep.CLEAN: self._clean,
        }

    # The way through ----------------------------------------------------------------------------------

    async def begin(self, wanted: Definitions) -> MigrationRecord | None:
        """The first record, written down; None if the queue is as wanted."""
        snapshot = await _look(self._names.queue, self._operations, self._watcher)
        plan = plan_migration(self._names.queue, wanted, snapshot)
        journal = snapshot.definitions.queue(self._names.journal)
        if not plan.is_needed:
            if journal is not None:
                await self._journal.erase(journal.type)
            return None
        usage = await self._operations.usage(self._names.queue)
        reasons = list(plan.problems)
        if usage is not None and usage.consumers and not self._terms.wait_for_consumers:
            reasons.append(f"{await self._describe_consumers(usage)}: stop them first, or have it wait for them")
        if reasons:
            raise MigrationRefused(self._names.queue, reasons)
        if journal is None:
            kind = plan.record.wanted.type
            await self._journal.open(wait_queue_arguments(kind, snapshot.server))
            await self._grow_up(kind)
        await self._journal.write(plan.record)
        return plan.record

    async def run(self, record: MigrationRecord) -> None:
        if self.result.resumed:
            self._report(f"going on with step {str(record.step)!r} of a migration that was begun")
            await self._settle()  # what a dead process held must be back in its queues
        following: MigrationRecord | None = record
        while following is not None:
            record = following
            self._report(f"{record.step}: {explain(record.step, record)}")
            following = await self._do(record)
        self.result.migrated = True

    async def _do(self, record: MigrationRecord) -> MigrationRecord | None:
        """One step; what follows is written down before it begins."""
        try:
            following = await self._steps[record.step](record)
            if following is not None:
                await self._journal.write(following)
            return following
        except (MigrationRefused, MigrationPaused):
            raise
        except TimeoutError as error:
            why = "a queue does not become empty: somebody keeps publishing to it"
            raise self._paused_error(record, why) from error
        except RedriveError as error:
            raise self._paused_error(record, str(error)) from error

    # Before anything changes --------------------------------------------------------------------------

    async def _prepare(self, record: MigrationRecord) -> MigrationRecord:
        made: list[Definition] = []
        try:
            # Does the broker accept the wanted arguments? When the old queue is gone it is too late to find out.
            await self._operations.make(replace(record.wanted, name=self._names.trial))
            await self._operations.delete_idle(self._names.trial, record.wanted.type)
            await self._make_helpers(record, made)
            for definition in record.needs:
                await self._operations.make(definition)
        except ConnectionClosed:
            raise
        except (MigrationRefused, BrokerError) as error:
            await self._withdraw(record, made)
            reasons = error.reasons if isinstance(error, MigrationRefused) else [f"the broker refuses it: {error}"]
            raise MigrationRefused(self._names.queue, reasons) from error
        return record.next_record(MigrationStep.DETOUR)

    async def _make_helpers(self, record: MigrationRecord, made: list[Definition]) -> None:
        server = (await self._watcher.snapshot()).server
        for definition in helpers(record, server):
            await self._operations.make(definition)
            made.append(definition)
        await self._grow_up(record.wanted.type)
        if reasons := policy_risk(record, await self._watcher.snapshot()):
            raise MigrationRefused(self._names.queue, reasons)

    async def _withdraw(self, record: MigrationRecord, made: list[Definition]) -> None:
        """Nothing has changed yet, so all can be as if nothing had begun."""
        kind = record.wanted.type
        for definition in made:
            if isinstance(definition, QueueDefinition):
                await self._operations.delete_idle(definition.name, kind)
            elif isinstance(definition, ExchangeDefinition):
                await self._operations.delete_exchange(definition.name)
        await self._operations.delete_idle(self._names.trial, kind)
        await self._erase(kind)

    async def _grow_up(self, kind: str) -> None:
        if kind == "quorum":
            await asyncio.sleep(self._terms.youth.total_seconds())

    async def _settle(self) -> None:
        await asyncio.sleep(self._terms.settle.total_seconds())

    # From the old ways to the router ------------------------------------------------------------------

    async def _detour(self, record: MigrationRecord) -> MigrationRecord:
        await self._make_unless_gone(entrance(self._names), f"queue '{self._names.queue}'")
        for _ in range(_ROUNDS):
            await self._lay_detours(record)
            direct = direct_bindings((await self._watcher.snapshot()).definitions, self._names)
            if not direct:
                return record.next_record(MigrationStep.DIVERT)
            if late := self._unknown(direct, record):
                record = await self._adopt(late, record)
        why = f"{direct[0]} comes back, or AMQP cannot take it away: delete it by other means"
        raise self._paused_error(record, why)

    async def _lay_detours(self, record: MigrationRecord) -> None:
        for binding in record.bindings:
            await self._make_unless_gone(detour(binding, self._names), f"exchange '{binding.source}'")
            await self._operations.unbind(binding)

    async def _make_unless_gone(self, binding: BindingDefinition, end: str) -> None:
        """Bind, unless somebody deleted that end of it. Without the other end it is an error: messages need a way."""
        try:
            await self._operations.make(binding)
        except NotFound as error:
            if f"no {end} " not in error.text:
                raise
            self._report(f"{end} is gone: somebody deleted it")

    @staticmethod
    def _unknown(bindings: tuple[BindingDefinition, ...], record: MigrationRecord) -> tuple[BindingDefinition, ...]:
        known = {binding.key for binding in record.bindings}
        return tuple(binding for binding in bindings if binding.key not in known)

    async def _adopt(self, bindings: tuple[BindingDefinition, ...], record: MigrationRecord) -> MigrationRecord:
        """Somebody bound the queue meanwhile. What it is bound by must be written down before that is undone."""
        for binding in bindings:
            self._report(f"somebody made {binding} meanwhile; it gets a detour, too")
        record = record.with_adopted(bindings)
        await self._journal.write(record)
        return record

    async def _divert(self, record: MigrationRecord) -> MigrationRecord:
        await self._wait_until_unused(record)
        await self._operations.unbind(entrance(self._names))
        await self._settle()
        return record.next_record(MigrationStep.EMPTY)

    # From the old queue to the new one ----------------------------------------------------------------

    async def _empty(self, record: MigrationRecord) -> MigrationRecord:
        await self._lay_detours(record)
        if not self._is_unused:
            await self._wait_until_unused(record)
        for feeder in record.feeders:
            await self._transfer_all(feeder, self._keep_waiting_in(self._names.parking_queue(feeder)))
        await self._transfer_exclusively(record, self._keep_waiting_in(self._names.store))
        return record.next_record(MigrationStep.REPLACE)

    async def _replace(self, record: MigrationRecord) -> MigrationRecord:
        definitions = (await self._watcher.snapshot()).definitions
        if late := self._unknown(direct_bindings(definitions, self._names), record):
            return (await self._adopt(late, record)).next_record(MigrationStep.EMPTY)
        have, wanted = definitions.queue(self._names.queue), record.wanted
        lane = BindingDefinition(self._names.route_exchange(wanted.name), wanted.name)
        if have is None or not any(differences_between(have, wanted)):
            await self._operations.make(wanted)
            await self._operations.make(lane)
        elif not await self._operations.replace_idle(have, wanted, lane):
            return self._empty_again(record)
        await self._grow_up(wanted.type)
        return record.next_record(MigrationStep.RETURN)

    def _empty_again(self, record: MigrationRecord) -> MigrationRecord:
        self._rounds += 1
        why = "somebody publishes to the queue by its name, or consumes from it"
        if self._rounds >= _ROUNDS:
            raise self._paused_error(record, f"{why}: stop that")
        self._report(f"{why}: emptying it once more")
        return record.next_record(MigrationStep.EMPTY)

    async def _return(self, record: MigrationRecord) -> MigrationRecord:
        await self._transfer_all(self._names.store, self._return_to(self._names.queue))
        for feeder in record.feeders:
            await self._transfer_all(self._names.parking_queue(feeder), self._return_to(feeder))
        return record.next_record(MigrationStep.SWITCH)

    # From the gate to the queue -----------------------------------------------------------------------

    async def _switch(self, record: MigrationRecord) -> MigrationRecord:
        gate = record.open_gate
        if is_switched((await self._watcher.snapshot()).definitions, self._names):  # by one who died right after
            await self._settle()
            is_right = not await self._operations.ready(gate)
        elif self.result.retreats >= self._terms.attempts:
            raise self._paused_error(record, _TOO_BUSY)
        else:
            is_right = await self._switch_over(record)
        if not is_right and self._terms.allow_reorder:
            await self._settle()
            self.result.reordered += await self._transfer_all(gate, self._return_to(self._names.queue))
            is_right = True
        return record.next_record(MigrationStep.RESTORE if is_right else MigrationStep.RETREAT)

    async def _switch_over(self, record: MigrationRecord) -> bool:
        """Let new messages into the queue in a moment when none waits. Did none come in that very moment?"""
        gate = record.open_gate
        async with self._transfer(gate, self._return_to(self._names.queue)) as pump:
            is_empty = await self._wait_for_lull(pump, gate)
            if not is_empty and not self._terms.allow_reorder:
                raise self._paused_error(record, _TOO_BUSY)
            await self._operations.make(entrance(self._names))
            if is_empty:
                is_empty = await pump.is_silent(self._terms.settle.total_seconds())
            else:
                before = pump.carried
                await pump.drain()
                self.result.reordered += pump.carried - before
        self._count(gate, pump.carried)
        return is_empty

    async def _wait_for_lull(self, pump: QueueTransfer, gate: str) -> bool:
        """Producers who are faster than the carrying leave no lull."""
        try:
            async with asyncio.timeout(_HALF_A_MINUTE + await self._operations.ready(gate) / _SLOWEST):
                await pump.wait_for_lull()
        except TimeoutError:
            return False
        return True

    async def _retreat(self, record: MigrationRecord) -> MigrationRecord:
        """What came over the router since the switch must go behind what still waits in the gate."""
        names, gate = self._names, record.open_gate
        await self._operations.make(BindingDefinition(names.gatehouse, record.other_gate))
        await self._operations.unbind(BindingDefinition(names.gatehouse, gate))
        await self._operations.unbind(entrance(names))
        await self._settle()
        to_store = TransferRoute(names.route_exchange(names.store), waits=True)
        to_gate = TransferRoute(names.route_exchange(gate), waits=True)
        await self._transfer_exclusively(record, lambda one: to_store if was_carried(one.exchange, names) else to_gate)
        await self._transfer_all(gate, self._keep_waiting_in(names.store))
        self.result.retreats += 1
        return record.next_record(MigrationStep.RETURN, gate=1 - record.gate)

    # Back to the old ways -----------------------------------------------------------------------------

    async def _restore(self, record: MigrationRecord) -> MigrationRecord:
        for binding in (*record.bindings, *record.added):
            await self._make_unless_gone(binding, f"exchange '{binding.source}'")
        for binding in record.bindings:
            await self._operations.unbind(detour(binding, self._names))
        await self._settle()
        return record.next_record(MigrationStep.CLEAN)

    async def _clean(self, record: MigrationRecord) -> None:
        names, kind = self._names, record.wanted.type
        at_home = {names.parking_queue(feeder): feeder for feeder in record.feeders}
        for helper in (names.store, *names.gates, *at_home, names.trial):
            while not await self._operations.delete_idle(helper, kind):
                await self._transfer_all(helper, self._return_to(at_home.get(helper, names.queue)))
        for target in (names.store, *names.gates, *at_home, *record.feeders, names.queue):
            await self._operations.delete_exchange(names.route_exchange(target))
        await self._operations.delete_exchange(names.router)
        await self._operations.delete_exchange(names.gatehouse)
        await self._erase(kind)

    async def _erase(self, kind: str) -> None:
        """The journal may be older than this migration, and of another type."""
        found = (await self._watcher.snapshot()).definitions.queue(self._names.journal)
        await self._journal.erase(kind if found is None else found.type)

    # Carrying -----------------------------------------------------------------------------------------

    def _keep_waiting_in(self, target: str) -> Choice:
        lane = TransferRoute(self._names.route_exchange(target), waits=True)
        return lambda _: lane

    def _return_to(self, target: str) -> Choice:
        lane = TransferRoute(self._names.route_exchange(target), waits=False)
        return lambda _: lane

    def _transfer(self, source: str, choose: Choice) -> QueueTransfer:
        return QueueTransfer(self._operations, source, choose, window=self._terms.window, user=self._user)

    async def _transfer_all(self, source: str, choose: Choice) -> int:
        """Everything that is in a queue. One that is gone is empty."""
        carried = 0
        while (found := await self._operations.usage(source)) is not None:
            limit = _HALF_A_MINUTE + found.messages / _SLOWEST
            async with self._transfer(source, choose) as pump, asyncio.timeout(limit):
                await pump.drain()
            carried += pump.carried
            if not await self._operations.ready(source):
                break
        self._count(source, carried)
        return carried

    async def _transfer_exclusively(self, record: MigrationRecord, choose: Choice) -> None:
        """Everything that is in the queue, when nobody else takes from it."""
        while True:
            try:
                await self._transfer_all(self._names.queue, choose)
                return
            except ResourceLocked:
                if not self._terms.wait_for_consumers:
                    raise
            await self._wait_until_unused(record)

    def _count(self, source: str, carried: int) -> None:
        if carried:
            self.result.carried[source] = self.result.carried.get(source, 0) + carried
            self._report(f"carried {carried} messages from {source}")

    # Waiting for others -------------------------------------------------------------------------------

    async def _wait_until_unused(self, record: MigrationRecord) -> None:
        """Until nobody consumes from the queue, and nobody holds a message that could come back to it."""
        try:
            async with asyncio.timeout(self._terms.timeout.total_seconds() if self._terms.timeout else None):
                await self._watch(record)
        except TimeoutError:
            raise self._paused_error(record, f"after {self._terms.timeout} the queue is still in use") from None
        if record.hidden:
            self._report(f"waiting {record.hidden / 1000:g} s for messages that the broker holds back for a retry")
            await asyncio.sleep(record.hidden / 1000)
        self._is_unused = True

    async def _watch(self, record: MigrationRecord) -> None:
        lag = self._watcher.lag.total_seconds()
        loop = asyncio.get_running_loop()
        idle_since, said = loop.time(), ""
        while True:
            usage, why = await self._operations.usage(self._names.queue), ""
            if usage is None:
                return
            if usage.consumers:
                idle_since, why = loop.time(), await self._describe_consumers(usage)
                if not self._terms.wait_for_consumers:
                    raise self._paused_error(record, f"{why}: stop them")
            elif loop.time() - idle_since >= lag:
                held = await self._watcher.count_held(self._names.queue)
                if held == 0 or (held is None and loop.time() - idle_since >= 2 * lag):
                    return  # some brokers never say
                if held:
                    why = f"{held} of its messages are in somebody's hands, who must settle them or leave"
            if why and why != said:
                self._report(f"waiting: {why}")
                said = why
            await asyncio.sleep(max(0.02, min(0.5, lag / 4)))

    async def _describe_consumers(self, usage: QueueUsage) -> str:
        known = await self._watcher.consumers(self._names.queue)
        count = "1 consumer is" if usage.consumers == 1 else f"{usage.consumers} consumers are"
        return f"{count} attached to it" + (f" ({', '.join(known)})" if known else "")

    def _paused_error(self, record: MigrationRecord, why: str) -> MigrationPaused:
        return MigrationPaused(self._names.queue, str(record.step), why)

    def __repr__(self) -> str:
        return f"<Migration of {self._names.queue} retreats={self.result.retreats} carried={self.result.carried}>"
