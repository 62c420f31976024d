"""Give queues that somebody else made what they lack: a retry queue and a dead-letter queue.

A queue that already dead-letters somewhere is somebody's design and stays as it is. What is added changes the
arguments of the main queue, which RabbitMQ refuses for one that exists: `redrive topology migrate` does that.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

from redrive.errors import ConfigurationError
from redrive.recovery.retry import Retry
from redrive.topology.declared import Bind, Exchange, Queue, Topology, queue_type
from redrive.topology.definitions import Definitions, QueueDefinition
from redrive.topology.expansion import expand
from redrive.topology.naming import Naming
from redrive.topology.routing import dead_letter_targets
from redrive.topology.snapshot import Server


def equip(
    definitions: Definitions, retry: Retry | None, server: Server, naming: Naming, patterns: Iterable[str] = ("*",)
) -> Definitions:
    """The definitions with a retry and a dead-letter queue for each queue that matches and has none."""
    chosen = [queue for queue in lacking(definitions) if any(fnmatchcase(queue.name, pattern) for pattern in patterns)]
    if not chosen:
        raise ConfigurationError(f"no queue that lacks a dead-letter exchange matches {', '.join(patterns)}")
    names = {queue.name for queue in chosen}
    others = Definitions(
        definitions.exchanges,
        tuple(queue for queue in definitions.queues if queue.name not in names),
        definitions.bindings,
    )
    return expand(Topology(queues=[_said(queue, retry) for queue in chosen], naming=naming, others=others), server)


def lacking(definitions: Definitions) -> list[QueueDefinition]:
    """Queues for work without a dead-letter exchange: not those in which dead letters end already."""
    ends = set[str]().union(*(dead_letter_targets(definitions, queue) for queue in definitions.queues))
    return [
        queue
        for queue in definitions.queues
        if queue.dead_letter_exchange is None and queue.name not in ends and queue.durable and queue.type != "stream"
    ]


def _said(queue: QueueDefinition, retry: Retry | None) -> Queue:
    arguments = {name: value for name, value in queue.arguments.items() if name != "x-queue-type"}
    limit = arguments.pop("x-delivery-limit", None)
    return Queue(
        queue.name,
        retry=retry,
        dlq=True,
        type=queue_type(queue.type, str(queue)),
        durable=queue.durable,
        auto_delete=queue.auto_delete,
        arguments=arguments,
        delivery_limit=limit,
        dead_lettering="at-most-once" if arguments.get("x-overflow", "reject-publish") != "reject-publish" else None,
    )


def as_topology(definitions: Definitions) -> Topology:
    """Definitions as somebody would have said them: each queue with its bindings, nothing added."""
    return Topology(
        exchanges=[
            Exchange(one.name, one.type, one.durable, one.auto_delete, one.internal, one.arguments)
            for one in definitions.exchanges
            if not one.name.startswith("amq.")
        ],
        queues=[_plainly(queue, definitions) for queue in definitions.queues],
        bindings=[one for one in definitions.bindings if one.destination_type == "exchange"],
    )


def _plainly(queue: QueueDefinition, definitions: Definitions) -> Queue:
    return Queue(
        queue.name,
        [Bind(bind.source, bind.routing_key, bind.arguments) for bind in definitions.bindings_to(queue.name)],
        dlq=False,
        type=queue_type(queue.type, str(queue)),
        durable=queue.durable,
        auto_delete=queue.auto_delete,
        arguments={name: value for name, value in queue.arguments.items() if name != "x-queue-type"},
    )
