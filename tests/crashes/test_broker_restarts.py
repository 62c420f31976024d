"""The broker goes away under load, again and again: what was promised is there, what was not is said.

Every message goes to two queues by a fan-out: `ledger`, which nobody touches until the end, and `work`, which a
consumer reads all along. Then, for every number that was published:

    returned              it is in the ledger, and the consumer saw it
    raised PublishUnknown it may be there
    raised NotPublished   it is not there
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta

import pytest

from redrive.client import Connection, Consumer, ConsumerState, Delivery, LinkState
from redrive.errors import NotPublished, PublishUnknown
from redrive.testing import RabbitMQ

PUBLISHERS = 50


@dataclass
class Account:
    """What became of each number."""

    returned: set[int] = field(default_factory=set)
    unknown: set[int] = field(default_factory=set)
    not_sent: set[int] = field(default_factory=set)
    consumed: Counter[int] = field(default_factory=Counter)
    progress: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def note(self, numbers: set[int], number: int) -> None:
        async with self.progress:
            numbers.add(number)
            self.progress.notify_all()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with self.progress:
            await self.progress.wait_for(condition)

    @property
    def settled(self) -> int:
        return len(self.returned) + len(self.unknown) + len(self.not_sent)


@asynccontextmanager
async def two_connections(url: str) -> AsyncIterator[tuple[Connection, Connection]]:
    async with (
        Connection(url, name="publisher", patience=timedelta(minutes=2)) as publishing,
        Connection(url, name="consumer") as consuming,
    ):
        yield publishing, consuming


async def publish_all(connection: Connection, messages: int, account: Account) -> None:
    numbers = iter(range(messages))

    async def publisher() -> None:
        for number in numbers:
            try:
                await connection.publish("everything", "", str(number).encode())
            except PublishUnknown:
                await account.note(account.unknown, number)
            except NotPublished:
                await account.note(account.not_sent, number)
            else:
                await account.note(account.returned, number)

    await asyncio.gather(*(publisher() for _ in range(PUBLISHERS)))


async def disturb(node: RabbitMQ, times: int, messages: int, account: Account, consumer: Consumer) -> None:
    """Restart and kill the broker by turns, at even intervals of the work."""
    for turn in range(times):
        due = messages * (turn + 1) // (times + 1)
        await account.until(lambda due=due: account.settled >= due)
        await consumer.until(ConsumerState.CONSUMING)
        await asyncio.to_thread(node.kill if turn % 2 == 0 else node.stop)
        await asyncio.to_thread(node.start)


async def read_all(connection: Connection, queue: str) -> list[int]:
    count = (await connection.queue_info(queue)).messages
    found = []
    async with await connection.consume(queue, prefetch=1000) as consumer:
        while len(found) < count:
            delivery = await anext(consumer)
            found.append(int(delivery.body))
            delivery.ack()
    return found


async def survive(node: RabbitMQ, *, messages: int, disturbances: int) -> Account:
    account = Account()

    async def work(delivery: Delivery) -> None:
        account.consumed[int(delivery.body)] += 1
        delivery.ack()
        async with account.progress:
            account.progress.notify_all()

    async with two_connections(node.url) as (publishing, consuming):
        await publishing.declare_exchange("everything", "fanout")
        for queue in ("ledger", "work"):
            await publishing.declare_queue(queue)
            await publishing.bind_queue(queue, "everything")
        # RabbitMQ may lose a queue that is younger than a second when it is killed: a fact of the broker, not our test.
        await asyncio.sleep(2)
        consumer = await consuming.consume("work", work, prefetch=200)
        await asyncio.gather(
            publish_all(publishing, messages, account), disturb(node, disturbances, messages, account, consumer)
        )
        await publishing.until(LinkState.OPEN)
        async with asyncio.timeout(60):
            await account.until(lambda: account.returned <= account.consumed.keys())
        assert consumer.restarts >= disturbances, "the consumer did not notice"
        stored = Counter(await read_all(publishing, "ledger"))
    assert max(stored.values()) == 1, "a message was stored twice, though each was published once"
    assert account.returned <= stored.keys(), "a confirmed message is lost"
    assert not account.not_sent & stored.keys(), "a message that was not sent is stored"
    assert stored.keys() - account.returned <= account.unknown, "a stored message was not reported as unknown"
    assert account.settled == messages
    return account


async def test_confirmed_messages_survive_a_killed_and_a_restarted_broker(own_rabbitmq: RabbitMQ) -> None:
    account = await survive(own_rabbitmq, messages=6_000, disturbances=2)

    assert len(account.returned) > 5_000


@pytest.mark.slow
async def test_twenty_disturbances_under_fifty_thousand_messages_lose_nothing(
    own_rabbitmq: RabbitMQ, capsys: pytest.CaptureFixture[str]
) -> None:
    account = await survive(own_rabbitmq, messages=50_000, disturbances=20)

    with capsys.disabled():
        again = sum(times - 1 for times in account.consumed.values())
        print(
            f"\n20 disturbances, 50000 messages: returned {len(account.returned)}, unknown {len(account.unknown)}, "
            f"not sent {len(account.not_sent)}, consumed {len(account.consumed)}, delivered again {again}"
        )
