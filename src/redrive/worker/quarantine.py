"""The crash guard at work: quarantine queues, the lock that lets a message be handled alone, and the check of workers.

The decisions are in `recovery.admission` and `recovery.verdict`. What can die in between:

    before the copy is in quarantine     nothing has happened: the message is redelivered
    before the original is acked         two messages: one of them marked
    while the copy is handled            the quarantine queue returns it to the main queue, marked
    while a marked message is checked    it is redelivered from the main queue, still marked

A quarantine queue belongs to one worker. It is declared when the first redelivered message comes, so a system in which
nothing goes wrong has none. Its TTL is short and has no effect on messages that are being handled: the worker takes a
message from it at once, and an unacknowledged message does not expire. When the worker is gone, the broker requeues the
messages, their TTL is over, and they are dead-lettered to the main queue.

A worker that stops in order shows it, because messages that it lost with a connection may still be in the main queue,
marked: it deletes its quarantine queue; or, if a message may be on its way out of that queue, it leaves an empty queue
next to it. A quarantine queue without a consumer and without that sign is one of a worker that died.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta

from redrive.errors import ChannelClosed, ConnectionLost, NotFound, PublishRefused, RedriveError
from redrive.protocol.messages import Delivery
from redrive.recovery.admission import Mark, successor
from redrive.recovery.durations import duration
from redrive.recovery.history import HeaderNames
from redrive.recovery.verdict import Crashed, Disconnected, Ending, HandlerOutcome, RecoveryPolicy, decide
from redrive.topology.expansion import QueueLayout
from redrive.worker.clock import Clock, wait
from redrive.worker.consumer_spec import ConsumerSpec
from redrive.worker.ports import Subscription, WorkerBroker
from redrive.worker.settlement import FailedDelivery, VerdictExecutor, mark_of

log = logging.getLogger("redrive.worker")

_MARK = HeaderNames.QUARANTINE.encode()
_TTL = timedelta(seconds=5)
_LAST_ANSWERS = 5.0  # seconds that a worker that stops waits for a broker that may be unavailable
_POLL = 0.25  # seconds between two looks for a worker
# A quorum queue younger than about a second can lose confirmed messages if its node is killed.
_YOUNG_QUORUM_QUEUE = 1.5


class HandlerLock:
    """Lets any number of handlers of a worker run together, or one alone. First come, first served.

    Every handler takes it, so the common case costs two additions: `if lock.contended: await lock.wait()`, else
    `lock.running += 1`; and `lock.leave()` at the end.
    """

    __slots__ = ("_alone", "_waiting", "before_alone", "contended", "running")

    def __init__(self) -> None:
        self.running = 0
        self.before_alone: list[Callable[[], Awaitable[None]]] = []  # awaited before a handler runs alone
        self.contended = False  # a handler runs alone, or waits to do so
        self._alone = False
        self._waiting: deque[tuple[asyncio.Future[None], bool]] = deque()

    async def wait(self) -> None:
        """Wait for a turn next to others, and take it."""
        await self._wait_for_turn(alone=False)

    def leave(self) -> None:
        self.running -= 1
        if self.contended:
            self._alone = self._alone and self.running > 0
            self._grant()

    @asynccontextmanager
    async def shared(self) -> AsyncIterator[None]:
        await self.wait()
        try:
            yield
        finally:
            self.leave()

    @asynccontextmanager
    async def exclusive(self) -> AsyncIterator[None]:
        """Wait until no handler runs, and let none begin."""
        self.contended = True
        await self._wait_for_turn(alone=True)
        try:
            for prepare in self.before_alone:
                await prepare()
            yield
        finally:
            self.leave()

    async def _wait_for_turn(self, *, alone: bool) -> None:
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((granted, alone))
        self._grant()
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():
                self.leave()
            else:
                granted.cancel()
                self._grant()
            raise

    def _grant(self) -> None:
        while self._waiting and not self._alone:
            granted, alone = self._waiting[0]
            if not granted.done():
                if alone and self.running:
                    break
                self.running += 1
                self._alone = alone
                granted.set_result(None)
            self._waiting.popleft()
        self.contended = self._alone or bool(self._waiting)

    def __repr__(self) -> str:
        return f"<HandlerLock running={self.running}{' alone' * self._alone} waiting={len(self._waiting)}>"


class Quarantine:
    """The watched messages of one consumer."""

    def __init__(
        self,
        spec: ConsumerSpec,
        names: QueueLayout,
        settlement: VerdictExecutor,
        broker: WorkerBroker,
        clock: Clock,
        *,
        policy: RecoveryPolicy,
        worker: str,
        lock: HandlerLock,
        stopping: asyncio.Event,
    ) -> None:
        """`worker`: the identity of this worker. `lock`: that of its handlers. `stopping`: set when it begins to
        stop.
        """
        self._spec = spec
        self._policy = policy
        self._clock = clock
        self._names = names
        self._settlement = settlement
        self._broker = broker
        self._worker = worker
        self._lock = lock
        self._stopping = stopping
        self._grace = duration(spec.crash_grace)
        self._ttl = min(_TTL, self._grace)
        self._arrives_within = self._ttl.total_seconds() + 1  # or the copy is back in the main queue
        self._opening = asyncio.Lock()
        self._consuming: Subscription | None = None
        self._is_refused = False
        self._reconnects = 0  # of the connection, before it consumed the quarantine queue
        self._has_expired = False  # a message of the quarantine queue, before it arrived
        self._lookups: dict[str, asyncio.Task[bool]] = {}  # by the worker that is looked for
        self._number = 0
        self._arrivals: dict[int, asyncio.Future[Delivery]] = {}  # by the number of the mark

    # Entering -----------------------------------------------------------------------------------------

    async def enter(self, case: FailedDelivery, *, alone: bool) -> Delivery | None:
        """Move a delivery to quarantine, and return the copy to handle. None: it was given back. Where the broker
        refuses that, the delivery itself is returned: it is handled without the guard.
        """
        try:
            if not await self._open():
                return case.delivery
        except RedriveError as error:
            self._settlement.release(case, f"no quarantine: {error}", pause=True, moving=True)
            return None
        return await self._move(case, alone)

    async def _move(self, case: FailedDelivery, alone: bool) -> Delivery | None:
        self._number += 1
        number = self._number
        raw = self._settlement.marked_properties(case, Mark(self._worker, number, alone))
        if _MARK not in raw:
            self._settle(case, Ending.UNMARKABLE)
            return None
        arrival: asyncio.Future[Delivery] = asyncio.get_running_loop().create_future()
        self._arrivals[number] = arrival
        try:
            if not await self._settlement.quarantine(case, self._names.quarantine_name(self._worker), raw):
                return None
            await self._settlement.transfers.flush_acks()  # before a message is handled that may kill us
            async with self._clock.timeout(self._arrives_within):
                return await asyncio.shield(arrival)
        except PublishRefused as error:
            self._disable(error)
            return case.delivery
        except TimeoutError:
            self._has_expired = True
            self._settlement.report_release(case, "it did not come out of quarantine")
            return None
        except asyncio.CancelledError:
            if arrival.done():
                self._settlement.give_back(arrival.result())
            raise
        finally:
            self._arrivals.pop(number, None)

    async def _open(self) -> bool:
        """Declare and consume the quarantine queue, once. Whether that is permitted."""
        if self._consuming is None and not self._is_refused:
            async with self._opening:
                if self._consuming is None and not self._is_refused:
                    await self._declare()
        return not self._is_refused

    async def _declare(self) -> None:
        wanted = self._names.quarantine(self._worker, self._ttl)
        try:
            self._reconnects = self._broker.reconnects
            await self._broker.declare_queue(wanted.name, durable=True, arguments=wanted.arguments)
            if wanted.type == "quorum" and not self._names.server.embedded:
                await asyncio.sleep(_YOUNG_QUORUM_QUEUE)
                await self._broker.queue_info(wanted.name)  # waits for a connection
                if self._broker.reconnects != self._reconnects:
                    raise ConnectionLost(f"the connection was lost just after {wanted.name} was declared")
            self._settlement.quarantine_queue = wanted.name
            self._consuming = await self._broker.consume(
                wanted.name, self._on_arrival, prefetch=self._spec.prefetched, concurrency=1
            )
            self._settlement.transfers.consuming.append(self._consuming)
        except ChannelClosed as error:
            self._disable(error)
        except RedriveError:
            # Use another queue from now on. A quorum queue whose node was killed within about a second of its
            # declaration is declared again without an error, but never answers: a consumer waits for 65 s, a publisher
            # indefinitely (measured on RabbitMQ 3.10 and 4.0). Nothing was published to it yet. It is not deleted: a
            # deletion before it has a leader again can end all at-least-once dead-lettering of the node (3.10, 4.0).
            self._worker = successor(self._worker)
            raise

    def _disable(self, error: RedriveError) -> None:
        """Go on without the guard: to handle messages matters more."""
        self._is_refused = True
        queue = self._names.queue.name
        log.warning(
            "consumer of %s: messages that kill their worker are not recognised, because the broker refuses a queue. "
            "Allow this user to declare, read and write %s.quarantine.*, and to publish to the default exchange: %s",
            *(queue, queue, error),
        )

    async def _on_arrival(self, delivery: Delivery) -> None:
        mark = mark_of(delivery)
        arrival = self._arrivals.get(mark.number) if mark is not None and mark.worker == self._worker else None
        if arrival is not None and not arrival.done():
            arrival.set_result(delivery)
        else:  # its handler lost the connection, or stopped waiting
            self._settlement.give_back(delivery)

    # Checking -----------------------------------------------------------------------------------------

    def check(self, case: FailedDelivery, mark: Mark) -> None:
        """Find out, in the background, whether the worker that had begun this message died, and settle it."""
        self._settlement.transfers.spawn(self._check(case, mark))

    async def _check(self, case: FailedDelivery, mark: Mark) -> None:
        try:
            survived = mark.worker == self._worker or await self._survived(mark.worker)
            await self._lock.wait()  # a message that is handled alone may kill us in the middle of the transfer
        except RedriveError as error:
            self._settlement.release(case, f"its worker cannot be checked: {error}", pause=True, moving=True)
            return
        finally:
            if self._stopping.is_set() and not case.delivery.settled:
                case.delivery.nack(requeue=True)  # still marked: the next worker checks it
        try:
            if not case.delivery.settled:
                self._settle(case, Disconnected(mark.alone) if survived else Crashed(mark.alone))
        finally:
            self._lock.leave()

    def _settle(self, case: FailedDelivery, outcome: HandlerOutcome) -> None:
        self._settlement.settle(case, decide(outcome, case.history, self._policy, self._clock.now(), 0.0))

    async def _survived(self, worker: str) -> bool:
        """Whether a worker did not die: it is connected, or connects within the grace period, or stopped in order.
        Messages of one worker share a lookup.
        """
        lookup = self._lookups.get(worker)
        if lookup is None:
            lookup = self._lookups[worker] = asyncio.create_task(self._look_up(worker))
            lookup.add_done_callback(lambda _: self._lookups.pop(worker))
        return await asyncio.shield(lookup)

    async def _look_up(self, worker: str) -> bool:
        if await self._has_stopped(worker):
            return True
        clock = self._clock
        name, deadline = self._names.quarantine_name(worker), clock.monotonic() + self._grace.total_seconds()
        while not self._stopping.is_set():
            try:
                if (await self._broker.queue_info(name)).consumers:
                    return True
            except NotFound:
                return True  # a worker that stops in order deletes it, one that dies does not
            left = deadline - clock.monotonic()
            if left <= 0:
                return await self._has_stopped(worker)
            await wait(self._stopping, clock, min(_POLL, left))
        return False

    async def _has_stopped(self, worker: str) -> bool:
        """Whether a worker has left the sign that it stopped in order."""
        try:
            await self._broker.queue_info(self._names.stopped_worker(worker).name)
        except NotFound:
            return False
        return True

    # The end ------------------------------------------------------------------------------------------

    @property
    def unsettled(self) -> int:
        return self._consuming.unsettled if self._consuming is not None else 0

    async def close(self) -> None:
        """End the quarantine, and show that this worker stopped in order; unless a message in it is not settled, which
        then counts as one that its worker did not finish. What is left in it returns to the main queue.
        """
        for lookup in self._lookups.values():
            lookup.cancel()
        if self._consuming is None:
            return
        if self._consuming.unsettled:
            await self._consuming.abort()
            return
        await self._consuming.cancel()
        with suppress(RedriveError, TimeoutError):
            async with asyncio.timeout(_LAST_ANSWERS):
                await self._show_order()

    async def _show_order(self) -> None:
        queue = self._names.quarantine(self._worker, self._ttl)
        if (await self._broker.queue_info(queue.name)).messages or (queue.type == "quorum" and self._has_returned):
            sign = self._names.stopped_worker(self._worker)
            await self._broker.declare_queue(sign.name, durable=True, arguments=sign.arguments)
        else:
            await self._broker.delete_queue(queue.name)

    @property
    def _has_returned(self) -> bool:
        """Whether the queue may have returned a message. A quorum queue keeps one that it dead-letters until the main
        queue has it, and does not show it: deleted before that, it would take the message along.
        """
        restarts = self._consuming.restarts if self._consuming is not None else 0
        return self._has_expired or restarts > 0 or self._broker.reconnects != self._reconnects

    def __repr__(self) -> str:
        return f"<Quarantine {self._names.quarantine_name(self._worker)} watched={self.unsettled}>"
