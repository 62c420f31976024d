"""What a worker promises, on every broker."""

import asyncio
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from redrive import (
    App,
    Batch,
    BreakerPolicy,
    Discard,
    Message,
    Naming,
    Park,
    Publisher,
    Retry,
    RetryLater,
    Snooze,
    http_status,
)
from redrive.client import Connection, Properties
from redrive.errors import ConfigurationError
from redrive.inspection.passive import server_of
from redrive.recovery.history import HeaderNames
from redrive.recovery.retry import RetryRoute
from redrive.worker.events import BreakerChanged, DeliveryOutcome, Observer
from working import Recorder, depth, take, working


class Order(msgspec.Struct):
    id: int


SHORT = Retry(attempts=3, delay="50ms")


@pytest.fixture
async def app(amqp_url: str, cleanliness: None) -> App:  # noqa: ARG001
    return App("shop", broker=amqp_url)


def routes_of(connection: Connection) -> list[tuple[str, RetryRoute]]:
    possible = [
        ("classic", RetryRoute.REPUBLISH),
        ("classic", RetryRoute.REJECT),
        ("quorum", RetryRoute.REPUBLISH),
        ("quorum", RetryRoute.REJECT),
    ]
    if server_of(connection).embedded:
        possible.append(("classic", RetryRoute.DELAYED))
    elif server_of(connection).native_delayed_retry:
        possible.append(("quorum", RetryRoute.QUORUM))
    return possible


# Starting -----------------------------------------------------------------------------------------


async def test_what_an_application_needs_is_prepared_once_and_before_a_message_is_taken(app: App) -> None:
    happened: list[str] = []

    @app.on_start
    def create_tables() -> None:
        happened.append("tables")

    @app.on_start
    async def ask_a_service() -> None:
        happened.append("service")

    @app.consumer("orders")
    async def handle(order: Order) -> None:
        happened.append(f"order {order.id}")

    async with app:
        await app.publish("", "orders", {"id": 1})
    async with working(app) as (_, watcher):
        await watcher.seen(DeliveryOutcome.DONE, 1)

    assert happened == ["tables", "service", "order 1"]


async def test_an_application_that_cannot_be_prepared_connects_to_nothing_and_may_try_again(app: App) -> None:
    problems = [ConfigurationError("there is no folder")]
    events = app.exchange("events", "topic")
    app.queue("orders", bind=events.on("#"))

    @app.on_start
    def look_for_the_folder() -> None:
        if problems:
            raise problems.pop()

    with pytest.raises(ConfigurationError, match="there is no folder"):
        await app.__aenter__()
    async with Connection(app.broker or "") as connection:
        assert not await connection.exchange_exists("events")
    async with app:
        await app.publish(events, "order.new", {"id": 1})


# Done ---------------------------------------------------------------------------------------------


async def test_a_message_that_is_handled_is_gone(app: App) -> None:
    handled = []

    @app.consumer("orders", retry=SHORT)
    async def handle(order: Order) -> None:
        handled.append(order.id)

    async with working(app) as (running, watcher):
        for number in range(10):
            await app.publish("", "orders", {"id": number})
        await watcher.seen(DeliveryOutcome.DONE, 10)
        assert handled == list(range(10))
    async with Connection(app.broker or "") as connection:
        assert await depth(connection, "orders") == 0
    assert running.app is app


async def test_a_plain_function_and_a_publisher_work_too(app: App) -> None:
    @app.consumer("in", retry=SHORT)
    async def passes_on(order: Order, publisher: Publisher) -> None:
        await publisher.publish("", "out", {"id": order.id + 1})

    seen: list[Any] = []

    @app.consumer("out", retry=SHORT)
    def plain(order: Order, message: Message) -> None:
        seen.append((order.id, message.correlation_id))

    async with working(app) as (_, watcher):
        await app.publish("", "in", Order(1), correlation_id="story-1")
        await watcher.seen(DeliveryOutcome.DONE, 2)
    assert seen == [(2, "story-1")]


# Again --------------------------------------------------------------------------------------------


async def test_a_message_that_fails_comes_back_and_nobody_else_sees_it(app: App) -> None:
    events = app.exchange("events", "topic")
    seen: list[tuple[str, int, str, str]] = []

    @app.consumer("fails", bind=events.on("order.*"), retry=SHORT)
    async def fails(message: Message) -> None:
        seen.append(("fails", message.attempt, message.exchange, message.routing_key))
        if message.attempt < 3:
            raise OSError("busy")

    @app.consumer("works", bind=events.on("order.*"), retry=SHORT)
    async def works(message: Message) -> None:
        seen.append(("works", message.attempt, message.exchange, message.routing_key))

    async with working(app) as (_, watcher):
        await app.publish(events, "order.new", Order(1))
        await watcher.seen(DeliveryOutcome.DONE, 2)
    assert sorted(seen) == [
        ("fails", 1, "events", "order.new"),
        ("fails", 2, "events", "order.new"),
        ("fails", 3, "events", "order.new"),
        ("works", 1, "events", "order.new"),
    ]


@pytest.mark.usefixtures("cleanliness")
async def test_a_delayed_message_comes_back_to_its_queue_alone_whatever_key_it_had(amqp_url: str) -> None:
    app = App("shop", broker=amqp_url, naming=Naming(delayed_key=""))
    events = app.exchange("events", "topic")
    again = Retry(attempts=2, delay="10ms", via="delayed")
    seen: list[tuple[str, int, str]] = []

    @app.consumer("fails", bind=events.on("order.*", "order.paid"), retry=again)
    async def fails(message: Message) -> None:
        seen.append(("fails", message.attempt, message.routing_key))
        if message.attempt == 1:
            raise OSError("busy")

    @app.consumer("works", bind=events.on("order.paid"), retry=again)
    async def works(message: Message) -> None:
        seen.append(("works", message.attempt, message.routing_key))

    async with working(app) as (_, watcher):
        await app.publish(events, "order.paid", Order(1))
        await app.publish(events, "order.new", Order(2))
        await app.publish("", "fails", Order(3))
        await watcher.seen(DeliveryOutcome.DONE, 4)
    keys = ("order.paid", "order.new", "fails")
    assert sorted(seen) == sorted([("works", 1, "order.paid"), *(("fails", n, key) for key in keys for n in (1, 2))])


async def test_on_every_route_attempts_are_counted_and_the_last_one_parks(app: App) -> None:
    attempts: dict[str, list[int]] = {}

    async def handle(message: Message) -> None:
        attempts.setdefault(message.queue, []).append(message.attempt)
        raise OSError("still busy")

    async with Connection(app.broker or "") as connection:
        names = []
        for kind, via in routes_of(connection):
            delay = "1s" if via is RetryRoute.QUORUM else "50ms"
            name = f"{kind}.{via}"
            names.append(name)
            app.consumer(name, retry=Retry(attempts=3, delay=delay, via=via), type=kind)(handle)
        async with working(app) as (_, watcher):
            for name in names:
                await app.publish("", name, Order(1))
            await watcher.until(lambda: watcher.counts[DeliveryOutcome.PARKED] + _native(names) >= len(names))
            for name in names:
                dead = await take(connection, f"{name}.dlq")
                assert dead.body == b'{"id":1}'
        assert attempts == {name: [1, 2, 3] for name in names}


def _native(names: list[str]) -> int:
    """On the quorum route the broker parks by itself."""
    return sum(name.endswith(".quorum") for name in names)


async def test_a_handler_that_asks_for_more_time_gets_it_on_the_rungs_there_are(app: App) -> None:
    loop, times = asyncio.get_running_loop(), []

    @app.consumer("orders", retry=Retry(attempts=2, delay="100ms"))
    async def handle(message: Message) -> None:
        times.append(loop.time())
        if message.attempt == 1:
            raise RetryLater(after="450ms")

    async with working(app) as (_, watcher):
        await app.publish("", "orders", Order(1))
        await watcher.seen(DeliveryOutcome.DONE)
        assert times[1] - times[0] >= 0.44
        assert len(times) == 2
        assert watcher.counts[DeliveryOutcome.RETRIED] == 1
        assert watcher.counts[DeliveryOutcome.SNOOZED] >= 2


async def test_a_snooze_uses_no_attempt(app: App) -> None:
    attempts = []

    @app.consumer("orders", retry=Retry(attempts=2, delay="50ms"))
    async def handle(message: Message) -> None:
        attempts.append((message.attempt, message.history.snoozes))
        if len(attempts) < 5:
            raise Snooze("50ms")

    async with working(app) as (_, watcher):
        await app.publish("", "orders", Order(1))
        await watcher.seen(DeliveryOutcome.DONE)
    assert attempts == [(1, 0), (1, 1), (1, 2), (1, 3), (1, 4)]


async def test_a_handler_that_takes_too_long_has_failed(app: App) -> None:
    @app.consumer("orders", retry=Retry(attempts=1), timeout="50ms")
    async def handle() -> None:
        await asyncio.sleep(60)

    limit = "the handler of orders took longer than timeout=50ms"
    async with working(app) as (running, watcher):
        await app.publish("", "orders", Order(1))
        (parked,) = await watcher.seen(DeliveryOutcome.PARKED)
        assert parked.error == f"TimeoutError: {limit}"
        dead = await take(running.consuming, "orders.dlq")
    headers = dead.properties.headers or {}
    assert (headers["x-redrive-error"], headers["x-redrive-message"]) == ("TimeoutError", limit)


async def test_a_batch_that_takes_too_long_says_which_limit_it_was(app: App) -> None:
    @app.batch_consumer("orders", size=2, max_wait="10ms", timeout="50ms", retry=Retry(attempts=1))
    async def handle(orders: list[Order]) -> None:  # noqa: ARG001
        await asyncio.sleep(60)

    async with working(app) as (_, watcher):
        await app.publish("", "orders", Order(1))
        (parked,) = await watcher.seen(DeliveryOutcome.PARKED)
        assert parked.error == "TimeoutError: the handler of a batch of orders took longer than timeout=50ms"


async def test_a_timeout_of_the_handlers_own_keeps_its_message(app: App) -> None:
    @app.consumer("orders", retry=Retry(attempts=1), timeout="50ms")
    async def handle() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            raise TimeoutError("the bank does not answer") from None

    async with working(app) as (_, watcher):
        await app.publish("", "orders", Order(1))
        (parked,) = await watcher.seen(DeliveryOutcome.PARKED)
        assert parked.error == "TimeoutError: the bank does not answer"


# Parked -------------------------------------------------------------------------------------------


async def test_a_parked_message_tells_its_story(app: App) -> None:
    events = app.exchange("events", "topic")

    @app.consumer("orders", bind=events.on("#"), retry=Retry(attempts=2, delay="50ms"))
    async def handle(order: Order) -> None:
        raise KeyError(order.id)

    async with working(app) as (running, watcher):
        await app.publish(events, "order.new", Order(7), type="order", correlation_id="c-1", headers={"tenant": "t1"})
        (event,) = await watcher.seen(DeliveryOutcome.PARKED)
        dead = await take(running.consuming, "orders.dlq")
    headers = dead.properties.headers or {}
    assert headers["tenant"] == "t1"
    assert headers["x-redrive-reason"] == "exhausted"
    assert headers["x-redrive-attempts"] == 2
    assert headers["x-redrive-error"] == "KeyError"
    assert (headers["x-redrive-exchange"], headers["x-redrive-routing-key"]) == ("events", "order.new")
    assert (headers["x-redrive-queue"], headers["x-redrive-app"]) == ("orders", "shop")
    assert "handle\nKeyError: 7" in str(headers["x-redrive-stack"])
    history = headers["x-redrive-history"]
    assert isinstance(history, list)
    assert [entry["number"] for entry in history] == [1, 2]  # type: ignore[index, call-overload]
    assert (event.attempt, event.max_attempts, event.reason) == (2, 2, "exhausted")
    assert (dead.properties.correlation_id, dead.properties.type) == ("c-1", "order")
    assert event.fingerprint == headers["x-redrive-fingerprint"]


@pytest.mark.parametrize(
    ("error", "outcome", "reason"),
    [
        (Park("no such customer"), DeliveryOutcome.PARKED, "requested"),
        (msgspec.ValidationError("wrong"), DeliveryOutcome.PARKED, "permanent"),
        (Discard("obsolete"), DeliveryOutcome.DISCARDED, "discarded"),
    ],
)
async def test_some_errors_are_never_retried(app: App, error: Exception, outcome: DeliveryOutcome, reason: str) -> None:
    @app.consumer("orders", retry=SHORT)
    async def handle() -> None:
        raise error

    async with working(app) as (running, watcher):
        await app.publish("", "orders", Order(1))
        (event,) = await watcher.seen(outcome)
        assert (event.attempt, event.reason) == (1, reason)
        assert await depth(running.consuming, "orders.dlq") == (outcome is DeliveryOutcome.PARKED)


@pytest.mark.parametrize("body", [b"{", b'{"id": "seven"}', b"\xff", b""])
async def test_what_cannot_be_read_is_parked_at_once_and_the_worker_goes_on(app: App, body: bytes) -> None:
    handled = []

    @app.consumer("orders", retry=SHORT)
    async def handle(order: Order) -> None:
        handled.append(order.id)

    async with working(app) as (running, watcher):
        await running.publishing.publish("", "orders", body)
        await app.publish("", "orders", Order(2))
        (event,) = await watcher.seen(DeliveryOutcome.PARKED)
        await watcher.seen(DeliveryOutcome.DONE)
        dead = await take(running.consuming, "orders.dlq")
    assert (event.reason, dead.body, handled) == ("malformed", body, [2])


async def test_errors_can_have_dead_letter_queues_of_their_own(app: App) -> None:
    @app.consumer("orders", retry=Retry(attempts=1), dlq={KeyError: "orders.unknown", OSError: "orders.io"})
    async def handle(order: Order) -> None:
        raise {1: KeyError("x"), 2: OSError("x"), 3: ValueError("x")}[order.id]

    async with working(app) as (running, _):
        for number in (1, 2, 3):
            await app.publish("", "orders", Order(number))
        assert (await take(running.consuming, "orders.unknown")).body == b'{"id":1}'
        assert (await take(running.consuming, "orders.io")).body == b'{"id":2}'
        assert (await take(running.consuming, "orders.dlq")).body == b'{"id":3}'


async def test_parking_by_reject_lets_the_broker_do_it(app: App) -> None:
    @app.consumer("orders", retry=Retry(attempts=1), park="reject")
    async def handle() -> None:
        raise OSError

    async with working(app) as (running, _):
        await app.publish("", "orders", Order(1))
        dead = await take(running.consuming, "orders.dlq")
    assert (dead.properties.headers or {})["x-first-death-reason"] == "rejected"


async def test_other_peoples_header_names_can_be_used(app: App) -> None:
    counts = []

    @app.consumer("orders", retry=SHORT, headers=HeaderNames(attempts="x-retries", reason="x-retry-reason"))
    async def handle(message: Message) -> None:
        counts.append((message.headers.get("x-retries"), message.headers.get("x-retry-reason")))
        if len(counts) < 3:
            raise OSError("db_error: connection timeout")

    async with working(app) as (_, watcher):
        await app.publish("", "orders", Order(1))
        await watcher.seen(DeliveryOutcome.DONE)
    reason = "OSError: db_error: connection timeout"
    assert counts == [(None, None), (1, reason), (2, reason)]


class HttpError(Exception):
    def __init__(self, status: int) -> None:
        super().__init__(f"answered {status}")
        self.status_code = status


def fails_to_tell(error: BaseException) -> bool:
    if str(error) == "answered 418":
        raise ZeroDivisionError
    return False


async def test_a_table_of_errors_may_name_statuses_and_its_most_specific_key_counts(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    table = {HttpError: "orders.http", http_status(422): "orders.invalid", fails_to_tell: "orders.never"}

    @app.consumer("orders", retry=Retry(attempts=1), dlq=table)
    async def handle(order: Order) -> None:
        raise HttpError(order.id)

    async with working(app) as (running, watcher):
        for status in (503, 422, 418):
            await app.publish("", "orders", Order(status))
        await watcher.seen(DeliveryOutcome.PARKED, 3)
        found = [await depth(running.publishing, f"orders.{name}") for name in ("http", "invalid", "dlq", "never")]
    assert found == [1, 1, 1, 0]
    assert "consumer orders: dlq raised while choosing a queue for" in caplog.text


async def test_a_message_that_cannot_be_parked_stays_in_its_queue(app: App) -> None:
    @app.consumer("orders", retry=Retry(attempts=1))
    async def handle() -> None:
        raise OSError

    async with working(app, within=1) as (running, watcher):
        await running.consuming.delete_exchange("dlq.orders")
        await app.publish("", "orders", Order(1))
        (event, *_) = await watcher.seen(DeliveryOutcome.RELEASED)
        assert event.reason.startswith("not handed over")
    async with Connection(app.broker or "") as connection:
        assert (await take(connection, "orders")).body == b'{"id":1}'


async def test_copies_for_others_are_not_made_again(app: App) -> None:
    """`CC` would send each retry to the other queue once more, and `expiration` would let it vanish."""

    @app.consumer("orders", retry=Retry(attempts=3, delay="50ms"))
    async def handle() -> None:
        raise OSError

    app.queue("copies", dlq=False)
    async with working(app) as (running, watcher):
        properties = Properties(headers={"CC": ["copies"]}, expiration="60000", delivery_mode=2)
        await running.publishing.publish("", "orders", b"{}", properties)
        await watcher.seen(DeliveryOutcome.PARKED)
        assert await depth(running.consuming, "copies") == 1
        dead = await take(running.consuming, "orders.dlq")
    assert dead.properties.expiration is None


# Guards -------------------------------------------------------------------------------------------


async def test_a_breaker_stops_handling_before_attempts_are_burnt(app: App) -> None:
    policy = BreakerPolicy(failure_rate=0.5, minimum_calls=4, window=4, pause="300ms")
    broken, attempts = True, 0

    @app.consumer("orders", retry=Retry(attempts=9, delay="50ms"), breaker=policy)
    async def handle() -> None:
        nonlocal attempts
        attempts += 1
        if broken:
            raise OSError("down")

    async with working(app) as (_, watcher):
        for number in range(30):
            await app.publish("", "orders", Order(number))
        await watcher.until(lambda: "open" in watcher.breaker_states)
        assert attempts < 10
        broken = False
        await watcher.seen(DeliveryOutcome.DONE, 30)
    assert watcher.breaker_states[-1] == "closed"


async def test_messages_that_fail_for_reasons_of_their_own_trip_no_breaker_that_names_its_errors(app: App) -> None:
    policy = BreakerPolicy(failure_rate=0.1, minimum_calls=1, window=4, pause="60s", only=ConnectionError)

    @app.consumer("orders", retry=Retry(attempts=2, delay="20ms"), breaker=policy)
    async def handle() -> None:
        raise RuntimeError("this order's own fault")

    async with working(app) as (_, watcher):
        for number in range(8):
            await app.publish("", "orders", Order(number))
        await watcher.seen(DeliveryOutcome.PARKED, 8)
    assert watcher.breaker_states == []


async def test_what_waits_for_a_breaker_or_a_rate_does_not_hold_up_the_end(app: App) -> None:
    policy = BreakerPolicy(minimum_calls=2, window=2, pause="60s")
    calls: Counter[str] = Counter()

    @app.consumer("fails", retry=Retry(attempts=9, delay="60s"), breaker=policy)
    async def fails() -> None:
        calls["fails"] += 1
        raise OSError("down")

    @app.consumer("slow", rate=0.05, concurrency=3)
    async def slow() -> None:
        calls["slow"] += 1

    watcher = Recorder()
    app.observers.append(watcher)
    async with app.connect() as running:
        worker = running.worker(app.select_consumers(()))
        await worker.start()
        for _ in range(4):
            for queue in ("fails", "slow"):
                await running.publisher.publish("", queue, Order(1))
        await watcher.until(lambda: watcher.breaker_states == ["open"] and watcher.counts[DeliveryOutcome.DONE] == 1)

        assert await worker.stop(timedelta(seconds=5))

        assert calls == {"fails": 2, "slow": 1}
        held = {queue: await depth(running.publishing, queue) for queue in calls}
    assert held == {"fails": 2, "slow": 3}


async def test_consumers_that_depend_on_the_same_share_a_breaker(app: App) -> None:
    policy = BreakerPolicy(failure_rate=0.5, minimum_calls=2, window=2, pause="60s")
    handled = []

    @app.consumer("fails", retry=Retry(attempts=9, delay="60s"), breaker=policy, depends_on="bank")
    async def fails() -> None:
        raise OSError("down")

    @app.consumer("also", retry=SHORT, breaker=policy, depends_on="bank")
    async def also(order: Order) -> None:
        handled.append(order.id)

    async with working(app, within=0.1) as (_, watcher):
        for number in range(2):
            await app.publish("", "fails", Order(number))
        await watcher.until(lambda: watcher.breaker_states == ["open"])
        await app.publish("", "also", Order(9))
        await asyncio.sleep(0.1)
    assert handled == []


@pytest.mark.parametrize("error", [ConnectionError, TimeoutError])
async def test_a_consumer_may_depend_on_several_and_a_failure_is_that_of_the_one_it_blames(
    app: App, error: type[Exception]
) -> None:
    strict = BreakerPolicy(failure_rate=0.5, minimum_calls=2, window=2, pause="300ms")
    names = {ConnectionError: "bank", TimeoutError: "ledger"}
    failing, changes = True, []

    @app.consumer(
        "orders",
        retry=Retry(attempts=9, delay="20ms"),
        breaker={name: replace(strict, only=kind) for kind, name in names.items()},
    )
    async def handle() -> None:
        if failing:
            raise error("down")

    class Changes(Observer):
        def breaker(self, event: BreakerChanged) -> None:
            changes.append((event.name, str(event.state)))

    app.observers.append(Changes())
    async with working(app) as (_, watcher):
        for number in range(4):
            await app.publish("", "orders", Order(number))
        await watcher.until(lambda: "open" in watcher.breaker_states)
        failing = False
        await watcher.seen(DeliveryOutcome.DONE, 4)
    assert changes == [(names[error], state) for state in ("open", "probing", "closed")]


async def test_a_message_waits_for_every_dependency_of_its_handler(app: App) -> None:
    policy = BreakerPolicy(failure_rate=0.5, minimum_calls=2, window=2, pause="60s")
    handled = []

    @app.consumer("fails", retry=Retry(attempts=9, delay="60s"), breaker=policy, depends_on="ledger")
    async def fails() -> None:
        raise OSError("down")

    @app.consumer("both", retry=SHORT, breaker=policy, depends_on=["bank", "ledger"])
    async def both(order: Order) -> None:
        handled.append(order.id)

    @app.consumer("one", retry=SHORT, breaker=policy, depends_on="bank")
    async def one(order: Order) -> None:
        handled.append(order.id)

    async with working(app, within=0.1) as (_, watcher):
        for number in range(2):
            await app.publish("", "fails", Order(number))
        await watcher.until(lambda: watcher.breaker_states == ["open"])
        await app.publish("", "both", Order(8))
        await app.publish("", "one", Order(9))
        await watcher.seen(DeliveryOutcome.DONE)
    assert handled == [9]


async def test_a_rate_limit_holds_messages_back(app: App) -> None:
    loop = asyncio.get_running_loop()

    @app.consumer("orders", retry=SHORT, rate=50, concurrency=10)
    async def handle() -> None: ...

    async with working(app) as (_, watcher):
        began = loop.time()
        for number in range(40):
            await app.publish("", "orders", Order(number))
        await watcher.seen(DeliveryOutcome.DONE, 40)
        assert loop.time() - began >= 0.5


# Batches ------------------------------------------------------------------------------------------


async def test_a_batch_is_one_call(app: App) -> None:
    calls: list[list[int]] = []

    @app.batch_consumer("orders", size=10, max_wait="100ms", retry=SHORT)
    async def handle(orders: list[Order]) -> None:
        calls.append([order.id for order in orders])

    async with working(app) as (_, watcher):
        for number in range(25):
            await app.publish("", "orders", Order(number))
        await watcher.seen(DeliveryOutcome.DONE, 25)
    assert sorted(number for call in calls for number in call) == list(range(25))
    assert max(map(len, calls)) <= 10


async def test_one_bad_message_fails_alone(app: App) -> None:
    """Marked by the handler, unreadable, or found by halves: the others are done."""

    @app.batch_consumer("orders", size=20, max_wait="500ms", retry=Retry(attempts=1))
    async def handle(batch: Batch[Order]) -> None:
        for item in batch:
            if item.body.id == 3:
                batch.fail(item, ValueError("marked"))
            if item.body.id == 11:
                raise OSError("stumbled over 11")

    async with working(app) as (running, watcher):
        for number in range(19):
            await app.publish("", "orders", Order(number))
        await running.publishing.publish("", "orders", b"unreadable")
        await watcher.seen(DeliveryOutcome.PARKED, 3)
        await watcher.seen(DeliveryOutcome.DONE, 17)
        assert sorted(event.reason for event in watcher.events) == ["exhausted", "exhausted", "malformed"]
        assert {(await take(running.consuming, "orders.dlq")).body for _ in range(3)} == {
            b'{"id":3}', b'{"id":11}', b"unreadable",
        }  # fmt: skip


async def test_when_everything_fails_it_is_not_tried_over_and_over(app: App) -> None:
    calls = 0

    @app.batch_consumer("orders", size=64, max_wait="1m", retry=Retry(attempts=1))
    async def handle(orders: list[Order]) -> None:  # noqa: ARG001
        nonlocal calls
        calls += 1
        raise OSError("the database is down")

    async with working(app) as (_, watcher):
        for number in range(64):
            await app.publish("", "orders", Order(number))
        await watcher.seen(DeliveryOutcome.PARKED, 64)
    assert calls < 64


@pytest.mark.parametrize("isolate", [ValueError, (ValueError, KeyError), lambda error: isinstance(error, ValueError)])
async def test_only_errors_that_can_be_somebodys_fault_have_culprits(app: App, isolate: Any) -> None:
    calls: list[int] = []

    @app.batch_consumer("orders", size=8, max_wait="10s", retry=Retry(attempts=1), isolate=isolate)
    async def handle(orders: list[Order]) -> None:
        calls.append(len(orders))
        if len(calls) == 1:
            raise OSError("the database is down")
        if any(order.id == 11 for order in orders):
            raise ValueError("a bad row")

    async with working(app) as (_, watcher):
        for number in range(16):
            await app.publish("", "orders", Order(number))
        await watcher.seen(DeliveryOutcome.PARKED, 9)
        await watcher.seen(DeliveryOutcome.DONE, 7)
    assert calls == [8, 8, 4, 2, 2, 1, 1, 4]


async def test_a_key_that_nothing_can_be_gathered_by_fails_its_message_alone(app: App) -> None:
    handled: list[int] = []

    @app.batch_consumer(
        "orders", size=3, max_wait="1m", key=lambda order: [] if order.id == 1 else "", retry=Retry(attempts=1)
    )
    async def handle(orders: list[Order]) -> None:
        handled.extend(order.id for order in orders)

    async with working(app) as (_, watcher):
        for number in range(4):
            await app.publish("", "orders", Order(number))
        await watcher.seen(DeliveryOutcome.PARKED, 1)
        await watcher.seen(DeliveryOutcome.DONE, 3)
    assert handled == [0, 2, 3]


async def test_a_batch_whose_handler_was_cancelled_from_within_fails_as_any_other(app: App) -> None:
    calls: list[int] = []

    @app.batch_consumer("orders", size=4, max_wait="1m", retry=Retry(attempts=1))
    async def handle(orders: list[Order]) -> None:
        calls.append(len(orders))
        if any(order.id == 2 for order in orders):
            raise asyncio.CancelledError  # as does who awaits a task that somebody else has cancelled

    async with working(app) as (_, watcher):
        for number in range(8):
            await app.publish("", "orders", Order(number))
        await watcher.seen(DeliveryOutcome.PARKED, 1)
        await watcher.seen(DeliveryOutcome.DONE, 7)
    assert calls[0] == 4


async def test_a_setting_that_cannot_say_who_is_to_blame_strands_no_batch(app: App) -> None:
    def fails(_: BaseException) -> bool:
        raise ZeroDivisionError("a mistake in the settings")

    @app.batch_consumer("orders", size=4, max_wait="1m", retry=Retry(attempts=1, classify=fails), isolate=fails)
    async def handle(orders: list[Order]) -> None:
        if any(order.id == 2 for order in orders):
            raise OSError("a bad row")

    async with working(app) as (_, watcher):
        for number in range(8):
            await app.publish("", "orders", Order(number))
        await watcher.seen(DeliveryOutcome.PARKED, 1)
        await watcher.seen(DeliveryOutcome.DONE, 7)
    assert [event.reason for event in watcher.events] == ["exhausted"]


async def test_batches_can_be_gathered_by_key(app: App) -> None:
    calls: list[set[int]] = []

    @app.batch_consumer("orders", size=5, max_wait="200ms", key=lambda order: order.id % 2, retry=SHORT)
    async def handle(orders: list[Order]) -> None:
        calls.append({order.id % 2 for order in orders})

    async with working(app) as (_, watcher):
        for number in range(10):
            await app.publish("", "orders", Order(number))
        await watcher.seen(DeliveryOutcome.DONE, 10)
    assert all(len(keys) == 1 for keys in calls)


async def test_stopping_handles_what_was_gathered(app: App) -> None:
    handled: list[int] = []

    @app.batch_consumer("orders", size=100, max_wait="60s", retry=SHORT)
    async def handle(orders: list[Order]) -> None:
        handled.extend(order.id for order in orders)

    async with working(app) as (running, _):
        for number in range(5):
            await app.publish("", "orders", Order(number))
        while await depth(running.consuming, "orders"):  # noqa: ASYNC110 - the broker is the one to ask
            await asyncio.sleep(0.01)
    assert sorted(handled) == list(range(5))


# Stopping -----------------------------------------------------------------------------------------


async def test_draining_finishes_what_is_being_handled_and_gives_back_the_rest(app: App) -> None:
    started, handled = asyncio.Event(), []

    @app.consumer("orders", retry=SHORT, prefetch=10)
    async def handle(order: Order) -> None:
        started.set()
        await asyncio.sleep(0.5)
        handled.append(order.id)

    async with working(app):
        for number in range(5):
            await app.publish("", "orders", Order(number))
        await started.wait()
    assert handled == list(range(len(handled)))
    assert 1 <= len(handled) < 5
    async with Connection(app.broker or "") as connection:
        assert await depth(connection, "orders") == 5 - len(handled)


async def test_what_does_not_finish_in_time_comes_back(app: App) -> None:
    started = asyncio.Event()

    @app.consumer("orders", retry=SHORT)
    async def handle() -> None:
        started.set()
        await asyncio.sleep(60)

    async with working(app, within=0.1):
        await app.publish("", "orders", Order(1))
        await started.wait()
    async with Connection(app.broker or "") as connection:
        assert await depth(connection, "orders") == 1


# Dead letters -------------------------------------------------------------------------------------


async def test_dead_letters_can_have_a_consumer_whose_failures_wait(app: App) -> None:
    loop, times = asyncio.get_running_loop(), []

    @app.consumer("orders", retry=None)
    async def handle() -> None:
        raise OSError("no")

    @app.dlq_consumer("orders")
    async def last_resort(message: Message) -> None:
        assert message.headers["x-redrive-reason"] == "exhausted"
        times.append(loop.time())
        if len(times) < 3:
            raise OSError("not yet")

    async with working(app) as (running, watcher):
        await app.publish("", "orders", Order(1))
        await watcher.seen(DeliveryOutcome.PARKED)  # the dead letter may be delivered before its copy is confirmed
        await watcher.seen(DeliveryOutcome.RELEASED)
        assert await depth(running.consuming, "orders.dlq") == 0
        assert running.unsettled == {"orders": 0, "orders.dlq": 1}  # it waits here
        await watcher.seen(DeliveryOutcome.DONE)
        assert await depth(running.consuming, "orders.dlq") == 0
        assert running.unsettled == {"orders": 0, "orders.dlq": 0}
    assert times[2] - times[1] > times[1] - times[0] > 0.1


def test_consumers_are_chosen_by_the_queues_they_consume() -> None:
    app = App("shop")
    app.consumer("orders", retry=SHORT)(lambda: None)
    app.dlq_consumer("orders")(lambda: None)

    assert [spec.queue.name for spec in app.select_consumers(())] == ["orders", "orders.dlq"]
    assert [spec.queue.name for spec in app.select_consumers(["orders"])] == ["orders"]
    (dead,) = app.select_consumers(["orders.dlq"])
    assert (dead.queue.name, dead.for_dead_letters) == ("orders.dlq", True)


@pytest.mark.parametrize(("queue", "told"), [("nope", "there is no such queue"), ("plain", "no dead-letter queue")])
def test_dead_letters_that_cannot_be_have_no_consumer(queue: str, told: str) -> None:
    app = App("shop")
    app.queue("plain", dlq=False)
    app.dlq_consumer(queue)(lambda: None)

    with pytest.raises(ConfigurationError, match=f"dlq_consumer of {queue}: .*{told}"):
        app.select_consumers(())


async def test_a_consumer_of_dead_letters_can_be_done_with_one_for_good(app: App) -> None:
    @app.consumer("orders", retry=None)
    async def handle() -> None:
        raise OSError("no")

    @app.dlq_consumer("orders")
    async def last_resort() -> None:
        raise Discard("nobody wants it")

    async with working(app) as (_, watcher):
        await app.publish("", "orders", Order(1))
        (event,) = await watcher.seen(DeliveryOutcome.DISCARDED)
    assert (event.queue, event.error) == ("orders.dlq", "redrive.recovery.handler_signals.Discard: nobody wants it")
    async with Connection(app.broker or "") as connection:
        assert await depth(connection, "orders.dlq") == 0


async def test_dead_letters_are_handled_in_batches_each_with_a_fate_of_its_own(app: App) -> None:
    """One is discarded, one fails and goes back, one cannot be read and goes back; the others are done."""
    calls: list[int] = []

    @app.consumer("orders", retry=None)
    async def handle() -> None:
        raise OSError("no")

    @app.dlq_batch_consumer("orders", size=10, max_wait="10s")
    async def last_resort(batch: Batch[Order]) -> None:
        calls.append(len(batch))
        batch.fail(0, Discard("nobody wants it"))
        batch.fail(1, OSError("not yet"))

    async with working(app) as (running, watcher):
        await running.publishing.publish("", "orders", b"unreadable")
        for number in range(10):
            await app.publish("", "orders", Order(number))
        await watcher.seen(DeliveryOutcome.DONE, 8)
        assert [event.queue for event in await watcher.seen(DeliveryOutcome.DISCARDED)] == ["orders.dlq"]
        released = await watcher.seen(DeliveryOutcome.RELEASED, 2)
        assert {event.queue for event in released} == {"orders.dlq"}
    assert calls[0] == 10
    async with Connection(app.broker or "") as connection:
        assert await depth(connection, "orders.dlq") == 2


# Publishing ---------------------------------------------------------------------------------------


async def test_a_message_has_an_identity_and_a_time(app: App) -> None:
    app.queue("plain", dlq=False)
    async with working(app) as (running, _):
        identity = await app.publish("", "plain", {"a": 1})
        found = (await take(running.consuming, "plain")).properties
    assert (found.message_id, found.correlation_id, found.app_id) == (identity, identity, "shop")
    assert found.content_type == "application/json"
    assert found.timestamp is not None
    assert identity[14] == "7"


async def test_a_message_can_be_published_for_later(amqp_url: str, cleanliness: None) -> None:  # noqa: ARG001
    app = App("shop", broker=amqp_url, delays=True)
    app.queue("later", dlq=False)
    async with working(app) as (running, _):
        loop = asyncio.get_running_loop()
        began = loop.time()
        await app.publish("", "later", Order(1), after="1s")
        assert (await take(running.consuming, "later")).body == b'{"id":1}'
        assert loop.time() - began >= 0.95
        with pytest.raises(ConfigurationError, match="delays messages to a queue"):
            await app.publish("events", "later", Order(1), after="1s")


async def test_watchers_that_fail_harm_nobody(app: App) -> None:
    class Broken(Recorder):
        def done(self, queue: str, seconds: float) -> None:
            raise RuntimeError(f"{queue}: {seconds}")

    app.observers.append(Broken())

    @app.consumer("orders", retry=SHORT)
    async def handle() -> None: ...

    async with working(app) as (_, watcher):
        await app.publish("", "orders", Order(1))
        await watcher.seen(DeliveryOutcome.DONE)


@pytest.mark.parametrize("queue_type", ["classic", "quorum"])
async def test_rejections_are_not_taken_for_crashes(amqp_url: str, cleanliness: None, queue_type: str) -> None:  # noqa: ARG001
    """RabbitMQ calls a rejected message redelivered, and counts on, when it comes out of its retry queue: from 4.0 on
    in a quorum queue, from 4.3 on in a classic one.
    """
    app = App("shop", broker=amqp_url, queue_type=queue_type)
    handled = []

    @app.consumer("orders", retry=Retry(attempts=7, delay="20ms", via=RetryRoute.REJECT), crash_limit=3)
    async def handle(order: Order) -> None:
        handled.append(order.id)
        raise OSError("busy")

    async with working(app) as (_, watcher):
        await app.publish("", "orders", {"id": 1})
        (event,) = await watcher.seen(DeliveryOutcome.PARKED)

    assert handled == [1] * 7
    assert "exhausted" in str(event)


FORGED: list[Any] = [
    {"k": [1]},
    [[[1]]],
    [],
    [{"queue": "orders", "reason": "rejected", "count": "1"}],
    [{"queue": "orders", "reason": "rejected", "count": -(2**63)}],
    [{"queue": "orders", "reason": "rejected"}] * 3,
]


@pytest.mark.parametrize("queue_type", ["classic", "quorum"])
async def test_a_forged_x_death_neither_loops_nor_harms_its_queue(
    amqp_url: str,
    cleanliness: None,  # noqa: ARG001
    queue_type: str,
) -> None:
    """Found by fuzzing: 3.10 does not count in some of these, and over others a queue's process ends."""
    app = App("shop", broker=amqp_url, queue_type=queue_type)
    handled: Counter[int] = Counter()

    @app.consumer("orders", retry=Retry(attempts=2, delay="20ms", via=RetryRoute.REJECT))
    async def handle(order: Order) -> None:
        handled[order.id] += 1
        raise OSError("busy")

    async with working(app) as (_, watcher), Connection(amqp_url) as connection:
        for number, forged in enumerate(FORGED):
            body = b'{"id": %d}' % number
            await connection.publish("", "orders", body, Properties(delivery_mode=2, headers={"x-death": forged}))
        await watcher.seen(DeliveryOutcome.PARKED, len(FORGED))
        assert await depth(connection, "orders.dlq") == len(FORGED)

    assert handled == {0: 2, 1: 2, 2: 2, 3: 1, 4: 1, 5: 1}  # the last three say that they were rejected before
