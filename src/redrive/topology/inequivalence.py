"""What a broker says when a declaration does not fit what exists, read back into a value.

    ... inequivalent arg 'x-message-ttl' for queue 'q' in vhost '/': received '2000' but current is '1000'
    ... received none but current is the value '1000' of type 'signedint'
    ... received the value 'a' of type 'longstr' but current is none

It names the first argument that differs, and no other.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, TypeVar

from redrive.topology.definitions import ExchangeDefinition, QueueDefinition

D = TypeVar("D", ExchangeDefinition, QueueDefinition)

_SENTENCE = re.compile(
    r"inequivalent arg '(?P<name>[^']+)' for (?:queue|exchange) '.*' in vhost '.*': "
    r"received .* but current is (?P<current>none|.*'.*)$",
    re.DOTALL,
)
_VALUE = re.compile(r"(?:the value )?'(?P<value>.*?)'(?: of type '(?P<type>\w+)')?$", re.DOTALL)
_FIELDS = {"type", "durable", "auto_delete", "internal"}
_WHOLE_NUMBERS = {"signedint", "unsignedint", "long", "short", "byte", "unsignedbyte", "unsignedshort", "timestamp"}


def corrected(asked: D, refusal: str) -> D | None:
    """The definition that was asked for, with the one thing put right that the broker named; None if it named none."""
    sentence = _SENTENCE.search(refusal)
    if sentence is None:
        return None
    name, current = sentence["name"], sentence["current"]
    changes: dict[str, Any]
    if name in _FIELDS and hasattr(asked, name):
        changes = {name: _read(current, getattr(asked, name))}
    elif current == "none":
        changes = {"arguments": {key: asked.arguments[key] for key in asked.arguments if key != name}}
    else:
        changes = {"arguments": {**asked.arguments, name: _read(current, asked.arguments.get(name))}}
    right = replace(asked, **changes)
    return None if right == asked else right


def _read(current: str, asked: object) -> object:
    """A value as the broker writes it. Where it does not say the type, it is the one that was asked with."""
    found = _VALUE.match(current)
    if found is None:
        return current
    value, kind = found["value"], found["type"]
    if kind == "bool" or (kind is None and isinstance(asked, bool)):
        return value == "true"
    if kind in _WHOLE_NUMBERS or (kind is None and isinstance(asked, int)):
        return int(value) if value.lstrip("-").isdigit() else value
    return value
