"""Dead letters that arrive nowhere, or not reliably."""

from __future__ import annotations

from collections.abc import Iterator

from redrive.recovery.retry import RetryRoute
from redrive.text import pluralise
from redrive.topology.definitions import DEFAULT_EXCHANGE, QueueDefinition
from redrive.topology.doctor.context import Occurrence, RuleContext
from redrive.topology.doctor.phrases import show, with_arguments, with_dead_letters_to, with_dlq
from redrive.topology.reachability import is_pattern, written

_AT_LEAST_ONCE = {"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}


def dlx_missing(context: RuleContext) -> Iterator[Occurrence]:
    for queue in context.definitions.queues:
        exchange = queue.dead_letter_exchange
        if exchange is not None and _is_missing(context, exchange):
            said = show(context, queue, "x-dead-letter-exchange")
            yield Occurrence(
                queue.name,
                f"{said}, and there is no such exchange: {_fate(context, queue)}",
                _declare(context, exchange),
            )


def _is_missing(context: RuleContext, exchange: str) -> bool:
    if exchange == DEFAULT_EXCHANGE or exchange.startswith("amq.") or exchange in context.exchanges:
        return False
    return context.is_complete or context.asked.exchange(exchange) is not None


def _declare(context: RuleContext, exchange: str) -> str:
    if context.asked.exchange(exchange) is not None:
        return "redrive topology apply APP"
    return f"declare exchange {exchange}, and bind a queue to it"


def dlx_unroutable(context: RuleContext) -> Iterator[Occurrence]:
    for queue in context.definitions.queues:
        exchange = queue.dead_letter_exchange
        if exchange is None or _is_missing(context, exchange):
            continue
        lost = sorted(key for key in context.flows.dead_letter_keys(queue) if _leads_nowhere(context, exchange, key))
        if lost:
            keys = [written(key) for key in lost]
            yield Occurrence(queue.name, _loss_text(context, queue, keys), _route(context, queue, exchange, keys[0]))


def _leads_nowhere(context: RuleContext, exchange: str, key: str) -> bool:
    if exchange == DEFAULT_EXCHANGE:
        name = written(key)
        seen = context.is_complete or context.asked.queue(name) is not None
        return seen and not is_pattern(key) and name not in context.queues
    return context.is_complete and not context.flows.reach(exchange, key)


def _loss_text(context: RuleContext, queue: QueueDefinition, keys: list[str]) -> str:
    own = "" if queue.dead_letter_key is not None else ", which messages bring along,"
    said = f"{show(context, queue, 'x-dead-letter-exchange')}; with key {', '.join(map(repr, keys))}{own}"
    return f"{said} it reaches no queue: {_fate(context, queue)}"


def _route(context: RuleContext, queue: QueueDefinition, exchange: str, key: str) -> str:
    if exchange == DEFAULT_EXCHANGE:
        if queue.dead_letter_key is None:
            dlq = f"{queue.name}.dlq"
            declare = "" if dlq in context.queues else f"declare queue {dlq}; "
            return declare + with_arguments(context, queue, {"x-dead-letter-routing-key": dlq})
        return "redrive topology apply APP" if context.asked.queue(key) is not None else f"declare queue {key}"
    return f"bind a queue to exchange {exchange} with key {key!r}"


def _fate(context: RuleContext, queue: QueueDefinition) -> str:
    if context.is_at_least_once(queue):
        return "dead letters stay behind, are tried every 3 minutes, and 32 of them block all others"
    return "every dead letter is dropped"


def no_dlq(context: RuleContext) -> Iterator[Occurrence]:
    dead = {queue.name for queue in context.dead_letter_queues}
    for queue in context.definitions.queues:
        if queue.dead_letter_exchange is not None or queue.name in dead or queue.type == "stream":
            continue
        main = context.main(queue.name)
        if main is not None and main.dlq is False:  # somebody said so
            continue
        if context.is_worked(queue.name) and not context.is_temporary(queue):
            consumers = pluralise(context.consumers(queue.name) or 0, "consumer")
            who = "is in the topology" if main is not None else f"has {consumers}"
            yield Occurrence(queue.name, f"it {who}, and has no dead-letter exchange", with_dlq(context, queue))


def parked_elsewhere(context: RuleContext) -> Iterator[Occurrence]:
    """Find the existing queues whose own dead-letter exchange leads elsewhere than to their dead-letter queues."""
    for queue in context.definitions.queues:
        main, own = context.main(queue.name), context.own_dead_letter_queues(queue.name)
        if main is None or not main.existing or not own or queue.dead_letter_exchange is None:
            continue
        targets = context.dead_letters[queue.name] - set(own)
        if main.retry is not None and main.retry.via is RetryRoute.REJECT:
            continue
        if targets:
            elsewhere = ", ".join(sorted(targets))
            said = show(context, queue, "x-dead-letter-exchange")
            yield Occurrence(
                queue.name,
                f"taken as it is, with {said}: what expires, overflows or is rejected by others goes to {elsewhere}, "
                f"and what its consumer parks to {own[0]}",
                f"look into {elsewhere}, too; or {with_dead_letters_to(context, queue, own[0])}",
            )


def at_most_once(context: RuleContext) -> Iterator[Occurrence]:
    for queue in context.definitions.queues:
        strategy = queue.arguments.get("x-dead-letter-strategy", "at-most-once")
        if _hands_over(context, queue) and strategy != "at-least-once":
            said = f"a quorum queue with {show(context, queue, 'x-dead-letter-exchange')} and strategy {strategy}"
            yield Occurrence(queue.name, said, with_arguments(context, queue, _AT_LEAST_ONCE))


def at_least_once_ineffective(context: RuleContext) -> Iterator[Occurrence]:
    for queue in context.definitions.queues:
        overflow = context.overflow(queue)
        asked = queue.arguments.get("x-dead-letter-strategy") == "at-least-once"
        if _hands_over(context, queue) and asked and overflow not in (None, "reject-publish"):
            said = f"{show(context, queue, 'x-dead-letter-strategy')} with overflow {overflow}"
            yield Occurrence(queue.name, said, with_arguments(context, queue, {"x-overflow": "reject-publish"}))


def _hands_over(context: RuleContext, queue: QueueDefinition) -> bool:
    """Can it lose dead letters in transit? The embedded broker moves each of them in one transaction."""
    return queue.type == "quorum" and queue.dead_letter_exchange is not None and not context.server.embedded
