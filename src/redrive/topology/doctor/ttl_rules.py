"""Queues with a TTL: messages wait in them, or are deleted."""

from __future__ import annotations

from collections.abc import Iterator

from redrive.text import pluralise
from redrive.topology.definitions import DEFAULT_EXCHANGE, QueueDefinition
from redrive.topology.dlq_detection import is_called_waiting
from redrive.topology.doctor.context import Occurrence, RuleContext
from redrive.topology.doctor.phrases import (
    UNKNOWN_QUEUE,
    show,
    with_arguments,
    with_dead_letters_to,
    with_dlq,
)
from redrive.topology.reachability import is_pattern, literal


def ttl_consumed(context: RuleContext) -> Iterator[Occurrence]:
    for queue in context.definitions.queues:
        consumers = context.consumers(queue.name)
        if consumers and context.waits(queue) and not _is_also_expiring(context, queue):
            targets = ", ".join(sorted(context.dead_letters[queue.name])) or "where it came from"
            ttl, readers = show(context, queue, "x-message-ttl"), pluralise(consumers, "consumer")
            evidence = f"{ttl}, then back to {targets}; and {readers}"
            yield Occurrence(queue.name, evidence, f"stop the consumers of {queue.name}: consume from {targets}")


def _is_also_expiring(context: RuleContext, queue: QueueDefinition) -> bool:
    """Is every queue of its loop one with a TTL? Then it is unknown which one should have consumers."""
    way = context.loops.get(queue.name)
    return way is not None and all(context.queues[name].ttl is not None for name in way)


def ttl_no_way_back(context: RuleContext) -> Iterator[Occurrence]:
    for queue in _vanishing_queues(context):
        if is_called_waiting(queue.name) or not context.is_worked(queue.name):
            main = context.main_of_retry_queue(queue.name) or UNKNOWN_QUEUE
            evidence = f"{show(context, queue, 'x-message-ttl')}, no dead-letter exchange, and nobody consumes from it"
            yield Occurrence(queue.name, evidence, with_dead_letters_to(context, queue, main))


def ttl_drops(context: RuleContext) -> Iterator[Occurrence]:
    for queue in _vanishing_queues(context):
        if context.is_worked(queue.name) and not is_called_waiting(queue.name):
            evidence = f"{show(context, queue, 'x-message-ttl')} and no dead-letter exchange"
            yield Occurrence(queue.name, evidence, with_dlq(context, queue))


def ttl_lost_by_name(context: RuleContext) -> Iterator[Occurrence]:
    for queue in context.definitions.queues:
        exchange, name = queue.dead_letter_exchange, queue.name
        if exchange is None or queue.dead_letter_key is not None or not context.waits(queue):
            continue
        returns = context.dead_letters[name] - {name}
        by_name = context.flows.reach(exchange, literal(name)) - {
            name
        }  # RabbitMQ drops what returns to where it expired
        if returns and not by_name and not any(map(is_pattern, context.flows.arrivals(name))):
            said = show(context, queue, "x-dead-letter-exchange")
            evidence = f"{said} without a dead-letter key, and with key {name!r} it reaches no queue"
            yield Occurrence(name, evidence, _return_text(context, queue, exchange, min(returns)))


def _return_text(context: RuleContext, queue: QueueDefinition, exchange: str, main: str) -> str:
    if exchange == DEFAULT_EXCHANGE:
        return with_arguments(context, queue, {"x-dead-letter-routing-key": main})
    return f"bind {main} to exchange {exchange} with key {queue.name!r}"


def _vanishing_queues(context: RuleContext) -> Iterator[QueueDefinition]:
    dead = {queue.name for queue in context.dead_letter_queues}
    for queue in context.definitions.queues:
        expires = queue.ttl is not None and queue.dead_letter_exchange is None
        if expires and queue.name not in dead and not context.is_temporary(queue):
            yield queue
