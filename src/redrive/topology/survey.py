"""What a broker was seen to hold, and how surely.

There are two ways to look. The management API (and the embedded broker) tells everything. Plain AMQP answers only
questions: does this queue exist, and would this declaration fit it? It lists nothing and knows no bindings; a survey
made that way covers what was asked about, and says so in `complete`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from redrive.topology.definitions import Definitions
from redrive.topology.server import Server


@dataclass(frozen=True, slots=True)
class QueueState:
    """What changes while a queue lives; None where it could not be seen."""

    messages: int | None = None  # ready to be delivered
    unacknowledged: int | None = None
    consumers: int | None = None
    policy: str | None = None
    effective_policy: Mapping[str, Any] = field(default_factory=dict)  # keys as in policies: "dead-letter-exchange"
    policy_unknown: bool = False  # there may be one, and it is not told


@dataclass(frozen=True, slots=True)
class Survey:
    server: Server
    definitions: Definitions
    complete: bool  # is this everything in the virtual host, bindings too?
    queues: Mapping[str, QueueState] = field(default_factory=dict)
    consumer_timeout: int | None = None  # milliseconds, where the broker told

    def state(self, queue: str) -> QueueState:
        return self.queues.get(queue, QueueState())

    def __repr__(self) -> str:
        how = "everything" if self.complete else "what was asked about"
        return f"<Survey of {self.server}: {how}, {self.definitions!r}>"
