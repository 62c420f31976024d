"""A consumer hands out every delivery once, comes back from every interruption, and ends when it is told to."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from itertools import count

import pytest

from redrive.client import Connection, Consumer, Delivery
from redrive.client.consumer import ConsumerState
from redrive.errors import (
    ConfigurationError,
    ConnectionClosed,
    ConnectionLost,
    ConsumerCancelled,
    NotFound,
    PreconditionFailed,
    ResourceLocked,
)
from redrive.wire.method import Method
from redrive.wire.methods.basic import (
    BasicAck,
    BasicCancel,
    BasicCancelOk,
    BasicConsume,
    BasicConsumeOk,
    BasicNack,
    BasicQos,
    BasicReject,
)
from redrive.wire.methods.channel import ChannelClose, ChannelOpen
from redrive.wire.methods.connection import ConnectionClose
from redrive.wire.methods.queue import QueueBind, QueueDeclare, QueueDeclareOk
from unit.client.scripted import ScriptedBroker, Session

CANCEL = BasicCancel(consumer_tag="ctag", no_wait=True)
TIMEOUT = ChannelClose(reply_code=406, reply_text="PRECONDITION_FAILED - delivery acknowledgement timed out")
SHUTDOWN = ConnectionClose(reply_code=320, reply_text="CONNECTION_FORCED - broker forced connection closure")


async def consuming(connection: Connection, broker: ScriptedBroker, **options: int) -> tuple[Consumer, int]:
    """A consumer to iterate over, and its channel."""
    consumer = await connection.consume("orders", **options)  # type: ignore[arg-type]
    return consumer, await broker.session.hears_on(BasicConsume)


async def consumes_again(consumer: Consumer, times: int = 1) -> None:
    async with asyncio.timeout(10):
        while consumer.restarts < times or consumer.state is not ConsumerState.CONSUMING:
            await consumer.until(ConsumerState.RECOVERING)
            await consumer.until(ConsumerState.CONSUMING)


class Worker:
    """A handler that tells when it has begun and ends when it may."""

    def __init__(self) -> None:
        self.began = asyncio.Event()
        self.may_end = asyncio.Event()
        self.handled: list[bytes] = []

    async def __call__(self, delivery: Delivery) -> None:
        self.began.set()
        await self.may_end.wait()
        self.handled.append(delivery.body)
        delivery.ack()


# Starting ---------------------------------------------------------------------------------------------


async def test_the_broker_is_asked_for_as_much_as_the_prefetch_says(
    connection: Connection, broker: ScriptedBroker
) -> None:
    await connection.consume("orders", prefetch=7)

    assert broker.session.heard(BasicQos) == [BasicQos(prefetch_count=7)]


async def test_queue_exclusiveness_and_arguments_are_passed_on(connection: Connection, broker: ScriptedBroker) -> None:
    await connection.consume("orders", exclusive=True, arguments={"x-priority": 5})

    asked = BasicConsume(queue="orders", exclusive=True, arguments={"x-priority": 5})
    assert broker.session.heard(BasicConsume) == [asked]


@pytest.mark.parametrize("prefetch", [0, -1, 65536])
async def test_a_prefetch_without_bounds_is_refused(connection: Connection, prefetch: int) -> None:
    with pytest.raises(ConfigurationError, match="want 1 to 65535"):
        await connection.consume("orders", prefetch=prefetch)


@pytest.mark.parametrize("prefetch", [0, -1, 65536])
async def test_a_prefetch_without_bounds_is_refused_for_many(connection: Connection, prefetch: int) -> None:
    async def gather(_: Sequence[Delivery]) -> None: ...

    with pytest.raises(ConfigurationError, match="prefetch"):
        await connection.consume_many("orders", gather, prefetch=prefetch)


async def test_no_concurrency_at_all_is_refused(connection: Connection) -> None:
    with pytest.raises(ConfigurationError, match="want at least 1"):
        await connection.consume("orders", concurrency=0)


async def test_what_the_broker_refuses_at_first_it_refuses_the_caller(
    connection: Connection, broker: ScriptedBroker
) -> None:
    broker.answers[BasicConsume] = ChannelClose(reply_code=404, reply_text="NOT_FOUND - no queue 'orders'")

    with pytest.raises(NotFound):
        await connection.consume("orders")
    assert "consumers=0" in repr(connection)


@pytest.mark.parametrize("moment", [ChannelOpen, BasicQos, BasicConsume])
async def test_a_caller_that_gives_up_leaves_no_channel_behind(
    connection: Connection, broker: ScriptedBroker, moment: type
) -> None:
    broker.session.forget()
    broker.ignore(moment)
    starting = asyncio.create_task(connection.consume("orders"))
    await broker.session.hears(moment)

    starting.cancel()

    assert await broker.session.hears(ChannelClose)
    await asyncio.wait([starting])


async def test_a_caller_that_gives_up_as_the_broker_agrees_leaves_no_consumer_behind(
    connection: Connection, broker: ScriptedBroker
) -> None:
    broker.ignore(BasicConsume)
    starting = asyncio.create_task(connection.consume("orders"))
    channel = await broker.session.hears_on(BasicConsume)

    broker.session.say(channel, BasicConsumeOk(consumer_tag="ctag"))
    broker.session.deliver(channel, b"too late")
    starting.cancel()

    assert await broker.session.hears(ChannelClose)


# Iterating --------------------------------------------------------------------------------------------


async def test_deliveries_come_in_order(connection: Connection, broker: ScriptedBroker) -> None:
    consumer, channel = await consuming(connection, broker)
    broker.session.deliver(channel, b"1", b"2", b"3")

    assert [(await anext(consumer)).body for _ in range(3)] == [b"1", b"2", b"3"]


async def test_a_delivery_that_comes_with_the_consume_ok_is_not_lost(
    connection: Connection, broker: ScriptedBroker
) -> None:
    broker.ignore(BasicConsume)
    starting = asyncio.create_task(connection.consume("orders"))
    channel = await broker.session.hears_on(BasicConsume)
    broker.session.conversation.send(channel, BasicConsumeOk(consumer_tag="ctag"))
    broker.session.deliver(channel, b"first")

    assert (await anext(await starting)).body == b"first"


async def test_one_that_stopped_waiting_for_a_delivery_does_not_take_it_along(
    connection: Connection, broker: ScriptedBroker
) -> None:
    consumer, channel = await consuming(connection, broker)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.001):
            await anext(consumer)

    broker.session.deliver(channel, b"1")

    assert (await anext(consumer)).body == b"1"


async def test_those_that_stopped_waiting_are_forgotten(connection: Connection, broker: ScriptedBroker) -> None:
    """A program that polls with a timeout does so for months."""
    consumer, _ = await consuming(connection, broker)

    for _ in range(50):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await anext(consumer)

    assert len(consumer._waiters) == 0


async def test_two_can_iterate_and_each_delivery_goes_to_one_of_them(
    connection: Connection, broker: ScriptedBroker
) -> None:
    consumer, channel = await consuming(connection, broker)
    waiting = [asyncio.create_task(anext(consumer)) for _ in range(2)]
    await asyncio.sleep(0)

    broker.session.deliver(channel, b"1", b"2")

    assert sorted([(await task).body for task in waiting]) == [b"1", b"2"]


async def test_an_iterator_that_is_cancelled_as_its_delivery_comes_leaves_it_to_the_next(
    connection: Connection, broker: ScriptedBroker
) -> None:
    consumer, channel = await consuming(connection, broker)
    leaving, staying = (asyncio.create_task(anext(consumer)) for _ in range(2))
    await asyncio.sleep(0)

    def leave_as_it_comes(delivery: Delivery) -> None:
        deliver(delivery)
        leaving.cancel()

    [line] = [line for line in connection._link._channels.values() if line.number == channel]  # type: ignore[union-attr]
    deliver, line.on_delivery = line.on_delivery, leave_as_it_comes
    broker.session.deliver(channel, b"1")

    assert (await asyncio.wait_for(staying, 5)).body == b"1"


async def test_iterating_over_a_full_buffer_lets_others_have_a_turn(
    connection: Connection, broker: ScriptedBroker
) -> None:
    consumer, channel = await consuming(connection, broker, prefetch=1000)
    broker.session.deliver(channel, *[b"body"] * 200)
    await anext(consumer)
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    counting = asyncio.create_task(count_turns())
    for _ in range(199):
        (await anext(consumer)).ack()
    counting.cancel()

    assert turns >= 2


async def test_iterating_ends_when_the_consumer_is_cancelled(connection: Connection, broker: ScriptedBroker) -> None:
    consumer, _ = await consuming(connection, broker)

    async def iterate() -> int:
        return len([delivery async for delivery in consumer])

    iterating = asyncio.create_task(iterate())
    await asyncio.sleep(0)

    await consumer.cancel()

    assert await asyncio.wait_for(iterating, 5) == 0


async def test_leaving_the_block_cancels_the_consumer(connection: Connection, broker: ScriptedBroker) -> None:
    async with await connection.consume("orders") as consumer:
        pass

    assert consumer.state is ConsumerState.CANCELLED
    assert broker.session.heard(BasicCancel) == [BasicCancel(consumer_tag="ctag")]


# Handlers ---------------------------------------------------------------------------------------------


async def handling(
    connection: Connection, broker: ScriptedBroker, handler: Callable[[Delivery], Awaitable[None]], **options: int
) -> tuple[Consumer, int]:
    consumer = await connection.consume("orders", handler, **options)  # type: ignore[arg-type]
    return consumer, await broker.session.hears_on(BasicConsume)


async def test_a_handler_is_called_for_each_delivery_in_order(connection: Connection, broker: ScriptedBroker) -> None:
    worker = Worker()
    worker.may_end.set()
    _, channel = await handling(connection, broker, worker)

    broker.session.deliver(channel, b"1", b"2", b"3")
    await broker.session.hears(BasicAck)

    assert worker.handled == [b"1", b"2", b"3"]


async def test_as_many_handlers_run_at_once_as_the_concurrency_says(
    connection: Connection, broker: ScriptedBroker
) -> None:
    running = most = 0
    full = asyncio.Event()

    async def handler(delivery: Delivery) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == 3:
            full.set()
        await full.wait()
        running -= 1
        delivery.ack()

    _, channel = await handling(connection, broker, handler, concurrency=3)
    broker.session.deliver(channel, *[b"body"] * 10)

    async with asyncio.timeout(5):
        while sum(len(session.heard(BasicAck)) for session in broker.sessions) == 0 or running:
            await broker.session.hears(BasicAck)
    assert most == 3


async def test_a_handler_that_fails_gives_the_message_back_and_gets_the_next(
    connection: Connection, broker: ScriptedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    async def handler(delivery: Delivery) -> None:
        if delivery.body == b"bad":
            raise ValueError("cannot handle this")
        delivery.ack()

    _, channel = await handling(connection, broker, handler)
    with caplog.at_level(logging.CRITICAL, "redrive.client"):
        broker.session.deliver(channel, b"bad", b"good")

        assert await broker.session.hears(BasicNack) == BasicNack(delivery_tag=1, requeue=True)
        assert await broker.session.hears(BasicAck)


async def test_a_handler_that_fails_after_it_has_settled_changes_nothing(
    connection: Connection, broker: ScriptedBroker
) -> None:
    async def handler(delivery: Delivery) -> None:
        delivery.reject()
        raise ValueError("afterwards")

    _, channel = await handling(connection, broker, handler)
    broker.session.deliver(channel, b"1", b"2")

    assert await broker.session.hears(BasicReject) == BasicReject(delivery_tag=1, requeue=False)
    assert await broker.session.hears(BasicReject) == BasicReject(delivery_tag=2, requeue=False)
    assert broker.session.heard(BasicNack) == []


async def test_a_handler_for_many_gets_all_that_has_come_in_order_and_never_too_many(
    connection: Connection, broker: ScriptedBroker
) -> None:
    calls: list[list[bytes]] = []

    async def gather(deliveries: Sequence[Delivery]) -> None:
        calls.append([delivery.body for delivery in deliveries])
        for delivery in deliveries:
            delivery.ack()

    await connection.consume_many("orders", gather, prefetch=500)
    bodies = [b"%d" % number for number in range(150)]
    broker.session.deliver(await broker.session.hears_on(BasicConsume), *bodies)
    async with asyncio.timeout(5):
        while sum(map(len, calls)) < len(bodies):
            await broker.session.hears(BasicAck)

    assert [body for call in calls for body in call] == bodies
    assert max(map(len, calls)) == 64


async def test_a_handler_for_many_that_fails_gives_back_what_it_did_not_settle(
    connection: Connection, broker: ScriptedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    async def gather(deliveries: Sequence[Delivery]) -> None:
        if len(deliveries) == 3:
            deliveries[0].reject()
            raise ValueError("cannot handle these")
        deliveries[0].ack()

    await connection.consume_many("orders", gather)
    channel = await broker.session.hears_on(BasicConsume)
    with caplog.at_level(logging.CRITICAL, "redrive.client"):
        broker.session.deliver(channel, b"1", b"2", b"3")
        given_back = [await broker.session.hears(BasicNack) for _ in range(2)]
        broker.session.deliver(channel, b"4")
        await broker.session.hears(BasicAck)

    assert [nack.delivery_tag for nack in given_back] == [2, 3]
    assert broker.session.heard(BasicReject) == [BasicReject(delivery_tag=1, requeue=False)]


async def test_cancelling_waits_for_a_handler_of_many(connection: Connection, broker: ScriptedBroker) -> None:
    began, may_end = asyncio.Event(), asyncio.Event()

    async def gather(deliveries: Sequence[Delivery]) -> None:
        began.set()
        await may_end.wait()
        for delivery in deliveries:
            delivery.ack()

    consumer = await connection.consume_many("orders", gather)
    broker.session.deliver(await broker.session.hears_on(BasicConsume), b"1", b"2")
    await began.wait()
    cancelling = asyncio.create_task(consumer.cancel())
    await broker.session.hears(BasicCancel)
    assert not cancelling.done()

    may_end.set()
    await cancelling

    assert broker.session.heard(BasicAck) == [BasicAck(delivery_tag=2, multiple=True)]


async def test_a_handler_in_which_something_was_cancelled_has_failed_like_any_other(
    connection: Connection, broker: ScriptedBroker
) -> None:
    """A task that the handler waited for was cancelled by somebody. The runner itself was not, and goes on."""

    async def handler(delivery: Delivery) -> None:
        if delivery.body == b"bad":
            cancelled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            cancelled.cancel()
            await cancelled
        delivery.ack()

    _, channel = await handling(connection, broker, handler)
    broker.session.deliver(channel, b"bad", b"good")

    assert await broker.session.hears(BasicNack) == BasicNack(delivery_tag=1, requeue=True)
    assert await broker.session.hears(BasicAck)


async def test_a_handler_may_cancel_its_own_consumer(connection: Connection, broker: ScriptedBroker) -> None:
    consumers: list[Consumer] = []

    async def handler(delivery: Delivery) -> None:
        delivery.ack()
        await consumers[0].cancel()

    consumer, channel = await handling(connection, broker, handler)
    consumers.append(consumer)
    broker.session.deliver(channel, b"the last one")

    assert await asyncio.wait_for(consumer.until(ConsumerState.CANCELLED), 5)
    assert len(broker.session.heard(BasicAck)) == 1


async def test_all_handlers_of_a_consumer_may_cancel_it_at_once(connection: Connection, broker: ScriptedBroker) -> None:
    consumers: list[Consumer] = []
    both = asyncio.Barrier(2)

    async def handler(delivery: Delivery) -> None:
        delivery.ack()
        await both.wait()
        await consumers[0].cancel()

    consumer, channel = await handling(connection, broker, handler, concurrency=2)
    consumers.append(consumer)
    broker.session.deliver(channel, b"1", b"2")

    assert await asyncio.wait_for(consumer.until(ConsumerState.CANCELLED), 5)


# Interruptions ----------------------------------------------------------------------------------------


async def test_a_consumer_that_the_broker_cancels_consumes_again(
    connection: Connection, broker: ScriptedBroker
) -> None:
    consumer, channel = await consuming(connection, broker)

    broker.session.say(channel, CANCEL)
    await consumes_again(consumer)

    assert isinstance(consumer.last_error, ConsumerCancelled)
    assert len(broker.session.heard(BasicConsume)) == 2


async def test_a_cancelled_consumer_gives_back_what_nobody_took(connection: Connection, broker: ScriptedBroker) -> None:
    consumer, channel = await consuming(connection, broker)
    broker.session.deliver(channel, b"1", b"2")
    broker.session.say(channel, CANCEL)

    assert await broker.session.hears(BasicNack) == BasicNack(delivery_tag=1, requeue=True)
    assert await broker.session.hears(BasicNack) == BasicNack(delivery_tag=2, requeue=True)
    await consumes_again(consumer)


async def test_what_was_taken_before_the_broker_cancelled_can_still_be_settled(
    connection: Connection, broker: ScriptedBroker
) -> None:
    consumer, channel = await consuming(connection, broker)
    broker.session.deliver(channel, b"taken")
    taken = await anext(consumer)
    broker.session.say(channel, CANCEL)
    await consumes_again(consumer)

    assert taken.ack() is True
    assert await broker.session.hears(BasicAck)
    assert await broker.session.hears_on(ChannelClose) == channel


async def test_a_consumer_whose_channel_is_closed_consumes_again(
    connection: Connection, broker: ScriptedBroker
) -> None:
    consumer, channel = await consuming(connection, broker)

    broker.session.say(channel, TIMEOUT)
    await consumes_again(consumer)

    assert isinstance(consumer.last_error, PreconditionFailed)


async def test_what_was_taken_before_the_channel_was_closed_is_too_late_to_settle(
    connection: Connection, broker: ScriptedBroker
) -> None:
    consumer, channel = await consuming(connection, broker)
    broker.session.deliver(channel, b"taken")
    taken = await anext(consumer)

    broker.session.say(channel, TIMEOUT)
    await consumes_again(consumer)

    assert taken.ack() is False


async def test_what_was_buffered_before_the_channel_was_closed_is_not_handed_out(
    connection: Connection, broker: ScriptedBroker
) -> None:
    consumer, channel = await consuming(connection, broker)
    broker.session.deliver(channel, b"stale")
    broker.session.say(channel, TIMEOUT)
    await consumes_again(consumer)

    again = await broker.session.hears_on(BasicConsume)
    broker.session.deliver(again, b"fresh")

    assert (await anext(consumer)).body == b"fresh"


@pytest.mark.parametrize("close", [TIMEOUT, SHUTDOWN], ids=["channel", "connection"])
async def test_a_cancel_in_one_read_with_a_close_upsets_nobody(
    connection: Connection, broker: ScriptedBroker, close: ChannelClose | ConnectionClose
) -> None:
    """A broker that shuts down cancels its consumers and closes the connection in one breath."""
    consumer, channel = await consuming(connection, broker)
    broker.session.deliver(channel, b"taken", b"buffered")
    await anext(consumer)
    assert "buffered=1" in repr(consumer)

    broker.session.conversation.send(channel, CANCEL)
    broker.session.say(channel if close is TIMEOUT else 0, close)

    await consumes_again(consumer)


async def test_a_consumer_consumes_again_over_the_next_connection(
    connection: Connection, broker: ScriptedBroker
) -> None:
    consumer, _ = await consuming(connection, broker)

    broker.hang_up()
    await consumes_again(consumer)

    assert len(broker.sessions) == 2
    assert broker.session.heard(BasicConsume) == [BasicConsume(queue="orders")]


async def test_a_consumer_tries_until_the_broker_lets_it(connection: Connection, broker: ScriptedBroker) -> None:
    consumer, channel = await consuming(connection, broker)
    broker.first(BasicConsume, *[ChannelClose(reply_code=405, reply_text="RESOURCE_LOCKED")] * 3)

    broker.session.say(channel, TIMEOUT)
    await consumes_again(consumer)

    assert isinstance(consumer.last_error, ResourceLocked)
    assert len(broker.session.heard(BasicConsume)) == 5


async def test_a_queue_that_was_declared_here_is_declared_before_it_is_consumed_again(
    connection: Connection, broker: ScriptedBroker
) -> None:
    await connection.declare_queue("orders")
    await connection.bind_queue("orders", "amq.topic", "#")
    consumer, channel = await consuming(connection, broker)
    broker.session.forget()

    broker.session.say(channel, CANCEL)
    await consumes_again(consumer)

    heard = [type(method) for method in broker.session.heard(Method)]
    wanted = [QueueDeclare, QueueBind, BasicConsume]
    assert [method for method in heard if method in wanted] == wanted


async def test_a_queue_that_was_not_declared_here_is_left_to_its_owner(
    connection: Connection, broker: ScriptedBroker
) -> None:
    consumer, channel = await consuming(connection, broker)

    broker.session.say(channel, CANCEL)
    await consumes_again(consumer)

    assert broker.session.heard(QueueDeclare) == []


async def test_a_server_named_queue_that_is_still_there_is_not_exchanged_for_an_empty_one(
    connection: Connection, broker: ScriptedBroker
) -> None:
    """Only the channel ended: the queue has its messages, and a new one would have none."""
    queue = await connection.declare_queue(exclusive=True)
    consumer = await connection.consume(queue.name)
    channel = await broker.session.hears_on(BasicConsume)

    broker.session.say(channel, TIMEOUT)
    await consumes_again(consumer)

    assert [consume.queue for consume in broker.session.heard(BasicConsume)] == [queue.name, queue.name]
    assert len([declare for declare in broker.session.heard(QueueDeclare) if declare.queue == ""]) == 1


async def test_a_server_named_queue_that_is_gone_is_exchanged_for_another(
    connection: Connection, broker: ScriptedBroker
) -> None:
    broker.answers[QueueDeclare] = naming = named_by_the_broker()
    queue = await connection.declare_queue(exclusive=True)
    consumer = await connection.consume(queue.name)
    channel = await broker.session.hears_on(BasicConsume)

    broker.answers[QueueDeclare] = gone_at_first(naming)
    broker.session.say(channel, CANCEL)
    await consumes_again(consumer)

    assert [consume.queue for consume in broker.session.heard(BasicConsume)] == ["amq.gen-1", "amq.gen-2"]
    assert consumer.queue == "amq.gen-2"


async def test_over_the_next_connection_a_server_named_queue_is_declared_once(
    connection: Connection, broker: ScriptedBroker
) -> None:
    """Twice would leave a queue behind that is bound, gets messages and has no consumer."""
    broker.answers[QueueDeclare] = named_by_the_broker()
    queue = await connection.declare_queue(exclusive=True)
    consumer = await connection.consume(queue.name)

    broker.hang_up()
    await consumes_again(consumer)

    assert len([declare for declare in broker.session.heard(QueueDeclare) if declare.queue == ""]) == 1


def named_by_the_broker() -> Callable[[QueueDeclare], Method]:
    numbers = count(1)
    return lambda declare: QueueDeclareOk(queue=declare.queue or f"amq.gen-{next(numbers)}")


def gone_at_first(answer: Callable[[QueueDeclare], Method]) -> Callable[[QueueDeclare], Method]:
    """A passive declare finds nothing."""
    return lambda declare: ChannelClose(reply_code=404) if declare.passive else answer(declare)


# The end ----------------------------------------------------------------------------------------------


async def test_cancelling_gives_back_what_nobody_took(connection: Connection, broker: ScriptedBroker) -> None:
    consumer, channel = await consuming(connection, broker)
    broker.session.deliver(channel, b"1", b"2")

    await consumer.cancel()

    given_back = [nack.delivery_tag for nack in broker.session.heard(BasicNack)]
    assert given_back == [1, 2]


async def test_cancelling_gives_back_what_comes_while_the_broker_is_asked(
    connection: Connection, broker: ScriptedBroker
) -> None:
    consumer, channel = await consuming(connection, broker)
    broker.ignore(BasicCancel)
    cancelling = asyncio.create_task(consumer.cancel())
    await broker.session.hears(BasicCancel)

    broker.session.deliver(channel, b"late")
    broker.session.say(channel, BasicCancelOk(consumer_tag="ctag"))
    await cancelling

    assert broker.session.heard(BasicNack) == [BasicNack(delivery_tag=1, requeue=True)]


async def test_cancelling_waits_for_the_handlers_and_their_acks(connection: Connection, broker: ScriptedBroker) -> None:
    worker = Worker()
    consumer, channel = await handling(connection, broker, worker)
    broker.session.deliver(channel, b"being handled")
    await worker.began.wait()
    cancelling = asyncio.create_task(consumer.cancel())
    await broker.session.hears(BasicCancel)
    assert not cancelling.done()

    worker.may_end.set()
    await cancelling

    assert [type(method) for method in broker.session.heard(Method)[-3:]] == [BasicCancel, BasicAck, ChannelClose]


async def test_cancelling_twice_is_cancelling_once(connection: Connection, broker: ScriptedBroker) -> None:
    consumer, _ = await consuming(connection, broker)

    await consumer.cancel()
    await consumer.cancel()

    assert len(broker.session.heard(BasicCancel)) == 1


async def test_one_who_cancels_second_waits_as_long_as_the_first(
    connection: Connection, broker: ScriptedBroker
) -> None:
    worker = Worker()
    consumer, channel = await handling(connection, broker, worker)
    broker.session.deliver(channel, b"being handled")
    await worker.began.wait()
    first = asyncio.create_task(consumer.cancel())
    await broker.session.hears(BasicCancel)

    second = asyncio.create_task(consumer.cancel())
    await asyncio.sleep(0)
    assert not second.done()
    worker.may_end.set()

    await asyncio.gather(first, second)


async def test_cancelling_while_the_broker_closes_the_channel_ends_well(
    connection: Connection, broker: ScriptedBroker
) -> None:
    consumer, channel = await consuming(connection, broker)
    broker.answers[BasicCancel] = TIMEOUT

    await asyncio.wait_for(consumer.cancel(), 5)

    assert consumer.state is ConsumerState.CANCELLED
    del channel


async def test_cancelling_while_it_recovers_ends_well(connection: Connection, broker: ScriptedBroker) -> None:
    consumer, channel = await consuming(connection, broker)
    broker.ignore(BasicConsume)
    broker.session.say(channel, TIMEOUT)
    await broker.session.hears(BasicConsume)

    await asyncio.wait_for(consumer.cancel(), 5)

    assert consumer.state is ConsumerState.CANCELLED
    assert await broker.session.hears(ChannelClose)


async def test_cancelling_while_the_queue_is_restored_leaves_no_channel_behind(
    connection: Connection, broker: ScriptedBroker
) -> None:
    await connection.declare_queue("orders")
    consumer, channel = await consuming(connection, broker)
    broker.ignore(QueueDeclare)
    broker.session.say(channel, TIMEOUT)
    await broker.session.hears(QueueDeclare)

    await asyncio.wait_for(consumer.cancel(), 5)

    assert await broker.session.hears(ChannelClose)


async def test_a_broker_that_does_not_answer_the_cancel_leaves_no_task_behind(
    connection: Connection, broker: ScriptedBroker
) -> None:
    """What `cleanliness` checks after this test."""
    await handling(connection, broker, Worker(), concurrency=3)
    broker.ignore(BasicCancel)

    await connection.close(within=timedelta(milliseconds=10))


async def test_closing_the_connection_cancels_handlers_that_do_not_end(
    connection: Connection, broker: ScriptedBroker
) -> None:
    worker = Worker()
    consumer, channel = await handling(connection, broker, worker)
    broker.session.deliver(channel, b"endless")
    await worker.began.wait()

    await connection.close(within=timedelta(milliseconds=10))

    assert worker.handled == []
    assert consumer.state is ConsumerState.CANCELLED


async def test_an_acked_delivery_after_the_end_is_too_late(connection: Connection, broker: ScriptedBroker) -> None:
    consumer, channel = await consuming(connection, broker)
    broker.session.deliver(channel, b"taken")
    taken = await anext(consumer)

    await consumer.cancel()

    assert taken.ack() is False


# Introductions ----------------------------------------------------------------------------------------


async def test_it_introduces_itself(connection: Connection, broker: ScriptedBroker) -> None:
    consumer, channel = await consuming(connection, broker, prefetch=5)
    assert repr(consumer) == "<Consumer orders CONSUMING prefetch=5 buffered=0 restarts=0>"

    broker.session.say(channel, TIMEOUT)
    await consumes_again(consumer)

    assert "restarts=1 last_error='406 PRECONDITION_FAILED - delivery" in repr(consumer)


async def test_the_end_of_the_connection_is_told_as_what_it_was(connection: Connection, broker: ScriptedBroker) -> None:
    consumer, _ = await consuming(connection, broker)
    broker.ignore(BasicConsume)

    session: Session = broker.session
    session.say(0, SHUTDOWN)
    await consumer.until(ConsumerState.RECOVERING)

    assert isinstance(consumer.last_error, ConnectionClosed | ConnectionLost)
