"""Give a queue other arguments without losing or reordering what is in it: the steps, as values.

RabbitMQ cannot change the arguments of a queue, so the queue must go and come back under its name, while producers go
on. Between its exchanges and the queue stands a *router*, an exchange whose alternate is the *gate*:

    sources ──▶ router ──▶ queue                          bound to the queue: everything goes there
                   └╌╌ no binding ╌▶ gatehouse ──▶ gate   not bound: everything waits in the gate

To bind or unbind the queue is one operation of the broker, and for every message it has happened or not: none is lost
in between and none goes both ways. While a source is bound to queue and router alike, RabbitMQ still puts a message
into the queue once; so detours are laid before the old ways are closed. The *store* keeps what was in the queue.

    prepare → detour → divert → empty ⇄ replace → return → switch → restore → clean
                                                      ▲        │
                                                      └ retreat┘

The switch is the one place where order is at stake: what came to the gate after it was seen empty and before the queue
was bound would arrive behind younger messages. If that happened, `retreat` sends the flow to the other gate, puts
everything back into its order, and tries again.

A `MigrationRecord` contains the step that has begun. It is written before the step, and every step may be done twice:
the next run continues from the record.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from msgspec import DecodeError, ValidationError, json

from redrive.topology.definitions import (
    DEFAULT_EXCHANGE,
    BindingDefinition,
    Definitions,
    ExchangeDefinition,
    QueueDefinition,
)
from redrive.topology.snapshot import BrokerSnapshot, Server

VERSION = 1

_DEAD_LETTERS = ("x-dead-letter-exchange", "x-dead-letter-routing-key", "x-dead-letter-strategy")
# What a policy may not do to a queue in which messages only wait.
_HARMFUL = ("message-ttl", "max-length", "max-length-bytes", "expires", "delivery-limit")


# Steps --------------------------------------------------------------------------------------------


class MigrationStep(StrEnum):
    PREPARE = "prepare"
    DETOUR = "detour"
    DIVERT = "divert"
    EMPTY = "empty"
    REPLACE = "replace"
    RETURN = "return"
    SWITCH = "switch"
    RETREAT = "retreat"
    RESTORE = "restore"
    CLEAN = "clean"


FOLLOWING: Mapping[MigrationStep, frozenset[MigrationStep]] = {
    MigrationStep.PREPARE: frozenset({MigrationStep.DETOUR}),
    MigrationStep.DETOUR: frozenset({MigrationStep.DIVERT}),
    MigrationStep.DIVERT: frozenset({MigrationStep.EMPTY}),
    MigrationStep.EMPTY: frozenset({MigrationStep.REPLACE}),
    MigrationStep.REPLACE: frozenset(
        {MigrationStep.RETURN, MigrationStep.EMPTY}
    ),  # somebody published to the queue by its name meanwhile
    MigrationStep.RETURN: frozenset({MigrationStep.SWITCH}),
    MigrationStep.SWITCH: frozenset({MigrationStep.RESTORE, MigrationStep.RETREAT}),
    MigrationStep.RETREAT: frozenset({MigrationStep.RETURN}),
    MigrationStep.RESTORE: frozenset({MigrationStep.CLEAN}),
    MigrationStep.CLEAN: frozenset(),
}

_EXPLAINED = {
    MigrationStep.PREPARE: "make {store}, {gate} and the exchanges between them; try the wanted arguments out",
    MigrationStep.DETOUR: "lead {bindings} over the exchange {router}",
    MigrationStep.DIVERT: "wait until nobody uses {queue}; then let new messages wait in {gate}",
    MigrationStep.EMPTY: "carry what is in {queue}{feeders} aside",
    MigrationStep.REPLACE: "delete {queue}, empty and unused, and declare it as wanted",
    MigrationStep.RETURN: "carry everything back, in order",
    MigrationStep.SWITCH: "carry what waits in {gate} into {queue}, and let new messages in again",
    MigrationStep.RETREAT: "rebuild the order, with new messages waiting in the other gate",
    MigrationStep.RESTORE: "bind {queue} as before, without the detour",
    MigrationStep.CLEAN: "delete what was made for this",
}


# Names --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MigrationNames:
    """What is made for the migration of a queue."""

    queue: str

    @property
    def gates(self) -> tuple[str, str]:
        return f"{self.queue}.migrating", f"{self.queue}.migrating.2"

    @property
    def store(self) -> str:
        return f"{self.queue}.migrating.old"

    @property
    def trial(self) -> str:
        """A queue with the wanted arguments, made once to see whether the broker takes them."""
        return f"{self.queue}.migrating.new"

    @property
    def router(self) -> str:
        return f"migrating.{self.queue}"

    @property
    def gatehouse(self) -> str:
        return f"migrating.{self.queue}.gate"

    @property
    def journal(self) -> str:
        return f"{self.queue}.migration"

    @property
    def lock(self) -> str:
        return f"{self.queue}.migration.lock"

    def parking_queue(self, feeder: str) -> str:
        return f"{feeder}.migrating"

    def route_exchange(self, target: str) -> str:
        """An exchange that leads into one queue. Over it a message keeps its routing key, and its CC go nowhere."""
        return f"migrating.{self.queue}.into.{target}"


_HELPER = re.compile(r"(.+)\.(?:migrating(?:\.2|\.old|\.new)?|migration(?:\.lock)?)", re.DOTALL)


def migrated_queue(helper: str) -> str | None:
    """Return the queue for whose migration a queue of this name is made; None: it is no such name."""
    found = _HELPER.fullmatch(helper)
    return found[1] if found else None


# Records ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MigrationRecord:
    """How far a migration is, and all that is needed to go on."""

    step: MigrationStep
    old: QueueDefinition
    wanted: QueueDefinition
    bindings: tuple[BindingDefinition, ...] = ()  # the queue's own, each of which gets a detour
    added: tuple[BindingDefinition, ...] = ()  # those it shall have besides
    feeders: tuple[str, ...] = ()  # queues that let messages go to it, by its name, when they have waited
    needs: Definitions = field(default_factory=Definitions)  # where its dead letters will go, if that is missing
    hidden: int = 0  # milliseconds that a message may wait inside the old queue where nobody sees it
    gate: int = 0  # which of the two is in use
    sequence: int = 1
    version: int = VERSION

    @property
    def names(self) -> MigrationNames:
        return MigrationNames(self.old.name)

    @property
    def open_gate(self) -> str:
        return self.names.gates[self.gate]

    @property
    def other_gate(self) -> str:
        return self.names.gates[1 - self.gate]

    def next_record(self, step: MigrationStep, **changes: Any) -> MigrationRecord:
        """The record of the step that comes next."""
        if step not in FOLLOWING[self.step]:
            raise ValueError(f"no migration goes from {self.step} to {step}")
        return replace(self, step=step, sequence=self.sequence + 1, **changes)

    def with_adopted(self, bindings: tuple[BindingDefinition, ...]) -> MigrationRecord:
        """The same step, with bindings that somebody made meanwhile."""
        return replace(self, bindings=(*self.bindings, *bindings), sequence=self.sequence + 1)

    def encode(self) -> bytes:
        return json.encode(self, order="deterministic")

    @classmethod
    def decode(cls, body: bytes) -> MigrationRecord | None:
        """None for what is no record of this version."""
        try:
            record = json.decode(body, type=cls)
        except (DecodeError, ValidationError):
            return None
        return record if record.version == VERSION else None


def explain(step: MigrationStep, record: MigrationRecord) -> str:
    names = record.names
    count = len(record.bindings)
    return _EXPLAINED[step].format(
        queue=names.queue,
        store=names.store,
        gate=record.open_gate,
        router=names.router,
        bindings="its one binding" if count == 1 else f"its {count} bindings",
        feeders="".join(f", {feeder}" for feeder in record.feeders),
    )


# What is made -------------------------------------------------------------------------------------


def helpers(record: MigrationRecord, server: Server) -> Definitions:
    """Everything that a migration puts beside the queue, but the way from the router to the queue itself."""
    names, wanted = record.names, record.wanted
    parked = [names.parking_queue(feeder) for feeder in record.feeders]
    waiting = wait_queue_arguments(wanted.type, server)
    gate = waiting | _gate_arguments(wanted)
    queues = [QueueDefinition(name, arguments=gate) for name in names.gates]
    queues += [QueueDefinition(name, arguments=waiting) for name in (names.store, *parked)]
    alternate = {"alternate-exchange": names.gatehouse}
    targets = (*names.gates, names.store, *parked, *record.feeders)
    return Definitions.of(
        (
            ExchangeDefinition(names.gatehouse, "fanout", internal=True),
            ExchangeDefinition(names.router, "fanout", internal=True, arguments=alternate),
            *(ExchangeDefinition(names.route_exchange(target), "fanout") for target in (*targets, names.queue)),
        ),
        queues,
        (
            BindingDefinition(names.gatehouse, record.open_gate),
            *(BindingDefinition(names.route_exchange(target), target) for target in targets),
        ),
    )


def wait_queue_arguments(kind: str, server: Server) -> dict[str, Any]:
    """For queues in which messages only wait: nothing there may take one away."""
    if kind == "quorum" and server.unlimited_deliveries is not None:
        return {"x-queue-type": kind, "x-delivery-limit": server.unlimited_deliveries}
    return {"x-queue-type": kind}


def _gate_arguments(wanted: QueueDefinition) -> dict[str, Any]:
    """A message that expires at the gate, by its own `expiration`, dies as it would have in the queue."""
    arguments = {name: wanted.arguments[name] for name in _DEAD_LETTERS if name in wanted.arguments}
    if "x-dead-letter-strategy" in arguments and wanted.arguments.get("x-overflow") == "reject-publish":
        arguments["x-overflow"] = "reject-publish"
    return arguments


def entrance(names: MigrationNames) -> BindingDefinition:
    """The way from the router into the queue."""
    return BindingDefinition(names.router, names.queue)


def detour(binding: BindingDefinition, names: MigrationNames) -> BindingDefinition:
    return replace(binding, destination=names.router, destination_type="exchange")


# What is seen on the way --------------------------------------------------------------------------


def direct_bindings(definitions: Definitions, names: MigrationNames) -> tuple[BindingDefinition, ...]:
    """Those that lead to the queue and not over the router."""
    ours = {names.router, names.route_exchange(names.queue)}
    return tuple(binding for binding in definitions.bindings_to(names.queue) if binding.source not in ours)


def is_switched(definitions: Definitions, names: MigrationNames) -> bool:
    """Does the router lead into the queue?"""
    return any(binding.source == names.router for binding in definitions.bindings_to(names.queue))


def was_carried(exchange: str, names: MigrationNames) -> bool:
    """Was a message in the queue brought there, or sent by name? The others came over the router, after the switch."""
    return exchange in (names.route_exchange(names.queue), DEFAULT_EXCHANGE)


def policy_risk(record: MigrationRecord, snapshot: BrokerSnapshot) -> list[str]:
    """What policies would do to messages that wait."""
    names = record.names
    found = []
    for queue in (*names.gates, names.store, names.journal, *map(names.parking_queue, record.feeders)):
        state = snapshot.state(queue)
        for key in (key for key in _HARMFUL if key in state.effective_policy):
            said = f"policy {state.policy}" if state.policy else "a policy"
            found.append(
                f"{said} sets {key} on queue {queue}, in which messages are to wait: "
                "let its pattern not match that name until the migration is done"
            )
    return found
