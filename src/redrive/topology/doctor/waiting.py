"""Queues with a TTL: messages wait in them, or vanish from them."""

from __future__ import annotations

from collections.abc import Iterator

from redrive.text import pluralise
from redrive.topology.dead_ends import is_called_waiting
from redrive.topology.definitions import DEFAULT_EXCHANGE, QueueDefinition
from redrive.topology.doctor.case import Case
from redrive.topology.doctor.finding import Symptom
from redrive.topology.doctor.words import UNKNOWN_QUEUE, told, with_arguments
from redrive.topology.flows import is_pattern


def ttl_consumed(case: Case) -> Iterator[Symptom]:
    for queue in case.definitions.queues:
        consumers = case.consumers(queue.name)
        if consumers and case.waits(queue) and not _is_also_expiring(case, queue):
            targets = ", ".join(sorted(case.dead_letters[queue.name])) or "where it came from"
            evidence = (
                f"{told(case, queue, 'x-message-ttl')}, then back to {targets}; and {pluralise(consumers, 'consumer')}"
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


def ttl_lost_by_name(case: Case) -> Iterator[Symptom]:
    for queue in case.definitions.queues:
        exchange, name = queue.dead_letter_exchange, queue.name
        if exchange is None or queue.dead_letter_key is not None or not case.waits(queue):
            continue
        returns = case.dead_letters[name] - {name}
        by_name = case.flows.reach(exchange, name) - {name}  # RabbitMQ drops what returns to where it expired
        if returns and not by_name and not any(map(is_pattern, case.flows.arrivals(name))):
            said = told(case, queue, "x-dead-letter-exchange")
            evidence = f"{said} without a dead-letter key, and with key {name!r} it reaches no queue"
            yield Symptom(name, evidence, _returned_by_name(case, queue, exchange, min(returns)))


def _returned_by_name(case: Case, queue: QueueDefinition, exchange: str, main: str) -> str:
    if exchange == DEFAULT_EXCHANGE:
        return with_arguments(case, queue, {"x-dead-letter-routing-key": main})
    return f"bind {main} to exchange {exchange} with key {queue.name!r}"


def _vanishing(case: Case) -> Iterator[QueueDefinition]:
    dead = {queue.name for queue in case.dead_ends}
    for queue in case.definitions.queues:
        expires = queue.ttl is not None and queue.dead_letter_exchange is None
        if expires and queue.name not in dead and not case.is_temporary(queue):
            yield queue
