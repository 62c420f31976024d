"""Brokers as they might be seen, in a line or two."""

from collections.abc import Mapping
from typing import Any

from redrive.topology import BindingDefinition, Definitions, ExchangeDefinition, QueueDefinition, Server, Topology
from redrive.topology.doctor import Finding, examine
from redrive.topology.snapshot import BrokerSnapshot, QueueState

TO_DLQ = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q.dlq"}
TO_RETRY = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q.retry"}
SURE = {"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}


def classic(name: str, arguments: Mapping[str, Any] | None = None, **options: Any) -> QueueDefinition:
    return QueueDefinition(name, arguments={"x-queue-type": "classic", **(arguments or {})}, **options)


def quorum(name: str, arguments: Mapping[str, Any] | None = None, **options: Any) -> QueueDefinition:
    return QueueDefinition(name, arguments={"x-queue-type": "quorum", **(arguments or {})}, **options)


def retry(main: str = "q", name: str = "q.retry", ttl: int = 1000, kind: str = "classic") -> QueueDefinition:
    back = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": main}
    return QueueDefinition(name, arguments={"x-queue-type": kind, "x-message-ttl": ttl, **back})


def seen(
    *definitions: QueueDefinition | ExchangeDefinition | BindingDefinition,
    version: str = "4.3",
    complete: bool = True,
    consumers: Mapping[str, int] | None = None,
    policies: Mapping[str, Mapping[str, Any]] | None = None,
    delayed: bool = False,
    embedded: bool = False,
    consumer_timeout: int | None = None,
) -> BrokerSnapshot:
    """`policies`: what the policy "p" says, by queue. Nobody consumes unless `consumers` say so."""
    holds = Definitions.of(
        (one for one in definitions if isinstance(one, ExchangeDefinition)),
        (one for one in definitions if isinstance(one, QueueDefinition)),
        (one for one in definitions if isinstance(one, BindingDefinition)),
    )
    policies, consumers = policies or {}, consumers or {}
    states = {
        queue.name: QueueState(
            messages=0,
            consumers=consumers.get(queue.name, 0),
            policy="p" if queue.name in policies else None,
            effective_policy=policies.get(queue.name, {}),
        )
        for queue in holds.queues
    }
    server = Server(Server.of(version).version, delayed, embedded)
    return BrokerSnapshot(server, holds, complete, states, consumer_timeout)


def only(snapshot: BrokerSnapshot, rule: str, wanted: Topology | None = None, **options: Any) -> Finding:
    """The one finding of that kind."""
    (finding,) = (finding for finding in examine(snapshot, wanted, **options) if finding.id == rule)
    return finding


def subjects(snapshot: BrokerSnapshot, rule: str, wanted: Topology | None = None, **options: Any) -> list[str]:
    """Where a rule applies."""
    return [finding.subject for finding in examine(snapshot, wanted, **options) if finding.id == rule]
