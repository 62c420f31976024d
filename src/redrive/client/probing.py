"""What a broker holds, asked over plain AMQP.

AMQP lists nothing. It can be asked whether a name exists (a passive declaration), and whether a declaration fits what
exists: an equal one changes nothing, another is refused with the first argument that differs. Asked again with that
argument put right, it tells the next one, so that in the end all are known. A declaration is sent only for what was
just seen to exist; if somebody deletes a queue in that very moment, looking makes it again, as it was wanted.

Whoever may not configure a name may ask whether it exists, and no more: then it is taken to be as wanted.
"""

from __future__ import annotations

from dataclasses import replace

from redrive.client.connection import Connection, QueueInfo
from redrive.errors import AccessRefused, ChannelClosed, NotFound, PreconditionFailed, ResourceLocked
from redrive.topology.definitions import Definitions, ExchangeDefinition, QueueDefinition
from redrive.topology.inequivalence import corrected
from redrive.topology.server import Server
from redrive.topology.survey import QueueState, Survey
from redrive.wire.methods.exchange import ExchangeDeclare, ExchangeDeclareOk
from redrive.wire.methods.queue import QueueDeclare, QueueDeclareOk

_MOST_QUESTIONS = 32


def server_of(connection: Connection, *, delayed_exchanges: bool = False) -> Server:
    embedded = "redrive_version" in connection.server_properties  # whatever product it reports
    return Server(connection.server_version, delayed_exchanges or embedded, embedded)


async def probe(connection: Connection, wanted: Definitions, server: Server) -> Survey:
    """What is there of what is wanted. Bindings cannot be seen."""
    exchanges = [found for exchange in wanted.exchanges if (found := await _probe_exchange(connection, exchange))]
    queues: dict[str, QueueDefinition] = {}
    states: dict[str, QueueState] = {}
    for queue in wanted.queues:
        if info := await _queue_info(connection, queue.name):
            queues[queue.name] = await _probe_queue(connection, queue)
            states[queue.name] = QueueState(messages=info.messages, consumers=info.consumers)
    return Survey(server, Definitions.of(exchanges, queues.values()), complete=False, queues=states)


async def _queue_info(connection: Connection, name: str) -> QueueInfo | None:
    try:
        return await connection.queue_info(name)
    except NotFound:
        return None
    except ResourceLocked:  # somebody's exclusive queue: it is there, and no declaration fits it
        return QueueInfo(name, 0, 0)


async def _probe_queue(connection: Connection, queue: QueueDefinition) -> QueueDefinition:
    """The queue as it is, as far as it differs from the one wanted."""
    for _ in range(_MOST_QUESTIONS):
        declare = QueueDeclare(
            queue=queue.name, durable=queue.durable, auto_delete=queue.auto_delete, arguments=dict(queue.arguments)
        )
        try:
            await connection.ask(declare, QueueDeclareOk)
        except (PreconditionFailed, AccessRefused) as error:
            right = corrected(queue, error.text)
            if right is None:
                return queue
            queue = right
        except ResourceLocked:
            return replace(queue, arguments={**queue.arguments, "exclusive": True})
        else:
            break
    return queue


async def _probe_exchange(connection: Connection, exchange: ExchangeDefinition) -> ExchangeDefinition | None:
    if not await connection.exchange_exists(exchange.name):
        return None
    for _ in range(_MOST_QUESTIONS):
        declare = ExchangeDeclare(
            exchange=exchange.name,
            type=exchange.type,
            durable=exchange.durable,
            auto_delete=exchange.auto_delete,
            internal=exchange.internal,
            arguments=dict(exchange.arguments),
        )
        try:
            await connection.ask(declare, ExchangeDeclareOk)
        except ChannelClosed as error:
            right = corrected(exchange, error.text)
            if right is None:
                return exchange
            exchange = right
        else:
            break
    return exchange
