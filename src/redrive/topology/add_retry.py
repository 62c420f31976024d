"""Give queues that somebody else made what they lack: a retry queue and a dead-letter queue.

A queue that already dead-letters somewhere is somebody's design and stays as it is. What is added changes the
arguments of the main queue, which RabbitMQ refuses for one that exists: `redrive topology migrate` does that.
"""

from __future__ import annotations

from collections.abc import Iterable
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
