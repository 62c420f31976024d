"""Where a message would go, according to the definitions alone."""

from __future__ import annotations

from collections.abc import Iterator

from redrive.topology.definitions import DEFAULT_EXCHANGE, BindingDefinition, Definitions, QueueDefinition

_BY_KEY = {"direct", "topic"}


def targets(definitions: Definitions, exchange: str, key: str | None) -> set[str]:
    """The queues that a message reaches; `key` None: whatever its key may be."""
    return set(_walk(definitions, exchange, key, set()))


def dead_letter_targets(definitions: Definitions, queue: QueueDefinition) -> set[str]:
    """The queues that receive what dies in `queue`. Without a key of its own, any key may come."""
    if queue.dead_letter_exchange is None:
        return set()
    return targets(definitions, queue.dead_letter_exchange, queue.dead_letter_key)


def _walk(definitions: Definitions, exchange: str, key: str | None, seen: set[str]) -> Iterator[str]:
    if exchange == DEFAULT_EXCHANGE:
        if key is not None and definitions.queue(key) is not None:
            yield key
        return
    if exchange in seen:
        return
    seen.add(exchange)
    definition = definitions.exchange(exchange)
    kind = definition.routing_type if definition is not None else "direct"
    found = [bind for bind in definitions.bindings_from(exchange) if matches(kind, bind, key)]
    for bind in found:
        if bind.destination_type == "queue":
            yield bind.destination
        else:
            yield from _walk(definitions, bind.destination, key, seen)
    alternate = definition.alternate if definition is not None else None
    if alternate is not None and (not found or key is None):
        yield from _walk(definitions, alternate, key, seen)


def matches(kind: str, bind: BindingDefinition, key: str | None) -> bool:
    """Can a message with this key pass this binding? Types that do not look at the key let everything pass."""
    if key is None or kind not in _BY_KEY:
        return True
    if kind == "direct":
        return bind.routing_key == key
    return matches_topic(bind.routing_key.split("."), key.split("."))


def matches_topic(pattern: list[str], words: list[str]) -> bool:
    """`*` is one word, `#` any number of them, also none."""
    positions = {0}  # how many words may have been used up
    for head in pattern:
        if head == "#":
            positions = set(range(min(positions), len(words) + 1))
        else:
            positions = {at + 1 for at in positions if at < len(words) and head in ("*", words[at])}
        if not positions:
            return False
    return len(words) in positions
