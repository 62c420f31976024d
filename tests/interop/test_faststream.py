"""FastStream, unmodified, against the embedded broker."""

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest
from aio_pika.exceptions import ChannelPreconditionFailed, PublishError
from faststream import AckPolicy
from faststream.rabbit import Channel, ExchangeType, RabbitBroker, RabbitExchange, RabbitMessage, RabbitQueue

from interop.conftest import Names
from interop.embedded import EmbeddedBroker

WITHIN = 20


@pytest.fixture
async def broker(broker_url: str) -> AsyncIterator[RabbitBroker]:
    """Not started: subscribers are declared first."""
    broker = RabbitBroker(broker_url, log_level=logging.DEBUG)
    yield broker
    await broker.stop()


def dead_lettering(name: str) -> RabbitQueue:
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": f"{name}.dead"}
    return RabbitQueue(name, durable=True, arguments=arguments)  # type: ignore[arg-type]


async def test_a_subscriber_gets_what_is_published_to_its_topic(broker: RabbitBroker, names: Names) -> None:
    exchange = RabbitExchange(names("e"), type=ExchangeType.TOPIC, durable=True)
    got: asyncio.Queue[dict[str, int]] = asyncio.Queue()

    @broker.subscriber(RabbitQueue(names("q"), durable=True, routing_key="orders.*"), exchange)
    async def handle(order: dict[str, int]) -> None:
        await got.put(order)

    await broker.start()
    await broker.publish({"id": 1}, routing_key="orders.new", exchange=exchange, persist=True, mandatory=True)

    async with asyncio.timeout(WITHIN):
        assert await got.get() == {"id": 1}


async def test_an_answer_comes_back_to_who_asked(broker: RabbitBroker, names: Names) -> None:
    """FastStream's request() waits on RabbitMQ's direct reply-to."""
    queue = names("q")

    @broker.subscriber(queue)
    async def double(number: int) -> int:
        return number * 2

    await broker.start()

    response = await broker.request(21, queue, timeout=WITHIN)

    assert await response.decode() == 42


async def test_a_subscriber_that_fails_dead_letters_with_the_story(broker: RabbitBroker, names: Names) -> None:
    name = names("q")
    dead: asyncio.Queue[RabbitMessage] = asyncio.Queue()

    @broker.subscriber(dead_lettering(name), ack_policy=AckPolicy.REJECT_ON_ERROR)
    async def handle(_: str) -> None:
        raise ZeroDivisionError

    @broker.subscriber(RabbitQueue(f"{name}.dead", durable=True))
    async def bury(message: RabbitMessage) -> None:
        await dead.put(message)

    await broker.start()
    await broker.publish("poison", name, headers={"tenant": "acme"})

    async with asyncio.timeout(WITHIN):
        message = await dead.get()
    [death] = message.headers["x-death"]
    assert (death["queue"], death["reason"], death["count"]) == (name, "rejected", 1)
    assert message.headers["tenant"] == "acme"


async def test_a_subscriber_that_nacks_gets_it_again_as_redelivered(broker: RabbitBroker, names: Names) -> None:
    queue = names("q")
    redelivered: asyncio.Queue[bool | None] = asyncio.Queue()

    @broker.subscriber(queue, ack_policy=AckPolicy.NACK_ON_ERROR)
    async def handle(_: str, message: RabbitMessage) -> None:
        await redelivered.put(message.raw_message.redelivered)
        if not message.raw_message.redelivered:
            raise ZeroDivisionError

    await broker.start()
    await broker.publish("again", queue)

    async with asyncio.timeout(WITHIN):
        assert [await redelivered.get(), await redelivered.get()] == [False, True]


async def test_prefetch_bounds_what_is_handled_at_once(broker: RabbitBroker, names: Names) -> None:
    queue = names("q")
    begun: asyncio.Queue[str] = asyncio.Queue()
    later: asyncio.Queue[str] = asyncio.Queue()
    go_on = asyncio.Event()

    @broker.subscriber(queue, channel=Channel(prefetch_count=2))
    async def handle(text: str) -> None:
        await begun.put(text)
        await go_on.wait()

    @broker.subscriber(f"{queue}.other")
    async def handle_later(text: str) -> None:
        await later.put(text)

    await broker.start()
    for text in ("a", "b", "c"):
        await broker.publish(text, queue)

    async with asyncio.timeout(WITHIN):
        assert [await begun.get(), await begun.get()] == ["a", "b"]
        await broker.publish("later", f"{queue}.other")
        await later.get()
        assert begun.empty()  # what was published after the third is here, and the third is not
        go_on.set()
        assert await begun.get() == "c"


async def test_an_unroutable_mandatory_message_is_a_publish_error(broker_url: str, names: Names) -> None:
    async with RabbitBroker(broker_url, default_channel=Channel(on_return_raises=True)) as broker:
        with pytest.raises(PublishError):
            await broker.publish("lost?", names("nowhere"), mandatory=True)


async def test_declaring_a_queue_differently_is_406(broker: RabbitBroker, broker_url: str, names: Names) -> None:
    name = names("q")
    await broker.start()
    await broker.declare_queue(dead_lettering(name))

    async with RabbitBroker(broker_url) as other:
        with pytest.raises(ChannelPreconditionFailed, match="inequivalent arg 'x-dead-letter-exchange'"):
            await other.declare_queue(RabbitQueue(name, durable=True))


async def test_subscribers_go_on_after_the_broker_was_killed(own_broker: EmbeddedBroker) -> None:
    broker = RabbitBroker(own_broker.url, reconnect_interval=0.05)
    got: asyncio.Queue[str] = asyncio.Queue()

    @broker.subscriber(RabbitQueue("orders", durable=True))
    async def handle(text: str) -> None:
        await got.put(text)

    async with broker, asyncio.timeout(40):
        await broker.start()
        await broker.publish("before", "orders", persist=True)
        assert await got.get() == "before"

        await asyncio.to_thread(own_broker.kill)
        await asyncio.to_thread(own_broker.start)
        async with RabbitBroker(own_broker.url) as other:
            await other.publish("after", "orders", persist=True)

        while await got.get() != "after":  # "before" comes again if its ack was not on disk
            pass
