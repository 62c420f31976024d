"""What was seen and what mends it, in words: an argument is for life, a policy can be changed."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from shlex import quote
from typing import Any

from redrive.topology.definitions import QueueDefinition
from redrive.topology.doctor.case import Case

UNKNOWN_QUEUE = "<NAME OF THE QUEUE>"  # never quoted in JSON, so that `rabbitmqctl` refuses a fix with it


def told(case: Case, queue: QueueDefinition, argument: str) -> str:
    """An argument and where it comes from: "x-message-ttl 5000" or "message-ttl 5000 by policy short"."""
    value = queue.arguments[argument]
    if _is_argument(case, queue, argument):
        return f"{argument} {value!r}"
    return f"{argument.removeprefix('x-')} {value!r} by {_policy(case, queue)}"


def with_arguments(case: Case, queue: QueueDefinition, wanted: Mapping[str, Any]) -> str:
    """How to have other arguments: by a policy, unless the queue's own stand in its way."""
    if any(argument in case.declared(queue.name) for argument in wanted):
        said = (f"{argument}: {value if value != '' else repr('')}" for argument, value in wanted.items())
        return remade(queue, f"with {' and '.join(said)}")
    return _with_policy(case, queue, {argument.removeprefix("x-"): value for argument, value in wanted.items()})


def without(case: Case, queue: QueueDefinition, argument: str) -> str:
    if _is_argument(case, queue, argument):
        return remade(queue, f"without {argument}")
    return f"take {argument.removeprefix('x-')} out of {_policy(case, queue)}"


def remade(queue: QueueDefinition, how: str) -> str:
    return f"make {queue.name} again {how} (`redrive topology migrate` carries its messages over)"


def _with_policy(case: Case, queue: QueueDefinition, definition: Mapping[str, Any]) -> str:
    """Only one policy applies to a queue, so that one which is there must take the keys in."""
    said = json.dumps(dict(definition)).replace(json.dumps(UNKNOWN_QUEUE), UNKNOWN_QUEUE)
    if case.policy_name(queue.name) is not None:
        return f"add {said} to {_policy(case, queue)}"
    where = "" if case.vhost == "/" else f"-p {quote(case.vhost)} "
    pattern = quote(f"^{re.escape(queue.name)}$")
    return f"rabbitmqctl set_policy {where}--apply-to queues {quote(queue.name)} {pattern} {quote(said)}"


def _is_argument(case: Case, queue: QueueDefinition, argument: str) -> bool:
    declared = case.declared(queue.name)
    return argument in declared and declared[argument] == queue.arguments[argument]


def _policy(case: Case, queue: QueueDefinition) -> str:
    name = case.policy_name(queue.name)
    return f"policy {name}" if name is not None else "an operator policy"
