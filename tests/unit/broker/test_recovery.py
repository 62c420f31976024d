"""What a broker remembers of its last life."""

from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path

import pytest

from redrive.broker.broker import Broker
from redrive.broker.clock import Clock
from redrive.broker.dialect import DIALECTS, LATEST, Dialect
from redrive.broker.server import BrokerServer
from redrive.broker.storage.journal import Definition
from redrive.broker.storage.sqlite import SQLiteJournal
from redrive.client import Connection, Properties
from redrive.testing.clock import ManualClock
from redrive.wire.values import Table, encode_table


def server(data: Path, dialect: Dialect = LATEST, clock: Clock | None = None) -> BrokerServer:
    return BrokerServer(Broker(journal=SQLiteJournal(data), dialect=dialect, clock=clock))


async def test_a_message_that_was_delivered_is_redelivered_after_a_restart(tmp_path: Path) -> None:
    async with server(tmp_path) as first, Connection(first.url) as connection:
        await connection.declare_queue("orders")
        await connection.publish("", "orders", b"seen")
        await connection.publish("", "orders", b"unseen")
        assert await connection.get("orders") is not None

    async with server(tmp_path) as second, Connection(second.url) as connection:
        deliveries = [await connection.get("orders"), await connection.get("orders")]

    assert [(delivery.body, delivery.redelivered) for delivery in deliveries if delivery is not None] == [
        (b"seen", True),
        (b"unseen", False),
    ]


async def test_a_fresh_message_of_a_drained_queue_is_not_taken_for_redelivered_after_two_restarts(
    tmp_path: Path,
) -> None:
    async with server(tmp_path) as first, Connection(first.url) as connection:
        await connection.declare_queue("orders")
        await connection.publish("", "orders", b"old")
        old = await connection.get("orders")
        assert old is not None
        old.ack()
    async with server(tmp_path) as second, Connection(second.url) as connection:
        await connection.publish("", "orders", b"fresh")

    async with server(tmp_path) as third, Connection(third.url) as connection:
        fresh = await connection.get("orders")

    assert fresh is not None
    assert not fresh.redelivered


async def test_what_dies_while_its_broker_is_away_is_a_fresh_dead_letter(tmp_path: Path) -> None:
    """It must not have the position of a message that was delivered before."""
    clock, ttl = ManualClock(), timedelta(seconds=1)
    mortal = {"x-message-ttl": 1000, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    async with server(tmp_path, clock=clock) as first, Connection(first.url) as connection:
        await connection.declare_queue("orders", arguments=mortal)
        await connection.declare_queue("dead")
        await connection.publish("", "dead", b"of before")
        before = await connection.get("dead")
        assert before is not None
        before.ack()
        await connection.publish("", "orders", b"dies")
    clock.advance(ttl)
    async with server(tmp_path, clock=clock):
        pass

    async with server(tmp_path, clock=clock) as third, Connection(third.url) as connection:
        dead = await connection.get("dead")

    assert dead is not None
    assert not dead.redelivered


async def test_the_order_of_a_rotated_quorum_queue_survives_a_restart(tmp_path: Path) -> None:
    dialect = DIALECTS["3.10"]
    async with server(tmp_path, dialect) as first, Connection(first.url) as connection:
        await connection.declare_queue("orders", arguments={"x-queue-type": "quorum"})
        for body in (b"1", b"2"):
            await connection.publish("", "orders", body)
        delivery = await connection.get("orders")
        assert delivery is not None
        delivery.nack()
        await connection.queue_info("orders")

    async with server(tmp_path, dialect) as second, Connection(second.url) as connection:
        bodies = [got.body for _ in range(2) if (got := await connection.get("orders")) is not None]

    assert bodies == [b"2", b"1"]


async def test_topology_and_dead_letter_history_survive_and_transient_things_do_not(tmp_path: Path) -> None:
    async with server(tmp_path) as first, Connection(first.url) as connection:
        await connection.declare_exchange("dead", "fanout")
        await connection.declare_queue("parked")
        await connection.bind_queue("parked", "dead")
        await connection.declare_queue("work", arguments={"x-dead-letter-exchange": "dead"})
        await connection.declare_queue("fleeting", durable=False)
        await connection.publish("", "work", b"bad")
        await connection.publish("", "work", b"gone", Properties(delivery_mode=1))
        delivery = await connection.get("work")
        assert delivery is not None
        delivery.reject()
        await connection.queue_info("parked")

    async with server(tmp_path) as second, Connection(second.url) as connection:
        parked = await connection.get("parked")
        left = await connection.get("work")
        kept = sorted(second.broker.vhosts["/"].queues)
        await connection.publish("dead", "", b"still bound")

    assert parked is not None
    assert parked.properties.headers is not None
    assert parked.properties.headers["x-first-death-queue"] == "work"
    assert left is None
    assert kept == ["parked", "work"]


async def test_a_dead_letter_has_failed_as_often_after_a_restart(tmp_path: Path) -> None:
    dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    async with server(tmp_path) as first, Connection(first.url) as connection:
        await connection.declare_queue("orders", arguments={"x-queue-type": "quorum", **dead})
        await connection.declare_queue("dead", arguments={"x-queue-type": "quorum"})
        await connection.publish("", "orders", b"")
        delivery = await connection.get("orders")
        assert delivery is not None
        delivery.reject()
        await connection.queue_info("orders")

    async with server(tmp_path) as second, Connection(second.url) as connection:
        letter = await connection.get("dead")

    assert letter is not None
    assert letter.redelivered
    assert (letter.properties.headers or {})["x-delivery-count"] == 1


async def declare_dead_letters(connection: Connection) -> None:
    """What dies in `work` goes to `parked`; what dies there goes to `dead`, and a copy for "copy" to `audit`."""
    await connection.declare_exchange("dlx")
    by_key = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "parked"}
    await connection.declare_queue("work", arguments=by_key)
    await connection.declare_queue("parked", arguments={"x-dead-letter-exchange": "dlx"})
    for queue, key in (("dead", "parked"), ("audit", "copy")):
        await connection.declare_queue(queue)
        await connection.bind_queue(queue, "dlx", key)


async def reject(connection: Connection, queue: str) -> None:
    delivery = await connection.get(queue)
    assert delivery is not None
    delivery.reject()
    await connection.queue_info(queue)


async def test_a_dead_letter_that_has_lost_its_copies_has_none_after_a_restart(tmp_path: Path) -> None:
    async with server(tmp_path) as first, Connection(first.url) as connection:
        await declare_dead_letters(connection)
        await connection.publish("", "work", b"", Properties(delivery_mode=2, headers={"CC": ["copy"]}))
        await reject(connection, "work")

    async with server(tmp_path) as second, Connection(second.url) as connection:
        await reject(connection, "parked")

        assert (await connection.queue_info("dead")).messages == 1
        assert (await connection.queue_info("audit")).messages == 0


@pytest.mark.parametrize("header", ["CC", "BCC"])
async def test_copies_of_a_message_are_remembered_after_a_restart(tmp_path: Path, header: str) -> None:
    async with server(tmp_path) as first, Connection(first.url) as connection:
        await declare_dead_letters(connection)
        await connection.publish("", "parked", b"", Properties(delivery_mode=2, headers={header: ["copy"]}))

    async with server(tmp_path) as second, Connection(second.url) as connection:
        await reject(connection, "parked")

        assert (await connection.queue_info("dead")).messages == 1
        assert (await connection.queue_info("audit")).messages == 1


CARDS = {"x-match": "all", "kind": "card"}
CARDS_TURNED_ROUND = dict(reversed(CARDS.items()))


def bound_queues(server: BrokerServer, exchange: str) -> list[str]:
    bindings = server.broker.vhosts["/"].exchanges[exchange].matcher.bindings()
    return [destination.name for destination, _, _ in bindings]


async def test_a_binding_that_was_undone_with_its_arguments_in_another_order_is_gone_after_a_restart(
    tmp_path: Path,
) -> None:
    async with server(tmp_path) as first, Connection(first.url) as connection:
        await connection.declare_exchange("cards", "headers")
        await connection.declare_queue("orders")
        await connection.bind_queue("orders", "cards", arguments=CARDS)
        await connection.unbind_queue("orders", "cards", arguments=CARDS_TURNED_ROUND)

    async with server(tmp_path) as second:
        assert bound_queues(second, "cards") == []


async def test_a_binding_that_a_broker_of_before_kept_twice_can_be_undone(tmp_path: Path) -> None:
    async with server(tmp_path) as first, Connection(first.url) as connection:
        await connection.declare_exchange("cards", "headers")
        await connection.declare_queue("orders")
        await connection.bind_queue("orders", "cards", arguments=CARDS)
        again: Table = {"source": "cards", "kind": "queue", "destination": "orders", "key": ""}
        again["arguments"] = CARDS_TURNED_ROUND
        definition = Definition(first.broker.next_id(), "binding", "/", "cards->orders", encode_table(again))
        first.broker.journal.define(definition)
    async with server(tmp_path) as second, Connection(second.url) as connection:
        assert bound_queues(second, "cards") == ["orders"]
        await connection.unbind_queue("orders", "cards", arguments=CARDS)

    async with server(tmp_path) as third:
        assert bound_queues(third, "cards") == []


async def test_a_broker_that_stops_hands_nothing_from_one_consumer_to_the_next(tmp_path: Path) -> None:
    """Each would have failed with it, and the delivery limit be used up."""
    async with server(tmp_path) as first, AsyncExitStack() as stack:
        connections = [await stack.enter_async_context(Connection(first.url)) for _ in range(3)]
        await connections[0].declare_queue("orders", arguments={"x-queue-type": "quorum"})
        consumers = [await connection.consume("orders", prefetch=10) for connection in connections]
        await connections[0].publish("", "orders", b"")
        orders = first.broker.vhosts["/"].queues["orders"]
        assert (len(consumers), orders.unacked) == (3, 1)
        await first.stop()

    async with server(tmp_path) as second, Connection(second.url) as connection:
        delivery = await connection.get("orders")

    assert delivery is not None
    assert (delivery.properties.headers or {})["x-delivery-count"] == 1
