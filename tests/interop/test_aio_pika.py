"""aio-pika, unmodified, against the embedded broker."""

import asyncio
import datetime as dt
from collections.abc import AsyncIterator

import aio_pika
import pytest
from aio_pika import DeliveryMode, ExchangeType, Message
from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractIncomingMessage, AbstractQueue
from aio_pika.exceptions import (
    ChannelNotFoundEntity,
    ChannelPreconditionFailed,
    DeliveryError,
    ProbableAuthenticationError,
    PublishError,
    QueueEmpty,
)

from interop.conftest import Names
from interop.embedded import EmbeddedBroker


@pytest.fixture
async def connection(broker_url: str) -> AsyncIterator[AbstractConnection]:
    connection = await aio_pika.connect(broker_url)
    async with connection:
        yield connection


@pytest.fixture
async def channel(connection: AbstractConnection) -> AbstractChannel:
    return await connection.channel()


@pytest.fixture
async def dead(channel: AbstractChannel, names: Names) -> AbstractQueue:
    return await channel.declare_queue(names("dead"), durable=True)


@pytest.fixture
async def queue(channel: AbstractChannel, names: Names, dead: AbstractQueue) -> AbstractQueue:
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead.name}
    return await channel.declare_queue(names("q"), durable=True, arguments=arguments)


async def first(queue: AbstractQueue) -> AbstractIncomingMessage:
    async with asyncio.timeout(20), queue.iterator() as messages:
        return await anext(messages)


async def ignore(_: AbstractIncomingMessage) -> None:
    pass


async def publish(channel: AbstractChannel, queue: AbstractQueue, body: bytes, **properties: object) -> None:
    await channel.default_exchange.publish(Message(body, **properties), queue.name)  # type: ignore[arg-type]


async def test_a_confirmed_message_goes_through_an_exchange_to_a_consumer(
    channel: AbstractChannel, queue: AbstractQueue, names: Names
) -> None:
    exchange = await channel.declare_exchange(names("e"), ExchangeType.TOPIC, durable=True)
    await queue.bind(exchange, "orders.*")

    confirmation = await exchange.publish(
        Message(b"{}", delivery_mode=DeliveryMode.PERSISTENT, headers={"n": 1}), "orders.new", mandatory=True
    )

    assert type(confirmation).__name__ == "Ack"
    message = await first(queue)
    await message.ack()
    assert (message.exchange, message.routing_key, message.body) == (exchange.name, "orders.new", b"{}")
    assert (message.delivery_mode, message.headers, message.redelivered) == (DeliveryMode.PERSISTENT, {"n": 1}, False)


async def test_a_thousand_confirms_at_once_are_all_answered(channel: AbstractChannel, queue: AbstractQueue) -> None:
    await asyncio.gather(*(publish(channel, queue, b"%d" % number) for number in range(1000)))

    assert (await channel.declare_queue(queue.name, passive=True)).declaration_result.message_count == 1000


async def test_prefetch_holds_back_what_is_beyond_it(channel: AbstractChannel, queue: AbstractQueue) -> None:
    await channel.set_qos(prefetch_count=2)
    for _ in range(3):
        await publish(channel, queue, b"")
    got: asyncio.Queue[AbstractIncomingMessage] = asyncio.Queue()
    await queue.consume(got.put)
    async with asyncio.timeout(20):
        held = [await got.get(), await got.get()]
        assert (await channel.declare_queue(queue.name, passive=True)).declaration_result.message_count == 1
        assert got.empty()

        await held[0].ack()

        assert (await got.get()).delivery_tag == 3


async def test_a_rejected_message_tells_its_death(
    channel: AbstractChannel, queue: AbstractQueue, dead: AbstractQueue
) -> None:
    await publish(channel, queue, b"poison", headers={"tenant": "acme"})

    await (await first(queue)).reject(requeue=False)

    message = await first(dead)
    [death] = message.headers["x-death"]  # type: ignore[misc]
    assert (death["queue"], death["reason"], death["count"]) == (queue.name, "rejected", 1)  # type: ignore[index]
    assert isinstance(death["time"], dt.datetime)  # type: ignore[index]
    assert message.headers["x-first-death-reason"] == "rejected"
    assert message.headers["tenant"] == "acme"


async def test_a_handler_that_fails_in_process_dead_letters(
    channel: AbstractChannel, queue: AbstractQueue, dead: AbstractQueue
) -> None:
    await publish(channel, queue, b"poison")
    message = await first(queue)

    with pytest.raises(ZeroDivisionError):
        async with message.process(requeue=False):
            raise ZeroDivisionError

    assert (await first(dead)).body == b"poison"


async def test_an_expiration_is_kept_to(channel: AbstractChannel, queue: AbstractQueue, dead: AbstractQueue) -> None:
    await publish(channel, queue, b"late", expiration=0.002)

    message = await first(dead)

    assert message.headers["x-death"][0]["original-expiration"] == "2"  # type: ignore[index,call-overload]


async def test_an_unroutable_mandatory_message_is_a_publish_error(connection: AbstractConnection, names: Names) -> None:
    channel = await connection.channel(on_return_raises=True)

    with pytest.raises(PublishError) as returned:
        await channel.default_exchange.publish(Message(b""), names("nowhere"), mandatory=True)

    assert returned.value.message.delivery.reply_code == 312


async def test_a_full_queue_that_refuses_is_a_delivery_error(channel: AbstractChannel, names: Names) -> None:
    arguments = {"x-max-length": 1, "x-overflow": "reject-publish"}
    queue = await channel.declare_queue(names("full"), arguments=arguments)
    messages = [publish(channel, queue, b"x") for _ in range(3)]  # RabbitMQ lets one more in than it says

    with pytest.raises(DeliveryError):
        await asyncio.gather(*messages)


async def test_declaring_a_queue_differently_is_406_and_ends_only_the_channel(
    connection: AbstractConnection, queue: AbstractQueue
) -> None:
    channel = await connection.channel()

    with pytest.raises(ChannelPreconditionFailed, match="inequivalent arg 'durable' for queue"):
        await channel.declare_queue(queue.name, durable=False)

    assert not (await connection.channel()).is_closed


async def test_what_is_not_there_is_404(connection: AbstractConnection, names: Names) -> None:
    channel = await connection.channel()

    with pytest.raises(ChannelNotFoundEntity, match="no queue"):
        await channel.declare_queue(names("missing"), passive=True)


async def test_getting_from_an_empty_queue_is_its_own_error(queue: AbstractQueue) -> None:
    with pytest.raises(QueueEmpty):
        await queue.get()


async def test_a_consumer_is_told_when_its_queue_goes(
    connection: AbstractConnection, channel: AbstractChannel, queue: AbstractQueue
) -> None:
    told: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    underlay = await channel.get_underlay_channel()
    underlay.on_consumer_cancel_callbacks.add(lambda frame: told.set_result(frame.consumer_tag))
    tag = await queue.consume(ignore)

    await (await connection.channel()).queue_delete(queue.name)

    async with asyncio.timeout(20):
        assert await told == tag


async def test_a_transaction_is_all_or_nothing(connection: AbstractConnection, queue: AbstractQueue) -> None:
    channel = await connection.channel(publisher_confirms=False)
    async with channel.transaction():
        await publish(channel, queue, b"done")
    transaction = channel.transaction()
    await transaction.select()
    await publish(channel, queue, b"undone")
    await transaction.rollback()

    assert (await queue.get(no_ack=True)).body == b"done"
    assert await queue.get(no_ack=True, fail=False) is None


async def test_a_wrong_password_is_refused(broker_url: str) -> None:
    with pytest.raises(ProbableAuthenticationError):
        await aio_pika.connect(broker_url.replace("guest:guest", "guest:wrong"))


async def test_a_robust_connection_comes_back_with_everything_after_a_restart(own_broker: EmbeddedBroker) -> None:
    connection = await aio_pika.connect_robust(own_broker.url, reconnect_interval=0.05)
    async with connection, asyncio.timeout(40):
        channel = await connection.channel()
        exchange = await channel.declare_exchange("robust", ExchangeType.FANOUT, durable=True)
        queue = await channel.declare_queue("robust", durable=True)
        transient = await channel.declare_queue("transient", auto_delete=True)
        await queue.bind(exchange)
        await transient.bind(exchange)
        got: asyncio.Queue[AbstractIncomingMessage] = asyncio.Queue()
        await queue.consume(got.put)
        again: asyncio.Queue[AbstractIncomingMessage] = asyncio.Queue()
        await transient.consume(again.put)
        await exchange.publish(Message(b"before", delivery_mode=DeliveryMode.PERSISTENT), "")
        assert (await got.get()).body == b"before"  # and is not acked
        await again.get()

        back = asyncio.Event()
        connection.reconnect_callbacks.add(lambda *_: back.set())
        await asyncio.to_thread(own_broker.kill)
        await asyncio.to_thread(own_broker.start)
        await back.wait()

        redelivered = await got.get()
        assert (redelivered.body, redelivered.redelivered) == (b"before", True)
        await redelivered.ack()
        await exchange.publish(Message(b"after", delivery_mode=DeliveryMode.PERSISTENT), "")
        assert (await got.get()).body == b"after"
        assert (await again.get()).body == b"after"
