"""Sentences of evidence and of fixes. An argument of a queue cannot be changed; a policy can."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from shlex import quote
from typing import Any

from redrive.topology.definitions import DEFAULT_EXCHANGE, QueueDefinition
from redrive.topology.doctor.context import RuleContext

UNKNOWN_QUEUE = "<NAME OF THE QUEUE>"  # never quoted in JSON, so that `rabbitmqctl` refuses a fix with it


def show(context: RuleContext, queue: QueueDefinition, argument: str) -> str:
    """Return an argument and its origin: "x-message-ttl 5000" or "message-ttl 5000 by policy short"."""
    value = queue.arguments[argument]
    if _is_argument(context, queue, argument):
        return f"{argument} {value!r}"
    return f"{argument.removeprefix('x-')} {value!r} by {_policy(context, queue)}"


def with_arguments(context: RuleContext, queue: QueueDefinition, wanted: Mapping[str, Any]) -> str:
    """Return how to give a queue other arguments: by a policy, unless its own arguments prevent it."""
    if any(argument in context.declared_arguments(queue.name) for argument in wanted):
        said = (f"{argument}: {value if value != '' else repr('')}" for argument, value in wanted.items())
        return recreate(queue, f"with {' and '.join(said)}")
    return _with_policy(context, queue, {argument.removeprefix("x-"): value for argument, value in wanted.items()})


def without(context: RuleContext, queue: QueueDefinition, argument: str) -> str:
    if _is_argument(context, queue, argument):
        return recreate(queue, f"without {argument}")
    return f"take {argument.removeprefix('x-')} out of {_policy(context, queue)}"


def with_dead_letters_to(context: RuleContext, queue: QueueDefinition, target: str) -> str:
    """Return how to have what dies in a queue sent to another one."""
    route = {"x-dead-letter-exchange": DEFAULT_EXCHANGE, "x-dead-letter-routing-key": target}
    return with_arguments(context, queue, route)


def with_dlq(context: RuleContext, queue: QueueDefinition) -> str:
    """Return how to keep what dies in a queue: in the dead-letter queue of the topology, or in a new one."""
    own = context.own_dead_letter_queues(queue.name)
    declare = "" if own else f"declare queue {queue.name}.dlq; "
    return declare + with_dead_letters_to(context, queue, own[0] if own else f"{queue.name}.dlq")


def without_delivery_limit(context: RuleContext, queue: QueueDefinition) -> str:
    if context.is_4:
        return with_arguments(context, queue, {"x-delivery-limit": -1})
    return without(context, queue, "x-delivery-limit")


def recreate(queue: QueueDefinition, how: str) -> str:
    return f"make {queue.name} again {how} (`redrive topology migrate` carries its messages over)"


def _with_policy(context: RuleContext, queue: QueueDefinition, definition: Mapping[str, Any]) -> str:
    """Only one policy applies to a queue, so that one which is there must take the keys in."""
    said = json.dumps(dict(definition)).replace(json.dumps(UNKNOWN_QUEUE), UNKNOWN_QUEUE)
    if context.policy_name(queue.name) is not None:
        return f"add {said} to {_policy(context, queue)}"
    where = "" if context.vhost == "/" else f"-p {quote(context.vhost)} "
    pattern = quote(f"^{re.escape(queue.name)}$")
    return f"rabbitmqctl set_policy {where}--apply-to queues {quote(queue.name)} {pattern} {quote(said)}"


def _is_argument(context: RuleContext, queue: QueueDefinition, argument: str) -> bool:
    declared = context.declared_arguments(queue.name)
    return argument in declared and declared[argument] == queue.arguments[argument]


def _policy(context: RuleContext, queue: QueueDefinition) -> str:
    name = context.policy_name(queue.name)
    return f"policy {name}" if name is not None else "an operator policy"
