"""A broker and what is known about it: from its application, from its management API, or only from its names.

Which queues are dead-letter queues, where their messages failed, and what a peek costs: the topology of an application
describes it best; the management API and the embedded broker report it for everything else; and plain AMQP suffices
when the operator names the queue.

A `BrokerTarget` says which broker, and holds what an operator needs to know of the application: a value that can be
sent to another process. A `ConnectedTarget` is that broker, connected, with a snapshot of what it held.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from redrive.client import Connection
from redrive.errors import ConfigurationError, NotDeadLetterQueue, NotFound, PeekUnsafe
from redrive.inspection import connect, inspect_broker
from redrive.inspection.embedded import read_status
from redrive.inspection.passive import probe
from redrive.operations.canary import CanaryFacts
from redrive.operations.dlq_adapter import DlqAdapter
from redrive.operations.operation import Destination, DestinationKind, Operation, OperationKind, OperationRequest
from redrive.operations.selector import Route
from redrive.recovery.durations import duration
from redrive.recovery.history import HeaderNames
from redrive.topology import Definitions, QueueDefinition, Server, Topology, expand
from redrive.topology.definitions import effective
from redrive.topology.dlq_detection import Feeders, dead_letter_queues, declared_dlqs, feeders, is_called_dead, sources
from redrive.topology.doctor import Finding, examine
from redrive.topology.expansion import QueueLayout
from redrive.topology.naming import Naming, fill
from redrive.topology.peek_safety import PeekCost, peek_cost
from redrive.topology.reachability import PublishRoutes, Reachability
from redrive.topology.routing import targets as queues_reached
from redrive.topology.snapshot import BrokerSnapshot

if TYPE_CHECKING:
    from redrive.app import App


@dataclass(frozen=True)
class BrokerTarget:
    broker: str | None = None  # a URL; None: the embedded broker of the data folder
    management: str | None = None
    data: Path | None = None
    topology: Topology = field(default_factory=Topology)
    inbox_windows: Mapping[str, timedelta] = field(default_factory=dict)  # by queue
    header_names: Mapping[str, HeaderNames] = field(default_factory=dict)  # by queue, where they are not the usual
    handler_limits: Mapping[str, timedelta] = field(default_factory=dict)  # how long the handler of a queue may take

    @classmethod
    def of(cls, app: App) -> BrokerTarget:
        """Return the broker of an application, with what the application knows about it."""
        consumers = app.select_consumers(())
        limits = {spec.queue.name: duration(spec.timeout) for spec in consumers if spec.timeout is not None}
        return cls(app.broker, app.management, app.data, app.topology, app.inbox_windows, app.header_names, limits)

    def for_another_process(self) -> BrokerTarget:
        """Return the target without code of the application: no question to a target needs to classify an error."""
        queues = [
            replace(queue, retry=queue.retry.schedule) if queue.retry is not None else queue
            for queue in self.topology.queues
        ]
        return replace(self, topology=replace(self.topology, queues=queues))

    # What the topology says ---------------------------------------------------------------------------

    def own_dead_letter_queues(self) -> frozenset[str]:
        """Return the names of the dead-letter queues that the topology declares."""
        return frozenset(declared_dlqs(self.topology, Server()))

    def describe_queue(self, queue: str) -> str:
        """Return what a queue that is not a dead-letter queue is in the topology, to be said after its name."""
        for part in self._parts:
            if queue == part.queue.name:
                return "a queue for work"
            if queue in part.waiting_queues:
                return f"a retry queue of {part.queue.name}"
        return "not a queue of this application"

    def redrive_to(self, queue: str) -> Destination:
        """Return where a re-drive of a dead-letter queue goes by default: as the topology says (`redrive_to`), or `own`
        if it says nothing or does not know the queue.
        """
        return self._destinations.get(queue, Destination())

    @cached_property
    def _destinations(self) -> dict[str, Destination]:  # by dead-letter queue
        return {dlq: _default_destination(part) for part in reversed(self._parts) for dlq in part.dead_letter_queues}

    @property
    def _parts(self) -> list[QueueLayout]:
        return [QueueLayout(self.topology, queue, Server()) for queue in self.topology.queues]

    # Connecting ---------------------------------------------------------------------------------------

    @asynccontextmanager
    async def connect_to_read(self, *_queues: str, name: str = "redrive looks") -> AsyncIterator[ConnectedTarget]:
        """Connect and inspect the broker, over one connection, to read. `name`: of the connection."""
        async with connect(self.broker, data=self.data, name=name) as connection:
            yield await self.inspect(connection)

    @asynccontextmanager
    async def connect_to_move(self) -> AsyncIterator[ConnectedTarget]:
        """Connect and inspect the broker, over two connections, to move messages."""
        async with (
            connect(self.broker, data=self.data, name="redrive moves") as taking,
            Connection(taking.url, name="redrive re-drives") as publishing,
        ):
            yield await self.inspect(taking, publishing)

    async def inspect(self, taking: Connection, publishing: Connection | None = None) -> ConnectedTarget:
        snapshot = await inspect_broker(taking, self.topology, self.management)
        adapter = DlqAdapter(taking, publishing or taking)
        return ConnectedTarget(self.topology, taking, adapter, snapshot, self.handler_limits)


def _default_destination(part: QueueLayout) -> Destination:
    """Return the `redrive_to` of a queue; its own retry exchange and key, written out, are `retry`."""
    to = part.queue.destination
    is_retry = to.way is DestinationKind.EXCHANGE and (to.name, to.key) == part.retry_route
    return Destination(DestinationKind.RETRY) if is_retry else to


@dataclass(frozen=True, slots=True)
class ConnectedTarget:
    """A broker target, connected, and what it held when it was inspected."""

    topology: Topology
    connection: Connection
    broker: DlqAdapter
    snapshot: BrokerSnapshot
    handler_limits: Mapping[str, timedelta] = field(default_factory=dict)

    def findings(self) -> tuple[Finding, ...]:
        """Return what the doctor finds."""
        vhost = self.connection.url.virtual_host
        return examine(self.snapshot, self.topology, handler_limits=self.handler_limits, vhost=vhost)

    @property
    def wanted(self) -> Definitions:
        """What the topology asks of this broker."""
        return expand(self.topology.with_held(self.snapshot.effective), self.snapshot.server)

    # Which queues -------------------------------------------------------------------------------------

    def own(self) -> dict[str, str]:
        """Return the dead-letter queues that the application declares, each with its source queue."""
        return declared_dlqs(self.topology, self.snapshot.server)

    def dead_letter_queues(self) -> list[str]:
        own = [queue for queue in self.own() if self.snapshot.definitions.queue(queue) is not None]
        return sorted({*own, *dead_letter_queues(self.snapshot.definitions)})

    def is_dead_letter_queue(self, queue: str) -> bool | None:
        """Return whether a queue is a dead-letter queue; None: not known."""
        if queue in self.dead_letter_queues():
            return True
        if self.snapshot.complete or self.snapshot.definitions.queue(queue) is not None:
            return False
        return True if is_called_dead(queue) else None

    def check_move(self, order: OperationRequest) -> None:
        """Raise `ConfigurationError` if dead letters would be moved to a queue that is known to be for work."""
        name = order.to.name
        exists = self.snapshot.definitions.queue(name) is not None  # if not, the plan says so
        if order.kind is OperationKind.MOVE and exists and self.is_dead_letter_queue(name) is False:
            raise ConfigurationError(
                f"destination {name} is not a dead-letter queue, and a move keeps the failure record: to send messages "
                f"back to work, use `redrive dlq redrive {order.queue} --to {name}`",
                option="to",
            )

    def source(self, queue: str) -> str | None:
        """Return the queue whose messages are dead-lettered to this one, if it is a single one."""
        own = self.own().get(queue)
        if own is not None or not self.snapshot.complete:
            return own
        found = sources(self.snapshot.definitions).get(queue, [])
        return found[0] if len(found) == 1 else None

    def feeders(self) -> Feeders:
        """Return which queues dead-letter to which, by the application and by the broker, policies included."""
        return feeders(self.topology, self.snapshot.server, self._known())

    def publish_routes(self) -> PublishRoutes:
        """Return where publishes lead to, by the application and by the broker, policies included."""
        bound = [queue.name for queue in self.topology.queues if queue.bind]
        return PublishRoutes(self._known(), complete=self.snapshot.complete, bound=bound)

    def _known(self) -> list[Definitions]:
        """Return what the application wants; and, if all of it was seen, what the broker holds."""
        if not self.snapshot.complete:
            return [self.wanted]
        seen, state = self.snapshot.definitions, self.snapshot.state
        queues = [effective(queue, state(queue.name).effective_policy) for queue in seen.queues]
        return [self.wanted, replace(seen, queues=tuple(queues))]

    async def definition(self, queue: str) -> QueueDefinition:
        """Return a queue as the broker has it; over plain AMQP the broker is asked until all of it is known."""
        known = self.snapshot.definitions.queue(queue)
        if known is None and not self.snapshot.complete:
            asked = await probe(self.connection, Definitions.of([], [QueueDefinition(queue)]), self.snapshot.server)
            known = asked.definitions.queue(queue)
        if known is None:
            raise NotFound(404, f"NOT_FOUND - no queue '{queue}' in vhost '{self.connection.url.virtual_host}'")
        return known

    # What a peek costs --------------------------------------------------------------------------------

    async def peek_cost(self, queue: str) -> PeekCost:
        found = await self.definition(queue)
        sees_policies = self.snapshot.sees_policy(queue) or queue in self.own()
        return peek_cost(found, self.snapshot.state(queue), self.snapshot.server, sees_policies=sees_policies)

    async def check_peek(self, queue: str, *, spend: bool) -> PeekCost:
        """Raise `PeekUnsafe` if a peek would do harm, unless `spend` accepts a cost that may be spent."""
        cost = await self.peek_cost(queue)
        if not cost.is_free and not (spend and cost.may_be_spent):
            raise PeekUnsafe(queue, cost.why, cost.fix, may_be_spent=cost.may_be_spent)
        return cost

    def check_dead(self, queue: str, *, named: bool) -> None:
        """Raise `NotDeadLetterQueue` unless this is known to be a dead-letter queue. With `named`, a queue of which
        nothing is known counts as one, because the operator named it.
        """
        known = self.is_dead_letter_queue(queue)
        if known is False:
            raise NotDeadLetterQueue(queue, "it is not a dead-letter queue")
        if known is None and not named:
            raise NotDeadLetterQueue(queue, "it is not known to be a dead-letter queue")

    async def check_unused(self, queue: str) -> None:
        """Raise `NotDeadLetterQueue` if the queue has consumers. Lock it before: a peek consumes as well."""
        consumers = (await self.connection.queue_info(queue)).consumers
        if consumers:
            many = "a consumer takes" if consumers == 1 else f"{consumers} consumers take"
            raise NotDeadLetterQueue(queue, f"{many} messages out of it")

    async def keeps_order(self, queue: str) -> bool:
        """Return whether a requeued message gets its old position. In a quorum queue it does not: that keeps requeued
        messages apart, and adds it at their end (4.3, too, from the second peek on). Nor in a priority queue.
        """
        return (await self.definition(queue)).type != "quorum" and not await self.prefers_urgent(queue)

    async def prefers_urgent(self, queue: str) -> bool:
        """Return whether messages of a higher priority are delivered before earlier ones."""
        highest = (await self.definition(queue)).arguments.get("x-max-priority")
        return bool(highest or self.snapshot.state(queue).effective_policy.get("max-priority"))

    # What a canary sees ---------------------------------------------------------------------------------

    def seeds(self, operation: Operation) -> Collection[str]:
        """Return the queues that an operation sends to, as far as its order shows them."""
        to, source = operation.order.to, self.source(operation.order.queue)
        match to.way:
            case DestinationKind.QUEUE:
                return (to.name,)
            case DestinationKind.EXCHANGE:
                return self.reachable_queues(to.name, to.key) or ()
            case _:
                return (source,) if source is not None else ()

    def dead_letter_queues_of(self, queue: str) -> Collection[str]:
        """Return the dead-letter queues in which failures of a queue end, as far as they are known."""
        own = {name for name, source in self.own().items() if source == queue}
        if not self.snapshot.complete:
            return own
        known = sources(self.snapshot.definitions)
        return own | {name for name in dead_letter_queues(self.snapshot.definitions) if queue in known.get(name, ())}

    def reachable_queues(self, exchange: str, routing_key: str) -> Collection[str] | None:
        """Return the queues that an exchange leads to; None: not known."""
        return queues_reached(self.snapshot.definitions, exchange, routing_key) if self.snapshot.complete else None

    async def canary_facts(self, queues: Collection[str]) -> CanaryFacts | None:
        """Return what is left in these queues and for them. The embedded broker reports it exactly. RabbitMQ's figures
        are seconds old, without what was just sent: None.
        """
        if not self.snapshot.server.embedded:
            return None
        now = await read_status(self.connection)
        ready = sum(now.state(queue).messages or 0 for queue in queues)
        unacknowledged = sum(now.state(queue).unacknowledged or 0 for queue in queues)
        return CanaryFacts(ready, unacknowledged, _waiting_for(queues, now))

    def retry_time(self, order: OperationRequest) -> timedelta | None:
        """Return how long a message may be retried before it is back in a dead-letter queue, if that is known."""
        queue = order.to.name if order.to.way is DestinationKind.QUEUE else self.source(order.queue)
        policy = next((one.retry for one in self.topology.queues if one.name == queue), None)
        if policy is None:
            return None
        first = (
            policy.rungs[:1] if order.to.way is DestinationKind.RETRY else ()
        )  # where it waits before its first attempt
        return sum((rung.delay for rung in (*first, *policy.rungs)), timedelta(seconds=5))

    # Where re-driven messages go ----------------------------------------------------------------------

    async def retries(self, sources: list[str]) -> dict[str, Route]:
        """Return the exchange and key by which a message gets into the retry queue of its queue."""
        parts = [QueueLayout(self.topology, queue, self.snapshot.server) for queue in self.topology.queues]
        ways = {part.queue.name: part.retry_route for part in parts if part.retry_route is not None}
        for source in sources:
            if source not in ways:
                exchange = fill(Naming().retry_exchange, source)
                if await self.connection.exchange_exists(exchange):
                    ways[source] = exchange, Naming().retry_key
        return ways


def _waiting_for(queues: Collection[str], seen: BrokerSnapshot) -> int | None:
    """Return how many messages wait to come back to these queues; None: a delayed exchange may hold more."""
    definitions, flows = seen.definitions, Reachability(seen.definitions)
    delaying = {exchange.name for exchange in definitions.exchanges if exchange.type == "x-delayed-message"}
    if any(bind.source in delaying for queue in queues for bind in definitions.bindings_to(queue)):
        return None
    others = dead_letter_queues(definitions) | set(queues)
    rooms = [one.name for one in definitions.queues if flows.of_dead_letters(one) & set(queues)]
    states = [seen.state(name) for name in rooms if name not in others]
    return sum((state.messages or 0) + (state.unacknowledged or 0) for state in states)
