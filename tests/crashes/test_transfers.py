"""Money is moved while everything dies: none is lost, none is made, and every event is applied once.

    API -> PostgreSQL with its outbox -> relays -> RabbitMQ -> workers with their inbox -> PostgreSQL

The processes are those of production: `redrive outbox relay`, `redrive worker`, and an API (`programs/bank.py`). They
are killed at random, and so are broker and database. The dice are those of a seed, which is told: REDRIVE_SEED throws
them again. REDRIVE_TRANSFERS says how many transfers the long form makes.
"""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import sqlalchemy as sa

from crashes.programs import bank
from redrive.app import App
from redrive.client import Connection
from redrive.database.engine import Database
from redrive.outbox.repository import OutboxRepository
from redrive.testing import RabbitMQ
from redrive.testing.processes import ServerProcess
from tests.support.postgres import Postgres

TESTS = Path(__file__).parent.parent
# Both this tree's own: an installed package may be another one's.
PYTHONPATH = os.pathsep.join(map(str, (TESTS.parent / "src", TESTS)))
QUEUES = ("credits", "credits.batch")
SEED = int(os.environ.get("REDRIVE_SEED") or secrets.randbelow(1_000_000))
TRANSFERS = int(os.environ.get("REDRIVE_TRANSFERS") or 20_000)


# The books ----------------------------------------------------------------------------------------------


class Books:
    """What the database says. It may be down when it is asked for progress, and is asked again."""

    def __init__(self, url: str) -> None:
        self.database = Database(url)
        self.applied = 0

    def open(self) -> None:
        bank.METADATA.create_all(self.database.engine)
        opened = [{"id": number, "cents": bank.OPENING} for number in range(bank.ACCOUNTS)]
        with self.database.engine.begin() as connection:
            connection.execute(sa.insert(bank.accounts), opened)

    def refresh(self) -> None:
        try:
            with self.database.engine.connect() as connection:
                self.applied = connection.scalar(sa.select(sa.func.count()).select_from(bank.applied)) or 0
        except sa.exc.OperationalError:
            return

    def pending(self, app: App) -> int:
        return int(OutboxRepository(self.database, app.outbox.table).status()["pending"])

    def check(self, app: App, count: int) -> None:
        with self.database.engine.connect() as connection:
            made = list(connection.execute(sa.select(bank.transfers)))
            events = Counter(connection.execute(sa.select(bank.applied.c.event)).scalars())
            credited = Counter(connection.execute(sa.select(bank.applied.c.transfer)).scalars())
            cents = dict(connection.execute(sa.select(bank.accounts.c.id, bank.accounts.c.cents)).all())
        assert {transfer.id for transfer in made} == set(range(1, count + 1)), "a transfer was not made"
        assert set(events.values()) == {1}, "an event was applied twice"
        assert credited == Counter(range(1, count + 1)), "an event was lost, or a transfer credited twice"
        assert sum(cents.values()) == bank.ACCOUNTS * bank.OPENING, "money was lost, or made"
        assert cents == _balances(count), "the sum is right, and an account is not"
        status = OutboxRepository(self.database, app.outbox.table).status()
        assert (status["pending"], status["parked"]) == (0, 0)


def _balances(count: int) -> dict[int, int]:
    """What must be on the accounts, worked out without any of this."""
    cents = dict.fromkeys(range(bank.ACCOUNTS), bank.OPENING)
    for transfer in map(bank.transfer_of, range(1, count + 1)):
        cents[transfer.source] -= transfer.cents
        cents[transfer.target] += transfer.cents
    return cents


# The crew -----------------------------------------------------------------------------------------------


@dataclass
class Crew:
    """The API, the relays and the workers: killed at random, and always replaced."""

    commands: dict[str, list[str]]
    environment: dict[str, str]
    log: Path
    kills: Counter[str] = field(default_factory=Counter)
    running: dict[str, ServerProcess] = field(default_factory=dict)

    @classmethod
    def of(cls, environment: dict[str, str], log: Path, *, count: int, relays: int, workers: int) -> Crew:
        python, application = sys.executable, f"{bank.__name__}:app"
        commands = {"API": [python, "-m", bank.__name__, str(count)]}
        for number in range(relays):
            commands[f"relay {number}"] = [python, "-m", "redrive", "outbox", "relay", application]
        for number in range(workers):
            commands[f"worker {number}"] = [python, "-m", "redrive", "worker", "--log-level", "error", application]
        return cls(commands, environment, log)

    def start(self) -> None:
        for name in self.commands:
            self._start(name)

    def _start(self, name: str) -> None:
        self.running[name] = ServerProcess(self.commands[name], environment=self.environment, log=self.log)

    def kill(self, name: str) -> None:
        if self.running[name].running:  # the API ends by itself
            self.running[name].kill()
            self.kills[name.split()[0]] += 1
            self._start(name)

    def replace_the_dead(self) -> None:
        """Whoever was started while the broker or the database was away has given up. The API ends when it is done."""
        for name, process in list(self.running.items()):
            if not process.running and (process.join() != 0 or name != "API"):
                self._start(name)

    def dismiss(self) -> None:
        for process in self.running.values():
            process.stop()
        self.running = {}

    def discard(self) -> None:
        for process in self.running.values():
            process.kill()


@dataclass(frozen=True)
class Fire:
    """How often somebody is killed: after so many seconds, if so many events were applied meanwhile.

    A crew that dies faster than it can start proves nothing.
    """

    seconds: float
    events: int


@asynccontextmanager
async def deaths(crew: Crew, books: Books, fire: Fire, dice: random.Random, turn: asyncio.Lock) -> AsyncIterator[None]:
    """Somebody is killed again and again, as long as this lasts; nobody is hired while a server is away."""

    async def disturb() -> None:
        applied, victims = books.applied, list[str]()
        while True:
            await asyncio.sleep(fire.seconds)
            async with turn:
                await asyncio.to_thread(crew.replace_the_dead)
                if books.applied >= applied + fire.events:
                    applied = books.applied
                    victims = victims or dice.sample(list(crew.commands), len(crew.commands))
                    await asyncio.to_thread(crew.kill, victims.pop())

    disturbing = asyncio.create_task(disturb())
    try:
        yield
    finally:
        disturbing.cancel()
        await asyncio.gather(disturbing, return_exceptions=True)


# The run ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    count: int
    relays: int
    workers: int
    fire: Fire
    within: float  # seconds


async def survive(plan: Plan, broker: str, database: str, folder: Path, disasters: list[Callable[[], None]]) -> str:
    """Make transfers, disturb, close the books. What can be said about it in one line."""
    dice, began = random.Random(SEED), time.monotonic()
    dice.shuffle(disasters)
    duplicates = folder / "duplicates"
    environment = {
        **os.environ,
        "REDRIVE_BROKER": broker,
        "REDRIVE_DATABASE": database,
        "PYTHONPATH": PYTHONPATH,
        "BANK_DUPLICATES": str(duplicates),
    }
    app, books = await opened(broker, database)
    crew = Crew.of(environment, folder / "crew.log", count=plan.count, relays=plan.relays, workers=plan.workers)
    turn = asyncio.Lock()
    try:
        crew.start()
        async with asyncio.timeout(plan.within), deaths(crew, books, plan.fire, dice, turn):
            for number, disaster in enumerate(disasters, 1):
                await progress(books, plan.count * number // (len(disasters) + 1))
                async with turn:
                    await asyncio.to_thread(disaster)
            await progress(books, plan.count)
        async with asyncio.timeout(plan.within):
            await at_rest(crew, books, app, broker)
            await asyncio.to_thread(crew.dismiss)
    finally:
        crew.discard()
    books.check(app, plan.count)
    await app.database.close()
    await books.database.close()
    skipped = len(duplicates.read_text().splitlines()) if duplicates.exists() else 0
    return summary(plan, crew, disasters, skipped, time.monotonic() - began)


async def opened(broker: str, database: str) -> tuple[App, Books]:
    """The tables are there, with money on the accounts, and so are the queues."""
    app = App("bank", broker=broker, database=database)
    app.include(bank.app)
    await asyncio.to_thread(app.upgrade_database)
    books = Books(database)
    await asyncio.to_thread(books.open)
    async with app:
        pass
    return app, books


async def progress(books: Books, count: int) -> None:
    """Wait until so many events are applied."""
    while books.applied < count:
        await asyncio.sleep(0.1)
        await asyncio.to_thread(books.refresh)


async def at_rest(crew: Crew, books: Books, app: App, broker: str) -> None:
    """Nothing is left to publish, and what is in the queues by now is duplicates, which come to their end as well."""
    async with Connection(broker) as connection:
        while (
            await asyncio.to_thread(books.pending, app)
            or sum([(await connection.queue_info(name)).messages for name in QUEUES])
            or sum([(await connection.queue_info(f"{name}.retry")).messages for name in QUEUES])
        ):
            await asyncio.to_thread(crew.replace_the_dead)
            await asyncio.sleep(0.1)
        for name in QUEUES:
            assert (await connection.queue_info(f"{name}.dlq")).messages == 0, "something was parked"


def summary(plan: Plan, crew: Crew, disasters: list[Callable[[], None]], skipped: int, took: float) -> str:
    kills = Counter(disaster.__name__.partition("_")[2] for disaster in disasters) + crew.kills
    killed = ", ".join(f"{who} {count}×" for who, count in sorted(kills.items()))
    total = bank.ACCOUNTS * bank.OPENING / 100
    return (
        f"{plan.count:,} transfers, {plan.relays} relays, {plan.workers} workers; killed: {killed}; "
        f"0 lost, 0 applied twice, {skipped} duplicates recognised, {total:,.2f} conserved to the cent; "
        f"seed {SEED}, {took:.0f} s"
    )


# The proofs ---------------------------------------------------------------------------------------------


async def test_money_is_conserved_while_relays_and_workers_die(
    amqp_url: str, postgres_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = Plan(300, relays=1, workers=2, fire=Fire(0.2, 30), within=120)

    told = await survive(plan, amqp_url, postgres_url, tmp_path, [])

    with capsys.disabled():
        print(f"\n{told}")


@pytest.mark.slow
async def test_money_is_conserved_while_everything_dies(
    own_rabbitmq: RabbitMQ, own_postgres: Postgres, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def kill_broker() -> None:
        own_rabbitmq.kill()
        own_rabbitmq.start()

    def kill_database() -> None:
        own_postgres.kill()
        own_postgres.start()

    plan = Plan(TRANSFERS, relays=3, workers=3, fire=Fire(2, 100), within=300 + TRANSFERS / 10)
    with capsys.disabled():
        print(f"\n{plan.count:,} transfers, seed {SEED}")

    told = await survive(plan, own_rabbitmq.url, own_postgres.url, tmp_path, [kill_broker, kill_database] * 3)

    with capsys.disabled():
        print(told)
