"""The graph of a picture: nodes, edges between them, and which of them belong together.

A picture that shows every exchange of every queue shows nothing. So the way of a message is drawn, and an exchange that
only leads into a part of a queue is written on that part, as its *entrance*:

    domain.events ──files.uploaded.*──▶ q.validator ──rejected──▶ q.validator.retry   (via retry.q.validator [retry])
                                            ▲                          │
                                            └───────after 15s──────────┘

Edges of one kind between the same two nodes are one edge. Everything is in the order of names.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from functools import cached_property
from itertools import chain, count
from typing import assert_never

from redrive.recovery.durations import format_duration
from redrive.topology import ladder
from redrive.topology.definitions import (
    DEFAULT_EXCHANGE,
    BindingDefinition,
    Definitions,
    ExchangeDefinition,
    QueueDefinition,
    milliseconds,
)
from redrive.topology.draw.roles import DeadLetters, QueueRole, roles_of
from redrive.topology.draw.style import shorten
from redrive.topology.reachability import Reachability

_MOST_LINES = 4
_LONGEST_ID = 48
_LONGEST_TIME = 10**15  # milliseconds
_DELAYED = "x-delayed-message"
_LADDER = {ladder.ARRIVAL, *(ladder.level(number) for number in range(ladder.LEVELS))}


class NodeKind(StrEnum):
    EXCHANGE = "exchange"
    DELAYS = "delays"  # a delayed exchange, or the whole ladder of delays
    MAIN = "main"
    PLAIN = "plain"
    WAITING = "waiting"
    DEAD = "dead"
    MISSING = "missing"  # something leads there, and it does not exist


class EdgeKind(StrEnum):
    BINDING = "binding"
    DEAD_LETTER = "dead letter"  # moved by the broker, because it was rejected or died
    RETURN = "return"  # moved by the broker, because it has waited long enough
    HANDED = "handed"  # published by a worker: nothing in the broker leads there
    OTHERWISE = "otherwise"  # what no binding of an exchange takes


class Tone(StrEnum):
    """The colour of an edge."""

    FLOW = "flow"
    RETRY = "retry"
    DEAD = "dead"


@dataclass(frozen=True, slots=True)
class Node:
    id: str  # letters and digits, made of its name; unique in the picture
    kind: NodeKind
    name: str
    caption: str
    entrances: tuple[str, ...] = ()  # "exchange [key]" of exchanges that are not drawn

    @property
    def lines(self) -> tuple[str, ...]:
        """What is written on it, ready to be shown."""
        return (shorten(self.name), self.caption, *(f"via {entrance}" for entrance in self.entrances))


@dataclass(frozen=True, slots=True)
class Edge:
    source: str
    target: str
    kind: EdgeKind
    why: str = ""  # "rejected", "after 15s", "dead", ...
    keys: tuple[str, ...] = ()
    via: str | None = None  # the exchange that takes part, where it is drawn elsewhere

    @property
    def ends(self) -> tuple[str, str]:
        return (self.source, self.target)

    @property
    def lines(self) -> tuple[str, ...]:
        """What is written along it, ready to be shown."""
        if self.kind is EdgeKind.BINDING:
            return _few([shorten(key) for key in self.keys])
        return (self.why,) if self.via is None else (self.why, f"via {shorten(self.via)}")


@dataclass(frozen=True, slots=True)
class Group:
    """A queue with its parts, in the order in which a failing message meets them."""

    main: str
    waiting: tuple[str, ...] = ()
    dead: tuple[str, ...] = ()

    @property
    def members(self) -> tuple[str, ...]:
        return (self.main, *self.waiting, *self.dead)


@dataclass(frozen=True, slots=True)
class Picture:
    nodes: tuple[Node, ...] = ()
    edges: tuple[Edge, ...] = ()
    groups: tuple[Group, ...] = ()

    @property
    def tones(self) -> tuple[Tone, ...]:
        """The tone of each edge."""
        kinds = {node.id: node.kind for node in self.nodes}
        return tuple(_tone(edge.kind, kinds[edge.target]) for edge in self.edges)

    def __repr__(self) -> str:
        return f"<Picture nodes={len(self.nodes)} edges={len(self.edges)} groups={len(self.groups)}>"


def picture_of(definitions: Definitions) -> Picture:
    return _Sketch(Definitions.of(definitions.exchanges, definitions.queues, definitions.bindings)).picture()


class _Sketch:
    """A picture while it is being drawn: edges bring the nodes that they need."""

    def __init__(self, definitions: Definitions) -> None:
        self._definitions = definitions
        self._exchanges = {exchange.name: exchange for exchange in definitions.exchanges}
        self._flows = Reachability(definitions)
        self._roles = roles_of(_without_ladder(definitions))
        self._queues = {queue.name: queue for queue in definitions.queues if queue.name not in _LADDER}
        self._from: dict[str, list[BindingDefinition]] = defaultdict(list)
        self._to: dict[str, list[BindingDefinition]] = defaultdict(list)
        for binding in definitions.bindings:
            self._from[binding.source].append(binding)
            if binding.destination_type == "queue":
                self._to[binding.destination].append(binding)
        self._ids: set[str] = set()
        self._nodes: dict[tuple[str, str], Node] = {}
        self._edges: dict[Edge, dict[str, None]] = defaultdict(dict)  # each with its keys
        self._entrances: dict[str, list[str]] = defaultdict(list)

    def picture(self) -> Picture:
        for queue in self._queues.values():
            self._add_queue(queue)
        for binding in self._definitions.bindings:
            self._add_binding(binding)
        for exchange in self._definitions.exchanges:
            self._add_exchange(exchange)
        groups = tuple(self._groups())
        edges = tuple(replace(edge, keys=tuple(keys)) for edge, keys in self._edges.items())
        return Picture(tuple(self._ordered_nodes()), edges, groups)

    # Queues and where their messages go -------------------------------------------------------------------

    def _add_queue(self, queue: QueueDefinition) -> None:
        node = self._queue_node(queue.name)
        if (delay := _delay_of_quorum_queue(queue)) is not None:
            self._add_edge(node, node, EdgeKind.RETURN, f"after {delay}")
        letters = self._roles.dead_letters.get(queue.name)
        if letters is None:
            return
        waits = self._roles.roles[queue.name] is QueueRole.WAITING
        for target in self._dead_letter_nodes(letters):
            # An exchange that also copies to other queues matters to the reader; one that leads only here does not.
            shown = target.name in letters.targets and not self._roles.is_part(target.name)
            via = letters.exchange if shown and letters.exchange != DEFAULT_EXCHANGE else None
            if waits:
                self._add_edge(node, target, EdgeKind.RETURN, f"after {_time(queue.ttl)}", via=via)
            else:
                self._add_edge(node, target, EdgeKind.DEAD_LETTER, _reason(target.kind), via=via)

    def _dead_letter_nodes(self, letters: DeadLetters) -> Iterable[Node]:
        if letters.are_known:
            return map(self._queue_node, letters.targets)
        if letters.exchange == DEFAULT_EXCHANGE and letters.key is not None:
            return [self._queue_node(letters.key)]
        return [self._exchange_node(letters.exchange)]

    # Bindings ---------------------------------------------------------------------------------------------

    def _add_binding(self, binding: BindingDefinition) -> None:
        source, target = binding.source, binding.destination
        if source == DEFAULT_EXCHANGE or {source, target} <= _LADDER:
            return
        if binding.destination_type == "exchange":
            self._connect(self._exchange_node(source), self._exchange_node(target), binding)
        elif self._roles.is_part(target) and (source, target) in self._dead_letter_ways:
            self._entrances[target].append(_entrance(binding))
        elif (owner := self._publishing_worker(binding)) is not None:
            self._entrances[target].append(_entrance(binding))
            why = "parked" if self._roles.roles[target] is QueueRole.DEAD else "retry"
            self._add_edge(self._queue_node(owner), self._queue_node(target), EdgeKind.HANDED, why)
        else:
            self._connect(self._exchange_node(source), self._queue_node(target), binding)

    @cached_property
    def _dead_letter_ways(self) -> set[tuple[str, str]]:
        known = [letters for letters in self._roles.dead_letters.values() if letters.are_known]
        return {(letters.exchange, target) for letters in known for target in letters.targets}

    def _connect(self, source: Node, target: Node, binding: BindingDefinition) -> None:
        if binding.source in _LADDER or self._is_for_retries(binding):
            self._add_edge(target, source, EdgeKind.HANDED, "retry")
            self._add_edge(source, target, EdgeKind.RETURN, "after its delay")
        else:
            self._add_edge(source, target, EdgeKind.BINDING, keys=_keys(binding, self._flows.kind(binding.source)))

    def _is_for_retries(self, binding: BindingDefinition) -> bool:
        """Does a queue get its own messages back here? Any client may publish to a delayed exchange; but such a binding
        has the name of its queue as key, or a key by which the queue gets its messages anyway.
        """
        exchange = self._exchanges.get(binding.source)
        if exchange is None or exchange.type != _DELAYED or binding.destination_type != "queue":
            return False
        keys = {one.routing_key for one in self._to[binding.destination] if one.source != binding.source}
        return binding.routing_key in keys | {binding.destination}

    def _publishing_worker(self, binding: BindingDefinition) -> str | None:
        """Return the queue whose worker is meant to publish here, if the broker itself moves nothing this way.

        So it is when the exchange leads to waiting and dead-letter queues only, and when it is the one that also
        brings the main queue its messages, under another key.
        """
        source, owner = binding.source, self._roles.owners.get(binding.destination)
        if owner is None or source in self._fed_exchanges:
            return None
        siblings = [one for one in self._from[source] if one.destination != binding.destination]
        brings_work = self._flows.kind(source) == "direct" and any(one.destination == owner for one in siblings)
        is_part = self._roles.is_part
        if brings_work or all(one.destination_type == "queue" and is_part(one.destination) for one in siblings):
            return owner
        return None

    @cached_property
    def _fed_exchanges(self) -> set[str]:
        """The exchanges that get messages from something in the picture: they must be drawn."""
        bound = {one.destination for one in self._definitions.bindings if one.destination_type == "exchange"}
        alternates = {exchange.alternate for exchange in self._definitions.exchanges if exchange.alternate is not None}
        letters = self._roles.dead_letters.values()
        return bound | alternates | {one.exchange for one in letters if not one.certain and len(one.targets) != 1}

    def _add_exchange(self, exchange: ExchangeDefinition) -> None:
        if exchange.alternate is not None:
            source, target = self._exchange_node(exchange.name), self._exchange_node(exchange.alternate)
            self._add_edge(source, target, EdgeKind.OTHERWISE, "otherwise")
        if not self._from[exchange.name] or exchange.name in _LADDER:
            self._exchange_node(exchange.name)

    # Nodes and edges --------------------------------------------------------------------------------------

    def _queue_node(self, name: str) -> Node:
        if name in _LADDER:
            return self._ladder_node()
        queue = self._queues.get(name)
        if queue is None:
            return self._node("queue", name, NodeKind.MISSING, "missing queue")
        role = self._roles.roles[name]
        return self._node("queue", name, NodeKind(role), _caption(queue, role))

    def _exchange_node(self, name: str) -> Node:
        if name in _LADDER:
            return self._ladder_node()
        if name == DEFAULT_EXCHANGE:
            return self._node("the", "default exchange", NodeKind.EXCHANGE, "the queue named by the key")
        exchange, kind = self._exchanges.get(name), self._flows.kind(name)
        if exchange is None and not name.startswith("amq."):
            return self._node("exchange", name, NodeKind.MISSING, "missing exchange")
        if exchange is not None and exchange.type == _DELAYED:
            return self._node("exchange", name, NodeKind.DELAYS, f"delays, then {shorten(kind, 20)}")
        return self._node("exchange", name, NodeKind.EXCHANGE, f"{shorten(kind, 30)} exchange")

    def _ladder_node(self) -> Node:
        caption = f"ladder of {ladder.LEVELS} queues"
        return self._node("ladder", f"delays up to {ladder.LONGEST.days}d", NodeKind.DELAYS, caption)

    def _node(self, what: str, name: str, kind: NodeKind, caption: str) -> Node:
        if (what, name) not in self._nodes:
            self._nodes[what, name] = Node(self._free_id(what, name), kind, name, caption)
        return self._nodes[what, name]

    def _free_id(self, what: str, name: str) -> str:
        """Return `queueQOrders10S` for `q.orders_10s`: Mermaid would take a word like `end` for its keyword."""
        words = re.findall(r"[A-Za-z]+|[0-9]+", name)
        wanted = what + "".join(word[0].upper() + word[1:] for word in words)[:_LONGEST_ID]
        free = next(id for id in chain([wanted], (f"{wanted}_{number}" for number in count(2))) if id not in self._ids)
        self._ids.add(free)
        return free

    def _add_edge(
        self,
        source: Node,
        target: Node,
        kind: EdgeKind,
        why: str = "",
        keys: Iterable[str] = (),
        via: str | None = None,
    ) -> None:
        self._edges[Edge(source.id, target.id, kind, why, via=via)].update(dict.fromkeys(keys))

    def _ordered_nodes(self) -> Iterator[Node]:
        order = list(NodeKind)
        named = sorted(self._nodes.items(), key=lambda one: (order.index(one[1].kind), one[0][1], one[0][0]))
        for (what, name), node in named:
            yield replace(node, entrances=_few(self._entrances[name] if what == "queue" else []))

    def _groups(self) -> Iterator[Group]:
        roles, parts = self._roles.roles, defaultdict(list)
        for part, owner in sorted(self._roles.owners.items()):
            parts[owner].append(part)
        for main in sorted(parts):
            waiting = [part for part in parts[main] if roles[part] is QueueRole.WAITING]
            waiting.sort(key=lambda name: (self._queues[name].ttl, name))
            dead = [part for part in parts[main] if roles[part] is not QueueRole.WAITING]
            ids = [[self._queue_node(name).id for name in names] for names in (waiting, dead)]
            yield Group(self._queue_node(main).id, tuple(ids[0]), tuple(ids[1]))


# Words ----------------------------------------------------------------------------------------------------


def _caption(queue: QueueDefinition, role: QueueRole) -> str:
    time = None if queue.ttl is None else _time(queue.ttl)
    match role:
        case QueueRole.WAITING:
            return f"waits {time}"
        case QueueRole.DEAD:
            return "dead letters" + (f", dropped after {time}" if time else "")
        case QueueRole.MAIN | QueueRole.PLAIN:
            kind = f"{shorten(queue.type, 20)} queue" if "x-queue-type" in queue.arguments else "queue"
            return ("stream" if queue.type == "stream" else kind) + (f", at most {time}" if time else "")
        case _:
            assert_never(role)


def _time(length: int | None) -> str:
    return format_duration(timedelta(milliseconds=min(length or 0, _LONGEST_TIME)))


def _delay_of_quorum_queue(queue: QueueDefinition) -> str | None:
    """Return how long a quorum queue delays its retries by itself (RabbitMQ 4.3), if it does."""
    least = milliseconds(queue.arguments.get("x-delayed-retry-min"))
    most = milliseconds(queue.arguments.get("x-delayed-retry-max"))
    if least is None:
        return None
    return _time(least) if most in (None, least) else f"{_time(least)} to {_time(most)}"


def _reason(target: NodeKind) -> str:
    return "rejected" if target in (NodeKind.WAITING, NodeKind.MAIN, NodeKind.PLAIN) else "dead"


def _tone(edge: EdgeKind, target: NodeKind) -> Tone:
    if edge is EdgeKind.RETURN or target is NodeKind.WAITING or (edge, target) == (EdgeKind.HANDED, NodeKind.DELAYS):
        return Tone.RETRY
    return Tone.DEAD if target in (NodeKind.DEAD, NodeKind.MISSING) or edge is EdgeKind.DEAD_LETTER else Tone.FLOW


def _entrance(binding: BindingDefinition) -> str:
    key = f" [{shorten(binding.routing_key, 24)}]" if binding.routing_key else ""
    return shorten(binding.source) + key


def _keys(binding: BindingDefinition, kind: str) -> tuple[str, ...]:
    """Return by what a binding selects messages; nothing if it takes all."""
    if kind == "fanout":
        return ()
    if kind == "headers":
        wanted = (f"{name}={value}" for name, value in sorted(binding.arguments.items()) if name != "x-match")
        return (" ".join(wanted) or "any headers",)
    return (binding.routing_key or "(empty key)",)


def _few(lines: list[str]) -> tuple[str, ...]:
    if len(lines) <= _MOST_LINES:
        return tuple(lines)
    return (*lines[: _MOST_LINES - 1], f"and {len(lines) - _MOST_LINES + 1} more")


def _without_ladder(definitions: Definitions) -> Definitions:
    """The rungs of the ladder of delays are parts of no queue."""
    return Definitions(
        tuple(exchange for exchange in definitions.exchanges if exchange.name not in _LADDER),
        tuple(queue for queue in definitions.queues if queue.name not in _LADDER),
        tuple(one for one in definitions.bindings if _LADDER.isdisjoint((one.source, one.destination))),
    )
