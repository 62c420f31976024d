"""Play a scenario by a plan, and find all the plans there are.

    python -m simulation.playing retry die@17          one of them, with everything that is logged

A scenario prepares a world, says what a process does in it and when all is done, and judges the end. A process that
dies is followed by another. A plan is a list of mishaps: `die@17 late@23`.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
import sys
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from typing import ClassVar

from redrive.broker.broker import Broker
from redrive.broker.server import BrokerServer
from redrive.broker.storage.memory import MemoryJournal
from redrive.client import Connection, Delivery
from redrive.errors import ConnectionFailed, ConnectionLost
from simulation.stores import no_threads
from simulation.world import Life, Mishap, Plan, SimulatedClock, SimulatedLoop, Stuck

_LOOK = 0.05  # simulated seconds
_LONGEST = 900.0  # simulated seconds: long enough for every pause that grows
_LIVES = 5


class World:
    """A broker, and whatever is known about it."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self.loop = loop
        self.clock = SimulatedClock(loop)
        self.server = BrokerServer(Broker(journal=MemoryJournal(), clock=self.clock))

    @property
    def url(self) -> str:
        return self.server.url.replace("amqp://", "amqp://guest:guest@")

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        async with self.server:
            self.witness = Connection(self.url, name="witness")  # on which nothing goes wrong
            async with self.witness:
                yield

    async def take(self, queue: str) -> list[Delivery]:
        """All that is in a queue; it is empty then."""
        found = []
        while (delivery := await self.witness.get(queue)) is not None:
            found.append(delivery)
            delivery.ack()
        return found

    async def depth(self, queue: str) -> int:
        return (await self.witness.queue_info(queue)).messages


class Scenario(ABC):
    name: ClassVar[str]

    def __init__(self, world: World) -> None:
        self.world = world

    @abstractmethod
    async def prepare(self) -> None: ...

    @abstractmethod
    async def live(self, stop: asyncio.Event) -> None:
        """What a process does, until it is stopped or has nothing more to do."""

    @abstractmethod
    async def complete(self) -> bool:
        """Is all done that is to be done?"""

    @abstractmethod
    async def check(self, plan: Plan) -> None:
        """Whether nothing is lost, and everything else is as it must be after these mishaps."""


def play(kind: type[Scenario], plan: Plan) -> int:
    """How many steps it took. An `AssertionError` tells how to play it again."""
    try:
        with no_threads(), asyncio.Runner(loop_factory=SimulatedLoop) as runner:
            return runner.run(_play(kind, plan))
    except (Exception, ExceptionGroup) as error:
        error.add_note(f"python -m simulation.playing {kind.name} {told(plan)}")
        raise


async def _play(kind: type[Scenario], plan: Plan) -> int:
    random.seed(1)
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimulatedLoop)
    world = World(loop)
    async with world.open():
        scenario = kind(world)
        await scenario.prepare()
        loop.network.plan = plan
        async with asyncio.timeout(_LONGEST):
            await _live(scenario)
        steps, loop.network.plan = loop.network.steps, {}
        await scenario.check(plan)
    return steps


async def _live(scenario: Scenario) -> None:
    for _ in range(_LIVES):
        life, stop = Life(), asyncio.Event()
        task = life.begin(scenario.live(stop))
        watching = asyncio.create_task(_stop_when_complete(scenario, stop))
        dying = asyncio.create_task(life.died.wait())
        try:
            await asyncio.wait([task, dying, _failed(watching)], return_when=asyncio.FIRST_COMPLETED)
            if not life.dead:
                if watching.done():
                    watching.result()
                try:
                    await task
                except (ConnectionFailed, ConnectionLost):
                    continue  # it could not even begin, and said so: a supervisor starts another
                if await scenario.complete():
                    return
                if not stop.is_set():
                    raise Stuck("a process has ended by itself, and not all is done")
                # It was stopped when all seemed done; a message it had not acked yet came back: for another one.
        finally:
            for other in (watching, dying):
                other.cancel()
            await asyncio.gather(watching, dying, return_exceptions=True)
            await life.bury()
    raise Stuck(f"{_LIVES} processes have died")


def _failed(watching: asyncio.Task[None]) -> asyncio.Future[None]:
    """Done if it fails, and only then."""
    failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def look(_: object) -> None:
        if not watching.cancelled() and watching.exception() is not None and not failed.done():
            failed.set_result(None)

    watching.add_done_callback(look)
    return failed


async def _stop_when_complete(scenario: Scenario, stop: asyncio.Event) -> None:
    while not await scenario.complete():  # noqa: ASYNC110 - in simulated time
        await asyncio.sleep(_LOOK)
    stop.set()


# Plans ------------------------------------------------------------------------------------------------


def single_mishaps(steps: int) -> Iterator[Plan]:
    """One mishap, at every step."""
    for step, mishap in itertools.product(range(1, steps + 1), Mishap):
        yield {step: mishap}


def pairs_of_mishaps(steps: int, every: int = 1) -> Iterator[Plan]:
    """Two mishaps; of all these pairs every so manieth."""
    both = itertools.product(itertools.combinations(range(1, steps + 1), 2), Mishap, Mishap)
    for (first, second), one, another in itertools.islice(both, 0, None, every):
        yield {first: one, second: another}


def explore(kind: type[Scenario], plans: Iterable[Plan]) -> int:
    count = 0
    for plan in plans:
        play(kind, plan)
        count += 1
    return count


def told(plan: Plan) -> str:
    return " ".join(f"{mishap}@{step}" for step, mishap in plan.items())


def read(words: Iterable[str]) -> Plan:
    parts = (word.split("@") for word in words)
    return {int(step): Mishap(mishap) for mishap, step in parts}


if __name__ == "__main__":
    from simulation.scenarios import SCENARIOS

    logging.basicConfig(level=logging.DEBUG)
    wanted = next(kind for kind in SCENARIOS if kind.name == sys.argv[1])
    print(play(wanted, read(sys.argv[2:])), "steps")
