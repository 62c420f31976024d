"""What a broker holds: connect to one, whichever it is, and inspect it.

| module       | what                                                                                    |
|--------------|-----------------------------------------------------------------------------------------|
| `management` | RabbitMQ's management API lists everything in a virtual host                            |
| `embedded`   | the embedded broker lists everything over AMQP                                          |
| `passive`    | any other broker answers, over plain AMQP, questions about the names that are asked for |
| `policies`   | the policy of a queue, where an old RabbitMQ does not report it                         |
| `stranded`   | messages that are left in the embedded broker of an application that uses RabbitMQ now  |

All three give a `BrokerSnapshot` (`redrive.topology.snapshot`), a value: plans and the doctor need nothing else.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from redrive import environment
from redrive.broker.shared import SharedBroker
from redrive.client import Connection
from redrive.inspection.embedded import read_rows, read_status
from redrive.inspection.management import Management
from redrive.inspection.passive import probe, server_of, with_exact_counts
from redrive.topology import Topology, expand
from redrive.topology.expansion import QueueLayout
from redrive.topology.snapshot import BrokerSnapshot

_FIRST_PUBLISHED = "head_message_timestamp"


@asynccontextmanager
async def connect(broker: str | None, *, data: Path | None = None, name: str = "redrive") -> AsyncIterator[Connection]:
    """Connect to the broker at that URL; without one, to the embedded broker of the data folder, which this process
    hosts if no other does.
    """
    if broker is not None:
        async with Connection(broker, name=name) as connection:
            yield connection
        return
    async with SharedBroker(data or environment.data()) as shared, Connection(shared.url, name=name) as connection:
        yield connection


async def inspect_broker(connection: Connection, topology: Topology, management: str | None = None) -> BrokerSnapshot:
    """Return what the broker holds: everything if it is embedded or the URL of its management API is given, else
    what it holds of the topology. The figures of the topology's queues are of now, however they were found.

    RabbitMQ reports only over its management API whether it has delayed exchanges. Without that, it has them if one
    that the topology asks for exists already.
    """
    if management is not None:
        seen = await Management(management).snapshot(connection.url.virtual_host)
        parts = [QueueLayout(topology, queue, seen.server) for queue in topology.queues]
        own = [name for part in parts for name in (part.queue.name, *part.waiting_queues, *part.dead_letter_queues)]
        return await with_exact_counts(connection, seen, own)
    server = server_of(connection)
    if server.embedded:
        return await read_status(connection)
    exchanges = expand(topology, replace(server, delayed_exchanges=True)).exchanges
    delayed = [exchange.name for exchange in exchanges if exchange.type == "x-delayed-message"]
    existing = [name for name in delayed if await connection.exchange_exists(name)]
    server = replace(server, delayed_exchanges=bool(existing))
    return await probe(connection, expand(topology, server), server)


async def publishing_times(connection: Connection, management: str | None = None) -> dict[str, int]:
    """Return when the first message of each queue was published, in seconds since 1970, where the broker reports it.

    No message is taken for that: one that was taken and returned is redelivered. The embedded broker reports it, and
    RabbitMQ over its management API for classic queues. A message that was published without a timestamp has no time.
    """
    if management is not None:
        rows = await Management(management).queues(connection.url.virtual_host, "name", _FIRST_PUBLISHED)
    elif server_of(connection).embedded:
        rows = (await read_rows(connection))["queues"]
    else:
        return {}
    return {row["name"]: time for row in rows if isinstance(time := row.get(_FIRST_PUBLISHED), int)}
