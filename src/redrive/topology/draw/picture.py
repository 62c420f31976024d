"""What there is to see in definitions: nodes, edges between them, and which of them belong together.

A picture that shows every exchange of every queue shows nothing. So what is drawn is the way of a message, and the
exchanges that only lead into the parts of a queue are told where they lead, as that part's *entrance*:

    domain.events ──files.uploaded.*──▶ q.validator ──rejected──▶ q.validator.retry   (via retry.q.validator [retry])
                                            ▲                          │
                                            └───────after 15s──────────┘

The edges of one kind between the same two nodes are one. The order is that of the names, whatever it was before.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from itertools import chain, count
from typing import assert_never

from redrive.recovery.durations import brief
from redrive.topology import ladder
from redrive.topology.definitions import (
    DEFAULT_EXCHANGE,
    BindingDefinition,
    Definitions,
    ExchangeDefinition,
    QueueDefinition,
)
from redrive.topology.draw.lettering import shortened
from redrive.topology.draw.roles import DeadLetters, Role, Roles, roles_of
from redrive.topology.draw.tidying import length_of, tidied
from redrive.topology.flows import Flows

_MOST_LINES = 4
_LONGEST_ID = 48
_DELAYED = "x-delayed-message"


class NodeKind(StrEnum):
    EXCHANGE = "exchange"
    DELAYS = "delays"  # a delayed exchange, or the whole ladder of delays
    MAIN = "main"
    PLAIN = "plain"
    WAITING = "waiting"
    DEAD = "dead"
    MISSING = "missing"  # something leads there, and nobody made it


class EdgeKind(StrEnum):
    BINDING = "binding"
    DEAD_LETTER = "dead letter"  # moved by the broker, because it was rejected or died
    RETURN = "return"  # moved by the broker, because it has waited long enough
    HANDED = "handed"  # published by a worker: nothing in the broker leads there
    OTHERWISE = "otherwise"  # what no binding of an exchange takes


class Tone(StrEnum):
    """What an edge is about, for those who colour it."""

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
        return (shortened(self.name), self.caption, *(f"via {entrance}" for entrance in self.entrances))


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
            return _few([shortened(key) for key in self.keys])
        via = () if self.via is None else (f"via {shortened(self.via)}",)
        return (self.why, *via)


@dataclass(frozen=True, slots=True)
class Group:
    """A queue with its parts, in the order in which a failing message meets them."""

    main: str
    waiting: tuple[str, ...]
    dead: tuple[str, ...]

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
        """That of each edge."""
        kinds = {node.id: node.kind for node in self.nodes}
        return tuple(_tone(edge.kind, kinds[edge.target]) for edge in self.edges)

    def named(self, name: str) -> tuple[Node, ...]:
        """An exchange and a queue may share a name."""
        return tuple(node for node in self.nodes if node.name == name)

    def __repr__(self) -> str:
        return f"<Picture nodes={len(self.nodes)} edges={len(self.edges)} groups={len(self.groups)}>"


def picture_of(definitions: Definitions) -> Picture:
    return _Sketch(tidied(definitions)).picture()


class _Sketch:
    """A picture while it is being drawn: edges bring the nodes that they need."""

    def __init__(self, definitions: Definitions) -> None:
        self._exchanges = {exchange.name: exchange for exchange in definitions.exchanges}
        self._all = definitions
        self._definitions = _without_ladder(definitions)
        self._queues = {queue.name: queue for queue in self._definitions.queues}
        self._flows = Flows(definitions)
        self._roles: Roles = roles_of(self._definitions)
        self._bindings_from: dict[str, list[BindingDefinition]] = {}
        self._bindings_to: dict[str, list[BindingDefinition]] = {}
        for binding in definitions.bindings:
            self._bindings_from.setdefault(binding.source, []).append(binding)
            if binding.destination_type == "queue":
                self._bindings_to.setdefault(binding.destination, []).append(binding)
        self._fed = self._fed_exchanges()
        self._letters = set(self._pairs_by_exchange())
        self._ids: set[str] = set()
        self._nodes: dict[tuple[str, str], Node] = {}
        self._edges: dict[tuple[str, str, EdgeKind, str, str | None], Edge] = {}
        self._entrances: dict[str, list[str]] = {}

    def picture(self) -> Picture:
        for queue in self._definitions.queues:
            self._queue(queue)
        for binding in self._all.bindings:
            self._binding(binding)
        for exchange in self._all.exchanges:
            self._exchange(exchange)
        return Picture(self._ordered_nodes(), tuple(self._edges.values()), tuple(self._groups()))

    # Queues and where their messages go ---------------------------------------------------------------

    def _queue(self, queue: QueueDefinition) -> None:
        node = self._queue_node(queue.name)
        if (span := _native_waits(queue)) is not None:
            self._edge(node, node, EdgeKind.RETURN, f"after {span}")
        letters = self._roles.dead_letters.get(queue.name)
        if letters is None:
            return
        waited = _ttl(queue) if self._roles.roles[queue.name] is Role.WAITING else None
        for target in self._ends_of(letters):
            kind = EdgeKind.DEAD_LETTER if waited is None else EdgeKind.RETURN
            why = _reason(target.kind) if waited is None else f"after {brief(waited)}"
            self._edge(node, target, kind, why, via=self._seen_on_the_way(letters, target))

    def _ends_of(self, letters: DeadLetters) -> Iterator[Node]:
        if letters.targets and (letters.certain or len(letters.targets) == 1):
            for target in letters.targets:
                yield self._queue_node(target)
        elif letters.exchange == DEFAULT_EXCHANGE and letters.key is not None:
            yield self._queue_node(letters.key)
        else:
            yield self._exchange_node(letters.exchange)

    def _seen_on_the_way(self, letters: DeadLetters, target: Node) -> str | None:
        """An exchange that copies to whoever is bound matters to who reads; one that leads here only does not."""
        through = letters.exchange
        if through == DEFAULT_EXCHANGE or target.name not in letters.targets or self._roles.is_part(target.name):
            return None
        return through

    def _pairs_by_exchange(self) -> Iterator[tuple[str, str]]:
        for letters in self._roles.dead_letters.values():
            if letters.certain or len(letters.targets) == 1:
                for target in letters.targets:
                    yield letters.exchange, target

    # Bindings -----------------------------------------------------------------------------------------

    def _binding(self, binding: BindingDefinition) -> None:
        source, target = binding.source, binding.destination
        to_queue = binding.destination_type == "queue"
        if source == DEFAULT_EXCHANGE or (_is_ladder(source) and _is_ladder(target)):
            return
        if to_queue and self._roles.is_part(target) and (source, target) in self._letters:
            self._entrances.setdefault(target, []).append(_entrance(binding))
        elif to_queue and (owner := self._worker_that_publishes(binding)) is not None:
            self._entrances.setdefault(target, []).append(_entrance(binding))
            why = "parked" if self._roles.roles[target] is Role.DEAD else "retry"
            self._edge(self._queue_node(owner), self._queue_node(target), EdgeKind.HANDED, why)
        else:
            end = self._queue_node(target) if to_queue else self._exchange_node(target)
            self._bound(self._exchange_node(source), end, binding)

    def _bound(self, source: Node, target: Node, binding: BindingDefinition) -> None:
        if _is_ladder(binding.source) or self._is_for_retries(binding):
            self._edge(target, source, EdgeKind.HANDED, "retry")
            self._edge(source, target, EdgeKind.RETURN, "after its delay")
        else:
            self._edge(source, target, EdgeKind.BINDING, keys=_keys(binding, self._kind(binding.source)))

    def _is_for_retries(self, binding: BindingDefinition) -> bool:
        """Anybody may publish to a delayed exchange. But who names a queue, or repeats a key by which it gets its
        messages anyway, wants a message of its own back.
        """
        exchange = self._exchanges.get(binding.source)
        if exchange is None or exchange.type != _DELAYED or binding.destination_type != "queue":
            return False
        others = self._bindings_to.get(binding.destination, ())
        keys = {one.routing_key for one in others if one.source != binding.source}
        return binding.routing_key in keys | {binding.destination}

    def _worker_that_publishes(self, binding: BindingDefinition) -> str | None:
        """The queue whose worker is meant to publish here: the broker itself moves nothing this way.

        So it is when the exchange leads to waiting and dead-letter queues only, and when it is the one that also
        brings the main queue its messages, under another key.
        """
        source, owner = binding.source, self._roles.owners.get(binding.destination)
        if owner is None or source in self._fed:
            return None
        siblings = [one for one in self._bindings_from[source] if one.destination != binding.destination]
        leads_to_parts = all(
            one.destination_type == "queue" and self._roles.is_part(one.destination) for one in siblings
        )
        brings_work = self._kind(source) == "direct" and any(one.destination == owner for one in siblings)
        return owner if leads_to_parts or brings_work else None

    def _fed_exchanges(self) -> set[str]:
        """Exchanges that get their messages from something in the picture: they must be seen."""
        fed = {binding.destination for binding in self._all.bindings if binding.destination_type == "exchange"}
        fed |= {alternate for exchange in self._exchanges.values() if (alternate := _alternate(exchange))}
        pointed = (letters for letters in self._roles.dead_letters.values() if not letters.certain)
        return fed | {letters.exchange for letters in pointed if len(letters.targets) != 1}

    def _exchange(self, exchange: ExchangeDefinition) -> None:
        if (alternate := _alternate(exchange)) is not None:
            self._edge(
                self._exchange_node(exchange.name), self._exchange_node(alternate), EdgeKind.OTHERWISE, "otherwise"
            )
        if exchange.name not in self._bindings_from or _is_ladder(exchange.name):
            self._exchange_node(exchange.name)

    # Nodes and edges ----------------------------------------------------------------------------------

    def _queue_node(self, name: str) -> Node:
        if _is_ladder(name):
            return self._ladder_node()
        queue = self._queues.get(name)
        if queue is None:
            return self._node("queue", name, NodeKind.MISSING, "missing queue")
        return self._node("queue", name, NodeKind(self._roles.roles[name]), self._caption(queue))

    def _exchange_node(self, name: str) -> Node:
        if _is_ladder(name):
            return self._ladder_node()
        if name == DEFAULT_EXCHANGE:
            return self._node("the", "default exchange", NodeKind.EXCHANGE, "the queue named by the key")
        exchange = self._exchanges.get(name)
        if exchange is None and not name.startswith("amq."):
            return self._node("exchange", name, NodeKind.MISSING, "missing exchange")
        if exchange is not None and exchange.type == _DELAYED:
            return self._node("exchange", name, NodeKind.DELAYS, f"delays, then {shortened(self._kind(name), 20)}")
        return self._node("exchange", name, NodeKind.EXCHANGE, f"{shortened(self._kind(name), 30)} exchange")

    def _kind(self, exchange: str) -> str:
        """By which rule it routes. The broker's own are not always among the definitions, and are called by theirs."""
        if exchange.startswith("amq.") and exchange not in self._exchanges:
            return exchange.removeprefix("amq.")
        return self._flows.kind(exchange)

    def _ladder_node(self) -> Node:
        caption = f"ladder of {ladder.LEVELS} queues"
        return self._node("ladder", f"delays up to {ladder.LONGEST.days}d", NodeKind.DELAYS, caption)

    def _caption(self, queue: QueueDefinition) -> str:
        ttl = _ttl(queue)
        match role := self._roles.roles[queue.name]:
            case Role.WAITING:
                return f"waits {brief(ttl or timedelta(0))}"
            case Role.DEAD:
                return "dead letters" + (f", dropped after {brief(ttl)}" if ttl is not None else "")
            case Role.MAIN | Role.PLAIN:
                kind = queue.type if "x-queue-type" in queue.arguments else ""
                what = "stream" if kind == "stream" else f"{shortened(kind, 20)} queue" if kind else "queue"
                return what + (f", at most {brief(ttl)}" if ttl is not None else "")
            case _:
                assert_never(role)

    def _node(self, what: str, name: str, kind: NodeKind, caption: str) -> Node:
        known = self._nodes.get((what, name))
        if known is None:
            known = Node(self._free_id(what, name), kind, name, caption)
            self._nodes[what, name] = known
        return known

    def _free_id(self, what: str, name: str) -> str:
        wanted = what + _in_capitals(name)
        numbered = (f"{wanted}_{number}" for number in count(2))
        free = next(id for id in chain([wanted], numbered) if id not in self._ids)
        self._ids.add(free)
        return free

    def _edge(
        self,
        source: Node,
        target: Node,
        kind: EdgeKind,
        why: str = "",
        keys: Iterable[str] = (),
        via: str | None = None,
    ) -> None:
        """One for each pair and reason; keys come together."""
        place = (source.id, target.id, kind, why, via)
        known = self._edges.get(place)
        every = dict.fromkeys((*(known.keys if known else ()), *keys))
        self._edges[place] = Edge(source.id, target.id, kind, why, tuple(every), via)

    # The result ---------------------------------------------------------------------------------------

    def _ordered_nodes(self) -> tuple[Node, ...]:
        order = list(NodeKind)
        named = sorted(self._nodes.items(), key=lambda one: (order.index(one[1].kind), one[0][1], one[0][0]))
        return tuple(self._with_entrances(what, node) for (what, _), node in named)

    def _with_entrances(self, what: str, node: Node) -> Node:
        entrances = self._entrances.get(node.name, []) if what == "queue" else []
        return replace(node, entrances=_few(entrances))

    def _groups(self) -> Iterator[Group]:
        parts: dict[str, list[str]] = {}
        for part, owner in self._roles.owners.items():
            parts.setdefault(owner, []).append(part)
        for main in sorted(parts):
            waiting = [part for part in parts[main] if self._roles.roles[part] is Role.WAITING]
            waiting.sort(key=lambda name: (self._queues[name].ttl, name))
            dead = sorted(set(parts[main]) - set(waiting))
            yield Group(self._id(main), tuple(map(self._id, waiting)), tuple(map(self._id, dead)))

    def _id(self, queue: str) -> str:
        return self._queue_node(queue).id


# Words --------------------------------------------------------------------------------------------


def _in_capitals(name: str) -> str:
    """`q.orders_10s` as `QOrders10S`: no word in it can be taken for a keyword, as Mermaid takes `end` in `q_end`."""
    words = re.findall(r"[A-Za-z]+|[0-9]+", name)
    return "".join(word[0].upper() + word[1:] for word in words)[:_LONGEST_ID]


def _reason(target: NodeKind) -> str:
    return "rejected" if target in (NodeKind.WAITING, NodeKind.MAIN, NodeKind.PLAIN) else "dead"


def _tone(edge: EdgeKind, target: NodeKind) -> Tone:
    if edge is EdgeKind.RETURN or target is NodeKind.WAITING or (edge, target) == (EdgeKind.HANDED, NodeKind.DELAYS):
        return Tone.RETRY
    return Tone.DEAD if target in (NodeKind.DEAD, NodeKind.MISSING) or edge is EdgeKind.DEAD_LETTER else Tone.FLOW


def _ttl(queue: QueueDefinition) -> timedelta | None:
    return length_of(queue.ttl)


def _native_waits(queue: QueueDefinition) -> str | None:
    """How long a quorum queue delays its retries by itself (RabbitMQ 4.3), if it does."""
    shortest = length_of(queue.arguments.get("x-delayed-retry-min"))
    longest = length_of(queue.arguments.get("x-delayed-retry-max"))
    if shortest is None:
        return None
    return brief(shortest) if longest in (None, shortest) else f"{brief(shortest)} to {brief(longest)}"


def _entrance(binding: BindingDefinition) -> str:
    key = f" [{shortened(binding.routing_key, 24)}]" if binding.routing_key else ""
    return shortened(binding.source) + key


def _keys(binding: BindingDefinition, kind: str) -> tuple[str, ...]:
    """By what it takes messages; nothing to say where it takes all."""
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


def _alternate(exchange: ExchangeDefinition) -> str | None:
    alternate = exchange.arguments.get("alternate-exchange")
    return None if alternate is None else str(alternate)


# The ladder of delays -----------------------------------------------------------------------------

_LADDER = {ladder.ARRIVAL, *(ladder.level(number) for number in range(ladder.LEVELS))}


def _is_ladder(name: str) -> bool:
    return name in _LADDER


def _without_ladder(definitions: Definitions) -> Definitions:
    """Its rungs wait for everybody and are nobody's part."""
    return Definitions(
        tuple(exchange for exchange in definitions.exchanges if not _is_ladder(exchange.name)),
        tuple(queue for queue in definitions.queues if not _is_ladder(queue.name)),
        tuple(one for one in definitions.bindings if not _is_ladder(one.source) and not _is_ladder(one.destination)),
    )
