"""Which queues of a broker are dead-letter queues.

Those of an application are known by its topology (`declared`), each with its source queue, however they are named. In
a broker that was set up by something else, a dead-letter queue is known by its shape or by its name:

    it receives what another queue dead-letters, and dead-letters nothing itself
    it is bound to an exchange for dead letters, by whatever key: workers publish failures there themselves
    it is called like one: many systems publish to it directly, and only the name shows it

An exchange is for dead letters if it is direct, is the dead-letter exchange of a queue or called like one, and every
queue bound to it keeps what it gets. One that also feeds queues for work that dead-letter, or gets messages from
another exchange, is not. A queue with a TTL and a dead-letter exchange is never a dead-letter queue, whatever its name:
its messages only wait in it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from redrive.topology.definitions import DEFAULT_EXCHANGE, Definitions, QueueDefinition
from redrive.topology.expansion import QueueLayout
from redrive.topology.model import Topology
from redrive.topology.reachability import Reachability
from redrive.topology.snapshot import Server

# orders.dlq, orders_dlq, DLQ, dlq.orders, orders-dead-letter, OrderDeadLetterQueue, orders_error (MassTransit),
# default.XQ (dramatiq), error (NServiceBus), orders.parkingLot (Spring)
_DEAD = re.compile(
    r"(?:dlq|dead[._-]?letters?|dead[._-]?letter[._-]?queue|parking[._-]?lot)$"
    r"|[._:/-](?:dead|poison|xq)$|^errors?$|_errors?$"  # but not log.error: that is a log level
    r"|^(?:dlq|dead[._-]?letters?)[._:/-]",
    re.IGNORECASE,
)
_WAITING = re.compile(r"retr(?:y|ies)|delay|wait|backoff|later", re.IGNORECASE)


def declared_dlqs(topology: Topology, server: Server) -> dict[str, str]:
    """Return every dead-letter queue that an application declares, with the queue whose failures it receives."""
    parts = (QueueLayout(topology, queue, server) for queue in topology.queues)
    return {name: part.queue.name for part in parts for name in part.dead_letter_queues}


def sources(definitions: Definitions) -> dict[str, list[str]]:
    """Return for each queue that can receive failures the queues they come from, as far as the bindings show it.

    A queue that no dead letter reaches by its key belongs to those that dead-letter to its exchange by another key.
    """
    flows, exchanges = Reachability(definitions), _exchanges_for_dead_letters(definitions)
    routed: dict[str, list[str]] = defaultdict(list)
    published: dict[str, list[str]] = defaultdict(list)
    for queue in definitions.queues:
        for target in flows.of_dead_letters(queue) - {queue.name}:
            routed[target].append(queue.name)
        for target in exchanges.get(queue.dead_letter_exchange or DEFAULT_EXCHANGE, ()):
            published[target].append(queue.name)
    return {**published, **routed}


@dataclass(frozen=True, slots=True)
class Feeders:
    """Which queues dead-letter to which, as far as it is known."""

    into: Mapping[str, frozenset[str]] = field(default_factory=dict)  # by the queue that receives
    dead_letter_queues: frozenset[str] = frozenset()  # the dead-letter queues among all of them
    waiting: frozenset[str] = frozenset()  # queues that messages leave after a time, to go on to another queue

    def of(self, queue: str) -> frozenset[str]:
        """Return the queues that dead-letter to this one."""
        return self.into.get(queue, frozenset())

    def behind(self, queue: str) -> frozenset[str]:
        """Return the queues that dead-letter to this one, directly or through queues that messages only pass."""
        found, new = frozenset[str](), {queue}
        while new:
            fed_by = frozenset[str]().union(*map(self.of, new)) - found
            found |= fed_by
            new = set(fed_by & (self.dead_letter_queues | self.waiting))
        return found - {queue}


def feeders(topology: Topology, server: Server, seen: Iterable[Definitions]) -> Feeders:
    """Return what an application's topology and these definitions, each of a whole broker, say together."""
    into: dict[str, set[str]] = defaultdict(set)
    ends, waiting = set[str](), set[str]()
    for queue in topology.queues:
        for name in QueueLayout(topology, queue, server).dead_letter_queues:
            into[name].add(queue.name)
            ends.add(name)
    for definitions in seen:
        for name, sending in sources(definitions).items():
            into[name].update(sending)
        ends |= dead_letter_queues(definitions)
        waiting |= {one.name for one in definitions.queues if None not in (one.ttl, one.dead_letter_exchange)}
    return Feeders({name: frozenset(sending) for name, sending in into.items()}, frozenset(ends), frozenset(waiting))


def dead_letter_queues(definitions: Definitions) -> frozenset[str]:
    """Return the names of the queues in which dead letters end."""
    flows = Reachability(definitions)
    # What leaves a queue with a TTL has waited there; what it reaches may be anything, also a queue for work.
    ends = frozenset[str]().union(*(flows.of_dead_letters(queue) for queue in definitions.queues if queue.ttl is None))
    ends |= frozenset[str]().union(*_exchanges_for_dead_letters(definitions).values())
    return frozenset(queue.name for queue in definitions.queues if _is_dead_letter_queue(queue, queue.name in ends))


def _exchanges_for_dead_letters(definitions: Definitions) -> dict[str, set[str]]:
    """Return the exchanges that receive nothing but dead letters, each with the queues bound to it."""
    receiving = {queue.dead_letter_exchange for queue in definitions.queues if queue.ttl is None}
    bound: dict[str, set[str]] = defaultdict(set)
    mixed = set()
    for bind in definitions.bindings:
        if bind.destination_type == "queue":
            bound[bind.source].add(bind.destination)
        else:
            mixed |= {bind.source, bind.destination}
    keeping = {queue.name for queue in definitions.queues if _is_dead_letter_queue(queue, receives_dead_letters=True)}
    return {
        exchange.name: bound[exchange.name]
        for exchange in definitions.exchanges
        if exchange.type == "direct"
        and exchange.name not in (DEFAULT_EXCHANGE, *mixed)
        and (exchange.name in receiving or is_called_dead(exchange.name))
        and bound[exchange.name] <= keeping
    }


def _is_dead_letter_queue(queue: QueueDefinition, receives_dead_letters: bool) -> bool:
    goes_on = queue.dead_letter_exchange is not None
    if goes_on and queue.ttl is not None:
        return False
    if is_called_dead(queue.name):
        return True
    return receives_dead_letters and not goes_on and not (queue.ttl is not None and is_called_waiting(queue.name))


def is_called_dead(name: str) -> bool:
    return _DEAD.search(name) is not None


def is_named_after(queue: str, source: str) -> bool:
    """Is a queue called like the dead-letter queue of `source`? For orders: orders.dlq, orders_error, dlq.orders."""
    return is_called_dead(queue) and bool(source) and _DEAD.sub("", queue).strip("._:/-") == source.strip("._:/-")


def is_called_waiting(name: str) -> bool:
    return _WAITING.search(name) is not None
