"""From a line to all it takes: the main queue, where its failures wait, and where they end.

    route        the main queue's dead letters go to   a retry waits in
    reject       its retry queue                       one queue with a TTL, and comes back by name
    republish    its dead-letter queue                 the rung for its attempt, and comes back by name
    delayed      its dead-letter queue                 a delayed exchange, or the ladder where there is none
    quorum       its dead-letter queue                 the main queue itself (RabbitMQ 4.3)

An existing queue (`existing=True`) is not declared: it keeps its arguments, and dead-letters to where it did before. So
the routes that depend on the queue's own arguments, `reject` and `quorum`, need these to be there already.

Only in `reject` does a queue's own dead-letter exchange lead into a loop, because only there rejecting is how to
retry. Everywhere else whatever the broker kills by itself is parked.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import cached_property
from hashlib import sha256

from redrive.errors import TopologyError
from redrive.recovery.durations import milliseconds
from redrive.recovery.retry import Retry, RetryRoute, Rung
from redrive.topology import ladder
from redrive.topology.definitions import (
    DEFAULT_EXCHANGE,
    BindingDefinition,
    Definition,
    Definitions,
    ExchangeDefinition,
    QueueDefinition,
)
from redrive.topology.model import Queue, QueueType, Topology
from redrive.topology.naming import RungNames, fill
from redrive.topology.snapshot import Server
from redrive.topology.validation import (
    LONGEST_NAME,
    problems_of_definitions,
    problems_of_existing,
    problems_of_queue,
    problems_of_redrive,
)

# A message whose handling kills the worker comes back this often before the broker parks it (quorum queues). The same
# on every version: 4.x has this default, 3.x has none.
DELIVERY_LIMIT = 20

_OF_QUORUM_ROUTE = ("x-delivery-limit", "x-delayed-retry-type", "x-delayed-retry-min", "x-delayed-retry-max")

_ABANDONED = timedelta(days=1)  # after which a queue of a worker that is gone is deleted

_MOST_WORDS = 1_000  # characters of a problem


def expand(topology: Topology, server: Server) -> Definitions:
    """All it takes on that server. Raises `TopologyError` with every problem there is."""
    collected = _Collection()
    for exchange in topology.exchanges:
        collected.add(exchange.definition, by=f"exchange {exchange.name}")
    for queue in topology.queues:
        layout = QueueLayout(topology, queue, server)
        collected.problems += layout.problems()
        for definition in layout.definitions():
            collected.add(definition, by=f"queue {queue.name}")
    if topology.delays or any(queue.retry and queue.retry.via is RetryRoute.DELAYED for queue in topology.queues):
        for definition in _ladder(topology, server):
            collected.add(definition, by="the ladder of delays")
    for definition in (*topology.bindings, *topology.others):
        collected.add(definition, by="the topology")
    definitions = collected.definitions()
    problems = [*collected.problems, *problems_of_definitions(definitions)]
    for part in (QueueLayout(topology, queue, server) for queue in topology.queues):
        problems += problems_of_redrive(part.queue, part.dead_letter_queues, part.waiting_queues, definitions)
    if problems:
        raise TopologyError([_cut(problem) for problem in dict.fromkeys(problems)])
    return definitions


def _cut(problem: str) -> str:
    """Names can be as long as somebody likes; a sentence that nobody reads to its end says nothing."""
    return problem if len(problem) <= _MOST_WORDS else f"{problem[:_MOST_WORDS]}…"


@dataclass(slots=True)
class _Collection:
    """Definitions by name, and a problem for each name that means two things."""

    problems: list[str] = field(default_factory=list)
    _found: dict[object, tuple[Definition, str]] = field(default_factory=dict)

    def add(self, definition: Definition, *, by: str) -> None:
        key = definition.key if isinstance(definition, BindingDefinition) else (type(definition), definition.name)
        known = self._found.get(key)
        if known is None:
            self._found[key] = definition, by
        elif not _agree(known[0], definition, by):
            who = f"{by} is there twice" if known[1] == by else f"{known[1]} and {by} both want {definition}"
            self.problems.append(f"{who}: give one of them another name")

    def definitions(self) -> Definitions:
        every = [definition for definition, _ in self._found.values()]
        return Definitions.of(
            (one for one in every if isinstance(one, ExchangeDefinition)),
            (one for one in every if isinstance(one, QueueDefinition)),
            (one for one in every if isinstance(one, BindingDefinition)),
        )


def _agree(known: Definition, wanted: Definition, by: str) -> bool:
    """A retry or dead-letter exchange may be one that somebody declared, if it looks at routing keys."""
    if known == wanted:
        # The same queue twice is never meant, not even in the same words.
        return not isinstance(wanted, QueueDefinition) or not by.startswith("queue ")
    if isinstance(known, ExchangeDefinition) and isinstance(wanted, ExchangeDefinition):
        return wanted == ExchangeDefinition(wanted.name) and known.type in ("direct", "topic")
    return False


def _ladder(topology: Topology, server: Server) -> Iterator[Definition]:
    if server.delayed_exchanges:
        return
    yield from ladder.exchanges()
    yield from ladder.queues(_wait_queue_arguments(topology.queue_type))
    yield from ladder.bindings()


def _wait_queue_arguments(kind: QueueType) -> dict[str, object]:
    """What a queue needs in which messages only wait, so that none is lost when its time has come."""
    arguments: dict[str, object] = {"x-queue-type": str(kind)}
    if kind is QueueType.QUORUM:
        arguments |= {"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}
    return arguments


def _keys(queue: Queue) -> list[str]:
    """Those by which messages come to a queue: what it is bound by, and its name."""
    return [*(bind.routing_key for bind in queue.bind), queue.name]


class QueueLayout:
    """One queue with its parts, as they are called and made on a server."""

    def __init__(self, topology: Topology, queue: Queue, server: Server) -> None:
        self.queue = queue
        self._topology = topology
        self.type = topology.type_of(queue)
        self.naming = topology.names_of(queue)
        self.server = server
        self.held = topology.held_queue(queue)  # of an existing queue, where the broker was asked
        self.has_dlq = queue.has_dlq(self.type)
        self.has_delays = topology.delays or (queue.retry is not None and queue.retry.via is RetryRoute.DELAYED)

    # Names --------------------------------------------------------------------------------------------

    @property
    def retry_exchange(self) -> str:
        return fill(self.naming.retry_exchange, self.queue.name)

    @property
    def dlq_exchange(self) -> str:
        return fill(self.naming.dlq_exchange, self.queue.name)

    @property
    def dlq_queue(self) -> str:
        return fill(self.naming.dlq_queue, self.queue.name)

    @property
    def dlq_key(self) -> str:
        return fill(self.naming.dlq_key, self.queue.name)

    @property
    def delayed_exchange(self) -> str:
        return fill(self.naming.delayed_exchange, self.queue.name)

    def delayed_key(self, published_with: str) -> str:
        """The key by which a message comes back out of the delayed exchange, to this queue and no other.

        That exchange takes whatever it is given, and forgets what no queue is bound for when the delay is over. So the
        key it was first published with will only do if it is bound here; the queue's own name always is.
        """
        if self.naming.delayed_key:
            return fill(self.naming.delayed_key, self.queue.name)
        return published_with if published_with in self.delayed_keys else self.queue.name

    @cached_property
    def delayed_keys(self) -> tuple[str, ...]:
        """The keys by which the queue is bound to the delayed exchange: its name, for whoever publishes to it later;
        and what `delayed_key` says, or the queue's own keys, but for those that would lead to others as well.
        """
        if self.naming.delayed_key:
            keys = [fill(self.naming.delayed_key, self.queue.name)]
        else:
            others = {key for queue in self._topology.queues if queue.name != self.queue.name for key in _keys(queue)}
            keys = [key for key in _keys(self.queue) if key not in others]
        return tuple(dict.fromkeys([*keys, self.queue.name]))

    def rung(self, rung: Rung) -> RungNames:
        retry = self.queue.retry
        return self.naming.rung(self.queue.name, rung, alone=retry is not None and len(retry.rungs) == 1)

    @property
    def waiting_queues(self) -> tuple[str, ...]:
        """The queues of its own in which retries wait."""
        retry = self.queue.retry
        if retry is None or retry.via not in (RetryRoute.REJECT, RetryRoute.REPUBLISH):
            return ()
        return tuple(self.rung(rung).queue for rung in retry.rungs)

    @property
    def retry_route(self) -> tuple[str, str] | None:
        """Return the exchange and key of the queue in which a first retry waits; None: it has no such queue."""
        retry = self.queue.retry
        if retry is None or not self.waiting_queues:
            return None
        return self.retry_exchange, self.rung(retry.rungs[0]).key

    def quarantine_name(self, worker: str) -> str:
        """The queue in which a worker keeps the messages of this queue that it watches (`recovery.admission`)."""
        name = f"{self.queue.name}.quarantine.{worker}"
        if len(name.encode()) <= LONGEST_NAME:
            return name
        return f"redrive.quarantine.{sha256(self.queue.name.encode()).hexdigest()[:16]}.{worker}"

    @property
    def dead_letter_queues(self) -> tuple[str, ...]:
        """The queue's own, and those for some errors only (`dlq={Error: "name"}`)."""
        return tuple(dict.fromkeys((self.dlq_queue, *self.queue.dead_ends))) if self.has_dlq else ()

    def problems(self) -> Iterator[str]:
        """What no broker should get. An existing queue is judged where the broker was asked for it."""
        if not self.queue.existing:
            yield from problems_of_queue(self.queue, self.type, self.server)
        elif self.held is not None:
            yield from problems_of_existing(self.queue, self.held, self._arguments_of_route(), self.type, self.server)

    # Definitions --------------------------------------------------------------------------------------

    def definitions(self) -> Iterator[Definition]:
        queue, retry = self.queue, self.queue.retry
        yield self._main()
        for bind in queue.bind:
            yield BindingDefinition(bind.exchange, queue.name, bind.routing_key, arguments=dict(bind.arguments))
        if retry is not None and retry.via in (RetryRoute.REJECT, RetryRoute.REPUBLISH):
            yield from self._rungs(retry)
        if self.has_delays:
            yield from self._delayed_definitions()
        if self.has_dlq:
            yield from self._dlq_definitions()

    def quarantine(self, worker: str, ttl: timedelta) -> QueueDefinition:
        """That queue. What its worker does not take from it within `ttl` goes back to the main queue. RabbitMQ deletes
        it a day after the worker is gone.
        """
        arguments = _wait_queue_arguments(self.type)
        arguments["x-message-ttl"] = milliseconds(ttl)
        arguments["x-expires"] = milliseconds(_ABANDONED)
        arguments["x-dead-letter-exchange"] = DEFAULT_EXCHANGE
        arguments["x-dead-letter-routing-key"] = self.queue.name
        return QueueDefinition(self.quarantine_name(worker), arguments=arguments)

    def stopped_worker(self, worker: str) -> QueueDefinition:
        """An empty queue by which a worker shows that it stopped in order, where its quarantine queue must stay."""
        arguments = {"x-queue-type": str(QueueType.CLASSIC), "x-expires": milliseconds(_ABANDONED)}
        return QueueDefinition(self.quarantine_name(f"{worker}.stopped"), arguments=arguments)

    def _main(self) -> QueueDefinition:
        if self.held is not None:
            return replace(self.held, existing=True)
        queue = self.queue
        arguments = {"x-queue-type": str(self.type)} if queue.existing else self._main_arguments()
        return QueueDefinition(queue.name, queue.durable, queue.auto_delete, arguments, queue.existing)

    def _arguments_of_route(self) -> dict[str, object]:
        """The arguments of the main queue without which its retries do not work."""
        match self.queue.retry.via if self.queue.retry is not None and self.queue.retry.rungs else None:
            case RetryRoute.REJECT:
                return self._dead_letter_arguments()
            case RetryRoute.QUORUM:
                needed = self._quorum_arguments()
                return {name: value for name, value in needed.items() if name in _OF_QUORUM_ROUTE}
            case _:
                return {}

    def _main_arguments(self) -> dict[str, object]:
        arguments: dict[str, object] = {"x-queue-type": str(self.type)}
        arguments |= self._dead_letter_arguments()
        if self.type is QueueType.QUORUM:
            arguments |= self._quorum_arguments()
        return arguments | dict(self.queue.arguments)

    def _dead_letter_arguments(self) -> dict[str, object]:
        retry = self.queue.retry
        if retry is not None and retry.via is RetryRoute.REJECT and retry.rungs:
            exchange, key = self.retry_exchange, self.rung(retry.rungs[0]).key
        elif self.has_dlq:
            exchange, key = self.dlq_exchange, self.dlq_key
        else:
            return {}
        return {"x-dead-letter-exchange": exchange, "x-dead-letter-routing-key": key}

    def _quorum_arguments(self) -> dict[str, object]:
        arguments: dict[str, object] = {}
        limit, retry = self._delivery_limit(), self.queue.retry
        if limit is not None:
            arguments["x-delivery-limit"] = limit
        if retry is not None and retry.via is RetryRoute.QUORUM:
            arguments["x-delayed-retry-type"] = "all"  # a snooze is a nack: it waits, and does not count
            arguments["x-delayed-retry-min"] = milliseconds(retry.rung(1).delay)
            arguments["x-delayed-retry-max"] = max(milliseconds(rung.delay) for rung in retry.rungs)
        if self._dead_letter_arguments() and self.queue.dead_lettering != "at-most-once":
            arguments |= {"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}
        return arguments

    def _delivery_limit(self) -> int | None:
        queue, retry = self.queue, self.queue.retry
        if queue.delivery_limit is not None:
            return queue.delivery_limit
        if retry is not None and retry.via is RetryRoute.QUORUM:
            return retry.attempts - 1  # the limit counts what comes back, not the first delivery
        if retry is not None and retry.via is RetryRoute.REJECT:
            return self.server.unlimited_deliveries  # a limit would end in the loop, and the broker would drop it
        return DELIVERY_LIMIT if self.has_dlq else None

    def _rungs(self, retry: Retry) -> Iterator[Definition]:
        if retry.rungs:
            yield ExchangeDefinition(self.retry_exchange)
        back_exchange = fill(self.naming.back_exchange, self.queue.name)
        for rung in retry.rungs:
            names = self.rung(rung)
            arguments = _wait_queue_arguments(self.type)
            arguments["x-message-ttl"] = milliseconds(rung.delay)
            arguments["x-dead-letter-exchange"] = back_exchange
            if names.back_key:
                arguments["x-dead-letter-routing-key"] = names.back_key
            yield QueueDefinition(names.queue, arguments=arguments)
            yield BindingDefinition(self.retry_exchange, names.queue, names.key)
            if not names.back_key and back_exchange != DEFAULT_EXCHANGE:
                # A message returns with the key it was published with: the rung's key, or the name of the rung's queue
                # if it was published to the queue directly. Without these bindings RabbitMQ drops it after the TTL.
                yield BindingDefinition(back_exchange, self.queue.name, names.key)
                yield BindingDefinition(back_exchange, self.queue.name, names.queue)

    def _delayed_definitions(self) -> Iterator[Definition]:
        queue = self.queue
        if not self.server.delayed_exchanges:
            yield BindingDefinition(ladder.ARRIVAL, queue.name, ladder.arrival_key(queue.name))
            return
        yield ExchangeDefinition(self.delayed_exchange, "x-delayed-message", arguments={"x-delayed-type": "direct"})
        for key in self.delayed_keys:
            yield BindingDefinition(self.delayed_exchange, queue.name, key)

    def _dlq_definitions(self) -> Iterator[Definition]:
        arguments: dict[str, object] = {"x-queue-type": str(self.type)}
        if self.type is QueueType.QUORUM and self.server.unlimited_deliveries is not None:
            arguments["x-delivery-limit"] = self.server.unlimited_deliveries  # or the 21st look deletes everything
        yield ExchangeDefinition(self.dlq_exchange)
        for name in self.dead_letter_queues:
            yield QueueDefinition(name, arguments=dict(arguments))
        yield BindingDefinition(self.dlq_exchange, self.dlq_queue, self.dlq_key)
        for name in self.queue.dead_ends:
            yield BindingDefinition(self.dlq_exchange, name, name)
