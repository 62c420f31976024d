"""The blocking publisher: the same guarantees for code that does not await."""

import asyncio
import multiprocessing
import threading
from collections.abc import Coroutine, Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any, TypeVar

import pytest

from redrive.client import Connection
from redrive.errors import Closed, ConnectionFailed, PublishErrors, PublishUnknown, Unroutable
from redrive.sync import Properties, Publish, SyncPublisher
from redrive.testing import free_port
from tests.support.proxy import FaultProxy

T = TypeVar("T")


@pytest.fixture
def publisher(amqp_url: str) -> Iterator[SyncPublisher]:
    with SyncPublisher(amqp_url) as publisher:
        yield publisher


@pytest.fixture
async def orders(amqp_url: str) -> str:
    async with Connection(amqp_url) as connection:
        await connection.declare_queue("orders")
    return "orders"


async def bodies(url: str, queue: str) -> list[bytes]:
    found = []
    async with Connection(url) as connection:
        while (delivery := await connection.get(queue)) is not None:
            found.append(delivery.body)
            delivery.ack()
    return found


async def test_a_publish_that_returned_is_in_the_queue(publisher: SyncPublisher, amqp_url: str, orders: str) -> None:
    publisher.publish("", orders, b"one", Properties(message_id="1"))

    assert await bodies(amqp_url, orders) == [b"one"]


def test_an_unroutable_message_raises(publisher: SyncPublisher) -> None:
    with pytest.raises(Unroutable):
        publisher.publish("", "nowhere", b"")


async def test_many_threads_may_publish_at_once(publisher: SyncPublisher, amqp_url: str, orders: str) -> None:
    def work(number: int) -> None:
        for turn in range(20):
            publisher.publish("", orders, f"{number}.{turn}".encode())

    threads = [threading.Thread(target=work, args=(number,)) for number in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(set(await bodies(amqp_url, orders))) == 200


def test_a_pipeline_says_which_messages_failed(publisher: SyncPublisher, orders: str) -> None:
    messages = [Publish("", orders, b"0"), Publish("", "nowhere", b"1"), Publish("", orders, b"2")]

    with pytest.raises(PublishErrors) as caught:
        publisher.publish_many(messages)

    assert [error.index for error in caught.value.exceptions] == [1]


def test_it_publishes_again_after_the_network_was_cut(amqp_url: str, orders: str) -> None:
    with _ThreadedProxy(amqp_url) as network, SyncPublisher(network.url) as publisher:
        publisher.publish("", orders, b"before")
        network.cut()

        with suppress(PublishUnknown):  # if the cut is noticed only when the message is on its way
            publisher.publish("", orders, b"during")
        publisher.publish("", orders, b"after")


def test_without_a_broker_it_says_so_and_tries_again_at_the_next_publish() -> None:
    with SyncPublisher(f"amqp://localhost:{free_port()}", patience=timedelta(milliseconds=20)) as publisher:
        for _ in range(2):
            with pytest.raises(ConnectionFailed, match="Connection refused"):
                publisher.publish("", "orders", b"")


def test_a_closed_publisher_says_so(publisher: SyncPublisher) -> None:
    publisher.close()

    with pytest.raises(Closed):
        publisher.publish("", "orders", b"")


async def test_a_forked_child_makes_a_connection_of_its_own(
    publisher: SyncPublisher, amqp_url: str, orders: str
) -> None:
    publisher.publish("", orders, b"parent")
    child = multiprocessing.get_context("fork").Process(target=publisher.publish, args=("", orders, b"child"))
    child.start()
    child.join(20)
    publisher.publish("", orders, b"parent again")

    assert child.exitcode == 0
    assert sorted(await bodies(amqp_url, orders)) == [b"child", b"parent", b"parent again"]


class _ThreadedProxy:
    """A FaultProxy with a loop of its own, since the tests here block."""

    def __init__(self, url: str) -> None:
        self._target = url

    def __enter__(self) -> "_ThreadedProxy":
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._proxy = self._call(self._start())
        self.url = self._proxy.url
        return self

    async def _start(self) -> FaultProxy:
        return await FaultProxy(self._target).__aenter__()

    async def _cut(self) -> None:
        self._proxy.cut()

    def cut(self) -> None:
        self._call(self._cut())

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(20)

    def __exit__(self, *_: object) -> None:
        self._call(self._proxy.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
