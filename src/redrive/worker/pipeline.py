"""The pipeline of a consumer: each delivery passes through the same steps, and this file lists them.

    admit      may it be handled now? Breaker and rate limit; then `recovery.admission` decides
    read       the body, as the type that the handler asks for
    handle     the handler, within its time limit and its middleware (`invocation`)
    settle     ack; or `recovery.verdict` decides, and `settlement` performs the verdict

A message that fails is settled while the next one is handled: a retry costs a publish and its confirm, and no other
message waits for that (see `transfers`).
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import datetime

from redrive.errors import RedriveError
from redrive.protocol.messages import Delivery, ack_all
from redrive.recovery.admission import Arrival, CheckWorker, Handle, Reject, Watch, admit
from redrive.recovery.breaker import Breaker
from redrive.recovery.classification import PERMANENT, TRANSIENT, Classified, FailureKind, classify
from redrive.recovery.failure import describe
from redrive.recovery.fingerprint import type_name
from redrive.recovery.history import HeaderNames, History, read_history
from redrive.recovery.rate_limiter import RateLimit
from redrive.recovery.retry import RetryRoute
from redrive.recovery.verdict import (
    Crashed,
    CrashGuard,
    Ending,
    HandlerOutcome,
    ParkVerdict,
    RecoveryPolicy,
    Verdict,
    decide,
)
from redrive.topology.expansion import DELIVERY_LIMIT
from redrive.worker.breakers import Breakers
from redrive.worker.cancellation import ends_task
from redrive.worker.clock import Clock, wait
from redrive.worker.codecs import Malformed
from redrive.worker.consumer_spec import ConsumerSpec
from redrive.worker.events import Observer
from redrive.worker.handlers import Handler, HandlerDied
from redrive.worker.invocation import AlreadyProcessed, Invocation
from redrive.worker.message import Message, current_message
from redrive.worker.outage import Outage
from redrive.worker.quarantine import HandlerLock, Quarantine
from redrive.worker.settlement import FailedDelivery, VerdictExecutor, mark_of
from redrive.worker.transactions import DatabaseLost, NoMessageId

log = logging.getLogger("redrive.worker")

_NOT_BEFORE = HeaderNames.NOT_BEFORE.encode()
_QUARANTINE = HeaderNames.QUARANTINE.encode()
_OURS = b"x-redrive-"  # with which both begin


class DeliveryPipeline:
    """The pipeline of one consumer's deliveries."""

    def __init__(
        self,
        spec: ConsumerSpec,
        handler: Handler,
        settlement: VerdictExecutor,
        observer: Observer,
        clock: Clock,
        *,
        policy: RecoveryPolicy,
        quorum: bool,
        quarantine: Quarantine | None = None,
        lock: HandlerLock | None = None,
        stopping: asyncio.Event | None = None,
        invocation: Invocation | None = None,
        breaker: Breakers | None = None,
    ) -> None:
        """`quorum`: it is a quorum queue, where the broker counts deliveries. `quarantine`: the crash guard, if
        there is one. `lock` and `stopping` are those of the whole worker. `invocation`: None is one without a database.
        """
        self.spec = spec
        self.queue = spec.queue.name
        self.handler = handler
        self.settlement = settlement
        self.observer = observer
        self.clock = clock
        self.breaker = breaker
        self.rate = RateLimit(spec.rate) if spec.rate is not None else None
        self.is_gated = breaker is not None or self.rate is not None  # every delivery waits for one of them
        self._policy = policy
        self._via = policy.retry.via
        self._counts_deliveries = quorum
        self._quarantine = quarantine
        self.lock = lock or HandlerLock()
        self.lock.before_alone.append(settlement.transfers.flush)
        self._stopping = stopping or asyncio.Event()
        self.invocation = invocation or Invocation(spec, handler, clock, None, Outage(observer, clock))
        self._is_plain = self.invocation.is_plain

    async def __call__(self, delivery: Delivery) -> None:
        """Process a delivery. Raises only when cancelled, and then the delivery is given back."""
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
            if not delivery.settled and not self.settlement.transfers.is_moving(delivery):
                delivery.nack(requeue=True)
            raise

    async def _handle(self, delivery: Delivery) -> None:
        clock = self.clock.monotonic
        began = [clock()]  # of the last attempt: a list is cheaper here than a closure
        message = Message(delivery, self.queue, self.read_history)
        try:
            body = self.handler.read(delivery.body, delivery.raw_properties)
        except Malformed as error:
            self.settle_malformed(delivery, error)
            return
        current_message.set(message)
        try:
            if self._is_plain:
                if (result := await self.handler.call(body, message)) is not None:
                    await self.handler.finish(result)
            else:
                await self.invocation.call(body, message, began)
        except AlreadyProcessed:
            self.settle_ending(delivery, Ending.DUPLICATE)
        except DatabaseLost:  # and the worker stops
            self.settle_ending(delivery, Ending.NO_DATABASE)
        except BaseException as error:
            if not ends_task(error):
                self.settle_failure(delivery, error, clock() - began[0])
                return
            if isinstance(error, asyncio.CancelledError):
                self.settle_ending(delivery, Ending.CANCELLED, clock() - began[0])
            raise
        else:
            self.settle_success(delivery, clock() - began[0])

    # Settle -------------------------------------------------------------------------------------------

    def settle_success(self, delivery: Delivery, seconds: float = 0.0) -> None:
        delivery.ack()
        self.observer.done(self.queue, seconds)
        if self._policy.for_dead_letters:
            self.settlement.transfers.trouble.end()
        if self.breaker is not None:
            self.breaker.record_success()

    def settle_successes(self, deliveries: Sequence[Delivery]) -> None:
        """Acknowledge the messages of a batch."""
        ack_all(deliveries)
        for _ in deliveries:
            self.observer.done(self.queue, 0.0)
        if self._policy.for_dead_letters:
            self.settlement.transfers.trouble.end()
        if self.breaker is not None:
            for _ in deliveries:
                self.breaker.record_success()

    def settle_ending(self, delivery: Delivery, ending: Ending, seconds: float = 0.0) -> None:
        """Settle a delivery whose handler was not to blame, or did not begin."""
        case = FailedDelivery(delivery, self.read_history(delivery), None, None, seconds)
        self.settlement.settle(case, self._decide(ending, delivery, case.history, self.clock.now()))
        self._breaker_inconclusive()

    def settle_malformed(self, delivery: Delivery, error: Malformed) -> None:
        """Settle a delivery whose body cannot be decoded."""
        now, history = self.clock.now(), self.read_history(delivery)
        case = FailedDelivery(delivery, history, describe(error.__cause__ or error, now), error)
        self.settlement.settle(case, self._decide(Ending.MALFORMED, delivery, history, now))
        self._breaker_inconclusive()

    def settle_failure(self, delivery: Delivery, error: BaseException, seconds: float = 0.0) -> None:
        """Settle a delivery whose handler failed."""
        now, history = self.clock.now(), self.read_history(delivery)
        outcome = self._outcome(delivery, error, now)
        if self.breaker is not None:
            may_pass = isinstance(outcome, Classified) and outcome.kind is FailureKind.TRANSIENT
            self.breaker.record_failure([one for one in self.breaker if may_pass and self._is_blamed(one, error)])
        verdict = self._decide(outcome, delivery, history, now)
        failure = describe(error, now, stack=isinstance(verdict, ParkVerdict))
        self.settlement.settle(FailedDelivery(delivery, history, failure, error, seconds), verdict)

    def _decide(self, outcome: HandlerOutcome, delivery: Delivery, history: History, now: datetime) -> Verdict:
        return decide(
            outcome,
            history,
            self._policy,
            now,
            random.random(),
            has_room=self.settlement.has_room(delivery),
            broker_counts=self._via is RetryRoute.REJECT and self.settlement.broker_counts(delivery),
        )

    def _outcome(self, delivery: Delivery, error: BaseException, now: datetime) -> HandlerOutcome:
        if isinstance(error, HandlerDied) and self._policy.crash_guard is not CrashGuard.NONE:
            return Crashed(self.settlement.is_handled_alone(delivery), "process")
        if isinstance(error, NoMessageId):
            return PERMANENT
        try:
            return classify(error, self._policy.retry, now)
        except Exception as bug:
            self.log_callback_error("the retry policy", error, "treating it as transient", bug)
            return TRANSIENT

    def _is_blamed(self, breaker: Breaker, error: BaseException) -> bool:
        try:
            return breaker.blames(error)
        except Exception as bug:
            self.log_callback_error("the breaker policy", error, "not counting it", bug)
            return False

    def log_callback_error(self, setting: str, error: BaseException, then: str, bug: Exception) -> None:
        """Log that a callback in the settings, or the error itself, raised when it was asked about a failure. The
        message must not suffer for that.
        """
        text = "consumer %s: %s raised while classifying %s; %s"
        log.error(text, self.queue, setting, type_name(error), then, exc_info=bug)

    def _breaker_inconclusive(self) -> None:
        """Tell the breaker that this delivery proved nothing: if it was a probe, another one is needed."""
        if self.breaker is not None:
            self.breaker.record_inconclusive()

    def read_history(self, delivery: Delivery) -> History:
        try:
            headers = delivery.properties.headers or {}
        except RedriveError:  # the publisher's client wrote invalid properties
            headers = {}
        return read_history(
            headers,
            self.queue,
            count_header=self.spec.headers.attempts,
            via_reject=self._via is RetryRoute.REJECT,
            delivery_count=self._via is RetryRoute.QUORUM and delivery.redelivered,  # else a producer wrote it
        )

    # Admit --------------------------------------------------------------------------------------------

    def needs_admission(self, delivery: Delivery) -> bool:
        """Whether anything must be decided before it is handled. For most deliveries nothing is."""
        raw = delivery.raw_properties
        return delivery.redelivered or self.is_gated or (_OURS in raw and (_NOT_BEFORE in raw or _QUARANTINE in raw))

    async def admit(
        self,
        delivery: Delivery,
        handle: Callable[[Delivery], Awaitable[None]],
        handle_alone: Callable[[Delivery], Awaitable[None]],
    ) -> None:
        """Pass a delivery, or the copy that takes its place, to `handle` next to other handlers, or to `handle_alone`
        while no other handler of this worker runs; or settle it in another way.
        """
        if self.is_gated and not await self._wait_for_capacity():
            delivery.nack(requeue=True)
            return
        if not delivery.redelivered and _OURS not in delivery.raw_properties:  # a shortcut: it would be admitted
            async with self.lock.shared():
                await handle(delivery)
            return
        case = FailedDelivery(delivery, self.read_history(delivery), None, None)
        match admit(self._arrival(delivery), case.history, self._policy, self.clock.now()):
            case Handle():
                async with self.lock.shared():
                    await handle(delivery)
                    return
            case Watch(alone=False):
                async with self.lock.shared():  # nothing is moved while a message is handled alone
                    if await self._watch(case, handle, alone=False):
                        return
            case Watch():
                async with self.lock.exclusive():
                    if await self._watch(case, handle_alone, alone=True):
                        await self.settlement.transfers.flush()
                        return
            case CheckWorker(mark):
                assert self._quarantine is not None
                self._quarantine.check(case, mark)
            case Reject():
                delivery.reject(requeue=False)
            case verdict:
                self.settlement.settle(case, verdict)
        self._breaker_inconclusive()

    def _arrival(self, delivery: Delivery) -> Arrival:
        deliveries = self._deliveries(delivery) if self._counts_deliveries else None
        return Arrival(delivery.redelivered, deliveries, mark_of(delivery), self.settlement.has_room(delivery))

    async def _watch(self, case: FailedDelivery, handle: Callable[[Delivery], Awaitable[None]], *, alone: bool) -> bool:
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

    @property
    def intercept(self) -> Callable[[Delivery], bool] | None:
        """Gets redelivered messages when they arrive; None where there is nothing to do then. An explicit delivery
        limit is left to the broker.
        """
        counted = self._counts_deliveries and self._quarantine is not None and self.spec.queue.delivery_limit is None
        return self._renew if counted and self._via is not RetryRoute.REJECT else None

    def _renew(self, delivery: Delivery) -> bool:
        """Replace a message by a fresh copy when a quorum queue has delivered it often. Deploys and lost connections
        count towards the queue's delivery limit, at which the broker gives a message up. Returns whether that is being
        done.
        """
        if self._deliveries(delivery) < DELIVERY_LIMIT // 2 or self._stopping.is_set():
            return False
        case = FailedDelivery(delivery, self.read_history(delivery), None, None)
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

    async def _wait_for_capacity(self) -> bool:
        """Wait until the breaker and the rate limit let a message pass. Meanwhile it stays unacknowledged, and the
        prefetch is used up: the broker sends no more, and nothing counts as an attempt. Returns False if the worker
        stops.
        """
        clock = self.clock.monotonic
        while self.rate is not None and (pause := self.rate.take(clock())) > 0:
            if await wait(self._stopping, self.clock, pause):
                return False
        while self.breaker is not None and (pause := self.breaker.pause()) > 0:
            if await wait(self._stopping, self.clock, min(pause, 1.0)):  # another delivery's probe may have ended it
                return False
        return True

    def limit_rate(self, per_second: float) -> None:
        if self.rate is None:
            self.rate = RateLimit(per_second)
            self.is_gated = True
        else:
            self.rate.change(self.clock.monotonic(), per_second)

    # The end ------------------------------------------------------------------------------------------

    def release_watched(self, deliveries: Iterable[Delivery]) -> None:
        """Give back what came out of quarantine. The others go back with their channel."""
        for delivery in deliveries:
            if not delivery.settled and self.settlement.is_quarantined(delivery):
                self.settlement.give_back(delivery)

    async def wait_until_settled(self) -> None:
        """Wait until nothing is being settled."""
        await self.settlement.transfers.wait_until_settled()

    async def close(self) -> None:
        """End what is still being settled, and the quarantine."""
        await self.settlement.transfers.close()
        if self._quarantine is not None:
            await self._quarantine.close()

    @property
    def watched(self) -> int:
        """How many deliveries are in quarantine."""
        return self._quarantine.unsettled if self._quarantine is not None else 0

    def __repr__(self) -> str:
        return f"<Walk {self.queue} {self.handler!r} settling={self.settlement.transfers.in_progress}>"
