"""What no broker would accept, or would accept and regret. Each rule returns sentences; nothing here raises."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from redrive.recovery.retry import Retry, RetryRoute
from redrive.text import closest, did_you_mean
from redrive.topology import ladder
from redrive.topology.cycles import find_cycles
from redrive.topology.definitions import TEXTS, WHOLE_NUMBERS, Arguments, Definitions, QueueDefinition, misfits
from redrive.topology.model import DestinationKind, Queue, QueueType
from redrive.topology.routing import dead_letter_targets, targets
from redrive.topology.snapshot import Server
from redrive.wire.values import brief_repr

LONGEST_NAME = 255
_OVERFLOWS = {"drop-head", "reject-publish", "reject-publish-dlx"}
_KNOWN_TYPES = {"direct", "fanout", "topic", "headers", "x-delayed-message", "x-consistent-hash"}
_OURS = ("x-dead-letter-exchange", "x-dead-letter-routing-key")

KNOWN_ARGUMENTS = {
    *WHOLE_NUMBERS,
    *TEXTS,
    *("x-single-active-consumer", "x-quorum-initial-group-size", "x-queue-leader-locator", "x-initial-cluster-size"),
    *("x-queue-mode", "x-queue-version", "x-queue-master-locator", "x-max-in-memory-length", "x-max-in-memory-bytes"),
    *("x-max-age", "x-stream-max-segment-size-bytes", "x-stream-filter-size-bytes"),
    *("x-delayed-retry-type", "x-delayed-retry-min", "x-delayed-retry-max"),
    *("x-consumer-timeout", "x-consumer-disconnected-timeout"),
}


# A queue as it is said ----------------------------------------------------------------------------


def problems_of_queue(queue: Queue, kind: QueueType, server: Server) -> Iterator[str]:
    who = f"queue {queue.name}"
    if queue.has_dlq(kind) or queue.retry is not None:
        for argument in _OURS:
            if argument in queue.arguments:
                yield f"{who}: {argument} follows from its retry and dlq: leave it out, or say dlq=False and no retry"
    if "x-queue-type" in queue.arguments:
        yield f"{who}: say its type as type={queue.arguments['x-queue-type']!r}, not as an argument"
    for argument in queue.arguments:
        close = closest(argument, KNOWN_ARGUMENTS, 0.85)
        if argument not in KNOWN_ARGUMENTS and close:
            yield f"{who}: unknown argument {argument}, did you mean {close}?"
    if queue.delivery_limit is not None and kind is not QueueType.QUORUM:
        yield f"{who}: only quorum queues have a delivery_limit: say type='quorum'"
    if queue.delivery_limit is not None and queue.delivery_limit < 0 and server.unlimited_deliveries is None:
        yield f"{who}: a negative delivery_limit drops messages at their first requeue on {server}: leave it out"
    if queue.dead_lettering == "at-least-once":
        yield from _at_least_once(queue, kind, who)
    yield from _problems_of_failures(queue, kind, server)


def problems_of_existing(
    queue: Queue, held: QueueDefinition, needed: Arguments, kind: QueueType, server: Server
) -> Iterator[str]:
    """What the retries of a queue that is taken as it is would need of it. `needed`: the arguments of its route."""
    limit = held.arguments.get("x-delivery-limit")
    found = replace(queue, existing=False, arguments=held.arguments, delivery_limit=limit)
    yield from _problems_of_failures(found, kind, server)
    wrong = {name: value for name, value in needed.items() if held.arguments.get(name) != value}
    if queue.retry is not None and wrong:
        want = " and ".join(f"{name} {brief_repr(value)}" for name, value in wrong.items())
        have = " and ".join(
            brief_repr(value) if value is not None else "nothing" for value in map(held.arguments.get, wrong)
        )
        yield (
            f"queue {queue.name}: via={str(queue.retry.via)!r} needs {want}, and the queue, taken as it is, has {have}"
            ": use via='republish', which needs nothing of the queue; or leave out existing=True and give the queue "
            "these arguments with `redrive topology migrate`. (Plain AMQP does not report policies; --management does)"
        )


def _problems_of_failures(queue: Queue, kind: QueueType, server: Server) -> Iterator[str]:
    if kind is QueueType.STREAM and (queue.retry is not None or queue.dlq):
        yield f"queue {queue.name}: a stream keeps its messages and has no dead letters: leave out retry and dlq"
    if queue.retry is not None:
        yield from _problems_of_retry(queue, queue.retry, kind, server)


def _at_least_once(queue: Queue, kind: QueueType, who: str) -> Iterator[str]:
    if kind is not QueueType.QUORUM:
        yield f"{who}: at-least-once dead-lettering needs a quorum queue: say type='quorum'"
    if queue.arguments.get("x-overflow", "reject-publish") != "reject-publish":
        yield (
            f"{who}: at-least-once dead-lettering works with x-overflow reject-publish only; RabbitMQ would fall back "
            "to at-most-once and tell nobody but its log"
        )


def _problems_of_retry(queue: Queue, retry: Retry, kind: QueueType, server: Server) -> Iterator[str]:
    who = f"queue {queue.name}"
    match retry.via:
        case RetryRoute.REJECT:
            yield from _reject_route(queue, retry, who)
        case RetryRoute.DELAYED:
            if not server.delayed_exchanges and (problem := ladder.problem_with(queue.name)):
                yield problem
        case RetryRoute.QUORUM:
            yield from _quorum_route(retry, kind, server, who)
        case RetryRoute.REPUBLISH:
            pass


def _reject_route(queue: Queue, retry: Retry, who: str) -> Iterator[str]:
    if len(retry.rungs) > 1:
        yield f"{who}: via='reject' has one wait, since a queue has one dead-letter exchange: use via='republish'"
    if queue.delivery_limit is not None and queue.delivery_limit >= 0:
        yield f"{who}: with via='reject' RabbitMQ drops, as a cycle, what reaches delivery_limit: use via='republish'"
    for argument in ("x-max-length", "x-max-length-bytes", "x-message-ttl"):
        if argument in queue.arguments and queue.arguments.get("x-overflow") != "reject-publish":
            yield (
                f"{who}: with via='reject' RabbitMQ drops what {argument} removes, as a cycle: use via='republish', "
                "or leave it out"
            )


def _quorum_route(retry: Retry, kind: QueueType, server: Server, who: str) -> Iterator[str]:
    if kind is not QueueType.QUORUM:
        yield f"{who}: via='quorum' needs a quorum queue: say type='quorum'"
    if not server.native_delayed_retry:
        yield f"{who}: via='quorum' needs RabbitMQ 4.3 and this is {server}: use via='republish'"
    if retry.jitter:
        yield f"{who}: via='quorum' has no jitter: leave it out, or use via='republish'"
    first = retry.rung(1).delay
    longest = max((rung.delay for rung in retry.rungs), default=first)
    for number in range(1, min(retry.attempts, 100)):
        if retry.rung(number).delay not in (first, min(first * number, longest)):
            yield (
                f"{who}: via='quorum' waits first, 2 x first, 3 x first ... up to the longest; this schedule differs "
                f"at retry {number}: use via='republish'"
            )
            return


def problems_of_redrive(
    queue: Queue, dead_letter_queues: Collection[str], retry_queues: Collection[str], definitions: Definitions
) -> Iterator[str]:
    """Where a re-drive of its dead letters goes by default must exist, and must not be the dead-letter queue itself."""
    if queue.redrive_to is None:
        return
    to, who = queue.destination, f"queue {queue.name}: redrive_to {brief_repr(queue.redrive_to)}"
    if not dead_letter_queues:
        yield f"queue {queue.name}: redrive_to: it has no dead-letter queue: leave redrive_to out"
    elif to.way is DestinationKind.RETRY and not retry_queues:
        yield f"{who}: it has no retry queue: add one (retry=Retry(...)), or write redrive_to='own'"
    elif to.way is DestinationKind.QUEUE and definitions.queue(to.name) is None:
        known = {one.name for one in definitions.queues}
        yield f"{who}: there is no queue {to.name!r}" + _did_you_mean(to.name, known)
    elif to.way is DestinationKind.EXCHANGE and not to.name.startswith("amq."):
        yield from _unreached_problems(to.name, to.key, who, definitions)
    reached = {to.name} if to.way is DestinationKind.QUEUE else targets(definitions, to.name, to.key)
    if reached & set(dead_letter_queues):
        yield f"{who}: that is its own dead-letter queue: name another destination"


def _unreached_problems(exchange: str, key: str, who: str, definitions: Definitions) -> Iterator[str]:
    if definitions.exchange(exchange) is None:
        known = {one.name for one in definitions.exchanges}
        yield f"{who}: there is no exchange {exchange!r}" + _did_you_mean(exchange, known)
    elif targets(definitions, exchange, key):
        return
    elif not key:
        yield f"{who}: the routing key is empty, and no queue is bound to exchange {exchange!r} by that: add the key"
    else:
        keys = {bind.routing_key for bind in definitions.bindings_from(exchange)}
        hint = did_you_mean(key, keys, ": bind one, or name another destination", shown=repr)
        yield f"{who}: no queue is bound to exchange {exchange!r} by the key {key!r}{hint}"


# Definitions, wherever they come from -------------------------------------------------------------


def problems_of_definitions(definitions: Definitions) -> Iterator[str]:
    yield from _names(definitions)
    for exchange in definitions.exchanges:
        if exchange.type not in _KNOWN_TYPES and not exchange.type.startswith("x-"):
            hint = did_you_mean(exchange.type, _KNOWN_TYPES, ": want direct, fanout, topic or headers", shown=repr)
            yield f"{exchange}: unknown type {exchange.type!r}{hint}"
    for queue in definitions.queues:
        if not queue.existing:
            yield from _arguments(queue)
    yield from _dangling_bindings(definitions)
    for cycle in expiring_cycles(definitions):
        yield (
            f"dead-letter cycle {' → '.join([*cycle, cycle[0]])}: nothing in it but TTLs, so RabbitMQ drops messages "
            "at their second lap: end it in a queue without TTL"
        )


def _names(definitions: Definitions) -> Iterator[str]:
    named = [("exchange", exchange.name) for exchange in definitions.exchanges]
    named += [("queue", queue.name) for queue in definitions.queues if not queue.existing or not queue.name]
    for kind, name in named:
        size = len(name.encode())
        if not name:
            yield f"{kind} without a name: give it one"
        elif size > LONGEST_NAME:
            yield f"{kind} {name[:40]}…: its name has {size} bytes and AMQP knows {LONGEST_NAME}: shorten it"
        elif name.startswith("amq."):
            yield f"{kind} {name}: names that begin with 'amq.' are the broker's: choose another"
    for binding in definitions.bindings:
        if len(binding.routing_key.encode()) > LONGEST_NAME:
            yield f"{binding}: its key is longer than {LONGEST_NAME} bytes"


def _arguments(queue: QueueDefinition) -> Iterator[str]:
    problems = [f"{queue}: {problem}" for problem in misfits(queue.arguments)]
    yield from problems
    if problems:
        return  # what is of another type cannot be judged
    if queue.arguments.get("x-overflow", "drop-head") not in _OVERFLOWS:
        overflow = brief_repr(queue.arguments["x-overflow"])
        yield f"{queue}: x-overflow {overflow}: want one of {', '.join(sorted(_OVERFLOWS))}"
    for refused, why in _REFUSED.get(queue.type, {}).items():
        if refused in queue.arguments:
            yield f"{queue}: {queue.type} queues refuse {refused}: {why}"


_REFUSED = {
    "quorum": {
        "x-max-priority": "leave it out (RabbitMQ 4 has two priorities without it), or say type='classic'",
        "x-queue-mode": "leave it out, quorum queues keep messages on disk anyway",
    },
    "classic": {
        "x-delivery-limit": "say type='quorum'",
        "x-dead-letter-strategy": "say type='quorum'",
    },
}


def _dangling_bindings(definitions: Definitions) -> Iterator[str]:
    """A binding needs both its ends; 3.10 forgets in silence what 4.3 refuses."""
    exchanges = {exchange.name for exchange in definitions.exchanges}
    queues = {queue.name for queue in definitions.queues}
    for binding in definitions.bindings:
        if binding.source not in exchanges and not binding.source.startswith("amq."):
            yield f"{binding}: there is no exchange {binding.source!r}" + _did_you_mean(binding.source, exchanges)
        known = queues if binding.destination_type == "queue" else exchanges
        if binding.destination not in known:
            hint = _did_you_mean(binding.destination, known)
            yield f"{binding}: there is no {binding.destination_type} {binding.destination!r}{hint}"


def _did_you_mean(name: str, known: set[str]) -> str:
    return did_you_mean(name, known, ": declare it", shown=repr)


def expiring_cycles(definitions: Definitions) -> list[tuple[str, ...]]:
    """Cycles of dead-lettering in which every queue has a TTL: no rejection lies in them."""
    edges = {
        queue.name: sorted(dead_letter_targets(definitions, queue))
        for queue in definitions.queues
        if queue.ttl is not None and queue.dead_letter_exchange is not None
    }
    return find_cycles(edges)
