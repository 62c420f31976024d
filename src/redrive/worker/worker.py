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
from redrive.worker.invocation import Invocation
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
        self,
        specs: Sequence[ConsumerSpec],
        consumes: WorkerBroker,
        publishes: TransferPublisher,
        context: WorkerContext,
    ) -> None:
        self.state = WorkerState.STARTING
        self._consumes = consumes
        self._context = context
        self._breakers: dict[str, Breaker] = {}
        self._lock = HandlerLock()
        self._stopping = asyncio.Event()
        self._outage = Outage(context.observer, context.clock)
        self._pipelines = {spec.queue.name: self._make_pipeline(spec, publishes) for spec in specs}
        self._batches = {
            name: Batching(pipeline, batch, self._prepare_handler(batch))
            for name, pipeline in self._pipelines.items()
            if (batch := pipeline.spec.batch) is not None
        }
        self._consuming: dict[str, Subscription] = {}  # by queue

    def _make_pipeline(self, spec: ConsumerSpec, publishes: TransferPublisher) -> DeliveryPipeline:
        context = self._context
        handler = self._make_handler(spec)
        names = QueueLayout(context.topology, spec.queue, context.server)
        settlement = VerdictExecutor(
            spec,
            names,
            publishes,
            context.observer,
            context.clock,
            app=context.app,
            host=context.host,
            budget=context.budget,
        )
        quorum = names.type == "quorum"
        policy = spec.recovery(keeps_failures=context.server.dead_letters_keep_failures(quorum=quorum))
        quarantine = None
        if spec.guards_against_crashes:
            quarantine = Quarantine(
                spec,
                names,
                settlement,
                self._consumes,
                context.clock,
                policy=policy,
                worker=context.worker,
                lock=self._lock,
                stopping=self._stopping,
            )
        return DeliveryPipeline(
            spec,
            handler,
            settlement,
            context.observer,
            context.clock,
            policy=policy,
            quorum=quorum,
            quarantine=quarantine,
            lock=self._lock,
            stopping=self._stopping,
            invocation=Invocation(spec, handler, context.clock, context.transactions, self._outage),
            breaker=self._breakers_of(spec),
        )

    def _make_handler(self, spec: ConsumerSpec) -> Handler:
        context = self._context
        return Handler(
            spec.function,
            codecs=context.codecs,
            given=context.given,
            session_types=context.session_types,
            threads=spec.batch.batchers if spec.batch is not None else spec.concurrency,
            processes=spec.processes,
            for_batches=spec.batch is not None,
            reads=spec.batch is None or spec.batch.prepare is None,
        )

    def _prepare_handler(self, batch: BatchSpec) -> Handler | None:
        if batch.prepare is None:
            return None
        context = self._context
        return Handler(batch.prepare, codecs=context.codecs, given=context.given, threads=batch.prepared_at_a_time)

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
        return Breakers(queue, found, self._context.observer, self._context.clock)

    async def start(self) -> None:
        if any(pipeline.invocation.is_transactional for pipeline in self._pipelines.values()):
            self._outage.observe()
        for name, pipeline in self._pipelines.items():
            batching = self._batches.get(name)
            options: dict[str, Any] = {
                "prefetch": pipeline.spec.prefetched,
                "finishing": batching.drain if batching is not None else pipeline.wait_until_settled,
                "aborting": batching.abort if batching is not None else pipeline.settlement.transfers.finish_moves,
                "intercept": pipeline.intercept,
            }
            if batching is not None:
                consuming = self._consumes.consume_many(name, batching, **options)
            else:
                consuming = self._consumes.consume(name, pipeline, concurrency=pipeline.spec.concurrency, **options)
            self._consuming[name] = await consuming
            pipeline.settlement.transfers.consuming.append(self._consuming[name])
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
        for pipeline in self._pipelines.values():
            await pipeline.close()
            pipeline.handler.close()
        for batching in self._batches.values():
            batching.close()
        self.state = WorkerState.STOPPED
        return finished

    @property
    def unsettled(self) -> dict[str, int]:
        """How many messages of each queue are here: being handled, gathered, or waiting after a failure."""
        return {queue: held.unsettled + self._pipelines[queue].watched for queue, held in self._consuming.items()}

    @property
    def problems(self) -> list[str]:
        """Why its consumers do not work, beyond their connection to the broker."""
        if self._outage.error is None or self.state is WorkerState.STOPPED:
            return []
        waiting = ", ".join(name for name, pipeline in self._pipelines.items() if pipeline.invocation.is_transactional)
        return [f"the database is unavailable, and consumers wait for it: {waiting}"]

    def limit_rate(self, queue: str, per_second: float) -> None:
        """Change a consumer's rate while it works."""
        self._pipelines[queue].limit_rate(per_second)

    def __repr__(self) -> str:
        return f"<Worker {self._context.app} {self.state.name} consumers={len(self._pipelines)}>"
