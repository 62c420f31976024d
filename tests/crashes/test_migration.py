"""A queue gets other arguments while producers publish, and the migrating process is killed before each of its acts.

Two producers publish numbered messages through a topic exchange, one at a time, so that the order of their numbers is
known. A consumer reads all along; it stops when the migration asks for it, and starts again when the migration is done.
A process that was killed is followed by another, which goes on. In the end:

    every message that was confirmed was consumed            nothing lost
    each producer's numbers first came in their order         nothing reordered
    no more came twice than one process had in hands          duplicates by redelivery only
    each message is as it was published                       key, headers, expiration
    the queue is as wanted, bound as before, and alone        nothing left behind
"""

from __future__ import annotations

import asyncio
import re
import secrets
import signal
import sys
from asyncio.subprocess import Process
from bisect import bisect_left
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import TypeAlias

import msgspec
import pytest

from crashes import migrating
from crashes.migrating import Order
from crashes.mortal import Dead, Mortal
from redrive.client import Connection, Delivery, Properties
from redrive.client.url import BrokerURL
from redrive.errors import ConnectionLost, NotPublished, PublishUnknown
from redrive.inspection.embedded import EmbeddedMonitor
from redrive.inspection.management import Management, ManagementMonitor
from redrive.migration.ports import MigrationOptions, QueueMonitor
from redrive.migration.run import migrate
from redrive.testing import RabbitMQ
from redrive.testing.broker import ThreadedBroker
from redrive.topology.definitions import BindingDefinition, Definitions, QueueDefinition
from servers import rabbitmq_root

QUEUE, RUNG = "q.orders", "q.orders.retry"
PRODUCERS, STOCK, WAITING = 2, 6, 2
WINDOW = 4
AT_A_TIME = 4  # migrations on one RabbitMQ
BACK = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": QUEUE}
BINDINGS = [BindingDefinition("events", QUEUE, "order.#"), BindingDefinition("events", QUEUE, "refund.*")]
CLASSIC, QUORUM = {"x-queue-type": "classic"}, {"x-queue-type": "quorum"}
VARIANTS = {
    "dead letters and a ttl": (
        CLASSIC,
        {**CLASSIC, "x-message-ttl": 3_600_000, "x-dead-letter-exchange": "dlq", "x-dead-letter-routing-key": QUEUE},
    ),
    "classic to quorum": (CLASSIC, QUORUM),
    "quorum to classic": (QUORUM, CLASSIC),
}
HOUR = "3600000"
KILLED = -signal.SIGKILL

Number: TypeAlias = "tuple[int, int]"  # a producer, and its count


def wanted(variant: str) -> Definitions:
    return Definitions.of(queues=[QueueDefinition(QUEUE, arguments=VARIANTS[variant][1])], bindings=BINDINGS)


def original(producer: int) -> Properties:
    """Every other producer's messages would expire: not while they wait to be carried back."""
    expiration = HOUR if producer % 2 else None
    return Properties(headers={"by": producer}, delivery_mode=2, expiration=expiration, message_id="m")


# The broker, the producers, the consumer --------------------------------------------------------------


@dataclass(frozen=True)
class Site:
    """A virtual host of the test's own."""

    url: str
    management: str | None = None

    def watcher(self, connection: Connection) -> QueueMonitor:
        if self.management is None:
            return EmbeddedMonitor(connection)
        vhost = connection.url.virtual_host
        return ManagementMonitor(Management(self.management), vhost, lag=timedelta(seconds=0.5))


@dataclass
class Scene:
    site: Site
    connection: Connection
    stock: int
    confirmed: list[Number] = field(default_factory=list)
    consumed: list[Number] = field(default_factory=list)
    altered: list[Delivery] = field(default_factory=list)
    progress: asyncio.Condition = field(default_factory=asyncio.Condition)
    over: bool = False

    async def produce(self, producer: int, pause: float) -> None:
        count = self.stock
        async with Connection(self.site.url, name=f"producer {producer}") as connection:
            while not self.over:
                await self.publish(connection, (producer, count))
                count += 1
                await asyncio.sleep(pause)

    async def publish(self, connection: Connection, number: Number) -> None:
        """Again and again until it is confirmed, so that the numbers come in their order."""
        key = "refund.it" if number[1] % 3 else f"order.{number[0]}.paid"
        while True:
            with suppress(PublishUnknown, NotPublished):
                await connection.publish("events", key, msgspec.json.encode(number), original(number[0]))
                break
        self.confirmed.append(number)

    async def consume(self, delivery: Delivery) -> None:
        producer, count = msgspec.json.decode(delivery.body)
        key = "refund.it" if count % 3 else f"order.{producer}.paid"
        if (delivery.routing_key, delivery.properties) != (key, original(producer)):
            self.altered.append(delivery)
        self.consumed.append((producer, count))
        if not self.over:  # slowly, so that there is something left to carry
            await asyncio.sleep(0.002)
        delivery.ack()
        async with self.progress:
            self.progress.notify_all()

    async def until_consumed(self) -> None:
        """Or until nothing has come for half a minute: `check` says what is missing."""
        before = -1
        while set(self.confirmed) - set(self.consumed) and len(self.consumed) > before:
            before = len(self.consumed)
            with suppress(TimeoutError):
                async with asyncio.timeout(30), self.progress:
                    await self.progress.wait_for(lambda: set(self.confirmed) <= set(self.consumed))


async def set_up(connection: Connection, variant: str) -> None:
    await connection.declare_exchange("events", "topic")
    await connection.declare_exchange("dlq", "fanout")
    await connection.declare_queue(QUEUE, arguments=VARIANTS[variant][0])
    await connection.declare_queue(RUNG, arguments={**CLASSIC, "x-message-ttl": 3_600_000, **BACK})
    for binding in BINDINGS:
        await connection.bind_queue(QUEUE, binding.source, binding.routing_key)
    for _ in range(WAITING):
        await connection.publish("", RUNG, b"waits", Properties(delivery_mode=2, expiration=HOUR))


@asynccontextmanager
async def scene(site: Site, variant: str, pause: float = 0.02, stock: int = STOCK) -> AsyncIterator[Scene]:
    async with Connection(site.url, name="scene") as connection:
        await set_up(connection, variant)
        scene = Scene(site, connection, stock)
        for producer in range(PRODUCERS):
            async with asyncio.TaskGroup() as group:  # begun in order, and so sent in order
                for count in range(stock):
                    group.create_task(scene.publish(connection, (producer, count)))
        producers = [asyncio.create_task(scene.produce(number, pause)) for number in range(PRODUCERS)]
        try:
            yield scene
        finally:
            scene.over = True
            await asyncio.gather(*producers)


# A life -----------------------------------------------------------------------------------------------

Life: TypeAlias = "Callable[[Site, str, int | None, Callable[[], Awaitable[None]]], Awaitable[int | None]]"
"""Migrates at a site in a variant, dies before an effect, and has consumers stopped when it waits for them. Gives
the number of effects, None if it died.
"""


async def a_process(
    site: Site, variant: str, die_before: int | None, stop_consumers: Callable[[], Awaitable[None]]
) -> int | None:
    process = await start(Order(site.url, QUEUE, wanted(variant), site.management, die_before, WINDOW))
    said = await listen(process, stop_consumers)
    code = await process.wait()
    assert code in (0, KILLED), said
    return int(re.findall(r"done: (\d+) side effects", said[-1])[0]) if code == 0 else None


async def start(order: Order) -> Process:
    command = [sys.executable, "-m", migrating.__name__, msgspec.json.encode(order).decode()]
    tests = Path(migrating.__file__).parents[1]
    return await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, cwd=tests)


async def listen(process: Process, stop_consumers: Callable[[], Awaitable[None]]) -> list[str]:
    """All that a process says until its end."""
    said: list[str] = []
    assert process.stdout is not None
    async for line in process.stdout:
        said.append(line.decode().strip())
        if "attached to it" in said[-1]:
            await stop_consumers()
    return said


async def a_task(
    site: Site, variant: str, die_before: int | None, stop_consumers: Callable[[], Awaitable[None]]
) -> int | None:
    """The same within this process: quicker, and for the embedded broker as deadly."""
    stopping: list[asyncio.Task[None]] = []

    def tell(words: str) -> None:
        if "attached to it" in words and not stopping:
            stopping.append(asyncio.create_task(_awaited(stop_consumers)))

    connection = await Connection(site.url, name="migration").open()
    mortal = Mortal(connection, die_before=die_before, die=lambda: _cut(connection))
    terms = MigrationOptions(
        wait_for_consumers=True, attempts=50, window=WINDOW, settle=timedelta(seconds=0.02), youth=timedelta(0)
    )
    try:
        with suppress(Dead):
            await migrate(QUEUE, wanted(variant), mortal, site.watcher(connection), terms, user="guest", tell=tell)
    finally:
        await connection.close(within=timedelta(seconds=0 if mortal.dead else 30))
    await asyncio.gather(*stopping)
    return None if mortal.dead else mortal.effects


async def _awaited(action: Callable[[], Awaitable[None]]) -> None:
    await action()


def _cut(connection: Connection) -> None:
    link = connection._link
    assert link is not None
    link.abort(ConnectionLost("killed"))


# What must hold ---------------------------------------------------------------------------------------


async def survive(site: Site, variant: str, life: Life, die_before: int | None = None) -> int:
    """Let a migration die, and another go on. Gives the number of effects of the last one."""
    async with scene(site, variant) as stage:
        async with Connection(site.url, name="consumer") as consuming:
            # One at a time: what a consumer has buffered it gives back when it stops, and a quorum queue of 3.10 puts
            # that at its end.
            consumer = await consuming.consume(QUEUE, stage.consume, prefetch=1)
            effects = await life(site, variant, die_before, consumer.cancel)
            died = effects is None
            if died:
                effects = await life(site, variant, None, consumer.cancel)
            assert effects is not None
            await consumer.cancel()
        await consume_all(stage)
        await check(stage, variant, duplicates=WINDOW if died else 0)
        return effects


async def check(stage: Scene, variant: str, *, duplicates: int, ordered: bool = True) -> None:
    counts = Counter(stage.consumed)
    assert not set(stage.confirmed) - set(counts), "a message is lost"
    if ordered:
        assert displaced(stage.consumed) <= given_back(stage, variant), "a producer's messages came out of order"
    assert counts.total() - len(counts) <= duplicates, "more came twice than a process had in hands"
    assert not stage.altered, "a message is not as it was published"
    await check_topology(stage, variant)
    await check_rung(stage.connection)


def given_back(stage: Scene, variant: str) -> int:
    """How many the consumer may have had in its hands, unhandled, when it was stopped: it takes one at a time. A quorum
    queue of 3.x puts what it gets back at its end, migration or not.
    """
    return 1 if VARIANTS[variant][0] == QUORUM and stage.connection.server_version < (4,) else 0


def displaced(consumed: list[Number]) -> int:
    """How many would have to be taken out, so that each producer's numbers first came in their order."""
    count = 0
    for producer in range(PRODUCERS):
        numbers = [number for who, number in dict.fromkeys(consumed) if who == producer]
        tails: list[int] = []  # the smallest ends of rising sequences, by length
        for number in numbers:
            tails[bisect_left(tails, number) : bisect_left(tails, number) + 1] = [number]
        count += len(numbers) - len(tails)
    return count


def test_what_is_out_of_place_is_counted() -> None:
    assert displaced([(0, 1), (1, 1), (0, 2), (0, 1), (1, 2)]) == 0
    assert displaced([(0, 1), (0, 3), (0, 4), (0, 2), (1, 2), (1, 1)]) == 2


async def check_topology(stage: Scene, variant: str) -> None:
    found = (await stage.site.watcher(stage.connection).snapshot()).definitions
    assert [queue.name for queue in found.queues] == [QUEUE, RUNG]
    assert [one.name for one in found.exchanges if not one.name.startswith("amq.")] == ["dlq", "events"]
    assert found.bindings == tuple(BINDINGS)
    queue = found.queue(QUEUE)
    assert queue is not None
    assert queue.arguments == VARIANTS[variant][1]


async def check_rung(connection: Connection) -> None:
    for _ in range(WAITING):
        delivery = await connection.get(RUNG)
        assert delivery is not None, "a message that waited for its retry is lost"
        assert delivery.properties == Properties(delivery_mode=2, expiration=HOUR)
        delivery.ack()


# On the embedded broker -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def broker() -> Iterator[ThreadedBroker]:
    with ThreadedBroker() as broker:
        yield broker


@pytest.fixture
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """The embedded broker has nothing under way that one would have to wait for."""
    monkeypatch.setattr("redrive.migration.transfer._QUIET", 0.01)
    monkeypatch.setattr("redrive.migration.transfer._PATIENCE", 0.02)
    monkeypatch.setattr("redrive.migration.journal._PATIENCE", 0.02)


def embedded_site(broker: ThreadedBroker) -> Site:
    return Site(broker.add_vhost(secrets.token_hex(8)))


@pytest.mark.usefixtures("hurry")
@pytest.mark.parametrize("variant", VARIANTS)
async def test_on_the_embedded_broker_a_migration_that_dies_is_resumed(broker: ThreadedBroker, variant: str) -> None:
    effects = await survive(embedded_site(broker), variant, a_task)

    for die_before in range(1, effects, 9):
        await survive(embedded_site(broker), variant, a_task, die_before)


@pytest.mark.slow
@pytest.mark.usefixtures("hurry")
@pytest.mark.parametrize("variant", VARIANTS)
async def test_on_the_embedded_broker_no_death_costs_a_message(broker: ThreadedBroker, variant: str) -> None:
    effects = await survive(embedded_site(broker), variant, a_task)

    for die_before in range(1, effects + 1):
        await survive(embedded_site(broker), variant, a_task, die_before)


# On RabbitMQ ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitMQ]:
    """Its statistics are young, so that nobody has to wait for them."""
    directory = tmp_path_factory.mktemp("migration") / "rabbitmq"
    directory.mkdir()
    (directory / "advanced.config").write_text("[{rabbit, [{quorum_tick_interval, 100}]}].")
    config = "collect_statistics_interval = 100"
    with RabbitMQ(directory, name="migration", root=rabbitmq_root(), management=True, config=config) as node:
        yield node


def rabbitmq_site(node: RabbitMQ) -> Site:
    vhost = secrets.token_hex(8)
    node.add_vhost(vhost)
    return Site(node.url_for(vhost), f"http://guest:guest@127.0.0.1:{node.management_port}")


@pytest.mark.rabbitmq
@pytest.mark.parametrize("variant", VARIANTS)
async def test_on_rabbitmq_a_migration_that_is_killed_is_resumed(node: RabbitMQ, variant: str) -> None:
    effects = await survive(rabbitmq_site(node), variant, a_process)

    for die_before in range(effects // 6, effects, effects // 3):
        await survive(rabbitmq_site(node), variant, a_process, die_before)


@pytest.mark.slow
@pytest.mark.rabbitmq
@pytest.mark.parametrize("variant", VARIANTS)
async def test_on_rabbitmq_no_kill_costs_a_message(
    node: RabbitMQ, variant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    effects = await survive(rabbitmq_site(node), variant, a_process)
    deaths = iter(range(1, effects + 1))

    async def die_one_after_the_other() -> None:
        for die_before in deaths:
            site = rabbitmq_site(node)
            await survive(site, variant, a_process, die_before)
            await asyncio.to_thread(node.delete_vhost, BrokerURL.parse(site.url).virtual_host)

    async with asyncio.TaskGroup() as group:  # most of a migration is waiting
        for _ in range(AT_A_TIME):
            group.create_task(die_one_after_the_other())

    with capsys.disabled():
        print(f"\n{variant}: killed before each of {effects} side effects, nothing lost or reordered")


@pytest.mark.rabbitmq
async def test_on_rabbitmq_a_second_migration_is_refused_while_one_runs(node: RabbitMQ) -> None:
    site = rabbitmq_site(node)
    order = Order(site.url, QUEUE, wanted("classic to quorum"), site.management)
    refusal: list[str] = []

    async with scene(site, "classic to quorum") as stage, Connection(site.url) as consuming:
        consumer = await consuming.consume(QUEUE, stage.consume)

        async def have_another_try() -> None:
            if not refusal:
                second = await start(order)
                refusal.extend(await listen(second, consumer.cancel))
                assert await second.wait() == 1
            await consumer.cancel()

        first = await start(order)
        said = await listen(first, have_another_try)
        assert await first.wait() == 0, said

    assert refusal == [
        f"stopped: queue {QUEUE} was not migrated: another migration of it is running; if it died just now, the broker "
        "will notice in a minute"
    ]


@pytest.mark.slow
@pytest.mark.rabbitmq
@pytest.mark.parametrize("seed", range(6))
async def test_on_rabbitmq_kills_at_any_moment_cost_no_message(
    node: RabbitMQ, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not before an act, but whenever: a thousand messages each are there, and a hundred under way."""
    variant, chance, site = list(VARIANTS)[seed % 3], Random(seed), rabbitmq_site(node)
    order = Order(site.url, QUEUE, wanted(variant), site.management, window=100)
    kills = 0
    async with scene(site, variant, stock=1000) as stage:
        code = KILLED
        while code == KILLED:
            process = await start(order)
            deadline = asyncio.get_running_loop().call_later(chance.uniform(0.5, 4), process.kill)
            said = await listen(process, _nobody)
            code = await process.wait()
            deadline.cancel()
            kills += code == KILLED
        assert code == 0, said
        await consume_all(stage)
        await check(stage, variant, duplicates=kills * 100)
    with capsys.disabled():
        print(f"\n{variant}: killed {kills} times, {len(stage.confirmed)} messages, nothing lost or reordered")


@pytest.mark.slow
@pytest.mark.rabbitmq
@pytest.mark.parametrize("variant", VARIANTS)
async def test_a_broker_that_dies_in_the_middle_costs_no_message(
    tmp_path: Path, variant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each life of the migration ends with the broker's, but for the last."""
    chance, deaths = Random(variant), 0
    with RabbitMQ(tmp_path / "rabbitmq", name="dying", root=rabbitmq_root(), management=True) as node:
        site = Site(node.url, f"http://guest:guest@127.0.0.1:{node.management_port}")
        order = Order(site.url, QUEUE, wanted(variant), site.management, window=100, youth=2)
        async with scene(site, variant, pause=0.05, stock=1000) as stage:
            await asyncio.sleep(2)  # a queue younger than that may be lost: a fact of the broker
            code = 1
            while code:
                process = await start(order)
                listening = asyncio.create_task(listen(process, _nobody))
                if deaths < 4:
                    await asyncio.sleep(chance.uniform(1, 8))
                    await asyncio.to_thread(node.kill)
                    await asyncio.to_thread(node.start)
                    deaths += 1
                said = await listening
                code = await process.wait()
                assert code == 0 or "Run it again to go on" in said[-1], said
            await consume_all(stage)
            # What was under way when a broker died may have arrived in part, and comes again as a whole.
            await check(stage, variant, duplicates=len(stage.confirmed), ordered=False)
    with capsys.disabled():
        print(f"\n{variant}: {deaths} dead brokers, {len(stage.confirmed)} messages, nothing lost")


async def _nobody() -> None:
    """There are no consumers to stop."""


async def consume_all(stage: Scene) -> None:
    stage.over = True
    async with Connection(stage.site.url, name="consumer") as consuming:
        await consuming.consume(QUEUE, stage.consume, prefetch=100)
        await stage.until_consumed()
