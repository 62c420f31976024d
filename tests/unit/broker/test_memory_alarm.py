"""The memory alarm, as a publisher and a consumer see it."""

import asyncio
from datetime import timedelta

import pytest

from redrive.broker.broker import Broker
from redrive.broker.server import BrokerServer
from redrive.client import Connection, Properties
from redrive.errors import NotPublished

LIMIT = 20_000


async def until_blocked(connection: Connection) -> None:
    """Publish until the broker says that it is full."""
    async with asyncio.timeout(20):
        while connection.blocked is None:
            await connection.publish("", "orders", bytes(1000))


async def test_publishers_are_told_and_wait_while_the_queues_hold_too_much() -> None:
    patience = timedelta(milliseconds=20)
    async with BrokerServer(Broker(memory_limit=LIMIT)) as server, Connection(server.url, patience=patience) as full:
        await full.declare_queue("orders")
        await until_blocked(full)

        assert full.blocked == "low on memory"
        with pytest.raises(NotPublished, match="low on memory"):
            await full.publish("", "orders", b"one more")


async def test_consumers_go_on_during_an_alarm_and_end_it() -> None:
    async with (
        BrokerServer(Broker(memory_limit=LIMIT)) as server,
        Connection(server.url) as publishing,
        Connection(server.url) as consuming,
    ):
        await publishing.declare_queue("orders")
        await until_blocked(publishing)
        waiting = asyncio.create_task(publishing.publish("", "orders", b"when there is room"))
        async with await consuming.consume("orders") as consumer:
            async for delivery in consumer:
                delivery.ack()
                if delivery.body == b"when there is room":
                    break
        await waiting

        assert publishing.blocked is None


async def test_headers_count_like_bodies() -> None:
    async with BrokerServer(Broker()) as server, Connection(server.url) as connection:
        await connection.declare_queue("orders")

        await connection.publish("", "orders", b"", Properties(headers={"long": "x" * 10_000}))
        assert server.broker.memory.held > 10_000

        await connection.purge_queue("orders")
        assert server.broker.memory.held == 0
