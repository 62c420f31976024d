"""What the crash guard promises on every broker: nothing but the death of a worker counts against a message.

That a message which does kill its worker is parked, and its neighbours are not, takes real processes:
`tests/crashes/test_crash_guard.py`.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from redrive import App, Batch, Message, Retry
from redrive.client import Connection, Properties
from redrive.client.browser import QueueBrowser
from redrive.connected_app import ConnectedApp
from redrive.errors import ConnectionLost, PublishRefused
from redrive.recovery.admission import ALONE, Mark
from redrive.recovery.backoff import Backoff
from redrive.recovery.history import HeaderNames
from redrive.testing import Endpoint
from redrive.worker import quarantine
from redrive.worker.events import DeliveryOutcome
from redrive.worker.worker import Worker
from working import Recorder, depth, take, working

ORDERS = 60
OFTEN = 50
SHORT = Retry(attempts=3, delay="20ms")
DEAD_WORKER = "0123456789ab"


@pytest.fixture(params=["classic", "quorum"])
def queue_type(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def app(amqp_url: str, queue_type: str, cleanliness: None) -> App:  # noqa: ARG001
    return App("shop", broker=amqp_url, queue_type=queue_type, defaults={"retry": SHORT, "crash_grace": "100ms"})


@pytest.fixture(autouse=True)
def no_wait_for_young_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    """No node is killed here, so nothing is lost in a quorum queue that is younger than a second."""
    monkeypatch.setattr(quarantine, "_YOUNG_QUORUM_QUEUE", 0)


async def publish_orders(running: ConnectedApp, count: int = ORDERS) -> None:
    for number in range(count):
        await running.publishing.publish("", "orders", b"%d" % number, Properties(delivery_mode=2))


async def leave_dead_worker(running: ConnectedApp) -> None:
    """What a worker leaves behind when it dies: its quarantine queue."""
    await running.publishing.declare_queue(f"orders.quarantine.{DEAD_WORKER}")


@asynccontextmanager
async def one_worker(running: ConnectedApp, *, within: float) -> AsyncIterator[Worker]:
    """A worker of its own identity, as each deploy starts one."""
    worker = running.worker(running.app.select_consumers(()))
    await worker.start()
    try:
        yield worker
    finally:
        await worker.stop(timedelta(seconds=within))


async def until_handled(running: ConnectedApp, handler: Handler, orders: int) -> None:
    """Wait until each was handled, and none is left in the queue."""
    async with asyncio.timeout(60):
        while len(handler.handled) < orders or await depth(running.publishing, "orders"):  # noqa: ASYNC110
            await asyncio.sleep(0.02)


class Handler:
    """Counts what it handles, a few milliseconds each; while it is held, a call waits for a permit."""

    def __init__(self) -> None:
        self.handled: Counter[int] = Counter()
        self.begun = asyncio.Event()
        self.permits = asyncio.Semaphore(0)

    async def __call__(self, *orders: int) -> None:
        self.begun.set()
        await self.permits.acquire()
        await asyncio.sleep(0.003)
        self.handled.update(orders)

    def permit(self, calls: int) -> None:
        for _ in range(calls):
            self.permits.release()

    def hold(self) -> None:
        self.begun.clear()
        self.permits = asyncio.Semaphore(0)

    def set_free(self) -> None:
        self.permit(10_000)


@pytest.fixture
def loses_acks(request: pytest.FixtureRequest) -> bool:
    """Whether an ack can be lost though its channel was closed in order: a quorum queue of RabbitMQ applies acks later
    than it reads them, and returns what is not applied when the channel ends. Seen on 4.0 and 4.3 with a slow disk.
    """
    params = request.node.callspec.params
    return bool(params["amqp_url"] == "rabbitmq" and params.get("queue_type") == "quorum")


def check_once(handler: Handler, orders: int, loses_acks: bool) -> None:
    """Each was handled exactly once; where acks can be lost, not more often than a worker stopped."""
    assert len(handler.handled) == orders
    twice = {order: count for order, count in handler.handled.items() if count != 1}
    assert not twice or (loses_acks and sum(twice.values()) - len(twice) <= OFTEN), twice


SHAPES = ["single", "batch", "prepare"]


def consume(app: App, handler: Handler, shape: str = "single", **options: Any) -> None:
    """`shape`: the handler gets one message, or a batch; or it prepares messages for a batch."""

    async def handle(order: int) -> None:
        await handler(order)

    async def handle_batch(orders: Batch[int]) -> None:
        await handler(*orders.bodies)

    async def accept_batch(orders: Batch[None]) -> None: ...

    match shape:
        case "single":
            app.consumer("orders", **options)(handle)
        case "batch":
            app.batch_consumer("orders", size=3, max_wait="5ms", **options)(handle_batch)
        case "prepare":
            prepared = app.batch_consumer("orders", size=3, max_wait="5ms", prepare=handle, processors=2, **options)
            prepared(accept_batch)


# Stops --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
async def test_fifty_orderly_stops_park_nothing_and_repeat_nothing(app: App, shape: str, loses_acks: bool) -> None:
    handler = Handler()
    orders = OFTEN * 8  # more than are handled while the worker stops
    consume(app, handler, shape)
    async with app.connect() as running:
        await publish_orders(running, orders)
        for _ in range(OFTEN):
            handler.hold()
            async with one_worker(running, within=10):
                await asyncio.wait_for(handler.begun.wait(), 20)
                handler.set_free()
        async with one_worker(running, within=10):
            await until_handled(running, handler, orders)
        assert await depth(running.publishing, "orders.dlq") == 0
    check_once(handler, orders, loses_acks)


async def test_fifty_stops_that_cancel_their_handlers_park_nothing(app: App, loses_acks: bool) -> None:
    handler = Handler()
    consume(app, handler, concurrency=2, prefetch=10)
    async with app.connect() as running:
        await publish_orders(running, 20)
        for _ in range(OFTEN):
            handler.begun.clear()
            async with one_worker(running, within=0):
                await asyncio.wait_for(handler.begun.wait(), 20)
        handler.set_free()
        async with one_worker(running, within=10):
            await until_handled(running, handler, 20)
        assert await depth(running.publishing, "orders.dlq") == 0
    check_once(handler, 20, loses_acks)


async def test_a_worker_that_stops_leaves_no_quarantine_behind(app: App) -> None:
    handler = Handler()
    consume(app, handler)
    async with app.connect() as running:
        await publish_orders(running, 3)
        async with one_worker(running, within=0):
            await asyncio.wait_for(handler.begun.wait(), 20)
        handler.set_free()
        worker = running.worker(app.select_consumers(()))
        its_queue = f"orders.quarantine.{worker._context.worker}"
        await worker.start()
        async with asyncio.timeout(20):
            while handler.handled.total() < 3:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert (await running.publishing.queue_info(its_queue)).consumers == 1
        await worker.stop()
        with pytest.raises(Exception, match="no queue"):
            await running.publishing.queue_info(its_queue)
        assert await depth(running.publishing, "orders") == 0


async def test_a_worker_whose_broker_is_unavailable_stops_all_the_same(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has a quarantine queue, and cannot delete it."""
    monkeypatch.setattr(quarantine, "_LAST_ANSWERS", 0.1)
    handler = Handler()
    handler.set_free()
    consume(app, handler)
    async with app.connect() as running:
        marked = Properties(delivery_mode=2, headers={HeaderNames.QUARANTINE: "alone"})
        await running.publishing.publish("", "orders", b"7", marked)
        worker = running.worker(app.select_consumers(()))
        await worker.start()
        await until_handled(running, handler, 1)
        async with asyncio.timeout(20):
            while any(worker.unsettled.values()):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        running.consuming._backoff = Backoff(first=timedelta(hours=1), ceiling=timedelta(hours=1))
        (await running.consuming.link()).abort(ConnectionLost("cut"))
        assert await asyncio.wait_for(worker.stop(), 20)


# Connections --------------------------------------------------------------------------------------


@asynccontextmanager
async def quickly_reconnecting(app: App) -> AsyncIterator[tuple[ConnectedApp, Recorder]]:
    """A worker whose pauses between two tries to connect do not grow."""
    app.observers.append(watcher := Recorder())
    async with app.connect() as running:
        running.consuming._backoff = Backoff(first=timedelta(milliseconds=1), ceiling=timedelta(milliseconds=2))
        async with one_worker(running, within=10):
            yield running, watcher


async def cut_while_handling(running: ConnectedApp, handler: Handler) -> None:
    """Lose the connection while a handler runs. The handler learns nothing of that, and comes to its end."""
    await asyncio.wait_for(handler.begun.wait(), 20)
    handler.begun.clear()
    (await running.consuming.link()).abort(ConnectionLost("cut"))
    handler.permit(1)


@pytest.mark.parametrize("shape", SHAPES)
async def test_fifty_lost_connections_park_nothing(app: App, shape: str) -> None:
    handler = Handler()
    consume(app, handler, shape, **({"concurrency": 3} if shape == "single" else {}))
    async with quickly_reconnecting(app) as (running, watcher):
        await publish_orders(running)
        for _ in range(OFTEN):
            await cut_while_handling(running, handler)
        handler.set_free()
        await until_handled(running, handler, ORDERS)
        assert await depth(running.publishing, "orders.dlq") == 0
    assert not watcher.counts[DeliveryOutcome.PARKED]


async def test_a_message_that_is_handled_alone_survives_fifty_lost_connections(app: App) -> None:
    handler = Handler()
    consume(app, handler, concurrency=3)
    async with quickly_reconnecting(app) as (running, watcher):
        marked = Properties(delivery_mode=2, headers={HeaderNames.QUARANTINE: "alone"})
        await running.publishing.publish("", "orders", b"7", marked)
        for _ in range(OFTEN):
            await cut_while_handling(running, handler)
        handler.set_free()
        await until_handled(running, handler, 1)
    assert not watcher.counts[DeliveryOutcome.PARKED]
    assert handler.handled[7] >= 1


@pytest.mark.parametrize("redelivered", [False, True])
async def test_a_message_that_fails_after_its_connection_was_lost_does_not_become_two(
    app: App, *, redelivered: bool
) -> None:
    handler = Handler()

    @app.consumer("orders", retry=Retry(attempts=3, delay="1ms"))
    async def fails(order: int) -> None:
        await handler(order)
        raise OSError("busy")

    async with quickly_reconnecting(app) as (running, watcher):
        headers: dict[str, Any] = {HeaderNames.QUARANTINE: "alone"} if redelivered else {}
        await running.publishing.publish("", "orders", b"7", Properties(delivery_mode=2, headers=headers))
        await cut_while_handling(running, handler)
        await watcher.seen(DeliveryOutcome.RELEASED)
        handler.set_free()
        await watcher.seen(DeliveryOutcome.PARKED)
        assert await depth(running.publishing, "orders.dlq") == 1
    assert handler.handled == {7: 4}  # an attempt whose connection was lost is not counted


@pytest.mark.parametrize("marked_alone", [False, True])
async def test_fifty_stops_just_after_a_lost_connection_park_nothing_and_copy_nothing(
    app: App, loses_acks: bool, monkeypatch: pytest.MonkeyPatch, *, marked_alone: bool
) -> None:
    """What the worker was handling is in its queue again, marked, and the worker that the mark names is gone."""
    monkeypatch.setattr(quarantine, "_TTL", timedelta(milliseconds=2))
    handler = Handler()
    consume(app, handler, concurrency=3)
    async with app.connect() as running:
        running.consuming._backoff = Backoff(first=timedelta(milliseconds=1), ceiling=timedelta(milliseconds=2))
        headers: dict[str, Any] = {HeaderNames.QUARANTINE: "alone"} if marked_alone else {}
        await running.publishing.publish("", "orders", b"7", Properties(delivery_mode=2, headers=headers))
        for _ in range(OFTEN):
            handler.begun.clear()
            async with one_worker(running, within=0) as worker:
                await asyncio.wait_for(handler.begun.wait(), 20)
                await until_unsettled(worker, 1)  # the original of a copy is acked
                await running.consuming.queue_info("orders")  # and the broker has read that
                (await running.consuming.link()).abort(ConnectionLost("cut"))
        assert await depth(running.publishing, "orders.dlq") == 0
        handler.set_free()
        async with one_worker(running, within=10) as worker:
            await until_handled(running, handler, 1)
            await until_unsettled(worker, 0)
        assert await depth(running.publishing, "orders") + await depth(running.publishing, "orders.dlq") == 0
    check_once(handler, 1, loses_acks)


@pytest.mark.parametrize("queue_type", ["quorum"])
async def test_a_quarantine_queue_that_may_still_dead_letter_a_message_is_not_deleted(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The main queue is full. A quorum queue then keeps what it dead-letters, and does not count it as a message."""
    monkeypatch.setattr(quarantine, "_TTL", timedelta(milliseconds=2))
    handler = Handler()
    consume(app, handler, arguments={"x-max-length": 1}, prefetch=1)
    async with app.connect() as running:
        running.consuming._backoff = Backoff(first=timedelta(milliseconds=1), ceiling=timedelta(milliseconds=2))
        await running.publishing.publish("", "orders", b"7", marked(ALONE))
        async with one_worker(running, within=0) as worker:
            await asyncio.wait_for(handler.begun.wait(), 20)
            with pytest.raises(PublishRefused):
                await publish_orders(running)
            (await running.consuming.link()).abort(ConnectionLost("cut"))
            its_queue = f"orders.quarantine.{worker._context.worker}"
            async with asyncio.timeout(20):
                while (await running.publishing.queue_info(its_queue)).messages:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        await running.publishing.queue_info(its_queue)


async def until_unsettled(worker: Worker, count: int) -> None:
    async with asyncio.timeout(20):
        while worker.unsettled["orders"] != count:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_fifty_lost_connections_of_two_workers_that_check_each_other_park_nothing(
    app: App, amqp_url: str, queue_type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quarantine, "_TTL", timedelta(milliseconds=2))  # over when the connection is back
    lookups: list[bool] = []
    look_up = quarantine.Quarantine._look_up

    async def look_up_and_note(self: quarantine.Quarantine, worker: str) -> bool:
        lookups.append(await look_up(self, worker))
        return lookups[-1]

    monkeypatch.setattr(quarantine.Quarantine, "_look_up", look_up_and_note)
    other_app = App("shop", broker=amqp_url, queue_type=queue_type, defaults={"retry": SHORT})
    handlers = [Handler(), Handler()]
    for one_app, handler in zip((app, other_app), handlers, strict=True):
        consume(one_app, handler, crash_grace="10s")
    async with quickly_reconnecting(app) as (one, watcher), quickly_reconnecting(other_app) as (other, other_watcher):
        marked = Properties(delivery_mode=2, headers={HeaderNames.QUARANTINE: "alone"})
        await one.publishing.publish("", "orders", b"7", marked)
        for _ in range(OFTEN):
            handler = await first_to_begin(handlers)
            await cut_while_handling(one if handler is handlers[0] else other, handler)
        for handler in handlers:
            handler.set_free()
        async with asyncio.timeout(20):
            while await depth(one.publishing, "orders"):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        assert await depth(one.publishing, "orders.dlq") == 0
    assert "its worker died" not in {event.reason for event in (*watcher.events, *other_watcher.events)}
    assert lookups.count(True) > OFTEN // 2  # the other checks were of a worker's own marks, or ended by a stop


async def first_to_begin(handlers: list[Handler]) -> Handler:
    waiting = [asyncio.create_task(handler.begun.wait()) for handler in handlers]
    await asyncio.wait(waiting, timeout=20, return_when=asyncio.FIRST_COMPLETED)
    for task in waiting:
        task.cancel()
    return next(handler for handler in handlers if handler.begun.is_set())


# Peeks --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("queue_type", ["classic"])
async def test_fifty_peeks_park_nothing(app: App) -> None:
    """A classic queue: where a peek counts, on quorum queues, Redrive refuses to peek."""
    handler = Handler()
    consume(app, handler, concurrency=10)
    async with app.connect() as running, Connection(app.broker or "") as peeking:
        await publish_orders(running)
        for _ in range(OFTEN):
            hold = await QueueBrowser.open(peeking, "orders", at_most=ORDERS)
            while hold.taken < ORDERS:
                await hold.next(patience=5)
            await hold.release()
        handler.set_free()
        async with one_worker(running, within=10):
            await until_handled(running, handler, ORDERS)
        assert await depth(running.publishing, "orders.dlq") == 0
    check_once(handler, ORDERS, loses_acks=False)


# Failed transfers ---------------------------------------------------------------------------------


async def test_without_its_retry_exchange_a_message_stays_and_goes_on_when_it_is_back(app: App) -> None:
    calls = 0

    @app.consumer("orders", retry=Retry(attempts=10, delay="10ms"))
    async def fails() -> None:
        nonlocal calls
        calls += 1
        raise OSError("busy")

    async with working(app) as (running, watcher):
        await running.publishing.delete_exchange("retry.orders")
        await publish_orders(running, 1)
        released = await watcher.seen(DeliveryOutcome.RELEASED, 4)
        assert {event.reason.partition(":")[0] for event in released} == {"not handed over"}
        assert not watcher.counts[DeliveryOutcome.PARKED]
        await running.publishing.declare_exchange("retry.orders", "direct")
        await running.publishing.bind_queue("orders.retry", "retry.orders", "retry")
        (parked,) = await watcher.seen(DeliveryOutcome.PARKED)
    assert (parked.reason, parked.attempt) == ("exhausted", 10)
    assert calls >= 13  # those that could not be handed over are not counted


# Processes ----------------------------------------------------------------------------------------


def dies_of_seven(order: int) -> None:
    """Runs in a process of its own."""
    if order == 7:
        os._exit(1)


@pytest.mark.parametrize("queue_type", ["classic"])
async def test_a_process_that_dies_of_one_message_costs_its_neighbours_nothing(app: App) -> None:
    app.consumer("orders", processes=3, concurrency=3, crash_limit=2, retry=Retry(attempts=1))(dies_of_seven)
    async with working(app) as (running, watcher):
        await publish_orders(running, 10)
        await watcher.until(
            lambda: watcher.counts[DeliveryOutcome.DONE] == 9 and watcher.counts[DeliveryOutcome.PARKED] > 0, within=60
        )
        dead = await take(running.publishing, "orders.dlq")
        assert await depth(running.publishing, "orders.dlq") == 0
    assert dead.body == b"7"
    headers = dead.properties.headers or {}
    assert (headers[HeaderNames().reason], headers[HeaderNames.CRASHES]) == ("crashed", 2)


# Watched messages ---------------------------------------------------------------------------------


async def test_a_redelivered_message_fails_and_is_retried_like_any_other(app: App) -> None:
    attempts = []

    @app.consumer("orders")
    async def fails(message: Message) -> None:
        attempts.append((message.attempt, message.redelivered, message.exchange, message.routing_key))
        raise OSError("busy")

    async with app.connect() as running:
        await publish_orders(running, 1)
        got = await running.publishing.get("orders")
        assert got is not None
        got.nack(requeue=True)
        app._connected = running
    async with working(app) as (running, watcher):
        (parked,) = await watcher.seen(DeliveryOutcome.PARKED)
        dead = await take(running.publishing, "orders.dlq")
    assert (parked.reason, parked.attempt) == ("exhausted", 3)
    assert attempts == [(1, True, "", "orders"), (2, False, "", "orders"), (3, False, "", "orders")]
    assert HeaderNames.QUARANTINE not in (dead.properties.headers or {})


@pytest.mark.parametrize("options", [{"park": "reject", "retry": None}, {"dlq": False, "retry": None}])
async def test_a_redelivered_message_is_parked_by_the_dead_letter_exchange_of_its_own_queue(
    amqp_url: str,
    cleanliness: None,  # noqa: ARG001
    options: dict[str, Any],
) -> None:
    app = App("shop", broker=amqp_url)
    app.queue("elsewhere", dlq=False)
    if "dlq" in options:
        arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "elsewhere"}
        options = {**options, "arguments": arguments}

    @app.consumer("orders", **options)
    async def fails() -> None:
        raise OSError("busy")

    async with app.connect() as running:
        await publish_orders(running, 1)
        got = await running.publishing.get("orders")
        assert got is not None
        got.nack(requeue=True)
    async with working(app) as (running, watcher):
        await watcher.seen(DeliveryOutcome.PARKED)
        dead = await take(running.publishing, "orders.dlq" if "park" in options else "elsewhere")
    assert dead.body == b"0"


@pytest.mark.parametrize("amqp_url", ["rabbitmq"], indirect=True)  # where there are permissions
@pytest.mark.parametrize("right", [{"configure": "nothing"}, {"write": "retry.*"}])
async def test_without_permission_for_a_quarantine_messages_are_handled_all_the_same(
    rabbitmq: Endpoint, amqp_url: str, caplog: pytest.LogCaptureFixture, right: dict[str, str]
) -> None:
    name, vhost = f"restricted-{secrets.token_hex(4)}", amqp_url.rpartition("/")[2]
    url = amqp_url.replace("guest:guest@", f"{name}:secret@")
    rabbitmq.api(f"/users/{name}", "PUT", {"password": "secret", "tags": ""})
    handler = Handler()
    handler.set_free()
    owner, app = App("shop", broker=amqp_url), App("shop", broker=url, declare=False)
    consume(owner, handler)
    consume(app, handler)
    async with owner.connect() as running:
        await publish_orders(running, 3)
        for got in [await running.publishing.get("orders") for _ in range(3)]:
            assert got is not None
            got.nack(requeue=True)
        rights = {"configure": ".*", "write": ".*", "read": ".*"} | right
        rabbitmq.api(f"/permissions/{vhost}/{name}", "PUT", rights)
        async with app.connect() as restricted, one_worker(restricted, within=10):
            await until_handled(running, handler, 3)
    assert handler.handled == Counter(range(3))
    rabbitmq.api(f"/users/{name}", "DELETE")
    assert "messages that kill their worker are not recognised" in caplog.text


async def test_redelivered_messages_are_handled_next_to_each_other(app: App) -> None:
    """After a deploy the handlers of a whole prefetch must not run one after the other."""
    together = asyncio.Barrier(10)

    @app.consumer("orders", concurrency=10)
    async def handle(message: Message) -> None:
        assert message.redelivered
        await together.wait()

    async with app.connect() as running:
        await publish_orders(running, 10)
        for got in [await running.publishing.get("orders") for _ in range(10)]:
            assert got is not None
            got.nack(requeue=True)
    async with working(app) as (_, watcher):
        await watcher.seen(DeliveryOutcome.DONE, 10)
    assert watcher.events == []


async def test_a_message_whose_worker_stopped_in_order_is_handled_and_no_crash_is_counted(app: App) -> None:
    """A worker that stops deletes its quarantine queue; one that dies leaves it."""
    crashes = []

    @app.consumer("orders", crash_limit=3)
    async def handle(message: Message) -> None:
        crashes.append(message.headers[HeaderNames.CRASHES])

    async with working(app) as (running, watcher):
        mark = Mark(DEAD_WORKER, 1, alone=True)
        await running.publishing.publish("", "orders", b"1", marked(mark, crashes=2))
        await watcher.seen(DeliveryOutcome.DONE)
    assert crashes == [2]


async def test_a_message_whose_worker_is_gone_is_handled_alone_next(app: App) -> None:
    """Nothing else of the worker runs meanwhile, not even of another queue."""
    most = running_now = 0
    order: list[str] = []

    async def work(name: str) -> None:
        nonlocal most, running_now
        running_now += 1
        most = max(most, running_now)
        order.append(f"{name} {running_now}")
        await asyncio.sleep(0.01)
        running_now -= 1

    @app.consumer("orders", concurrency=5, crash_grace="100ms")
    async def handle(order: int) -> None:
        await work("suspect" if order == 99 else "order")

    @app.consumer("invoices", concurrency=5)
    async def bill() -> None:
        await work("invoice")

    mark = str(Mark(DEAD_WORKER, 3))
    async with working(app) as (running, watcher):
        await leave_dead_worker(running)
        properties = Properties(delivery_mode=2, headers={HeaderNames.QUARANTINE: mark})
        await running.publishing.publish("", "orders", b"99", properties)
        count = 0
        while "suspect 1" not in order:
            await publish_orders(running, 2)
            await running.publishing.publish("", "invoices", b"{}")
            count += 1
            await watcher.seen(DeliveryOutcome.DONE, max(0, count * 3 - 30))  # the suspect waits behind the others
        await watcher.seen(DeliveryOutcome.DONE, count * 3 + 1)
    assert most > 1
    assert [line for line in order if line.startswith("suspect")] == ["suspect 1"]


async def test_nothing_is_transferred_while_a_message_is_handled_alone(app: App) -> None:
    """If that message kills the worker, a transfer that is not confirmed would leave two of another message."""
    meanwhile: list[int] = []

    @app.consumer("orders", crash_limit=3, concurrency=5)
    async def handle() -> None:
        connection = running.consuming
        await connection.publish("", "orders", b"2", marked(Mark(DEAD_WORKER, 1, alone=True), crashes=2))
        while await depth(connection, "orders"):  # until it is delivered
            pass
        meanwhile.extend([await depth(connection, "orders.dlq") for _ in range(20)])  # the check takes one round trip

    async with working(app) as (running, watcher):
        await leave_dead_worker(running)
        await running.publishing.publish("", "orders", b"1", marked(ALONE))
        await watcher.seen(DeliveryOutcome.DONE)
        (parked,) = await watcher.seen(DeliveryOutcome.PARKED)
    assert parked.reason == "crashed"
    assert meanwhile == [0] * 20


def marked(mark: Mark, crashes: int = 0) -> Properties:
    headers: dict[str, Any] = {HeaderNames.QUARANTINE: str(mark), HeaderNames.CRASHES: crashes}
    return Properties(delivery_mode=2, headers=headers)


async def test_crashes_are_counted_up_to_the_limit_and_a_stranger_cannot_make_it_loop(app: App) -> None:
    """What the headers say is as good as any publisher wrote it: read, bounded, never trusted to be sane."""
    handler = Handler()
    handler.set_free()
    consume(app, handler, crash_limit=3)
    async with working(app) as (running, watcher):
        for value in ("x" * 1000, f"{DEAD_WORKER}/99999999999999999999", 7, ["alone"], b"\xff\xfe", "alone\n"):
            headers: dict[str, Any] = {HeaderNames.QUARANTINE: value}
            await running.publishing.publish("", "orders", b"1", Properties(delivery_mode=2, headers=headers))
        await watcher.seen(DeliveryOutcome.DONE, 6)
        await leave_dead_worker(running)
        headers = {HeaderNames.QUARANTINE: str(Mark(DEAD_WORKER, 1, alone=True)), HeaderNames.CRASHES: 2}
        await running.publishing.publish("", "orders", b"2", Properties(delivery_mode=2, headers=headers))
        (parked,) = await watcher.seen(DeliveryOutcome.PARKED)
        dead = await take(running.publishing, "orders.dlq")
    assert parked.reason == "crashed"
    assert (dead.properties.headers or {})[HeaderNames.CRASHES] == 3
    assert handler.handled == Counter({1: 6})
