"""Carry out a verdict: the only place where a message leaves its queue in another way than by being done.

Every hand-over is *publish (mandatory) → confirm → ack*. What can die in between:

    before the publish      nothing has happened: the message comes again
    before the confirm      the copy may exist: the message comes again, and there may be two
    before the ack          the copy exists: the message comes again, and there are two

A publish that fails leaves the message in its queue: it is given back, after a pause that grows while it goes on.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import assert_never

from redrive.errors import PublishError, RedriveError
from redrive.protocol.content import Delivery
from redrive.recovery.backoff import Backoff
from redrive.recovery.durations import milliseconds
from redrive.recovery.failure import Failure
from redrive.recovery.history import HeaderNames, History
from redrive.recovery.retry import Route
from redrive.recovery.story import Origin, ParkReason, countable, parking, retrying
from redrive.recovery.verdict import Again, Bury, Drop, Verdict
from redrive.runtime.clock import Clock
from redrive.runtime.observing import Observer, Outcome, Settled
from redrive.runtime.ports import Publishes
from redrive.runtime.specs import ConsumerSpec
from redrive.topology import ladder
from redrive.topology.expansion import Expanded
from redrive.wire.patch import patch_properties, raw_long
from redrive.wire.properties import Properties

log = logging.getLogger("redrive.runtime")

_PAUSES = Backoff(first=timedelta(milliseconds=200), ceiling=timedelta(seconds=30), jitter=0.2)
_NOWHERE = timedelta(0)
_CRASHES = HeaderNames.CRASHES.encode()


@dataclass(frozen=True, slots=True)
class Destination:
    """Where a copy of a message goes. `x_delay`: for exchanges that delay."""

    exchange: str
    routing_key: str
    x_delay: int | None = None


@dataclass(frozen=True, slots=True)
class Case:
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
        publisher: Publishes,
        observer: Observer,
        clock: Clock,
        *,
        app: str,
        host: str,
        budget: Callable[[], int],
    ) -> None:
        self._spec = spec
        self._names = names
        self._publisher = publisher
        self._observer = observer
        self._clock = clock
        self._app, self._host = app, host
        self._budget = budget  # how large the properties of a message may be
        self._rungs: dict[str, Destination] = {}  # those of the policy, by label
        self._failures_in_a_row = 0

    async def settle(self, case: Case, verdict: Verdict) -> None:
        match verdict:
            case Drop():
                case.delivery.ack()
                self._tell(case, Outcome.DISCARDED, "discarded")
            case Again():
                await self._again(case, verdict)
            case Bury():
                await self._bury(case, verdict)
            case _:
                assert_never(verdict)

    def skip(self, delivery: Delivery, history: History) -> None:
        """It was processed before: done with it."""
        delivery.ack()
        self._tell(Case(delivery, history, None, None), Outcome.DUPLICATE, "processed before")

    # Again --------------------------------------------------------------------------------------------

    async def _again(self, case: Case, verdict: Again) -> None:
        outcome = Outcome.RETRIED if verdict.counts else Outcome.SNOOZED
        route = self._spec.retry.via
        if route is Route.QUORUM:
            case.delivery.reject(requeue=True) if verdict.counts else case.delivery.nack(requeue=True)
        elif route is Route.REJECT and verdict.counts and verdict.not_before is None and not self._counts_itself(case):
            case.delivery.reject(requeue=False)
        elif not countable(case.delivery.raw_properties, names=self._spec.headers, budget=self._budget()):
            await self._bury(case, Bury(ParkReason.EXHAUSTED))  # what cannot be counted would never end
            return
        elif not await self._copy(case, self._waiting_place(case, verdict), self._retried(case, verdict)):
            return
        self._tell(case, outcome, "failed" if verdict.counts else "snoozed", verdict.rung.delay)

    def _counts_itself(self, case: Case) -> bool:
        """Does the message carry a count of ours? With the copy that brought it (a snooze, a crash) the broker's count
        began anew, so from then on only ours goes on.
        """
        return self._spec.headers.attempts.encode() in case.delivery.raw_properties

    def _waiting_place(self, case: Case, verdict: Again) -> Destination:
        if self._spec.retry.via is Route.DELAYED:
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
        key = names.delayed_key or case.history.routing_key or case.delivery.routing_key
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

    async def count_crash(self, case: Case) -> None:
        """A delivery that may have killed whoever handled it before: put it back with that counted, and handle the
        copy. On a quorum queue the broker counts.
        """
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
            await self._bury(case, Bury(ParkReason.CRASHED))  # no room for the count: it would never end
        elif await self._copy(case, Destination("", self._names.queue.name), raw):
            self._tell(case, Outcome.RELEASED, "redelivered")

    # The end ------------------------------------------------------------------------------------------

    async def _bury(self, case: Case, verdict: Bury) -> None:
        if not self._names.has_dlq and self._spec.rejects_to_retry:
            case.delivery.ack()  # there is no place for it, and a reject would be one more retry
        elif self._spec.park == "reject" or not self._names.has_dlq:
            case.delivery.reject(requeue=False)
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
            if not await self._copy(case, self._dead_end(case.error), raw):
                return
        self._tell(case, Outcome.PARKED, str(verdict.reason))

    def _dead_end(self, error: BaseException | None) -> Destination:
        for kind, queue in self._spec.dead_ends.items():
            if isinstance(error, kind):
                return Destination(self._names.dlq_exchange, queue)
        return Destination(self._names.dlq_exchange, self._names.dlq_key)

    # Handing over -------------------------------------------------------------------------------------

    async def _copy(self, case: Case, to: Destination, raw: bytes) -> bool:
        """Publish, wait for the confirm, ack. Whether that worked; if not, the message is in its queue again."""
        if to.x_delay is not None:
            raw = patch_properties(raw, set_headers={b"x-delay": raw_long(to.x_delay)})
        try:
            await self._publisher.publish(to.exchange, to.routing_key, case.delivery.body, raw)
        except PublishError as error:
            await self._keep(case, error)
            return False
        self.went_well()
        case.delivery.ack()
        return True

    async def _keep(self, case: Case, error: RedriveError) -> None:
        """It could not be handed over: after a pause, back into its queue."""
        log.error("a message of %s stays where it is: %s", self._names.queue.name, error)
        self._tell(case, Outcome.RELEASED, f"not handed over: {error}")
        await self._back_after_a_pause(case)

    async def put_back(self, case: Case) -> None:
        """A dead letter that could not be handled either: after a pause, back into its queue."""
        self._tell(case, Outcome.RELEASED, "failed as a dead letter")
        await self._back_after_a_pause(case)

    def went_well(self) -> None:
        """Pauses begin anew."""
        self._failures_in_a_row = 0

    async def _back_after_a_pause(self, case: Case) -> None:
        self._failures_in_a_row += 1
        try:
            await asyncio.sleep(_PAUSES.delay(self._failures_in_a_row, random.random()).total_seconds())
        finally:
            if not case.delivery.settled:
                case.delivery.nack(requeue=True)

    def _origin(self, case: Case) -> Origin:
        history, delivery = case.history, case.delivery
        return Origin(
            exchange=delivery.exchange if history.exchange is None else history.exchange,
            routing_key=delivery.routing_key if history.routing_key is None else history.routing_key,
            queue=self._names.queue.name,
            app=self._app,
            host=self._host,
        )

    def _tell(self, case: Case, outcome: Outcome, reason: str, delay: timedelta | None = None) -> None:
        properties = _readable_properties(case.delivery)
        failure = case.failure
        self._observer.settled(
            Settled(
                queue=self._names.queue.name,
                outcome=outcome,
                attempt=case.attempt,
                max_attempts=self._spec.retry.attempts,
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
        )


def _readable_properties(delivery: Delivery) -> Properties | None:
    """None where the publisher's client wrote nonsense."""
    try:
        return delivery.properties
    except RedriveError:
        return None
