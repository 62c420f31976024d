"""Exchanges, queues and what binds them, when they come and go and leave their names to others."""

from collections.abc import AsyncIterator

import pytest

from redrive.broker.broker import Broker
from redrive.broker.server import BrokerServer
from redrive.broker.vhost import VirtualHost
from redrive.client import Connection


@pytest.fixture
async def server() -> AsyncIterator[BrokerServer]:
    async with BrokerServer(Broker()) as server:
        yield server


@pytest.fixture
async def connection(server: BrokerServer) -> AsyncIterator[Connection]:
    async with Connection(server.url) as connection:
        yield connection


@pytest.fixture
def vhost(server: BrokerServer) -> VirtualHost:
    return server.broker.vhosts["/"]


async def test_an_exchange_takes_none_along_that_has_the_name_of_one_it_was_bound_to(
    connection: Connection, vhost: VirtualHost
) -> None:
    await connection.declare_exchange("old", "fanout")
    await connection.declare_exchange("source", "fanout", auto_delete=True)
    await connection.bind_exchange("old", "source")
    await connection.unbind_exchange("old", "source")
    assert "source" not in vhost.exchanges
    await connection.declare_exchange("source", "fanout")

    await connection.delete_exchange("old")

    assert "source" in vhost.exchanges


async def test_an_exchange_whose_last_binding_to_another_is_gone_is_no_source_of_it(
    connection: Connection, vhost: VirtualHost
) -> None:
    await connection.declare_exchange("target", "fanout")
    await connection.declare_exchange("source", "fanout")
    await connection.bind_exchange("target", "source")

    await connection.unbind_exchange("target", "source")

    assert not vhost.exchanges["target"].sources


async def test_an_exchange_that_is_still_bound_by_another_key_is_known_as_a_source(
    connection: Connection, vhost: VirtualHost
) -> None:
    await connection.declare_exchange("target", "fanout")
    await connection.declare_exchange("source", "direct", auto_delete=True)
    await connection.bind_exchange("target", "source", "a")
    await connection.bind_exchange("target", "source", "b")

    await connection.unbind_exchange("target", "source", "a")
    assert vhost.exchanges["target"].sources == {vhost.exchanges["source"]}

    await connection.delete_exchange("target")
    assert "source" not in vhost.exchanges
