"""Workers are killed again and again, the broker is restarted twice: every message is done, or parked with its story.

The workers are `redrive worker` processes, the application is `programs/ledger.py`. At the end the account is settled
number by number: done and parked together are what was published, exactly; what had to be parked is parked, and nothing
else; duplicates are counted and told.

On RabbitMQ these are quorum queues. A classic queue in which retries wait loses what expires while the broker goes
down, in whatever way (`docs/guarantees.md`); that is the broker's doing, and no worker can make up for it.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from crashes.programs import ledger
from crashes.programs.ledger import ATTEMPTS, ENDS_PARKED, FAILURES, QUEUE, Fate, body_of, fate_of, make_app
from redrive import App
from redrive.client import Connection, Properties, Publish
from redrive.recovery.history import HeaderNames
from redrive.testing import RabbitMQ
from redrive.testing.broker_process import EmbeddedBroker
from redrive.testing.processes import ServerProcess

TESTS = Path(__file__).parent.parent
# Both this tree's own: an installed package may be another one's.
PYTHONPATH = os.pathsep.join(map(str, (TESTS.parent / "src", TESTS)))
DLQ, RUNG = f"{QUEUE}.dlq", f"{QUEUE}.retry"


@pytest.fixture(params=["embedded", pytest.param("rabbitmq", marks=pytest.mark.rabbitmq)])
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[EmbeddedBroker | RabbitMQ]:
    if request.param == "embedded":
        with EmbeddedBroker(tmp_path / "broker", data=tmp_path / "broker" / "data") as embedded:
            yield embedded
    else:
        yield request.getfixturevalue("own_rabbitmq")


# The account --------------------------------------------------------------------------------------------


@dataclass
class Account:
    """What the workers wrote down, and what lies in the dead-letter queue."""

    path: Path
    done: Counter[int] = field(default_factory=Counter)
    failed: Counter[tuple[int, int]] = field(default_factory=Counter)  # by number and attempt
    parked: dict[int, list[dict[str, Any]]] = field(default_factory=dict)  # stories by number
    _read: int = 0

    def refresh(self) -> None:
        """Read what was added, up to the last whole line."""
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            file.seek(self._read)
            added = file.read()
        whole = added[: added.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.splitlines():
            number, attempt, outcome = line.split()
            if outcome == b"done":
                self.done[int(number)] += 1
            else:
                self.failed[int(number), int(attempt)] += 1

    def missing(self, messages: int) -> list[int]:
        return [number for number in range(messages) if number not in self.done and fate_of(number) not in ENDS_PARKED]

    def reasons(self) -> Counter[str]:
        return Counter(stories[0][HeaderNames().reason] for stories in self.parked.values())

    def check(self, messages: int) -> None:
        numbers = set(range(messages))
        wanted = {number for number in numbers if fate_of(number) in ENDS_PARKED}
        assert self.done.keys() | self.parked.keys() == numbers, "lost, or invented"
        assert self.parked.keys() == wanted, "parked, and should not be; or not parked, and should be"
        assert self.done.keys() == numbers - wanted
        self._check_attempts(numbers)
        for number, stories in self.parked.items():
            for story in stories:
                check_story(number, story)

    def _check_attempts(self, numbers: set[int]) -> None:
        """Every failure that had to happen did, none beyond: attempts are neither forgotten nor invented."""
        expected = {(number, attempt) for number in numbers for attempt in range(1, failures(number) + 1)}
        assert self.failed.keys() == expected


def failures(number: int) -> int:
    fate = fate_of(number)
    return 1 if fate is Fate.PERMANENT else FAILURES.get(fate, 0)


def check_story(number: int, headers: dict[str, Any]) -> None:
    names = HeaderNames()
    fate = fate_of(number)
    assert headers[names.reason] == fate
    assert headers[names.attempts] == (ATTEMPTS if fate is Fate.EXHAUSTED else 1)
    assert len(headers[names.HISTORY]) == headers[names.attempts]
    assert (headers[names.QUEUE], headers[names.ROUTING_KEY], headers[names.APP]) == (QUEUE, QUEUE, "ledger")
    assert {names.ERROR, names.MESSAGE, names.STACK, names.FINGERPRINT, names.HOST, names.PARKED_AT} <= headers.keys()


# The crew -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fire:
    """How often a worker is killed: after so many seconds, if so many messages were done meanwhile.

    A crew that dies faster than it can start proves nothing.
    """

    seconds: float
    messages: int


class Crew:
    """`redrive worker` processes: killed by turns, and always replaced."""

    def __init__(self, environment: Mapping[str, str], account: Account, log: Path, *, workers: int) -> None:
        self.kills = 0
        self.turn = asyncio.Lock()  # nobody is killed, or hired, while the broker is away
        self._log = log
        self._environment = {**os.environ, **environment, "PYTHONPATH": PYTHONPATH, "LEDGER": str(account.path)}
        self._workers = [self._hire() for _ in range(workers)]

    def _hire(self) -> ServerProcess:
        command = [sys.executable, "-m", "redrive", "worker", f"{ledger.__name__}:app"]
        return ServerProcess(command, environment=self._environment, log=self._log)

    def kill_one(self) -> None:
        self._workers.pop(0).kill()
        self.kills += 1
        self._workers.append(self._hire())

    def replace_the_dead(self) -> None:
        """Whoever was started while the broker was away has given up."""
        for place, worker in enumerate(self._workers):
            if not worker.running:
                worker.join()
                self._workers[place] = self._hire()

    def dismiss(self) -> None:
        """SIGTERM: what is under way is finished and settled."""
        for worker in self._workers:
            worker.stop()
        self._workers = []

    def discard(self) -> None:
        for worker in self._workers:
            worker.kill()


@asynccontextmanager
async def deaths(crew: Crew, account: Account, fire: Fire) -> AsyncIterator[None]:
    """Workers are killed by turns, as long as this lasts."""

    async def disturb() -> None:
        while True:
            done = len(account.done)
            await asyncio.sleep(fire.seconds)
            async with crew.turn:
                await asyncio.to_thread(crew.replace_the_dead)
                if len(account.done) >= done + fire.messages:
                    await asyncio.to_thread(crew.kill_one)

    disturbing = asyncio.create_task(disturb())
    try:
        yield
    finally:
        disturbing.cancel()
        await asyncio.gather(disturbing, return_exceptions=True)


# The work -----------------------------------------------------------------------------------------------


async def publish_all(app: App, url: str, messages: int) -> None:
    async with app, Connection(url, patience=timedelta(minutes=2)) as connection:
        await connection.publish_many(
            Publish("", QUEUE, body_of(number), Properties(message_id=str(number), delivery_mode=2))
            for number in range(messages)
        )


async def progress(account: Account, count: int) -> None:
    """Wait until so many messages are done."""
    while len(account.done) < count:
        await asyncio.sleep(0.05)
        account.refresh()


async def all_accounted_for(url: str, account: Account, messages: int) -> None:
    parked = sum(fate_of(number) in ENDS_PARKED for number in range(messages))
    await progress(account, messages - parked)
    async with Connection(url) as connection:
        while (await connection.queue_info(DLQ)).messages < parked:  # noqa: ASYNC110 - the broker is the one to ask
            await asyncio.sleep(0.05)


async def until_empty(url: str) -> None:
    """What is left by now is duplicates: these shall come to their end as well."""
    async with Connection(url) as connection:
        while sum([(await connection.queue_info(queue)).messages for queue in (QUEUE, RUNG)]):  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def read_the_parked(url: str, account: Account) -> None:
    async with Connection(url) as connection:
        assert (await connection.queue_info(QUEUE)).messages == 0
        count = (await connection.queue_info(DLQ)).messages
        async with await connection.consume(DLQ, prefetch=1000) as consumer:
            for _ in range(count):
                delivery = await anext(consumer)
                headers = dict(delivery.properties.headers or {})
                account.parked.setdefault(int(delivery.properties.message_id or -1), []).append(headers)
                delivery.ack()


async def survive(
    broker: EmbeddedBroker | RabbitMQ, directory: Path, *, messages: int, workers: int, pause: float, fire: Fire
) -> str:
    """Publish, disturb, settle the account. What can be said about it in one line."""
    account = Account(directory / "ledger")
    kind = "quorum" if isinstance(broker, RabbitMQ) else "classic"
    await publish_all(make_app(kind, broker.url), broker.url, messages)
    began = time.monotonic()
    environment = {"REDRIVE_BROKER": broker.url, "LEDGER_TYPE": kind, "LEDGER_PAUSE": str(pause)}
    crew = Crew(environment, account, directory / "workers.log", workers=workers)
    try:
        async with asyncio.timeout(300 + messages / 100), deaths(crew, account, fire):
            await progress(account, messages // 3)
            async with crew.turn:
                await asyncio.to_thread(broker.restart)
            await progress(account, messages * 2 // 3)
            async with crew.turn:
                await asyncio.to_thread(broker.kill)
                await asyncio.to_thread(broker.start)
            await all_accounted_for(broker.url, account, messages)
        async with asyncio.timeout(60):
            await until_empty(broker.url)
            await asyncio.to_thread(crew.dismiss)
    except TimeoutError:
        pytest.fail(f"not in time; of {messages} messages {account.missing(messages)} are not done")
    finally:
        crew.discard()
    took = time.monotonic() - began
    account.refresh()
    await read_the_parked(broker.url, account)
    account.check(messages)
    return summary(account, crew, messages, took)


def summary(account: Account, crew: Crew, messages: int, took: float) -> str:
    reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(account.reasons().items()))
    twice = sum(account.done.values()) - len(account.done)
    parked_twice = sum(map(len, account.parked.values())) - len(account.parked)
    again = sum(account.failed.values()) - len(account.failed)
    return (
        f"{messages} messages, {crew.kills} workers killed, broker restarted and killed: "
        f"{len(account.done)} done + {len(account.parked)} parked ({reasons}) = {messages}; "
        f"done again {twice}, parked again {parked_twice}, failed again {again}; {took:.0f} s"
    )


async def test_every_message_is_done_or_parked(
    broker: EmbeddedBroker | RabbitMQ, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = await survive(broker, tmp_path, messages=2_000, workers=2, pause=0.01, fire=Fire(0.5, 200))

    with capsys.disabled():
        print(f"\n{broker!r}: {told}")


@pytest.mark.slow
async def test_a_hundred_thousand_messages_are_done_or_parked(
    broker: EmbeddedBroker | RabbitMQ, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = await survive(broker, tmp_path, messages=100_000, workers=3, pause=0, fire=Fire(3, 1))

    with capsys.disabled():
        print(f"\n{broker!r}: {told}")
