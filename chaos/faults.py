"""What happens while the work is done. A fault strikes, lasts, and is over; then the world is whole again.

`strike` returns when it is. What it does in between depends on a `Random` of the run's seed alone.
"""

from __future__ import annotations

import asyncio
import signal
from abc import ABC, abstractmethod
from datetime import timedelta
from random import Random
from typing import TYPE_CHECKING, ClassVar

from chaos import partition
from chaos.brokers import Broker, Node, Nodes
from chaos.work import HEARTBEAT, QUEUE

if TYPE_CHECKING:
    from chaos.scene import Scene


class Fault(ABC):
    name: ClassVar[str]
    title: ClassVar[str]
    network: ClassVar[bool] = False  # it needs a network that can be broken
    database: ClassVar[bool] = False  # effects are rows
    clocks: ClassVar[bool] = False  # the workers' clocks can be set
    strikes: ClassVar[int] = 3

    @abstractmethod
    async def strike(self, scene: Scene, chance: Random) -> None: ...

    def possible_on(self, broker: Broker) -> bool:
        return not isinstance(broker, Nodes)


FAULTS: dict[str, Fault] = {}


def fault(kind: type[Fault]) -> type[Fault]:
    FAULTS[kind.name] = kind()
    return kind


# The broker ---------------------------------------------------------------------------------------


@fault
class KillBroker(Fault):
    name, title = "kill-broker", "broker: `kill -9`, started again"

    async def strike(self, scene: Scene, chance: Random) -> None:
        await asyncio.to_thread(scene.broker.kill)
        await asyncio.sleep(chance.uniform(0, 2))
        await asyncio.to_thread(scene.broker.start)


@fault
class RestartBroker(Fault):
    name, title = "restart-broker", "broker: restarted in order"

    async def strike(self, scene: Scene, chance: Random) -> None:  # noqa: ARG002
        await asyncio.to_thread(scene.broker.restart)


@fault
class Alarm(Fault):
    name, title = "alarm", "broker: memory alarm, publishers are blocked"

    def possible_on(self, broker: Broker) -> bool:
        return isinstance(broker, Node)

    async def strike(self, scene: Scene, chance: Random) -> None:
        assert isinstance(scene.broker, Node)
        await asyncio.to_thread(scene.broker.raise_alarm)
        await asyncio.sleep(chance.uniform(2, 6))
        await asyncio.to_thread(scene.broker.clear_alarm)


@fault
class DeleteQueue(Fault):
    """What is in a queue goes with it, so it is deleted when it is empty: will anybody consume from the next one?"""

    name, title = "delete-queue", "queue deleted under its consumers, and made again"
    strikes = 2

    async def strike(self, scene: Scene, chance: Random) -> None:  # noqa: ARG002
        async with scene.nobody_publishes():
            await scene.until_settled()
            async with scene.direct() as connection:
                await connection.delete_queue(QUEUE)
            await asyncio.sleep(1)
            await scene.declare()


# The network --------------------------------------------------------------------------------------


@fault
class Cut(Fault):
    name, title, network = "cut", "network: connections reset", True
    strikes = 5

    async def strike(self, scene: Scene, chance: Random) -> None:  # noqa: ARG002
        scene.network.cut()


@fault
class Unauthenticated(Fault):
    name, title, network = "refuse", "network: connections reset, and refused for a while", True

    async def strike(self, scene: Scene, chance: Random) -> None:
        scene.network.refuse()
        scene.network.cut()
        await asyncio.sleep(chance.uniform(1, 4))
        await scene.network.accept()


@fault
class Stall(Fault):
    name, title, network = "stall", "network: stalls for less than the heartbeat, goes on", True

    async def strike(self, scene: Scene, chance: Random) -> None:
        scene.network.stall()
        await asyncio.sleep(chance.uniform(1, HEARTBEAT - 1))
        scene.network.resume()


@fault
class HalfOpen(Fault):
    """Nobody is told of the end: only silence tells. What was sent meanwhile has reached nobody."""

    name, title, network = "half-open", "network: half open, one side is gone without a word", True
    strikes = 2

    async def strike(self, scene: Scene, chance: Random) -> None:
        scene.network.stall("client" if chance.random() < 0.5 else "server")
        await asyncio.sleep(HEARTBEAT * 3)
        scene.network.cut()
        scene.network.resume()


@fault
class Slow(Fault):
    name, title, network = "slow", "network: slow lines", True

    async def strike(self, scene: Scene, chance: Random) -> None:
        scene.network.delay = timedelta(milliseconds=chance.randrange(20, 120))
        await asyncio.sleep(3)
        scene.network.delay = timedelta(0)


@fault
class Truncate(Fault):
    name, title, network = "truncate", "network: streams end within a frame", True
    strikes = 5

    async def strike(self, scene: Scene, chance: Random) -> None:
        scene.network.truncate_after(chance.randrange(1, 4000), "client" if chance.random() < 0.5 else "server")
        await asyncio.sleep(0.5)


# The workers --------------------------------------------------------------------------------------


@fault
class KillWorker(Fault):
    name, title = "kill-worker", "worker: `kill -9`, replaced"
    strikes = 5

    def possible_on(self, broker: Broker) -> bool:  # noqa: ARG002
        return True

    async def strike(self, scene: Scene, chance: Random) -> None:  # noqa: ARG002
        await asyncio.to_thread(scene.replace_worker, signal.SIGKILL)


@fault
class StopWorker(Fault):
    name, title = "term-worker", "worker: SIGTERM during work, replaced"

    async def strike(self, scene: Scene, chance: Random) -> None:  # noqa: ARG002
        await asyncio.to_thread(scene.replace_worker, signal.SIGTERM)


@fault
class FreezeWorker(Fault):
    """Longer than the heartbeat: the broker gives its messages to others, and it wakes up with them in its hands."""

    name, title = "freeze-worker", "worker: SIGSTOP for longer than the heartbeat, SIGCONT"
    strikes = 2

    async def strike(self, scene: Scene, chance: Random) -> None:  # noqa: ARG002
        worker = scene.workers[0]
        scene.signal(worker, signal.SIGSTOP)
        await asyncio.sleep(HEARTBEAT * 2.5)
        scene.signal(worker, signal.SIGCONT)


@fault
class ClockJumps(Fault):
    name, title, clocks = "clock", "worker: its clock jumps by hours, both ways", True

    async def strike(self, scene: Scene, chance: Random) -> None:
        scene.set_clocks(chance.choice(("+3h", "-3h", "+1d", "-20m")))
        await asyncio.sleep(1)


# The database -------------------------------------------------------------------------------------


@fault
class RestartDatabase(Fault):
    name, title, database = "restart-database", "database: restarted", True

    async def strike(self, scene: Scene, chance: Random) -> None:  # noqa: ARG002
        await asyncio.to_thread(scene.postgres.restart)


@fault
class CutDatabase(Fault):
    name, title, database = "cut-database", "database: its connections are ended", True
    strikes = 5

    async def strike(self, scene: Scene, chance: Random) -> None:  # noqa: ARG002
        await asyncio.to_thread(scene.end_database_connections)


# A cluster ----------------------------------------------------------------------------------------


class _OfACluster(Fault):
    def possible_on(self, broker: Broker) -> bool:
        return isinstance(broker, Nodes)


@fault
class KillLeader(_OfACluster):
    name, title = "kill-leader", "cluster: the node that leads the queue is killed, and comes back"

    async def strike(self, scene: Scene, chance: Random) -> None:
        assert isinstance(scene.broker, Nodes)
        leader = await asyncio.to_thread(scene.broker.leader_of, QUEUE, scene.url)
        await asyncio.to_thread(leader.kill)
        await asyncio.sleep(chance.uniform(1, 4))
        await asyncio.to_thread(leader.start)


@fault
class KillFollower(_OfACluster):
    name, title = "kill-follower", "cluster: another node is killed, and comes back"

    async def strike(self, scene: Scene, chance: Random) -> None:
        assert isinstance(scene.broker, Nodes)
        leader = await asyncio.to_thread(scene.broker.leader_of, QUEUE, scene.url)
        other = chance.choice([node for node in scene.broker.cluster.nodes if node is not leader])
        await asyncio.to_thread(other.kill)
        await asyncio.sleep(chance.uniform(1, 4))
        await asyncio.to_thread(other.start)


@fault
class RollingRestart(_OfACluster):
    name, title = "rolling-restart", "cluster: its nodes are restarted one after the other"
    strikes = 1

    async def strike(self, scene: Scene, chance: Random) -> None:  # noqa: ARG002
        await asyncio.to_thread(scene.broker.restart)


@fault
class Partition(_OfACluster):
    """The node that leads the queue hears nothing of the others, and they nothing of it, until they do again."""

    name, title = "partition", "cluster: the network between the nodes is cut, and mended"
    strikes = 2

    def possible_on(self, broker: Broker) -> bool:
        return super().possible_on(broker) and partition.possible()

    async def strike(self, scene: Scene, chance: Random) -> None:
        assert isinstance(scene.broker, Nodes)
        leader = await asyncio.to_thread(scene.broker.leader_of, QUEUE, scene.url)
        await asyncio.to_thread(partition.isolate, leader, scene.broker.cluster.nodes)
        try:
            await asyncio.sleep(partition.TICK_TIME * 1.5 + chance.uniform(1, 5))
        finally:
            await asyncio.to_thread(partition.heal)
