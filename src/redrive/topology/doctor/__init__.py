"""The doctor: what is wrong with a broker, why that matters, and what mends it.

It looks at a snapshot and touches nothing. Each kind of finding is a rule, a function that yields the places where it
applies; `table` lists them all.

| module         | what                                                                     |
|----------------|--------------------------------------------------------------------------|
| `table`        | every rule, in order, with what it leads to and how to mend it           |
| `finding`      | what a rule is, and what it says                                         |
| `case`         | what a rule may look at                                                  |
| `policies`     | arguments and policies together                                          |
| `words`        | evidence and fixes in words                                              |
| `peeking`      | dead-letter queues in which messages do not stay                         |
| `dead_letters` | dead letters that arrive nowhere, or not surely                          |
| `loops`        | dead letters that come back to where they died                           |
| `waiting`      | queues with a TTL                                                        |
| `brokers`      | what depends on the version, the plugins and the patience of the broker  |

A rule that needs what could not be seen says nothing, and `not-examined` says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from types import MappingProxyType

from redrive.topology.declared import Topology
from redrive.topology.doctor.case import Case
from redrive.topology.doctor.finding import Finding, Rule, Severity
from redrive.topology.doctor.table import RULES
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
    """Everything that is wrong, worst first.

    `handler_limits`: how long a handler may take, by queue. `consumer_timeout`: the broker's, where the snapshot has
    none. `vhost` is for the commands in fixes. Raises `TopologyError` if `wanted` is impossible on this server.
    """
    case = Case(snapshot, wanted, handler_limits, consumer_timeout, vhost)
    found = [finding for rule in RULES if rule.applies(case) for finding in rule.findings(case)]
    return tuple(sorted(found, key=lambda finding: finding.severity.rank))
