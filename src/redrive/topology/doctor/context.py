"""What a rule may look at: a snapshot, read once, and the questions that rules ask about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import Any

from redrive.topology.definitions import DEFAULT_DELIVERY_LIMIT, QueueDefinition
from redrive.topology.dlq_detection import dead_letter_queues, declared_dlqs, is_called_waiting
from redrive.topology.expansion import QueueLayout, expand
from redrive.topology.model import Queue, Topology
from redrive.topology.reachability import Reachability
from redrive.topology.snapshot import BrokerSnapshot

DROPPING = ("drop-head", "reject-publish-dlx")  # overflows that dead-letter what does not fit


@dataclass(frozen=True, slots=True)
class Occurrence:
    """One place where a rule applies."""

    subject: str  # the queue or exchange; empty for the broker itself
    evidence: str  # what was seen
    fix: str  # the command or argument that fixes it


class RuleContext:
    def __init__(
        self,
        snapshot: BrokerSnapshot,
        wanted: Topology | None,
        handler_limits: Mapping[str, timedelta],
        consumer_timeout: timedelta,
        vhost: str = "/",
    ) -> None:
        self.server = snapshot.server
        self.is_complete = snapshot.complete  # with all queues, bindings, policies and plugins
        self.definitions = snapshot.effective
        self.wanted = (wanted or Topology()).with_held(self.definitions)
        self.asked = expand(self.wanted, snapshot.server)
        self.handler_limits = handler_limits
        told = snapshot.consumer_timeout
        self.consumer_timeout = consumer_timeout if told is None else timedelta(milliseconds=told)
        self.vhost = vhost
        self._snapshot = snapshot
        seen = snapshot.definitions
        self.queues = {queue.name: queue for queue in self.definitions.queues}
        self.exchanges = {exchange.name for exchange in seen.exchanges}
        self._declared = {queue.name: queue.arguments for queue in seen.queues}
        self.flows = Reachability(self.definitions)

    def __repr__(self) -> str:
        return f"<RuleContext {self._snapshot!r}>"

    # The server -----------------------------------------------------------------------------------------

    @property
    def is_4(self) -> bool:
        return self.server.version >= (4,)

    @property
    def is_3(self) -> bool:
        """Not the opposite of `is_4`: a version may be unknown."""
        return () < self.server.version < (4,)

    # One queue ------------------------------------------------------------------------------------------

    def consumers(self, queue: str) -> int | None:
        return self._snapshot.state(queue).consumers

    def policy(self, queue: str) -> Mapping[str, Any]:
        return self._snapshot.state(queue).effective_policy

    def policy_name(self, queue: str) -> str | None:
        return self._snapshot.state(queue).policy

    def declared_arguments(self, queue: str) -> Mapping[str, Any]:
        """Its arguments alone, without its policy."""
        return self._declared.get(queue, {})

    def main(self, queue: str) -> Queue | None:
        """What the topology says of a queue, if it is one of its main queues."""
        return self._mains.get(queue)

    def own_dead_letter_queues(self, queue: str) -> tuple[str, ...]:
        """Return the dead-letter queues that the topology gives a queue, its own first."""
        main = self.main(queue)
        return QueueLayout(self.wanted, main, self.server).dead_letter_queues if main is not None else ()

    def is_worked(self, queue: str) -> bool:
        return bool(self.consumers(queue)) or queue in self._mains

    def is_temporary(self, queue: QueueDefinition) -> bool:
        """Made for a while, like a reply queue: nobody expects its messages to last."""
        exclusive = bool(queue.arguments.get("exclusive"))
        passing = queue.auto_delete or not queue.durable or exclusive or "x-expires" in queue.arguments
        return passing or queue.name.startswith("amq.")

    def delivery_limit(self, queue: QueueDefinition) -> int | None:
        """Of a quorum queue; None if there is none, or if it cannot be seen."""
        if queue.type != "quorum":
            return None
        if "x-delivery-limit" in queue.arguments:
            return int(queue.arguments["x-delivery-limit"])
        return DEFAULT_DELIVERY_LIMIT if self.is_4 and self.is_complete else None

    def overflow(self, queue: QueueDefinition) -> str | None:
        """None if it cannot be seen."""
        if "x-overflow" in queue.arguments:
            return str(queue.arguments["x-overflow"])
        return "drop-head" if self.is_complete else None

    def is_at_least_once(self, queue: QueueDefinition) -> bool:
        asked = queue.arguments.get("x-dead-letter-strategy") == "at-least-once"
        return queue.type == "quorum" and asked and self.overflow(queue) == "reject-publish"

    def waits(self, queue: QueueDefinition) -> bool:
        """Is it where messages wait to be tried again? Its dead letters come back to it, or its name says so."""
        if queue.ttl is None or queue.dead_letter_exchange is None or queue.name in self._mains:
            return False
        targets = self.dead_letters[queue.name]
        feeds = any(queue.name in self.dead_letters.get(target, ()) for target in targets)
        return feeds or is_called_waiting(queue.name)

    def main_of_retry_queue(self, name: str) -> str | None:
        """Return the queue after which a retry queue is named: `q.orders` of `q.orders.retry.15s`, if it exists."""
        while (at := max(name.rfind("."), name.rfind("_"), name.rfind("-"))) > 0:
            name = name[:at]
            if name in self.queues:
                return name
        return None

    @cached_property
    def _mains(self) -> dict[str, Queue]:
        return {queue.name: queue for queue in self.wanted.queues}

    # Dead letters ---------------------------------------------------------------------------------------

    @cached_property
    def dead_letter_queues(self) -> tuple[QueueDefinition, ...]:
        """The dead-letter queues, as they are on the broker."""
        names = dead_letter_queues(self.definitions) | declared_dlqs(self.wanted, self.server).keys()
        return tuple(queue for queue in self.definitions.queues if queue.name in names)

    @cached_property
    def dead_letters(self) -> dict[str, frozenset[str]]:
        """Where they go, for each queue."""
        return {queue.name: self.flows.of_dead_letters(queue) for queue in self.definitions.queues}

    @cached_property
    def loops(self) -> dict[str, tuple[str, ...]]:
        """For each queue whose dead letters come back to it by themselves: the way they take, from it to it."""
        ways = ((name, self._way_back(name)) for name in self.queues)
        return {name: way for name, way in ways if way is not None}

    def _way_back(self, start: str) -> tuple[str, ...] | None:
        """The shortest. Only from a queue with a TTL do messages go on by themselves."""
        ways: list[tuple[str, ...]] = [(start,)]
        seen = {start}
        for way in ways:
            for step in sorted(self.dead_letters[way[-1]]):
                if step == start:
                    return (*way, start)
                if step not in seen and step in self.queues and self.queues[step].ttl is not None:
                    seen.add(step)
                    ways.append((*way, step))
        return None
