"""Where messages can go when only the shape of their routing keys is known.

`routing` follows one key. Here a key may be a pattern, `orders.*`, and stands for every key that it matches: a queue
without `x-dead-letter-routing-key` lets go of messages with the keys by which they came, and its bindings say which
those can be. Every hop is exact: there is a key that takes it. A way of several hops may need a different key for each.

`*` and `#` are wildcards in the bindings of topic exchanges alone. In a key that is no pattern, as in the binding of a
direct exchange or an `x-dead-letter-routing-key`, they are ordinary words, marked by `literal`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from functools import lru_cache

from redrive.topology.definitions import DEFAULT_EXCHANGE, BindingDefinition, Definitions, QueueDefinition

ANY = "#"
_WILDCARDS = ("*", "#")
_MARK = "\0"  # before a word that would be a wildcard in a pattern
_BY_KEY = ("direct", "topic")
_MOST_CACHED = 4096  # pairs of exchange and key, which senders choose


class Reachability:
    def __init__(self, definitions: Definitions) -> None:
        self._exchanges = {exchange.name: exchange for exchange in definitions.exchanges}
        self._queues = {queue.name: queue for queue in definitions.queues}
        self._from: dict[str, list[BindingDefinition]] = defaultdict(list)
        self._to: dict[str, list[BindingDefinition]] = defaultdict(list)
        for bind in definitions.bindings:
            self._from[bind.source].append(bind)
            if bind.destination_type == "queue":
                self._to[bind.destination].append(bind)
        self._by_name = {
            queue.dead_letter_key for queue in definitions.queues if queue.dead_letter_exchange == DEFAULT_EXCHANGE
        }
        self._reached: dict[tuple[str, str], frozenset[str]] = {}

    def __repr__(self) -> str:
        return f"<Flows exchanges={len(self._exchanges)} queues={len(self._queues)}>"

    def of_dead_letters(self, queue: QueueDefinition) -> frozenset[str]:
        """The queues that can receive what dies in `queue`."""
        exchange = queue.dead_letter_exchange
        if exchange is None:
            return frozenset()
        return frozenset[str]().union(*(self.reach(exchange, key) for key in self.dead_letter_keys(queue)))

    def dead_letter_keys(self, queue: QueueDefinition) -> frozenset[str]:
        """Return the keys that messages can have which die in `queue`."""
        key = queue.dead_letter_key
        return self.arrivals(queue.name) if key is None else frozenset((literal(key),))

    def arrivals(self, queue: str) -> frozenset[str]:
        """The keys that messages in a queue can have. Through the default exchange it is the queue's name."""
        bindings = self._to[queue]
        keys = {self._key_of(bind) if self.kind(bind.source) in _BY_KEY else ANY for bind in bindings}
        return frozenset(keys | {literal(queue)} if not bindings or queue in self._by_name else keys)

    def _key_of(self, bind: BindingDefinition) -> str:
        """Return the key or the pattern that passes a binding."""
        return bind.routing_key if self.kind(bind.source) == "topic" else literal(bind.routing_key)

    def reach(self, exchange: str, key: str) -> frozenset[str]:
        """The queues that a message can reach. Of the default exchange with a pattern nothing can be said."""
        known = self._reached.get((exchange, key))
        if known is None:
            known = self._reached[exchange, key] = frozenset(self._walk(exchange, key, set()))
        return known

    def examples(self, exchange: str, key: str) -> Iterator[str]:
        """Keys without wildcards that `key` stands for, among them one for each binding that they can pass."""
        if not is_pattern(key):
            yield key
            return
        for pattern in (key, *sorted(map(self._key_of, self._from[exchange]))):
            example = _example(pattern)
            if overlap(key, example):
                yield example

    def kind(self, exchange: str) -> str:
        """Return the type by which an exchange routes. Those of the broker need not be among the definitions."""
        definition = self._exchanges.get(exchange)
        if definition is not None:
            return definition.routing_type
        return exchange.removeprefix("amq.") if exchange.startswith("amq.") else "direct"

    def _walk(self, exchange: str, key: str, seen: set[str]) -> Iterator[str]:
        if exchange == DEFAULT_EXCHANGE:
            if written(key) in self._queues:
                yield written(key)
            return
        if exchange in seen:
            return
        seen.add(exchange)
        kind = self.kind(exchange)
        found = [bind for bind in self._from[exchange] if kind not in _BY_KEY or overlap(key, self._key_of(bind))]
        for bind in found:
            if bind.destination_type == "queue":
                yield bind.destination
            else:
                yield from self._walk(bind.destination, key, seen)
        definition = self._exchanges.get(exchange)
        alternate = definition.alternate if definition is not None else None
        if alternate is not None and (not found or is_pattern(key)):
            yield from self._walk(alternate, key, seen)


class PublishRoutes:
    """Where a publish leads to, directly or through queues in which messages wait, as far as it is known."""

    def __init__(self, seen: Iterable[Definitions], *, complete: bool, bound: Collection[str] = ()) -> None:
        """`seen`: a broker, an application's topology, or both. `complete`: they contain all bindings of the broker.
        `bound`: queues of which all bindings are known in any case.
        """
        self._flows = [(Reachability(definitions), _queues_for_waiting(definitions)) for definitions in seen]
        self._complete = complete
        self._bound = frozenset(bound)
        self._reached = lru_cache(_MOST_CACHED)(self._reach)

    def leads(self, exchange: str, key: str, queue: str) -> bool | None:
        """Return whether a message that is published with this key gets into a queue; None: not known."""
        if queue in self._reached(exchange, key):
            return True
        return False if self._complete or queue in self._bound else None

    def _reach(self, exchange: str, key: str) -> frozenset[str]:
        found = frozenset[str]()
        for flows, waiting in self._flows:
            new = flows.reach(exchange, literal(key))  # a sender may write a key that looks like a pattern
            while new:
                found |= new
                after = (flows.of_dead_letters(waiting[name]) for name in new if name in waiting)
                new = frozenset[str]().union(*after) - found
        return found

    def __repr__(self) -> str:
        return f"<PublishRoutes {'of a whole broker' if self._complete else f'to {len(self._bound)} queues'}>"


def _queues_for_waiting(definitions: Definitions) -> dict[str, QueueDefinition]:
    found = (queue for queue in definitions.queues if None not in (queue.ttl, queue.dead_letter_exchange))
    return {queue.name: queue for queue in found}


def is_pattern(key: str) -> bool:
    return any(word in _WILDCARDS for word in _words(key))


def literal(key: str) -> str:
    """Return a key that is no pattern, with its wildcards marked as ordinary words."""
    return ".".join(_MARK + word if word in _WILDCARDS else word for word in key.split("."))


def written(key: str) -> str:
    """Return a key as it is written on the broker."""
    return key.replace(_MARK, "")


def overlap(one: str, other: str) -> bool:
    """Is there a key that both match? `*` is one word, `#` any number of them, also none."""
    left, right = _words(one), _words(other)
    same = 0
    for head, against in zip(left, right, strict=False):
        if "#" in (head, against):
            break
        if head != against and "*" not in (head, against):
            return False
        same += 1
    return _rest_overlaps(left[same:], right[same:])


def _rest_overlaps(left: list[str], right: list[str]) -> bool:
    if left == ["#"] or right == ["#"]:
        return True
    # fits[j]: can the words of `left` from i on, and those of `right` from j on, be the same?
    fits = [False] * len(right) + [True]
    for j in reversed(range(len(right))):
        fits[j] = fits[j + 1] and right[j] == "#"
    for head in reversed(left):
        after, fits = fits, [False] * (len(right) + 1)
        fits[-1] = after[-1] and head == "#"
        for j in reversed(range(len(right))):
            if "#" in (head, right[j]):  # it ends here, or swallows the other's next word
                fits[j] = after[j] or fits[j + 1]
            else:
                fits[j] = after[j + 1] and ("*" in (head, right[j]) or head == right[j])
    return fits[0]


def _words(key: str) -> list[str]:
    """To a topic exchange the empty key has no word, not one empty word."""
    return key.split(".") if key else []


def _example(pattern: str) -> str:
    return ".".join("x" if word in _WILDCARDS else word for word in _words(pattern))
