"""What a hold takes to be the end of a queue, and what it leaves when somebody ends it."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from dead_lettering import DLQ, eventually, prepare, until_depth
from redrive.client import Connection
from redrive.client.browser import QueueBrowser
from tests.support.proxy import FaultProxy

MANY = 4000  # so many that a hold takes them with several consumers, each with twice the room of the one before
SOON = 0.05  # seconds


async def taken(hold: QueueBrowser, patience: float = SOON) -> int:
    """All that come, as whoever moves or looks takes them."""
    while await hold.next(patience):
        pass
    return hold.taken


async def test_a_broker_that_is_slow_to_answer_is_no_queue_that_has_ended(
    connection: Connection, amqp_url: str
) -> None:
    await prepare(connection, MANY)
    async with FaultProxy(amqp_url) as network, Connection(network.url) as slow:
        hold = await QueueBrowser.open(slow, DLQ, at_most=MANY)
        await hold.next(10)
        network.stall("client")
        asyncio.get_running_loop().call_later(SOON * 10, network.resume)

        assert await taken(hold) == MANY
        assert await hold.release() == MANY


async def test_a_queue_of_which_others_took_the_rest_has_ended(connection: Connection, amqp_url: str) -> None:
    await prepare(connection, 5)
    async with Connection(amqp_url) as other, Connection(amqp_url) as own:
        first = await QueueBrowser.open(other, DLQ, at_most=2)
        async with asyncio.timeout(20):  # it has what it wanted, and does not wait for the rest
            assert await taken(first) == 2
        hold = await QueueBrowser.open(own, DLQ, at_most=5)

        assert await taken(hold) == 3
        assert (await hold.release(), await first.release()) == (3, 2)


async def test_a_consumer_that_was_full_before_it_had_its_place_makes_room_for_the_next(
    connection: Connection, amqp_url: str
) -> None:
    await prepare(connection, MANY)
    async with Connection(amqp_url) as own:
        hold = await QueueBrowser.open(own, DLQ, at_most=MANY)
        await eventually(lambda: hold._in_hand == hold._room)
        placing = hold._changing = asyncio.create_task(asyncio.sleep(0))
        await hold.next(10)  # all of it, while the consumer takes its place
        await placing
        hold._changing = None

        async with asyncio.timeout(20):
            assert await taken(hold) == MANY
        await hold.release()


class Interrupted(QueueBrowser):
    """One that goes no further than to a certain place."""

    place = ""
    arrived: asyncio.Event

    async def _consume(self, room: int) -> None:
        await super()._consume(room)
        await self._stop_at("consume")

    async def _wait_until_back(self, later: int) -> bool:
        await self._stop_at("back")
        return await super()._wait_until_back(later)

    async def _stop_at(self, place: str) -> None:
        if self.place == place:
            self.arrived.set()
            await asyncio.Event().wait()


async def interrupt(doing: Coroutine[Any, Any, Any], arrived: asyncio.Event) -> None:
    task = asyncio.create_task(doing)
    await arrived.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_hold_that_is_cancelled_before_it_is_there_keeps_nothing(connection: Connection, amqp_url: str) -> None:
    await prepare(connection, 5)
    Interrupted.place, Interrupted.arrived = "consume", asyncio.Event()
    async with Connection(amqp_url) as shared:
        await interrupt(Interrupted.open(shared, DLQ, at_most=5), Interrupted.arrived)

        await until_depth(connection, DLQ, 5)


async def test_a_release_that_is_cancelled_gives_everything_back_all_the_same(
    connection: Connection, amqp_url: str
) -> None:
    await prepare(connection, MANY)
    Interrupted.place, Interrupted.arrived = "back", asyncio.Event()
    async with Connection(amqp_url) as shared:
        hold = await Interrupted.open(shared, DLQ, at_most=MANY)
        assert await taken(hold, 10) == MANY
        await interrupt(hold.release(), Interrupted.arrived)

        await until_depth(connection, DLQ, MANY)
