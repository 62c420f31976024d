"""The transport LOCAL: what is committed is handled in the application's own process, and RabbitMQ is not needed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession

from redrive import App, Message, Retry
from redrive.client import Connection
from redrive.errors import ConfigurationError
from redrive.inspection import connect
from redrive.outbox.outbox import OutboxPolicy
from redrive.outbox.repository import OutboxRepository
from redrive.testing.broker import ThreadedBroker
from redrive.worker.events import DeliveryOutcome
from working import Recorder, take

NOBODY = "amqp://127.0.0.1:1/"  # the RabbitMQ that is not needed
EFFECTS = sa.Table("effects", sa.MetaData(), sa.Column("n", sa.Integer), sa.Column("who", sa.String(20)))


async def until(condition: Callable[[], bool]) -> None:
    """For what tells nobody: a database, a log, two watchers at once."""
    async with asyncio.timeout(20):
        while not await asyncio.to_thread(condition):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


class Shop:
    """An application as a process of it has it: the queue, its consumer, and what happened to messages."""

    def __init__(self, app: App, who: str) -> None:
        self.app = app
        self.watcher = Recorder()
        self.fails = 0
        self._who = who
        app.observers.append(self.watcher)
        events = app.exchange("events", "topic")
        app.consumer("orders", bind=events.on("order.*"), retry=Retry(attempts=2, delay="10ms"), inbox=True)(self.book)

    async def book(self, order: dict[str, int], message: Message, session: AsyncSession) -> None:
        await session.execute(sa.insert(EFFECTS).values(n=order["id"], who=self._who))
        if message.attempt <= self.fails:
            raise ValueError(f"no luck with {order['id']}")

    async def place(self, *numbers: int) -> None:
        """A request of the API's: orders and their events, in one transaction."""
        async with self.app.database.async_sessions()() as session, session.begin():
            for number in numbers:
                await self.app.publish("events", "order.placed", {"id": number}, session=session)

    def effects(self) -> list[tuple[int, str]]:
        with self.app.database.engine.connect() as connection:
            found = connection.execute(sa.select(EFFECTS.c.n, EFFECTS.c.who).order_by(EFFECTS.c.n))
            return [(number, who) for number, who in found]

    def pending(self) -> int:
        return int(OutboxRepository(self.app.database, self.app.outbox.table).status()["pending"])

    async def until_taken(self) -> None:
        """Wait until the outbox is empty: a row is marked after the broker has confirmed it, and so after its handling
        may have begun.
        """
        await until(lambda: not self.pending())


Open = Callable[..., Shop]


@pytest.fixture(params=["sqlite", "postgresql"])
async def shop(request: pytest.FixtureRequest, tmp_path: Path, cleanliness: None) -> AsyncIterator[Open]:  # noqa: ARG001
    """`shop()` is a process of the application; they share a database and a data folder."""
    url = f"sqlite:///{tmp_path / 'store.db'}"
    if request.param == "postgresql":
        url = request.getfixturevalue("postgres_url").replace("postgresql://", "postgresql+psycopg://")
    opened: list[Shop] = []

    def open_shop(transport: str = "LOCAL", *, broker: str = NOBODY, who: str = "first") -> Shop:
        policy = OutboxPolicy(transport=transport)
        app = App("shop", broker=broker, database=url, data=tmp_path / "data", outbox_policy=policy)
        if not opened:
            app.upgrade_database()
            EFFECTS.metadata.create_all(app.database.engine)
        opened.append(Shop(app, who))
        return opened[-1]

    yield open_shop
    for one in opened:
        await one.app.database.close()


# LOCAL --------------------------------------------------------------------------------------------


async def test_what_is_committed_is_handled_here_without_rabbitmq(shop: Open, caplog: pytest.LogCaptureFixture) -> None:
    here = shop()
    with caplog.at_level(logging.INFO, "redrive"):
        async with here.app.local_worker() as listens:
            await here.place(1, 2)
            await here.watcher.seen(DeliveryOutcome.DONE, 2)
            await here.until_taken()
    assert listens
    assert here.effects() == [(1, "first"), (2, "first")]
    assert "the outbox's transport is LOCAL" in caplog.text
    assert "amqp://guest@127.0.0.1:1/ is not used" in caplog.text


async def test_what_was_committed_before_is_handled_at_the_next_start(shop: Open) -> None:
    here = shop()
    await here.place(1)
    async with here.app.local_worker():
        await here.watcher.seen(DeliveryOutcome.DONE)
    assert here.effects() == [(1, "first")]


async def test_what_fails_comes_back_and_has_its_effect_once(shop: Open) -> None:
    here = shop()
    here.fails = 1
    async with here.app.local_worker():
        await here.place(1)
        await here.watcher.seen(DeliveryOutcome.DONE)
    assert here.watcher.counts[DeliveryOutcome.RETRIED] == 1
    assert here.effects() == [(1, "first")]


async def test_what_keeps_failing_is_parked_with_its_story_and_the_commands_find_it(shop: Open) -> None:
    here = shop()
    here.fails = 2
    async with here.app.local_worker():
        await here.place(1)
        await here.watcher.seen(DeliveryOutcome.PARKED)
    assert here.effects() == []
    async with connect(here.app.broker, data=here.app.data) as connection:
        parked = await take(connection, "orders.dlq")
    assert parked.body == b'{"id":1}'
    assert "no luck with 1" in str(parked.properties.headers)


async def test_a_handler_and_the_api_can_publish_as_ever(shop: Open) -> None:
    here = shop()
    async with here.app, here.app.local_worker():
        await here.app.publish("events", "order.placed", {"id": 1})
        await here.watcher.seen(DeliveryOutcome.DONE)
    assert here.effects() == [(1, "first")]


async def test_two_processes_share_the_folder_and_each_event_is_handled_once(shop: Open) -> None:
    first, second = shop(), shop(who="second")
    async with first.app.local_worker(), second.app.local_worker():
        await first.place(*range(50))
        await second.place(*range(50, 100))
        await until(lambda: (first.watcher.counts + second.watcher.counts).total() == 100)
    assert [number for number, _ in first.effects()] == list(range(100))
    assert first.watcher.counts[DeliveryOutcome.DUPLICATE] == second.watcher.counts[DeliveryOutcome.DUPLICATE] == 0


async def test_when_the_process_that_hosts_ends_another_goes_on(shop: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redrive.outbox.relay_lock._STANDBY", 0.01)
    first, second = shop(), shop(who="second")
    async with AsyncExitStack() as hosting:
        await hosting.enter_async_context(first.app.local_worker())
        async with second.app.local_worker():
            await hosting.aclose()
            await second.place(1)
            await second.watcher.seen(DeliveryOutcome.DONE)
    assert second.effects() == [(1, "second")]


async def test_an_application_without_consumers_says_so(shop: Open) -> None:
    here = shop()
    here.app.consumers.clear()
    with pytest.raises(ConfigurationError, match="no consumers here: import the modules that declare them"):
        async with here.app.local_worker():
            pass


async def test_a_listener_that_breaks_says_so_and_begins_again(
    shop: Open, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    here = shop()
    publish_rows, lives = here.app._publish_rows, count(1)

    async def break_once(*arguments: Any, **options: Any) -> Any:
        if next(lives) == 1:
            raise LookupError("a mistake")
        return await publish_rows(*arguments, **options)

    monkeypatch.setattr(here.app, "_publish_rows", break_once)
    async with here.app.local_worker():
        await here.place(1)
        await here.watcher.seen(DeliveryOutcome.DONE)
    assert "not handled now, and soon will be again: a mistake" in caplog.text
    assert here.effects() == [(1, "first")]


async def test_one_that_cannot_even_begin_tells_the_caller(shop: Open) -> None:
    here = shop()
    with here.app.database.engine.begin() as connection:
        connection.execute(sa.text("DROP TABLE redrive_inbox"))
    with pytest.raises(ConfigurationError, match="redrive db upgrade"):
        async with here.app.local_worker():
            pass


async def test_a_relay_alone_is_refused(shop: Open) -> None:
    here = shop()
    await here.place(1)
    with pytest.raises(ConfigurationError, match=r"transport is LOCAL.*`redrive worker --relay`"):
        await here.app.relay(asyncio.Event())
    assert here.pending() == 1


# RABBIT -------------------------------------------------------------------------------------------


@pytest.fixture
def rabbit(memory_broker: ThreadedBroker, tmp_path: Path) -> str:
    """What stands in for RabbitMQ."""
    return memory_broker.add_vhost(f"listening-{tmp_path.name}")


async def test_with_rabbit_the_api_does_not_listen_and_says_why(
    shop: Open, rabbit: str, caplog: pytest.LogCaptureFixture
) -> None:
    here = shop("RABBIT", broker=rabbit)
    with caplog.at_level(logging.INFO, "redrive"):
        async with here.app.local_worker() as listens:
            await here.place(1)
    assert not listens
    assert here.pending() == 1
    assert "transport is RABBIT: this process handles no messages, so that none is handled twice" in caplog.text
    assert not (here.app.data / "broker.lock").exists()


async def test_with_rabbit_the_worker_handles_what_the_api_committed(shop: Open, rabbit: str) -> None:
    here, worker = shop("RABBIT", broker=rabbit), shop("RABBIT", broker=rabbit, who="worker")
    stop = asyncio.Event()
    working = asyncio.create_task(worker.app.run_worker(stop=stop, relay=True))
    async with here.app.local_worker():
        await here.place(1)
        await worker.watcher.seen(DeliveryOutcome.DONE)
    stop.set()
    await working
    assert here.effects() == [(1, "worker")]


# From one to the other ----------------------------------------------------------------------------


async def test_rows_that_are_pending_when_the_transport_changes_go_the_new_way(shop: Open, rabbit: str) -> None:
    await shop().place(1)
    there, stop = shop("RABBIT", broker=rabbit), asyncio.Event()
    async with there.app, Connection(rabbit) as connection:
        relaying = asyncio.create_task(there.app.relay(stop))
        assert (await take(connection, "orders")).body == b'{"id":1}'
        stop.set()
        await relaying


async def test_what_is_left_in_the_folder_is_told_of_until_a_worker_has_handled_it(
    shop: Open, rabbit: str, caplog: pytest.LogCaptureFixture
) -> None:
    before = shop()
    async with before.app:
        for number in (1, 2):
            await before.app.publish("events", "order.placed", {"id": number})
    now = shop("RABBIT", broker=rabbit)

    async with now.app.local_worker():
        assert "2 messages are still in the embedded broker in" in caplog.text
        assert "(orders 2)" in caplog.text

    stop = asyncio.Event()
    draining = asyncio.create_task(before.app.run_worker(stop=stop))  # `redrive worker`, with the transport LOCAL
    await before.watcher.seen(DeliveryOutcome.DONE, 2)
    stop.set()
    await draining
    caplog.clear()
    async with now.app.local_worker():
        assert caplog.text == ""
    assert [number for number, _ in now.effects()] == [1, 2]


async def test_a_worker_and_a_relay_tell_of_it_as_well(
    shop: Open, rabbit: str, caplog: pytest.LogCaptureFixture
) -> None:
    before = shop()
    async with before.app:
        await before.app.publish("events", "order.placed", {"id": 1})
    now, stop = shop("RABBIT", broker=rabbit), asyncio.Event()
    stop.set()
    await now.app.run_worker(stop=stop)
    await now.app.relay(stop)
    assert caplog.text.count("1 messages are still in the embedded broker") == 2


async def test_a_folder_that_cannot_be_read_stops_nobody(
    shop: Open, rabbit: str, caplog: pytest.LogCaptureFixture
) -> None:
    now = shop("RABBIT", broker=rabbit)
    now.app.data.mkdir()
    (now.app.data / "broker.sqlite3").write_text("no database")
    async with now.app.local_worker():
        assert "cannot find out whether messages are left in the embedded broker" in caplog.text
