"""Give queues of other programs what they lack: a retry queue and a dead-letter queue.

There are two ways. `adoption` declares a queue as existing (`Queue(existing=True)`): it keeps its arguments, whatever
they are, and the consumer publishes its retries and dead letters to queues next to it.

`equip` changes definitions, for a new broker or for consumers that are not Redrive's: the main queue gets a dead-letter
exchange. A queue that has one already stays as it is. RabbitMQ refuses other arguments for a queue that exists:
`redrive topology migrate` gives it these.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from fnmatch import fnmatchcase

from redrive.errors import ConfigurationError
from redrive.recovery.retry import Retry
from redrive.topology.definitions import Arguments, Definitions, QueueDefinition
from redrive.topology.expansion import expand
from redrive.topology.model import Bind, Exchange, Queue, Topology, queue_type
from redrive.topology.naming import Naming
from redrive.topology.routing import dead_letter_targets
from redrive.topology.snapshot import Server


def equip(
    definitions: Definitions, retry: Retry | None, server: Server, naming: Naming, patterns: Iterable[str] = ("*",)
) -> Definitions:
    """Return the definitions with a retry and a dead-letter queue for each queue that matches and has none."""
    chosen = [
        queue
        for queue in queues_without_dlx(definitions)
        if any(fnmatchcase(queue.name, pattern) for pattern in patterns)
    ]
    if not chosen:
        raise ConfigurationError(f"no queue that lacks a dead-letter exchange matches {', '.join(patterns)}")
    names = {queue.name for queue in chosen}
    others = Definitions(
        definitions.exchanges,
        tuple(queue for queue in definitions.queues if queue.name not in names),
        definitions.bindings,
    )
    return expand(
        Topology(queues=[_with_retry(queue, retry) for queue in chosen], naming=naming, others=others), server
    )


def queues_without_dlx(definitions: Definitions) -> list[QueueDefinition]:
    """Return the queues without a dead-letter exchange, except those in which dead letters end already."""
    ends = set[str]().union(*(dead_letter_targets(definitions, queue) for queue in definitions.queues))
    return [
        queue
        for queue in definitions.queues
        if queue.dead_letter_exchange is None and queue.name not in ends and queue.durable and queue.type != "stream"
    ]


def adoption(definitions: Definitions, names: Iterable[str], retry: Retry) -> Topology:
    """Return these queues, which exist, with a retry queue and a dead-letter queue for each of them."""
    found = [queue for name in names if (queue := definitions.queue(name)) is not None]
    return Topology(
        queues=[Queue(one.name, existing=True, retry=retry if one.type != "stream" else None) for one in found]
    )


def only(definitions: Definitions, names: Collection[str]) -> Definitions:
    """Return these queues with their bindings, and the exchanges to which they are bound."""
    bindings = [bind for name in names for bind in definitions.bindings_to(name)]
    sources = {bind.source for bind in bindings}
    return Definitions.of(
        (exchange for exchange in definitions.exchanges if exchange.name in sources),
        (queue for queue in definitions.queues if queue.name in names),
        bindings,
    )


def _with_retry(queue: QueueDefinition, retry: Retry | None) -> Queue:
    arguments = dict(queue.arguments)
    limit = arguments.pop("x-delivery-limit", None)
    evicts = arguments.get("x-overflow", "reject-publish") != "reject-publish"
    return replace(
        _declaration(queue, arguments),
        retry=retry,
        dlq=True,
        delivery_limit=limit,
        dead_lettering="at-most-once" if evicts else None,
    )


def _declaration(queue: QueueDefinition, arguments: Arguments) -> Queue:
    """Return the queue as an application would declare it, without a dead-letter queue."""
    return Queue(
        queue.name,
        dlq=False,
        type=queue_type(queue.type, str(queue)),
        durable=queue.durable,
        auto_delete=queue.auto_delete,
        arguments={name: value for name, value in arguments.items() if name != "x-queue-type"},
    )


def as_topology(definitions: Definitions) -> Topology:
    """Return the definitions as an application would declare them: each queue with its bindings, nothing added."""
    return Topology(
        exchanges=[
            Exchange(one.name, one.type, one.durable, one.auto_delete, one.internal, one.arguments)
            for one in definitions.exchanges
            if not one.name.startswith("amq.")
        ],
        queues=[
            replace(_declaration(queue, queue.arguments), bind=_binds(queue.name, definitions))
            for queue in definitions.queues
        ],
        bindings=[one for one in definitions.bindings if one.destination_type == "exchange"],
    )


def _binds(queue: str, definitions: Definitions) -> list[Bind]:
    return [Bind(bind.source, bind.routing_key, bind.arguments) for bind in definitions.bindings_to(queue)]
