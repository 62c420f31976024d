"""Messages that kill their worker by `kill -9`, among neighbours, with three workers that are started again.

Only they are parked as crashed. No neighbour is lost, parked, or handled more than once for each death of a worker that
had begun it. Where messages are prepared, the first of them is while the next are still on their way to quarantine: a
worker that dies between the confirm of a copy and the ack of its original leaves two messages.
"""

from __future__ import annotations

import asyncio
import signal
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import pytest

from crashes.programs.poison import CRASH_LIMIT, OTHER_QUEUE, QUEUE, live, make_app
from crashes.test_worker import newborns
from redrive import App
from redrive.client import Connection, Properties
from redrive.client.topology import QueueInfo
from redrive.recovery.history import HeaderNames
from redrive.testing import RabbitMQ
from redrive.testing.broker_process import EmbeddedBroker
from servers import rabbitmq_root

NEIGHBOURS = 50
WORKERS = 3


@pytest.fixture(params=["embedded", pytest.param("rabbitmq", marks=pytest.mark.rabbitmq)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "embedded":
        with EmbeddedBroker(tmp_path / "broker", data=tmp_path / "broker" / "data") as broker:
            yield broker.url
        return
    yield request.getfixturevalue("amqp_url")


@dataclass
class Account:
    """What the journal says: who began what, and what was done, by queue and number."""

    begun: dict[tuple[str, int], Counter[int]] = field(default_factory=lambda: defaultdict(Counter))
    done: Counter[tuple[str, int]] = field(default_factory=Counter)

    @classmethod
    def read(cls, journal: Path) -> Account:
        account = cls()
        for line in journal.read_text().splitlines() if journal.exists() else ():
            pid, what, queue, number = line.split()
            if what == "begin":
                account.begun[queue, int(number)][int(pid)] += 1
            else:
                account.done[queue, int(number)] += 1
        return account


class Workers:
    """Three processes. One that was killed is replaced."""

    def __init__(self, *arguments: object) -> None:
        self._arguments = arguments
        self.dead: set[int] = set()
        self._living = [self._start() for _ in range(WORKERS)]

    def _start(self) -> ForkServerProcess:
        process = newborns().Process(target=live, args=self._arguments, daemon=True)
        process.start()
        return process

    def replace_the_dead(self) -> None:
        for process in [one for one in self._living if not one.is_alive()]:
            assert process.exitcode == -signal.SIGKILL, "a worker ended with an error: see its output"
            assert process.pid is not None
            self.dead.add(process.pid)
            self._living.remove(process)
            self._living.append(self._start())

    def stop(self) -> None:
        for process in self._living:
            process.terminate()
        for process in self._living:
            process.join()


@pytest.mark.parametrize(
    ("queue_type", "shape"),
    [
        ("classic", "single"),
        ("quorum", "single"),
        ("classic", "prepare"),
        pytest.param("quorum", "prepare", marks=pytest.mark.slow),
        pytest.param("classic", "batch", marks=pytest.mark.slow),
        pytest.param("quorum", "batch", marks=pytest.mark.slow),
    ],
)
async def test_only_messages_that_kill_their_worker_are_parked(
    url: str, tmp_path: Path, queue_type: str, shape: str
) -> None:
    journal, poisons = tmp_path / "journal", (25,)
    numbers = range(NEIGHBOURS + len(poisons))
    healthy = {(QUEUE, number) for number in numbers if number not in poisons}
    healthy |= {(OTHER_QUEUE, number) for number in numbers}
    app = make_app(url, queue_type, journal, poisons, shape=shape)
    async with app, Connection(url) as connection:
        for number in numbers:
            for queue in (QUEUE, OTHER_QUEUE):
                await connection.publish("", queue, b"%d" % number, Properties(delivery_mode=2))
        workers = Workers(url, queue_type, journal, poisons, shape)
        try:
            async with asyncio.timeout(150):
                while not (
                    Account.read(journal).done.keys() >= healthy
                    and (await connection.queue_info(f"{QUEUE}.dlq")).messages >= len(poisons)
                ):
                    workers.replace_the_dead()
                    await asyncio.sleep(0.02)
        finally:
            workers.stop()
        account = Account.read(journal)
        check_neighbours(account, healthy, workers.dead, copied=shape == "prepare")
        for poison in poisons:
            assert account.begun[QUEUE, poison].total() <= CRASH_LIMIT + 2
        parked = [await connection.get(f"{QUEUE}.dlq") for _ in poisons]
        assert sorted(int(letter.body) for letter in parked if letter is not None) == list(poisons)
        for letter in parked:
            assert letter is not None
            headers = letter.properties.headers or {}
            assert (headers[HeaderNames().reason], headers[HeaderNames.CRASHES]) == ("crashed", CRASH_LIMIT)
            letter.ack()
        for queue in (QUEUE, OTHER_QUEUE, f"{QUEUE}.dlq", f"{OTHER_QUEUE}.dlq"):
            assert (await connection.queue_info(queue)).messages == 0


@pytest.mark.rabbitmq
async def test_a_broker_killed_just_after_a_quarantine_queue_was_declared_stops_no_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the restart the quorum queue does not answer: RabbitMQ 3.10 and 4.0 fail its consumers after 65 s. It is
    left to the broker: deleted before it has a leader again, it can end all dead-lettering of the node.
    """
    handled: Counter[int] = Counter()
    declared, all_handled = asyncio.Event(), asyncio.Event()
    names: list[str] = []
    declare = Connection.declare_queue

    async def declare_and_note(connection: Connection, name: str = "", **options: Any) -> QueueInfo:
        info = await declare(connection, name, **options)
        if ".quarantine." in name:
            names.append(name)
            declared.set()
        return info

    monkeypatch.setattr(Connection, "declare_queue", declare_and_note)
    with RabbitMQ(tmp_path / "broker", root=rabbitmq_root()) as node:
        app = App("shop", broker=node.url, queue_type="quorum")

        @app.consumer("orders")
        async def handle(order: int) -> None:
            handled[order] += 1
            if len(handled) == 10:
                all_handled.set()

        async with app, Connection(node.url) as connection:
            for number in range(10):
                await connection.publish("", "orders", b"%d" % number, Properties(delivery_mode=2))
            await asyncio.sleep(2)  # or the main queue would be lost, too
            async with Connection(node.url) as other, await other.consume("orders") as consumer:
                taken = [await anext(consumer) for _ in range(10)]
                for delivery in taken:
                    delivery.nack(requeue=True)
            async with app.worker():
                await declared.wait()
                await asyncio.to_thread(node.kill)
                assert not handled
                await asyncio.to_thread(node.start)
                async with asyncio.timeout(40):
                    await all_handled.wait()
        async with Connection(node.url) as connection:
            assert (await connection.queue_info("orders")).messages == 0
        listed = await asyncio.to_thread(node.ctl, "list_queues", "name", "--silent")
        assert [name for name in listed.split() if ".quarantine." in name] == names[:1]
        assert len(set(names)) == 2


def check_neighbours(account: Account, healthy: set[tuple[str, int]], dead: set[int], *, copied: bool) -> None:
    """`copied`: a worker that died may have left two of one message."""
    assert account.done.keys() == healthy
    for message in healthy:
        began = account.begun[message]
        if copied:
            assert began.total() <= 1 + len(dead), f"{message} was handled more often than workers died"
            continue
        assert max(began.values()) == 1, f"{message} was handled twice by one worker"
        assert len(began.keys() - dead) <= 1, f"{message} was handled again although no worker had died with it"
