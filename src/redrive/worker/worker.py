"""All the consumers of an application at work, over one connection that consumes and one that hands messages over.

    STARTING -> RUNNING -> DRAINING -> STOPPED

Draining: no more deliveries are taken, what is being handled is finished and settled. What waits for a breaker or a
rate limit goes back to its queue; so does, cancelled, what is not done within the limit: handled again, never lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum, auto
from typing import Any

from redrive.recovery.breaker import Breaker
from redrive.topology.expansion import QueueLayout
from redrive.topology.model import Topology
from redrive.topology.snapshot import Server
from redrive.worker.batch_consumer import Batching
from redrive.worker.breakers import Breakers
from redrive.worker.clock import Clock
from redrive.worker.codecs import Codecs
from redrive.worker.consumer_spec import BatchSpec, ConsumerSpec
from redrive.worker.events import Observer
from redrive.worker.handlers import Handler
from redrive.worker.outage import Outage
from redrive.worker.pipeline import DeliveryPipeline
from redrive.worker.ports import Subscription, TransferPublisher, WorkerBroker
from redrive.worker.quarantine import HandlerLock, Quarantine
from redrive.worker.settlement import VerdictExecutor
from redrive.worker.transactions import Transactions

log = logging.getLogger("redrive.worker")


class WorkerState(Enum):
    STARTING = auto()
    RUNNING = auto()
    DRAINING = auto()
    STOPPED = auto()


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """What all consumers of a worker share."""

    topology: Topology
    server: Server
    app: str
    host: str
    codecs: Codecs
    clock: Clock
    observer: Observer
    given: Mapping[type, Any]  # what handlers' parameters of these types get
    budget: Callable[[], int]  # how large the properties of a message may be
    worker: str  # the identity of this worker: 12 hexadecimal digits
    transactions: Transactions | None = None  # where handlers find a database
    session_types: tuple[type, ...] = ()


class Worker:
    def __init__(
        self, specs: Sequence[ConsumerSpec], consumes: WorkerBroker, publishes: TransferPublisher, around: WorkerContext
    ) -> None:
        self.state = WorkerState.STARTING
        self._consumes = consumes
        self._around = around
        self._breakers: dict[str, Breaker] = {}
        self._lock = HandlerLock()
        self._stopping = asyncio.Event()
        self._outage = Outage(around.observer, around.clock)
        self._walks = {spec.queue.name: self._walk(spec, publishes) for spec in specs}
        self._batches = {
            name: Batching(walk, batch, self._prepare_handler(batch))
            for name, walk in self._walks.items()
            if (batch := walk.spec.batch) is not None
        }
        self._consuming: dict[str, Subscription] = {}  # by queue

    def _walk(self, spec: ConsumerSpec, publishes: TransferPublisher) -> DeliveryPipeline:
        around = self._around
        handler = Handler(
            spec.function,
            codecs=around.codecs,
            given=around.given,
            session_types=around.session_types,
            threads=spec.batch.batchers if spec.batch is not None else spec.concurrency,
            processes=spec.processes,
            for_batches=spec.batch is not None,
            reads=spec.batch is None or spec.batch.prepare is None,
        )
        names = QueueLayout(around.topology, spec.queue, around.server)
        settlement = VerdictExecutor(
            spec,
            names,
            publishes,
            around.observer,
            around.clock,
            app=around.app,
            host=around.host,
            budget=around.budget,
        )
        quorum = names.type == "quorum"
        policy = spec.recovery(keeps_failures=around.server.dead_letters_keep_failures(quorum=quorum))
        quarantine = None
        if spec.guards_against_crashes:
            quarantine = Quarantine(
                spec,
                names,
                settlement,
                self._consumes,
                around.clock,
                policy=policy,
                worker=around.worker,
                lock=self._lock,
                stopping=self._stopping,
            )
        return DeliveryPipeline(
            spec,
            handler,
            settlement,
            around.observer,
            around.clock,
            policy=policy,
            quorum=quorum,
            quarantine=quarantine,
            lock=self._lock,
            stopping=self._stopping,
            transactions=around.transactions,
            outage=self._outage,
            breaker=self._breakers_of(spec),
        )

    def _prepare_handler(self, batch: BatchSpec) -> Handler | None:
        if batch.prepare is None:
            return None
        around = self._around
        return Handler(batch.prepare, codecs=around.codecs, given=around.given, threads=batch.prepared_at_a_time)

    def _breakers_of(self, spec: ConsumerSpec) -> Breakers | None:
        """One for each consumer that wants one, or for each of its dependencies, which several may share."""
        policies = spec.breakers
        if not policies:
            return None
        queue = spec.queue.name
        found = {
            name or queue: self._breakers.setdefault(
                f"dependency {name}" if name is not None else f"queue {queue}", Breaker(policy)
            )
            for name, policy in policies.items()
        }
        return Breakers(queue, found, self._around.observer, self._around.clock)

    async def start(self) -> None:
        for name, walk in self._walks.items():
            batching = self._batches.get(name)
            options: dict[str, Any] = {
                "prefetch": walk.spec.prefetched,
                "finishing": batching.drained if batching is not None else walk.drained,
                "aborting": batching.abort if batching is not None else walk.settlement.transfers.finish_moves,
                "intercept": walk.intercept,
            }
            if batching is not None:
                consuming = self._consumes.consume_many(name, batching, **options)
            else:
                consuming = self._consumes.consume(name, walk, concurrency=walk.spec.concurrency, **options)
            self._consuming[name] = await consuming
            walk.settlement.transfers.consuming.append(self._consuming[name])
        self.state = WorkerState.RUNNING

    async def stop(self, within: timedelta = timedelta(seconds=30)) -> bool:
        """Drain. Whether everything was finished within the limit."""
        if self.state is WorkerState.STOPPED:
            return True
        self.state = WorkerState.DRAINING
        self._stopping.set()
        self._outage.stop()
        finished = True
        try:
            async with asyncio.timeout(within.total_seconds()):
                await asyncio.gather(*(consuming.cancel() for consuming in self._consuming.values()))
        except TimeoutError:
            finished = False
            log.warning("not finished within %s: what is left goes back to its queue", within)
            await asyncio.gather(*(consuming.abort() for consuming in self._consuming.values()))
        for walk in self._walks.values():
            await walk.close()
            walk.handler.close()
        for batching in self._batches.values():
            batching.close()
        self.state = WorkerState.STOPPED
        return finished

    @property
    def unsettled(self) -> dict[str, int]:
        """How many messages of each queue are here: being handled, gathered, or waiting after a failure."""
        return {queue: held.unsettled + self._walks[queue].watched for queue, held in self._consuming.items()}

    @property
    def problems(self) -> list[str]:
        """Why its consumers do not work, beyond their connection to the broker."""
        if self._outage.error is None or self.state is WorkerState.STOPPED:
            return []
        waiting = ", ".join(name for name, walk in self._walks.items() if walk.invocation.is_transactional)
        return [f"the database is unavailable, and consumers wait for it: {waiting}"]

    def limit_rate(self, queue: str, per_second: float) -> None:
        """Change a consumer's rate while it works."""
        self._walks[queue].limit_rate(per_second)

    def __repr__(self) -> str:
        return f"<Worker {self._around.app} {self.state.name} consumers={len(self._walks)}>"
