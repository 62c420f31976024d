"""Exchanges, queues and bindings: declared, looked up, bound, emptied and deleted."""

from typing import Any

import pytest

from contracts.observing import drained, gone, ready, take
from redrive.client import Connection
from redrive.errors import AccessRefused, ChannelClosed, EncodingError, NotFound, PreconditionFailed, ResourceLocked

# Queues -----------------------------------------------------------------------------------------------


async def test_a_declared_queue_is_empty_and_has_no_consumers(connection: Connection) -> None:
    queue = await connection.declare_queue("orders")

    assert (queue.name, queue.messages, queue.consumers) == ("orders", 0, 0)


async def test_declaring_again_tells_how_many_messages_and_consumers_there_are(connection: Connection) -> None:
    await connection.declare_queue("orders")
    await connection.declare_queue("idle")
    await connection.publish("", "orders", b"1")
    await connection.publish("", "orders", b"2")
    await connection.consume("idle")

    assert (await connection.declare_queue("orders")).messages == 2
    assert (await connection.declare_queue("idle")).consumers == 1


async def test_a_queue_can_be_looked_up_from_another_connection(connection: Connection, other: Connection) -> None:
    await connection.declare_queue("orders")

    assert (await other.queue_info("orders")).name == "orders"


async def test_looking_up_a_missing_queue_says_that_it_is_missing(connection: Connection) -> None:
    with pytest.raises(NotFound, match="404 NOT_FOUND - no queue 'missing' in vhost"):
        await connection.queue_info("missing")


async def test_looking_up_a_queue_does_not_make_it(connection: Connection) -> None:
    with pytest.raises(NotFound):
        await connection.queue_info("missing")
    with pytest.raises(NotFound):
        await connection.queue_info("missing")


@pytest.mark.parametrize("name", ["x" * 255, "größe", "a b", "a/b", "a.b.c", "🐇"], ids=lambda name: name[:10])
async def test_any_name_of_up_to_255_bytes_is_a_name(connection: Connection, name: str) -> None:
    assert (await connection.declare_queue(name)).name == name
    await connection.publish("", name, b"found")
    assert await drained(connection, name) == [b"found"]


async def test_a_longer_name_is_refused_before_it_is_sent(connection: Connection) -> None:
    with pytest.raises(EncodingError, match="at most 255"):
        await connection.declare_queue("x" * 256)


async def test_a_queue_without_a_name_gets_one_from_the_broker(connection: Connection) -> None:
    queue = await connection.declare_queue(exclusive=True)

    assert queue.name.startswith("amq.gen-")
    await connection.publish("", queue.name, b"found")
    assert await drained(connection, queue.name) == [b"found"]


async def test_queues_that_the_broker_names_have_different_names(connection: Connection) -> None:
    names = {(await connection.declare_queue(exclusive=True)).name for _ in range(5)}

    assert len(names) == 5


async def test_names_that_begin_with_amq_are_the_brokers(connection: Connection) -> None:
    with pytest.raises(AccessRefused, match="403 ACCESS_REFUSED"):
        await connection.declare_queue("amq.mine")


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        ({"x-message-ttl": 1000}, {"x-message-ttl": 2000}, r"'x-message-ttl'.*received '2000' but current is '1000'"),
        ({"x-message-ttl": 1000}, {}, r"'x-message-ttl'.*received none but current is the value '1000'"),
        ({}, {"x-message-ttl": 1000}, r"'x-message-ttl'.*received the value '1000'.*but current is none"),
        ({"x-max-length": 5}, {"x-max-length": 6}, r"'x-max-length'.*received '6' but current is '5'"),
        (
            {"x-dead-letter-exchange": "a"},
            {"x-dead-letter-exchange": "b"},
            r"'x-dead-letter-exchange'.*received 'b' but current is 'a'",
        ),
    ],
    ids=["changed", "taken away", "added", "length", "dead letters"],
)
async def test_a_queue_that_exists_with_other_arguments_is_refused_with_both_values(
    connection: Connection, first: dict[str, int], second: dict[str, int], words: str
) -> None:
    await connection.declare_queue("orders", arguments=first)

    with pytest.raises(PreconditionFailed, match=f"406 PRECONDITION_FAILED - inequivalent arg {words}"):
        await connection.declare_queue("orders", arguments=second)


@pytest.mark.parametrize("flag", ["durable", "auto_delete"])
async def test_a_queue_that_exists_with_other_flags_is_refused(connection: Connection, flag: str) -> None:
    await connection.declare_queue("orders", durable=True, auto_delete=False)

    other: Any = {"durable": True, "auto_delete": False, flag: flag != "durable"}
    with pytest.raises(PreconditionFailed, match=f"inequivalent arg '{flag}' for queue 'orders'"):
        await connection.declare_queue("orders", **other)


async def test_a_refused_redeclaration_leaves_the_queue_as_it_was(connection: Connection) -> None:
    await connection.declare_queue("orders")
    await connection.publish("", "orders", b"still here")
    with pytest.raises(PreconditionFailed):
        await connection.declare_queue("orders", arguments={"x-max-length": 1})

    assert await drained(connection, "orders") == [b"still here"]


@pytest.mark.parametrize(
    "arguments",
    [{"x-message-ttl": -1}, {"x-message-ttl": "soon"}, {"x-max-length": -1}, {"x-expires": 0}, {"x-overflow": "wait"}],
    ids=str,
)
async def test_arguments_that_make_no_sense_are_refused(
    connection: Connection, arguments: dict[str, int | str]
) -> None:
    with pytest.raises(PreconditionFailed, match=f"406 PRECONDITION_FAILED - .*{next(iter(arguments))}"):
        await connection.declare_queue("orders", arguments=arguments)


async def test_an_exclusive_queue_is_locked_for_other_connections(connection: Connection, other: Connection) -> None:
    await connection.declare_queue("mine", exclusive=True)

    with pytest.raises(ResourceLocked, match="405 RESOURCE_LOCKED - cannot obtain exclusive access to locked queue"):
        await other.declare_queue("mine", exclusive=True)
    with pytest.raises(ResourceLocked):
        await other.consume("mine")
    with pytest.raises(ResourceLocked):
        await other.delete_queue("mine")


async def test_an_exclusive_queue_goes_with_its_connection(amqp_url: str, connection: Connection) -> None:
    async with Connection(amqp_url) as owner:
        await owner.declare_queue("mine", exclusive=True)

    await gone(connection, "mine")


async def test_an_auto_delete_queue_goes_with_its_last_consumer(connection: Connection) -> None:
    await connection.declare_queue("fleeting", auto_delete=True, exclusive=True)
    one = await connection.consume("fleeting")
    two = await connection.consume("fleeting")

    await one.cancel()
    assert (await connection.queue_info("fleeting")).consumers == 1
    await two.cancel()

    await gone(connection, "fleeting")


async def test_a_queue_that_nobody_uses_expires(connection: Connection, other: Connection) -> None:
    await connection.declare_queue("unused", arguments={"x-expires": 1})

    await gone(other, "unused")


# Emptying and deleting --------------------------------------------------------------------------------


async def test_purging_tells_how_many_messages_went(connection: Connection) -> None:
    await connection.declare_queue("orders")
    for body in (b"1", b"2", b"3"):
        await connection.publish("", "orders", body)

    assert await connection.purge_queue("orders") == 3
    assert (await connection.queue_info("orders")).messages == 0


async def test_purging_leaves_what_is_being_handled(connection: Connection) -> None:
    await connection.declare_queue("orders")
    for body in (b"taken", b"waiting"):
        await connection.publish("", "orders", body)
    taken = await connection.get("orders")
    assert taken is not None

    assert await connection.purge_queue("orders") == 1
    taken.nack(requeue=True)

    await ready(connection, "orders", 1)


async def test_purging_a_missing_queue_says_that_it_is_missing(connection: Connection) -> None:
    with pytest.raises(NotFound):
        await connection.purge_queue("missing")


async def test_deleting_a_queue_tells_how_many_messages_went_with_it(connection: Connection) -> None:
    await connection.declare_queue("orders")
    await connection.publish("", "orders", b"1")

    assert await connection.delete_queue("orders") == 1
    with pytest.raises(NotFound):
        await connection.queue_info("orders")


async def test_deleting_what_is_not_there_is_no_error(connection: Connection) -> None:
    assert await connection.delete_queue("missing") == 0
    await connection.delete_exchange("missing")


async def test_a_queue_in_use_is_not_deleted_if_that_was_asked_for(connection: Connection) -> None:
    await connection.declare_queue("orders")
    await connection.consume("orders")

    with pytest.raises(PreconditionFailed, match=r"406 PRECONDITION_FAILED - queue 'orders' in vhost .* in use"):
        await connection.delete_queue("orders", if_unused=True)


async def test_a_queue_with_messages_is_not_deleted_if_that_was_asked_for(connection: Connection) -> None:
    await connection.declare_queue("orders")
    await connection.publish("", "orders", b"1")

    with pytest.raises(PreconditionFailed, match=r"406 PRECONDITION_FAILED - queue 'orders' in vhost .* not empty"):
        await connection.delete_queue("orders", if_empty=True)


async def test_an_unused_empty_queue_is_deleted_when_it_may_be(connection: Connection) -> None:
    await connection.declare_queue("orders")

    await connection.delete_queue("orders", if_unused=True, if_empty=True)

    await gone(connection, "orders")


# Exchanges --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["direct", "fanout", "topic", "headers"])
async def test_a_declared_exchange_exists(connection: Connection, kind: str) -> None:
    await connection.declare_exchange("news", kind)

    assert await connection.exchange_exists("news")


@pytest.mark.parametrize("name", ["amq.direct", "amq.fanout", "amq.topic", "amq.headers", "amq.match"])
async def test_every_virtual_host_has_the_exchanges_of_the_specification(connection: Connection, name: str) -> None:
    assert await connection.exchange_exists(name)


async def test_an_exchange_that_was_not_declared_does_not_exist(connection: Connection) -> None:
    assert not await connection.exchange_exists("news")


async def test_declaring_an_exchange_again_changes_nothing(connection: Connection) -> None:
    await connection.declare_exchange("news", "topic", arguments={"alternate-exchange": "lost"})
    await connection.declare_exchange("news", "topic", arguments={"alternate-exchange": "lost"})


async def test_an_exchange_that_exists_with_another_type_is_refused_with_both(connection: Connection) -> None:
    await connection.declare_exchange("news", "topic")

    words = "inequivalent arg 'type' for exchange 'news' in vhost .*: received 'fanout' but current is 'topic'"
    with pytest.raises(PreconditionFailed, match=words):
        await connection.declare_exchange("news", "fanout")


@pytest.mark.parametrize("flag", ["durable", "auto_delete", "internal"])
async def test_an_exchange_that_exists_with_other_flags_is_refused(connection: Connection, flag: str) -> None:
    flags: Any = {"durable": True, "auto_delete": False, "internal": False}
    await connection.declare_exchange("news", **flags)

    with pytest.raises(PreconditionFailed, match=f"inequivalent arg '{flag}' for exchange 'news'"):
        await connection.declare_exchange("news", **{**flags, flag: not flags[flag]})


async def test_exchange_names_that_begin_with_amq_are_the_brokers(connection: Connection) -> None:
    with pytest.raises(AccessRefused, match="403 ACCESS_REFUSED"):
        await connection.declare_exchange("amq.mine")


async def test_the_default_exchange_is_the_brokers(connection: Connection) -> None:
    with pytest.raises(AccessRefused, match="403 ACCESS_REFUSED"):
        await connection.delete_exchange("")


async def test_a_deleted_exchange_takes_its_bindings_along(connection: Connection) -> None:
    await connection.declare_exchange("news", "fanout")
    await connection.declare_queue("paper")
    await connection.bind_queue("paper", "news")

    await connection.delete_exchange("news")
    await connection.declare_exchange("news", "fanout")
    await connection.publish("news", "", b"nobody is bound any more", mandatory=False)

    assert (await connection.queue_info("paper")).messages == 0


async def test_an_exchange_in_use_is_not_deleted_if_that_was_asked_for(connection: Connection) -> None:
    await connection.declare_exchange("news")
    await connection.declare_queue("paper")
    await connection.bind_queue("paper", "news", "sport")

    with pytest.raises(PreconditionFailed, match=r"exchange 'news' in vhost .* in use"):
        await connection.delete_exchange("news", if_unused=True)


async def test_an_auto_delete_exchange_goes_with_its_last_binding(connection: Connection) -> None:
    await connection.declare_exchange("fleeting", auto_delete=True)
    await connection.declare_queue("paper")
    await connection.bind_queue("paper", "fleeting", "sport")

    await connection.unbind_queue("paper", "fleeting", "sport")

    assert not await connection.exchange_exists("fleeting")


async def test_an_internal_exchange_is_reached_through_another_only(connection: Connection) -> None:
    await connection.declare_exchange("front", "fanout")
    await connection.declare_exchange("back", "fanout", internal=True)
    await connection.declare_queue("paper")
    await connection.bind_exchange("back", "front")
    await connection.bind_queue("paper", "back")

    await connection.publish("front", "", b"through the front")

    assert await drained(connection, "paper") == [b"through the front"]


# Bindings ---------------------------------------------------------------------------------------------


async def test_a_binding_brings_messages_and_unbinding_ends_it(connection: Connection) -> None:
    await connection.declare_exchange("news")
    await connection.declare_queue("paper")
    await connection.bind_queue("paper", "news", "sport")
    await connection.publish("news", "sport", b"bound")

    await connection.unbind_queue("paper", "news", "sport")
    await connection.publish("news", "sport", b"unbound", mandatory=False)

    assert await drained(connection, "paper") == [b"bound"]


async def test_a_queue_bound_twice_alike_gets_one_copy(connection: Connection) -> None:
    await connection.declare_exchange("news")
    await connection.declare_queue("paper")
    await connection.bind_queue("paper", "news", "sport")
    await connection.bind_queue("paper", "news", "sport")

    await connection.publish("news", "sport", b"once")

    assert await drained(connection, "paper") == [b"once"]


async def test_a_queue_bound_by_two_keys_that_both_match_gets_one_copy(connection: Connection) -> None:
    await connection.declare_exchange("news", "topic")
    await connection.declare_queue("paper")
    await connection.bind_queue("paper", "news", "sport.*")
    await connection.bind_queue("paper", "news", "*.chess")

    await connection.publish("news", "sport.chess", b"once")

    assert await drained(connection, "paper") == [b"once"]


async def test_unbinding_one_key_leaves_the_others(connection: Connection) -> None:
    await connection.declare_exchange("news")
    await connection.declare_queue("paper")
    await connection.bind_queue("paper", "news", "sport")
    await connection.bind_queue("paper", "news", "art")

    await connection.unbind_queue("paper", "news", "sport")
    await connection.publish("news", "art", b"still bound")

    assert await drained(connection, "paper") == [b"still bound"]


async def test_unbinding_what_is_not_bound_is_no_error(connection: Connection) -> None:
    await connection.declare_exchange("news")
    await connection.declare_queue("paper")

    await connection.unbind_queue("paper", "news", "sport")


async def test_exchanges_can_be_bound_to_exchanges_and_unbound(connection: Connection) -> None:
    await connection.declare_exchange("world", "topic")
    await connection.declare_exchange("sport", "fanout")
    await connection.declare_queue("paper")
    await connection.bind_exchange("sport", "world", "*.sport.#")
    await connection.bind_queue("paper", "sport")
    await connection.publish("world", "fr.sport.tennis", b"bound")

    await connection.unbind_exchange("sport", "world", "*.sport.#")
    await connection.publish("world", "fr.sport.tennis", b"unbound", mandatory=False)

    assert await drained(connection, "paper") == [b"bound"]


async def test_a_message_that_meets_itself_in_a_circle_of_exchanges_arrives_once(connection: Connection) -> None:
    for name in ("one", "two"):
        await connection.declare_exchange(name, "fanout")
    await connection.bind_exchange("one", "two")
    await connection.bind_exchange("two", "one")
    await connection.declare_queue("paper")
    await connection.bind_queue("paper", "two")

    await connection.publish("one", "", b"round and round")

    assert await drained(connection, "paper") == [b"round and round"]


async def test_a_binding_needs_both_of_its_ends(connection: Connection) -> None:
    await connection.declare_exchange("news")
    await connection.declare_queue("paper")

    with pytest.raises(NotFound, match="no exchange 'missing' in vhost"):
        await connection.bind_queue("paper", "missing", "sport")
    with pytest.raises(NotFound, match="no queue 'missing' in vhost"):
        await connection.bind_queue("missing", "news", "sport")
    with pytest.raises(NotFound, match="no exchange 'missing' in vhost"):
        await connection.bind_exchange("news", "missing")


async def test_nothing_is_bound_to_the_default_exchange(connection: Connection) -> None:
    await connection.declare_queue("paper")

    with pytest.raises(AccessRefused, match="operation not permitted on the default exchange"):
        await connection.bind_queue("paper", "", "sport")


# Quorum queues ----------------------------------------------------------------------------------------

QUORUM = {"x-queue-type": "quorum"}


async def test_a_quorum_queue_takes_and_gives_messages(connection: Connection) -> None:
    await connection.declare_queue("orders", arguments=QUORUM)
    await connection.publish("", "orders", b"safe")

    async with await connection.consume("orders") as consumer:
        [delivery] = await take(consumer, 1)
        delivery.ack()

    assert delivery.body == b"safe"


async def test_the_type_of_a_queue_cannot_be_changed(connection: Connection) -> None:
    await connection.declare_queue("orders", arguments=QUORUM)

    with pytest.raises(PreconditionFailed, match="inequivalent arg 'x-queue-type'"):
        await connection.declare_queue("orders", arguments={"x-queue-type": "classic"})


@pytest.mark.parametrize(
    "arguments",
    [
        {**QUORUM, "x-max-priority": 5},
        {"x-queue-type": "classic", "x-delivery-limit": 5},
        {"x-queue-type": "imaginary"},
    ],
    ids=["priorities in quorum", "limit in classic", "unknown type"],
)
async def test_arguments_that_a_type_of_queue_does_not_know_are_refused(
    connection: Connection, arguments: dict[str, int | str]
) -> None:
    with pytest.raises(PreconditionFailed, match="406 PRECONDITION_FAILED"):
        await connection.declare_queue("orders", arguments=arguments)


async def test_a_transient_quorum_queue_is_refused(connection: Connection) -> None:
    with pytest.raises(ChannelClosed, match="406 PRECONDITION_FAILED"):
        await connection.declare_queue("orders", durable=False, arguments=QUORUM)
