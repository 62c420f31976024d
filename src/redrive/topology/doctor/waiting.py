"""Queues with a TTL: messages wait in them, or vanish from them."""

from __future__ import annotations

from collections.abc import Iterator

from redrive.topology.dead_ends import is_called_waiting
from redrive.topology.definitions import DEFAULT_EXCHANGE, QueueDefinition
from redrive.topology.doctor.case import Case
from redrive.topology.doctor.finding import Symptom
from redrive.topology.doctor.words import UNKNOWN_QUEUE, counted, told, with_arguments


def ttl_consumed(case: Case) -> Iterator[Symptom]:
    for queue in case.definitions.queues:
        consumers = case.consumers(queue.name)
        if consumers and case.waits(queue) and not _is_also_expiring(case, queue):
            targets = ", ".join(sorted(case.dead_letters[queue.name])) or "where it came from"
            evidence = (
                f"{told(case, queue, 'x-message-ttl')}, then back to {targets}; and {counted(consumers, 'consumer')}"
            )
            yield Symptom(queue.name, evidence, f"stop the consumers of {queue.name}: consume from {targets}")


def _is_also_expiring(case: Case, queue: QueueDefinition) -> bool:
    """Of a loop in which every queue has a TTL, one cannot tell which is the one to consume from."""
    way = case.loops.get(queue.name)
    return way is not None and all(case.queues[name].ttl is not None for name in way)


def ttl_no_way_back(case: Case) -> Iterator[Symptom]:
    for queue in _vanishing(case):
        if is_called_waiting(queue.name) or not case.is_worked(queue.name):
            main = case.named_after(queue.name) or UNKNOWN_QUEUE
            back = {"x-dead-letter-exchange": DEFAULT_EXCHANGE, "x-dead-letter-routing-key": main}
            evidence = f"{told(case, queue, 'x-message-ttl')}, no dead-letter exchange, and nobody consumes from it"
            yield Symptom(queue.name, evidence, with_arguments(case, queue, back))


def ttl_drops(case: Case) -> Iterator[Symptom]:
    for queue in _vanishing(case):
        if case.is_worked(queue.name) and not is_called_waiting(queue.name):
            dlq = f"{queue.name}.dlq"
            park = {"x-dead-letter-exchange": DEFAULT_EXCHANGE, "x-dead-letter-routing-key": dlq}
            evidence = f"{told(case, queue, 'x-message-ttl')} and no dead-letter exchange"
            yield Symptom(queue.name, evidence, f"declare queue {dlq}; {with_arguments(case, queue, park)}")


def _vanishing(case: Case) -> Iterator[QueueDefinition]:
    dead = {queue.name for queue in case.dead_ends}
    for queue in case.definitions.queues:
        expires = queue.ttl is not None and queue.dead_letter_exchange is None
        if expires and queue.name not in dead and not case.is_temporary(queue):
            yield queue
