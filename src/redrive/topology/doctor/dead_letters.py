"""Dead letters that arrive nowhere, or not surely."""

from __future__ import annotations

from collections.abc import Iterator

from redrive.text import pluralise
from redrive.topology.definitions import DEFAULT_EXCHANGE, QueueDefinition
from redrive.topology.doctor.case import Case
from redrive.topology.doctor.finding import Symptom
from redrive.topology.doctor.words import told, with_arguments
from redrive.topology.flows import is_pattern

_AT_LEAST_ONCE = {"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}


def dlx_missing(case: Case) -> Iterator[Symptom]:
    for queue in case.definitions.queues:
        exchange = queue.dead_letter_exchange
        if exchange is not None and _is_missing(case, exchange):
            said = told(case, queue, "x-dead-letter-exchange")
            yield Symptom(
                queue.name, f"{said}, and there is no such exchange: {_fate(case, queue)}", _declare(case, exchange)
            )


def _is_missing(case: Case, exchange: str) -> bool:
    if exchange == DEFAULT_EXCHANGE or exchange.startswith("amq.") or exchange in case.exchanges:
        return False
    return case.sees_bindings or case.asked.exchange(exchange) is not None


def _declare(case: Case, exchange: str) -> str:
    if case.asked.exchange(exchange) is not None:
        return "redrive topology apply APP"
    return f"declare exchange {exchange}, and bind a queue to it"


def dlx_unroutable(case: Case) -> Iterator[Symptom]:
    for queue in case.definitions.queues:
        exchange = queue.dead_letter_exchange
        if exchange is None or _is_missing(case, exchange):
            continue
        lost = sorted(key for key in case.flows.dead_letter_keys(queue) if _leads_nowhere(case, exchange, key))
        if lost:
            yield Symptom(queue.name, _lost(case, queue, lost), _route(case, queue, exchange, lost[0]))


def _leads_nowhere(case: Case, exchange: str, key: str) -> bool:
    if exchange == DEFAULT_EXCHANGE:
        seen = case.sees_bindings or case.asked.queue(key) is not None
        return seen and not is_pattern(key) and key not in case.queues
    return case.sees_bindings and not case.flows.reach(exchange, key)


def _lost(case: Case, queue: QueueDefinition, keys: list[str]) -> str:
    own = "" if queue.dead_letter_key is not None else ", which messages bring along,"
    said = f"{told(case, queue, 'x-dead-letter-exchange')}; with key {', '.join(map(repr, keys))}{own}"
    return f"{said} it reaches no queue: {_fate(case, queue)}"


def _route(case: Case, queue: QueueDefinition, exchange: str, key: str) -> str:
    if exchange == DEFAULT_EXCHANGE:
        if queue.dead_letter_key is None:
            dlq = f"{queue.name}.dlq"
            declare = "" if dlq in case.queues else f"declare queue {dlq}; "
            return declare + with_arguments(case, queue, {"x-dead-letter-routing-key": dlq})
        return "redrive topology apply APP" if case.asked.queue(key) is not None else f"declare queue {key}"
    return f"bind a queue to exchange {exchange} with key {key!r}"


def _fate(case: Case, queue: QueueDefinition) -> str:
    if case.is_at_least_once(queue):
        return "dead letters stay behind, are tried every 3 minutes, and 32 of them block all others"
    return "every dead letter is dropped"


def no_dlq(case: Case) -> Iterator[Symptom]:
    dead = {queue.name for queue in case.dead_ends}
    for queue in case.definitions.queues:
        if queue.dead_letter_exchange is not None or queue.name in dead or queue.type == "stream":
            continue
        main = case.main(queue.name)
        if main is not None and main.dlq is False:  # somebody said so
            continue
        if case.is_worked(queue.name) and not case.is_temporary(queue):
            consumers = pluralise(case.consumers(queue.name) or 0, "consumer")
            who = "is in the topology" if main is not None else f"has {consumers}"
            dlq = f"{queue.name}.dlq"
            fix = with_arguments(
                case, queue, {"x-dead-letter-exchange": DEFAULT_EXCHANGE, "x-dead-letter-routing-key": dlq}
            )
            yield Symptom(queue.name, f"it {who}, and has no dead-letter exchange", f"declare queue {dlq}; {fix}")


def at_most_once(case: Case) -> Iterator[Symptom]:
    for queue in case.definitions.queues:
        strategy = queue.arguments.get("x-dead-letter-strategy", "at-most-once")
        if _hands_over(case, queue) and strategy != "at-least-once":
            said = f"a quorum queue with {told(case, queue, 'x-dead-letter-exchange')} and strategy {strategy}"
            yield Symptom(queue.name, said, with_arguments(case, queue, _AT_LEAST_ONCE))


def at_least_once_ineffective(case: Case) -> Iterator[Symptom]:
    for queue in case.definitions.queues:
        overflow = case.overflow(queue)
        asked = queue.arguments.get("x-dead-letter-strategy") == "at-least-once"
        if _hands_over(case, queue) and asked and overflow not in (None, "reject-publish"):
            said = f"{told(case, queue, 'x-dead-letter-strategy')} with overflow {overflow}"
            yield Symptom(queue.name, said, with_arguments(case, queue, {"x-overflow": "reject-publish"}))


def _hands_over(case: Case, queue: QueueDefinition) -> bool:
    """Has it a choice of how to? The embedded broker moves every dead letter in one transaction."""
    return queue.type == "quorum" and queue.dead_letter_exchange is not None and not case.server.embedded
