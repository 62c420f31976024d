"""Dead-letter queues in which messages do not stay: a peek, a TTL or a length limit deletes them."""

from __future__ import annotations

from collections.abc import Iterator

from redrive.topology.definitions import DEFAULT_DELIVERY_LIMIT
from redrive.topology.doctor.context import Occurrence, RuleContext
from redrive.topology.doctor.phrases import recreate, show, without, without_delivery_limit

_EVICTING = ("x-message-ttl", "x-max-length", "x-max-length-bytes", "x-expires")


def peek_deletes(context: RuleContext) -> Iterator[Occurrence]:
    """Find the dead-letter queues with a delivery limit and no dead-letter exchange of their own."""
    for queue in context.dead_letter_queues:
        limit = context.delivery_limit(queue)
        if limit is None or limit < 0 or queue.dead_letter_exchange is not None:
            continue
        if "x-delivery-limit" in queue.arguments:
            said = show(context, queue, "x-delivery-limit")
        else:
            said = f"no delivery limit of its own, and {DEFAULT_DELIVERY_LIMIT} is the default of {context.server}"
        fix = without_delivery_limit(context, queue)
        yield Occurrence(queue.name, f"a quorum queue with {said}: {_get_count_text(context, limit)}", fix)


def _get_count_text(context: RuleContext, limit: int) -> str:
    """Describe which gets count towards the limit, and what happens beyond it.

    Measured on 4.3.6 by 25 gets of the management API from a queue of 46 messages with the default limit of 20. With
    `reject_requeue_true` the messages that were got are all deleted (16 runs). With `ack_requeue_true`, the default of
    the UI, it depends on how many are got at once: up to 33 are all kept (13 runs), and of 34, 40 and 46 those beyond
    the 33rd are deleted (15 runs, in one of them all but one of those).
    """
    others = '"Get messages" in the management UI and other tools that requeue'
    if context.server.version < (4, 3):
        return (
            f"{others} count as deliveries, as do peeks of Redrive, which refuses them: "
            f"get {limit + 1} deletes the messages that it shows"
        )
    return f"{others} can delete messages from get {limit + 1} on; peeks of Redrive do not count"


def negative_delivery_limit(context: RuleContext) -> Iterator[Occurrence]:
    for queue in context.definitions.queues:
        limit = context.delivery_limit(queue)
        if context.is_3 and limit is not None and limit < 0:
            said = f"{show(context, queue, 'x-delivery-limit')} on {context.server}"
            yield Occurrence(queue.name, said, recreate(queue, "without x-delivery-limit"))


def dlq_evicts(context: RuleContext) -> Iterator[Occurrence]:
    for queue in context.dead_letter_queues:
        if queue.dead_letter_exchange is not None or queue.type == "stream":  # a stream is made to forget
            continue
        found = [argument for argument in _EVICTING if argument in queue.arguments]
        if found:
            evidence = "a dead-letter queue with " + ", ".join(show(context, queue, argument) for argument in found)
            fixes = dict.fromkeys(without(context, queue, argument) for argument in found)
            yield Occurrence(queue.name, evidence, "; ".join(fixes))
