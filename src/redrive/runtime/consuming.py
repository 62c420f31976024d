"""A consumer at work: each delivery walks the same steps, and this file lists them.

    admit      may it be handled now? Breaker, rate limit, and the crash guard (`recovery.admission`)
    read       the body, as the type that the handler asks for
    handle     the handler, within its time limit and its middleware
    settle     ack; or decide, and carry the verdict out

A message that fails is settled beside the handling of the next one: a retry costs a publish and its confirm, and nobody
should wait for that (see `settling`).
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypeVar

from redrive.errors import ConfigurationError, RedriveError
from redrive.protocol.content import Delivery, ack_all
from redrive.recovery.admission import Admission, Mark, admit
from redrive.recovery.breaker import Breaker
from redrive.recovery.classification import PERMANENT, TRANSIENT, Classified, Kind, classify
from redrive.recovery.durations import duration
from redrive.recovery.failure import describe
from redrive.recovery.fingerprint import type_name
from redrive.recovery.history import HeaderNames, History, read_history
from redrive.recovery.rate import RateLimit
from redrive.recovery.retry import Route
from redrive.recovery.signals import Discard
from redrive.recovery.story import ParkReason
from redrive.recovery.verdict import Again, Bury, Drop, decide, wait
from redrive.runtime.batch import Batch
from redrive.runtime.breakers import Breakers
from redrive.runtime.clock import Clock
from redrive.runtime.codecs import Malformed
from redrive.runtime.handlers import Handler, HandlerDied
from redrive.runtime.message import Message, current_message
from redrive.runtime.observing import Observer
from redrive.runtime.outage import Outage
from redrive.runtime.quarantine import HandlerLock, Quarantine
from redrive.runtime.settling import Case, Settlement, mark_of
from redrive.runtime.specs import ConsumerSpec
from redrive.runtime.transactions import DatabaseUnavailable, NoMessageId, Transaction, Transactions
from redrive.topology.expansion import DELIVERY_LIMIT

log = logging.getLogger("redrive.runtime")

T = TypeVar("T")

_NOT_BEFORE = HeaderNames.NOT_BEFORE.encode()
_QUARANTINE = HeaderNames.QUARANTINE.encode()
_OURS = b"x-redrive-"  # with which both begin

GIVES_UP = (KeyboardInterrupt, SystemExit, GeneratorExit)  # the whole process, or a task that nobody waits for

# What is due later than this no handler asked for: a stranger wrote it, and it would go round for ever.
_FAR_ENOUGH = timedelta(days=31)


# Neither is an Exception: middleware that makes another error of everything that is one must not make one of these.


class AlreadyProcessed(BaseException):
    """It is a duplicate."""


class PartlyFailed(BaseException):
    """Some messages of a batch failed, by its handler's word or before that; the others must be done without them."""

    def __init__(self, failures: Mapping[int, BaseException]) -> None:
        super().__init__(f"{len(failures)} messages of a batch failed")
        self.failures = dict(failures)


class Walk:
    """The way of a consumer's deliveries, one by one."""

    def __init__(
        self,
        spec: ConsumerSpec,
        handler: Handler,
        settlement: Settlement,
        observer: Observer,
        clock: Clock,
        *,
        quorum: bool,
        keeps_failures: bool = False,
        quarantine: Quarantine | None = None,
        lock: HandlerLock | None = None,
        stopping: asyncio.Event | None = None,
        transactions: Transactions | None = None,
        outage: Outage | None = None,
        breaker: Breakers | None = None,
    ) -> None:
        """`quorum`: it is a quorum queue, where the broker counts deliveries. `keeps_failures`: the broker goes on
        counting those of a rejected message when it comes out of a retry queue. `quarantine`: the crash guard, if
        there is one. `lock`, `stopping` and `outage`, that of the database, are those of the whole worker.
        """
        self.spec = spec
        self.queue = spec.queue.name
        self.handler = handler
        self.settlement = settlement
        self.observer = observer
        self.clock = clock
        self.breaker = breaker
        self.rate = RateLimit(spec.rate) if spec.rate is not None else None
        self._timeout = duration(spec.timeout).total_seconds() if spec.timeout is not None else None
        self._policy = spec.retry
        self._counts_deliveries = quorum
        self._keeps_rejections = keeps_failures and self._policy.via is Route.REJECT
        self._is_gated = self.breaker is not None or self.rate is not None
        self._quarantine = quarantine
        self.lock = lock or HandlerLock()
        self.lock.before_alone.append(settlement.flush)
        self._stopping = stopping or asyncio.Event()
        self._inbox = spec.inbox_policy
        self._transactions = transactions
        self.outage = outage or Outage(observer)
        if (self._inbox is not None or handler.wants_session) and transactions is None:
            raise ConfigurationError(f"consumer of {self.queue}: an inbox or a session needs App(database=...)")
        self._is_plain = self._timeout is None and not spec.middleware and not self.is_transactional

    async def __call__(self, delivery: Delivery) -> None:
        """Walk. Raises only when cancelled, and then the delivery is given back."""
        self.observer.started(self.queue)
        try:
            if self.needs_admission(delivery):
                await self.admit(delivery, self._handle, self._handle)
                return
            lock = self.lock
            if lock.contended:
                await lock.wait()
            else:
                lock.running += 1
            try:
                await self._handle(delivery)
            finally:
                lock.leave()
        except asyncio.CancelledError:  # before the handler began, as a rule
            if not delivery.settled and not self.settlement.is_moving(delivery):
                delivery.nack(requeue=True)
            raise

    async def _handle(self, delivery: Delivery) -> None:
        clock = self.clock.monotonic
        began = [clock()]  # of the last attempt: a list is cheaper here than a closure
        message = Message(delivery, self.queue, self.read_history)
        try:
            body = self.handler.read(delivery.body, delivery.raw_properties)
        except Malformed as error:
            self.bury(delivery, error, ParkReason.MALFORMED)
            return
        current_message.set(message)
        try:
            if self._is_plain:
                if (result := await self.handler.call(body, message)) is not None:
                    await self.handler.finish(result)
            else:
                await self.ride_out(partial(self._attempt, body, message, began))
        except AlreadyProcessed:
            self.skip(delivery)
        except DatabaseUnavailable:  # and the worker stops
            self.release(delivery)
        except GIVES_UP:
            raise
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and is_cancelled():
                self.settlement.release(delivery, self.read_history(delivery), clock() - began[0])
                self._said_nothing()
                raise
            self.failed(delivery, error, clock() - began[0])
        else:
            self.succeeded(delivery, clock() - began[0])

    async def _attempt(self, body: Any, message: Message, began: list[float]) -> None:
        began[0] = self.clock.monotonic()
        await self.within_limits(lambda: self._call(body, message), (message,))

    async def ride_out(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do the work, and repeat it after an outage of the database, if it has a transaction."""
        if not self.is_transactional:
            return await work()
        if self.spec.database_outage == "wait":
            return await self.outage.ride_out(work)
        try:
            return await work()
        except DatabaseUnavailable as unavailable:
            raise (unavailable.__cause__ or OSError(str(unavailable))) from None

    async def within_limits(self, work: Callable[[], Awaitable[T]], messages: Sequence[Message]) -> T:
        """The handler's work, within its time limit and its middleware."""
        async with asyncio.timeout(self._timeout), AsyncExitStack() as stack:
            for middleware in self.spec.middleware:
                for message in messages:
                    await stack.enter_async_context(middleware(message))
            return await work()

    @property
    def is_transactional(self) -> bool:
        return self._inbox is not None or self.handler.wants_session

    async def _call(self, body: Any, message: Message) -> None:
        """The handler, in a transaction if it wants one. Commits before the message is acknowledged."""
        if self._transactions is None or not self.is_transactional:
            await self.handler.finish(await self.handler.call(body, message))
            return
        identity = self._inbox.identity(body, message) if self._inbox is not None else None
        async with self.outage.transaction(self._transactions, blocking=not self.handler.is_async) as transaction:
            if identity is None:
                await self._connect(transaction)
            elif not await transaction.note(self.queue, [identity]):
                raise AlreadyProcessed
            await self.handler.finish(await self.handler.call(body, message, transaction.session))

    async def call_with_batch(self, batch: Batch[Any]) -> frozenset[int]:
        """The handler for many, in one transaction if it wants one. Gives the positions of those that were processed
        before, or are in the batch twice: the handler does not see them.
        """
        if self._transactions is None or not self.is_transactional:
            await self.handler.finish(await self.handler.call_with_batch(batch))
            return frozenset()
        batch.failures.clear()  # of a call before this one that an outage ended
        async with self.outage.transaction(self._transactions, blocking=not self.handler.is_async) as transaction:
            known = await self._known(batch, transaction)
            unknown = [position for position in range(len(batch)) if position not in known]
            fresh = batch.part(unknown)
            if unknown:
                await self.handler.finish(await self.handler.call_with_batch(fresh, transaction.session))
            for position, error in fresh.failures.items():
                batch.failures[unknown[position]] = error
            if batch.failures:
                # What failed must not be noted as processed: without it, once more.
                raise PartlyFailed(batch.failures)
        return known

    async def _connect(self, transaction: Transaction) -> None:
        """Begin in the database before the handler does, to find out whether it is available: an error after that may
        be the handler's. Where outages are failures, the handler meets them itself.
        """
        if self.spec.database_outage == "wait":
            await transaction.connect()

    async def _known(self, batch: Batch[Any], transaction: Transaction) -> frozenset[int]:
        if self._inbox is None:
            await self._connect(transaction)
            return frozenset()
        firsts: dict[str, int] = {}
        known = set()
        for position, item in enumerate(batch.items):
            try:
                identity = self._inbox.identity(item.body, item.message)
            except Exception as error:
                batch.failures[position] = error
                continue
            if identity is not None and firsts.setdefault(identity, position) != position:
                known.add(position)
        if batch.failures:
            raise PartlyFailed(batch.failures)
        fresh = await transaction.note(self.queue, list(firsts))
        return frozenset(known | {position for identity, position in firsts.items() if identity not in fresh})

    def succeeded(self, delivery: Delivery, seconds: float = 0.0) -> None:
        delivery.ack()
        self.observer.done(self.queue, seconds)
        if self.spec.for_dead_letters:
            self.settlement.went_well()
        if self.breaker is not None:
            self.breaker.succeeded()

    def all_succeeded(self, deliveries: Sequence[Delivery]) -> None:
        """Those of a batch."""
        ack_all(deliveries)
        for _ in deliveries:
            self.observer.done(self.queue, 0.0)
        if self.spec.for_dead_letters:
            self.settlement.went_well()
        if self.breaker is not None:
            for _ in deliveries:
                self.breaker.succeeded()

    def skip(self, delivery: Delivery) -> None:
        """It was processed before."""
        self.settlement.skip(delivery, self.read_history(delivery))
        self._said_nothing()

    def release(self, delivery: Delivery) -> None:
        """Give it back unhandled: the database is unavailable, and the worker stops."""
        self.settlement.release(delivery, self.read_history(delivery), 0.0, "the database is unavailable")
        self._said_nothing()

    def _said_nothing(self) -> None:
        """About what the breaker watches: if this was a probe, another one is needed."""
        if self.breaker is not None:
            self.breaker.inconclusive()

    # Failures -----------------------------------------------------------------------------------------

    def failed(self, delivery: Delivery, error: BaseException, seconds: float = 0.0) -> None:
        """Decide what becomes of it, and have that carried out."""
        now = self.clock.now()
        history = self.read_history(delivery)
        if self.spec.for_dead_letters:
            self._failed_as_dead_letter(Case(delivery, history, describe(error, now), error, seconds))
            return
        if isinstance(error, HandlerDied) and self._quarantine is not None:
            self._said_nothing()
            self._quarantine.settle_crash(Case(delivery, history, describe(error, now), error, seconds))
            return
        classified = self._classified(error, now)
        verdict = decide(classified, history, self._policy, now, random.random())
        if self.breaker is not None:
            may_pass = classified.kind is Kind.TRANSIENT
            self.breaker.failed([one for one in self.breaker if may_pass and self._blames(one, error)])
        failure = describe(error, now, stack=isinstance(verdict, Bury))
        self.settlement.settle(Case(delivery, history, failure, error, seconds), verdict)

    def _classified(self, error: BaseException, now: datetime) -> Classified:
        if isinstance(error, NoMessageId):
            return PERMANENT
        try:
            return classify(error, self._policy, now)
        except Exception as bug:
            self.has_no_answer("may this error pass", error, "it is tried again", bug)
            return TRANSIENT

    def _blames(self, breaker: Breaker, error: BaseException) -> bool:
        try:
            return breaker.blames(error)
        except Exception as bug:
            self.has_no_answer("does this error trip the breaker", error, "it does not", bug)
            return False

    def has_no_answer(self, question: str, error: BaseException, then: str, bug: Exception) -> None:
        """A function in the settings, or something in the error itself, failed when it was asked about a failure. The
        message must not suffer for that.
        """
        name = type_name(error)
        log.error("consumer of %s: %s, %s? Nobody can say, so %s", self.queue, question, name, then, exc_info=bug)

    def _failed_as_dead_letter(self, case: Case) -> None:
        """There is no other place for it than where it is, unless its handler is done with it for good."""
        if isinstance(case.error, Discard):
            self.settlement.settle(case, Drop())
        else:
            self.settlement.postpone(case, "failed as a dead letter")

    def bury(self, delivery: Delivery, error: BaseException, reason: ParkReason) -> None:
        failure = describe(error.__cause__ or error, self.clock.now())
        case = Case(delivery, self.read_history(delivery), failure, error)
        self._said_nothing()
        if self.spec.for_dead_letters:
            self.settlement.postpone(case, "failed as a dead letter")
        else:
            self.settlement.settle(case, Bury(reason))

    def read_history(self, delivery: Delivery) -> History:
        try:
            headers = delivery.properties.headers or {}
        except RedriveError:  # a publisher's client wrote nonsense
            headers = {}
        return read_history(
            headers,
            self.queue,
            count_header=self.spec.headers.attempts,
            via_reject=self._policy.via is Route.REJECT,
            delivery_count=self._policy.via is Route.QUORUM and delivery.redelivered,  # else a producer wrote it
        )

    # Admission ----------------------------------------------------------------------------------------

    @property
    def is_gated(self) -> bool:
        """Whether every delivery waits for a breaker or a rate limit."""
        return self._is_gated

    def needs_admission(self, delivery: Delivery) -> bool:
        """Whether anything must be decided before it is handled. For most deliveries nothing is."""
        raw = delivery.raw_properties
        return delivery.redelivered or self._is_gated or (_OURS in raw and (_NOT_BEFORE in raw or _QUARANTINE in raw))

    async def admit(
        self,
        delivery: Delivery,
        handle: Callable[[Delivery], Awaitable[None]],
        handle_alone: Callable[[Delivery], Awaitable[None]],
    ) -> None:
        """Pass a delivery, or the copy that takes its place, to `handle` next to other handlers, or to `handle_alone`
        while no other handler of this worker runs; or settle it in another way.
        """
        if self._is_gated and not await self._pass_gates():
            delivery.nack(requeue=True)
            return
        if _NOT_BEFORE in delivery.raw_properties and self._is_early(delivery):
            self._said_nothing()
            return
        admission, mark = self._admission(delivery)
        if admission is Admission.HANDLE or self._quarantine is None:
            async with self.lock.shared():
                await handle(delivery)
            return
        case = Case(delivery, self.read_history(delivery), None, None)
        match admission:
            case Admission.WATCH:
                async with self.lock.shared():  # nothing is moved while a message is handled alone
                    if await self._watch(case, handle, alone=False):
                        return
            case Admission.WATCH_ALONE:
                async with self.lock.alone():
                    if await self._watch(case, handle_alone, alone=True):
                        await self.settlement.flush()
                        return
            case Admission.CHECK_WORKER:
                assert mark is not None
                self._quarantine.check(case, mark)
            case Admission.REJECT:
                delivery.reject(requeue=False)
        self._said_nothing()

    async def _watch(self, case: Case, handle: Callable[[Delivery], Awaitable[None]], *, alone: bool) -> bool:
        """Move a delivery to quarantine and handle the copy. Returns whether there is one."""
        assert self._quarantine is not None
        if (watched := await self._quarantine.enter(case, alone=alone)) is None:
            return False
        try:
            await handle(watched)
        except asyncio.CancelledError:
            self.release_watched([watched])
            raise
        return True

    def _admission(self, delivery: Delivery) -> tuple[Admission, Mark | None]:
        mark = mark_of(delivery)
        return admit(mark, redelivered=delivery.redelivered and not self._was_rejected(delivery)), mark

    def _was_rejected(self, delivery: Delivery) -> bool:
        """Whether a delivery counts as redelivered only because it was rejected into its retry queue. On a classic
        queue that is as much as can be seen: after a first rejection, redeliveries are not noticed.
        """
        if not self._keeps_rejections:
            return False
        rejections = self.read_history(delivery).failed
        if self._counts_deliveries:
            return rejections >= self._deliveries(delivery)
        return rejections > 0

    @property
    def intercept(self) -> Callable[[Delivery], bool] | None:
        """Gets redelivered messages when they arrive; None where there is nothing to do then. An explicit delivery
        limit is left to the broker.
        """
        counted = self._counts_deliveries and self._quarantine is not None and self.spec.queue.delivery_limit is None
        return self._renew if counted and self._policy.via is not Route.REJECT else None

    def _renew(self, delivery: Delivery) -> bool:
        """Put a fresh copy of a message in its place that a quorum queue has delivered often. Deploys and lost
        connections count towards the queue's delivery limit, at which the broker gives a message up. Returns whether
        that is being done.
        """
        if self._deliveries(delivery) < DELIVERY_LIMIT // 2 or self._stopping.is_set():
            return False
        case = Case(delivery, self.read_history(delivery), None, None)
        self.settlement.requeue(case, mark_of(delivery), "redelivered often")
        return True

    @staticmethod
    def _deliveries(delivery: Delivery) -> int:
        """How often a quorum queue has delivered it before. At the first time the count is a producer's."""
        if not delivery.redelivered:
            return 0
        try:
            count = (delivery.properties.headers or {}).get("x-delivery-count", 0)
        except RedriveError:
            return 0
        return count if isinstance(count, int) else 0

    def _is_early(self, delivery: Delivery) -> bool:
        """Somebody asked for more time than the rungs have: send it round again, without an attempt used."""
        history, now = self.read_history(delivery), self.clock.now()
        if history.not_before is None or not now < history.not_before <= now + _FAR_ENOUGH:
            return False
        verdict = wait(self._policy, history.not_before - now, now, counts=False)
        if verdict is None:
            return False
        verdict = Again(verdict.rung, history.not_before, counts=False)
        self.settlement.settle(Case(delivery, history, None, None), verdict)
        return True

    async def _pass_gates(self) -> bool:
        """Wait until the breaker and the rate limit let a message pass. Meanwhile it stays unsettled, and with it the
        prefetch is used up: the broker sends no more, and nothing counts as an attempt. False: nobody is to wait here
        any more.
        """
        clock = self.clock.monotonic
        while self.rate is not None and (pause := self.rate.take(clock())) > 0:
            if not await self._wait_at_gates(pause):
                return False
        while self.breaker is not None and (pause := self.breaker.pause()) > 0:
            if not await self._wait_at_gates(min(pause, 1.0)):  # somebody else's probe may have ended it
                return False
        return True

    async def _wait_at_gates(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            return True
        return False

    def limit_rate(self, per_second: float) -> None:
        if self.rate is None:
            self.rate = RateLimit(per_second)
            self._is_gated = True
        else:
            self.rate.change(self.clock.monotonic(), per_second)

    # The end ------------------------------------------------------------------------------------------

    async def drained(self) -> None:
        """Wait for what is being settled."""
        await self.settlement.drained()

    def release_watched(self, deliveries: Iterable[Delivery]) -> None:
        """Give back what came out of quarantine. The others go back with their channel."""
        for delivery in deliveries:
            if not delivery.settled and self.settlement.is_quarantined(delivery):
                self.settlement.give_back(delivery)

    async def close(self) -> None:
        """End what is still being settled, and the quarantine."""
        await self.settlement.close()
        if self._quarantine is not None:
            await self._quarantine.close()

    @property
    def watched(self) -> int:
        """How many deliveries are in quarantine."""
        return self._quarantine.unsettled if self._quarantine is not None else 0

    def __repr__(self) -> str:
        return f"<Walk {self.queue} {self.handler!r} settling={self.settlement.under_way}>"


def is_cancelled() -> bool:
    """Is it this task that somebody wants to end? A handler that awaits what was cancelled has only failed."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def limit_of(spec: ConsumerSpec) -> timedelta | None:
    """How long a handler may take: the broker's consumer timeout must be longer."""
    return duration(spec.timeout) if spec.timeout is not None else None
