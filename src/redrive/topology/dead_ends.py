"""Which queues of a broker are dead-letter queues.

Redrive's own are known by their topology. In a broker that somebody else set up, a dead-letter queue is where dead
letters arrive and do not go on by themselves, or what is called like one: many systems publish there themselves, and
nothing but the name shows it. A queue with a TTL and a dead-letter exchange is none, whatever its name: its messages
only wait in it.
"""

from __future__ import annotations

import re

from redrive.topology.definitions import Definitions, QueueDefinition
from redrive.topology.flows import Flows

# orders.dlq, orders_dlq, DLQ, dlq.orders, orders-dead-letter, OrderDeadLetterQueue, orders_error (MassTransit),
# default.XQ (dramatiq), error (NServiceBus), orders.parkingLot (Spring)
_DEAD = re.compile(
    r"(?:dlq|dead[._-]?letters?|dead[._-]?letter[._-]?queue|parking[._-]?lot)$"
    r"|[._:/-](?:dead|poison|xq)$|^errors?$|_errors?$"  # but not log.error: that is a log level
    r"|^(?:dlq|dead[._-]?letters?)[._:/-]",
    re.IGNORECASE,
)
_WAITING = re.compile(r"retr(?:y|ies)|delay|wait|backoff|later", re.IGNORECASE)


def dead_letter_queues(definitions: Definitions) -> frozenset[str]:
    """The names of the queues in which dead letters end."""
    flows = Flows(definitions)
    # What leaves a queue with a TTL has waited there; what it reaches may be anything, also a queue for work.
    ends = frozenset[str]().union(*(flows.of_dead_letters(queue) for queue in definitions.queues if queue.ttl is None))
    return frozenset(queue.name for queue in definitions.queues if _is_dead_end(queue, queue.name in ends))


def _is_dead_end(queue: QueueDefinition, receives_dead_letters: bool) -> bool:
    goes_on = queue.dead_letter_exchange is not None
    if goes_on and queue.ttl is not None:
        return False
    if is_called_dead(queue.name):
        return True
    return receives_dead_letters and not goes_on and not (queue.ttl is not None and is_called_waiting(queue.name))


def is_called_dead(name: str) -> bool:
    return _DEAD.search(name) is not None


def is_called_waiting(name: str) -> bool:
    return _WAITING.search(name) is not None
