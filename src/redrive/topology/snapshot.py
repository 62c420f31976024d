"""A broker as it was inspected: which server it is, what it held, and whether that is everything.

There are two ways to inspect a broker. The management API (and the embedded broker) lists everything. Plain AMQP only
answers questions about names: does this queue exist, and does this declaration match it? It lists nothing and knows no
bindings, so a snapshot made that way covers only what was asked about: `complete` is false.

What a version of RabbitMQ can do was measured, not read, on 3.10, 4.0 and 4.3.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from redrive.errors import ConfigurationError
from redrive.topology.definitions import Definitions, effective


@dataclass(frozen=True, slots=True)
class Server:
    """A broker's product and version, and what it can do."""

    version: tuple[int, ...] = (4, 3)
    delayed_exchanges: bool = False  # has it `x-delayed-message`?
    embedded: bool = False

    @classmethod
    def of(cls, version: str, *, delayed_exchanges: bool = False) -> Server:
        """Return the server with a version as people write it: "4.3", "3.10.8"."""
        if not re.fullmatch(r"\d+(\.\d+){0,3}", version, re.ASCII):
            raise ConfigurationError(f"{version!r} is no version of RabbitMQ: write it like '4.3' or '3.10.8'")
        return cls(tuple(int(number) for number in version.split(".")), delayed_exchanges)

    @property
    def unlimited_deliveries(self) -> int | None:
        """The `x-delivery-limit` that means "no limit": from 4.0 on the default is 20 and -1 lifts it; before, there
        is no default, and -1 drops a message at its first requeue.
        """
        return -1 if self.version >= (4,) else None

    @property
    def native_delayed_retry(self) -> bool:
        """Return whether its quorum queues can delay retries themselves (RabbitMQ 4.3)."""
        return self.version >= (4, 3)

    def dead_letters_keep_failures(self, *, quorum: bool) -> bool:
        """Return whether a message that was rejected leaves a retry queue with its delivery count.

        To a quorum queue, from 4.0 on; to a classic one, from 4.3 on. The embedded broker resets it for both, as 4.0.
        """
        return self.version >= ((4,) if quorum and not self.embedded else (4, 3))

    def __str__(self) -> str:
        rabbitmq = f"RabbitMQ {'.'.join(map(str, self.version)) or 'of unknown version'}"
        return f"the embedded broker (as {rabbitmq})" if self.embedded else rabbitmq


@dataclass(frozen=True, slots=True)
class QueueState:
    """The part of a queue that changes; None where it is not known."""

    messages: int | None = None  # ready to be delivered
    unacknowledged: int | None = None
    consumers: int | None = None
    policy: str | None = None
    effective_policy: Mapping[str, Any] = field(default_factory=dict)  # keys as in policies: "dead-letter-exchange"
    policy_unknown: bool = False  # there may be a policy that the broker does not report


@dataclass(frozen=True, slots=True)
class BrokerSnapshot:
    """What a virtual host held when it was inspected."""

    server: Server
    definitions: Definitions
    complete: bool  # is this everything in the virtual host, bindings too?
    queues: Mapping[str, QueueState] = field(default_factory=dict)
    consumer_timeout: int | None = None  # milliseconds, where the broker reports it

    def state(self, queue: str) -> QueueState:
        return self.queues.get(queue, QueueState())

    @property
    def effective(self) -> Definitions:
        """The definitions by which the broker works: each queue with the arguments that its policy gives it."""
        queues = (effective(queue, self.state(queue.name).effective_policy) for queue in self.definitions.queues)
        return replace(self.definitions, queues=tuple(queues))

    def with_counts(self, counts: Mapping[str, tuple[int, int]]) -> BrokerSnapshot:
        """Return the snapshot with these ready messages and consumers, by queue, instead of its own figures."""
        exact = {
            name: replace(self.state(name), messages=messages, consumers=consumers)
            for name, (messages, consumers) in counts.items()
        }
        return replace(self, queues={**self.queues, **exact})

    def sees_policy(self, queue: str) -> bool:
        return self.complete and not self.state(queue).policy_unknown

    def __repr__(self) -> str:
        how = "everything" if self.complete else "what was asked about"
        return f"<BrokerSnapshot of {self.server}: {how}, {self.definitions!r}>"
