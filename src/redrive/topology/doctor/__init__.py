"""The doctor: what is wrong with a broker, why that matters, and what fixes it.

It inspects a snapshot and changes nothing. Each kind of finding is a rule, a function that yields the places where it
applies.

| module              | what it has                                                              |
|---------------------|--------------------------------------------------------------------------|
| `rules`             | every rule, in order, with its consequences and its remedy               |
| `context`           | what a rule may look at                                                  |
| `phrases`           | sentences of evidence and fixes                                          |
| `retention_rules`   | dead-letter queues in which messages do not stay                         |
| `dead_letter_rules` | dead letters that arrive nowhere, or not reliably                        |
| `cycle_rules`       | dead letters that come back to the queue in which they died              |
| `ttl_rules`         | queues with a TTL                                                        |
| `version_rules`     | what depends on the version, the plugins and the timeouts of the broker  |

A rule that needs what could not be seen reports nothing, and `not-examined` says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from types import MappingProxyType

from redrive.topology.doctor.context import RuleContext
from redrive.topology.doctor.rules import RULES, Finding, Rule, Severity
from redrive.topology.model import Topology
from redrive.topology.snapshot import BrokerSnapshot

__all__ = ["RULES", "Finding", "Rule", "Severity", "examine"]

_NO_LIMITS: Mapping[str, timedelta] = MappingProxyType({})


def examine(
    snapshot: BrokerSnapshot,
    wanted: Topology | None = None,
    *,
    handler_limits: Mapping[str, timedelta] = _NO_LIMITS,
    consumer_timeout: timedelta = timedelta(minutes=30),
    vhost: str = "/",
) -> tuple[Finding, ...]:
    """Return everything that is wrong, worst first.

    `handler_limits`: how long a handler may take, by queue. `consumer_timeout`: the broker's, where the snapshot has
    none. `vhost` is for the commands in fixes. Raises `TopologyError` if `wanted` is impossible on this server.
    """
    context = RuleContext(snapshot, wanted, handler_limits, consumer_timeout, vhost)
    found = [finding for rule in RULES if rule.applies(context) for finding in rule.findings(context)]
    return tuple(sorted(found, key=lambda finding: finding.severity.rank))
