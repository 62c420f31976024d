"""A database that is unavailable is nobody's failure: with real errors of real servers."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import psycopg
import pytest
import sqlalchemy as sa
from fastapi import FastAPI
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from redrive import App, BreakerPolicy, Retry
from redrive.client import Connection
from redrive.database.connection_errors import is_outage
from redrive.database.engine import Database
from redrive.integrations.fastapi import Transaction, explain_errors, lifespan
from redrive.integrations.health_server import HealthServer
from redrive.integrations.monitoring import Monitoring
from redrive.testing import Endpoint
from redrive.testing.broker import ThreadedBroker
from redrive.worker.events import ConnectionChanged, DeliveryOutcome, Observer
from servers import open_directory
from tests.support.postgres import Postgres
from tests.support.proxy import FaultProxy
from working import depth, take, working

pytestmark = pytest.mark.postgres

EFFECTS = sa.Table("effects", sa.MetaData(), sa.Column("n", sa.Integer))
ONCE = Retry(attempts=1)


class Order(msgspec.Struct):
    id: int


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    """A PostgreSQL of this module's own, which its tests stop and start."""
    directory = open_directory()
    with Postgres(directory / "postgres", fsync=False) as server:
        yield server
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def running(server: Postgres) -> Iterator[Postgres]:
    yield server
    if not server.running:
        server.start()


@pytest.fixture
async def app(
    running: Postgres,
    memory_broker: ThreadedBroker,
    request: pytest.FixtureRequest,
    cleanliness: None,  # noqa: ARG001
) -> AsyncIterator[App]:
    name = f"outage_{abs(hash(request.node.name))}"
    running.create_database(name)
    app = App("shop", broker=memory_broker.add_vhost(name), database=running.url_for(name))
    app.upgrade_database()
    EFFECTS.metadata.create_all(app.database.engine)
    yield app
    await app.database.close()


def effects(app: App) -> list[int]:
    with app.database.engine.connect() as connection:
        return sorted(connection.execute(sa.select(EFFECTS.c.n)).scalars())


class Seen(Observer):
    """The states of the database that a worker reported."""

    def __init__(self) -> None:
        self.states: list[str] = []
        self.changed = asyncio.Event()

    def connection(self, event: ConnectionChanged) -> None:
        if event.name == "database":
            self.states.append(event.state)
            self.changed.set()

    async def until(self, state: str) -> None:
        async with asyncio.timeout(30):
            while state not in self.states[-1:]:
                self.changed.clear()
                await self.changed.wait()


# Which error is an outage ---------------------------------------------------------------------------


def raised(url: str, *statements: str, before_last: Callable[[], object] = lambda: None) -> SQLAlchemyError:
    """Return the error of the last of these statements."""
    database = Database(url)
    try:
        with database.engine.begin() as connection:
            for statement in statements[:-1]:
                connection.exec_driver_sql(statement)
            before_last()
            connection.exec_driver_sql(statements[-1])
    except SQLAlchemyError as error:
        return error
    finally:
        database.engine.dispose()
    raise AssertionError("nothing failed")


def test_a_server_that_refuses_connections_is_an_outage(running: Postgres) -> None:
    running.stop()
    assert is_outage(raised(running.url, "SELECT 1"))


def test_a_server_that_ends_the_connection_is_an_outage(running: Postgres) -> None:
    assert is_outage(raised(running.url, "SELECT pg_terminate_backend(pg_backend_pid())"))


def test_a_server_that_dies_is_an_outage(running: Postgres) -> None:
    assert is_outage(raised(running.url, "SELECT 1", "SELECT 1", before_last=running.kill))


def test_a_server_with_too_many_connections_is_an_outage(running: Postgres) -> None:
    with psycopg.connect(running.dsn, autocommit=True) as connection:
        connection.execute("CREATE ROLE busy LOGIN PASSWORD 'busy' CONNECTION LIMIT 0")
    url = sa.make_url(running.url).set(username="busy", password="busy")
    assert is_outage(raised(url.render_as_string(hide_password=False), "SELECT 1"))


def test_a_server_that_refuses_the_login_is_an_outage(running: Postgres) -> None:
    assert is_outage(raised(running.url.replace(running.password, "wrong"), "SELECT 1"))
    assert is_outage(raised(running.url_for("missing"), "SELECT 1"))


def test_a_standby_is_an_outage(running: Postgres) -> None:
    read_only = "SET TRANSACTION READ ONLY"
    assert is_outage(raised(running.url, read_only, "CREATE TABLE forbidden (n integer)"))


def test_a_pool_without_a_free_connection_is_an_outage(running: Postgres) -> None:
    engine = sa.create_engine(running.url, pool_size=1, max_overflow=0, pool_timeout=0.01)
    with engine.connect(), pytest.raises(SQLAlchemyError) as caught:
        engine.connect()
    engine.dispose()
    assert is_outage(caught.value)


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT * FROM missing",
        "SELECT 1/0",
        "SELEKT",
        "SELECT 'x'::integer",
        "SET LOCAL statement_timeout = 1; SELECT pg_sleep(5)",
    ],
)
def test_a_statement_that_fails_is_no_outage(running: Postgres, statement: str) -> None:
    assert not is_outage(raised(running.url, *statement.split("; ")))


def test_sqlite_that_is_locked_full_or_cannot_be_opened_is_an_outage(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    with sqlite3.connect(tmp_path / "store.db", isolation_level=None) as other:
        other.execute("CREATE TABLE one (n integer primary key)")
        other.execute("BEGIN EXCLUSIVE")
        engine = sa.create_engine(url, connect_args={"timeout": 0})
        with pytest.raises(OperationalError) as locked, engine.begin() as connection:
            connection.exec_driver_sql("INSERT INTO one VALUES (1)")
        engine.dispose()
        other.execute("ROLLBACK")
    other.close()
    big = (
        "CREATE TABLE big AS WITH RECURSIVE n(i) AS (SELECT 1 UNION SELECT i + 1 FROM n WHERE i < 9999) SELECT i FROM n"
    )
    full = raised(url, "PRAGMA max_page_count = 3", big)
    missing = raised(f"sqlite:///{tmp_path}", "SELECT 1")  # a folder
    assert [is_outage(error) for error in (locked.value, full, missing)] == [True, True, True]


def test_a_statement_that_fails_on_sqlite_is_no_outage(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    twice = raised(url, "CREATE TABLE one (n integer primary key)", "INSERT INTO one VALUES (1), (1)")
    unknown = raised(url, "SELECT * FROM missing")
    assert isinstance(twice, IntegrityError)
    assert not is_outage(twice)
    assert not is_outage(unknown)


def test_other_errors_are_no_outages() -> None:
    assert not is_outage(ValueError("no"))
    assert not is_outage(ConnectionRefusedError("another server's"))


# Consumers ------------------------------------------------------------------------------------------


@asynccontextmanager
async def observed(app: App) -> AsyncIterator[tuple[Any, Seen, Monitoring]]:
    seen = Seen()
    app.observers.append(seen)
    monitoring = Monitoring(app)
    async with working(app) as (_, watcher):
        yield watcher, seen, monitoring


def consume(app: App, kind: str) -> None:
    """A consumer that writes down each message, in one of the ways that there are."""
    insert = sa.insert(EFFECTS)

    if kind == "async":

        @app.consumer("orders", retry=ONCE, inbox=True, concurrency=10)
        async def handle(order: Order, session: AsyncSession) -> None:
            await session.execute(insert.values(n=order.id))

    elif kind == "plain":

        @app.consumer("orders", retry=ONCE, inbox=True, concurrency=10)
        def handle_plainly(order: Order, session: Session) -> None:
            session.execute(insert.values(n=order.id))

    elif kind == "session":

        @app.consumer("orders", retry=ONCE, concurrency=10)
        async def handle_without_inbox(order: Order, session: AsyncSession) -> None:
            await session.execute(insert.values(n=order.id))

    else:

        @app.batch_consumer("orders", retry=ONCE, inbox=True, size=5, max_wait="20ms", batchers=2)
        async def handle_many(orders: list[Order], session: AsyncSession) -> None:
            await session.execute(insert, [{"n": order.id} for order in orders])


@pytest.mark.parametrize("kind", ["async", "plain", "session", "batch"])
async def test_messages_wait_for_the_database_and_nothing_is_counted(app: App, running: Postgres, kind: str) -> None:
    consume(app, kind)
    async with observed(app) as (watcher, seen, monitoring):
        await app.publish("", "orders", Order(0), message_id="0")
        await watcher.seen(DeliveryOutcome.DONE)
        assert monitoring.problems() == []
        await asyncio.to_thread(running.stop)
        for number in range(1, 40):
            await app.publish("", "orders", Order(number), message_id=str(number))
        await seen.until("unavailable")
        assert "the database is unavailable" in monitoring.problems()[0]
        await asyncio.to_thread(running.start)
        await watcher.seen(DeliveryOutcome.DONE, 40)
        assert monitoring.problems() == []
    assert watcher.events == []
    assert seen.states == ["open", "unavailable", "open"]
    assert effects(app) == list(range(40))


@pytest.mark.parametrize(
    ("broker", "seconds"),
    [
        ("memory", 2.0),
        pytest.param("rabbitmq", 60.0, marks=[pytest.mark.slow, pytest.mark.rabbitmq]),
    ],
)
async def test_a_consumer_under_load_outlives_its_database(
    app: App, running: Postgres, broker: str, seconds: float, request: pytest.FixtureRequest
) -> None:
    if broker == "rabbitmq":
        node: Endpoint = request.getfixturevalue("rabbitmq")
        node.add_vhost("outage")
        app = App(
            "shop", broker=node.url_for("outage"), database=app.database.url.render_as_string(hide_password=False)
        )

    @app.consumer("orders", retry=Retry(attempts=3, delay="100ms"), inbox=True, concurrency=20)
    async def handle(order: Order, session: AsyncSession) -> None:
        await session.execute(sa.insert(EFFECTS).values(n=order.id))

    loop, published, stop = asyncio.get_running_loop(), 0, asyncio.Event()

    async def publish() -> None:
        nonlocal published
        while not stop.is_set():
            await app.publish("", "orders", Order(published), message_id=str(published))
            published += 1
            await asyncio.sleep(0.005)  # the load: 200 messages a second at most

    async with observed(app) as (watcher, seen, monitoring), HealthServer(ready=monitoring.problems) as health:
        publishing = asyncio.create_task(publish())
        await watcher.seen(DeliveryOutcome.DONE, 50)
        assert await ready(health) == 200
        await asyncio.to_thread(running.stop)
        await seen.until("unavailable")
        before = watcher.counts[DeliveryOutcome.DONE]
        assert await ready(health) == 503
        await asyncio.sleep(seconds)  # how long the database is unavailable
        assert await ready(health) == 503
        assert watcher.counts[DeliveryOutcome.DONE] == before
        await asyncio.to_thread(running.start)
        back = loop.time()
        await watcher.seen(DeliveryOutcome.DONE, before + 1)
        resumed = loop.time() - back
        assert await ready(health) == 200
        stop.set()
        await publishing
        await watcher.seen(DeliveryOutcome.DONE, published, within=60)
        held = await depth(app.connected.publishing, "orders.dlq") if app.connected is not None else None
    assert resumed < 5
    assert watcher.events == []  # nothing was retried, parked or given back
    assert held == 0
    assert seen.states == ["open", "unavailable", "open"]
    assert effects(app) == list(range(published))
    await app.database.close()


async def ready(health: HealthServer) -> int:
    async with httpx.AsyncClient() as client:
        return (await client.get(f"{health.url}/readyz")).status_code


END_MY_SESSION = sa.text("SELECT pg_terminate_backend(pg_backend_pid())")


async def test_a_connection_that_dies_under_a_handler_is_an_outage_whatever_the_handler_makes_of_it(app: App) -> None:
    calls: list[int] = []

    @app.consumer("orders", retry=ONCE, inbox=True)
    async def handle(order: Order, session: AsyncSession) -> None:
        calls.append(order.id)
        await session.execute(sa.insert(EFFECTS).values(n=order.id))
        if calls.count(order.id) > 1:
            return
        try:
            await session.execute(END_MY_SESSION)
        except DBAPIError as error:
            if order.id == 1:
                raise
            if order.id == 2:
                raise ValueError("wrapped") from error

    async with observed(app) as (watcher, _, _):
        for number in (1, 2, 3):  # raised, wrapped, swallowed
            await app.publish("", "orders", Order(number))
        await watcher.seen(DeliveryOutcome.DONE, 3)
    assert watcher.events == []
    assert sorted(calls) == [1, 1, 2, 2, 3, 3]
    assert effects(app) == [1, 2, 3]


async def test_an_outage_of_another_database_is_the_handlers_failure(app: App, running: Postgres) -> None:
    @app.consumer("orders", retry=ONCE, inbox=True)
    def handle(order: Order, session: Session) -> None:  # noqa: ARG001
        raise raised(running.url.replace(f":{running.port}/", ":1/"), "SELECT 1")

    async with observed(app) as (watcher, seen, _):
        await app.publish("", "orders", Order(1))
        (parked,) = await watcher.seen(DeliveryOutcome.PARKED)
    assert parked.reason == "exhausted"
    assert seen.states == ["open"]


async def test_a_constraint_that_fails_at_the_commit_is_the_handlers_failure(app: App) -> None:
    with app.database.engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE unique_later (n integer UNIQUE DEFERRABLE INITIALLY DEFERRED)")

    @app.consumer("orders", retry=ONCE, inbox=True)
    async def handle(order: Order, session: AsyncSession) -> None:
        await session.execute(sa.text("INSERT INTO unique_later VALUES (:n), (:n)"), {"n": order.id})

    async with observed(app) as (watcher, seen, _):
        await app.publish("", "orders", Order(1))
        await watcher.seen(DeliveryOutcome.PARKED)
    assert seen.states == ["open"]


@asynccontextmanager
async def behind_a_network(app: App) -> AsyncIterator[tuple[App, FaultProxy]]:
    """The same application, whose database is behind a network that breaks."""
    async with FaultProxy(app.database.url.render_as_string(hide_password=False)) as network:
        other = App("shop", broker=app.broker, database=network.url)
        try:
            yield other, network
        finally:
            network.resume()
            await other.database.close()


async def test_after_a_commit_whose_answer_is_lost_the_inbox_decides(app: App) -> None:
    async with behind_a_network(app) as (other, network):
        consume(other, "async")

        @sa.event.listens_for(other.database.async_engine.sync_engine, "commit")
        def commit(_: Any) -> None:
            if network.connections and not effects(app):
                network.stall("client")

        async with observed(other) as (watcher, seen, _):
            await other.publish("", "orders", Order(1), message_id="1")
            while not effects(app):  # noqa: ASYNC110 - the database is the one to ask
                await asyncio.sleep(0.01)
            network.cut()
            network.resume()
            await watcher.seen(DeliveryOutcome.DUPLICATE)
        assert seen.states == ["open", "unavailable", "open"]
        assert watcher.counts == {DeliveryOutcome.DUPLICATE: 1}
    assert effects(app) == [1]


async def test_a_time_limit_that_ends_before_the_transaction_begins_is_not_counted(app: App) -> None:
    async with behind_a_network(app) as (other, network):

        @other.consumer("orders", retry=ONCE, inbox=True, timeout="300ms")
        async def handle(order: Order, session: AsyncSession) -> None:
            await session.execute(sa.insert(EFFECTS).values(n=order.id))

        async with observed(other) as (watcher, seen, _):
            network.stall()
            await other.publish("", "orders", Order(1))
            await seen.until("unavailable")
            network.resume()
            await watcher.seen(DeliveryOutcome.DONE)
        assert watcher.events == []
    assert effects(app) == [1]


async def test_during_an_outage_one_message_at_a_time_probes_the_database(app: App, running: Postgres) -> None:
    consume(app, "async")
    connecting: list[bool] = []

    @sa.event.listens_for(app.database.async_engine.sync_engine, "do_connect")
    def connect(*_: Any) -> None:
        connecting.append(app.connected is not None and bool(app.connected.problems))

    async with observed(app) as (watcher, seen, _):
        await asyncio.to_thread(running.stop)
        for number in range(50):
            await app.publish("", "orders", Order(number))
        await seen.until("unavailable")
        probes = connecting.count(True)
        async with asyncio.timeout(30):
            while connecting.count(True) < probes + 3:  # noqa: ASYNC110 - the engine is the one to ask
                await asyncio.sleep(0.01)
        assert connecting.count(False) <= 10  # as many as were being handled when it began
        await asyncio.to_thread(running.start)
        await watcher.seen(DeliveryOutcome.DONE, 50)
    assert watcher.events == []


@pytest.mark.parametrize("kind", ["async", "batch"])
async def test_a_worker_that_stops_during_an_outage_gives_its_messages_back(
    app: App, running: Postgres, kind: str
) -> None:
    consume(app, kind)
    async with observed(app) as (watcher, seen, _):
        await asyncio.to_thread(running.stop)
        for number in range(20):
            await app.publish("", "orders", Order(number))
        await seen.until("unavailable")
    assert {event.outcome for event in watcher.events} <= {DeliveryOutcome.RELEASED}
    async with Connection(app.broker or "") as connection:
        assert await depth(connection, "orders") == 20
        delivery = await take(connection, "orders")
        assert "x-redrive-attempts" not in (delivery.properties.headers or {})


async def test_consumers_without_a_database_go_on_and_breakers_are_not_tripped(app: App, running: Postgres) -> None:
    @app.consumer("orders", retry=ONCE, inbox=True, breaker=BreakerPolicy(minimum_calls=1, window=1))
    async def handle(order: Order) -> None: ...

    @app.consumer("others", retry=ONCE, timeout="10s")
    async def handle_other(order: Order) -> None: ...

    async with observed(app) as (watcher, seen, _):
        await asyncio.to_thread(running.stop)
        await app.publish("", "orders", Order(1))
        await seen.until("unavailable")
        await app.publish("", "others", Order(2))
        await watcher.seen(DeliveryOutcome.DONE)
        await asyncio.to_thread(running.start)
        await watcher.seen(DeliveryOutcome.DONE, 2)
    assert watcher.breaker_states == []


# The API --------------------------------------------------------------------------------------------


async def test_an_api_answers_503_while_its_database_is_unavailable(app: App, running: Postgres) -> None:
    api = FastAPI(lifespan=lifespan(app))
    explain_errors(api)

    @api.post("/orders")
    async def place(session: Transaction, n: int, then: str = "SELECT 1") -> None:
        await session.execute(sa.insert(EFFECTS).values(n=n))
        await session.execute(sa.text(then))

    transport = httpx.ASGITransport(api, raise_app_exceptions=False)
    async with (
        api.router.lifespan_context(api),
        httpx.AsyncClient(transport=transport, base_url="http://shop") as client,
    ):
        lost = await client.post("/orders", params={"n": 1, "then": str(END_MY_SESSION)})
        await asyncio.to_thread(running.stop)
        away = await client.post("/orders", params={"n": 2})
        await asyncio.to_thread(running.start)
        well = await client.post("/orders", params={"n": 3})
        wrong = await client.post("/orders", params={"n": 4, "then": "SELECT * FROM missing"})
    assert [answer.status_code for answer in (lost, away, well, wrong)] == [503, 503, 200, 500]
    assert [answer.headers.get("Retry-After") for answer in (lost, away, well, wrong)] == ["2", "2", None, None]
    assert lost.json()["title"] == "It may have been stored"
    assert away.json()["title"] == "The database cannot be reached"
    assert away.headers["content-type"] == "application/problem+json"
    assert effects(app) == [3]


async def test_a_locked_sqlite_is_waited_for(
    tmp_path: Path, memory_broker: ThreadedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redrive.database.engine._BUSY", 0.05)
    app = App("shop", broker=memory_broker.add_vhost(f"locked-{tmp_path.name}"), data=tmp_path)
    app.upgrade_database()
    EFFECTS.metadata.create_all(app.database.engine)
    consume(app, "plain")
    with sqlite3.connect(str(app.database.url.database), isolation_level=None) as other:
        async with observed(app) as (watcher, seen, _):
            other.execute("BEGIN IMMEDIATE")
            await app.publish("", "orders", Order(1))
            await seen.until("unavailable")
            other.execute("COMMIT")
            await watcher.seen(DeliveryOutcome.DONE)
        assert watcher.events == []
    other.close()
    assert effects(app) == [1]
    await app.database.close()
