"""Consuming: in order, within the prefetch, each message settled once; and what becomes of those that are not."""

import asyncio
import datetime as dt
from typing import Any

import pytest

from contracts.observing import Collector, consumers, drained, eventually, got, ready, take
from redrive.client import Connection, Consumer, Delivery, Properties, Publish
from redrive.client.consumer import ConsumerState
from redrive.errors import AccessRefused, AlreadySettled, ConsumerCancelled, NotFound
from redrive.wire.values import FieldValue
from tests.support.proxy import FaultProxy

QUORUM = {"x-queue-type": "quorum"}


async def filled(connection: Connection, queue: str, count: int, **arguments: int | str) -> list[bytes]:
    """Declare a queue and put numbered messages into it."""
    await connection.declare_queue(queue, arguments=arguments)
    bodies = [str(number).encode() for number in range(count)]
    await connection.publish_many(Publish("", queue, body) for body in bodies)
    return bodies


# Forms ------------------------------------------------------------------------------------------------


async def test_an_iterator_gives_all_messages_in_order(connection: Connection) -> None:
    bodies = await filled(connection, "orders", 500)

    async with await connection.consume("orders", prefetch=20) as consumer:
        received: list[bytes] = []
        while len(received) < 500:
            [delivery] = await take(consumer, 1)
            received.append(delivery.body)
            delivery.ack()

    assert received == bodies


async def test_a_handler_gets_all_messages_in_order(connection: Connection) -> None:
    bodies = await filled(connection, "orders", 500)
    collector = Collector()

    await connection.consume("orders", collector, prefetch=20)

    assert await collector.has(500) == bodies


async def test_a_consumer_gets_what_is_published_later(connection: Connection) -> None:
    await connection.declare_queue("orders")
    collector = Collector()
    await connection.consume("orders", collector)

    await connection.publish("", "orders", b"later")

    assert await collector.has(1) == [b"later"]


async def test_a_delivery_tells_where_it_comes_from(connection: Connection) -> None:
    await connection.declare_exchange("news", "topic")
    await connection.declare_queue("paper")
    await connection.bind_queue("paper", "news", "#")
    await connection.publish("news", "sport.chess", b"e4")

    async with await connection.consume("paper") as consumer:
        [delivery] = await take(consumer, 1)

    assert (delivery.exchange, delivery.routing_key, delivery.redelivered) == ("news", "sport.chess", False)
    assert delivery.consumer_tag


async def test_get_takes_the_oldest_message(connection: Connection) -> None:
    await filled(connection, "orders", 2)

    delivery = await connection.get("orders")

    assert delivery is not None
    assert (delivery.body, delivery.redelivered) == (b"0", False)


async def test_get_from_an_empty_queue_gives_none(connection: Connection) -> None:
    await connection.declare_queue("orders")

    assert await connection.get("orders") is None


async def test_get_from_a_missing_queue_says_that_it_is_missing(connection: Connection) -> None:
    with pytest.raises(NotFound, match="404 NOT_FOUND - no queue 'missing'"):
        await connection.get("missing")


async def test_consuming_a_missing_queue_says_that_it_is_missing(connection: Connection) -> None:
    with pytest.raises(NotFound, match="404 NOT_FOUND - no queue 'missing'"):
        await connection.consume("missing")


# Prefetch ---------------------------------------------------------------------------------------------


async def test_no_more_than_the_prefetch_is_delivered_unsettled(connection: Connection, other: Connection) -> None:
    await filled(other, "orders", 10)

    async with await connection.consume("orders", prefetch=3) as consumer:
        await ready(other, "orders", 7)
        first, _, _ = await take(consumer, 3)
        first.ack()
        await ready(other, "orders", 6)

        assert "buffered=1" in repr(consumer)


async def test_a_prefetch_of_one_gives_one_at_a_time(connection: Connection, other: Connection) -> None:
    bodies = await filled(other, "orders", 5)
    received = []

    async with await connection.consume("orders", prefetch=1) as consumer:
        for left in (4, 3, 2, 1, 0):
            [delivery] = await take(consumer, 1)
            assert (await other.queue_info("orders")).messages == left
            received.append(delivery.body)
            delivery.ack()

    assert received == bodies


async def test_each_consumer_has_a_prefetch_of_its_own(connection: Connection, other: Connection) -> None:
    await filled(other, "orders", 10)

    await connection.consume("orders", prefetch=2)
    await connection.consume("orders", prefetch=5)

    await ready(other, "orders", 3)


async def test_two_consumers_share_the_work(connection: Connection, other: Connection) -> None:
    await connection.declare_queue("orders")
    one, two = Collector(), Collector()
    await connection.consume("orders", one, prefetch=1)
    await other.consume("orders", two, prefetch=1)

    await connection.publish_many(Publish("", "orders", b"work") for _ in range(100))

    await ready(connection, "orders", 0)

    async def handled() -> int:
        return len(one.bodies) + len(two.bodies)

    await eventually(handled, 100)
    assert one.bodies
    assert two.bodies


# Settling ---------------------------------------------------------------------------------------------


async def test_an_acked_message_is_gone(connection: Connection) -> None:
    await filled(connection, "orders", 1)

    async with await connection.consume("orders") as consumer:
        [delivery] = await take(consumer, 1)
        assert delivery.ack() is True

    await ready(connection, "orders", 0)
    assert await connection.get("orders") is None


async def test_acks_that_are_told_together_settle_exactly_those_messages(connection: Connection) -> None:
    """Every third message is left alone: it must come back, and no other."""
    bodies = await filled(connection, "orders", 99)

    async with await connection.consume("orders", prefetch=99) as consumer:
        for number, delivery in enumerate(await take(consumer, 99)):
            if number % 3:
                delivery.ack()

    await ready(connection, "orders", 33)
    assert await drained(connection, "orders") == bodies[::3]


async def test_acks_in_any_order_settle_all(connection: Connection) -> None:
    await filled(connection, "orders", 50)

    async with await connection.consume("orders") as consumer:
        for delivery in reversed(await take(consumer, 50)):
            delivery.ack()

    assert (await connection.queue_info("orders")).messages == 0


async def test_acks_nacks_and_rejects_in_between_do_not_disturb_each_other(connection: Connection) -> None:
    await connection.declare_queue("dead")
    dead_letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    bodies = await filled(connection, "orders", 90, **dead_letters)

    async with await connection.consume("orders", prefetch=90) as consumer:
        for number, delivery in enumerate(await take(consumer, 90)):
            match number % 3:
                case 0:
                    delivery.ack()
                case 1:
                    delivery.nack(requeue=False)
                case 2:
                    delivery.reject()

    await ready(connection, "dead", 60)
    assert sorted(await drained(connection, "dead")) == sorted(bodies[1::3] + bodies[2::3])
    assert await drained(connection, "orders") == []


async def test_after_a_flush_the_broker_has_read_the_acks(amqp_url: str, connection: Connection) -> None:
    await filled(connection, "orders", 1)
    async with FaultProxy(amqp_url) as network, Connection(network.url) as held:
        consumer = await held.consume("orders")
        [delivery] = await take(consumer, 1)
        network.stall("server")
        delivery.ack()
        flushing = asyncio.create_task(consumer.flush())
        await connection.queue_info("orders")
        assert not flushing.done()
        network.resume("server")
        await flushing
        network.stall("server")  # nothing that is said from now on is heard
        network.cut()
        await consumers(connection, "orders", 0)
        assert await connection.get("orders") is None
        network.resume("server")


async def test_if_the_connection_is_lost_a_flush_ends(amqp_url: str, connection: Connection) -> None:
    await filled(connection, "orders", 1)
    async with FaultProxy(amqp_url) as network, Connection(network.url) as held:
        consumer = await held.consume("orders")
        [delivery] = await take(consumer, 1)
        network.stall("server")
        delivery.ack()
        flushing = asyncio.create_task(consumer.flush())
        await connection.queue_info("orders")
        network.cut()
        await flushing
        network.resume("server")
        [again] = await take(consumer, 1)
        assert again.redelivered
        again.ack()


@pytest.mark.parametrize("settle", ["nack", "reject"])
async def test_a_message_that_is_given_back_comes_again_and_says_so(connection: Connection, settle: str) -> None:
    await filled(connection, "orders", 1)

    async with await connection.consume("orders", prefetch=1) as consumer:
        [first] = await take(consumer, 1)
        getattr(first, settle)(requeue=True)
        [again] = await take(consumer, 1)
        again.ack()

    assert (first.redelivered, again.redelivered) == (False, True)
    assert first.body == again.body


async def test_a_message_that_is_given_back_to_a_classic_queue_takes_its_old_place(connection: Connection) -> None:
    bodies = await filled(connection, "orders", 3)
    first = await connection.get("orders")
    assert first is not None

    first.nack(requeue=True)
    await ready(connection, "orders", 3)

    assert await drained(connection, "orders") == bodies


@pytest.mark.parametrize("settle", ["nack", "reject"])
async def test_a_message_that_is_refused_without_a_dead_letter_exchange_is_gone(
    connection: Connection, settle: str
) -> None:
    await filled(connection, "orders", 1)
    delivery = await got(connection, "orders")

    getattr(delivery, settle)(requeue=False)

    assert await connection.get("orders") is None


async def test_a_delivery_is_settled_once(connection: Connection) -> None:
    await filled(connection, "orders", 1)
    delivery = await got(connection, "orders")
    delivery.ack()

    with pytest.raises(AlreadySettled):
        delivery.ack()
    with pytest.raises(AlreadySettled):
        delivery.nack()


async def test_what_was_not_settled_comes_back_when_its_connection_is_closed(
    amqp_url: str, connection: Connection
) -> None:
    await filled(connection, "orders", 3)
    async with Connection(amqp_url) as leaving:
        await got(leaving, "orders")
        await leaving.consume("orders")
        await ready(connection, "orders", 0)

    await ready(connection, "orders", 3)


async def test_a_delivery_whose_channel_ended_cannot_be_settled_and_comes_again(connection: Connection) -> None:
    await filled(connection, "orders", 1)
    async with await connection.consume("orders") as consumer:
        [delivery] = await take(consumer, 1)

    assert delivery.ack() is False
    assert (await got(connection, "orders")).redelivered


# Dead letters -----------------------------------------------------------------------------------------


def deaths(delivery: Delivery) -> list[dict[str, Any]]:
    headers: Any = delivery.properties.headers or {}
    return list(headers["x-death"])


async def test_a_rejected_message_goes_to_the_dead_letter_exchange_with_its_story(connection: Connection) -> None:
    await connection.declare_exchange("news", "topic")
    await connection.declare_exchange("graveyard", "fanout")
    await connection.declare_queue("orders", arguments={"x-dead-letter-exchange": "graveyard"})
    await connection.declare_queue("dead")
    await connection.bind_queue("orders", "news", "#")
    await connection.bind_queue("dead", "graveyard")
    before = dt.datetime.now(dt.UTC).replace(microsecond=0)
    await connection.publish("news", "orders.new", b"poison", Properties(message_id="42", headers={"mine": 1}))

    (await got(connection, "orders")).reject()
    dead = await got(connection, "dead")

    [death] = deaths(dead)
    assert before <= death.pop("time") <= dt.datetime.now(dt.UTC)
    assert death == {
        "count": 1,
        "reason": "rejected",
        "queue": "orders",
        "exchange": "news",
        "routing-keys": ["orders.new"],
    }
    assert (dead.body, dead.exchange, dead.routing_key) == (b"poison", "graveyard", "orders.new")
    assert dead.properties.message_id == "42"


async def test_a_dead_letter_tells_of_its_first_and_from_version_4_on_of_its_last_death(
    connection: Connection,
) -> None:
    dead_letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    await filled(connection, "orders", 1, **dead_letters)
    await connection.declare_queue("dead")

    (await got(connection, "orders")).reject()
    headers: Any = dict((await got(connection, "dead")).properties.headers or {})

    headers.pop("x-death")
    first = {"x-first-death-queue": "orders", "x-first-death-reason": "rejected", "x-first-death-exchange": ""}
    last = {"x-last-death-queue": "orders", "x-last-death-reason": "rejected", "x-last-death-exchange": ""}
    assert headers == (first | last if connection.server_version >= (4, 0) else first)


async def test_a_dead_letter_routing_key_replaces_the_messages_own(connection: Connection) -> None:
    await filled(connection, "orders", 1, **{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
    await connection.declare_queue("dead")

    (await got(connection, "orders")).reject()
    dead = await got(connection, "dead")

    assert (dead.exchange, dead.routing_key) == ("", "dead")
    assert deaths(dead)[0]["routing-keys"] == ["orders"]


async def test_an_expired_message_is_a_dead_letter(connection: Connection) -> None:
    dead_letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    await connection.declare_queue("dead")
    await filled(connection, "orders", 1, **dead_letters, **{"x-message-ttl": 1})

    dead = await got(connection, "dead")

    assert (deaths(dead)[0]["reason"], deaths(dead)[0]["queue"]) == ("expired", "orders")


async def test_a_message_with_a_time_to_live_of_its_own_loses_it_with_its_death(connection: Connection) -> None:
    dead_letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    await connection.declare_queue("dead")
    await connection.declare_queue("orders", arguments=dead_letters)

    await connection.publish("", "orders", b"", Properties(expiration="1"))
    dead = await got(connection, "dead")

    assert deaths(dead)[0]["original-expiration"] == "1"
    assert dead.properties.expiration is None


async def test_a_message_that_a_full_queue_drops_is_a_dead_letter(connection: Connection) -> None:
    dead_letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    await connection.declare_queue("dead")
    await filled(connection, "orders", 2, **dead_letters, **{"x-max-length": 1})

    dead = await got(connection, "dead")

    assert (dead.body, deaths(dead)[0]["reason"]) == (b"0", "maxlen")


async def test_laps_through_a_retry_queue_are_counted_in_one_entry_per_queue_and_reason(
    connection: Connection,
) -> None:
    """reject → retry (TTL) → default exchange → main, three times: the retry topology that most people build."""
    main = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "retry"}
    retry: dict[str, FieldValue] = {**main, "x-dead-letter-routing-key": "main", "x-message-ttl": 1}
    await connection.declare_exchange("news", "topic")
    await connection.declare_queue("main", arguments=main)
    await connection.declare_queue("retry", arguments=retry)
    await connection.bind_queue("main", "news", "orders.#")
    await connection.publish("news", "orders.new", b"poison")

    for _ in range(3):
        (await got(connection, "main")).reject()
    last = await got(connection, "main")

    story = [(death["queue"], death["reason"], death["count"]) for death in deaths(last)]
    assert story == [("retry", "expired", 3), ("main", "rejected", 3)]
    assert (last.exchange, last.routing_key) == ("", "main")
    assert (deaths(last)[-1]["exchange"], deaths(last)[-1]["routing-keys"]) == ("news", ["orders.new"])


async def test_a_message_that_would_expire_in_a_circle_is_dropped(connection: Connection) -> None:
    """A cycle without a reject in it: the second lap does not happen."""
    await connection.declare_queue(
        "one", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "two", "x-message-ttl": 1}
    )
    await connection.declare_queue(
        "two", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "one", "x-message-ttl": 1}
    )

    await connection.publish("", "one", b"round and round")

    await ready(connection, "one", 0)
    await ready(connection, "two", 0)


async def test_the_death_of_a_republished_message_is_counted_as_the_version_does(connection: Connection) -> None:
    """RabbitMQ 3.10 believes an `x-death` that a client sends and counts on; 4.x starts again."""
    dead_letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    await filled(connection, "orders", 1, **dead_letters)
    await connection.declare_queue("dead")
    (await got(connection, "orders")).reject()
    dead = await got(connection, "dead")
    dead.ack()

    await connection.publish("", "orders", dead.body, dead.properties)
    (await got(connection, "orders")).reject()

    [death] = deaths(await got(connection, "dead"))
    assert death["count"] == (1 if connection.server_version >= (4, 0) else 2)


# Quorum queues ----------------------------------------------------------------------------------------


async def test_a_quorum_queue_counts_how_often_a_message_was_rejected(connection: Connection) -> None:
    await filled(connection, "orders", 1, **QUORUM)
    for _ in range(2):
        (await got(connection, "orders")).reject(requeue=True)

    headers: Any = (await got(connection, "orders")).properties.headers

    assert headers["x-delivery-count"] == 2


async def test_a_quorum_queue_lets_a_message_die_at_its_delivery_limit(connection: Connection) -> None:
    dead_letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    await connection.declare_queue("dead")
    await filled(connection, "orders", 1, **QUORUM, **dead_letters, **{"x-delivery-limit": 2})

    for _ in range(3):
        (await got(connection, "orders")).reject(requeue=True)

    assert deaths(await got(connection, "dead"))[0]["reason"] == "delivery_limit"


async def test_of_each_priority_the_oldest_expires_in_a_quorum_queue_from_4_3_on(connection: Connection) -> None:
    if connection.server_version < (4, 3):
        pytest.skip("expires at the head of the queue alone")
    await connection.declare_queue("orders", arguments=QUORUM)
    await connection.publish("", "orders", b"stays", Properties(priority=9))
    for priority in (9, 1, 2):
        await connection.publish("", "orders", b"ends", Properties(priority=priority, expiration="1"))

    await ready(connection, "orders", 2)  # of the highest, one stands behind another


# Several consumers ------------------------------------------------------------------------------------


async def test_an_exclusive_consumer_is_the_only_one(connection: Connection, other: Connection) -> None:
    await connection.declare_queue("orders")
    await connection.consume("orders", exclusive=True)

    with pytest.raises(AccessRefused, match=r"403 ACCESS_REFUSED - queue 'orders' in vhost .* in exclusive use"):
        await other.consume("orders")


async def test_where_somebody_consumes_nobody_can_do_so_exclusively(connection: Connection, other: Connection) -> None:
    await connection.declare_queue("orders")
    await connection.consume("orders")

    with pytest.raises(AccessRefused, match=r"403 ACCESS_REFUSED.*in exclusive use"):
        await other.consume("orders", exclusive=True)


async def test_when_an_exclusive_consumer_leaves_another_may_come(connection: Connection, other: Connection) -> None:
    await connection.declare_queue("orders")
    consumer = await connection.consume("orders", exclusive=True)
    await consumer.cancel()

    assert await other.consume("orders", exclusive=True)


async def test_a_consumer_of_higher_priority_is_served_first(connection: Connection, other: Connection) -> None:
    await connection.declare_queue("orders")
    await connection.consume("orders", prefetch=10, arguments={"x-priority": 0})
    important = await other.consume("orders", prefetch=3, arguments={"x-priority": 10})
    await consumers(connection, "orders", 2)

    await connection.publish_many(Publish("", "orders", str(number).encode()) for number in range(5))

    assert [delivery.body for delivery in await take(important, 3)] == [b"0", b"1", b"2"]


async def test_of_single_active_consumers_the_second_waits_until_the_first_leaves(
    connection: Connection, other: Connection
) -> None:
    await connection.declare_queue("orders", arguments={"x-single-active-consumer": True})
    active, waiting = Collector(), Collector()
    first = await connection.consume("orders", active)
    await other.consume("orders", waiting)
    await connection.publish_many(Publish("", "orders", b"first") for _ in range(20))
    await active.has(20)
    assert waiting.bodies == []

    await first.cancel()
    await connection.publish("", "orders", b"second")

    assert await waiting.has(1) == [b"second"]


# Interruptions ----------------------------------------------------------------------------------------


async def restarted(consumer: Consumer) -> None:
    async with asyncio.timeout(15):
        while consumer.restarts == 0 or consumer.state is not ConsumerState.CONSUMING:
            await consumer.until(ConsumerState.RECOVERING)
            await consumer.until(ConsumerState.CONSUMING)


async def test_a_consumer_whose_queue_is_deleted_is_told(connection: Connection, other: Connection) -> None:
    await other.declare_queue("theirs")
    consumer = await connection.consume("theirs")

    await other.delete_queue("theirs")
    await asyncio.wait_for(consumer.until(ConsumerState.RECOVERING), 15)

    assert isinstance(consumer.last_error, ConsumerCancelled | NotFound)


async def test_a_queue_that_was_declared_here_is_made_again_with_its_bindings_and_consumed(
    connection: Connection, other: Connection
) -> None:
    await connection.declare_exchange("news", "fanout")
    await connection.declare_queue("paper")
    await connection.bind_queue("paper", "news")
    collector = Collector()
    consumer = await connection.consume("paper", collector)

    await other.delete_queue("paper")
    await restarted(consumer)
    await other.publish("news", "", b"extra")

    assert await collector.has(1) == [b"extra"]


# The end ----------------------------------------------------------------------------------------------


async def test_cancelling_gives_back_what_nobody_took(connection: Connection, other: Connection) -> None:
    bodies = await filled(other, "orders", 20)
    consumer = await connection.consume("orders", prefetch=10)
    await ready(other, "orders", 10)

    await consumer.cancel()

    await ready(other, "orders", 20)
    await consumers(other, "orders", 0)
    assert sorted(await drained(other, "orders")) == sorted(bodies)


async def test_a_cancelled_consumer_gets_no_more(connection: Connection) -> None:
    await connection.declare_queue("orders")
    collector = Collector()
    consumer = await connection.consume("orders", collector)
    await consumer.cancel()

    await connection.publish("", "orders", b"for somebody else")

    assert await drained(connection, "orders") == [b"for somebody else"]
    assert collector.bodies == []


async def test_closing_finishes_what_is_being_handled_and_published(amqp_url: str, connection: Connection) -> None:
    await filled(connection, "orders", 5)
    await connection.declare_queue("done")
    began, may_end = asyncio.Event(), asyncio.Event()
    worker = await Connection(amqp_url).open()

    async def handle(delivery: Delivery) -> None:
        began.set()
        await may_end.wait()
        await worker.publish("", "done", delivery.body)
        delivery.ack()

    await worker.consume("orders", handle, concurrency=2)
    await began.wait()
    closing = asyncio.create_task(worker.close())
    await asyncio.sleep(0)
    may_end.set()
    await closing

    handled = await drained(connection, "done")
    await ready(connection, "orders", 5 - len(handled))
    assert handled


async def test_a_handler_that_fails_gets_its_message_again(connection: Connection) -> None:
    await filled(connection, "orders", 1)
    attempts: asyncio.Queue[bool] = asyncio.Queue()

    async def handle(delivery: Delivery) -> None:
        attempts.put_nowait(delivery.redelivered)
        if not delivery.redelivered:
            raise ValueError("not yet")
        delivery.ack()

    await connection.consume("orders", handle)

    assert [await attempts.get(), await attempts.get()] == [False, True]
    await ready(connection, "orders", 0)


async def test_headers_larger_than_the_frames_of_a_consumer_reach_it(connection: Connection, amqp_url: str) -> None:
    """The broker does not cut them. Who closed the connection over them would do so again with every redelivery."""
    await connection.declare_queue("orders")
    story = "x" * 20_000
    await connection.publish("", "orders", b"large", Properties(headers={"story": story}))
    await connection.publish("", "orders", b"small")
    query = "&" if "?" in amqp_url else "?"
    async with Connection(f"{amqp_url}{query}frame_max=8192") as small, await small.consume("orders") as consumer:
        async with asyncio.timeout(20):
            first, second = await anext(consumer), await anext(consumer)

        assert (first.properties.headers or {})["story"] == story
        assert [first.body, second.body] == [b"large", b"small"]
        assert (first.ack(), second.ack()) == (True, True)
        assert small.reconnects == 0
