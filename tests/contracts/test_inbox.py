"""Outbox, relay and inbox with a broker: published if committed, processed once."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, nullcontext, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa
from prometheus_client import CollectorRegistry
from sqlalchemy.exc import IntegrityError, InvalidRequestError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session, SessionTransaction

from redrive import App, Batch, Message, Retry
from redrive.client import Connection
from redrive.database.application_tables import InboxNames, RowState
from redrive.errors import ConfigurationError, NotFound
from redrive.integrations.logs import LogObserver
from redrive.integrations.prometheus import PrometheusObserver, exposition
from redrive.outbox.inbox import Inbox
from redrive.outbox.repository import OutboxRepository
from redrive.outbox.transactions import StoreTransactions
from redrive.testing.broker import ThreadedBroker
from redrive.wire.properties import Properties
from redrive.worker.events import DeliveryOutcome
from redrive.worker.transactions import InboxPolicy
from working import depth, take, working

EFFECTS = sa.Table("effects", sa.MetaData(), sa.Column("n", sa.Integer), sa.Column("who", sa.String(20)))
ONCE = sa.Table("once", EFFECTS.metadata, sa.Column("n", sa.Integer, primary_key=True))


class Order(msgspec.Struct):
    id: int


@pytest.fixture(params=["sqlite", "postgresql"])
async def app(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    memory_broker: ThreadedBroker,
    cleanliness: None,  # noqa: ARG001
) -> AsyncIterator[App]:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    if request.param == "postgresql":
        url = request.getfixturevalue("postgres_url").replace("postgresql://", "postgresql+psycopg://")
    app = App("shop", broker=memory_broker.add_vhost(f"inbox-{tmp_path.name}-{request.param}"), database=url)
    app.upgrade_database()
    EFFECTS.metadata.create_all(app.database.engine)
    yield app
    await app.database.close()


def effects(app: App) -> list[int]:
    with app.database.engine.connect() as connection:
        return sorted(connection.execute(sa.select(EFFECTS.c.n)).scalars())


# Relay --------------------------------------------------------------------------------------------


async def test_what_is_committed_is_published_and_the_rest_is_not(app: App) -> None:
    app.queue("orders", dlq=False)
    stop = asyncio.Event()
    async with app:
        relaying = asyncio.create_task(app.relay(stop))
        async with app.database.async_sessions()() as session, session.begin():
            identity = await app.publish("", "orders", Order(1), session=session)
        async with app.database.async_sessions()() as session:
            await app.publish("", "orders", Order(2), session=session)
        async with Connection(app.broker or "") as connection:
            found = await take(connection, "orders")
            assert (found.body, found.properties.message_id) == (b'{"id":1}', identity)
            stop.set()
            relay = await relaying
            assert await depth(connection, "orders") == 0
    assert relay.published == 1


async def test_a_row_that_nobody_wants_is_parked_and_holds_up_nobody(app: App) -> None:
    app.queue("orders", dlq=False)
    object.__setattr__(app.outbox.policy, "attempts", 1)
    stop = asyncio.Event()
    async with app:
        with app.database.sessions()() as session, session.begin():
            app.outbox.add(session, "", "nowhere", Order(1))
            app.outbox.add(session, "", "orders", Order(2))
        relaying = asyncio.create_task(app.relay(stop))
        async with Connection(app.broker or "") as connection:
            assert (await take(connection, "orders")).body == b'{"id":2}'
        while not (await asyncio.to_thread(_status, app))["parked"]:  # noqa: ASYNC110 - the database is the one to ask
            await asyncio.sleep(0.01)
        stop.set()
        await relaying
    assert _status(app) | {"oldest": None} == {"pending": 0, "oldest": None, "parked": 1}


def _status(app: App) -> dict[str, Any]:
    return OutboxRepository(app.database, app.outbox.table).status()


async def test_order_is_kept_for_each_key(app: App) -> None:
    app.queue("orders", dlq=False)
    with app.database.sessions()() as session, session.begin():
        for number in range(30):
            app.outbox.add(session, "", "orders", Order(number), ordering_key=f"k{number % 3}")
    stop = asyncio.Event()
    async with app, Connection(app.broker or "") as connection:
        relaying = asyncio.create_task(app.relay(stop))
        numbers = [msgspec.json.decode((await take(connection, "orders")).body)["id"] for _ in range(30)]
        stop.set()
        await relaying
    for key in range(3):
        assert [number for number in numbers if number % 3 == key] == list(range(key, 30, 3))


async def test_two_relays_on_sqlite_are_refused(app: App) -> None:
    if app.database.is_postgresql:
        pytest.skip("PostgreSQL: as many as you like")
    stop, started = asyncio.Event(), asyncio.Event()
    async with app:
        first = asyncio.create_task(app.relay(stop, ready=lambda _: started.set()))
        await started.wait()
        with pytest.raises(ConfigurationError, match="another relay works on this outbox"):
            await app.relay(asyncio.Event())
        stop.set()
        await first


async def test_the_relay_of_a_second_worker_on_sqlite_waits_for_its_turn(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    if app.database.is_postgresql:
        pytest.skip("PostgreSQL: as many as you like")
    monkeypatch.setattr("redrive.outbox.relay_lock._STANDBY", 0.01)
    app.queue("orders", dlq=False)
    stop, started, second_stop = asyncio.Event(), asyncio.Event(), asyncio.Event()
    first = asyncio.create_task(app.relay(stop, ready=lambda _: started.set()))
    await started.wait()
    second = asyncio.create_task(app.run_worker(stop=second_stop, relay=True))
    async with Connection(app.broker or "") as connection:
        while await _is_missing(connection, "orders"):  # noqa: ASYNC110 - the worker makes it
            await asyncio.sleep(0.01)
        stop.set()
        await first
        with app.database.sessions()() as session, session.begin():
            app.outbox.add(session, "", "orders", Order(1))
        assert (await take(connection, "orders")).body == b'{"id":1}'
    second_stop.set()
    assert await second


async def _is_missing(connection: Connection, queue: str) -> bool:
    try:
        await connection.queue_info(queue)
    except NotFound:
        return True
    return False


async def test_two_databases_on_one_broker_have_a_relay_each(app: App, tmp_path: Path) -> None:
    other = App("other", broker=app.broker, database=f"sqlite:///{tmp_path / 'other.db'}")
    other.upgrade_database()
    stop, started = asyncio.Event(), asyncio.Queue[None]()
    relaying = [asyncio.create_task(one.relay(stop, ready=lambda _: started.put_nowait(None))) for one in (app, other)]
    for _ in relaying:
        await started.get()
    stop.set()
    await asyncio.gather(*relaying)
    await other.database.close()


# Inbox --------------------------------------------------------------------------------------------


async def test_a_duplicate_has_no_second_effect(app: App) -> None:
    @app.consumer("orders", retry=Retry(attempts=1), inbox=True)
    async def handle(order: Order, session: AsyncSession) -> None:
        await session.execute(sa.insert(EFFECTS).values(n=order.id, who="async"))

    async with working(app) as (_, watcher):
        for _ in range(3):
            await app.publish("", "orders", Order(1), message_id="m-1")
        await app.publish("", "orders", Order(2), message_id="m-2")
        await watcher.seen(DeliveryOutcome.DONE, 2)
        await watcher.seen(DeliveryOutcome.DUPLICATE, 2)
    assert effects(app) == [1, 2]


async def test_a_duplicate_is_counted_and_logged(app: App, caplog: pytest.LogCaptureFixture) -> None:
    @app.consumer("orders", retry=Retry(attempts=1), inbox=True)
    async def handle(order: Order) -> None: ...

    registry = CollectorRegistry()
    app.observers += [LogObserver("shop"), PrometheusObserver(registry, queues=["orders"])]
    with caplog.at_level("INFO", "redrive"):
        async with working(app) as (_, watcher):
            for _ in range(2):
                await app.publish("", "orders", Order(1), message_id="m-1")
            await watcher.seen(DeliveryOutcome.DUPLICATE)
    assert 'redrive_processed_total{outcome="duplicate",queue="orders"} 1.0' in exposition(registry).decode()
    assert "orders: duplicate (processed before)" in caplog.text
    assert "m-1" in caplog.text


async def test_a_plain_function_has_a_plain_session(app: App) -> None:
    @app.consumer("orders", retry=Retry(attempts=1), inbox=True)
    def handle(order: Order, session: Session) -> None:
        session.execute(sa.insert(EFFECTS).values(n=order.id, who="plain"))

    async with working(app) as (_, watcher):
        for _ in range(2):
            await app.publish("", "orders", Order(1), message_id="m-1")
        await watcher.seen(DeliveryOutcome.DONE)
        await watcher.seen(DeliveryOutcome.DUPLICATE)
    assert effects(app) == [1]


async def test_a_plain_function_that_outlives_its_time_limit_has_no_effect(app: App) -> None:
    calls, timed_out, ended = 0, threading.Event(), threading.Event()

    @app.consumer("orders", retry=Retry(attempts=2, delay="50ms"), inbox=True, timeout="200ms", concurrency=2)
    def handle(order: Order, session: Session) -> None:
        nonlocal calls
        calls += 1
        if calls > 1:
            session.execute(sa.insert(EFFECTS).values(n=order.id, who="in time"))
            return
        timed_out.wait(20)
        try:
            session.execute(sa.insert(EFFECTS).values(n=order.id, who="too late"))
        finally:
            ended.set()

    async with working(app) as (_, watcher):
        await app.publish("", "orders", Order(1))
        await watcher.seen(DeliveryOutcome.DONE)
        timed_out.set()
        await asyncio.to_thread(ended.wait, 20)
        await app.publish("", "orders", Order(2))
        await watcher.seen(DeliveryOutcome.DONE, 2)
    assert effects(app) == [1, 2]


async def test_transactions_that_wait_for_one_to_end_do_not_take_its_threads(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(2))
    transactions, waiting = StoreTransactions(app.database, app.inbox), asyncio.Queue[None]()
    note, tell = app.inbox.note, partial(asyncio.get_running_loop().call_soon_threadsafe, waiting.put_nowait, None)

    def noting(*arguments: Any) -> set[str]:
        tell()
        return note(*arguments)

    async def handle() -> set[str]:
        async with transactions.begin(blocking=True) as transaction:
            return await transaction.note("orders", ["m-1"])

    async with asyncio.timeout(20):
        async with transactions.begin(blocking=True) as first:
            assert await first.note("orders", ["m-1"]) == {"m-1"}
            monkeypatch.setattr(app.inbox, "note", noting)
            others = [asyncio.create_task(handle()) for _ in range(4)]
            for _ in range(2):
                await waiting.get()
        assert await asyncio.gather(*others) == [set()] * 4


async def test_a_note_that_comes_too_late_leaves_no_transaction_open(app: App) -> None:
    transactions = StoreTransactions(app.database, app.inbox)
    begun, go_on, closed = threading.Event(), threading.Event(), threading.Event()

    @sa.event.listens_for(app.database.engine, "checkin")
    def checkin(*_: Any) -> None:
        closed.set()

    @sa.event.listens_for(app.database.engine, "checkout")
    def checkout(*_: Any) -> None:
        begun.set()
        go_on.wait(20)

    async def handle() -> None:
        async with transactions.begin(blocking=True) as transaction:
            await transaction.note("orders", ["m-1"])

    handling = asyncio.create_task(handle())
    await asyncio.to_thread(begun.wait, 20)
    handling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await handling
    go_on.set()
    assert await asyncio.to_thread(closed.wait, 20)
    assert _noted(app) == []


async def test_a_commit_that_is_under_way_when_its_caller_gives_up_is_finished(app: App) -> None:
    committing, go_on = threading.Event(), threading.Event()

    @sa.event.listens_for(app.database.engine, "commit")
    def commit(_: Any) -> None:
        committing.set()
        go_on.wait(20)

    async def write() -> None:
        async with StoreTransactions(app.database, app.inbox).begin(blocking=True) as transaction:
            await asyncio.to_thread(transaction.session.execute, sa.insert(EFFECTS).values(n=1, who=""))

    writing = asyncio.create_task(write())
    await asyncio.to_thread(committing.wait, 20)
    writing.cancel()
    await asyncio.sleep(0)
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await writing
    assert effects(app) == [1]


ENDS: dict[str, Callable[[Session], Any]] = {
    "commit": lambda session: session.commit(),
    "rollback": lambda session: session.rollback(),
    "close": lambda session: session.close(),
    "commit of the transaction": lambda session: _root(session).commit(),
    "rollback of the transaction": lambda session: _root(session).rollback(),
    "rollback in a savepoint": lambda session: (session.begin_nested(), session.rollback()),
}


def _root(session: Session) -> SessionTransaction:
    transaction = session.get_transaction()
    assert transaction is not None
    return transaction


@pytest.mark.parametrize("inbox", [True, False], ids=["inbox", "session"])
@pytest.mark.parametrize("plain", [True, False], ids=["plain", "async"])
@pytest.mark.parametrize("end", ENDS)
async def test_a_handler_that_ends_the_transaction_has_failed(app: App, end: str, plain: bool, inbox: bool) -> None:
    policy: dict[str, Any] = {"retry": Retry(attempts=1), "inbox": inbox}

    def write(session: Session, number: int) -> None:
        ENDS[end](session)
        session.execute(sa.insert(EFFECTS).values(n=number, who=""))

    if plain:

        @app.consumer("orders", **policy)
        def handle(order: Order, session: Session) -> None:
            write(session, order.id)
    else:

        @app.consumer("orders", **policy)
        async def handle_async(order: Order, session: AsyncSession) -> None:
            await session.run_sync(write, order.id)

    async with working(app) as (_, watcher):
        await app.publish("", "orders", Order(1))
        (parked,) = await watcher.seen(DeliveryOutcome.PARKED)
    assert "InvalidRequestError" in str(parked) or "ResourceClosedError" in str(parked)
    assert effects(app) == []


async def test_a_handler_that_ends_the_transaction_is_told_what_to_do(app: App) -> None:
    async with StoreTransactions(app.database, app.inbox).begin(blocking=True) as transaction:
        for end in (transaction.session.commit, transaction.session.rollback):
            with pytest.raises(InvalidRequestError, match=r"the consumer commits it .* session.begin_nested\(\)"):
                end()
    async with StoreTransactions(app.database, app.inbox).begin(blocking=False) as transaction:
        for end in (transaction.session.commit, transaction.session.rollback):
            with pytest.raises(InvalidRequestError, match=r"the consumer commits it .* session.begin_nested\(\)"):
                await end()


async def test_a_savepoint_is_the_handlers_own(app: App) -> None:
    @app.consumer("orders", retry=Retry(attempts=1), inbox=True)
    def handle(order: Order, session: Session) -> None:
        for number in range(3):
            savepoint = session.begin_nested()
            session.execute(sa.insert(EFFECTS).values(n=number, who=""))
            savepoint.rollback() if number == 1 else savepoint.commit()
        session.begin_nested()  # nobody ends this one
        session.execute(sa.insert(EFFECTS).values(n=order.id, who=""))

    async with working(app) as (_, watcher):
        await app.publish("", "orders", Order(7))
        await watcher.seen(DeliveryOutcome.DONE)
    assert effects(app) == [0, 2, 7]


async def test_a_failure_takes_back_its_writes_and_is_not_remembered(app: App) -> None:
    tries = 0

    @app.consumer("orders", retry=Retry(attempts=3, delay="50ms"), inbox=True)
    async def handle(order: Order, session: AsyncSession) -> None:
        nonlocal tries
        tries += 1
        await session.execute(sa.insert(EFFECTS).values(n=order.id, who=str(tries)))
        await app.publish("", "out", Order(order.id), session=session)
        if tries < 3:
            raise OSError("not yet")

    app.queue("out", dlq=False)
    async with working(app) as (_, watcher):
        await app.publish("", "orders", Order(7))
        await watcher.seen(DeliveryOutcome.DONE)
    assert effects(app) == [7]
    assert _status(app)["pending"] == 1


def write_twice(session: Session, number: int, *, savepoint: bool) -> None:
    """And take no offence at being told so."""
    session.execute(sa.insert(EFFECTS).values(n=number, who=""))
    for _ in range(2):
        with suppress(IntegrityError), session.begin_nested() if savepoint else nullcontext():
            session.execute(sa.insert(ONCE).values(n=number))


def write_twice_for_each(app: App, *, plain: bool, savepoint: bool) -> None:
    def handle(order: Order, session: Session) -> None:
        write_twice(session, order.id, savepoint=savepoint)

    async def handle_async(order: Order, session: AsyncSession) -> None:
        await session.run_sync(write_twice, order.id, savepoint=savepoint)

    app.consumer("orders", retry=Retry(attempts=1), inbox=True)(handle if plain else handle_async)


@pytest.mark.parametrize("plain", [True, False], ids=["plain", "async"])
async def test_a_database_error_that_was_caught_does_not_make_a_rollback_a_success(app: App, plain: bool) -> None:
    if not app.database.is_postgresql:
        pytest.skip("SQLite's transactions survive a statement that fails")
    write_twice_for_each(app, plain=plain, savepoint=False)

    async with working(app) as (running, watcher):
        await app.publish("", "orders", Order(1))
        await watcher.seen(DeliveryOutcome.PARKED)
        letter = await take(running.consuming, "orders.dlq")
    assert "begin_nested" in str(letter.properties.headers)
    assert (effects(app), _noted(app)) == ([], [])


@pytest.mark.parametrize("plain", [True, False], ids=["plain", "async"])
async def test_a_database_error_in_a_savepoint_may_be_caught(app: App, plain: bool) -> None:
    write_twice_for_each(app, plain=plain, savepoint=True)

    async with working(app) as (_, watcher):
        await app.publish("", "orders", Order(1))
        await watcher.seen(DeliveryOutcome.DONE)
    assert effects(app) == [1]
    assert len(_noted(app)) == 1


async def test_the_same_message_on_two_workers_has_one_effect(app: App) -> None:
    @app.consumer("orders", retry=Retry(attempts=9, delay="50ms"), inbox=True, concurrency=8)
    async def handle(order: Order, session: AsyncSession) -> None:
        await session.execute(sa.insert(EFFECTS).values(n=order.id, who=""))
        await asyncio.sleep(0.01)

    async with working(app) as (_, watcher):
        for number in range(5):
            for _ in range(6):
                await app.publish("", "orders", Order(number), message_id=f"m-{number}")
        await watcher.until(
            lambda: watcher.counts[DeliveryOutcome.DONE] + watcher.counts[DeliveryOutcome.DUPLICATE] >= 30
        )
    assert effects(app) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(("choice", "counted"), [("hash", [1]), ("process", [1, 1]), ("park", [])])
async def test_a_message_without_an_id_is_parked_hashed_or_processed(app: App, choice: Any, counted: list[int]) -> None:
    @app.consumer("orders", retry=Retry(attempts=3, delay="50ms"), inbox=InboxPolicy(without_id=choice))
    async def handle(order: Order, session: AsyncSession) -> None:
        await session.execute(sa.insert(EFFECTS).values(n=order.id, who=""))

    async with working(app) as (running, watcher):
        for _ in range(2):
            await running.publishing.publish("", "orders", b'{"id": 1}')
        await watcher.until(lambda: sum(watcher.counts.values()) == 2)
        assert watcher.counts[DeliveryOutcome.PARKED] == (2 if choice == "park" else 0)
    assert effects(app) == counted


async def test_another_key_can_be_what_makes_messages_the_same(app: App) -> None:
    @app.consumer("orders", retry=Retry(attempts=1), inbox=InboxPolicy(key=lambda order, _: f"order-{order.id}"))
    async def handle(order: Order, session: AsyncSession) -> None:
        await session.execute(sa.insert(EFFECTS).values(n=order.id, who=""))

    async with working(app) as (_, watcher):
        for _ in range(3):
            await app.publish("", "orders", Order(1))
        await watcher.seen(DeliveryOutcome.DUPLICATE, 2)
    assert effects(app) == [1]


async def test_a_batch_is_one_transaction_without_its_duplicates(app: App) -> None:
    calls: list[list[int]] = []

    @app.batch_consumer("orders", size=12, max_wait="300ms", retry=Retry(attempts=1), inbox=True)
    async def handle(batch: Batch[Order], session: AsyncSession) -> None:
        calls.append([item.body.id for item in batch])
        for item in batch:
            if item.body.id == 4:
                batch.fail(item, ValueError("bad row"))
        await session.execute(sa.insert(EFFECTS), [{"n": item.body.id, "who": ""} for item in batch])

    async with working(app) as (running, watcher):
        for number in (0, 1, 2, 3, 4, 0, 1, 5, 6, 7, 8, 9):
            await app.publish("", "orders", Order(number), message_id=f"m-{number}")
        await watcher.seen(DeliveryOutcome.DONE, 9)
        await watcher.seen(DeliveryOutcome.PARKED, 1)
        await app.publish("", "orders", Order(5), message_id="m-5")
        await watcher.seen(DeliveryOutcome.DUPLICATE, 3)
        assert await depth(running.consuming, "orders.dlq") == 1
    assert effects(app) == [0, 1, 2, 3, 5, 6, 7, 8, 9]


@pytest.mark.parametrize("isolate", [True, False])
async def test_those_without_an_id_are_known_and_their_neighbours_done(app: App, isolate: bool) -> None:
    @app.batch_consumer("orders", size=30, max_wait="300ms", retry=Retry(attempts=1), inbox=True, isolate=isolate)
    async def handle(batch: Batch[Order], session: AsyncSession) -> None:
        await session.execute(sa.insert(EFFECTS), [{"n": item.body.id, "who": ""} for item in batch])

    async with working(app) as (running, watcher):
        for number in range(30):
            if number % 3:
                await app.publish("", "orders", Order(number), message_id=f"m-{number}")
            else:
                await running.publishing.publish("", "orders", b'{"id": %d}' % number)
        await watcher.seen(DeliveryOutcome.DONE, 20)
        await watcher.seen(DeliveryOutcome.PARKED, 10)
    assert effects(app) == [number for number in range(30) if number % 3]


async def test_middleware_that_translates_errors_makes_none_of_a_duplicate(app: App) -> None:
    @asynccontextmanager
    async def translating(_: Message) -> AsyncIterator[None]:
        try:
            yield
        except Exception as error:
            raise RuntimeError("something failed") from error

    @app.consumer("orders", retry=Retry(attempts=1), inbox=True, middleware=[translating])
    async def handle(order: Order, session: AsyncSession) -> None:
        await session.execute(sa.insert(EFFECTS).values(n=order.id, who=""))

    async with working(app) as (_, watcher):
        for _ in range(2):
            await app.publish("", "orders", Order(1), message_id="m-1")
        await watcher.seen(DeliveryOutcome.DUPLICATE, 1)
    assert effects(app) == [1]


async def test_dead_letters_are_handled_once_as_well(app: App) -> None:
    @app.consumer("orders", retry=Retry(attempts=1))
    async def handle(order: Order) -> None:
        raise ValueError(f"order {order.id}")

    @app.dlq_consumer("orders", inbox=True)
    async def last_resort(order: Order, session: AsyncSession) -> None:
        await session.execute(sa.insert(EFFECTS).values(n=order.id, who=""))

    async with working(app) as (_, watcher):
        for _ in range(2):
            await app.publish("", "orders", Order(1), message_id="m-1")
        await watcher.seen(DeliveryOutcome.DUPLICATE, 1)
    assert effects(app) == [1]
    assert set(app.inbox_windows) == {"orders.dlq"}


async def test_old_entries_are_forgotten_in_small_batches(app: App) -> None:
    with app.database.sessions()() as session, session.begin():
        assert app.inbox.note(session, "orders", [str(number) for number in range(25)]) == {str(n) for n in range(25)}
        assert app.inbox.note(session, "orders", ["3", "x"]) == {"x"}
        assert app.inbox.note(session, "another consumer", ["3"]) == {"3"}
    assert app.inbox.prune(timedelta(hours=1)) == 0
    assert app.inbox.prune(timedelta(seconds=-5), batch=10) == 27


async def test_the_table_and_its_columns_can_have_other_names(app: App) -> None:
    names = InboxNames("nfe_inbox_processed", {"message_id": "event_id", "processed_at": "at"})
    inbox = Inbox(app.database, names)
    inbox.table.metadata.create_all(app.database.engine)
    with app.database.sessions()() as session, session.begin():
        assert inbox.note(session, "nfe", ["e-1", "e-2"]) == {"e-1", "e-2"}
    async with app.database.async_sessions()() as session, session.begin():
        assert await inbox.note_async(session, "nfe", ["e-2", "e-3"]) == {"e-3"}
    with app.database.reading_connection() as connection:
        noted = connection.exec_driver_sql("SELECT event_id FROM nfe_inbox_processed WHERE at IS NOT NULL").scalars()
        assert sorted(noted) == ["e-1", "e-2", "e-3"]
    assert inbox.prune(timedelta(seconds=-5)) == 3
    with pytest.raises(ConfigurationError, match="no column mesage_id, did you mean message_id"):
        InboxNames(columns={"mesage_id": "event_id"})


def test_an_application_makes_and_uses_the_inbox_that_it_names(tmp_path: Path) -> None:
    names = InboxNames("nfe_inbox_processed", {"message_id": "event_id"})
    for given, column in ((names, "event_id"), ("nfe_inbox_processed", "message_id")):
        app = App("nfe", data=tmp_path / column, inbox_table=given)
        app.upgrade_database()
        known = sa.inspect(app.database.engine).get_columns("nfe_inbox_processed")
        assert {one["name"] for one in known} == {"consumer", column, "processed_at"}
        assert app.inbox.table.c.message_id.name == column
        asyncio.run(app.database.close())


async def test_each_consumer_forgets_what_it_has_kept_for_long_enough(app: App) -> None:
    @app.consumer("orders", inbox=InboxPolicy(keep=timedelta(seconds=-5)))
    async def handle(order: Order) -> None: ...

    @app.consumer("invoices", inbox=True)
    async def file(order: Order) -> None: ...

    with app.database.sessions()() as session, session.begin():
        for consumer in ("orders", "invoices", "of another application"):
            app.inbox.note(session, consumer, ["1", "2"])
    stop = asyncio.Event()
    working = asyncio.create_task(app.run_worker(stop=stop))
    while len(await asyncio.to_thread(_noted, app)) > 4:  # noqa: ASYNC110 - the database is the one to ask
        await asyncio.sleep(0.01)
    stop.set()
    await working
    assert {consumer for consumer, _ in _noted(app)} == {"invoices", "of another application"}


def _noted(app: App) -> list[Any]:
    with app.database.reading_connection() as connection:
        return list(connection.execute(sa.select(app.inbox.table.c.consumer, app.inbox.table.c.message_id)))


async def test_a_relay_deletes_published_rows_that_were_kept_for_long_enough(app: App) -> None:
    object.__setattr__(app.outbox.policy, "keep", "1d")
    with app.database.sessions()() as session, session.begin():
        for number in range(3):
            app.outbox.add(session, "", "orders", Order(number))
        old = datetime.now(UTC) - timedelta(days=2)
        done = sa.update(app.outbox.table).values(state=1, published_at=old)
        session.execute(done.where(app.outbox.table.c.id == 2))
    claims, stop = OutboxRepository(app.database, app.outbox.table), asyncio.Event()
    app.queue("orders", dlq=False)
    async with app:
        relaying = asyncio.create_task(app.relay(stop))
        async with asyncio.timeout(20):
            while _kept(claims) != [1, 3]:  # noqa: ASYNC110 - the database is the one to ask
                await asyncio.sleep(0.01)
        stop.set()
        await relaying


def _kept(claims: OutboxRepository) -> list[int]:
    return [row["id"] for row in claims.list_rows(RowState.PUBLISHED, 10)]


async def test_work_does_not_begin_without_the_table(app: App) -> None:
    @app.consumer("orders", inbox=True)
    async def handle(order: Order) -> None: ...

    with app.database.engine.begin() as connection:
        connection.execute(sa.text("DROP TABLE redrive_inbox"))
    with pytest.raises(ConfigurationError, match=r"there is no table redrive_inbox in .*: make it with"):
        await app.run_worker(stop=asyncio.Event())


def test_a_key_that_is_too_long_for_the_table_is_still_its_own() -> None:
    policy = InboxPolicy(key=lambda body, _: body)
    keys = {policy.identity("k" * 300 + end, None) for end in ("", "a", "b")}  # type: ignore[arg-type]
    assert len(keys) == 3
    assert all(key is not None and len(key) <= 255 for key in keys)


async def test_an_id_that_no_database_takes_is_recognised_all_the_same(app: App) -> None:
    @app.consumer("orders", retry=Retry(attempts=1), inbox=True)
    async def handle(order: Order, session: AsyncSession) -> None:
        await session.execute(sa.insert(EFFECTS).values(n=order.id, who=""))

    async with working(app) as (running, watcher):
        for number, identity in enumerate(("a\0b", "a\udcff", "a\udcfe" * 200, "ü\0") * 2):
            properties = Properties(content_type="application/json", message_id=identity[:80])
            await running.publishing.publish("", "orders", b'{"id":%d}' % (number % 4), properties)
        await watcher.seen(DeliveryOutcome.DONE, 4)
        await watcher.seen(DeliveryOutcome.DUPLICATE, 4)
    assert effects(app) == [0, 1, 2, 3]


def test_the_wrong_kind_of_session_is_explained(app: App) -> None:
    @app.consumer("orders")
    async def handle(order: Order, session: Session) -> None: ...

    async def start() -> None:
        async with working(app):
            pass

    with pytest.raises(ConfigurationError, match="session is a Session; this kind of function wants a AsyncSession"):
        asyncio.run(start())
