"""What a batch consumer promises about its `prepare` step, on every broker."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from redrive import App, Batch, BreakerPolicy, Discard, Message, Park, Publisher, Retry, Snooze
from redrive.client import Connection, Properties
from redrive.connected_app import ConnectedApp
from redrive.recovery.history import HeaderNames
from redrive.worker.events import DeliveryOutcome
from working import depth, take, working


class Order(msgspec.Struct):
    id: int


class Priced:
    """No codec can read it: only `prepare` makes one."""

    def __init__(self, order: Order, attempt: int) -> None:
        self.id = order.id
        self.attempt = attempt


ONCE = Retry(attempts=1)
SHORT = Retry(attempts=3, delay="50ms")


@pytest.fixture
async def app(amqp_url: str, cleanliness: None) -> App:  # noqa: ARG001
    return App("shop", broker=amqp_url)


async def publish_orders(app: App, count: int) -> None:
    for number in range(count):
        await app.publish("", "orders", Order(number))


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.01)


async def until_depth(running: ConnectedApp, messages: int) -> None:
    async with asyncio.timeout(20):
        while await depth(running.publishing, "orders") != messages:  # noqa: ASYNC110 - the broker is the one to ask
            await asyncio.sleep(0.01)


class Processors:
    """A `prepare` function that holds each message until it is permitted to go on, and counts how many it holds."""

    def __init__(self) -> None:
        self.inside = 0
        self.most = 0
        self.prepared: list[int] = []
        self._permits = asyncio.Semaphore(0)
        self._changed = asyncio.Event()

    async def __call__(self, order: Order) -> Order:
        self.inside += 1
        self.most = max(self.most, self.inside)
        self._changed.set()
        try:
            await self._permits.acquire()
            self.prepared.append(order.id)
        finally:
            self.inside -= 1
        return order

    def as_function(self) -> Callable[[Order], Any]:
        async def prepare(order: Order) -> Order:
            return await self(order)

        return prepare

    def permit(self, count: int = 1) -> None:
        for _ in range(count):
            self._permits.release()

    async def until_inside(self, count: int) -> None:
        async with asyncio.timeout(20):
            while self.inside < count:
                self._changed.clear()
                await self._changed.wait()


# What it returns ----------------------------------------------------------------------------------


async def test_what_prepare_returns_is_the_body_in_the_batch(app: App) -> None:
    handled: list[tuple[int, int]] = []

    async def price(order: Order, message: Message) -> Priced:
        return Priced(order, message.attempt)

    @app.batch_consumer("orders", size=3, max_wait="10s", retry=SHORT, prepare=price)
    async def handle(orders: list[Priced]) -> None:
        handled.extend((order.id, order.attempt) for order in orders)

    async with working(app) as (_, watcher):
        await publish_orders(app, 3)
        await watcher.seen(DeliveryOutcome.DONE, 3)
    assert handled == [(0, 1), (1, 1), (2, 1)]


async def test_an_item_of_a_batch_has_the_prepared_body_and_the_original_message(app: App) -> None:
    handled: list[tuple[str, bytes]] = []

    @app.batch_consumer("orders", size=2, max_wait="10s", retry=SHORT, prepare=lambda body: f"order {body['id']}")
    async def handle(batch: Batch[str]) -> None:
        handled.extend((item.body, item.message.body) for item in batch)

    async with working(app) as (_, watcher):
        await publish_orders(app, 2)
        await watcher.seen(DeliveryOutcome.DONE, 2)
    assert sorted(handled) == [("order 0", b'{"id":0}'), ("order 1", b'{"id":1}')]


async def test_batches_are_gathered_by_a_key_of_the_prepared_body(app: App) -> None:
    calls: list[list[str]] = []

    async def name(order: Order) -> str:
        return f"{'odd' if order.id % 2 else 'even'} {order.id}"

    @app.batch_consumer(
        "orders", size=3, max_wait="10s", retry=SHORT, prepare=name, processors=2, key=lambda text: text.split()[0]
    )
    async def handle(orders: list[str]) -> None:
        calls.append(orders)

    async with working(app) as (_, watcher):
        await publish_orders(app, 6)
        await watcher.seen(DeliveryOutcome.DONE, 6)
    assert sorted(calls) == [["even 0", "even 2", "even 4"], ["odd 1", "odd 3", "odd 5"]]


# Concurrency and order ----------------------------------------------------------------------------


async def test_as_many_messages_as_there_are_processors_are_prepared_at_a_time(app: App) -> None:
    processors = Processors()
    handled: list[int] = []

    @app.batch_consumer("orders", size=4, max_wait="50ms", retry=SHORT, prepare=processors.as_function(), processors=3)
    async def handle(orders: list[Order]) -> None:
        handled.extend(order.id for order in orders)

    async with working(app) as (_, watcher):
        await publish_orders(app, 9)
        for _ in range(7):
            await processors.until_inside(3)
            processors.permit()
        processors.permit(2)
        await watcher.seen(DeliveryOutcome.DONE, 9)
    assert processors.most == 3
    assert sorted(handled) == list(range(9))


async def test_without_a_number_one_message_is_prepared_at_a_time_in_order(app: App) -> None:
    processors = Processors()
    handled: list[int] = []

    @app.batch_consumer("orders", size=2, max_wait="10s", retry=SHORT, prepare=processors.as_function())
    async def handle(orders: list[Order]) -> None:
        handled.extend(order.id for order in orders)

    async with working(app) as (_, watcher):
        await publish_orders(app, 6)
        processors.permit(6)
        await watcher.seen(DeliveryOutcome.DONE, 6)
    assert processors.most == 1
    assert processors.prepared == handled == list(range(6))


async def test_a_plain_prepare_function_runs_in_as_many_threads(app: App) -> None:
    meeting = threading.Barrier(3, timeout=20)
    threads: set[str] = set()

    def prepare(order: Order, message: Message) -> tuple[int, str]:
        meeting.wait()  # no call returns before three are here
        threads.add(threading.current_thread().name)
        return order.id, message.queue

    handled: list[tuple[int, str]] = []

    @app.batch_consumer("orders", size=6, max_wait="10s", retry=ONCE, prepare=prepare, processors=3)
    async def handle(orders: list[tuple[int, str]]) -> None:
        handled.extend(orders)

    async with working(app) as (_, watcher):
        await publish_orders(app, 6)
        await watcher.seen(DeliveryOutcome.DONE, 6)
    assert handled == [(number, "orders") for number in range(6)]
    assert len(threads) == 3
    assert threading.main_thread().name not in threads


async def test_a_batch_is_in_the_order_of_arrival_whichever_message_was_prepared_first(app: App) -> None:
    prepared = [asyncio.Event() for _ in range(5)]
    prepared[4].set()
    order_of_preparation: list[int] = []

    async def last_first(order: Order) -> Order:
        await prepared[order.id + 1].wait()
        order_of_preparation.append(order.id)
        prepared[order.id].set()
        return order

    calls: list[list[int]] = []

    @app.batch_consumer("orders", size=4, max_wait="10s", retry=SHORT, prepare=last_first, processors=4)
    async def handle(orders: list[Order]) -> None:
        calls.append([order.id for order in orders])

    async with working(app) as (_, watcher):
        await publish_orders(app, 4)
        await watcher.seen(DeliveryOutcome.DONE, 4)
    assert order_of_preparation == [3, 2, 1, 0]
    assert calls == [[0, 1, 2, 3]]


async def test_the_time_of_a_batch_begins_with_its_first_prepared_message(app: App) -> None:
    calls: list[list[int]] = []

    async def takes_longer_than_the_batch_may(order: Order) -> Order:
        await asyncio.sleep(0.6)
        return order

    @app.batch_consumer(
        "orders", size=10, max_wait="300ms", retry=SHORT, prepare=takes_longer_than_the_batch_may, processors=2
    )
    async def handle(orders: list[Order]) -> None:
        calls.append([order.id for order in orders])

    async with working(app) as (_, watcher):
        await publish_orders(app, 2)
        await watcher.seen(DeliveryOutcome.DONE, 2)
    assert calls == [[0, 1]]


async def test_more_processors_than_a_batch_has_places_are_all_at_work(app: App) -> None:
    processors = Processors()

    @app.batch_consumer("orders", size=1, max_wait="10s", retry=SHORT, prepare=processors.as_function(), processors=8)
    async def handle(orders: list[Order]) -> None: ...

    async with working(app) as (_, watcher):
        await publish_orders(app, 10)
        await processors.until_inside(8)
        processors.permit(10)
        await watcher.seen(DeliveryOutcome.DONE, 10)
    assert processors.most == 8


# Failures -----------------------------------------------------------------------------------------


async def test_a_message_that_cannot_be_prepared_is_retried_alone(app: App) -> None:
    attempts: list[int] = []
    calls: list[list[int]] = []

    async def fails_once(order: Order, message: Message) -> Order:
        if order.id == 1:
            attempts.append(message.attempt)
            if message.attempt == 1:
                raise OSError("the price list is unavailable")
        return order

    @app.batch_consumer("orders", size=3, max_wait="200ms", retry=SHORT, prepare=fails_once, processors=2)
    async def handle(orders: list[Order]) -> None:
        calls.append([order.id for order in orders])

    async with working(app) as (_, watcher):
        await publish_orders(app, 4)
        await watcher.seen(DeliveryOutcome.RETRIED, 1)
        await watcher.seen(DeliveryOutcome.DONE, 4)
    assert attempts == [1, 2]
    assert calls == [[0, 2, 3], [1]]
    (event,) = watcher.events
    assert event.error is not None
    assert "the price list is unavailable" in event.error


@pytest.mark.parametrize(
    ("error", "outcome", "reason"),
    [
        pytest.param(OSError("busy"), DeliveryOutcome.PARKED, "exhausted", id="any-error"),
        pytest.param(asyncio.CancelledError(), DeliveryOutcome.PARKED, "exhausted", id="cancelled-from-within"),
        pytest.param(Park("no such customer"), DeliveryOutcome.PARKED, "requested", id="park"),
        pytest.param(Discard("a test order"), DeliveryOutcome.DISCARDED, "discarded", id="discard"),
    ],
)
async def test_prepare_decides_what_becomes_of_its_message(
    app: App, error: BaseException, outcome: DeliveryOutcome, reason: str
) -> None:
    handled: list[int] = []

    async def prepare(order: Order) -> Order:
        if order.id == 1:
            raise error
        return order

    @app.batch_consumer("orders", size=2, max_wait="10s", retry=ONCE, prepare=prepare)
    async def handle(orders: list[Order]) -> None:
        handled.extend(order.id for order in orders)

    async with working(app) as (running, watcher):
        await publish_orders(app, 3)
        await watcher.seen(DeliveryOutcome.DONE, 2)
        await watcher.seen(outcome, 1)
        assert [event.reason for event in watcher.events] == [reason]
        if outcome is DeliveryOutcome.PARKED:
            letter = await take(running.consuming, "orders.dlq")
            assert letter.body == b'{"id":1}'
            assert ".prepare\n" in (letter.properties.headers or {})[HeaderNames.STACK]
    assert handled == [0, 2]


async def test_a_snoozed_message_is_prepared_again_without_an_attempt_used(app: App) -> None:
    attempts: list[int] = []

    async def prepare(order: Order, message: Message) -> Order:
        attempts.append(message.attempt)
        if len(attempts) == 1:
            raise Snooze("50ms")
        return order

    @app.batch_consumer("orders", size=1, max_wait="10s", retry=SHORT, prepare=prepare)
    async def handle(orders: list[Order]) -> None: ...

    async with working(app) as (_, watcher):
        await publish_orders(app, 1)
        await watcher.seen(DeliveryOutcome.SNOOZED, 1)
        await watcher.seen(DeliveryOutcome.DONE, 1)
    assert attempts == [1, 1]


async def test_a_body_that_prepare_cannot_read_is_parked_without_a_call(app: App) -> None:
    bodies: list[Any] = []

    async def prepare(order: Order) -> Order:
        bodies.append(order)
        return order

    @app.batch_consumer("orders", size=2, max_wait="10s", retry=SHORT, prepare=prepare)
    async def handle(orders: list[Order]) -> None: ...

    async with working(app) as (running, watcher):
        await running.publishing.publish("", "orders", b"unreadable")
        await publish_orders(app, 2)
        await watcher.seen(DeliveryOutcome.DONE, 2)
        await watcher.seen(DeliveryOutcome.PARKED, 1)
        assert [event.reason for event in watcher.events] == ["malformed"]
        assert (await take(running.consuming, "orders.dlq")).body == b"unreadable"
    assert bodies == [Order(0), Order(1)]


@pytest.mark.parametrize("plain", [pytest.param(False, id="async"), pytest.param(True, id="plain")])
async def test_a_prepare_that_takes_longer_than_a_call_may_has_failed(app: App, plain: bool) -> None:
    given_up = threading.Event()

    def blocks(order: Order) -> Order:
        if order.id == 1:
            given_up.wait(20)
        return order

    async def waits(order: Order) -> Order:
        if order.id == 1:
            await asyncio.Event().wait()
        return order

    @app.batch_consumer(
        "orders", size=2, max_wait="10s", retry=ONCE, timeout="200ms", prepare=blocks if plain else waits,
        processors=3,
    )  # fmt: skip
    async def handle(orders: list[Order]) -> None: ...

    async with working(app) as (_, watcher):
        await publish_orders(app, 3)
        await watcher.seen(DeliveryOutcome.DONE, 2)
        await watcher.seen(DeliveryOutcome.PARKED, 1)
        given_up.set()
    (event,) = watcher.events
    assert event.error is not None
    assert event.error == "TimeoutError: prepare of orders took longer than timeout=200ms"


async def test_a_message_whose_failure_cannot_be_settled_is_prepared_again(
    app: App, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    attempts: list[int] = []

    async def prepare(order: Order, message: Message) -> Order:
        attempts.append(message.attempt)
        if len(attempts) == 1:
            raise OSError("busy")
        return order

    @app.batch_consumer("orders", size=1, max_wait="10s", retry=SHORT, prepare=prepare)
    async def handle(orders: list[Order]) -> None: ...

    monkeypatch.setattr("redrive.worker.pipeline.describe", lambda *_, **__: 1 / 0)
    async with working(app) as (_, watcher):
        await publish_orders(app, 1)
        await watcher.seen(DeliveryOutcome.DONE, 1)
    assert attempts == [1, 1]
    assert "ZeroDivisionError" in caplog.text


async def test_messages_that_cannot_be_prepared_open_the_breaker(app: App) -> None:
    async def prepare(order: Order) -> Order:  # noqa: ARG001
        raise OSError("the price list is unavailable")

    @app.batch_consumer(
        "orders", size=2, max_wait="10s", retry=ONCE, prepare=prepare, breaker=BreakerPolicy(minimum_calls=3)
    )
    async def handle(orders: list[Order]) -> None: ...

    async with working(app) as (_, watcher):
        await publish_orders(app, 3)
        await watcher.until(lambda: bool(watcher.breaker_states))
    assert watcher.breaker_states == ["open"]


async def test_a_dead_letter_that_cannot_be_prepared_goes_back_and_one_to_discard_is_gone(app: App) -> None:
    @app.consumer("orders", retry=ONCE)
    async def fails() -> None:
        raise OSError("busy")

    async def prepare(order: Order) -> Order:
        if order.id == 0:
            raise Discard("nobody wants it")
        if order.id == 1:
            raise OSError("not yet")
        return order

    handled: list[int] = []

    @app.dlq_batch_consumer("orders", size=2, max_wait="10s", prepare=prepare, processors=2)
    async def last_resort(orders: list[Order]) -> None:
        handled.extend(order.id for order in orders)

    async with working(app) as (_, watcher):
        await publish_orders(app, 4)
        await watcher.seen(DeliveryOutcome.DISCARDED, 1)
        await watcher.seen(DeliveryOutcome.RELEASED, 1)
        await watcher.seen(DeliveryOutcome.DONE, 2)
    assert sorted(handled) == [2, 3]
    async with Connection(app.broker or "") as connection:
        assert await depth(connection, "orders.dlq") == 1


# Around it ----------------------------------------------------------------------------------------


async def test_what_prepare_publishes_carries_on_the_correlation_of_its_message_alone(app: App) -> None:
    app.queue("prepared")
    app.queue("handled")

    async def prepare(order: Order, publisher: Publisher) -> Order:
        await publisher.publish("", "prepared", order)
        return order

    @app.batch_consumer("orders", size=2, max_wait="10s", retry=SHORT, prepare=prepare, processors=2)
    async def handle(orders: list[Order], publisher: Publisher) -> None:
        await publisher.publish("", "handled", len(orders))

    async with working(app) as (running, watcher):
        for number in range(2):
            await app.publish("", "orders", Order(number), correlation_id=f"story {number}")
        await watcher.seen(DeliveryOutcome.DONE, 2)
        prepared = [await take(running.consuming, "prepared") for _ in range(2)]
        (of_batch,) = [await take(running.consuming, "handled")]
    assert {(one.body, one.properties.correlation_id) for one in prepared} == {
        (b'{"id":0}', "story 0"), (b'{"id":1}', "story 1"),
    }  # fmt: skip
    assert of_batch.properties.correlation_id == of_batch.properties.message_id


async def test_middleware_is_around_each_call_of_prepare(app: App) -> None:
    within: list[int] = []
    depths: list[int] = []

    @asynccontextmanager
    async def middleware(message: Message) -> AsyncIterator[None]:
        within.append(message.attempt)
        yield
        within.pop()

    async def prepare(order: Order) -> Order:
        depths.append(len(within))
        return order

    @app.batch_consumer("orders", size=2, max_wait="10s", retry=SHORT, prepare=prepare, middleware=[middleware])
    async def handle(orders: list[Order]) -> None:  # noqa: ARG001
        depths.append(len(within))

    async with working(app) as (_, watcher):
        await publish_orders(app, 2)
        await watcher.seen(DeliveryOutcome.DONE, 2)
    assert depths == [1, 1, 2]


# Stopping -----------------------------------------------------------------------------------------


async def test_stopping_handles_what_is_being_prepared_and_gives_back_what_waits(app: App) -> None:
    processors = Processors()
    calls: list[list[int]] = []

    @app.batch_consumer("orders", size=10, max_wait="60s", retry=SHORT, prepare=processors.as_function(), processors=2)
    async def handle(orders: list[Order]) -> None:
        calls.append([order.id for order in orders])

    async with app.connect() as running:
        app._connected = running
        worker = running.worker(app.select_consumers(()))
        await worker.start()
        await publish_orders(app, 5)
        await processors.until_inside(2)
        await until(lambda: worker.unsettled == {"orders": 5})
        stopping = asyncio.create_task(worker.stop())
        await until_depth(running, 3)
        assert processors.inside == 2
        processors.permit(5)
        assert await stopping
        app._connected = None
        assert calls == [[0, 1]]
        assert sorted(processors.prepared) == [0, 1]
        assert [(await take(running.publishing, "orders")).body for _ in range(3)] == [
            b'{"id":2}', b'{"id":3}', b'{"id":4}',
        ]  # fmt: skip


@pytest.mark.parametrize("queue_type", ["classic", "quorum"])
async def test_what_is_not_prepared_in_time_comes_back(app: App, queue_type: str) -> None:
    processors = Processors()
    calls: list[list[int]] = []

    @app.batch_consumer(
        "orders", size=5, max_wait="60s", retry=SHORT, prepare=processors.as_function(), processors=2, type=queue_type
    )
    async def handle(orders: list[Order]) -> None:
        calls.append([order.id for order in orders])

    async with working(app, within=0):
        await publish_orders(app, 5)
        await processors.until_inside(2)
    assert (calls, processors.prepared) == ([], [])
    processors.permit(5)
    async with working(app) as (running, watcher):  # redelivered: each is watched
        await watcher.seen(DeliveryOutcome.DONE, 5)
        assert await depth(running.publishing, "orders.dlq") == 0
    assert [sorted(call) for call in calls] == [[0, 1, 2, 3, 4]]


async def test_a_message_that_must_be_handled_alone_is_prepared_alone(app: App) -> None:
    processors = Processors()
    handled: list[int] = []

    @app.batch_consumer("orders", size=3, max_wait="50ms", retry=SHORT, prepare=processors.as_function(), processors=3)
    async def handle(orders: list[Order]) -> None:
        handled.extend(order.id for order in orders)

    async with working(app) as (running, watcher):
        await publish_orders(app, 1)
        await processors.until_inside(1)
        marked = Properties(delivery_mode=2, headers={HeaderNames.QUARANTINE: "alone"})
        await running.publishing.publish("", "orders", b'{"id":1}', marked)
        await app.publish("", "orders", Order(2))
        processors.permit(1)
        await until(lambda: processors.prepared == [0])
        await until_depth(running, 0)
        await processors.until_inside(1)
        assert not handled  # the batch of 0 waits, as 2 does
        processors.permit(2)
        await watcher.seen(DeliveryOutcome.DONE, 3)
    assert processors.most == 1
    assert processors.prepared == [0, 1, 2]
    assert handled[0] == 1
