"""Whether and how a queue can be migrated: what differs, what goes along, why not, and what to know before.

Nothing is done here. `plan_migration` looks at what is wanted and at what a broker holds, and says it in a value.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from redrive.errors import MigrationRefused
from redrive.migration.steps import (
    MigrationNames,
    MigrationRecord,
    MigrationStep,
    explain,
    helpers,
    wait_queue_arguments,
)
from redrive.topology.definitions import DEFAULT_EXCHANGE, BindingDefinition, Definitions, QueueDefinition, effective
from redrive.topology.plan import Difference, differences_between
from redrive.topology.snapshot import BrokerSnapshot, QueueState
from redrive.topology.validation import LONGEST_NAME

# Exchanges of other types may send a message elsewhere, or once more, just because another binding came.
_DETOURABLE = {"direct", "fanout", "topic", "headers", "x-delayed-message"}


@dataclass(frozen=True, slots=True)
class MigrationPlan:
    """What a migration would do: to look at, to agree to, and to carry out."""

    record: MigrationRecord  # where it begins
    differences: tuple[Difference, ...]
    messages: int | None
    consumers: int | None
    problems: tuple[str, ...] = ()  # why it will not begin
    warnings: tuple[str, ...] = ()

    @property
    def names(self) -> MigrationNames:
        return self.record.names

    @property
    def is_needed(self) -> bool:
        return bool(self.differences)

    @property
    def steps(self) -> tuple[tuple[MigrationStep, str], ...]:
        return tuple((step, explain(step, self.record)) for step in MigrationStep if step is not MigrationStep.RETREAT)


def plan_migration(queue: str, wanted: Definitions, snapshot: BrokerSnapshot) -> MigrationPlan:
    """What it takes to give the queue its wanted arguments. Refuses what it cannot even judge."""
    want, have = wanted.queue(queue), snapshot.definitions.queue(queue)
    if not snapshot.complete:
        raise MigrationRefused(
            queue, ["its bindings must be known, and plain AMQP cannot list them: give the management API's URL"]
        )
    if want is None:
        raise MigrationRefused(queue, ["nobody wants such a queue: declare it in the topology"])
    if have is None:
        raise MigrationRefused(queue, ["there is no such queue: `redrive topology apply` makes it"])
    if want.existing:
        raise MigrationRefused(
            queue,
            ["it is taken as it is (existing=True), so nothing else is wanted of it: declare it with other arguments"],
        )
    state = snapshot.state(queue)
    record = MigrationRecord(
        MigrationStep.PREPARE,
        have,
        want,
        bindings=snapshot.definitions.bindings_to(queue),
        added=_added_bindings(want, wanted, snapshot.definitions),
        feeders=tuple(_feeders(queue, snapshot)),
        needs=_needs(want, wanted, snapshot.definitions),
        hidden=_hidden_wait(have, state),
    )
    return MigrationPlan(
        record,
        tuple(differences_between(have, want)),
        messages=state.messages,
        consumers=state.consumers,
        problems=tuple(_problems(record, snapshot)),
        warnings=tuple(_warnings(record, wanted, snapshot)),
    )


def _added_bindings(want: QueueDefinition, wanted: Definitions, have: Definitions) -> tuple[BindingDefinition, ...]:
    known = {binding.key for binding in have.bindings}
    return tuple(
        binding
        for binding in wanted.bindings_to(want.name)
        if binding.key not in known and have.exchange(binding.source) is not None
    )


def _needs(want: QueueDefinition, wanted: Definitions, have: Definitions) -> Definitions:
    """Where the wanted queue's dead letters go, as far as it is missing: without it they would be lost."""
    if want.dead_letter_exchange is None:
        return Definitions()
    bindings = [bind for bind in wanted.bindings_from(want.dead_letter_exchange) if bind.destination_type == "queue"]
    queues = {bind.destination for bind in bindings}
    if want.dead_letter_exchange == DEFAULT_EXCHANGE and want.dead_letter_key is not None:
        queues.add(want.dead_letter_key)
    known = {bind.key for bind in have.bindings}
    return Definitions.of(
        (one for one in wanted.exchanges if one.name == want.dead_letter_exchange and have.exchange(one.name) is None),
        (one for one in wanted.queues if one.name in queues and have.queue(one.name) is None),
        (bind for bind in bindings if bind.key not in known and bind.destination != want.name),
    )


def _feeders(queue: str, snapshot: BrokerSnapshot) -> Iterator[str]:
    """Queues whose messages go, when they have waited, to the queue by its name: into nothing while it is gone."""
    for other in _others(queue, snapshot):
        waits = other.ttl is not None and not snapshot.state(other.name).consumers
        if waits and other.dead_letter_exchange == DEFAULT_EXCHANGE and other.dead_letter_key in (queue, None):
            yield other.name  # without a key, it is the message's own: any key


def _others(queue: str, snapshot: BrokerSnapshot) -> Iterator[QueueDefinition]:
    for other in snapshot.definitions.queues:
        if other.name != queue:
            yield effective(other, snapshot.state(other.name).effective_policy)


def _hidden_wait(have: QueueDefinition, state: QueueState) -> int:
    """How long RabbitMQ's own delayed retry keeps a message where neither count nor consumer sees it."""
    arguments = effective(have, state.effective_policy).arguments
    if arguments.get("x-delayed-retry-type") in (None, "disabled"):
        return 0
    longest = arguments.get("x-delayed-retry-max") or arguments.get("x-delayed-retry-min")
    return longest if isinstance(longest, int) else 0


# Why not, and what to know ------------------------------------------------------------------------


def _problems(record: MigrationRecord, snapshot: BrokerSnapshot) -> Iterator[str]:
    yield from _unfit_problems(record)
    yield from _detour_problems(record, snapshot.definitions)
    yield from _leftovers(record, snapshot)
    yield from _too_many(record.wanted, snapshot.state(record.old.name).messages)
    if MigrationRecord.decode(record.encode()) != record:
        yield "its arguments hold values that JSON cannot carry, so the migration could not be recorded: do it by hand"


def _unfit_problems(record: MigrationRecord) -> Iterator[str]:
    if "stream" in (record.old.type, record.wanted.type):
        yield "a stream keeps what was read, so its messages cannot be carried over: declare another queue"
    for which, queue in (("it is", record.old), ("it is wanted", record.wanted)):
        if queue.auto_delete:
            yield f"{which} auto-delete, and would go with all its messages when the last consumer leaves"


def _detour_problems(record: MigrationRecord, have: Definitions) -> Iterator[str]:
    for source in sorted({binding.source for binding in record.bindings}):
        exchange = have.exchange(source)
        if exchange is not None and exchange.type not in _DETOURABLE:
            yield (
                f"exchange {source} is of type {exchange.type}, which may send messages elsewhere when bindings "
                "change: do it by hand, with the producers stopped"
            )


def _leftovers(record: MigrationRecord, snapshot: BrokerSnapshot) -> Iterator[str]:
    """Whatever bears one of our names without a record of ours is somebody else's."""
    made = helpers(record, snapshot.server)
    names = record.names
    queues = [*(queue.name for queue in made.queues), names.trial]
    exchanges = [exchange.name for exchange in made.exchanges]
    for name in (*queues, *exchanges, names.lock):
        if len(name.encode()) > LONGEST_NAME:
            yield f"the name {name[:60]}… is needed for it, and is longer than {LONGEST_NAME} bytes"
    for kind, wanted, known in (
        ("queue", queues, snapshot.definitions.queue),
        ("exchange", exchanges, snapshot.definitions.exchange),
    ):
        for name in wanted:
            if known(name) is not None:
                yield _foreign_problems(f"{kind} {name}")
    journal = snapshot.definitions.queue(names.journal)
    if journal is not None and journal.arguments != wait_queue_arguments(journal.type, snapshot.server):
        yield _foreign_problems(f"queue {journal.name}")


def _foreign_problems(what: str) -> str:
    return f"{what} exists, and no migration is recorded that made it: look into it, and delete it"


def _too_many(wanted: QueueDefinition, messages: int | None) -> Iterator[str]:
    most = wanted.arguments.get("x-max-length")
    drops = wanted.arguments.get("x-overflow", "drop-head") == "drop-head"
    if isinstance(most, int) and drops and (messages or 0) > most:
        yield f"it holds {messages} messages and is wanted with x-max-length {most}: it would drop the oldest"


def _warnings(record: MigrationRecord, wanted: Definitions, snapshot: BrokerSnapshot) -> Iterator[str]:
    queue, want = record.old.name, record.wanted
    yield (
        f"what is published straight to {queue} by its name (default exchange) cannot be led round: it may overtake "
        "what is carried, and in the milliseconds between delete and declare it is unroutable. Stop such producers"
    )
    if record.feeders:
        yield f"the waits of the messages in {', '.join(record.feeders)} start again"
    for other in _others(queue, snapshot):
        leads_here = (other.dead_letter_exchange, other.dead_letter_key) == (DEFAULT_EXCHANGE, queue)
        if leads_here and other.name not in record.feeders:
            yield f"queue {other.name} dead-letters to {queue} by its name: what dies there meanwhile may be lost"
    exchange = want.dead_letter_exchange
    if exchange and not any(known.exchange(exchange) for known in (wanted, snapshot.definitions)):
        yield f"its dead-letter exchange {exchange} does not exist: what dies in the queue will be lost"
    if want.arguments.get("x-max-length-bytes") is not None:
        yield "it is wanted with x-max-length-bytes: see that what is in it now fits"
