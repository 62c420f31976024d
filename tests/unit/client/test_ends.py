"""Connections and consumers that are ended while something else goes on: nothing is left behind, and nobody waits."""

import asyncio
import socket
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from redrive.client import Connection, Delivery, LinkState
from redrive.client.consumer import Consumer, ConsumerState
from redrive.errors import Closed
from redrive.protocol.messages import Publication
from redrive.testing.broker import ThreadedBroker
from redrive.wire.methods.basic import BasicCancel, BasicConsume
from redrive.wire.methods.connection import ConnectionClose, ConnectionOpen
from unit.client.scripted import QUICK, ScriptedBroker

FULL = ConnectionClose(
    reply_code=530, reply_text="NOT_ALLOWED - connection refused: node connection limit (5000) is reached"
)


class Busy:
    """A handler that has begun, and ends when it may."""

    def __init__(self) -> None:
        self.began = asyncio.Event()
        self.may_end = asyncio.Event()
        self.acked: list[bool] = []

    async def __call__(self, delivery: Delivery) -> None:
        self.began.set()
        await self.may_end.wait()
        self.acked.append(delivery.ack())


async def busy(connection: Connection, broker: ScriptedBroker) -> tuple[Consumer, Busy]:
    handler = Busy()
    consumer = await connection.consume("orders", handler)
    broker.session.deliver(await broker.session.hears_on(BasicConsume), b"1")
    await handler.began.wait()
    return consumer, handler


async def iterate(consumer: Consumer) -> str:
    async for _ in consumer:
        pass
    return "ended"


# Consumers -------------------------------------------------------------------------------------------------


async def test_who_iterates_over_a_consumer_whose_cancel_was_given_up_is_told(broker: ScriptedBroker) -> None:
    broker.ignore(BasicCancel)
    async with asyncio.timeout(10), Connection(broker.url, backoff=QUICK) as connection:
        consumer = await connection.consume("orders")
        iterating = asyncio.create_task(iterate(consumer))
        await asyncio.sleep(0)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await consumer.cancel()

        assert await iterating == "ended"
        assert consumer.state is ConsumerState.CANCELLED


async def test_a_consumer_that_begins_while_its_connection_is_closed_is_refused(broker: ScriptedBroker) -> None:
    connection = await Connection(broker.url, backoff=QUICK).open()
    _, handler = await busy(connection, broker)
    closing = asyncio.create_task(connection.close())
    await asyncio.sleep(0)

    with pytest.raises(Closed, match="is being closed"):
        await connection.consume("late")

    handler.may_end.set()
    await closing
    assert handler.acked == [True]
    assert [task.get_name() for task in asyncio.all_tasks() if "redrive" in task.get_name()] == []


async def test_closing_waits_for_a_consumer_that_is_being_cancelled(broker: ScriptedBroker) -> None:
    connection = await Connection(broker.url, backoff=QUICK).open()
    consumer, handler = await busy(connection, broker)
    cancelling = asyncio.create_task(consumer.cancel())
    await asyncio.sleep(0)
    closing = asyncio.create_task(connection.close())
    await asyncio.sleep(0.01)
    assert not closing.done()

    handler.may_end.set()
    await asyncio.gather(cancelling, closing)
    assert handler.acked == [True]


async def test_what_is_acked_at_the_very_end_is_acked() -> None:
    kept: list[Delivery] = []

    async def keep(delivery: Delivery) -> None:
        kept.append(delivery)
        if len(kept) == 3:
            all_there.set()

    async def finish() -> None:
        assert [delivery.ack() for delivery in kept] == [True] * 3

    all_there = asyncio.Event()
    with ThreadedBroker() as embedded:
        async with Connection(embedded.url) as connection:
            await connection.declare_queue("orders")
            for number in range(3):
                await connection.publish("", "orders", b"%d" % number)
            consumer = await connection.consume("orders", keep, finishing=finish)
            await all_there.wait()
            await consumer.cancel()

            assert (await connection.queue_info("orders")).messages == 0


async def test_a_consumer_that_cannot_finish_keeps_no_connection_open(
    broker: ScriptedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    async def finish() -> None:
        raise RuntimeError("a mistake")

    async with Connection(broker.url, backoff=QUICK) as connection:
        consumer = await connection.consume("orders", finishing=finish)

    assert (connection.state, consumer.state) == (LinkState.CLOSED, ConsumerState.CANCELLED)
    assert "did not finish in order" in caplog.text


# Connections -----------------------------------------------------------------------------------------------


async def test_a_close_that_is_given_up_closes_all_the_same(broker: ScriptedBroker) -> None:
    connection = await Connection(broker.url, backoff=QUICK).open()
    publishing = asyncio.create_task(connection.publish("", "orders", b"never confirmed"))
    await broker.session.hears(Publication)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await connection.close()

    assert connection.state is LinkState.CLOSED
    await asyncio.gather(publishing, return_exceptions=True)
    assert [task.get_name() for task in asyncio.all_tasks() if "redrive" in task.get_name()] == []


async def test_what_is_closed_while_it_is_being_opened_stays_closed() -> None:
    later = ScriptedBroker()
    connection = Connection(later.url, backoff=QUICK)
    opening = asyncio.create_task(connection.open(wait=timedelta(seconds=10)))
    await connection.until(LinkState.CONNECTING)
    await connection.close()

    async with later:
        with pytest.raises(Closed, match="was closed while it was being opened"):
            await opening
    assert connection.state is LinkState.CLOSED


async def test_a_node_that_is_full_is_passed_over(broker: ScriptedBroker) -> None:
    async with ScriptedBroker() as other:
        url = f"amqp://guest:guest@127.0.0.1:{broker.port},127.0.0.1:{other.port}/"
        broker.answers[ConnectionOpen] = FULL
        async with Connection(url, backoff=QUICK) as connection:
            assert (await connection.link()).host.port == other.port


async def says_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        await reader.read()  # until the other side has enough of it
    writer.close()


async def hangs_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


@pytest.mark.parametrize("stranger", [says_nothing, hangs_up])
async def test_an_address_that_leads_nowhere_leaves_time_for_the_next(
    broker: ScriptedBroker, monkeypatch: pytest.MonkeyPatch, stranger: Any
) -> None:
    async def two(*_: Any, **__: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, broker.port)) for address in addresses]

    addresses = ["127.0.0.2", "127.0.0.1"]
    async with await asyncio.start_server(stranger, "127.0.0.2", broker.port):
        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", two)
        async with Connection(f"amqp://guest:guest@rabbit:{broker.port}/?connection_timeout=500") as connection:
            assert connection.state is LinkState.OPEN
    assert len(broker.sessions) == 1


async def test_more_queues_are_read_at_once_than_channels_are_kept() -> None:
    names = [f"orders-{number}" for number in range(80)]
    with ThreadedBroker() as embedded:
        async with Connection(embedded.url) as connection:
            for name in names:
                await connection.declare_queue(name)
                await connection.publish("", name, name.encode())

            found = await asyncio.gather(*map(connection.get, names))

            assert [delivery.body.decode() if delivery is not None else "" for delivery in found] == names
