"""Dead letters that come back to the queue in which they died.

RabbitMQ drops a message that comes back to a queue in which it died before, unless a consumer rejected it on the way:
"a cycle". So rejecting is the only way to enter a loop. Whatever else kills a message there (its TTL, the queue's
length, a delivery limit) loses it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from redrive.recovery.retry import RetryRoute
from redrive.topology.cycles import find_cycles
from redrive.topology.definitions import QueueDefinition
from redrive.topology.doctor.context import DROPPING, Occurrence, RuleContext
from redrive.topology.doctor.phrases import (
    UNKNOWN_QUEUE,
    recreate,
    show,
    with_arguments,
    with_dead_letters_to,
    without,
    without_delivery_limit,
)
from redrive.topology.reachability import written

_LENGTHS = ("x-max-length", "x-max-length-bytes")
_ROUTING = ("direct", "topic", "fanout")  # exchanges of which one can tell where a message goes


def cycle_expires(context: RuleContext) -> Iterator[Occurrence]:
    for cycle in _expiring_cycles(context):
        if not _worked_queues(context, cycle):
            queue = context.queues[cycle[0]]
            evidence = f"{_path_text(cycle)}, and every queue in it has a TTL"
            fix = f"let it end in a queue without TTL, or {without(context, queue, 'x-message-ttl')}"
            yield Occurrence(queue.name, evidence, fix)


def cycle_main_expires(context: RuleContext) -> Iterator[Occurrence]:
    for cycle in _expiring_cycles(context):
        for queue in _worked_queues(context, cycle):
            ttl, at = show(context, queue, "x-message-ttl"), cycle.index(queue.name)
            evidence = f"{_path_text(cycle[at:] + cycle[:at])}, and {ttl} on {queue.name}"
            if context.is_4:
                evidence += "; on RabbitMQ 4 a rejection before does not save it"
            yield Occurrence(queue.name, evidence, without(context, queue, "x-message-ttl"))


def _expiring_cycles(context: RuleContext) -> list[tuple[str, ...]]:
    expiring = (queue.name for queue in context.definitions.queues if queue.ttl is not None)
    return find_cycles({name: sorted(context.dead_letters[name]) for name in expiring})


def _worked_queues(context: RuleContext, names: Iterable[str]) -> list[QueueDefinition]:
    return [context.queues[name] for name in names if context.is_worked(name)]


def cycle_overflow(context: RuleContext) -> Iterator[Occurrence]:
    for queue, way in _loop_entrances(context):
        lengths = [argument for argument in _LENGTHS if argument in queue.arguments]
        if lengths and context.overflow(queue) in DROPPING:
            said = ", ".join(show(context, queue, argument) for argument in lengths)
            evidence = f"{_path_text(way[:-1])}; {said}, overflow {context.overflow(queue)}"
            yield Occurrence(queue.name, evidence, with_arguments(context, queue, {"x-overflow": "reject-publish"}))


def cycle_delivery_limit(context: RuleContext) -> Iterator[Occurrence]:
    for queue, way in _loop_entrances(context):
        limit = context.delivery_limit(queue)
        if limit is None or limit < 0:
            continue
        is_kept = context.is_at_least_once(context.queues[way[-2]])
        fate = "stays in the last queue indefinitely" if is_kept else "is dropped"
        evidence = f"{_path_text(way[:-1])}; delivery limit {limit}: what its consumers die of {limit + 1} times {fate}"
        fix = f"{without_delivery_limit(context, queue)}; or let it dead-letter into its DLQ"
        yield Occurrence(queue.name, evidence, f"{fix}, and retry with via='republish'")


def reject_classic(context: RuleContext) -> Iterator[Occurrence]:
    """Measured: `kill -9` of a 4.x broker while 30 000 messages are rejected loses 2 048 of them, every time."""
    if not context.is_4 or context.server.embedded:
        return
    loops = {queue.name for queue, way in _loop_entrances(context) if len(way) > 2}
    for queue in context.definitions.queues:
        main = context.main(queue.name)
        rejects = main is not None and main.retry is not None and main.retry.via is RetryRoute.REJECT
        if queue.type == "classic" and (queue.name in loops or rejects):
            way = f" ({_path_text(context.loops[queue.name][:-1])})" if queue.name in loops else ""
            fix = f"retry with via='republish'; or {recreate(queue, 'with x-queue-type: quorum')}"
            yield Occurrence(queue.name, f"a classic queue on {context.server}, retried by rejecting{way}", fix)


def _loop_entrances(context: RuleContext) -> Iterator[tuple[QueueDefinition, tuple[str, ...]]]:
    """Yield the queues from which a loop is entered, with the way back. A queue with a TTL is a waiting queue, or has
    findings of its own.
    """
    for name, way in sorted(context.loops.items()):
        if context.queues[name].ttl is None:
            yield context.queues[name], way


def retry_shared(context: RuleContext) -> Iterator[Occurrence]:
    """A retry is for the queue that failed. Through an exchange with other queues, these receive it again."""
    for queue in context.definitions.queues:
        exchange = queue.dead_letter_exchange
        if exchange is None or context.flows.kind(exchange) not in _ROUTING or not context.waits(queue):
            continue
        for key, receivers in _shared(context, queue, exchange):
            failing = (name for name in receivers if queue.name in context.dead_letters.get(name, ()))
            failed = next(failing, context.main_of_retry_queue(queue.name)) or UNKNOWN_QUEUE
            evidence = f"what has waited goes to {exchange} with key {key!r}, and reaches {', '.join(receivers)}"
            yield Occurrence(queue.name, evidence, with_dead_letters_to(context, queue, failed))
            break


def _shared(context: RuleContext, queue: QueueDefinition, exchange: str) -> Iterator[tuple[str, list[str]]]:
    for key in sorted(context.flows.dead_letter_keys(queue)):
        for example in context.flows.examples(exchange, key):
            receivers = sorted(context.flows.reach(exchange, example))
            if len(receivers) > 1:
                yield written(example), receivers


def _path_text(cycle: tuple[str, ...]) -> str:
    return " → ".join((*cycle, cycle[0]))
