"""Headers larger than the frames that a client has agreed on: it gets them all the same, and nobody else is hurt.

Who published them had larger frames, or they have grown since by the story of their deaths.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest

from interop.raw import OPEN, START_OK, tune_ok
from redrive.broker.broker import Broker
from redrive.broker.channel import Channel
from redrive.broker.server import BrokerServer
from redrive.broker.vhost import VirtualHost
from redrive.client import Connection, Properties
from redrive.testing.clock import ManualClock
from redrive.wire.frames import PROTOCOL_HEADER, method_frame
from redrive.wire.method import Method
from redrive.wire.methods.basic import BasicConsume, BasicGet
from redrive.wire.methods.channel import ChannelOpen

LARGE = Properties(headers={"story": "x" * 10_000})
TTL = timedelta(seconds=1)


class SmallClient:
    """Channel 1 of a connection with the smallest frames there are."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def ask(self, method: Method, answer: bytes) -> None:
        """Say something, and hear everything up to the end of the answer."""
        self.writer.write(method_frame(1, method))
        await self.hear(answer)

    async def hear(self, wanted: bytes) -> None:
        async with asyncio.timeout(20):
            await self.reader.readuntil(wanted)


@asynccontextmanager
async def small_client(server: BrokerServer) -> AsyncIterator[SmallClient]:
    reader, writer = await asyncio.open_connection(server.host, server.port)
    for said in (PROTOCOL_HEADER, START_OK, tune_ok(frame_max=8192) + OPEN, method_frame(1, ChannelOpen())):
        writer.write(said)
        await reader.read(65536)
    try:
        yield SmallClient(reader, writer)
    finally:
        writer.transport.abort()


@pytest.mark.parametrize("no_ack", [True, False])
async def test_a_consumer_gets_them_and_the_publisher_its_confirm(no_ack: bool) -> None:
    async with BrokerServer(Broker()) as server, Connection(server.url) as connection, small_client(server) as client:
        await connection.declare_queue("orders")
        await client.ask(BasicConsume(queue="orders", consumer_tag="small", no_ack=no_ack), b"small\xce")

        await connection.publish("", "orders", b"large", LARGE)

        await client.hear(b"large\xce")


async def test_who_gets_one_message_gets_them() -> None:
    async with BrokerServer(Broker()) as server, Connection(server.url) as connection, small_client(server) as client:
        await connection.declare_queue("orders")
        await connection.publish("", "orders", b"large", LARGE)

        await client.ask(BasicGet(queue="orders"), b"large\xce")


async def test_a_connection_that_ends_gives_them_to_who_has_small_frames() -> None:
    async with BrokerServer(Broker()) as server, Connection(server.url) as connection, small_client(server) as client:
        await connection.declare_queue("orders")
        await connection.publish("", "orders", b"large", LARGE)
        async with Connection(server.url) as leaving:
            await leaving.declare_queue("mine", exclusive=True)
            assert await leaving.get("orders") is not None
            await client.ask(BasicConsume(queue="orders", consumer_tag="small"), b"small\xce")

        await client.hear(b"large\xce")
        assert "mine" not in server.broker.vhosts["/"].queues


# What goes wrong for one is no harm to others ---------------------------------------------------------------


async def test_the_other_channels_and_queues_of_a_session_end_though_one_channel_fails_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    close = Channel.close

    def fail_once(_: Channel) -> None:
        monkeypatch.setattr(Channel, "close", close)
        raise RuntimeError("a fault of the broker's own")

    async with BrokerServer(Broker()) as server, Connection(server.url) as connection:
        await connection.declare_queue("orders")
        await connection.publish("", "orders", b"")
        others = set(server.broker.sessions)
        async with small_client(server) as client:
            [session] = server.broker.sessions - others
            client.writer.write(method_frame(2, ChannelOpen()))
            await client.hear(b"\xce")
            client.writer.write(method_frame(2, BasicGet(queue="orders")))
            await client.hear(b"orders")
            monkeypatch.setattr(Channel, "close", fail_once)
        await session.ended

        assert session not in server.broker.sessions
        assert (await connection.queue_info("orders")).messages == 1


async def test_a_queue_goes_on_to_expire_after_a_dead_letter_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    async with BrokerServer(Broker(clock=clock)) as server, Connection(server.url) as connection:
        await connection.declare_queue("orders", arguments={"x-message-ttl": TTL // timedelta(milliseconds=1)})
        await connection.publish("", "orders", b"fails")
        clock.advance(TTL / 2)
        await connection.publish("", "orders", b"expires")
        with monkeypatch.context() as patch:
            patch.setattr(VirtualHost, "dead_letter", lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                clock.advance(TTL / 2)

        clock.advance(TTL / 2)

        assert (await connection.queue_info("orders")).messages == 0
