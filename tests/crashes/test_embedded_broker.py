"""`redrive broker` is killed under load, again and again: what it confirmed is there, once and in order.

Twenty publishers send numbered messages, each one at a time, so that the order of its numbers is known; a fan-out puts
every message into `ledger`, which nobody touches until the end, and into `work`, which a consumer reads all along.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from random import Random

import pytest

from interop.embedded import EmbeddedBroker, run
from redrive.cli.exit_codes import CONFLICT
from redrive.client import Connection, Consumer, ConsumerState, Delivery, Properties
from redrive.errors import NotFound, NotPublished, PublishUnknown
from redrive.recovery.backoff import Backoff

PUBLISHERS = 20
QUICK = Backoff(first=timedelta(milliseconds=5), ceiling=timedelta(milliseconds=50))
PERSISTENT = Properties(delivery_mode=2)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(tmp_path, data=tmp_path / "data") as broker:
        yield broker


def connect(broker: EmbeddedBroker, name: str) -> Connection:
    return Connection(broker.url, name=name, patience=timedelta(minutes=2), backoff=QUICK)


@pytest.fixture
async def connection(broker: EmbeddedBroker) -> AsyncIterator[Connection]:
    async with connect(broker, "test") as connection:
        yield connection


async def kill_and_restart(broker: EmbeddedBroker) -> None:
    await asyncio.to_thread(broker.kill)
    await asyncio.to_thread(broker.start)


async def drained(connection: Connection, queue: str, count: int) -> list[Delivery]:
    """The next so many deliveries, acked."""
    found: list[Delivery] = []
    async with asyncio.timeout(60), await connection.consume(queue, prefetch=1000) as consumer:
        while len(found) < count:
            delivery = await anext(consumer)
            found.append(delivery)
            delivery.ack()
    return found


# Under load -------------------------------------------------------------------------------------------


@dataclass
class Account:
    """What became of each message: (publisher, number)."""

    returned: set[tuple[int, int]] = field(default_factory=set)
    unknown: set[tuple[int, int]] = field(default_factory=set)
    not_sent: set[tuple[int, int]] = field(default_factory=set)
    consumed: Counter[tuple[int, int]] = field(default_factory=Counter)
    unmarked: list[tuple[int, int]] = field(default_factory=list)  # came again, and was not said to be redelivered
    stored: Counter[tuple[int, int]] = field(default_factory=Counter)
    over: bool = False
    progress: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def changed(self) -> None:
        async with self.progress:
            self.progress.notify_all()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(60), self.progress:
            await self.progress.wait_for(condition)


async def publish(connection: Connection, publisher: int, account: Account) -> None:
    number = 0
    while not account.over:
        message = (publisher, number)
        try:
            await connection.publish("everything", "", b"%d %d" % message + padding(number), PERSISTENT)
        except PublishUnknown:
            account.unknown.add(message)
        except NotPublished:
            account.not_sent.add(message)
        else:
            account.returned.add(message)
        number += 1
        await account.changed()


def padding(number: int) -> bytes:
    """Commits of many sizes: a kill then also hits one that is half written."""
    return b" " * (number * 7919 % 5 * 4000)


def read(delivery: Delivery) -> tuple[int, int]:
    publisher, number = delivery.body.split()
    return int(publisher), int(number)


async def disturb(broker: EmbeddedBroker, kills: int, account: Account, consumer: Consumer) -> None:
    """Kill it after every so many confirmed messages and a moment more.

    Publishers wait for the same group commits and so go in step: without the moment every kill would come right after
    a commit.
    """
    chance = Random(kills)
    for turn in range(kills):
        due = len(account.returned) + 200 + 37 * (turn % 7)
        await account.until(lambda due=due: len(account.returned) >= due)
        await consumer.until(ConsumerState.CONSUMING)
        await asyncio.sleep(chance.uniform(0, 0.02))
        await kill_and_restart(broker)
    account.over = True


async def survive(broker: EmbeddedBroker, kills: int) -> Account:
    account = Account()

    async def work(delivery: Delivery) -> None:
        message = read(delivery)
        if account.consumed[message] and not delivery.redelivered:
            account.unmarked.append(message)
        account.consumed[message] += 1
        delivery.ack()
        await account.changed()

    async with connect(broker, "publisher") as publishing, connect(broker, "consumer") as consuming:
        await publishing.declare_exchange("everything", "fanout")
        for queue in ("ledger", "work"):
            await publishing.declare_queue(queue)
            await publishing.bind_queue(queue, "everything")
        consumer = await consuming.consume("work", work, prefetch=50)
        publishers = (publish(publishing, publisher, account) for publisher in range(PUBLISHERS))
        await asyncio.gather(*publishers, disturb(broker, kills, account, consumer))
        await account.until(lambda: account.returned <= account.consumed.keys())
        stored = (await publishing.queue_info("ledger")).messages
        ledger = [read(delivery) for delivery in await drained(publishing, "ledger", stored)]
        assert (await publishing.queue_info("ledger")).messages == 0
    check(account, ledger)
    return account


def check(account: Account, ledger: list[tuple[int, int]]) -> None:
    stored = account.stored = Counter(ledger)
    assert max(stored.values()) == 1, "a message was stored twice, though each was published once"
    assert account.returned <= stored.keys(), "a confirmed message is lost"
    assert stored.keys() <= account.returned | account.unknown, "a message was invented, or stored and not reported"
    assert not account.unmarked, "what was delivered before a crash came again without the redelivered flag"
    for publisher in range(PUBLISHERS):
        numbers = [number for who, number in ledger if who == publisher]
        assert numbers == sorted(numbers), f"the order of publisher {publisher} is lost"


async def test_confirmed_messages_survive_three_kills(broker: EmbeddedBroker) -> None:
    account = await survive(broker, kills=3)

    assert len(account.returned) >= 600


@pytest.mark.slow
async def test_fifty_kills_lose_nothing(broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str]) -> None:
    account = await survive(broker, kills=50)

    with capsys.disabled():
        again = sum(times - 1 for times in account.consumed.values())
        print(
            f"\n50 kills: {len(account.returned)} messages confirmed, all there once and in order; "
            f"{len(account.unknown)} unknown, of which {len(account.unknown & account.stored.keys())} are there; "
            f"{len(account.not_sent)} not sent, {again} delivered again"
        )


# What is kept -----------------------------------------------------------------------------------------


async def test_what_was_delivered_comes_again_as_redelivered_and_the_rest_does_not(
    broker: EmbeddedBroker, connection: Connection
) -> None:
    await connection.declare_queue("orders")
    for number in range(4):
        await connection.publish("", "orders", str(number).encode(), PERSISTENT)
    async with connect(broker, "taker") as other, await other.consume("orders", prefetch=2) as consumer:
        assert [(await anext(consumer)).redelivered for _ in range(2)] == [False, False]
        await connection.publish("", "orders", b"4", PERSISTENT)  # confirmed, so what was before is on disk as well
        await asyncio.to_thread(broker.kill)
    await asyncio.to_thread(broker.start)

    deliveries = await drained(connection, "orders", 5)

    assert [(delivery.body, delivery.redelivered) for delivery in deliveries] == [
        (b"0", True), (b"1", True), (b"2", False), (b"3", False), (b"4", False),
    ]  # fmt: skip


async def test_what_was_acked_does_not_come_again(broker: EmbeddedBroker, connection: Connection) -> None:
    await connection.declare_queue("orders")
    for number in range(3):
        await connection.publish("", "orders", str(number).encode(), PERSISTENT)
    await drained(connection, "orders", 2)
    await connection.publish("", "orders", b"3", PERSISTENT)

    await kill_and_restart(broker)

    assert [delivery.body for delivery in await drained(connection, "orders", 2)] == [b"2", b"3"]


async def test_a_deadline_passes_while_the_broker_is_down(broker: EmbeddedBroker, connection: Connection) -> None:
    """The message is dead when the broker is back; it does not get its time again."""
    await connection.declare_queue("dead")
    dead_letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    await connection.declare_queue("waiting", arguments={"x-message-ttl": 1000, **dead_letters})
    await connection.publish("", "waiting", b"late", PERSISTENT)
    due = time.time() + 1
    await asyncio.to_thread(broker.kill)
    while time.time() < due:  # noqa: ASYNC110 - time is the fact to wait for
        await asyncio.sleep(0.01)
    await asyncio.to_thread(broker.start)

    assert (await connection.queue_info("waiting")).messages == 0
    [late] = await drained(connection, "dead", 1)
    assert late.properties.headers is not None
    [death] = late.properties.headers["x-death"]
    assert (death["queue"], death["reason"]) == ("waiting", "expired")


async def test_a_deadline_to_come_is_kept_over_a_crash(broker: EmbeddedBroker, connection: Connection) -> None:
    await connection.declare_queue("dead")
    dead_letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    await connection.declare_queue("waiting", arguments=dead_letters)
    published = time.time()
    await connection.publish("", "waiting", b"later", Properties(delivery_mode=2, expiration="1500"))

    await kill_and_restart(broker)

    [later] = await drained(connection, "dead", 1)
    assert time.time() >= published + 1.5
    assert later.properties.expiration is None


async def test_the_story_of_a_dead_letter_goes_on_after_a_crash(broker: EmbeddedBroker, connection: Connection) -> None:
    await connection.declare_queue("b", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "a"})
    await connection.declare_queue("a", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "b"})
    await connection.publish("", "a", b"wanderer", PERSISTENT)

    for queue in ("a", "b", "a"):
        await reject_first(connection, queue)
        await until_ready(connection, "b" if queue == "a" else "a")
        await kill_and_restart(broker)

    [delivery] = await drained(connection, "b", 1)
    assert delivery.properties.headers is not None
    deaths = delivery.properties.headers["x-death"]
    assert [(death["queue"], death["count"], death["reason"]) for death in deaths] == [
        ("a", 2, "rejected"), ("b", 1, "rejected"),
    ]  # fmt: skip
    assert delivery.properties.headers["x-first-death-queue"] == "a"


async def reject_first(connection: Connection, queue: str) -> None:
    async with asyncio.timeout(20), await connection.consume(queue, prefetch=1) as consumer:
        (await anext(consumer)).reject()


async def until_ready(connection: Connection, queue: str) -> None:
    """Until a message is there, and on disk."""
    async with asyncio.timeout(20):
        while not (await connection.queue_info(queue)).messages:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    await barrier(connection)


async def test_a_quorum_queue_counts_on_after_a_crash(broker: EmbeddedBroker, connection: Connection) -> None:
    await connection.declare_queue("dead")
    await connection.declare_queue(
        "limited",
        arguments={
            "x-queue-type": "quorum",
            "x-delivery-limit": 2,
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": "dead",
        },
    )
    await connection.publish("", "limited", b"poison", PERSISTENT)

    for _ in range(3):
        async with asyncio.timeout(20), await connection.consume("limited", prefetch=1) as consumer:
            (await anext(consumer)).reject(requeue=True)
        await barrier(connection)
        await kill_and_restart(broker)

    [delivery] = await drained(connection, "dead", 1)
    assert delivery.properties.headers is not None
    assert delivery.properties.headers["x-death"][0]["reason"] == "delivery_limit"


async def barrier(connection: Connection) -> None:
    """What was said before is on disk after this."""
    await connection.declare_queue("barrier")
    await connection.publish("", "barrier", b"", PERSISTENT)


async def test_durable_topology_is_kept_and_transient_things_are_gone(broker: EmbeddedBroker) -> None:
    async with connect(broker, "maker") as connection:
        await connection.declare_exchange("kept", "topic")
        await connection.declare_exchange("inner", "fanout")
        await connection.declare_exchange("fleeting", "fanout", durable=False)
        await connection.declare_queue("kept", arguments={"x-max-length": 2})
        await connection.declare_queue("fleeting", durable=False)
        await connection.bind_exchange("inner", "kept", "a.#")
        await connection.bind_queue("kept", "inner")
        await connection.bind_queue("fleeting", "kept", "#")
        for number in range(3):
            await connection.publish("kept", "a.b", str(number).encode(), PERSISTENT)
        await connection.publish("kept", "a.b", b"transient", Properties(delivery_mode=1))

    await kill_and_restart(broker)

    async with connect(broker, "finder") as connection:
        with pytest.raises(NotFound):
            await connection.queue_info("fleeting")
        assert [delivery.body for delivery in await drained(connection, "kept", 1)] == [b"2"]
        await connection.publish("kept", "a.c", b"through two exchanges", PERSISTENT)
        assert [delivery.body for delivery in await drained(connection, "kept", 1)] == [b"through two exchanges"]


async def test_an_orderly_stop_keeps_everything_too(broker: EmbeddedBroker, connection: Connection) -> None:
    await connection.declare_queue("orders")
    for number in range(100):
        await connection.publish("", "orders", str(number).encode(), PERSISTENT)

    await asyncio.to_thread(broker.restart)

    assert [int(delivery.body) for delivery in await drained(connection, "orders", 100)] == list(range(100))


# The directory ----------------------------------------------------------------------------------------


def test_a_second_broker_on_the_same_directory_is_refused(broker: EmbeddedBroker, tmp_path: Path) -> None:
    second = EmbeddedBroker(tmp_path, data=broker.data)

    refused = run(*second.command)

    assert refused.returncode == CONFLICT == 6
    assert f"{broker.data}: is in use by process {broker.pid}" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert broker.running


def test_a_port_that_is_taken_is_said(broker: EmbeddedBroker, tmp_path: Path) -> None:
    second = EmbeddedBroker(tmp_path, data=tmp_path / "other")
    second.port = broker.port

    refused = run(*second.command)

    assert refused.returncode == CONFLICT
    assert f"cannot listen on 127.0.0.1:{broker.port}" in refused.stderr
    assert "Traceback" not in refused.stderr
