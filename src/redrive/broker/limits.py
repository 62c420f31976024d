"""What the embedded broker deliberately does not do, in one place. `docs/embedded-broker.md` shows it as a table."""

from __future__ import annotations

from typing import NamedTuple


class Limit(NamedTuple):
    what: str
    instead: str


LIMITS = (
    Limit("clusters, mirrors, replication", "one process, one machine; point the same program at RabbitMQ"),
    Limit("streams (`x-queue-type: stream`)", "refused with 406"),
    Limit("policies", "arguments at declaration"),
    Limit("the management API and its statistics", "passive declares count exactly"),
    Limit("TLS on the listener", "loopback, or a proxy in front"),
    Limit("permissions", "one user list; whoever may connect may do everything"),
    Limit("`EXTERNAL` and other SASL mechanisms", "PLAIN and AMQPLAIN"),
    Limit("`consumer_timeout`", "a delivery may stay unacknowledged for ever"),
    Limit("native delayed retry of quorum queues (`x-delayed-retry-*`)", "accepted and without effect"),
    Limit("quorum queues as a replicated log", "a durable queue with delivery counts and limits, on one disk"),
    Limit("`at-least-once` dead-lettering as an option", "every dead letter is moved in one transaction"),
    Limit("lazy queues (`x-queue-mode`)", "accepted; all messages are held in memory, durable ones on disk as well"),
    Limit("`connection.update-secret`", "accepted and without effect"),
    Limit("shovel, federation, other plugins but the delayed exchange", "clients"),
    Limit("`expiration` rewritten as a number (4.x)", "delivered as the publisher wrote it"),
)
