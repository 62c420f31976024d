"""Clients that are not read from, and answers that wait for the disk: who is alive, and how much is held back."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Self

import pytest

from interop.raw import OPEN, START_OK, tune_ok
from redrive.broker import session
from redrive.broker.broker import Broker
from redrive.broker.server import BrokerServer
from redrive.broker.storage.memory import MemoryJournal
from redrive.client import Connection
from redrive.wire.frames import HEARTBEAT_FRAME, PROTOCOL_HEADER, content_frames, method_frame
from redrive.wire.method import Method
from redrive.wire.methods.basic import BasicConsume, BasicGet, BasicPublish
from redrive.wire.methods.channel import ChannelOpen
from redrive.wire.methods.queue import QueueDeclare
from unit.client.clock import Clock

LIMIT = 20_000  # bytes of memory
INTERVAL = 2  # seconds between heartbeats


@pytest.fixture
async def clock() -> Clock:
    return Clock(asyncio.get_running_loop())


class Client:
    """Bytes, said and heard when the test wants it: channel 1 of a connection with heartbeats."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    @asynccontextmanager
    async def of(cls, server: BrokerServer) -> AsyncIterator[Self]:
        reader, writer = await asyncio.open_connection(server.host, server.port, limit=1024)
        client = cls(reader, writer)
        for said in (PROTOCOL_HEADER, START_OK, tune_ok(heartbeat=INTERVAL) + OPEN, method_frame(1, ChannelOpen())):
            writer.write(said)
            await reader.read(65536)
        try:
            yield client
        finally:
            writer.transport.abort()

    def say(self, *methods: Method) -> None:
        self.writer.write(b"".join(method_frame(1, method) for method in methods))

    def publish(self, queue: str, body: bytes) -> None:
        publish = method_frame(1, BasicPublish(routing_key=queue))
        self.writer.write(b"".join([publish, *content_frames(1, b"\x00\x00", body, 131_072)]))

    def beat(self) -> None:
        self.writer.write(HEARTBEAT_FRAME)

    async def heard(self, wanted: bytes) -> bytes:
        """Everything up to something."""
        said = b""
        async with asyncio.timeout(20):
            while wanted not in said:
                said += await self.reader.read(65536)
        return said


async def pass_time(clock: Clock, *, intervals: int, meanwhile: Callable[[], object] = lambda: None) -> None:
    for _ in range(intervals * 4):
        meanwhile()
        await clock.advance(INTERVAL / 4)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - a broker gives no sign
            await asyncio.sleep(0)


# Publishers that an alarm has stopped -----------------------------------------------------------------------


@asynccontextmanager
async def stopped_by_an_alarm() -> AsyncIterator[tuple[BrokerServer, Client]]:
    async with BrokerServer(Broker(memory_limit=LIMIT)) as server, Client.of(server) as client:
        client.say(QueueDeclare(queue="orders"))
        await client.heard(b"orders")
        for _ in range(LIMIT // 1000 + 1):
            client.publish("orders", bytes(1000))
        await until(lambda: server.broker.alarm)
        await asyncio.sleep(0)
        yield server, client


async def test_who_waits_for_the_end_of_an_alarm_and_beats_is_alive(clock: Clock) -> None:
    async with stopped_by_an_alarm() as (server, client):
        await pass_time(clock, intervals=10, meanwhile=client.beat)

        assert len(server.broker.sessions) == 1


async def test_who_waits_for_the_end_of_an_alarm_hears_that_the_broker_lives(clock: Clock) -> None:
    async with stopped_by_an_alarm() as (_, client):
        await pass_time(clock, intervals=3, meanwhile=client.beat)

        assert await client.heard(HEARTBEAT_FRAME)


async def test_who_dies_during_an_alarm_is_found_out(clock: Clock) -> None:
    async with stopped_by_an_alarm() as (server, _):
        await pass_time(clock, intervals=6)

        assert not server.broker.sessions


async def test_what_is_said_during_an_alarm_is_heard_when_it_is_over(clock: Clock) -> None:
    async with stopped_by_an_alarm() as (server, client), Connection(server.url + "?heartbeat=0") as other:
        await other.declare_queue("later")
        client.publish("later", b"first")
        await pass_time(clock, intervals=10, meanwhile=client.beat)
        client.publish("later", b"second")
        await pass_time(clock, intervals=10, meanwhile=client.beat)
        assert await other.get("later") is None

        while (delivery := await other.get("orders")) is not None:
            delivery.ack()

        bodies = []
        async with await other.consume("later") as consumer, asyncio.timeout(20):
            while len(bodies) < 2:
                bodies.append((await anext(consumer)).body)
        assert bodies == [b"first", b"second"]


async def test_publishers_go_on_when_the_purge_that_ended_an_alarm_is_done(clock: Clock) -> None:
    async with stopped_by_an_alarm() as (server, client), Connection(server.url + "?heartbeat=0") as other:
        before = len(server.broker.vhosts["/"].queues["orders"])
        client.publish("orders", b"waits")
        await pass_time(clock, intervals=10, meanwhile=client.beat)

        assert await other.purge_queue("orders") == before

        async with await other.consume("orders") as consumer, asyncio.timeout(20):
            async for delivery in consumer:
                delivery.ack()
                if delivery.body == b"waits":
                    break
        await until(lambda: not server.broker.memory.held)


async def test_what_is_said_during_an_alarm_does_not_fill_the_memory(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "PROBE_AT_MOST", 100_000)
    async with stopped_by_an_alarm() as (server, client):
        for _ in range(10_000):
            client.publish("orders", bytes(1000))

        await pass_time(clock, intervals=50)

        [blocked] = server.broker.sessions  # it cannot be told from a dead one any more, and is not
        assert 0 < len(blocked._waiting) < 500


# Consumers that do not read ---------------------------------------------------------------------------------


@asynccontextmanager
async def not_reading() -> AsyncIterator[tuple[BrokerServer, Client]]:
    """It is owed 20 MB, more than the kernel takes."""
    async with BrokerServer(Broker()) as server, Client.of(server) as client:
        client.say(QueueDeclare(queue="orders"))
        await client.heard(b"orders")
        for _ in range(200):
            client.publish("orders", bytes(100_000))
            await client.writer.drain()
        client.say(BasicConsume(queue="orders"))
        await until(lambda: any(not session.writable for session in server.broker.sessions))
        yield server, client


async def test_a_slow_reader_that_beats_is_alive(clock: Clock) -> None:
    async with not_reading() as (server, client):
        await pass_time(clock, intervals=10, meanwhile=client.beat)

        assert len(server.broker.sessions) == 1


async def test_a_slow_reader_gets_everything_in_the_end(clock: Clock) -> None:
    async with not_reading() as (_, client):
        await pass_time(clock, intervals=10, meanwhile=client.beat)

        received = 0
        async with asyncio.timeout(20):
            while received < 200 * 100_000:
                received += len(await client.reader.read(1 << 20))


async def test_a_reader_that_is_dead_is_found_out(clock: Clock) -> None:
    async with not_reading() as (server, _):
        await pass_time(clock, intervals=6)

        assert not server.broker.sessions


async def test_nothing_is_added_to_what_a_slow_reader_is_owed(clock: Clock) -> None:
    async with not_reading() as (server, client):
        [slow] = server.broker.sessions
        assert slow._transport is not None
        owed = slow._transport.get_write_buffer_size()

        await pass_time(clock, intervals=50, meanwhile=client.beat)

        assert slow._transport.get_write_buffer_size() <= owed


# A slow disk ------------------------------------------------------------------------------------------------


class SlowDisk(MemoryJournal):
    """Commits when it is told to."""

    slow = False

    def _call_back(self) -> None:
        if not self.slow:
            super()._call_back()

    def commit(self) -> None:
        self.slow = False
        self._call_back()


async def test_while_a_commit_takes_long_the_client_hears_that_the_broker_lives(clock: Clock) -> None:
    disk = SlowDisk()
    async with BrokerServer(Broker(journal=disk)) as server, Client.of(server) as client:
        disk.slow = True
        client.say(QueueDeclare(queue="orders", durable=True))
        await until(lambda: disk._callbacks)

        await pass_time(clock, intervals=10, meanwhile=client.beat)
        disk.commit()

        said = await client.heard(b"orders")
        beats = said.split(b"orders")[0].count(HEARTBEAT_FRAME)
        assert 5 <= beats <= 25  # one every half interval, and not as many as the loop has turns


async def test_answers_that_wait_for_a_commit_are_bounded_and_none_is_lost() -> None:
    """One read brings a declaration, whose answer waits for the disk, and questions with large answers behind it."""
    disk = SlowDisk()
    async with BrokerServer(Broker(journal=disk)) as server, Client.of(server) as client:
        client.say(QueueDeclare(queue="large"))
        await client.heard(b"large")
        for number in range(200):
            client.publish("large", b"%3d" % number + bytes(10_000))
        await until(lambda: len(server.broker.vhosts["/"].queues["large"]) == 200)
        disk.slow = True

        client.say(QueueDeclare(queue="durable", durable=True), *[BasicGet(queue="large", no_ack=True)] * 200)
        await until(lambda: any(not session.writable for session in server.broker.sessions))
        [waiting] = server.broker.sessions

        held = sum(map(len, waiting.conversation.outgoing))
        assert held < 2 * session.WRITE_HIGH_WATER
        assert len(server.broker.vhosts["/"].queues["large"]) > 100  # the rest was not even looked at

        disk.commit()
        said = await client.heard(b"199")
        places = [said.index(b"%3d\x00\x00" % number) for number in range(200)]
        assert said.index(b"durable") < places[0]
        assert places == sorted(places)


async def test_deliveries_wait_too_while_answers_wait_for_a_commit() -> None:
    disk = SlowDisk()
    async with BrokerServer(Broker(journal=disk)) as server, Client.of(server) as client:
        client.say(QueueDeclare(queue="large"))
        await client.heard(b"large")
        for _ in range(200):
            client.publish("large", bytes(10_000))
        queue = server.broker.vhosts["/"].queues["large"]
        await until(lambda: len(queue) == 200)
        disk.slow = True

        client.say(QueueDeclare(queue="durable", durable=True), BasicConsume(queue="large", no_ack=True))
        await until(lambda: len(queue) < 200)
        assert len(queue) > 100

        disk.commit()
        await until(lambda: not len(queue))
