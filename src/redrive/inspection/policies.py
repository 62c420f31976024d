"""The policy of a queue, computed from the policies themselves.

RabbitMQ 3.x obeys a policy on a quorum queue and does not report it in its list of queues (measured on 3.10: neither
`policy` nor `effective_policy_definition` is there). It applies the policy of the highest priority whose pattern
matches, and an operator policy in addition; of a limit that both set, the lower one counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, TypeAlias

_Row: TypeAlias = "dict[str, Any]"


def is_silent(queue: _Row) -> bool:
    """Return whether this row of the management API leaves open which policy the queue has."""
    return queue.get("arguments", {}).get("x-queue-type") == "quorum" and "effective_policy_definition" not in queue


def with_policies(queue: _Row, policies: Iterable[_Row], operator_policies: Iterable[_Row]) -> _Row:
    """Return the row as a newer version reports it."""
    own, operator = _effective_policy(queue["name"], policies), _effective_policy(queue["name"], operator_policies)
    definition = dict(own["definition"]) if own is not None else {}
    for key, value in (operator["definition"] if operator is not None else {}).items():
        theirs = definition.get(key)
        both = isinstance(theirs, int) and isinstance(value, int)
        definition[key] = min(theirs, value) if both else value
    return queue | {"policy": own["name"] if own is not None else None, "effective_policy_definition": definition}


def _effective_policy(queue: str, policies: Iterable[_Row]) -> _Row | None:
    fitting = [each for each in policies if each["apply-to"] != "exchanges" and _matches(each["pattern"], queue)]
    return max(fitting, key=lambda policy: policy["priority"], default=None)


def _matches(pattern: str, queue: str) -> bool:
    """RabbitMQ's patterns are PCRE. One that Python cannot parse is treated as matching, the careful assumption."""
    try:
        return re.search(pattern, queue) is not None
    except re.error:
        return True
