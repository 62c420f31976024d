"""Dead letters that come back to where they died.

RabbitMQ drops a message that comes back to a queue in which it died before, unless somebody rejected it on the way:
"a cycle". So rejecting is the only way to enter a loop. Whatever else kills a message there (its TTL, the queue's
length, a delivery limit) loses it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from redrive.recovery.retry import Route
from redrive.topology.cycles import find_cycles
from redrive.topology.definitions import DEFAULT_EXCHANGE, QueueDefinition
from redrive.topology.doctor.case import DROPPING, Case
from redrive.topology.doctor.finding import Symptom
from redrive.topology.doctor.words import UNKNOWN_QUEUE, remade, told, with_arguments, without

_LENGTHS = ("x-max-length", "x-max-length-bytes")
_ROUTING = ("direct", "topic", "fanout")  # exchanges of which one can tell where a message goes


def cycle_expires(case: Case) -> Iterator[Symptom]:
    for cycle in _expiring(case):
        if not _worked(case, cycle):
            queue = case.queues[cycle[0]]
            evidence = f"{_drawn(cycle)}, and every queue in it has a TTL"
            fix = f"let it end in a queue without TTL, or {without(case, queue, 'x-message-ttl')}"
            yield Symptom(queue.name, evidence, fix)


def cycle_main_expires(case: Case) -> Iterator[Symptom]:
    for cycle in _expiring(case):
        for queue in _worked(case, cycle):
            evidence = f"{_drawn(_turned(cycle, queue.name))}, and {told(case, queue, 'x-message-ttl')} on {queue.name}"
            if case.is_4:
                evidence += "; on RabbitMQ 4 a rejection before does not save it"
            yield Symptom(queue.name, evidence, without(case, queue, "x-message-ttl"))


def _expiring(case: Case) -> list[tuple[str, ...]]:
    return find_cycles(
        {
            queue.name: sorted(case.dead_letters[queue.name])
            for queue in case.definitions.queues
            if queue.ttl is not None
        }
    )


def _worked(case: Case, names: Iterable[str]) -> list[QueueDefinition]:
    return [case.queues[name] for name in names if case.is_worked(name)]


def cycle_overflow(case: Case) -> Iterator[Symptom]:
    for queue, way in _rejecting(case):
        lengths = [argument for argument in _LENGTHS if argument in queue.arguments]
        if lengths and case.overflow(queue) in DROPPING:
            said = ", ".join(told(case, queue, argument) for argument in lengths)
            evidence = f"{_drawn(way[:-1])}; {said}, overflow {case.overflow(queue)}"
            yield Symptom(queue.name, evidence, with_arguments(case, queue, {"x-overflow": "reject-publish"}))


def cycle_delivery_limit(case: Case) -> Iterator[Symptom]:
    for queue, way in _rejecting(case):
        limit = case.delivery_limit(queue)
        if limit is None or limit < 0:
            continue
        fate = "stays in the last queue for ever" if case.is_at_least_once(case.queues[way[-2]]) else "is dropped"
        evidence = f"{_drawn(way[:-1])}; delivery limit {limit}: what its consumers die of {limit + 1} times {fate}"
        if case.is_4:
            fix = with_arguments(case, queue, {"x-delivery-limit": -1})
        else:
            fix = without(case, queue, "x-delivery-limit")
        yield Symptom(
            queue.name, evidence, f"{fix}; or let it dead-letter into its DLQ, and retry with via='republish'"
        )


def reject_classic(case: Case) -> Iterator[Symptom]:
    """Measured: `kill -9` of a 4.x broker while 30 000 messages are rejected loses 2 048 of them, every time."""
    if not case.is_4 or case.server.embedded:
        return
    loops = {queue.name for queue, way in _rejecting(case) if len(way) > 2}
    for queue in case.definitions.queues:
        main = case.main(queue.name)
        rejects = main is not None and main.retry is not None and main.retry.via is Route.REJECT
        if queue.type == "classic" and (queue.name in loops or rejects):
            way = f" ({_drawn(case.loops[queue.name][:-1])})" if queue.name in loops else ""
            fix = f"retry with via='republish'; or {remade(queue, 'with x-queue-type: quorum')}"
            yield Symptom(queue.name, f"a classic queue on {case.server}, retried by rejecting{way}", fix)


def _rejecting(case: Case) -> Iterator[tuple[QueueDefinition, tuple[str, ...]]]:
    """The queues from which a loop is entered, with the way back. Those with a TTL belong to the waiting, or have
    findings of their own.
    """
    for name, way in sorted(case.loops.items()):
        if case.queues[name].ttl is None:
            yield case.queues[name], way


def retry_shared(case: Case) -> Iterator[Symptom]:
    """A retry is for the queue that failed. Through an exchange that others listen to, everybody gets it again."""
    for queue in case.definitions.queues:
        exchange = queue.dead_letter_exchange
        if exchange is None or case.flows.kind(exchange) not in _ROUTING or not case.waits(queue):
            continue
        for key, receivers in _shared(case, queue, exchange):
            failing = (name for name in receivers if queue.name in case.dead_letters.get(name, ()))
            failed = next(failing, case.named_after(queue.name)) or UNKNOWN_QUEUE
            evidence = f"what has waited goes to {exchange} with key {key!r}, and reaches {', '.join(receivers)}"
            own = {"x-dead-letter-exchange": DEFAULT_EXCHANGE, "x-dead-letter-routing-key": failed}
            yield Symptom(queue.name, evidence, with_arguments(case, queue, own))
            break


def _shared(case: Case, queue: QueueDefinition, exchange: str) -> Iterator[tuple[str, list[str]]]:
    for key in sorted(case.flows.dead_letter_keys(queue)):
        for example in case.flows.examples(exchange, key):
            receivers = sorted(case.flows.reach(exchange, example))
            if len(receivers) > 1:
                yield example, receivers


def _turned(cycle: tuple[str, ...], first: str) -> tuple[str, ...]:
    at = cycle.index(first)
    return cycle[at:] + cycle[:at]


def _drawn(cycle: tuple[str, ...]) -> str:
    return " → ".join((*cycle, cycle[0]))
