"""What it takes to bring a broker to a topology: a value to look at, to print, and to carry out.

create      it is missing
unchanged   it is there as wanted
conflict    it is there, and different: RabbitMQ cannot change it in place
unseen      it may be there: plain AMQP cannot list bindings; making it again does no harm
extra       it is there and nobody asked for it: never touched
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from redrive.topology.definitions import (
    BindingDefinition,
    Definition,
    Definitions,
    ExchangeDefinition,
    QueueDefinition,
)
from redrive.topology.snapshot import BrokerSnapshot
from redrive.topology.validation import KNOWN_ARGUMENTS


class Action(StrEnum):
    CREATE = "create"
    UNCHANGED = "unchanged"
    CONFLICT = "conflict"
    UNSEEN = "unseen"
    EXTRA = "extra"


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
        return not self.steps_by(Action.CREATE, Action.CONFLICT)

    def count(self, action: Action) -> int:
        return len(self.steps_by(action))


def make_plan(wanted: Definitions, snapshot: BrokerSnapshot) -> Plan:
    return Plan(tuple(_steps(wanted, snapshot)))


def _steps(wanted: Definitions, snapshot: BrokerSnapshot) -> Iterator[PlanStep]:
    have = snapshot.definitions
    exchanges = {exchange.name: exchange for exchange in have.exchanges}
    queues = {queue.name: queue for queue in have.queues}
    bindings = {binding.key for binding in have.bindings}
    for exchange in wanted.exchanges:
        yield _compare(exchange, exchanges.get(exchange.name))
    for queue in wanted.queues:
        yield _compare(queue, queues.get(queue.name))
    for binding in wanted.bindings:
        if binding.key in bindings:
            yield PlanStep(Action.UNCHANGED, binding)
        else:
            ends = _has_both_ends(binding, exchanges, queues)
            yield PlanStep(Action.UNSEEN if ends and not snapshot.complete else Action.CREATE, binding)
    if snapshot.complete:
        yield from _extra(wanted, have)


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
    """What is there beside what is wanted. A binding is of interest only at a queue or exchange of ours."""
    exchanges = {exchange.name for exchange in wanted.exchanges}
    queues = {queue.name for queue in wanted.queues}
    bindings = {binding.key for binding in wanted.bindings}
    for exchange in have.exchanges:
        if exchange.name not in exchanges and not exchange.name.startswith("amq."):
            yield PlanStep(Action.EXTRA, exchange)
    yield from (PlanStep(Action.EXTRA, queue) for queue in have.queues if queue.name not in queues)
    yield from (PlanStep(Action.EXTRA, binding) for binding in have.bindings if binding.key not in bindings)


def _value_text(value: Any) -> str:
    return "nothing" if value is None else repr(value)
