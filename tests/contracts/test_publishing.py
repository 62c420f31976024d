"""Publishing: who gets a message, what the broker answers for it, and that it arrives as it was sent."""

import asyncio
from typing import Any

import pytest

from contracts.observing import Collector, drained, got, ready, take
from redrive.client import Connection, Properties, Publish
from redrive.errors import NotPublished, PublishError, PublishErrors, PublishRefused, PublishUnknown, Unroutable
from redrive.wire.frames import OVERHEAD

# Routing ----------------------------------------------------------------------------------------------


async def test_the_default_exchange_leads_to_the_queue_of_that_name(connection: Connection) -> None:
    await connection.declare_queue("orders")

    await connection.publish("", "orders", b"{}")

    delivery = await got(connection, "orders")
    assert (delivery.exchange, delivery.routing_key, delivery.body) == ("", "orders", b"{}")


async def test_a_direct_exchange_compares_keys(connection: Connection) -> None:
    await connection.declare_exchange("news", "direct")
    for key in ("sport", "art"):
        await connection.declare_queue(key)
        await connection.bind_queue(key, "news", key)

    await connection.publish("news", "sport", b"goal")

    assert (await drained(connection, "sport"), await drained(connection, "art")) == ([b"goal"], [])


async def test_a_fanout_exchange_gives_everybody_a_copy(connection: Connection) -> None:
    await connection.declare_exchange("news", "fanout")
    for queue in ("one", "two", "three"):
        await connection.declare_queue(queue)
        await connection.bind_queue(queue, "news", "ignored")

    await connection.publish("news", "whatever", b"copy")

    assert [await drained(connection, queue) for queue in ("one", "two", "three")] == [[b"copy"]] * 3


@pytest.mark.parametrize(
    ("pattern", "key", "matches"),
    [
        ("sport.chess", "sport.chess", True),
        ("sport.*", "sport.chess", True),
        ("sport.*", "sport", False),
        ("sport.*", "sport.chess.blitz", False),
        ("*.chess", "sport.chess", True),
        ("*", "sport", True),
        ("*", "", False),
        ("#", "", True),
        ("#", "sport.chess.blitz", True),
        ("sport.#", "sport", True),
        ("sport.#", "sport.chess.blitz", True),
        ("sport.#", "sports", False),
        ("#.blitz", "sport.chess.blitz", True),
        ("sport.#.blitz", "sport.blitz", True),
        ("sport.*.#", "sport", False),
        ("*.*", "sport..chess", False),
        ("sport..chess", "sport..chess", True),
        ("sport.*.chess", "sport..chess", True),
        ("", "", True),
        ("", "sport", False),
        ("s*", "sport", False),
    ],
)
async def test_a_topic_exchange_compares_words(connection: Connection, pattern: str, key: str, matches: bool) -> None:
    await connection.declare_exchange("news", "topic")
    await connection.declare_queue("paper")
    await connection.bind_queue("paper", "news", pattern)

    await connection.publish("news", key, b"read all about it", mandatory=False)

    assert await drained(connection, "paper") == [b"read all about it"] * matches


@pytest.mark.parametrize(
    ("binding", "headers", "matches"),
    [
        ({"x-match": "all", "kind": "sport", "hot": True}, {"kind": "sport", "hot": True}, True),
        ({"x-match": "all", "kind": "sport", "hot": True}, {"kind": "sport", "hot": True, "more": 1}, True),
        ({"x-match": "all", "kind": "sport", "hot": True}, {"kind": "sport"}, False),
        ({"x-match": "any", "kind": "sport", "hot": True}, {"kind": "sport"}, True),
        ({"x-match": "any", "kind": "sport", "hot": True}, {"kind": "art"}, False),
        ({"kind": "sport"}, {"kind": "sport"}, True),
        ({"kind": "sport"}, {"kind": "Sport"}, False),
        ({"x-match": "all", "count": 5}, {"count": 5}, True),
        ({"x-match": "all", "count": 5}, {"count": "5"}, False),
        ({"x-match": "all", "kind": None}, {"kind": "anything"}, True),
        ({"x-match": "all", "kind": None}, {}, False),
        ({"x-match": "all", "x-kind": "sport"}, {"x-kind": "art"}, True),  # x- headers do not count
        ({"x-match": "all"}, {}, True),
    ],
    ids=str,
)
async def test_a_headers_exchange_compares_headers(
    connection: Connection, binding: dict[str, str], headers: dict[str, str], matches: bool
) -> None:
    await connection.declare_exchange("news", "headers")
    await connection.declare_queue("paper")
    await connection.bind_queue("paper", "news", arguments=binding)

    await connection.publish("news", "", b"", Properties(headers=headers), mandatory=False)

    assert len(await drained(connection, "paper")) == matches


async def test_an_alternate_exchange_takes_what_has_no_other_way(connection: Connection) -> None:
    await connection.declare_exchange("lost", "fanout")
    await connection.declare_exchange("news", "direct", arguments={"alternate-exchange": "lost"})
    await connection.declare_queue("found")
    await connection.bind_queue("found", "lost")

    await connection.publish("news", "nobody", b"stray")

    delivery = await got(connection, "found")
    assert (delivery.exchange, delivery.routing_key) == ("news", "nobody")


async def test_the_cc_header_adds_keys_and_bcc_adds_them_unseen(connection: Connection) -> None:
    for queue in ("to", "cc", "bcc"):
        await connection.declare_queue(queue)

    await connection.publish("", "to", b"copy", Properties(headers={"CC": ["cc"], "BCC": ["bcc"]}))

    for queue in ("to", "cc", "bcc"):
        delivery = await got(connection, queue)
        assert delivery.properties.headers == {"CC": ["cc"]}


# Bodies -----------------------------------------------------------------------------------------------

SMALL_FRAMES = 8192  # the least that all versions take
ROOM = SMALL_FRAMES - OVERHEAD


@pytest.mark.parametrize("size", [0, 1, ROOM - 1, ROOM, ROOM + 1, 2 * ROOM - 1, 2 * ROOM, 2 * ROOM + 1, 1 << 20])
async def test_a_body_arrives_as_it_was_sent_whatever_its_size(amqp_url: str, size: int) -> None:
    body = bytes(range(256)) * (size // 256 + 1)
    async with Connection(f"{amqp_url}?frame_max={SMALL_FRAMES}") as connection:
        await connection.declare_queue("orders")

        await connection.publish("", "orders", body[:size])

        async with await connection.consume("orders") as consumer:
            [delivery] = await take(consumer, 1)
            assert delivery.body == body[:size]
            delivery.ack()


async def test_a_body_at_the_boundary_of_the_largest_frame_arrives_as_it_was_sent(connection: Connection) -> None:
    await connection.declare_queue("orders")
    bodies = [b"x" * (131072 - OVERHEAD + more) for more in (-1, 0, 1)]

    for body in bodies:
        await connection.publish("", "orders", body)

    assert await drained(connection, "orders") == bodies


# Answers ----------------------------------------------------------------------------------------------


async def test_a_message_that_no_queue_takes_is_unroutable(connection: Connection) -> None:
    await connection.declare_exchange("news")

    with pytest.raises(Unroutable, match=r"exchange 'news' with key 'nobody'.*312 NO_ROUTE"):
        await connection.publish("news", "nobody", b"stray")


async def test_a_message_that_is_not_mandatory_may_get_lost(connection: Connection) -> None:
    await connection.declare_exchange("news")

    await connection.publish("news", "nobody", b"stray", mandatory=False)


async def test_of_two_messages_with_the_same_id_only_the_unroutable_one_fails(connection: Connection) -> None:
    await connection.declare_queue("orders")
    same = Properties(message_id="42")

    for _ in range(20):
        routable, unroutable = await asyncio.gather(
            connection.publish("", "orders", b"body", same),
            connection.publish("", "nobody", b"body", same),
            return_exceptions=True,
        )
        assert routable is None
        assert isinstance(unroutable, Unroutable)

    await ready(connection, "orders", 20)


async def test_a_full_queue_that_rejects_publishes_refuses_the_message(connection: Connection) -> None:
    await connection.declare_queue("tiny", arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    await connection.publish("", "tiny", b"fits")

    with pytest.raises(PublishRefused, match="nack"):
        await connection.publish("", "tiny", b"does not fit")

    assert await drained(connection, "tiny") == [b"fits"]


async def test_a_full_queue_takes_messages_again_when_there_is_room(connection: Connection) -> None:
    await connection.declare_queue("tiny", arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    await connection.publish("", "tiny", b"first")
    with pytest.raises(PublishRefused):
        await connection.publish("", "tiny", b"refused")
    await drained(connection, "tiny")

    await connection.publish("", "tiny", b"second")

    assert await drained(connection, "tiny") == [b"second"]


async def test_a_full_queue_that_drops_its_head_confirms_and_keeps_the_newest(connection: Connection) -> None:
    await connection.declare_queue("tiny", arguments={"x-max-length": 2})

    for body in (b"1", b"2", b"3"):
        await connection.publish("", "tiny", body)

    assert await drained(connection, "tiny") == [b"2", b"3"]


async def test_a_missing_exchange_refuses_the_message_and_the_publisher_goes_on(connection: Connection) -> None:
    await connection.declare_queue("orders")

    with pytest.raises(PublishRefused, match=r"there is no such exchange \(404 NOT_FOUND - no exchange 'missing'"):
        await connection.publish("missing", "orders", b"nowhere")
    await connection.publish("", "orders", b"here")

    assert await drained(connection, "orders") == [b"here"]


async def test_a_missing_exchange_leaves_no_other_publish_without_an_answer(connection: Connection) -> None:
    """The broker closes the channel that all share: the others are confirmed, or known to be unknown."""
    await connection.declare_queue("orders")
    bodies = [str(number).encode() for number in range(50)]

    answers = await asyncio.gather(
        *(connection.publish("", "orders", body) for body in bodies[:25]),
        connection.publish("missing", "", b"nowhere"),
        *(connection.publish("", "orders", body) for body in bodies[25:]),
        return_exceptions=True,
    )

    refused = answers.pop(25)
    assert isinstance(refused, PublishRefused)
    assert all(answer is None or isinstance(answer, PublishUnknown) for answer in answers)
    stored = set(await drained(connection, "orders"))
    assert {body for body, answer in zip(bodies, answers, strict=True) if answer is None} <= stored


async def test_an_internal_exchange_takes_nothing_from_publishers(connection: Connection) -> None:
    await connection.declare_exchange("back", "fanout", internal=True)
    await connection.declare_queue("orders")

    with pytest.raises((PublishRefused, PublishUnknown), match="403 ACCESS_REFUSED"):
        await connection.publish("back", "", b"")
    await connection.publish("", "orders", b"here")

    assert await drained(connection, "orders") == [b"here"]


async def test_a_user_id_that_is_not_ones_own_is_refused(connection: Connection) -> None:
    await connection.declare_queue("orders")

    with pytest.raises((PublishRefused, PublishUnknown), match="406 PRECONDITION_FAILED - user_id property"):
        await connection.publish("", "orders", b"", Properties(user_id="somebody else"))
    await connection.publish("", "orders", b"mine", Properties(user_id="guest"))

    assert await drained(connection, "orders") == [b"mine"]


# Many -------------------------------------------------------------------------------------------------


async def test_many_publishes_at_once_are_all_confirmed_and_stored(connection: Connection) -> None:
    await connection.declare_queue("orders")
    bodies = [str(number).encode() for number in range(2000)]

    await asyncio.gather(*(connection.publish("", "orders", body) for body in bodies))

    collector = Collector()
    await connection.consume("orders", collector)
    assert await collector.has(2000) == bodies


async def test_a_pipeline_is_stored_in_order(connection: Connection) -> None:
    await connection.declare_queue("orders")
    bodies = [str(number).encode() for number in range(2000)]

    assert await connection.publish_many(Publish("", "orders", body) for body in bodies) == 2000

    collector = Collector()
    await connection.consume("orders", collector)
    assert await collector.has(2000) == bodies


async def test_a_pipeline_reports_exactly_the_messages_that_failed(connection: Connection) -> None:
    await connection.declare_queue("orders")
    await connection.declare_queue("full", arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    await connection.publish("", "full", b"fits")
    keys = ["orders", "nobody", "full", "orders", "nobody", "orders"]
    messages: list[Publish] = [Publish("", key, b"body") for key in keys]
    unsendable: Any = {"x": object()}
    messages.append(Publish("", "orders", b"", Properties(headers=unsendable)))

    with pytest.raises(PublishErrors, match="4 of 7 messages were not published") as caught:
        await connection.publish_many(messages)

    errors = [error for error in caught.value.exceptions if isinstance(error, PublishError)]
    failures = {error.index: type(error) for error in errors}
    assert failures == {1: Unroutable, 2: PublishRefused, 4: Unroutable, 6: NotPublished}
    await ready(connection, "orders", 3)


async def test_two_connections_may_publish_to_one_queue(connection: Connection, other: Connection) -> None:
    await connection.declare_queue("orders")

    await asyncio.gather(
        connection.publish_many(Publish("", "orders", b"one") for _ in range(100)),
        other.publish_many(Publish("", "orders", b"two") for _ in range(100)),
    )

    await ready(connection, "orders", 200)


# Time and precedence ----------------------------------------------------------------------------------


async def test_a_message_expires_when_its_time_is_over(connection: Connection) -> None:
    await connection.declare_queue("orders")

    await connection.publish("", "orders", b"short-lived", Properties(expiration="1"))

    await ready(connection, "orders", 0)


async def test_a_queue_can_let_its_messages_expire(connection: Connection) -> None:
    await connection.declare_queue("orders", arguments={"x-message-ttl": 1})

    await connection.publish("", "orders", b"short-lived")

    await ready(connection, "orders", 0)


async def test_an_expiration_that_is_no_number_is_refused(connection: Connection) -> None:
    await connection.declare_queue("orders")

    with pytest.raises((PublishRefused, PublishUnknown), match="406 PRECONDITION_FAILED - invalid expiration"):
        await connection.publish("", "orders", b"", Properties(expiration="soon"))


async def test_a_priority_queue_gives_the_most_urgent_first(connection: Connection) -> None:
    await connection.declare_queue("orders", arguments={"x-max-priority": 5})
    for priority in (1, 5, 3):
        await connection.publish("", "orders", str(priority).encode(), Properties(priority=priority))

    assert await drained(connection, "orders") == [b"5", b"3", b"1"]
