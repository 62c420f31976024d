"""One clock for the embedded broker and the application: every wait of an application takes no time in a test."""

import asyncio
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession

from redrive import App, BreakerPolicy, Retry
from redrive.errors import ConfigurationError
from redrive.outbox import relay
from redrive.outbox.repository import ClaimedBatch, RefusedRow
from redrive.testing import ManualClock, Recorder, ThreadedBroker
from redrive.worker.events import DeliveryOutcome

EFFECTS = sa.Table("effects", sa.MetaData(), sa.Column("n", sa.Integer))


class Order(msgspec.Struct):
    id: int


@pytest.fixture(autouse=True)
def in_no_time() -> Iterator[None]:
    """All of these tests wait for longer than this, by the clock."""
    began = time.perf_counter()
    yield
    assert time.perf_counter() - began < 20


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[App]:
    app = App("shop", data=tmp_path)
    yield app
    await app.database.close()


@pytest.fixture
def recorder(amqp_broker: ThreadedBroker, app: App) -> Iterator[Recorder]:
    with amqp_broker.attach(app) as recorder:
        yield recorder


# The application's waits ------------------------------------------------------------------------------


async def test_a_retry_after_fifteen_seconds(app: App, recorder: Recorder, redrive_clock: ManualClock) -> None:
    times = []

    @app.consumer("orders", retry=Retry(attempts=3, delay="15s"))
    async def handle() -> None:
        times.append(redrive_clock.monotonic())
        raise OSError("down")

    async with app, app.worker():
        await app.publish("", "orders", Order(1))
        for attempt in (1, 2):
            [*_, retried] = await recorder.retried("orders", attempt)
            assert retried.delay == timedelta(seconds=15)
            redrive_clock.advance("15s")
        [parked] = await recorder.parked("orders")
    assert times == [0, 15, 30]
    assert (parked.attempt, parked.reason) == (3, "exhausted")


async def test_a_breaker_opens_and_probes_after_its_pause(
    app: App, recorder: Recorder, redrive_clock: ManualClock
) -> None:
    policy = BreakerPolicy(minimum_calls=2, window=2, pause="30s")
    broken, calls = True, list[float]()

    @app.consumer("orders", retry=Retry(attempts=9, delay="15s"), breaker=policy)
    async def handle() -> None:
        calls.append(redrive_clock.monotonic())
        if broken:
            raise OSError("down")

    async with app, app.worker():
        for number in range(5):
            await app.publish("", "orders", Order(number))
        await recorder.breaker_is("open")
        await recorder.retried("orders", 2)
        await recorder.taken("orders", 3)
        redrive_clock.advance("15s")  # the retries are back, and wait like the others
        assert calls == [0, 0]
        redrive_clock.advance("14s")
        redrive_clock.advance("1s")  # the probe fails: the next pause is a minute
        await recorder.retried("orders", 3)
        assert calls == [0, 0, 30]
        broken = False
        redrive_clock.advance("1m")
        await recorder.breaker_is("closed")
        await recorder.handled("orders", 5)
    assert recorder.breaker_states == ["open", "probing", "open", "probing", "closed"]
    assert set(calls[3:]) == {90.0}


async def test_a_handler_has_thirty_seconds(app: App, recorder: Recorder, redrive_clock: ManualClock) -> None:
    begun = asyncio.Event()

    @app.consumer("orders", timeout="30s", retry=None)
    async def handle() -> None:
        begun.set()
        await asyncio.Event().wait()

    async with app, app.worker():
        await app.publish("", "orders", Order(1))
        await asyncio.wait_for(begun.wait(), 20)
        redrive_clock.advance("29999ms")
        assert recorder.events == []
        redrive_clock.advance("1ms")
        [parked] = await recorder.parked("orders")
    assert parked.error is not None
    assert "TimeoutError" in parked.error
    assert parked.seconds == 30


async def test_a_batch_that_is_not_full_waits_for_its_window(
    app: App, recorder: Recorder, redrive_clock: ManualClock
) -> None:
    batches = []

    @app.batch_consumer("orders", size=100, timeout="5s")
    async def handle(orders: list[Order]) -> None:
        batches.append(([order.id for order in orders], redrive_clock.monotonic()))

    async with app, app.worker():
        for window in range(2):
            for number in range(3):
                await app.publish("", "orders", Order(number))
            await recorder.taken("orders", 3 * (window + 1))
            redrive_clock.advance("4s")
            redrive_clock.advance("1s")
            await recorder.handled("orders", 3 * (window + 1))
    assert batches == [([0, 1, 2], 5), ([0, 1, 2], 10)]


async def test_a_rate_limit_lets_messages_pass_by_the_clock(
    app: App, recorder: Recorder, redrive_clock: ManualClock
) -> None:
    @app.consumer("orders", rate=0.1, prefetch=3)
    async def handle() -> None: ...

    async with app, app.worker():
        for number in range(3):
            await app.publish("", "orders", Order(number))
        for count in (1, 2, 3):
            await recorder.handled("orders", count)
            await recorder.taken("orders", min(count + 1, 3))
            redrive_clock.advance("10s")


async def test_a_database_outage_is_probed_after_its_pause(
    app: App, recorder: Recorder, redrive_clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redrive.database.engine._BUSY", 0.05)
    app.upgrade_database()
    EFFECTS.metadata.create_all(app.database.engine)

    @app.consumer("orders", inbox=True)
    async def handle(order: Order, session: AsyncSession) -> None:
        await session.execute(sa.insert(EFFECTS).values(n=order.id))

    other = sqlite3.connect(str(app.database.url.database), isolation_level=None)
    async with app, app.worker():
        other.execute("BEGIN IMMEDIATE")
        await app.publish("", "orders", Order(1))
        await recorder.database_is("unavailable")
        other.execute("COMMIT")
        assert recorder.connections[-1].state == "unavailable"
        redrive_clock.advance("3s")
        await recorder.database_is("open")
        await recorder.handled("orders")
    other.close()
    assert recorder.events == []


async def test_a_message_that_cannot_be_handed_over_is_released_after_a_pause(
    app: App, recorder: Recorder, redrive_clock: ManualClock, amqp_broker: ThreadedBroker
) -> None:
    broken, handled = True, list[float]()

    @app.consumer("orders", retry=Retry(attempts=9, delay="15s"))
    async def handle() -> None:
        handled.append(redrive_clock.monotonic())
        if broken:
            raise OSError("down")

    async with app, app.worker():
        vhost = amqp_broker.server.broker.vhosts["/"]
        amqp_broker.call(lambda: vhost.remove_queue(vhost.queues["orders.retry"]))
        await app.publish("", "orders", Order(1))
        await recorder.seen(DeliveryOutcome.RELEASED)
        broken = False
        redrive_clock.advance("30s")
        await recorder.handled("orders")
    assert handled == [0, 30]


# The outbox -------------------------------------------------------------------------------------------


async def test_the_relay_looks_for_rows_by_the_clock(app: App, recorder: Recorder, redrive_clock: ManualClock) -> None:
    app.upgrade_database()

    @app.consumer("orders")
    async def handle() -> None: ...

    async with app, app.worker(relay=True):
        for count in range(1, 6):
            async with app.database.async_sessions()() as session, session.begin():
                await app.publish("", "orders", Order(count), session=session)
            redrive_clock.advance("1s")
            await recorder.handled("orders", count)


@pytest.fixture(params=["sqlite", "postgresql"])
async def refused(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[App]:
    """An application whose outbox has a row for a queue that does not exist."""
    url = f"sqlite:///{tmp_path / 'store.db'}"
    if request.param == "postgresql":
        url = request.getfixturevalue("postgres_url").replace("postgresql://", "postgresql+psycopg://")
    app = App("shop", database=url, data=tmp_path)
    app.upgrade_database()
    with app.database.sessions()() as session, session.begin():
        app.outbox.add(session, "", "later", Order(1))
    yield app
    await app.database.close()


def attempts(app: App) -> int:
    with app.database.engine.connect() as connection:
        return int(connection.execute(sa.select(app.outbox.table.c.attempts)).scalar_one())


async def test_a_row_that_the_broker_refused_is_tried_again_after_its_pause(
    refused: App, amqp_broker: ThreadedBroker, redrive_clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle, settled, loop = relay._settle, asyncio.Queue[None](), asyncio.get_running_loop()

    def settling(stack: ExitStack, claim: ClaimedBatch, published: list[int], refused: list[RefusedRow]) -> None:
        settle(stack, claim, published, refused)
        if refused:
            loop.call_soon_threadsafe(settled.put_nowait, None)

    monkeypatch.setattr(relay, "_settle", settling)
    with amqp_broker.attach(refused):
        stop = asyncio.Event()
        relaying = asyncio.create_task(refused.relay(stop))
        for attempt, pause in ((1, 1), (2, 2), (3, 4)):
            await asyncio.wait_for(settled.get(), 20)
            assert await asyncio.to_thread(attempts, refused) == attempt
            redrive_clock.advance(timedelta(seconds=pause))
            redrive_clock.advance("2s")  # until the relay looks again, at the latest
        await asyncio.wait_for(settled.get(), 20)
        stop.set()
        await relaying


async def test_old_entries_of_the_inbox_are_deleted_by_the_clock(
    app: App, recorder: Recorder, redrive_clock: ManualClock
) -> None:
    @app.consumer("orders", inbox=True)
    async def handle() -> None: ...

    async with app, app.worker():
        await app.publish("", "orders", Order(1), message_id="one")
        await recorder.handled("orders")
    assert app.prune_inbox() == 0
    redrive_clock.advance("365d")
    assert app.prune_inbox() == 1


# Attacks ----------------------------------------------------------------------------------------------


async def test_another_thread_advances_it(app: App, recorder: Recorder, amqp_broker: ThreadedBroker) -> None:
    @app.consumer("orders", retry=Retry(attempts=3, delay="15s"))
    async def handle() -> None:
        raise OSError("down")

    async with app, app.worker():
        await app.publish("", "orders", Order(1))
        await recorder.retried("orders", 1)
        await asyncio.to_thread(amqp_broker.advance, "15s")
        await recorder.retried("orders", 2)
        thread = threading.Thread(target=amqp_broker.advance, args=("15s",))
        thread.start()
        thread.join()
        await recorder.parked("orders")


async def test_an_advance_while_nothing_waits_changes_only_the_time(
    app: App, recorder: Recorder, amqp_broker: ThreadedBroker, redrive_clock: ManualClock
) -> None:
    @app.consumer("orders")
    async def handle() -> None: ...

    amqp_broker.advance("1h")
    async with app, app.worker():
        amqp_broker.advance("1h")
        await app.publish("", "orders", Order(1))
        await recorder.handled("orders")
        amqp_broker.advance("1h")
    amqp_broker.advance("1h")
    assert redrive_clock.monotonic() == 4 * 3600


async def test_fifty_advances_are_one_retry(app: App, recorder: Recorder, redrive_clock: ManualClock) -> None:
    times = []

    @app.consumer("orders", retry=Retry(attempts=2, delay="5s"))
    async def handle() -> None:
        times.append(redrive_clock.monotonic())
        raise OSError("down")

    async with app, app.worker():
        await app.publish("", "orders", Order(1))
        await recorder.retried("orders")
        for _ in range(50):
            redrive_clock.advance("100ms")
        await recorder.parked("orders")
    assert times == [0, 5]


async def test_one_advance_takes_a_message_through_a_chain_of_queues(amqp_broker: ThreadedBroker, app: App) -> None:
    """Each queue's TTL begins when the one before it has ended: four timers, of which each adds the next."""
    chain = {f"wait.{number}": f"wait.{number + 1}" for number in range(1, 5)}
    with amqp_broker.attach(app):
        async with app:
            assert app.connected is not None
            connection = app.connected.consuming
            for queue, following in chain.items():
                back = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": following}
                await connection.declare_queue(queue, durable=True, arguments={"x-message-ttl": 3000, **back})
            await connection.declare_queue("wait.5", durable=True)
            await app.publish("", "wait.1", Order(1))
            amqp_broker.advance("8s")
            assert (await connection.queue_info("wait.3")).messages == 1
            amqp_broker.advance("4s")
            assert (await connection.queue_info("wait.5")).messages == 1


async def test_two_applications_share_a_clock(
    amqp_broker: ThreadedBroker, redrive_clock: ManualClock, tmp_path: Path
) -> None:
    apps = [App(name, data=tmp_path / name) for name in ("shop", "stock")]
    async with AsyncExitStack() as stack:
        recorders = []
        for app in apps:

            @app.consumer(f"{app.name}.orders", retry=Retry(attempts=2, delay="15s"))
            async def handle() -> None:
                raise OSError("down")

            recorders.append(stack.enter_context(amqp_broker.attach(app)))
            await stack.enter_async_context(app)
            await stack.enter_async_context(app.worker())
        for app, recorder in zip(apps, recorders, strict=True):
            await app.publish("", f"{app.name}.orders", Order(1))
            await recorder.retried()
        redrive_clock.advance("15s")
        for app, recorder in zip(apps, recorders, strict=True):
            assert [event.queue for event in await recorder.parked()] == [f"{app.name}.orders"]


async def test_an_application_that_waits_can_be_stopped(
    app: App, recorder: Recorder, redrive_clock: ManualClock, amqp_broker: ThreadedBroker
) -> None:
    """At a breaker, at a rate limit, in a batch, in a pause after a failed transfer, and in a relay's."""
    policy = BreakerPolicy(minimum_calls=1, window=1, pause="30s")

    @app.consumer("breaks", retry=Retry(attempts=9, delay="15s"), breaker=policy)
    async def breaks() -> None:
        raise OSError("down")

    @app.consumer("slow", rate=0.01)
    async def slow() -> None: ...

    @app.batch_consumer("gathers", size=10, timeout="1h")
    async def gathers(orders: list[Order]) -> None: ...

    @app.consumer("stuck", retry=Retry(attempts=9, delay="15s"))
    async def stuck() -> None:
        raise OSError("down")

    async with app:
        async with app.worker(relay=True):
            vhost = amqp_broker.server.broker.vhosts["/"]
            amqp_broker.call(lambda: vhost.remove_queue(vhost.queues["stuck.retry"]))
            for queue in ("breaks", "slow", "gathers", "stuck"):
                for number in range(2):
                    await app.publish("", queue, Order(number))
            await recorder.breaker_is("open", "breaks")
            await recorder.taken("slow", 2)
            await recorder.taken("gathers", 2)
            await recorder.seen(DeliveryOutcome.RELEASED, 2, queue="stuck")
        assert app.connected is not None
        held = {
            queue: (await app.connected.consuming.queue_info(queue)).messages
            for queue in ("breaks", "breaks.retry", "slow", "gathers", "stuck")
        }
    assert held == {"breaks": 1, "breaks.retry": 1, "slow": 1, "gathers": 0, "stuck": 2}
    assert "timers=1" in repr(redrive_clock)  # the TTL of breaks.retry, in the broker


# Attaching --------------------------------------------------------------------------------------------


async def test_an_application_gets_its_own_settings_back(amqp_broker: ThreadedBroker, tmp_path: Path) -> None:
    app = App("shop", broker="amqp://example.com/", management="http://example.com/", data=tmp_path)
    before = app.broker, app.management, app.clock, app.observers
    with amqp_broker.attach(app) as recorder:
        assert (app.broker, app.management, app.clock) == (amqp_broker.url, None, amqp_broker.clock)
        assert app.observers == [recorder]
    assert (app.broker, app.management, app.clock, app.observers) == before
    assert app.observers == []


async def test_an_application_that_is_connected_is_not_attached(app: App, amqp_broker: ThreadedBroker) -> None:
    with amqp_broker.attach(app):
        async with app:
            with pytest.raises(ConfigurationError, match="connected already"), amqp_broker.attach(app):
                pass
            with pytest.raises(ConfigurationError, match="connected already"):
                Recorder(app)


async def test_a_broker_in_real_time_leaves_the_application_its_clock(app: App) -> None:
    with ThreadedBroker() as broker, broker.attach(app):
        clock = app.clock
        assert not isinstance(clock, ManualClock)
        with pytest.raises(RuntimeError, match=r"ThreadedBroker\(clock=ManualClock\(\)\)"):
            broker.advance("1s")
