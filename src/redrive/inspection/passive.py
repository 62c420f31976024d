"""What a broker holds, asked over plain AMQP.

AMQP lists nothing. A client can ask whether a name exists (a passive declaration), and whether a declaration matches
what exists: an equal one changes nothing, another is refused with the first argument that differs, and no other:

    ... inequivalent arg 'x-message-ttl' for queue 'q' in vhost '/': received '2000' but current is '1000'
    ... received none but current is the value '1000' of type 'signedint'
    ... received the value 'a' of type 'longstr' but current is none

Asked again with that argument corrected, the broker names the next one, so that in the end all are known. A declaration
is sent only for what was just seen to exist; if another client deletes a queue in that very moment, the declaration
creates it again, as it was wanted.

A user without the permission to configure a name may ask whether it exists, and no more: then the snapshot has it as
wanted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, TypeVar

from redrive.client.connection import Connection
from redrive.client.topology import QueueInfo
from redrive.errors import AccessRefused, NotFound, PreconditionFailed, ResourceLocked
from redrive.topology.definitions import Definitions, ExchangeDefinition, QueueDefinition
from redrive.topology.snapshot import BrokerSnapshot, QueueState, Server
from redrive.wire.methods.exchange import ExchangeDeclare, ExchangeDeclareOk
from redrive.wire.methods.queue import QueueDeclare, QueueDeclareOk

_MOST_QUESTIONS = 32

D = TypeVar("D", ExchangeDefinition, QueueDefinition)

_SENTENCE = re.compile(
    r"inequivalent arg '(?P<name>[^']+)' for (?:queue|exchange) '.*' in vhost '.*': "
    r"received .* but current is (?P<current>none|.*'.*)$",
    re.DOTALL,
)
_VALUE = re.compile(r"(?:the value )?'(?P<value>.*?)'(?: of type '(?P<type>\w+)')?$", re.DOTALL)
_FIELDS = {"type", "durable", "auto_delete", "internal"}
_WHOLE_NUMBERS = {"signedint", "unsignedint", "long", "short", "byte", "unsignedbyte", "unsignedshort", "timestamp"}


def server_of(connection: Connection) -> Server:
    """Return the server as it introduced itself when the connection was opened."""
    embedded = "redrive_version" in connection.server_properties  # whatever product it reports
    return Server(connection.server_version, delayed_exchanges=embedded, embedded=embedded)


async def probe(connection: Connection, wanted: Definitions, server: Server) -> BrokerSnapshot:
    """Return what the broker holds of what is wanted. Bindings cannot be seen."""
    exchanges = [
        await _existing_definition(connection, exchange)
        for exchange in wanted.exchanges
        if await connection.exchange_exists(exchange.name)
    ]
    queues: list[QueueDefinition] = []
    states: dict[str, QueueState] = {}
    for queue in wanted.queues:
        if info := await _queue_info(connection, queue.name):
            queues.append(await _existing_definition(connection, queue))
            states[queue.name] = QueueState(messages=info.messages, consumers=info.consumers)
    return BrokerSnapshot(server, Definitions.of(exchanges, queues), complete=False, queues=states)


async def with_exact_counts(connection: Connection, snapshot: BrokerSnapshot, queues: Iterable[str]) -> BrokerSnapshot:
    """Return the snapshot with the figures of these queues as of now: those of the management API are seconds old."""
    counts = {}
    for name in queues:
        if snapshot.definitions.queue(name) is not None and (info := await _queue_info(connection, name)):
            counts[name] = info.messages, info.consumers
    return snapshot.with_counts(counts)


async def _queue_info(connection: Connection, name: str) -> QueueInfo | None:
    try:
        return await connection.queue_info(name)
    except NotFound:
        return None
    except ResourceLocked:  # an exclusive queue of another connection: it exists, and no declaration matches it
        return QueueInfo(name, 0, 0)


async def _existing_definition(connection: Connection, definition: D) -> D:
    """Return the definition as the broker has it, as far as it differs from the one wanted."""
    for _ in range(_MOST_QUESTIONS):
        try:
            await _declare(connection, definition)
        except (PreconditionFailed, AccessRefused) as error:
            right = correct(definition, error.text)
            if right is None:
                break
            definition = right
        except ResourceLocked:
            return replace(definition, arguments={**definition.arguments, "exclusive": True})
        else:
            break
    return definition


async def _declare(connection: Connection, wanted: ExchangeDefinition | QueueDefinition) -> None:
    flags: dict[str, Any] = {"durable": wanted.durable, "auto_delete": wanted.auto_delete}
    arguments = dict(wanted.arguments)
    if isinstance(wanted, QueueDefinition):
        await connection.ask(QueueDeclare(queue=wanted.name, **flags, arguments=arguments), QueueDeclareOk)
    else:
        flags |= {"type": wanted.type, "internal": wanted.internal}
        await connection.ask(ExchangeDeclare(exchange=wanted.name, **flags, arguments=arguments), ExchangeDeclareOk)


def correct(asked: D, refusal: str) -> D | None:
    """Return the definition with the one thing corrected that the refusal names; None if it names none."""
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
    """Read a value as the broker writes it. Where it writes no type, it is that of the value asked with."""
    found = _VALUE.match(current)
    if found is None:
        return current
    value, kind = found["value"], found["type"]
    if kind == "bool" or (kind is None and isinstance(asked, bool)):
        return value == "true"
    if kind in _WHOLE_NUMBERS or (kind is None and isinstance(asked, int)):
        return int(value) if value.lstrip("-").isdigit() else value
    return value
