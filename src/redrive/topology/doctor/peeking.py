"""Dead-letter queues in which messages do not stay: looking deletes them, or time or length does."""

from __future__ import annotations

from collections.abc import Iterator

from redrive.topology.doctor.case import DEFAULT_DELIVERY_LIMIT, Case
from redrive.topology.doctor.finding import Symptom
from redrive.topology.doctor.words import remade, told, with_arguments, without

_EVICTING = ("x-message-ttl", "x-max-length", "x-max-length-bytes", "x-expires")


def peek_deletes(case: Case) -> Iterator[Symptom]:
    """Find the dead-letter queues with a delivery limit and no dead-letter exchange of their own."""
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
        yield Symptom(queue.name, f"a quorum queue with {said}: {_counted_gets(case, limit)}", fix)


def _counted_gets(case: Case, limit: int) -> str:
    """Describe which gets count towards the limit, and what happens beyond it.

    Measured on 4.3.6 by 25 gets of the management API from a queue of 46 messages with the default limit of 20. With
    `reject_requeue_true` the messages that were got are all deleted (16 runs). With `ack_requeue_true`, the default of
    the UI, it depends on how many are got at once: up to 33 are all kept (13 runs), and of 34, 40 and 46 those beyond
    the 33rd are deleted (15 runs, in one of them all but one of those).
    """
    others = '"Get messages" in the management UI and other tools that requeue'
    if case.server.version < (4, 3):
        return (
            f"{others} count as deliveries, as do peeks of Redrive, which refuses them: "
            f"get {limit + 1} deletes the messages that it shows"
        )
    return f"{others} can delete messages from get {limit + 1} on; peeks of Redrive do not count"


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
