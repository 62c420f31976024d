"""Migrations on the embedded broker: what is refused, what is waited for, what is put right, and what is never done."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import pytest

from redrive.client import Connection, Delivery, LinkState, Properties
from redrive.errors import ConnectionLost, MigrationPaused, MigrationRefused, PublishUnknown
from redrive.inspection.embedded import EmbeddedMonitor
from redrive.migration.ports import MigrationOptions, MigrationResult
from redrive.migration.run import migrate, preview
from redrive.migration.steps import MigrationNames, MigrationRecord, MigrationStep
from redrive.testing.broker import ThreadedBroker
from redrive.topology.definitions import BindingDefinition, Definitions, ExchangeDefinition, QueueDefinition
from redrive.topology.snapshot import BrokerSnapshot, QueueState

NAMES = MigrationNames("orders")
QUICK = timedelta(milliseconds=10)
CLASSIC = {"x-queue-type": "classic"}
WANTED = {**CLASSIC, "x-message-ttl": 3_600_000}
BOUND = BindingDefinition("events", "orders", "order.*")
WISH = Definitions.of(queues=[QueueDefinition("orders", arguments=WANTED)], bindings=[BOUND])


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redrive.migration.transfer._QUIET", 0.01)
    monkeypatch.setattr("redrive.migration.transfer._PATIENCE", 0.01)
    monkeypatch.setattr("redrive.migration.journal._PATIENCE", 0.01)


@pytest.fixture(scope="module")
def broker() -> Iterator[ThreadedBroker]:
    with ThreadedBroker() as broker:
        yield broker


@pytest.fixture
def url(broker: ThreadedBroker, request: pytest.FixtureRequest) -> str:
    return broker.add_vhost(request.node.name)


@pytest.fixture
async def connection(url: str) -> AsyncIterator[Connection]:
    """With a queue `orders` of three messages, bound to an exchange `events`."""
    async with Connection(url, name="migration") as connection:
        await connection.declare_exchange("events", "topic")
        await connection.declare_queue("orders", arguments=CLASSIC)
        await connection.bind_queue("orders", "events", "order.*")
        for number in range(3):
            await connection.publish("events", "order.new", str(number).encode())
        yield connection


@pytest.fixture
async def other(url: str) -> AsyncIterator[Connection]:
    async with Connection(url, name="other") as connection:
        yield connection


async def run(connection: Connection, wish: Definitions = WISH, watcher: Any = None, **terms: Any) -> MigrationResult:
    chosen = MigrationOptions(**{"settle": QUICK, "youth": QUICK, **terms})
    return await migrate("orders", wish, connection, watcher or EmbeddedMonitor(connection), chosen, user="guest")


async def content(connection: Connection, queue: str = "orders") -> list[int]:
    found = []
    while (delivery := await connection.get(queue)) is not None:
        found.append(int(delivery.body))
        delivery.ack()
    return found


async def everything(connection: Connection) -> Definitions:
    return (await EmbeddedMonitor(connection).snapshot()).definitions


async def leave_undone(connection: Connection, record: MigrationRecord) -> None:
    """As if a process had died in a step."""
    await connection.declare_queue(NAMES.journal, arguments=CLASSIC)
    await connection.publish("", NAMES.journal, record.encode())


class Intruder(EmbeddedMonitor):
    """Something happens whenever the migration looks at the broker."""

    def __init__(self, connection: Connection, *deeds: Callable[[], Any]) -> None:
        super().__init__(connection)
        self.deeds = list(deeds)

    async def snapshot(self) -> BrokerSnapshot:
        if self.deeds:
            await self.deeds.pop(0)()
        return await super().snapshot()


async def nothing() -> None:
    """A look at which nothing happens."""


# What comes out ---------------------------------------------------------------------------------------


async def test_the_queue_is_as_wanted_with_its_messages_and_bindings(connection: Connection) -> None:
    before = await everything(connection)

    result = await run(connection)

    assert (result.migrated, result.resumed, result.retreats) == (True, False, 0)
    after = await everything(connection)
    assert after.queues == (QueueDefinition("orders", arguments=WANTED),)
    assert (after.exchanges, after.bindings) == (before.exchanges, before.bindings)
    assert await content(connection) == [0, 1, 2]


async def test_a_queue_that_is_as_wanted_is_left_alone(connection: Connection) -> None:
    result = await run(connection, Definitions.of(queues=[QueueDefinition("orders", arguments=CLASSIC)]))

    assert not result.migrated
    assert await content(connection) == [0, 1, 2]


async def test_looking_ahead_changes_nothing(connection: Connection) -> None:
    before = await everything(connection)

    plan = await preview("orders", WISH, connection, EmbeddedMonitor(connection))

    assert plan is not None
    assert plan.is_needed
    assert await everything(connection) == before
    assert await content(connection) == [0, 1, 2]


async def test_bindings_that_are_wanted_and_missing_are_there_afterwards(connection: Connection) -> None:
    more = BindingDefinition("events", "orders", "refund.*")

    await run(connection, WISH | Definitions.of(bindings=[more]))

    assert (await everything(connection)).bindings == (BOUND, more)


async def test_where_dead_letters_go_is_there_before_the_queue_needs_it(connection: Connection) -> None:
    wish = Definitions.of(
        [ExchangeDefinition("dlq")],
        [
            QueueDefinition("orders", arguments={**CLASSIC, "x-dead-letter-exchange": "dlq"}),
            QueueDefinition("orders.dlq", arguments=CLASSIC),
        ],
        [BindingDefinition("dlq", "orders.dlq", "order.new"), BOUND],
    )

    await run(connection, wish)

    delivery = await connection.get("orders")
    assert delivery is not None
    delivery.reject(requeue=False)
    assert await content(connection) == [1, 2]
    assert await content(connection, "orders.dlq") == [0]


async def test_what_waits_for_its_retry_waits_again(connection: Connection) -> None:
    back = {"x-message-ttl": 3_600_000, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "orders"}
    await connection.declare_queue("orders.retry", arguments={**CLASSIC, **back})
    await connection.publish("", "orders.retry", b"9", Properties(delivery_mode=2, expiration="3600000"))

    result = await run(connection)

    assert result.carried["orders.retry"] == result.carried["orders.retry.migrating"] == 1
    delivery = await connection.get("orders.retry")
    assert delivery is not None
    assert (delivery.body, delivery.properties) == (b"9", Properties(delivery_mode=2, expiration="3600000"))


async def test_a_quorum_queue_becomes_a_classic_one(connection: Connection) -> None:
    quorum = Definitions.of(queues=[QueueDefinition("orders", arguments={"x-queue-type": "quorum"})], bindings=[BOUND])

    await run(connection, quorum)
    await run(connection)

    assert (await everything(connection)).queues == (QueueDefinition("orders", arguments=WANTED),)
    assert await content(connection) == [0, 1, 2]


# What is refused --------------------------------------------------------------------------------------


async def test_a_queue_with_consumers_is_refused_and_left_as_it_is(connection: Connection, other: Connection) -> None:
    before = await everything(connection)
    consumer = await other.consume("orders")

    with pytest.raises(MigrationRefused, match="1 consumer is attached to it: stop them first, or have it wait"):
        await run(connection)

    await consumer.cancel()
    assert await everything(connection) == before
    assert await content(connection) == [0, 1, 2]


async def test_a_second_migration_of_a_queue_is_refused(connection: Connection, other: Connection) -> None:
    await other.declare_queue(NAMES.lock, exclusive=True)

    with pytest.raises(MigrationRefused, match="another migration of it is running"):
        await run(connection)

    assert await content(connection) == [0, 1, 2]


async def test_the_lock_is_free_when_a_migration_was_refused(connection: Connection, other: Connection) -> None:
    consumer = await other.consume("orders")
    with pytest.raises(MigrationRefused):
        await run(connection)
    await consumer.cancel()

    assert (await run(other)).migrated


@pytest.mark.parametrize(
    "body", [b"hello", MigrationRecord(MigrationStep.EMPTY, QueueDefinition("q"), QueueDefinition("q")).encode()]
)
async def test_a_journal_that_is_not_ours_is_not_touched(connection: Connection, body: bytes) -> None:
    await connection.declare_queue(NAMES.journal, arguments=CLASSIC)
    await connection.publish("", NAMES.journal, body)

    with pytest.raises(MigrationRefused, match=r"queue orders.migration holds something that is no record"):
        await run(connection)

    assert (await connection.queue_info(NAMES.journal)).messages == 1


async def test_what_bears_a_name_we_need_is_neither_used_nor_deleted(connection: Connection) -> None:
    await connection.declare_queue(NAMES.store, arguments=CLASSIC)
    await connection.publish("", NAMES.store, b"7")

    with pytest.raises(MigrationRefused, match=r"queue orders.migrating.old exists, and no migration is recorded"):
        await run(connection)

    assert await content(connection, NAMES.store) == [7]
    assert await content(connection) == [0, 1, 2]


async def test_arguments_that_the_broker_refuses_are_found_out_before_anything_changes(connection: Connection) -> None:
    wish = Definitions.of(queues=[QueueDefinition("orders", arguments={**CLASSIC, "x-message-ttl": "soon"})])
    before = await everything(connection)

    with pytest.raises(MigrationRefused, match="the broker refuses it: 406"):
        await run(connection, wish)

    assert await everything(connection) == before
    assert await content(connection) == [0, 1, 2]


async def test_a_policy_that_would_take_waiting_messages_away_is_found_out_before_anything_changes(
    connection: Connection,
) -> None:
    class Policed(EmbeddedMonitor):
        async def snapshot(self) -> BrokerSnapshot:
            seen = await super().snapshot()
            state = QueueState(policy="short", effective_policy={"message-ttl": 5})
            return BrokerSnapshot(seen.server, seen.definitions, True, {**seen.queues, NAMES.store: state})

    before = await everything(connection)

    with pytest.raises(MigrationRefused, match=r"policy short sets message-ttl on queue orders.migrating.old"):
        await run(connection, watcher=Policed(connection))

    assert await everything(connection) == before


async def test_a_queue_that_appears_under_a_name_we_need_is_not_deleted(
    connection: Connection, other: Connection
) -> None:
    async def take_the_name() -> None:
        await other.declare_queue(NAMES.store, arguments={**CLASSIC, "x-max-length": 5})
        await other.publish("", NAMES.store, b"7")

    with pytest.raises(MigrationRefused, match="the broker refuses it: 406"):
        await run(connection, watcher=Intruder(connection, nothing, take_the_name))

    assert [queue.name for queue in (await everything(connection)).queues] == ["orders", NAMES.store]
    assert await content(connection, NAMES.store) == [7]


# What is waited for -----------------------------------------------------------------------------------


async def test_it_waits_for_consumers_if_it_is_told_to(connection: Connection, other: Connection) -> None:
    said = Words()
    consumer = await other.consume("orders", prefetch=1)
    count_held = await anext(consumer)

    work = migrate(
        "orders",
        WISH,
        connection,
        EmbeddedMonitor(connection),
        MigrationOptions(wait_for_consumers=True, settle=QUICK),
        tell=said,
    )
    running = asyncio.create_task(work)
    await said.heard("waiting: 1 consumer is attached to it")
    count_held.ack()
    await consumer.cancel()

    assert (await running).migrated
    assert await content(connection) == [1, 2]


async def test_until_they_have_stopped_the_consumers_go_on_as_before(connection: Connection, other: Connection) -> None:
    said = Words()
    consumer = await other.consume("orders")
    terms = MigrationOptions(wait_for_consumers=True, settle=QUICK)
    work = migrate("orders", WISH, connection, EmbeddedMonitor(connection), terms, tell=said)
    running = asyncio.create_task(work)
    await said.heard("waiting")

    await other.publish("events", "order.new", b"3")
    numbers = []
    async with asyncio.timeout(5):
        while len(numbers) < 4:
            delivery = await anext(consumer)
            numbers.append(int(delivery.body))
            delivery.ack()

    await consumer.cancel()
    await running
    assert numbers == [0, 1, 2, 3]


async def test_it_waits_for_messages_that_are_in_somebodys_hands(connection: Connection, other: Connection) -> None:
    """A consumer that was cancelled may still be at work: its message may come back."""
    said = Words()
    count_held = await other.get("orders")
    assert count_held is not None
    work = migrate("orders", WISH, connection, EmbeddedMonitor(connection), MigrationOptions(settle=QUICK), tell=said)
    running = asyncio.create_task(work)

    await said.heard("waiting: 1 of its messages are in somebody's hands")
    count_held.nack(requeue=True)

    await running
    assert await content(connection) == [0, 1, 2]


async def test_after_the_timeout_it_can_be_resumed_and_everything_works_meanwhile(
    connection: Connection, other: Connection
) -> None:
    consumer = await other.consume("orders")
    with pytest.raises(MigrationPaused, match=r"stopped in step 'divert': after 0:00:00.10+ the queue is still in use"):
        await run(connection, wait_for_consumers=True, timeout=timedelta(milliseconds=100))

    await other.publish("events", "order.new", b"3")
    async with asyncio.timeout(5):
        assert [int((await anext(consumer)).body) for _ in range(4)] == [0, 1, 2, 3]
    await consumer.cancel()

    result = await run(connection)
    assert (result.migrated, result.resumed) == (True, True)
    assert await content(connection) == [0, 1, 2, 3]


async def test_a_broker_that_does_not_say_who_holds_messages_is_believed_after_a_while(connection: Connection) -> None:
    class Silent(EmbeddedMonitor):
        lag = timedelta(milliseconds=20)

        async def count_held(self, _: str) -> int | None:
            return None

    assert (await run(connection, watcher=Silent(connection))).migrated


class Words:
    """What a migration tells, and somebody who waits to hear it."""

    def __init__(self) -> None:
        self._said: list[str] = []
        self._news = asyncio.Event()

    def __call__(self, words: str) -> None:
        self._said.append(words)
        self._news.set()

    async def heard(self, words: str) -> None:
        async with asyncio.timeout(5):
            while not any(line.startswith(words) for line in self._said):
                self._news.clear()
                await self._news.wait()


# What others do meanwhile -----------------------------------------------------------------------------


async def test_a_binding_that_somebody_makes_meanwhile_is_kept(connection: Connection, other: Connection) -> None:
    async def bind() -> None:
        await other.bind_queue("orders", "events", "refund.*")

    for looks in range(6):
        await connection.delete_queue("orders")
        await connection.declare_queue("orders", arguments=CLASSIC)
        await connection.bind_queue("orders", "events", "order.*")

        await run(connection, watcher=Intruder(connection, *[nothing] * looks, bind))

        keys = {binding.routing_key for binding in (await everything(connection)).bindings_to("orders")}
        assert keys == {"order.*", "refund.*"}, f"at look {looks}"


async def test_an_exchange_that_is_deleted_meanwhile_takes_its_binding_along(
    connection: Connection, other: Connection
) -> None:
    await connection.declare_exchange("news", "fanout")
    await connection.bind_queue("orders", "news")

    async def delete() -> None:
        await other.delete_exchange("news")

    await run(connection, watcher=Intruder(connection, nothing, delete))

    assert (await everything(connection)).bindings == (BOUND,)
    assert await content(connection) == [0, 1, 2]


async def test_what_is_published_by_name_before_the_queue_is_deleted_is_carried_too(
    connection: Connection, other: Connection
) -> None:
    async def publish() -> None:
        await other.publish("", "orders", b"3")

    for looks in range(5):
        await connection.purge_queue("orders")
        await run(connection, watcher=Intruder(connection, *[nothing] * looks, publish))

        assert await content(connection) == [3], f"at look {looks}"
        await connection.delete_queue("orders")
        await connection.declare_queue("orders", arguments=CLASSIC)


@pytest.mark.parametrize("looks", range(1, 5))
async def test_a_queue_that_somebody_deletes_meanwhile_is_there_again_in_the_end(
    connection: Connection, other: Connection, looks: int
) -> None:
    async def delete() -> None:
        await other.delete_queue("orders")

    await run(connection, watcher=Intruder(connection, *[nothing] * looks, delete))

    after = await everything(connection)
    assert (after.queues, after.bindings) == ((QueueDefinition("orders", arguments=WANTED),), (BOUND,))


async def test_nothing_is_done_after_the_connection_was_lost(connection: Connection) -> None:
    """The lock went with it: somebody else may be at work."""

    async def lose() -> None:
        link = connection._link
        assert link is not None
        link.abort(ConnectionLost("cut"))
        await connection.until(LinkState.RECONNECTING)
        await connection.until(LinkState.OPEN)

    with pytest.raises(MigrationPaused, match="the connection was lost, and the lock on the queue with it"):
        await run(connection, watcher=Intruder(connection, nothing, nothing, nothing, lose))


# The switch -------------------------------------------------------------------------------------------


async def prepare_switch(connection: Connection, *, left: Sequence[int], direct: Sequence[int]) -> None:
    """As a process leaves it that died after the switch: 0 to 2 carried, some left in the gate, some come since."""
    record = MigrationRecord(
        MigrationStep.SWITCH,
        QueueDefinition("orders", arguments=CLASSIC),
        QueueDefinition("orders", arguments=WANTED),
        bindings=(BOUND,),
    )
    watcher = Intruder(connection, *[nothing] * 6, _stop)
    with pytest.raises(_Stopped):
        await run(connection, watcher=watcher)
    for number in left:
        await connection.publish("events", "order.new", str(number).encode())
    await connection.bind_queue("orders", NAMES.router)
    for number in direct:
        await connection.publish("events", "order.new", str(number).encode())
    await connection.purge_queue(NAMES.journal)
    await connection.publish("", NAMES.journal, record.encode())


class _Stopped(Exception):
    """Something that ends a migration without a farewell."""


async def _stop() -> None:
    raise _Stopped


async def test_a_switch_in_a_quiet_moment_is_right(connection: Connection) -> None:
    await prepare_switch(connection, left=[], direct=[3, 4])

    result = await run(connection)

    assert result.retreats == 0
    assert await content(connection) == [0, 1, 2, 3, 4]


async def test_messages_that_came_in_the_very_moment_of_the_switch_are_put_into_their_place(
    connection: Connection,
) -> None:
    await prepare_switch(connection, left=[3, 4], direct=[5, 6])

    result = await run(connection)

    assert result.retreats == 1
    assert await content(connection) == [0, 1, 2, 3, 4, 5, 6]
    assert [queue.name for queue in (await everything(connection)).queues] == ["orders"]


async def test_they_may_come_late_if_that_is_allowed(connection: Connection) -> None:
    await prepare_switch(connection, left=[3, 4], direct=[5, 6])

    result = await run(connection, allow_reorder=True)

    assert (result.retreats, result.reordered) == (0, 2)
    assert await content(connection) == [0, 1, 2, 5, 6, 3, 4]


async def test_when_producers_leave_no_gap_it_says_what_to_do_and_goes_on_later(connection: Connection) -> None:
    await prepare_switch(connection, left=[3], direct=[4])

    with pytest.raises(MigrationPaused, match=r"'switch': the producers leave no moment.*--allow-reorder"):
        await run(connection, attempts=1)

    await connection.publish("events", "order.new", b"5")
    result = await run(connection, attempts=1)
    assert (result.migrated, result.resumed) == (True, True)
    assert await content(connection) == [0, 1, 2, 3, 4, 5]


async def test_a_consumer_that_comes_too_early_stops_the_retreat(
    connection: Connection, other: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would take messages whose order is being rebuilt."""
    monkeypatch.setattr("redrive.migration.transfer._TRIES", 3)
    await prepare_switch(connection, left=[3], direct=[4])

    async def keep(_: Delivery) -> None:
        await asyncio.Event().wait()

    consumer = await other.consume("orders", keep)
    with pytest.raises(MigrationPaused, match=r"'retreat'.*queue orders has other consumers: stop them"):
        await run(connection)
    await consumer.abort()

    await run(connection)
    assert await content(connection) == [0, 1, 2, 3, 4]


async def test_a_consumer_that_comes_too_early_is_waited_for_if_it_is_told_to(
    connection: Connection, other: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redrive.migration.transfer._TRIES", 3)
    await prepare_switch(connection, left=[3], direct=[4])
    said = Words()
    consumer = await other.consume("orders", prefetch=1)
    terms = MigrationOptions(wait_for_consumers=True, settle=QUICK)
    work = migrate("orders", WISH, connection, EmbeddedMonitor(connection), terms, user="guest", tell=said)
    running = asyncio.create_task(work)

    await said.heard("waiting: 1 consumer is attached to it")
    await consumer.cancel()

    await running
    assert await content(connection) == [0, 1, 2, 3, 4]


# The journal ------------------------------------------------------------------------------------------


async def test_of_two_records_the_later_one_counts(connection: Connection) -> None:
    old, new = QueueDefinition("orders", arguments=CLASSIC), QueueDefinition("orders", arguments=WANTED)
    first = MigrationRecord(MigrationStep.PREPARE, old, new, bindings=(BOUND,))
    await leave_undone(connection, first.next_record(MigrationStep.DETOUR))
    await leave_undone(connection, first)

    with pytest.raises(MigrationPaused, match=r"'detour'.*no exchange 'migrating.orders'"):  # nothing was prepared
        await run(connection)
    assert (await everything(connection)).bindings == (BOUND,)


async def test_an_empty_journal_is_as_good_as_none(connection: Connection) -> None:
    """What a migration leaves that dies in its first or its last moment."""
    await connection.declare_queue(NAMES.journal, arguments=CLASSIC)

    result = await run(connection)

    assert (result.migrated, result.resumed) == (True, False)
    assert [queue.name for queue in (await everything(connection)).queues] == ["orders"]


@pytest.mark.parametrize("kind", ["classic", "quorum"])
async def test_an_empty_journal_goes_when_there_is_nothing_to_do(connection: Connection, kind: str) -> None:
    arguments = {"x-queue-type": kind, **({"x-delivery-limit": -1} if kind == "quorum" else {})}
    await connection.declare_queue(NAMES.journal, arguments=arguments)

    await run(connection, Definitions.of(queues=[QueueDefinition("orders", arguments=CLASSIC)]))

    assert [queue.name for queue in (await everything(connection)).queues] == ["orders"]


async def test_one_that_was_begun_is_seen_from_afar(connection: Connection) -> None:
    old, new = QueueDefinition("orders", arguments=CLASSIC), QueueDefinition("orders", arguments=WANTED)
    await leave_undone(connection, MigrationRecord(MigrationStep.PREPARE, old, new, bindings=(BOUND,)))

    assert await preview("orders", WISH, connection, EmbeddedMonitor(connection)) is None
    assert (await connection.queue_info(NAMES.journal)).messages == 1


async def test_a_beginning_of_which_nobody_knows_whether_it_was_written_down_is_a_pause(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unknown(*_: object) -> None:
        raise PublishUnknown("", NAMES.journal, "sent, but not confirmed before the end")

    with monkeypatch.context() as patch:
        patch.setattr("redrive.migration.journal.MigrationJournal.write", unknown)
        with pytest.raises(MigrationPaused, match="Run it again to go on"):
            await run(connection)

    await run(connection)
    assert await content(connection) == [0, 1, 2]
