"""Carry out a verdict: the only place where a message leaves its queue in another way than by being done.

Every hand-over is *publish (mandatory) → confirm → ack*. What can die in between:

    before the publish      nothing has happened: the message comes again
    before the confirm      the copy may exist: the message comes again, and there may be two
    before the ack          the copy exists: the message comes again, and there are two

A publish that fails leaves the message in its queue: it is given back, after a pause that grows while it goes on.

Nobody waits for any of this: a message is settled beside the handling of the next one. At most `prefetch` deliveries
are unsettled at any time, so that is bounded too. A copy that can be sent at once costs no task: its confirm finds a
`HandOver`, which has the rest done. Tasks are for what must wait for something else first: a turn to publish, a pause.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine, Iterable
from contextvars import copy_context
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple, assert_never

from msgspec.structs import replace

from redrive.errors import PublishError, RedriveError
from redrive.protocol.content import Delivery
from redrive.recovery.backoff import Backoff, Spell
from redrive.recovery.durations import milliseconds
from redrive.recovery.failure import Failure
from redrive.recovery.history import HeaderNames, History, broker_can_count
from redrive.recovery.retry import Route
from redrive.recovery.story import Origin, ParkReason, countable, parking, retrying
from redrive.recovery.verdict import Again, Bury, Drop, Verdict
from redrive.runtime.clock import Clock
from redrive.runtime.observing import Observer, Outcome, Settled
from redrive.runtime.ports import HandsOver
from redrive.runtime.specs import ConsumerSpec
from redrive.topology import ladder
from redrive.topology.expansion import Expanded
from redrive.wire.patch import patch_properties, raw_long
from redrive.wire.properties import Properties

log = logging.getLogger("redrive.runtime")

_PAUSES = Backoff(first=timedelta(milliseconds=200), ceiling=timedelta(seconds=30), jitter=0.2)
_NOWHERE = timedelta(0)
_CRASHES = HeaderNames.CRASHES.encode()
_X_DEATH = b"x-death"


@dataclass(frozen=True, slots=True)
class Destination:
    """Where a copy of a message goes. `x_delay`: for exchanges that delay."""

    exchange: str
    routing_key: str
    x_delay: int | None = None


class Case(NamedTuple):
    """A delivery whose handler did not simply return, with what is known about it."""

    delivery: Delivery
    history: History
    failure: Failure | None
    error: BaseException | None
    seconds: float = 0.0

    @property
    def attempt(self) -> int:
        return self.history.failed + 1


class Settlement:
    """Settles the deliveries of one consumer."""

    def __init__(
        self,
        spec: ConsumerSpec,
        names: Expanded,
        publisher: HandsOver,
        observer: Observer,
        clock: Clock,
        *,
        app: str,
        host: str,
        budget: Callable[[], int],
    ) -> None:
        self._spec = spec
        self._policy = spec.retry
        self._names = names
        self._publisher = publisher
        self._observer = observer
        self._clock = clock
        self._app, self._host = app, host
        self._budget = budget  # how large the properties of a message may be
        self._rungs: dict[str, Destination] = {}  # those of the policy, by label
        self._trouble = Spell(_PAUSES)
        self._copies: set[HandOver] = set()  # that the broker has not answered for
        self._tasks: set[asyncio.Task[None]] = set()  # that wait for something else

    def settle(self, case: Case, verdict: Verdict) -> None:
        """Begin to. Whoever wants to know the end asks `drained`, or observes."""
        try:
            self._carry_out(case, verdict)
        except Exception as bug:
            self.give_up([case.delivery], bug)

    def _carry_out(self, case: Case, verdict: Verdict) -> None:
        match verdict:
            case Drop():
                case.delivery.ack()
                self._observer.settled(self._event(case, Outcome.DISCARDED, "discarded"))
            case Again():
                self._again(case, verdict)
            case Bury():
                self._bury(case, verdict)
            case _:
                assert_never(verdict)

    def skip(self, delivery: Delivery, history: History) -> None:
        """It was processed before: done with it."""
        delivery.ack()
        self._observer.settled(self._event(Case(delivery, history, None, None), Outcome.DUPLICATE, "processed before"))

    def release(self, delivery: Delivery, history: History, seconds: float) -> None:
        """Whoever handled it was told to end: it goes back as it came."""
        delivery.nack(requeue=True)
        self._observer.settled(self._event(Case(delivery, history, None, None, seconds), Outcome.RELEASED, "cancelled"))

    # Again --------------------------------------------------------------------------------------------

    def _again(self, case: Case, verdict: Again) -> None:
        outcome, reason = (Outcome.RETRIED, "failed") if verdict.counts else (Outcome.SNOOZED, "snoozed")
        event = self._event(case, outcome, reason, verdict.rung.delay)
        route = self._policy.via
        if route is Route.QUORUM:
            case.delivery.reject(requeue=True) if verdict.counts else case.delivery.nack(requeue=True)
            self._observer.settled(event)
        elif route is Route.REJECT and verdict.counts and verdict.not_before is None and self._broker_counts(case):
            case.delivery.reject(requeue=False)
            self._observer.settled(event)
        elif not countable(case.delivery.raw_properties, names=self._spec.headers, budget=self._budget()):
            self._bury(case, Bury(ParkReason.EXHAUSTED))  # what cannot be counted would never end
        else:
            self._hand_over(case, self._waiting_place(case, verdict), self._retried(case, verdict), event)

    def _broker_counts(self, case: Case) -> bool:
        """Not if the message carries a count of ours: with the copy that brought it (a snooze, a crash) the broker's
        began anew, so from then on only ours goes on. Nor if somebody wrote an x-death in which none can count.
        """
        delivery = case.delivery
        return self._spec.headers.attempts.encode() not in delivery.raw_properties and _has_sound_deaths(delivery)

    def _waiting_place(self, case: Case, verdict: Again) -> Destination:
        if self._policy.via is Route.DELAYED:
            return self._delayed_place(case, verdict)
        label = verdict.rung.label
        if label not in self._rungs:
            self._rungs[label] = Destination(self._names.retry_exchange, self._names.rung(verdict.rung).key)
        return self._rungs[label]

    def _delayed_place(self, case: Case, verdict: Again) -> Destination:
        names, queue = self._names, self._names.queue.name
        delay = verdict.rung.delay
        if verdict.not_before is not None:
            delay = max(delay, verdict.not_before - self._clock.now())
        if not names.server.delayed_exchanges:
            return Destination(ladder.ENTRANCE, ladder.routing_key(min(delay, ladder.LONGEST), queue))
        key = names.delayed_key(self._origin(case).routing_key)
        return Destination(names.delayed_exchange, key, milliseconds(delay))

    def _retried(self, case: Case, verdict: Again) -> bytes:
        return retrying(
            case.delivery.raw_properties,
            case.history if verdict.counts else case.history.with_another_snooze(),
            case.failure if verdict.counts else None,
            origin=self._origin(case),
            attempt=case.attempt,
            delay=verdict.rung.delay,
            not_before=verdict.not_before,
            names=self._spec.headers,
            budget=self._budget(),
        )

    def count_crash(self, case: Case) -> None:
        """A delivery that may have killed whoever handled it before: put it back with that counted, and handle the
        copy. On a quorum queue the broker counts.
        """
        try:
            self._count_crash(case)
        except Exception as bug:
            self.give_up([case.delivery], bug)

    def _count_crash(self, case: Case) -> None:
        raw = retrying(
            case.delivery.raw_properties,
            case.history.with_another_crash(),
            None,
            origin=self._origin(case),
            attempt=case.attempt,
            delay=_NOWHERE,
            not_before=None,
            names=self._spec.headers,
            budget=self._budget(),
        )
        if _CRASHES not in raw:
            self._bury(case, Bury(ParkReason.CRASHED))  # no room for the count: it would never end
        else:
            event = self._event(case, Outcome.RELEASED, "redelivered")
            self._hand_over(case, Destination("", self._names.queue.name), raw, event)

    # The end ------------------------------------------------------------------------------------------

    def _bury(self, case: Case, verdict: Bury) -> None:
        event = self._event(case, Outcome.PARKED, str(verdict.reason))
        if not self._names.has_dlq and self._spec.rejects_to_retry:
            case.delivery.ack()  # there is no place for it, and a reject would be one more retry
            self._observer.settled(event)
        elif not self._names.has_dlq or (self._spec.park == "reject" and _has_sound_deaths(case.delivery)):
            case.delivery.reject(requeue=False)
            self._observer.settled(event)
        else:
            raw = parking(
                case.delivery.raw_properties,
                case.history,
                case.failure,
                reason=verdict.reason,
                origin=self._origin(case),
                attempt=case.attempt,
                at=self._clock.now(),
                names=self._spec.headers,
                budget=self._budget(),
            )
            self._hand_over(case, self._dead_end(case.error), raw, event)

    def _dead_end(self, error: BaseException | None) -> Destination:
        for kind, queue in self._spec.dead_ends.items():
            if isinstance(error, kind):
                return Destination(self._names.dlq_exchange, queue)
        return Destination(self._names.dlq_exchange, self._names.dlq_key)

    # Handing over -------------------------------------------------------------------------------------

    def _hand_over(self, case: Case, to: Destination, raw: bytes, event: Settled) -> None:
        """Publish; `answered` goes on when the broker has answered."""
        if to.x_delay is not None:
            raw = patch_properties(raw, set_headers={b"x-delay": raw_long(to.x_delay)})
        delivery = case.delivery
        copy = HandOver(self, delivery, event)
        if self._publisher.publish_now(to.exchange, to.routing_key, delivery.body, raw, copy):
            self._copies.add(copy)
        else:
            self._beside(self._publish_in_turn(to, raw, delivery, event))

    async def _publish_in_turn(self, to: Destination, raw: bytes, delivery: Delivery, event: Settled) -> None:
        try:
            await self._publisher.publish(to.exchange, to.routing_key, delivery.body, raw)
        except PublishError as error:
            self._kept(delivery, event, error)
        else:
            self._handed_over(delivery, event)

    def answered(self, copy: HandOver, error: PublishError | None) -> None:
        """The broker has the copy, or has it not."""
        if copy not in self._copies:
            return  # abandoned: the original is not ours any more
        self._copies.remove(copy)
        if error is None:
            self._handed_over(copy.delivery, copy.event)
        else:
            self._kept(copy.delivery, copy.event, error)

    def _handed_over(self, delivery: Delivery, event: Settled) -> None:
        self.went_well()
        delivery.ack()
        self._observer.settled(event)

    def _kept(self, delivery: Delivery, event: Settled, error: PublishError) -> None:
        """It could not be handed over: after a pause, back into its queue."""
        log.error("a message of %s stays where it is: %s", self._names.queue.name, error)
        reason = f"not handed over: {error}"
        self._observer.settled(replace(event, outcome=Outcome.RELEASED, reason=reason, delay=None))
        self._beside(self._back_after_a_pause(delivery))

    def give_up(self, deliveries: Iterable[Delivery], bug: BaseException) -> None:
        """They could not be settled, for no fault of theirs or the broker's: after a pause, back into their queue. What
        stayed here would never be handled, and with enough of them nothing would.
        """
        self.report(bug)
        for delivery in deliveries:
            if not delivery.settled:
                self._beside(self._back_after_a_pause(delivery))

    def put_back(self, case: Case) -> None:
        """A dead letter that could not be handled either: after a pause, back into its queue."""
        self._observer.settled(self._event(case, Outcome.RELEASED, "failed as a dead letter"))
        self._beside(self._back_after_a_pause(case.delivery))

    def went_well(self) -> None:
        """Pauses begin anew."""
        self._trouble.end()

    async def _back_after_a_pause(self, delivery: Delivery) -> None:
        pause = self._trouble.pause(self._clock.monotonic(), random.random())
        try:
            await asyncio.sleep(pause.total_seconds())
        finally:
            if not delivery.settled:
                delivery.nack(requeue=True)

    # Beside -------------------------------------------------------------------------------------------

    @property
    def under_way(self) -> int:
        return len(self._copies) + len(self._tasks)

    def _beside(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, name=f"redrive-settle-{self._names.queue.name}")
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.report(error)

    def report(self, error: BaseException) -> None:
        log.critical("settling a message of %s failed: a bug", self._names.queue.name, exc_info=error)

    async def catch_up(self) -> None:
        """Wait for all that is being settled now."""
        if self._copies or self._tasks:
            await asyncio.wait([*self._tasks, *(copy.end() for copy in self._copies)])

    async def drained(self) -> None:
        """Wait until nothing is being settled."""
        while self._copies or self._tasks:
            await self.catch_up()

    def abandon(self) -> None:
        """What the broker has not answered for by now stays where it is."""
        for task in self._tasks:
            task.cancel()
        copies, self._copies = self._copies, set()
        for copy in copies:
            copy.over()

    # Telling ------------------------------------------------------------------------------------------

    def _origin(self, case: Case) -> Origin:
        history, delivery = case.history, case.delivery
        return Origin(
            exchange=delivery.exchange if history.exchange is None else history.exchange,
            routing_key=delivery.routing_key if history.routing_key is None else history.routing_key,
            queue=self._names.queue.name,
            app=self._app,
            host=self._host,
        )

    def _event(self, case: Case, outcome: Outcome, reason: str, delay: timedelta | None = None) -> Settled:
        properties = _readable_properties(case.delivery)
        failure = case.failure
        return Settled(
            queue=self._names.queue.name,
            outcome=outcome,
            attempt=case.attempt,
            max_attempts=self._policy.attempts,
            reason=reason,
            message_id=properties.message_id if properties else None,
            correlation_id=properties.correlation_id if properties else None,
            message_type=properties.type if properties else None,
            routing_key=case.history.routing_key or case.delivery.routing_key,
            delay=delay,
            error=f"{failure.error_type}: {failure.message}" if failure else None,
            fingerprint=failure.fingerprint if failure else None,
            seconds=case.seconds,
        )


class HandOver:
    """A copy that the broker has not answered for: what a publisher tells instead of a future, and what is done then.

    That still belongs to the message that failed: observers find the context in which it was handled. The error is let
    go, and with it all that the handler had in its hands.
    """

    __slots__ = ("_context", "_end", "_settlement", "delivery", "event")

    def __init__(self, settlement: Settlement, delivery: Delivery, event: Settled) -> None:
        """`event`: what is told when the copy is there and the original acked."""
        self.delivery = delivery
        self.event = event
        self._settlement = settlement
        self._context = copy_context()
        self._end: asyncio.Future[None] | None = None

    def done(self) -> bool:
        return False

    def set_result(self, _: None, /) -> None:
        self._answered(None)

    def set_exception(self, error: PublishError, /) -> None:
        self._answered(error)

    def _answered(self, error: PublishError | None) -> None:
        try:
            self._context.run(self._settlement.answered, self, error)
        except Exception as bug:  # it must not end the connection, which is in the middle of reading
            self._settlement.report(bug)
        finally:
            self.over()

    def end(self) -> asyncio.Future[None]:
        """Done when nothing is left to do: made for the few who wait."""
        if self._end is None:
            self._end = asyncio.get_running_loop().create_future()
        return self._end

    def over(self) -> None:
        if self._end is not None and not self._end.done():
            self._end.set_result(None)


def _has_sound_deaths(delivery: Delivery) -> bool:
    """May it be rejected? Over an x-death that nobody can read a queue's process ends (RabbitMQ 3.10)."""
    if _X_DEATH not in delivery.raw_properties:
        return True
    properties = _readable_properties(delivery)
    return properties is not None and broker_can_count(properties.headers or {})


def _readable_properties(delivery: Delivery) -> Properties | None:
    """None where the publisher's client wrote nonsense."""
    try:
        return delivery.properties
    except RedriveError:
        return None
