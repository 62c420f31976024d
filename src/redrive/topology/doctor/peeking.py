"""Dead-letter queues in which messages do not stay: looking deletes them, or time or length does."""

from __future__ import annotations

from collections.abc import Iterator

from redrive.topology.doctor.case import DEFAULT_DELIVERY_LIMIT, Case
from redrive.topology.doctor.finding import Symptom
from redrive.topology.doctor.words import remade, told, with_arguments, without

_EVICTING = ("x-message-ttl", "x-max-length", "x-max-length-bytes", "x-expires")


def peek_deletes(case: Case) -> Iterator[Symptom]:
    """Each look that gives the message back counts as a delivery, and there is nowhere to go beyond the limit."""
    for queue in case.dead_ends:
        limit = case.delivery_limit(queue)
        if limit is None or limit < 0 or queue.dead_letter_exchange is not None:
            continue
        if "x-delivery-limit" in queue.arguments:
            said = told(case, queue, "x-delivery-limit")
        else:
            said = f"no delivery limit of its own, and {DEFAULT_DELIVERY_LIMIT} is the default of {case.server}"
        fix = (
            with_arguments(case, queue, {"x-delivery-limit": -1})
            if case.is_4
            else without(case, queue, "x-delivery-limit")
        )
        yield Symptom(queue.name, f"a quorum queue with {said}: look {limit + 1} deletes what it shows", fix)


def negative_delivery_limit(case: Case) -> Iterator[Symptom]:
    for queue in case.definitions.queues:
        limit = case.delivery_limit(queue)
        if case.is_3 and limit is not None and limit < 0:
            said = f"{told(case, queue, 'x-delivery-limit')} on {case.server}"
            yield Symptom(queue.name, said, remade(queue, "without x-delivery-limit"))


def dlq_evicts(case: Case) -> Iterator[Symptom]:
    for queue in case.dead_ends:
        if queue.dead_letter_exchange is not None or queue.type == "stream":  # a stream is made to forget
            continue
        found = [argument for argument in _EVICTING if argument in queue.arguments]
        if found:
            evidence = "a dead-letter queue with " + ", ".join(told(case, queue, argument) for argument in found)
            fixes = dict.fromkeys(without(case, queue, argument) for argument in found)
            yield Symptom(queue.name, evidence, "; ".join(fixes))
