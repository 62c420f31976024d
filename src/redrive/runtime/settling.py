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
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple, assert_never

from msgspec.structs import replace

from redrive.errors import PublishError, PublishRefused, RedriveError
from redrive.protocol.content import Delivery
from redrive.recovery.admission import ALONE, REJECT, Mark
from redrive.recovery.backoff import Backoff, Spell
from redrive.recovery.durations import milliseconds
from redrive.recovery.failure import Failure
from redrive.recovery.history import HeaderNames, History, broker_can_count, read_history
from redrive.recovery.retry import Route
from redrive.recovery.story import Origin, ParkReason, countable, parking, retrying
from redrive.recovery.verdict import Again, Bury, Drop, Verdict
from redrive.runtime.clock import Clock
from redrive.runtime.observing import Observer, Outcome, Settled
from redrive.runtime.ports import Consuming, HandsOver
from redrive.runtime.specs import ConsumerSpec
from redrive.topology import ladder
from redrive.topology.expansion import Expanded
from redrive.wire.patch import patch_properties, raw_long
from redrive.wire.properties import Properties

log = logging.getLogger("redrive.runtime")

_PAUSES = Backoff(first=timedelta(milliseconds=200), ceiling=timedelta(seconds=30), jitter=0.2)
_MOVE_PAUSES = Backoff(first=timedelta(milliseconds=200), ceiling=timedelta(seconds=5), jitter=0.2)
_LAST_CONFIRMS = 5.0  # seconds
_QUARANTINE = HeaderNames.QUARANTINE.encode()
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
        self._trouble = Spell(_PAUSES)  # with retry and dead-letter queues
        self._move_trouble = Spell(_MOVE_PAUSES)  # with moves into and out of quarantine
        self._copies: set[HandOver] = set()  # that the broker has not answered for
        self._tasks: set[asyncio.Task[None]] = set()  # that wait for something else
        self._publishing: set[asyncio.Task[None]] = set()  # those of them that publish a copy
        self.consuming: list[Consuming] = []  # the main queue and the quarantine queue, once they are consumed
        self.quarantine_queue: str | None = None  # of this worker, once it has one
        self._moving: dict[Delivery, asyncio.Task[bool]] = {}  # deliveries on their way to it
        self._returning: set[Delivery] = set()  # from it to the main queue
        self._closed = False

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

    def release(self, delivery: Delivery, history: History, seconds: float, reason: str = "cancelled") -> None:
        """Give a delivery back whose handler was cancelled, or could not begin."""
        self.give_back(delivery)
        self._observer.settled(self._event(Case(delivery, history, None, None, seconds), Outcome.RELEASED, reason))

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
            self._bury(case, Bury(ParkReason.UNCOUNTABLE))  # it would be retried indefinitely
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

    # Quarantine (see `recovery.admission`) -------------------------------------------------------------

    def requeue(self, case: Case, mark: Mark | None, reason: str) -> None:
        """Put a copy into the main queue, with this mark and the crashes of `case.history`."""
        event = self._event(case, Outcome.RELEASED, reason)
        self._hand_over(case, Destination("", self._names.queue.name), self._marked(case, mark), event)

    async def quarantine(self, case: Case, queue: str, mark: Mark) -> bool:
        """Move a delivery to a worker's quarantine queue. Returns whether it is there; if not, it is given back. Raises
        PublishRefused.
        """
        raw = self._marked(case, mark)
        if _QUARANTINE not in raw:
            self._bury(case, Bury(ParkReason.UNCOUNTABLE))  # without room for the mark a crash loop would never end
            return False
        delivery = case.delivery
        self._moving[delivery] = task = asyncio.create_task(self._move(case, queue, raw))
        task.add_done_callback(lambda _: self._end_move(delivery))
        return await asyncio.shield(task)  # a handler that is cancelled now leaves the move to come to its end

    def _end_move(self, delivery: Delivery) -> None:
        task = self._moving.pop(delivery)
        if not task.cancelled():
            task.exception()  # if the handler that waited for it was cancelled, none is left to hear it

    async def _move(self, case: Case, queue: str, raw: bytes) -> bool:
        try:
            await self._publisher.publish("", queue, case.delivery.body, raw)
        except PublishRefused:
            raise
        except PublishError as error:
            self._kept(case.delivery, self._event(case, Outcome.RELEASED, ""), error)
            return False
        self._move_trouble.end()
        case.delivery.ack()
        return True

    def is_moving(self, delivery: Delivery) -> bool:
        """Whether a delivery is on its way to quarantine: its ack follows the confirm of the copy."""
        return delivery in self._moving

    async def finish_moves(self) -> None:
        """Give copies that were published a moment to be confirmed, so that their originals are acked."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_CONFIRMS):
                await self.flush()

    async def flush(self) -> None:
        """Wait until no message is between two queues."""
        while moving := self._in_motion():
            await asyncio.wait(moving)
        await self.acks_read()

    async def acks_read(self) -> None:
        """Wait until the broker has read every ack: one that was only sent is lost if a message kills this process."""
        for consuming in self.consuming:
            await consuming.flush()

    def _in_motion(self) -> list[asyncio.Future[Any]]:
        return [*self._moving.values(), *self._publishing, *(copy.end() for copy in self._copies)]

    def is_quarantined(self, delivery: Delivery) -> bool:
        """Whether it came out of a quarantine queue, rather than out of the main queue."""
        return _QUARANTINE in delivery.raw_properties and delivery.routing_key == self.quarantine_queue

    def give_back(self, delivery: Delivery) -> None:
        """Return a delivery to the main queue, unchanged. Out of quarantine that takes a copy: requeued there, it would
        come back as one whose worker did not finish it.
        """
        if not self.is_quarantined(delivery):
            delivery.nack(requeue=True)
        elif delivery not in self._returning and not self._closed:
            self._returning.add(delivery)
            headers, counter = _readable_headers(delivery), self._spec.headers.attempts
            history = read_history(headers, self._names.queue.name, count_header=counter, via_reject=False)
            case = Case(delivery, history, None, None)
            mark = mark_of(delivery)
            raw = self._marked(case, ALONE if mark is not None and mark.alone else None)
            self._hand_over(case, Destination("", self._names.queue.name), raw, None)

    async def close(self) -> None:
        """End every pause, and wait a moment for the confirms of what is published. From then on nothing is published:
        what is left goes back to its queue with its channel.
        """
        for task in self._tasks:
            task.cancel()
        if self.under_way:
            await asyncio.sleep(0)  # the pauses end, and their messages are given back
            await self.finish_moves()
        self._closed = True
        self.abandon()

    def _marked(self, case: Case, mark: Mark | None) -> bytes:
        return retrying(
            case.delivery.raw_properties,
            case.history,
            None,
            origin=self._origin(case),
            attempt=case.attempt,
            delay=None,
            mark=str(mark) if mark is not None else "",
            names=self._spec.headers,
            budget=self._budget(),
        )

    # The end ------------------------------------------------------------------------------------------

    def _bury(self, case: Case, verdict: Bury) -> None:
        event = self._event(case, Outcome.PARKED, str(verdict.reason))
        if not self._names.has_dlq and self._spec.rejects_to_retry:
            case.delivery.ack()  # there is no place for it, and a reject would be one more retry
            self._observer.settled(event)
        elif not self._names.has_dlq or (self._spec.park == "reject" and _has_sound_deaths(case.delivery)):
            self._park_by_reject(case, event)
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

    def _park_by_reject(self, case: Case, event: Settled) -> None:
        """Only the main queue has the dead-letter exchange for it. Out of quarantine it goes back there first."""
        if self.is_quarantined(case.delivery):
            self._hand_over(case, Destination("", self._names.queue.name), self._marked(case, REJECT), event)
        else:
            case.delivery.reject(requeue=False)
            self._observer.settled(event)

    def _dead_end(self, error: BaseException | None) -> Destination:
        for kind, queue in self._spec.dead_ends.items():
            if isinstance(error, kind):
                return Destination(self._names.dlq_exchange, queue)
        return Destination(self._names.dlq_exchange, self._names.dlq_key)

    # Handing over -------------------------------------------------------------------------------------

    def _hand_over(self, case: Case, to: Destination, raw: bytes, event: Settled | None) -> None:
        """Publish; `answered` goes on when the broker has answered. `event` is what observers get then."""
        if to.x_delay is not None:
            raw = patch_properties(raw, set_headers={b"x-delay": raw_long(to.x_delay)})
        delivery = case.delivery
        copy = HandOver(self, delivery, event)
        if self._publisher.publish_now(to.exchange, to.routing_key, delivery.body, raw, copy):
            self._copies.add(copy)
        else:
            task = self._beside(self._publish_in_turn(to, raw, delivery, event))
            self._publishing.add(task)
            task.add_done_callback(self._publishing.discard)

    async def _publish_in_turn(self, to: Destination, raw: bytes, delivery: Delivery, event: Settled | None) -> None:
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

    def _handed_over(self, delivery: Delivery, event: Settled | None) -> None:
        self._returning.discard(delivery)
        delivery.ack()
        self._pauses_of(event).end()
        if event is not None:
            self._observer.settled(event)

    def _kept(self, delivery: Delivery, event: Settled | None, error: PublishError) -> None:
        """It could not be handed over: after a pause, back into its queue."""
        self._returning.discard(delivery)
        log.error("a message of %s stays where it is: %s", self._names.queue.name, error)
        if event is not None:
            reason = f"not handed over: {error}"
            self._observer.settled(replace(event, outcome=Outcome.RELEASED, reason=reason, delay=None))
        self._beside(self._back_after_a_pause(delivery, self._pauses_of(event)))

    def _pauses_of(self, event: Settled | None) -> Spell:
        """A move says nothing about a retry or dead-letter queue that refuses, and the other way round."""
        return self._move_trouble if event is None or event.outcome is Outcome.RELEASED else self._trouble

    def give_up(self, deliveries: Iterable[Delivery], bug: BaseException) -> None:
        """They could not be settled, for no fault of theirs or the broker's: after a pause, back into their queue. What
        stayed here would never be handled, and with enough of them nothing would.
        """
        self.report(bug)
        for delivery in deliveries:
            if not delivery.settled:
                self._beside(self._back_after_a_pause(delivery, self._trouble))

    def postpone(self, case: Case, reason: str, *, moving: bool = False) -> None:
        """Give a delivery back after a pause. `moving`: it was on its way into or out of quarantine."""
        self.report_release(case, reason)
        pauses = self._move_trouble if moving else self._trouble
        self._beside(self._back_after_a_pause(case.delivery, pauses))

    def report_release(self, case: Case, reason: str) -> None:
        self._observer.settled(self._event(case, Outcome.RELEASED, reason))

    def went_well(self) -> None:
        """Pauses begin anew."""
        self._trouble.end()

    async def _back_after_a_pause(self, delivery: Delivery, pauses: Spell) -> None:
        pause = pauses.pause(self._clock.monotonic(), random.random())
        try:
            await asyncio.sleep(pause.total_seconds())
        finally:
            if not delivery.settled:
                self.give_back(delivery)

    # Beside -------------------------------------------------------------------------------------------

    @property
    def under_way(self) -> int:
        return len(self._copies) + len(self._tasks) + len(self._moving)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run work that settles a delivery, next to the handling of others."""
        self._beside(work)

    def _beside(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=f"redrive-settle-{self._names.queue.name}")
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.report(error)

    def report(self, error: BaseException) -> None:
        log.critical("settling a message of %s failed: a bug", self._names.queue.name, exc_info=error)

    async def catch_up(self) -> None:
        """Wait for all that is being settled now."""
        if self.under_way:
            await asyncio.wait({*self._tasks, *self._in_motion()})

    async def drained(self) -> None:
        """Wait until nothing is being settled."""
        while self.under_way:
            await self.catch_up()

    def abandon(self) -> None:
        """What the broker has not answered for by now stays where it is."""
        for task in (*self._tasks, *self._moving.values()):
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

    def __init__(self, settlement: Settlement, delivery: Delivery, event: Settled | None) -> None:
        """`event`: what observers get when the copy is there and the original acked."""
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


def mark_of(delivery: Delivery) -> Mark | None:
    """The mark of a watched message (`recovery.admission`)."""
    if _QUARANTINE not in delivery.raw_properties:
        return None
    return Mark.read(_readable_headers(delivery).get(HeaderNames.QUARANTINE))


def _readable_headers(delivery: Delivery) -> Mapping[str, object]:
    properties = _readable_properties(delivery)
    return properties.headers or {} if properties is not None else {}


def _readable_properties(delivery: Delivery) -> Properties | None:
    """None where the publisher's client wrote nonsense."""
    try:
        return delivery.properties
    except RedriveError:
        return None
