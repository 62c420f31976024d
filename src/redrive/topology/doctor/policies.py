"""What a queue works with: its arguments, and the policy that applies to it.

RabbitMQ resolves each key by itself. Of two numbers the smaller one holds; of anything else, dead-letter exchange and
routing key among them, the argument. A delivery limit below zero is "none", and any limit is smaller than that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from redrive.topology.definitions import QueueDefinition

_SMALLER = {"message-ttl", "expires", "max-length", "max-length-bytes", "consumer-timeout"}
_ARGUMENT = {
    "dead-letter-exchange",
    "dead-letter-routing-key",
    "dead-letter-strategy",
    "overflow",
    "delayed-retry-type",
    "delayed-retry-min",
    "delayed-retry-max",
}


def effective(queue: QueueDefinition, policy: Mapping[str, Any]) -> QueueDefinition:
    """The queue as if everything had been said in its arguments."""
    arguments = dict(queue.arguments)
    for key, value in policy.items():
        argument = f"x-{key}"
        if key in _SMALLER or key in _ARGUMENT or key == "delivery-limit":
            arguments[argument] = _resolved(key, arguments[argument], value) if argument in arguments else value
    return replace(queue, arguments=arguments)


def _resolved(key: str, argument: Any, policy: Any) -> Any:
    if key == "delivery-limit" and min(argument, policy) < 0:
        return max(argument, policy)
    if key == "delivery-limit" or key in _SMALLER:
        return min(argument, policy)
    return argument
