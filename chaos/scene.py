"""One run: a producer, two workers, a few strikes of one fault, and the end.

The strikes come when so much of the work is done; the last of it is done undisturbed. The end is when every order is
done or parked, or when nothing has moved for so long that nothing will.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from random import Random

import psutil
import sqlalchemy as sa

from chaos.accounting import Account, Books, settle
from chaos.brokers import Broker
from chaos.faults import Fault
from chaos.systems import System
from chaos.work import QUEUE, Job, number_of
from redrive.client import Connection
from redrive.errors import RedriveError
from redrive.testing import ServerFailed
from redrive.testing.processes import ServerProcess, tail
from tests.support.postgres import Postgres
from tests.support.proxy import FaultProxy

WORKERS = 2
EFFECTS = "CREATE TABLE effects (id bigserial PRIMARY KEY, number integer NOT NULL)"
_LOOK = 0.05  # seconds
_LATE = 2_000  # rows that are looked at again: more are seldom under way
_QUIET = 45.0  # seconds without anything done: nothing will be
_LONGEST = 420.0  # seconds for a run
_ROOT = Path(__file__).parent.parent
_FAKETIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1")


@dataclass
class Outcome:
    """What a run showed."""

    account: Account
    strikes: int
    recoveries: list[float] = field(default_factory=list)  # seconds, by strike
    seconds: float = 0.0
    memory: int = 0  # bytes, the most that one worker had at the end


class Scene:
    def __init__(
        self,
        system: System,
        broker: Broker,
        fault: Fault,
        folder: Path,
        postgres: Postgres | None = None,
        *,
        quiet: float = _QUIET,
        look: float = _LOOK,
        longest: float = _LONGEST,
    ) -> None:
        self.system, self.broker, self.fault = system, broker, fault
        self._folder = folder
        self._postgres = postgres
        self._quiet, self._look_every, self._longest = quiet, look, longest
        self.books = Books()
        self.workers: list[ServerProcess] = []
        self._read: Counter[str] = Counter()  # how far into the files we are
        self._last_row, self._late = 0, set[int]()  # how far into the table, and what we know of its end
        self._network: FaultProxy | None = None
        self.producer: ServerProcess | None = None

    @property
    def strikes(self) -> int:
        return self.fault.strikes

    @property
    def network(self) -> FaultProxy:
        assert self._network is not None
        return self._network

    @property
    def postgres(self) -> Postgres:
        assert self._postgres is not None
        return self._postgres

    # A run --------------------------------------------------------------------------------------------

    async def run(self, *, messages: int, rate: float, seed: int) -> Outcome:
        chance, began = Random(seed), time.monotonic()
        async with AsyncExitStack() as stack:
            await self._set(stack, messages, rate)
            try:
                self.workers = [self._start("work", f"worker{number}.log") for number in range(WORKERS)]
                self.producer = self._start("publish", "producer.log")
                async with asyncio.timeout(self._longest):
                    recoveries = await self.disturb(messages, chance)
                    await self._finish()
            except TimeoutError:
                recoveries = []
            memory = max(map(_memory, self.workers), default=0)
            await asyncio.to_thread(self._end)
            await self._look_into_the_queues()
        account = settle(self.books)
        return Outcome(account, self.strikes, recoveries, time.monotonic() - began, memory)

    async def _set(self, stack: AsyncExitStack, messages: int, rate: float) -> None:
        self._folder.mkdir(parents=True)
        self.url = await asyncio.to_thread(self.broker.fresh_place)
        addresses = self.broker.addresses(self.url)
        url = self.url
        if self.fault.network or len(addresses) > 1:
            self._network = await stack.enter_async_context(FaultProxy(*addresses))
            url = self._network.url
        database = await asyncio.to_thread(self._fresh_database) if self._uses_database else None
        self._clock = self._folder / "clock"
        self.set_clocks("+0")
        self.job = Job(url, str(self._folder), messages, rate, self.broker.kind, database)
        await self.declare()
        await asyncio.sleep(2 if self.broker.kind == "quorum" else 0)  # a younger one may lose what it confirmed

    @property
    def _uses_database(self) -> bool:
        return self.fault.database or self.system.inbox

    def _fresh_database(self) -> str:
        name = f"chaos_{secrets.token_hex(4)}"
        self.postgres.create_database(name)
        url = self.postgres.dsn_for(name).replace("postgresql://", "postgresql+psycopg://")
        self._engine = sa.create_engine(url, pool_pre_ping=True)
        with self._engine.begin() as connection:
            connection.exec_driver_sql(EFFECTS)
        return url

    async def disturb(self, messages: int, chance: Random) -> list[float]:
        recoveries = []
        for strike in range(self.fault.strikes):
            await self._until_done(messages * (strike + 1) // (self.fault.strikes + 2))
            await self.fault.strike(self, chance)
            recoveries.append(await self.recovery())
        return recoveries

    async def recovery(self) -> float:
        """Seconds, from when the world is whole again, until something is done."""
        began = time.monotonic()
        self._refresh()
        before = self.books.done.total()
        while self.books.done.total() == before and time.monotonic() - began < self._quiet:
            await self._look()
            if not self._producing and not self.books.open():
                break  # there was nothing left to do
        return time.monotonic() - began

    async def _until_done(self, count: int) -> None:
        quiet_since, before = time.monotonic(), -1
        while len(self.books.done) < count and time.monotonic() - quiet_since < self._quiet:
            await self._look()
            if len(self.books.done) > before:
                quiet_since, before = time.monotonic(), len(self.books.done)

    async def _finish(self) -> None:
        """Until all is done or parked, or nothing moves any more."""
        quiet_since, before = time.monotonic(), (-1, -1)
        while self._producing or self.books.open() or not await self._all_parked():
            await self._look()
            state = (len(self.books.done), len(self.books.confirmed))
            if state > before:
                quiet_since, before = time.monotonic(), state
            if time.monotonic() - quiet_since > self._quiet:
                return
            if time.monotonic() - quiet_since > self._quiet / 4:
                self._recount_rows()
        await self._until_empty()

    async def until_settled(self) -> None:
        """All that was confirmed so far is done or parked."""
        async with asyncio.timeout(self._quiet):
            while self.books.open() or not await self._all_parked():
                await self._look()
            await self._until_empty()

    async def _all_parked(self) -> bool:
        """Some may be parked twice, so the depth alone tells too early: each was tried as often as it is to be."""
        hopeless = self.books.hopeless()
        tried = all(self.books.attempts[number] >= self.system.tries for number in hopeless)
        return tried and await self._depth(self.system.parked) >= len(hopeless)

    async def _until_empty(self) -> None:
        """Duplicates shall come to their end as well, if they are on their way."""
        with suppress(TimeoutError):
            async with asyncio.timeout(15):
                while sum([await self._depth(queue) for queue in (QUEUE, *self.system.waiting)]):
                    await self._look()

    # For faults ---------------------------------------------------------------------------------------

    @asynccontextmanager
    async def direct(self) -> AsyncIterator[Connection]:
        """To the broker, past the network that is broken; to the first node that serves."""
        hosts = self.broker.addresses(self.url)
        last: Exception | None = None
        for url in hosts:
            try:
                async with Connection(url, name="chaos", patience=timedelta(seconds=5)) as connection:
                    yield connection
                    return
            except (RedriveError, OSError) as error:
                last = error
        assert last is not None
        raise last

    @asynccontextmanager
    async def nobody_publishes(self) -> AsyncIterator[None]:
        self.job.pause.touch()
        await asyncio.sleep(0.5)  # what is under way
        try:
            yield
        finally:
            self.job.pause.unlink()

    async def declare(self) -> None:
        process = await asyncio.to_thread(self._start, "declare", "declare.log")
        status = await asyncio.to_thread(process.join)
        if status:
            raise ServerFailed(f"{self.system.title} could not declare its queues\n{tail(process.log)}")

    def replace_worker(self, how: signal.Signals) -> None:
        """The first one; the others go on."""
        worker = self.workers[0]
        self.signal(worker, how)
        worker.join() if how is signal.SIGTERM else worker.kill()
        self.workers[0] = self._start("work", f"worker{len(list(self._folder.glob('worker*.log')))}.log")

    def signal(self, worker: ServerProcess, number: signal.Signals) -> None:
        """To a worker with all its processes; those that lead are told of an orderly end, and tell the others."""
        processes = [psutil.Process(worker.pid)]
        if number is not signal.SIGTERM:
            processes += processes[0].children(recursive=True)
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def set_clocks(self, offset: str) -> None:
        draft = self._clock.with_suffix(".draft")
        draft.write_text(offset)
        draft.rename(self._clock)

    def end_database_connections(self) -> None:
        with self._engine.connect() as connection:
            connection.exec_driver_sql(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )

    # Programs -----------------------------------------------------------------------------------------

    def _start(self, part: str, log: str) -> ServerProcess:
        environment = {**os.environ, **self.job.environment(), **self._clocked(part)}
        environment |= {"PYTHONPATH": f"{_ROOT / 'src'}:{_ROOT}", "PYTHONUNBUFFERED": "1", "C_FORCE_ROOT": "1"}
        return ServerProcess(self.system.command(part), environment=environment, log=self._folder / log)

    def _clocked(self, part: str) -> Mapping[str, str]:
        if not self.fault.clocks or part != "work":
            return {}
        return {
            "LD_PRELOAD": str(_FAKETIME),
            "FAKETIME_TIMESTAMP_FILE": str(self._clock),
            "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }

    @property
    def _producing(self) -> bool:
        return self.producer is not None and self.producer.running

    def _end(self) -> None:
        for process in self.workers:
            if process.running:
                self.signal(process, signal.SIGCONT)
            process.stop(timeout=15)
        if self.producer is not None:
            self.producer.kill()

    # What can be seen ---------------------------------------------------------------------------------

    async def _look(self) -> None:
        await asyncio.sleep(self._look_every)
        self._refresh()
        await asyncio.to_thread(self._replace_the_dead)

    def _replace_the_dead(self) -> None:
        """A supervisor starts again what has given up."""
        for place, worker in enumerate(self.workers):
            if not worker.running:
                worker.join()
                self.workers[place] = self._start("work", worker.log.name)
        if self.producer is not None and not self.producer.running and self.producer.join():
            raise ServerFailed(f"the producer gave up\n{tail(self.producer.log)}")

    def _refresh(self) -> None:
        self.books.read_confirmed(self._added(self.job.confirmed))
        self.books.read_effects(self._added(self.job.effects))
        if self._uses_database:
            with suppress(sa.exc.OperationalError), self._engine.connect() as connection:
                self._read_rows(connection, after=self._last_row - _LATE)

    def _read_rows(self, connection: sa.Connection, after: int) -> None:
        """Rows become visible when they are committed, not when they are numbered: a few are looked at again. A worker
        that was frozen commits later still, and what it did is found by `_recount_rows`.
        """
        rows = connection.execute(sa.text("SELECT id, number FROM effects WHERE id > :after"), {"after": after}).all()
        self.books.done.update(number for row, number in rows if row not in self._late)
        self._late |= {row for row, _ in rows}
        self._last_row = max(self._late, default=0)
        self._late = {row for row in self._late if row > self._last_row - _LATE}

    def _recount_rows(self) -> None:
        """All of them, however late they came: who is lost is decided by this."""
        if self._uses_database:
            with suppress(sa.exc.OperationalError), self._engine.connect() as connection:
                self.books.done, self._late = Counter(), set()
                self._read_rows(connection, after=0)

    def _added(self, path: Path) -> list[bytes]:
        """Whole lines that were not there before."""
        if not path.exists():
            return []
        with path.open("rb") as file:
            file.seek(self._read[path.name])
            added = file.read()
        whole = added[: added.rfind(b"\n") + 1]
        self._read[path.name] += len(whole)
        return whole.splitlines()

    async def _depth(self, queue: str) -> int:
        try:
            async with asyncio.timeout(10), self.direct() as connection:
                return (await connection.queue_info(queue)).messages
        except (RedriveError, OSError, TimeoutError):
            return 0

    async def _look_into_the_queues(self) -> None:
        """When all workers are gone, whatever they held is back."""
        await asyncio.sleep(0.5)
        self._refresh()
        self._recount_rows()
        async with self.direct() as connection:
            for queue in (QUEUE, *self.system.waiting):
                self.books.left.update(await _numbers(connection, queue))
            self.books.parked.update(await _numbers(connection, self.system.parked))
        if self._uses_database:
            self._engine.dispose()


async def _numbers(connection: Connection, queue: str) -> list[int]:
    try:
        count = (await connection.queue_info(queue)).messages
    except RedriveError:
        return []
    found: list[int] = []
    async with await connection.consume(queue, prefetch=500) as consumer:
        while len(found) < count:
            try:
                delivery = await asyncio.wait_for(anext(consumer), 10)
            except TimeoutError:
                break
            number = number_of(delivery.body)
            if number is not None:
                found.append(number)
            delivery.ack()
    return found


def _memory(process: ServerProcess) -> int:
    try:
        return int(psutil.Process(process.pid).memory_info().rss)
    except psutil.NoSuchProcess:
        return 0
