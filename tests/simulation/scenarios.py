"""Small cases of everything that moves messages."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from datetime import timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession

from redrive import App, Batch, Message, Retry
from redrive.admin.service import Service
from redrive.admin.target import BrokerTarget
from redrive.client import Connection, Properties
from redrive.database.engine import Database
from redrive.errors import MigrationPaused, MigrationRefused, PublishError
from redrive.inspection.embedded import EmbeddedMonitor, read_status
from redrive.migration.ports import MigrationOptions
from redrive.migration.run import migrate
from redrive.operations.audit_log import AuditLog
from redrive.operations.operation import OperationKind, OperationRequest
from redrive.operations.repository import OperationRepository
from redrive.recovery.history import HeaderNames
from redrive.recovery.retry import RetryRoute
from redrive.topology.definitions import BindingDefinition, Definitions, QueueDefinition
from simulation.playing import Scenario, World
from simulation.stores import fresh_database, throw_away
from simulation.world import Mishap, Plan, this_life

QUEUE, DLQ = "orders", "orders.dlq"
ATTEMPTS = 3


def is_alive() -> bool:
    """Whether the process that handles a message has not died."""
    life = this_life()
    return life is not None and not life.dead


class Working(Scenario):
    """A worker handles numbered orders. Order 0 fails always, order 1 fails once, the others succeed."""

    orders = 3
    route = RetryRoute.REPUBLISH
    queue_type = "classic"
    waiting: tuple[str, ...] = (f"{QUEUE}.retry",)

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.done: Counter[int] = Counter()
        self.failed: Counter[tuple[int, int]] = Counter()

    def app(self) -> App:
        app = App("simulated", broker=self.world.url, queue_type=self.queue_type, clock=self.world.clock)
        retry = Retry(attempts=ATTEMPTS, delay="1s", via=self.route)

        @app.consumer(QUEUE, retry=retry, concurrency=2, prefetch=2)
        async def handle(order: dict[str, int], message: Message) -> None:
            await asyncio.sleep(0.01)
            self.handle(order["number"], message.attempt)

        return app

    def handle(self, number: int, attempt: int) -> None:
        self.fail_if_bad(number, attempt)
        self.count_done(number)

    def fail_if_bad(self, number: int, attempt: int) -> None:
        if is_alive() and (number == 0 or (number == 1 and attempt == 1)):
            self.failed[number, attempt] += 1
            raise OSError(f"order {number} failed")

    def count_done(self, number: int) -> None:
        if is_alive():
            self.done[number] += 1

    async def prepare(self) -> None:
        app = self.app()
        async with app:
            for number in range(self.orders):
                await app.publish("", QUEUE, {"number": number})

    async def live(self, stop: asyncio.Event) -> None:
        await self.app().run_worker(stop=stop, within=timedelta(seconds=30))

    async def complete(self) -> bool:
        done = self.done.keys() >= set(range(1, self.orders))
        return done and await self.world.depth(DLQ) > 0 and await self._nothing_waits()

    async def _nothing_waits(self) -> bool:
        return not sum([await self.world.depth(queue) for queue in (QUEUE, *self.waiting)])

    async def check(self, plan: Plan) -> None:
        assert self.done.keys() == set(range(1, self.orders)), "lost, or done that must fail"
        await self._check_parked(plan)
        for queue in (QUEUE, *self.waiting):
            assert await self.world.take(queue) == []
        # Attempts are counted in the message: never beyond the limit, each at least once.
        assert {attempt for number, attempt in self.failed if number == 0} == set(range(1, ATTEMPTS + 1))
        if not plan or set(plan.values()) == {Mishap.LATE}:  # nothing was redelivered: nothing comes twice
            assert max(self.done.values()) == 1
            assert max(self.failed.values()) == 1

    async def _check_parked(self, plan: Plan) -> None:
        letters = await self.world.take(DLQ)
        assert {letter.body for letter in letters} == {b'{"number":0}'}
        if not plan or set(plan.values()) == {Mishap.LATE}:
            assert len(letters) == 1
        for letter in letters:
            headers: dict[str, Any] = dict(letter.properties.headers or {})
            assert headers[HeaderNames().reason] == "exhausted"
            assert headers[HeaderNames().attempts] == ATTEMPTS


class Retrying(Working):
    name = "retry"


class Rejecting(Working):
    name = "reject"
    route = RetryRoute.REJECT


class Delaying(Working):
    name = "delayed"
    route = RetryRoute.DELAYED
    waiting = ()  # they wait in an exchange


class Counting(Working):
    name = "quorum"
    queue_type = "quorum"


class Batching(Working):
    name = "batch"

    def app(self) -> App:
        app = App("simulated", broker=self.world.url, clock=self.world.clock)
        retry = Retry(attempts=ATTEMPTS, delay="1s")

        @app.batch_consumer(QUEUE, size=3, max_wait="100ms", retry=retry)
        async def handle(batch: Batch[dict[str, int]]) -> None:
            for order, message in zip(batch.bodies, batch.messages, strict=True):
                try:
                    self.handle(order["number"], message.attempt)
                except OSError as error:
                    batch.fail(message, error)

        return app


class Preparing(Working):
    """Orders fail while they are prepared."""

    name = "prepare"

    def app(self) -> App:
        app = App("simulated", broker=self.world.url, clock=self.world.clock)
        retry = Retry(attempts=ATTEMPTS, delay="1s")

        async def check(order: dict[str, int], message: Message) -> int:
            await asyncio.sleep(0.01)
            self.fail_if_bad(order["number"], message.attempt)
            return order["number"]

        @app.batch_consumer(QUEUE, size=3, max_wait="100ms", retry=retry, prepare=check, processors=2)
        async def handle(numbers: list[int]) -> None:
            for number in numbers:
                self.count_done(number)

        return app


class Publishing(Scenario):
    """A program publishes until it is confirmed: then it is in the queue, at least once."""

    name = "publish"
    orders = 4

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.confirmed: set[int] = set()

    async def prepare(self) -> None:
        await self.world.witness.declare_queue(QUEUE)

    async def live(self, stop: asyncio.Event) -> None:  # noqa: ARG002
        async with Connection(self.world.url) as connection:
            for number in range(self.orders):
                while number not in self.confirmed:
                    try:
                        await connection.publish("", QUEUE, b"%d" % number, Properties(delivery_mode=2))
                    except PublishError:
                        continue
                    life = this_life()
                    if life is not None and not life.dead:
                        self.confirmed.add(number)

    async def complete(self) -> bool:
        return len(self.confirmed) == self.orders

    async def check(self, plan: Plan) -> None:
        found = Counter(int(message.body) for message in await self.world.take(QUEUE))
        assert found.keys() == set(range(self.orders))
        assert found.total() - self.orders <= len(plan), "more came twice than were disturbed"


class Once(Working):
    """With the inbox, whatever goes wrong, an effect happens once."""

    name = "inbox"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.database = fresh_database()

    def app(self) -> App:
        app = App("simulated", broker=self.world.url, database=self.database, clock=self.world.clock)
        retry = Retry(attempts=ATTEMPTS, delay="1s")

        # One at a time: a second transaction would wait for the first one's lock, and all the world with it.
        @app.consumer(QUEUE, retry=retry, concurrency=1, prefetch=2, inbox=True)
        async def handle(order: dict[str, int], message: Message, session: AsyncSession) -> None:
            await session.execute(sa.text("INSERT INTO effects VALUES (:number)"), order)
            self.handle(order["number"], message.attempt)

        return app

    async def live(self, stop: asyncio.Event) -> None:
        app = self.app()
        try:
            await app.run_worker(stop=stop, within=timedelta(seconds=30))
        finally:
            app.database.engine.dispose()
            await app.database.async_engine.dispose()

    async def check(self, plan: Plan) -> None:
        await super().check(plan)
        engine = sa.create_engine(self.database)
        with engine.connect() as connection:
            effects = Counter(connection.exec_driver_sql("SELECT number FROM effects").scalars())
        engine.dispose()
        assert effects == {1: 1, 2: 1}, "an effect is missing, or happened twice"
        throw_away(self.database)


class Relaying(Scenario):
    """Rows of the outbox are published, each at least once, and then they are gone."""

    name = "relay"
    rows = 3

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.database = fresh_database()

    def app(self) -> App:
        app = App("simulated", broker=self.world.url, database=self.database, clock=self.world.clock)
        app.queue(QUEUE)
        return app

    async def prepare(self) -> None:
        app = self.app()
        with app.database.engine.begin() as connection:
            for number in range(self.rows):
                app.outbox.add(connection, "", QUEUE, {"number": number})
        app.database.engine.dispose()

    async def live(self, stop: asyncio.Event) -> None:
        app = self.app()
        try:
            await app.relay(stop)
        finally:
            app.database.engine.dispose()

    async def complete(self) -> bool:
        engine = sa.create_engine(self.database)
        with engine.connect() as connection:
            left = connection.exec_driver_sql("SELECT count(*) FROM redrive_outbox").scalar_one()
        engine.dispose()
        return not left

    async def check(self, plan: Plan) -> None:
        found = Counter(message.body for message in await self.world.take(QUEUE))
        assert found.keys() == {b'{"number":%d}' % number for number in range(self.rows)}
        assert max(found.values()) <= 1 + len(plan), "more came twice than were disturbed"
        throw_away(self.database)


class Redriving(Scenario):
    """Dead letters are sent back to work, and whoever does it may be followed by another who goes on."""

    name = "re-drive"
    letters = 4

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.database = fresh_database()
        app = App("simulated", broker=world.url, clock=world.clock)
        app.queue(QUEUE, retry=Retry())
        self.app = app

    async def prepare(self) -> None:
        async with self.app:
            failed_in = Properties(delivery_mode=2, headers={HeaderNames.QUEUE: QUEUE})
            for number in range(self.letters):
                await self.world.witness.publish("", DLQ, b"%d" % number, failed_in)

    async def live(self, stop: asyncio.Event) -> None:
        database = Database(self.database)
        target = BrokerTarget(broker=self.world.url, topology=self.app.topology)
        store = OperationRepository(database)
        service = Service(target, store, AuditLog(database), by="somebody", clock=self.world.clock)
        try:
            while not stop.is_set():
                await self._move(service)
                await asyncio.sleep(0.1)
        finally:
            database.engine.dispose()

    async def _move(self, service: Service) -> None:
        """Go on with what another has left, or begin."""
        begun = [operation for operation in await service.operations() if not operation.state.is_over]
        if begun:
            await asyncio.sleep(31)  # until it is certain that nobody works on it
            await service.resume(begun[0].id)
        elif await self.world.depth(DLQ):
            await service.run(await service.begin(OperationRequest(OperationKind.REDRIVE, DLQ)))

    async def complete(self) -> bool:
        snapshot = await read_status(self.world.witness)
        state = snapshot.state(DLQ)
        return not state.messages and not state.unacknowledged

    async def check(self, plan: Plan) -> None:
        found = Counter(int(message.body) for message in await self.world.take(QUEUE))
        assert found.keys() == set(range(self.letters)), "a dead letter is lost"
        assert max(found.values()) <= 1 + len(plan), "more came twice than were disturbed"
        throw_away(self.database)


class Migrating(Scenario):
    """A queue gets other arguments: its messages are in the new one, in their order."""

    name = "migrate"
    messages = 3
    terms = MigrationOptions(window=2, settle=timedelta(seconds=0.02), youth=timedelta(0))

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.migrated = False
        wanted = QueueDefinition(QUEUE, arguments={"x-queue-type": "classic", "x-max-length": 1000})
        self.bindings = [BindingDefinition("events", QUEUE, "order.#")]
        self.wanted = Definitions.of(queues=[wanted], bindings=self.bindings)

    async def prepare(self) -> None:
        witness = self.world.witness
        await witness.declare_exchange("events", "topic")
        await witness.declare_queue(QUEUE, arguments={"x-queue-type": "classic"})
        await witness.bind_queue(QUEUE, "events", "order.#")
        for number in range(self.messages):
            await witness.publish("events", "order.paid", b"%d" % number, Properties(delivery_mode=2))

    async def live(self, stop: asyncio.Event) -> None:  # noqa: ARG002
        async with Connection(self.world.url, name="migration") as connection:
            while not self.migrated:
                with suppress(MigrationPaused, MigrationRefused):  # which say to run it again
                    watcher = EmbeddedMonitor(connection)
                    await migrate(QUEUE, self.wanted, connection, watcher, self.terms, user="guest", tell=_nobody)
                    life = this_life()
                    self.migrated = life is not None and not life.dead
                await asyncio.sleep(0.5)

    async def complete(self) -> bool:
        return self.migrated

    async def check(self, plan: Plan) -> None:
        found = (await read_status(self.world.witness)).definitions
        assert [(queue.name, queue.arguments) for queue in found.queues] == [(QUEUE, self.wanted.queues[0].arguments)]
        assert list(found.bindings) == self.bindings
        numbers = [int(message.body) for message in await self.world.take(QUEUE)]
        assert list(dict.fromkeys(numbers)) == list(range(self.messages)), "lost, or out of order"
        assert len(numbers) - self.messages <= 2 * len(plan), "more came twice than were under way"


def _nobody(words: str) -> None:
    pass


SCENARIOS: tuple[type[Scenario], ...] = (
    Publishing,
    Retrying,
    Rejecting,
    Delaying,
    Counting,
    Batching,
    Once,
    Relaying,
    Redriving,
    Migrating,
    Preparing,
)
