"""The role of each queue, found from the definitions alone.

    waiting   has a TTL and a dead-letter exchange: messages leave it when their TTL is over
    dead      is where dead letters end (see `dead_ends`)
    main      has a dead-letter exchange, or a waiting or dead-letter queue of its own
    plain     has neither

If the broker moves no message, because a worker publishes its retries or parks its failures itself, only the name shows
to which queue a part belongs: `orders_dlq` belongs to `orders`, `q.orders` or `OrdersQueue`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from enum import StrEnum

from redrive.topology.definitions import Definitions, QueueDefinition
from redrive.topology.dlq_detection import dead_letter_queues, sources
from redrive.topology.reachability import Reachability, is_pattern

# Words of a name that tell the kind of a queue and not whose it is.
_KIND_WORD = re.compile(
    r"q|queue|dlq|xq|dead|(dead)?letters?|parking|parked|(parking)?lot|poison|errors?|retry|retries"
    r"|delay(ed)?|wait(ing)?|ttl|\d+(ms|s|sec|m|min|h|d)?",
    re.ASCII,
)


class QueueRole(StrEnum):
    MAIN = "main"
    PLAIN = "plain"
    WAITING = "waiting"
    DEAD = "dead"


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """Where dead letters of a queue go. `certain`: to all these queues, and not by its own key to some of them."""

    exchange: str
    key: str | None
    targets: tuple[str, ...]
    certain: bool

    @property
    def are_known(self) -> bool:
        """Is it known which queues get a dead letter?"""
        return len(self.targets) == 1 or (self.certain and bool(self.targets))


@dataclass(frozen=True, slots=True)
class Roles:
    roles: Mapping[str, QueueRole]
    owners: Mapping[str, str]  # the main queue of each waiting or dead-letter queue that has one
    dead_letters: Mapping[str, DeadLetters]

    def is_part(self, queue: str) -> bool:
        return self.roles.get(queue) in (QueueRole.WAITING, QueueRole.DEAD)


def roles_of(definitions: Definitions) -> Roles:
    flows = Reachability(definitions)
    names = [queue.name for queue in definitions.queues]
    leaving = {queue.name: letters for queue in definitions.queues if (letters := _dead_letters(flows, queue))}
    dead = dead_letter_queues(definitions)
    waiting = {queue.name for queue in definitions.queues if _waits(queue, leaving.get(queue.name), dead)}
    parts = dead | waiting
    owners = _owners_of_dead(sorted(dead), sources(definitions), [name for name in names if name not in parts])
    owners |= _owners_of_waiting(sorted(waiting), leaving, parts)
    owning = set(owners.values())

    def role(name: str) -> QueueRole:
        if name in parts:
            return QueueRole.WAITING if name in waiting else QueueRole.DEAD
        return QueueRole.MAIN if name in leaving or name in owning else QueueRole.PLAIN

    return Roles({name: role(name) for name in names}, owners, leaving)


def _dead_letters(flows: Reachability, queue: QueueDefinition) -> DeadLetters | None:
    exchange, key = queue.dead_letter_exchange, queue.dead_letter_key
    if exchange is None:
        return None
    certain = flows.kind(exchange) == "fanout" or not any(map(is_pattern, flows.dead_letter_keys(queue)))
    return DeadLetters(exchange, key, tuple(sorted(flows.of_dead_letters(queue))), certain)


def _waits(queue: QueueDefinition, letters: DeadLetters | None, dead: frozenset[str]) -> bool:
    """Is it a waiting queue? A main queue may have a TTL too: then expired messages go to its dead-letter queue."""
    if letters is None or queue.ttl is None:
        return False
    return not letters.targets or not dead.issuperset(letters.targets)


# The main queue of each part ----------------------------------------------------------------------------


def _owners_of_dead(dead: Iterable[str], sources: Mapping[str, list[str]], workers: Iterable[str]) -> dict[str, str]:
    """The only queue that dead-letters to it; or, if none does, the queue that it is named after."""
    working = set(workers)
    senders = {name: [one for one in sources.get(name, ()) if one in working] for name in dead}
    owners = _owners_by_name([name for name, of in senders.items() if not of], workers)
    return owners | {name: of[0] for name, of in senders.items() if len(of) == 1}


def _owners_of_waiting(waiting: Iterable[str], leaving: Mapping[str, DeadLetters], parts: Set[str]) -> dict[str, str]:
    """The one queue with which it makes a loop; or the only one it leads to; or the queue that it is named after."""
    owners = {}
    for name in waiting:
        back = [target for target in leaving[name].targets if target not in parts]
        loops = [target for target in back if target in leaving and name in leaving[target].targets]
        if len(loops) == 1 or (not loops and len(back) == 1):
            owners[name] = (loops or back)[0]
        elif not loops:
            owners |= _owners_by_name([name], back)
    return owners


def _owners_by_name(parts: Iterable[str], workers: Iterable[str]) -> dict[str, str]:
    called: dict[tuple[str, ...], list[str]] = {}
    for worker in workers:
        called.setdefault(_stem(worker), []).append(worker)
    return {
        part: max(named, key=lambda worker: (worker in part, len(worker), worker))
        for part in parts
        if (named := called.get(_stem(part)))
    }


def _stem(name: str) -> tuple[str, ...]:
    """Return a name without the words that tell what kind of queue it is."""
    words = re.split(r"[\W_]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower())
    return tuple(word for word in words if word and not _KIND_WORD.fullmatch(word))
