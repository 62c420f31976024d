"""Reach a broker, whichever it is, and see what it holds."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from redrive import environment
from redrive.broker.shared import SharedBroker
from redrive.client import Connection
from redrive.client.inventory import read_inventory
from redrive.client.management import Management
from redrive.client.probing import probe, server_of
from redrive.topology import Definitions, Server, Topology, expand
from redrive.topology.survey import Survey


@asynccontextmanager
async def connect(broker: str | None, *, data: Path | None = None, name: str = "redrive") -> AsyncIterator[Connection]:
    """A connection to the broker at that URL; without one, to the embedded broker of the data folder, which this
    process hosts if nobody does.
    """
    if broker is not None:
        async with Connection(broker, name=name) as connection:
            yield connection
        return
    async with SharedBroker(data or environment.data()) as shared, Connection(shared.url, name=name) as connection:
        yield connection


async def recognise(connection: Connection, topology: Topology, management: str | None) -> Server:
    """Which server is it? Whether it has delayed exchanges, RabbitMQ tells only over its management API; without that,
    those that exist already say so.
    """
    if management is not None:
        return (await Management(management).survey(connection.url.virtual_host)).server
    server = server_of(connection)
    if server.delayed_exchanges:
        return server
    wanted = expand(topology, Server(server.version, delayed_exchanges=True)).exchanges
    delayed = [exchange.name for exchange in wanted if exchange.type == "x-delayed-message"]
    has_one = [name for name in delayed if await connection.exchange_exists(name)]
    return server_of(connection, delayed_exchanges=bool(has_one))


async def survey(connection: Connection, wanted: Definitions, server: Server, management: str | None) -> Survey:
    """What the broker holds: all of it if it is embedded or its management API is known, else what is wanted of it."""
    if management is not None:
        return await Management(management).survey(connection.url.virtual_host)
    if server.embedded:
        return await read_inventory(connection)
    return await probe(connection, wanted, server)
