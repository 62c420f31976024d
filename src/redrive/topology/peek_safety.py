"""May a queue be looked at, and what does it cost? To look is to take messages and to give them back.

A classic queue does not mind. A quorum queue counts how often a message came back, and deletes or dead-letters it at
its limit; what counts, and whether there is a limit when nobody set one, depends on the version:

                          3.x             4.0 to 4.2      from 4.3
    limit by default      none            20              20
    given back by nack    counts          counts          is free
    lost connection       counts          counts          counts
    limit -1              deletes at the  no limit        no limit
                          first return

A limit can be an argument of the queue or come from a policy, which only the management API tells.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from redrive.topology.definitions import DEFAULT_DELIVERY_LIMIT, QueueDefinition
from redrive.topology.snapshot import QueueState, Server

_COUNTING_ENDS = (4, 3)


class PeekSafety(StrEnum):
    SAFE = "safe"
    COUNTS = "counts"  # towards a limit at which the message is gone
    UNKNOWN = "unknown"  # there may be a limit that cannot be seen
    DELETES = "deletes"
    IMPOSSIBLE = "impossible"


@dataclass(frozen=True, slots=True)
class PeekCost:
    safety: PeekSafety
    limit: int | None = None  # how often a message may come back
    why: str = ""
    fix: str = ""

    @property
    def is_free(self) -> bool:
        return self.safety is PeekSafety.SAFE

    @property
    def may_be_spent(self) -> bool:
        """May somebody look all the same, who says that it is worth it?"""
        return self.safety in (PeekSafety.COUNTS, PeekSafety.UNKNOWN)


def peek_cost(queue: QueueDefinition, state: QueueState, server: Server, *, sees_policies: bool) -> PeekCost:
    if queue.type == "stream":
        why = "a stream: its messages cannot be taken out and given back"
        return PeekCost(PeekSafety.IMPOSSIBLE, None, why, "read it with a client for streams")
    if queue.type != "quorum":
        return PeekCost(PeekSafety.SAFE)
    limit = _limit(queue, state, server)
    if server.version < (4,) and limit is not None and limit < 0:
        why = f"x-delivery-limit is {limit}, with which {server} deletes a message at its first return"
        return PeekCost(PeekSafety.DELETES, 0, why, _FIX)
    if limit is not None and limit < 0:
        return PeekCost(PeekSafety.SAFE)
    if limit is None and not sees_policies:
        why = "a quorum queue without a delivery limit of its own; whether a policy sets one, plain AMQP does not tell"
        return PeekCost(PeekSafety.UNKNOWN, None, why, "name the management API: --management, or REDRIVE_MANAGEMENT")
    if limit is None:
        return PeekCost(PeekSafety.SAFE)
    if server.version >= _COUNTING_ENDS:
        return PeekCost(PeekSafety.SAFE, limit, "a look costs nothing; a connection that is lost meanwhile counts once")
    why = f"a quorum queue on {server}, where each look counts: look {limit + 1} deletes what it shows"
    return PeekCost(PeekSafety.COUNTS, limit, why, _FIX)


_FIX = "have the limit lifted: `redrive doctor` says how, and `redrive topology migrate` does it without loss"


def _limit(queue: QueueDefinition, state: QueueState, server: Server) -> int | None:
    """Return the limit of the queue's arguments and policy, as RabbitMQ resolves them; or the default."""
    limits = (queue.arguments.get("x-delivery-limit"), state.effective_policy.get("delivery-limit"))
    known = [int(value) for value in limits if isinstance(value, int)]
    if not known:
        return DEFAULT_DELIVERY_LIMIT if server.version >= (4,) else None
    is_lifted = min(known) < 0 and server.version >= (4,)  # by one of them: then the other one holds
    return max(known) if is_lifted else min(known)
