"""What a migration builds on: facts about routers, consumers and deletions that every broker must share."""

import asyncio
from collections import Counter

import pytest

from contracts.observing import drained, gone, take
from redrive.client import Connection
from redrive.errors import AccessRefused, PreconditionFailed
from redrive.inspection.management import Management, ManagementMonitor
from redrive.testing import Endpoint
from redrive.wire.methods.queue import QueueDeclare, QueueDelete

TYPES = pytest.mark.parametrize("kind", ["classic", "quorum"])


async def make_router(connection: Connection, kind: str) -> None:
    """source → router → queue, and where that is not bound, router ╌▶ gatehouse → gate."""
    for queue in ("queue", "gate"):
        await connection.declare_queue(queue, arguments={"x-queue-type": kind})
    await connection.declare_exchange("source", "topic")
    await connection.declare_exchange("gatehouse", "fanout", internal=True)
    alternate = {"alternate-exchange": "gatehouse"}
    await connection.declare_exchange("router", "fanout", internal=True, arguments=alternate)
    await connection.bind_queue("gate", "gatehouse")
    await connection.bind_exchange("router", "source", "#")


@TYPES
async def test_a_router_that_is_bound_and_unbound_under_load_sends_every_message_one_way(
    connection: Connection, other: Connection, kind: str
) -> None:
    await make_router(connection, kind)
    sent = 0
    over = False

    async def produce() -> None:
        nonlocal sent
        while not over:
            await other.publish("source", "key", str(sent).encode())
            sent += 1

    producing = asyncio.create_task(produce())
    for _ in range(40):
        await connection.bind_queue("queue", "router")
        await connection.unbind_queue("queue", "router")
    over = True
    await producing

    found = Counter([*await drained(connection, "queue"), *await drained(connection, "gate")])
    assert sorted(map(int, found)) == list(range(sent))
    assert set(found.values()) == {1}


async def test_a_message_that_comes_directly_and_over_a_router_is_stored_once(connection: Connection) -> None:
    await make_router(connection, "classic")
    await connection.bind_queue("queue", "router")
    await connection.bind_queue("queue", "source", "key")

    await connection.publish("source", "key", b"once")

    assert await drained(connection, "queue") == [b"once"]
    assert await drained(connection, "gate") == []


async def test_a_message_over_a_router_keeps_its_exchange_and_key(connection: Connection) -> None:
    """By which one can tell afterwards what came over it and what was carried."""
    await make_router(connection, "classic")

    await connection.publish("source", "some.key", b"1")

    delivery = await connection.get("gate")
    assert delivery is not None
    assert (delivery.exchange, delivery.routing_key) == ("source", "some.key")


@TYPES
async def test_what_a_consumer_held_goes_back_in_front_of_what_came_meanwhile(
    connection: Connection, other: Connection, kind: str
) -> None:
    await connection.declare_queue("queue", arguments={"x-queue-type": kind})
    for number in range(20):
        await connection.publish("", "queue", str(number).encode())
    consumer = await other.consume("queue", prefetch=10)
    for _ in range(5):
        (await anext(consumer)).ack()
    for number in range(20, 30):
        await connection.publish("", "queue", str(number).encode())

    await consumer.abort()

    found: list[int] = []
    async with asyncio.timeout(10), await connection.consume("queue") as reading:
        while len(found) < 25:
            delivery = await anext(reading)
            found.append(int(delivery.body))
            delivery.ack()
    assert found == list(range(5, 30))


async def test_a_classic_queue_keeps_others_out_while_somebody_consumes_exclusively(
    connection: Connection, other: Connection
) -> None:
    await connection.declare_queue("queue", arguments={"x-queue-type": "classic"})
    consumer = await connection.consume("queue", exclusive=True)

    with pytest.raises(AccessRefused, match="exclusive use"):
        await other.consume("queue")

    await consumer.cancel()


async def test_a_queue_is_deleted_and_declared_anew_in_one_write(connection: Connection) -> None:
    await connection.declare_queue("queue", arguments={"x-queue-type": "classic"})

    await connection.ask_together(
        QueueDelete(queue="queue", if_unused=True, if_empty=True),
        QueueDeclare(queue="queue", durable=True, arguments={"x-queue-type": "classic", "x-max-length": 5}),
    )

    await connection.declare_queue("queue", arguments={"x-queue-type": "classic", "x-max-length": 5})


async def test_a_queue_that_may_not_be_deleted_is_not_declared_anew_either(connection: Connection) -> None:
    await connection.declare_queue("queue", arguments={"x-queue-type": "classic"})
    await connection.publish("", "queue", b"still here")

    with pytest.raises(PreconditionFailed, match=r"queue 'queue' in vhost '.*' not empty"):
        await connection.ask_together(
            QueueDelete(queue="queue", if_unused=True, if_empty=True),
            QueueDeclare(queue="another", durable=True),
        )

    await gone(connection, "another")
    assert await drained(connection, "queue") == [b"still here"]


async def test_a_queue_that_is_neither_empty_nor_unused_is_kept_for_not_being_empty(connection: Connection) -> None:
    await connection.declare_queue("queue", arguments={"x-queue-type": "classic"})
    for _ in range(2):
        await connection.publish("", "queue", b"still here")
    await take(await connection.consume("queue", prefetch=1), 1)

    with pytest.raises(PreconditionFailed, match="not empty"):
        await connection.ask_together(QueueDelete(queue="queue", if_unused=True, if_empty=True))


# What plain AMQP does not tell --------------------------------------------------------------------------


@TYPES
async def test_rabbitmq_tells_who_consumes_and_how_much_is_in_hands(rabbitmq: Endpoint, kind: str) -> None:
    """Late: up to ten seconds."""
    management = Management(f"http://guest:guest@127.0.0.1:{rabbitmq.management_port}")
    watcher = ManagementMonitor(management, "/")
    queue = f"watched {kind}"
    async with Connection(rabbitmq.url) as connection:
        await connection.declare_queue(queue, arguments={"x-queue-type": kind})
        await connection.publish("", queue, b"1")
        consumer = await connection.consume(queue)
        await anext(consumer)

        await asyncio.sleep(watcher.lag.total_seconds())

        assert await watcher.count_held(queue) == 1
        assert [words.partition(" at ")[0] for words in await watcher.consumers(queue)] == ["guest"]
        assert (await watcher.snapshot()).definitions.queue(queue) is not None
        await connection.delete_queue(queue)
