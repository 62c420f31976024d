"""What it takes to bring a broker to a topology: a value to look at, to print, and to carry out.

create      it is missing
unchanged   it is there as wanted
existing    it is to exist, and is there: it is taken as it is, whatever its arguments
missing     it is to exist, and does not: Redrive never creates it
conflict    it is there, and different: RabbitMQ cannot change it in place
unseen      it may be there: plain AMQP cannot list bindings; making it again does no harm
extra       a binding at a queue or exchange of ours that is not wanted: never touched
other       it belongs to another application: never touched, and shown only on request
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from redrive.topology.definitions import (
    BindingDefinition,
    Definition,
    Definitions,
    ExchangeDefinition,
    QueueDefinition,
    effective,
)
from redrive.topology.reachability import Reachability
from redrive.topology.snapshot import BrokerSnapshot
from redrive.topology.validation import KNOWN_ARGUMENTS


class Action(StrEnum):
    CREATE = "create"
    UNCHANGED = "unchanged"
    EXISTING = "existing"
    MISSING = "missing"
    CONFLICT = "conflict"
    UNSEEN = "unseen"
    EXTRA = "extra"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Difference:
    what: str  # an argument, or "durable", "type", ...
    have: Any
    want: Any

    def __str__(self) -> str:
        return f"{self.what}: has {_value_text(self.have)}, wanted {_value_text(self.want)}"


@dataclass(frozen=True, slots=True)
class PlanStep:
    action: Action
    definition: Definition
    differences: tuple[Difference, ...] = ()
    note: str = ""  # what to know of a queue that is taken as it is

    def __str__(self) -> str:
        said = f"{self.action}: {self.definition}"
        return said + (f" ({'; '.join(map(str, self.differences))})" if self.differences else "")


@dataclass(frozen=True, slots=True)
class Plan:
    steps: tuple[PlanStep, ...]

    def steps_by(self, *actions: Action) -> tuple[PlanStep, ...]:
        return tuple(step for step in self.steps if step.action in actions)

    @property
    def conflicts(self) -> tuple[PlanStep, ...]:
        return self.steps_by(Action.CONFLICT)

    @property
    def is_empty(self) -> bool:
        """Is there nothing to do, as far as can be seen?"""
        return not self.steps_by(Action.CREATE, Action.CONFLICT, Action.MISSING)

    def shown(self, *, everything: bool = False) -> tuple[PlanStep, ...]:
        """The steps without those of other applications, unless `everything` is asked for."""
        return self.steps if everything else tuple(step for step in self.steps if step.action is not Action.OTHER)

    def count(self, action: Action) -> int:
        return len(self.steps_by(action))


def make_plan(wanted: Definitions, snapshot: BrokerSnapshot) -> Plan:
    return Plan(tuple(_steps(wanted, snapshot)))


def _steps(wanted: Definitions, snapshot: BrokerSnapshot) -> Iterator[PlanStep]:
    held = snapshot.definitions
    exchanges = {exchange.name: exchange for exchange in held.exchanges}
    queues = {queue.name: queue for queue in held.queues}
    bindings = {binding.key for binding in held.bindings}
    for exchange in wanted.exchanges:
        yield _compare(exchange, exchanges.get(exchange.name))
    for queue in wanted.queues:
        have = queues.get(queue.name)
        yield _taken(queue, have, snapshot) if queue.existing else _compare(queue, have)
    for binding in wanted.bindings:
        if binding.key in bindings:
            yield PlanStep(Action.UNCHANGED, binding)
        else:
            ends = _has_both_ends(binding, exchanges, queues)
            yield PlanStep(Action.UNSEEN if ends and not snapshot.complete else Action.CREATE, binding)
    if snapshot.complete:
        yield from _extra(wanted, held)


def _taken(want: QueueDefinition, have: QueueDefinition | None, snapshot: BrokerSnapshot) -> PlanStep:
    if have is None:
        return PlanStep(Action.MISSING, want)
    return PlanStep(Action.EXISTING, replace(have, existing=True), note=own_dead_letters(have, snapshot))


def own_dead_letters(queue: QueueDefinition, snapshot: BrokerSnapshot) -> str:
    """Say what becomes of the messages that the broker itself removes from a queue that is taken as it is."""
    removed = "what expires in it, overflows or is rejected by others"
    found = effective(queue, snapshot.state(queue.name).effective_policy)
    exchange = found.dead_letter_exchange
    if exchange is None and snapshot.sees_policy(queue.name):
        return f"it has no dead-letter exchange: {removed} is dropped"
    if exchange is None:
        return f"no argument of it is a dead-letter exchange: unless a policy sets one, {removed} is dropped"
    said = f"{removed} goes to its own dead-letter exchange {exchange or '(default exchange)'}"
    if not snapshot.complete:
        return said
    targets = sorted(Reachability(snapshot.effective).of_dead_letters(found))
    return f"{said}, to {', '.join(targets)}" if targets else f"{said}, which leads to no queue: it is dropped"


def _compare(want: ExchangeDefinition | QueueDefinition, have: ExchangeDefinition | QueueDefinition | None) -> PlanStep:
    if have is None:
        return PlanStep(Action.CREATE, want)
    differences = tuple(differences_between(have, want))
    return PlanStep(Action.CONFLICT if differences else Action.UNCHANGED, want, differences)


def differences_between(
    have: ExchangeDefinition | QueueDefinition, want: ExchangeDefinition | QueueDefinition
) -> Iterator[Difference]:
    """What RabbitMQ would refuse to redeclare. Arguments that it does not know it does not compare."""
    for name in ("type", "durable", "auto_delete", "internal"):
        if isinstance(have, QueueDefinition) and name in ("type", "internal"):
            continue
        if getattr(have, name) != getattr(want, name):
            yield Difference(name, getattr(have, name), getattr(want, name))
    if isinstance(have, QueueDefinition) and isinstance(want, QueueDefinition) and have.type != want.type:
        yield Difference("x-queue-type", have.type, want.type)
    for name in sorted({*have.arguments, *want.arguments} - {"x-queue-type"}):
        if isinstance(have, QueueDefinition) and name not in KNOWN_ARGUMENTS:
            continue
        if have.arguments.get(name) != want.arguments.get(name):
            yield Difference(name, have.arguments.get(name), want.arguments.get(name))


def _has_both_ends(
    binding: BindingDefinition, exchanges: dict[str, ExchangeDefinition], queues: dict[str, QueueDefinition]
) -> bool:
    destinations = queues if binding.destination_type == "queue" else exchanges
    return binding.destination in destinations and (binding.source in exchanges or binding.source.startswith("amq."))


def _extra(wanted: Definitions, have: Definitions) -> Iterator[PlanStep]:
    """What is there and not wanted. A binding at a queue or exchange of ours is of interest, all else is of others."""
    exchanges = {exchange.name for exchange in wanted.exchanges}
    queues = {queue.name for queue in wanted.queues}
    declared = {queue.name for queue in wanted.queues if not queue.existing}
    bindings = {binding.key for binding in wanted.bindings}
    for exchange in have.exchanges:
        if exchange.name not in exchanges and not exchange.name.startswith("amq."):
            yield PlanStep(Action.OTHER, exchange)
    yield from (PlanStep(Action.OTHER, queue) for queue in have.queues if queue.name not in queues)
    for binding in have.bindings:
        if binding.key not in bindings:
            to = declared if binding.destination_type == "queue" else exchanges
            ours = binding.destination in to or (binding.source in exchanges and binding.destination in queues)
            yield PlanStep(Action.EXTRA if ours else Action.OTHER, binding)


def own_part(held: Definitions, wanted: Definitions) -> Definitions:
    """Return what a broker holds of an application: what is wanted, where its dead letters go, and what feeds it."""
    queues = {queue.name for queue in wanted.queues}
    flows = Reachability(held)
    queues |= {to for queue in held.queues if queue.name in queues for to in flows.of_dead_letters(queue)}
    exchanges = {exchange.name for exchange in wanted.exchanges}
    exchanges |= {queue.dead_letter_exchange or "" for queue in held.queues if queue.name in queues}
    exchanges |= {
        bind.source for bind in held.bindings if bind.destination_type == "queue" and bind.destination in queues
    }
    bindings = (
        bind
        for bind in held.bindings
        if bind.source in exchanges and bind.destination in (queues if bind.destination_type == "queue" else exchanges)
    )
    return Definitions.of(
        (exchange for exchange in held.exchanges if exchange.name in exchanges),
        (queue for queue in held.queues if queue.name in queues),
        bindings,
    )


def _value_text(value: Any) -> str:
    return "nothing" if value is None else repr(value)
