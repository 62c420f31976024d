"""What a broker holds: plain exchanges, queues and bindings, without any idea of what they are for.

The words and fields are those of RabbitMQ's definitions.json. A `Definitions` is ordered by name, so that two of them
are equal when they say the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias, TypeVar

from msgspec import json

from redrive.wire.values import MAX_DEPTH, brief_repr

Arguments: TypeAlias = Mapping[str, Any]

DEFAULT_EXCHANGE = ""
DEFAULT_DELIVERY_LIMIT = 20  # of quorum queues, from RabbitMQ 4.0 on

# Arguments of a queue that have one type, and no broker takes another: numbers with the least and the most of them.
WHOLE_NUMBERS: Mapping[str, tuple[int, int | None]] = {
    "x-message-ttl": (0, 2**32 - 1),
    "x-expires": (1, 2**32 - 1),
    "x-max-priority": (0, 255),
    "x-max-length": (0, None),
    "x-max-length-bytes": (0, None),
    "x-delivery-limit": (-1, None),
}
TEXTS = frozenset(
    ("x-dead-letter-exchange", "x-dead-letter-routing-key", "x-dead-letter-strategy", "x-overflow", "x-queue-type")
)

# Keys of policies that a queue obeys. For these, the smaller of two numbers holds; for the others, the argument.
_SMALLER_HOLDS = {"message-ttl", "expires", "max-length", "max-length-bytes", "consumer-timeout", "delivery-limit"}
_ARGUMENT_HOLDS = {
    *("dead-letter-exchange", "dead-letter-routing-key", "dead-letter-strategy", "overflow"),
    *("delayed-retry-type", "delayed-retry-min", "delayed-retry-max"),
}

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ExchangeDefinition:
    """An exchange as a broker holds it."""

    name: str
    type: str = "direct"
    durable: bool = True
    auto_delete: bool = False
    internal: bool = False
    arguments: Arguments = field(default_factory=dict)

    def __str__(self) -> str:
        return f"exchange {self.name} ({self.type})"

    @property
    def routing_type(self) -> str:
        """The type by which it routes; an exchange that delays routes as the type it was given."""
        return str(self.arguments.get("x-delayed-type", "direct")) if self.type == "x-delayed-message" else self.type

    @property
    def alternate(self) -> str | None:
        """The exchange that receives what no binding takes."""
        return _if_is(str, self.arguments.get("alternate-exchange"))


@dataclass(frozen=True, slots=True)
class QueueDefinition:
    """A queue as a broker holds it."""

    name: str
    durable: bool = True
    auto_delete: bool = False
    arguments: Arguments = field(default_factory=dict)
    existing: bool = False  # wanted as it is, whatever it is: never declared, never compared

    def __str__(self) -> str:
        return f"queue {self.name}"

    @property
    def type(self) -> str:
        """A queue that does not say is classic, unless its virtual host has another default."""
        return str(self.arguments.get("x-queue-type", "classic"))

    @property
    def ttl(self) -> int | None:
        """How many milliseconds a message may wait in it."""
        return milliseconds(self.arguments.get("x-message-ttl"))

    @property
    def dead_letter_exchange(self) -> str | None:
        """The exchange to which its dead letters go, if it has one."""
        return _if_is(str, self.arguments.get("x-dead-letter-exchange"))

    @property
    def dead_letter_key(self) -> str | None:
        """The routing key of what it dead-letters; None: the message's own."""
        return _if_is(str, self.arguments.get("x-dead-letter-routing-key"))


@dataclass(frozen=True, slots=True)
class BindingDefinition:
    """A binding as a broker holds it."""

    source: str
    destination: str
    routing_key: str = ""
    destination_type: Literal["queue", "exchange"] = "queue"
    arguments: Arguments = field(default_factory=dict)

    def __str__(self) -> str:
        extra = f" {dict(self.arguments)}" if self.arguments else ""
        return f"binding {self.source} → {self.destination} [{self.routing_key}]{extra}"

    @property
    def key(self) -> tuple[str, str, str, str, bytes]:
        """What makes it this binding and no other; the order of its arguments does not."""
        arguments = json.encode(dict(self.arguments), order="deterministic")
        return (self.source, self.destination_type, self.destination, self.routing_key, arguments)


Definition: TypeAlias = "ExchangeDefinition | QueueDefinition | BindingDefinition"


@dataclass(frozen=True, slots=True)
class Definitions:
    """Each name and each binding once, in order. The default exchange and its bindings go without saying."""

    exchanges: tuple[ExchangeDefinition, ...] = ()
    queues: tuple[QueueDefinition, ...] = ()
    bindings: tuple[BindingDefinition, ...] = ()

    @classmethod
    def of(
        cls,
        exchanges: Iterable[ExchangeDefinition] = (),
        queues: Iterable[QueueDefinition] = (),
        bindings: Iterable[BindingDefinition] = (),
    ) -> Definitions:
        """In order, and each once: the last word counts."""
        by_exchange = {exchange.name: exchange for exchange in exchanges}
        by_queue = {queue.name: queue for queue in queues}
        by_binding = {binding.key: binding for binding in bindings}
        return cls(
            tuple(by_exchange[name] for name in sorted(by_exchange)),
            tuple(by_queue[name] for name in sorted(by_queue)),
            tuple(by_binding[key] for key in sorted(by_binding)),
        )

    def __iter__(self) -> Iterator[Definition]:
        """In an order in which they can be declared."""
        yield from self.exchanges
        yield from self.queues
        yield from self.bindings

    def __len__(self) -> int:
        return len(self.exchanges) + len(self.queues) + len(self.bindings)

    def __or__(self, other: Definitions) -> Definitions:
        """Both; where they disagree, `other` is right."""
        return Definitions.of(
            (*self.exchanges, *other.exchanges), (*self.queues, *other.queues), (*self.bindings, *other.bindings)
        )

    def exchange(self, name: str) -> ExchangeDefinition | None:
        """Return the exchange of this name, if there is one."""
        return next((exchange for exchange in self.exchanges if exchange.name == name), None)

    def queue(self, name: str) -> QueueDefinition | None:
        """Return the queue of this name, if there is one."""
        return next((queue for queue in self.queues if queue.name == name), None)

    def bindings_to(self, destination: str, kind: str = "queue") -> tuple[BindingDefinition, ...]:
        """Return the bindings whose destination has this name and kind."""
        return tuple(b for b in self.bindings if b.destination == destination and b.destination_type == kind)

    def bindings_from(self, source: str) -> tuple[BindingDefinition, ...]:
        """Return the bindings whose source is this exchange."""
        return tuple(binding for binding in self.bindings if binding.source == source)

    def __repr__(self) -> str:
        sizes = f"exchanges={len(self.exchanges)} queues={len(self.queues)} bindings={len(self.bindings)}"
        return f"<Definitions {sizes}>"


def effective(queue: QueueDefinition, policy: Mapping[str, Any]) -> QueueDefinition:
    """Return the queue with the arguments by which it works: its own, and those of the policy that applies to it."""
    arguments = dict(queue.arguments)
    for key, value in policy.items():
        if key in _SMALLER_HOLDS or key in _ARGUMENT_HOLDS:
            own = arguments.get(f"x-{key}", value)
            arguments[f"x-{key}"] = _smaller(key, own, value) if key in _SMALLER_HOLDS else own
    return replace(queue, arguments=arguments)


def _smaller(key: str, argument: Any, policy: Any) -> Any:
    """A delivery limit below zero means no limit, and any limit is smaller than that."""
    unlimited = key == "delivery-limit" and min(argument, policy) < 0
    return max(argument, policy) if unlimited else min(argument, policy)


def misfits(arguments: Arguments) -> Iterator[str]:
    """What no broker could have said about these arguments."""
    for name, value in arguments.items():
        if name in TEXTS and not isinstance(value, str):
            yield f"{name} {brief_repr(value)}: want a text"
        elif name in WHOLE_NUMBERS and not _is_within(value, *WHOLE_NUMBERS[name]):
            least, most = WHOLE_NUMBERS[name]
            yield f"{name} {brief_repr(value)}: want a number from {least}" + (f" to {most}" if most else "")
        elif _depth(value) > MAX_DEPTH:
            yield f"{brief_repr(name)} is nested more than {MAX_DEPTH} deep"


def _is_within(value: object, least: int, most: int | None) -> bool:
    if isinstance(value, bool) or not isinstance(value, int):
        return False
    return value >= least and (most is None or value <= most)


def _depth(value: object) -> int:
    """Of lists and tables in each other; not much more than is allowed is looked at."""
    depth, level = 0, [value]
    while level and depth <= MAX_DEPTH:
        level = [part for one in level for part in _parts(one)]
        depth += 1
    return depth


def _parts(value: object) -> Iterable[object]:
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, list | tuple) else ()


def milliseconds(value: object) -> int | None:
    """Return the value if it can be a number of milliseconds."""
    return value if isinstance(value, int) and _is_within(value, 0, None) else None


def _if_is(kind: type[T], value: object) -> T | None:
    """What is of another type means nothing here; `misfits` says so."""
    return value if isinstance(value, kind) else None
