"""An exchange that holds messages back: what it keeps over a restart, where they go in the end, and what they weigh."""

from datetime import timedelta
from pathlib import Path

import pytest

from redrive.broker.broker import Broker
from redrive.broker.server import BrokerServer
from redrive.broker.storage.sqlite import SQLiteJournal
from redrive.broker.vhost import VirtualHost
from redrive.client import Connection, Properties
from redrive.testing.clock import ManualClock

DELAY = timedelta(minutes=1)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def server(data: Path, clock: ManualClock) -> BrokerServer:
    return BrokerServer(Broker(journal=SQLiteJournal(data), clock=clock))


async def declare(connection: Connection, *queues: str, durable: bool = True) -> None:
    """An exchange that delays, and queues that it finds by their names."""
    arguments = {"x-delayed-type": "direct"}
    await connection.declare_exchange("later", "x-delayed-message", durable=durable, arguments=arguments)
    for queue in queues:
        await connection.declare_queue(queue)
        await connection.bind_queue(queue, "later", queue)


def delayed(**headers: object) -> Properties:
    return Properties(delivery_mode=2, headers={"x-delay": DELAY // timedelta(milliseconds=1), **headers})


async def bodies(connection: Connection, queue: str) -> list[bytes]:
    """All there are, acked."""
    found = []
    while (delivery := await connection.get(queue)) is not None:
        delivery.ack()
        found.append(delivery.body)
    await connection.queue_info(queue)
    return found


async def test_a_message_that_was_held_over_a_restart_comes_once(tmp_path: Path, clock: ManualClock) -> None:
    async with server(tmp_path, clock) as first, Connection(first.url) as connection:
        await declare(connection, "orders")
        await connection.publish("later", "orders", b"once", delayed())
    async with server(tmp_path, clock) as second, Connection(second.url) as connection:
        clock.advance(DELAY)
        assert await bodies(connection, "orders") == [b"once"]

    async with server(tmp_path, clock) as third, Connection(third.url) as connection:
        clock.advance(DELAY)

        assert await bodies(connection, "orders") == []


@pytest.mark.parametrize("header", ["CC", "BCC"])
async def test_copies_are_held_back_like_the_message(header: str, clock: ManualClock) -> None:
    async with BrokerServer(Broker(clock=clock)) as broker, Connection(broker.url) as connection:
        await declare(connection, "orders", "audit")
        await connection.publish("later", "orders", b"", delayed(**{header: ["audit"]}))
        held = [await bodies(connection, "orders"), await bodies(connection, "audit")]

        clock.advance(DELAY)

        assert held == [[], []]
        assert [await bodies(connection, "orders"), await bodies(connection, "audit")] == [[b""], [b""]]


async def test_what_is_held_back_counts_towards_the_alarm_until_it_is_gone(clock: ManualClock) -> None:
    async with BrokerServer(Broker(clock=clock)) as broker, Connection(broker.url) as connection:
        await declare(connection, "orders")
        await connection.publish("later", "orders", bytes(10_000), delayed())
        assert broker.broker.memory.held > 10_000

        clock.advance(DELAY)
        assert 10_000 < broker.broker.memory.held < 20_000

        await bodies(connection, "orders")
        assert broker.broker.memory.held == 0


async def test_what_an_exchange_held_back_weighs_nothing_when_the_exchange_is_deleted(clock: ManualClock) -> None:
    async with BrokerServer(Broker(clock=clock)) as broker, Connection(broker.url) as connection:
        await declare(connection)
        await connection.publish("later", "orders", bytes(10_000), delayed())
        assert broker.broker.memory.held > 10_000

        await connection.delete_exchange("later")

        assert broker.broker.memory.held == 0


async def test_nothing_is_kept_for_an_exchange_that_does_not_survive(tmp_path: Path, clock: ManualClock) -> None:
    async with server(tmp_path, clock) as first, Connection(first.url) as connection:
        await declare(connection, durable=False)
        await connection.publish("later", "orders", b"", delayed())

    journal = SQLiteJournal(tmp_path)

    assert list(journal.recover().messages) == []
    await journal.close()


async def test_what_is_held_back_comes_after_a_message_whose_way_failed(
    monkeypatch: pytest.MonkeyPatch, clock: ManualClock
) -> None:
    async with BrokerServer(Broker(clock=clock)) as broker, Connection(broker.url) as connection:
        await declare(connection, "orders")
        await connection.publish("later", "orders", b"fails", delayed())
        clock.advance(DELAY / 2)
        await connection.publish("later", "orders", b"comes", delayed())
        with monkeypatch.context() as patch:
            patch.setattr(VirtualHost, "route", lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                clock.advance(DELAY / 2)

        clock.advance(DELAY / 2)

        assert await bodies(connection, "orders") == [b"comes"]
