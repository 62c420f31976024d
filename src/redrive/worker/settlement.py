"""Perform a verdict: the only place where a message leaves its queue in another way than by being done.

What becomes of a delivery is decided in `recovery.verdict` and `recovery.admission`. Here is how that is done: which
headers the copy of a message gets and where it is published, or that the broker moves it. `transfers` publishes the
copy and acknowledges the original.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import NamedTuple, assert_never

from redrive.errors import RedriveError
from redrive.protocol.messages import Delivery
from redrive.recovery.admission import ALONE, REJECT, Mark
from redrive.recovery.durations import milliseconds
from redrive.recovery.exception_filter import most_specific
from redrive.recovery.failure import Failure
from redrive.recovery.failure_headers import (
    Origin,
    ParkReason,
    has_room_for_counter,
    properties_for_parking,
    properties_for_retry,
)
from redrive.recovery.fingerprint import type_name
from redrive.recovery.history import HeaderNames, History, broker_can_count, read_history
from redrive.recovery.retry import RetryRoute
from redrive.recovery.verdict import (
    DiscardVerdict,
    ParkVerdict,
    ReleaseVerdict,
    RequeueVerdict,
    RetryVerdict,
    Verdict,
)
from redrive.topology import ladder
from redrive.topology.expansion import QueueLayout
from redrive.wire.properties import Properties
from redrive.worker.clock import Clock
from redrive.worker.consumer_spec import ConsumerSpec
from redrive.worker.events import DeliveryOutcome, DeliverySettled, Observer
from redrive.worker.ports import TransferPublisher
from redrive.worker.transfers import CopyDestination, Transfers

log = logging.getLogger("redrive.worker")

_QUARANTINE = HeaderNames.QUARANTINE.encode()
_X_DEATH = b"x-death"


class FailedDelivery(NamedTuple):
    """A delivery whose handler did not simply return, with what is known about it."""

    delivery: Delivery
    history: History
    failure: Failure | None
    error: BaseException | None
    seconds: float = 0.0

    @property
    def attempt(self) -> int:
        return self.history.failed + 1


class VerdictExecutor:
    """Settles the deliveries of one consumer."""

    def __init__(
        self,
        spec: ConsumerSpec,
        names: QueueLayout,
        publisher: TransferPublisher,
        observer: Observer,
        clock: Clock,
        *,
        app: str,
        host: str,
        budget: Callable[[], int],
    ) -> None:
        """`budget`: how large the properties of a message may be."""
        self._spec = spec
        self._policy = spec.retry
        self._names = names
        self._main = CopyDestination("", names.queue.name)
        self._observer = observer
        self._clock = clock
        self._app, self._host = app, host
        self._budget = budget
        self._rungs: dict[str, CopyDestination] = {}  # those of the policy, by label
        self.transfers = Transfers(names.queue.name, publisher, observer, clock, self.give_back)
        self.quarantine_queue: str | None = None  # of this worker, once it has one

    def settle(self, case: FailedDelivery, verdict: Verdict) -> None:
        """Begin to perform a verdict. `wait_until_settled` waits for the end, and observers get an event."""
        try:
            self._perform(case, verdict)
        except Exception as bug:
            self.transfers.release_unsettled([case.delivery], bug)

    def _perform(self, case: FailedDelivery, verdict: Verdict) -> None:
        match verdict:
            case RetryVerdict():
                self._retry(case, verdict)
            case ParkVerdict():
                self._park(case, verdict)
            case DiscardVerdict(duplicate):
                case.delivery.ack()
                outcome, reason = (
                    (DeliveryOutcome.DUPLICATE, "processed before")
                    if duplicate
                    else (DeliveryOutcome.DISCARDED, "discarded")
                )
                self._observer.settled(self._event(case, outcome, reason))
            case RequeueVerdict():
                case = case._replace(history=case.history.with_crashes(verdict.crashes))
                self.requeue(case, ALONE if verdict.alone else None, verdict.reason)
            case ReleaseVerdict(reason, pause):
                self.release(case, reason, pause=pause)
            case _:
                assert_never(verdict)

    # What decisions depend on -------------------------------------------------------------------------

    def has_room(self, delivery: Delivery) -> bool:
        """Whether the headers have room to count attempts."""
        return has_room_for_counter(delivery.raw_properties, names=self._spec.headers, budget=self._budget())

    def broker_counts(self, delivery: Delivery) -> bool:
        """Whether the broker counts a rejection. Not if the message carries a count of ours: the copy that brought it
        (a snooze, a crash) has reset that of the broker. Nor if its x-death is one in which no broker can count.
        """
        return self._spec.headers.attempts.encode() not in delivery.raw_properties and _is_safe_to_reject(delivery)

    # Retry --------------------------------------------------------------------------------------------

    def _retry(self, case: FailedDelivery, verdict: RetryVerdict) -> None:
        outcome, reason = (
            (DeliveryOutcome.RETRIED, "failed") if verdict.counts else (DeliveryOutcome.SNOOZED, "snoozed")
        )
        event = self._event(case, outcome, reason, verdict.rung.delay)
        if verdict.via is RetryRoute.QUORUM:
            case.delivery.reject(requeue=True) if verdict.counts else case.delivery.nack(requeue=True)
            self._observer.settled(event)
        elif verdict.via is RetryRoute.REJECT:
            case.delivery.reject(requeue=False)
            self._observer.settled(event)
        else:
            to = self._retry_destination(case, verdict)
            self.transfers.send(case.delivery, to, self._retry_properties(case, verdict), event)

    def _retry_destination(self, case: FailedDelivery, verdict: RetryVerdict) -> CopyDestination:
        if verdict.via is RetryRoute.DELAYED:
            return self._delayed_destination(case, verdict)
        label = verdict.rung.label
        if label not in self._rungs:
            self._rungs[label] = CopyDestination(self._names.retry_exchange, self._names.rung(verdict.rung).key)
        return self._rungs[label]

    def _delayed_destination(self, case: FailedDelivery, verdict: RetryVerdict) -> CopyDestination:
        names, queue = self._names, self._names.queue.name
        delay = verdict.rung.delay
        if verdict.not_before is not None:
            delay = max(delay, verdict.not_before - self._clock.now())
        if not names.server.delayed_exchanges:
            return CopyDestination(ladder.ENTRANCE, ladder.routing_key(min(delay, ladder.LONGEST), queue))
        key = names.delayed_key(self._origin(case).routing_key)
        return CopyDestination(names.delayed_exchange, key, milliseconds(delay))

    def _retry_properties(self, case: FailedDelivery, verdict: RetryVerdict) -> bytes:
        return properties_for_retry(
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

    # Park ---------------------------------------------------------------------------------------------

    def _park(self, case: FailedDelivery, verdict: ParkVerdict) -> None:
        if verdict.reason is ParkReason.CRASHED:
            case = case._replace(history=case.history.with_crashes(case.history.crashes + 1))
        event = self._event(case, DeliveryOutcome.PARKED, str(verdict.reason))
        if not self._names.has_dlq and self._spec.rejects_to_retry:
            case.delivery.ack()  # there is no dead-letter queue, and a reject would be one more retry
            self._observer.settled(event)
        elif not self._names.has_dlq or (self._spec.park == "reject" and _is_safe_to_reject(case.delivery)):
            self._park_by_reject(case, event)
        else:
            raw = self._parked_properties(case, verdict.reason)
            self.transfers.send(case.delivery, self._dlq_destination(case.error), raw, event)

    def _parked_properties(self, case: FailedDelivery, reason: ParkReason) -> bytes:
        return properties_for_parking(
            case.delivery.raw_properties,
            case.history,
            case.failure,
            reason=reason,
            origin=self._origin(case),
            attempt=case.attempt,
            at=self._clock.now(),
            names=self._spec.headers,
            budget=self._budget(),
        )

    def _park_by_reject(self, case: FailedDelivery, event: DeliverySettled) -> None:
        """Only the main queue has the dead-letter exchange for it. Out of quarantine it goes back there first."""
        if self.is_quarantined(case.delivery):
            self.transfers.send(case.delivery, self._main, self.marked_properties(case, REJECT), event)
        else:
            case.delivery.reject(requeue=False)
            self._observer.settled(event)

    def _dlq_destination(self, error: BaseException | None) -> CopyDestination:
        key = self._names.dlq_key
        if error is not None and self._spec.dead_ends:
            try:
                key = most_specific(error, self._spec.dead_ends) or key
            except Exception as bug:  # a function in the table: the message must not suffer for that
                text = "consumer %s: dlq raised while choosing a queue for %s; parking it in the queue's own"
                log.error(text, self._names.queue.name, type_name(error), exc_info=bug)
        return CopyDestination(self._names.dlq_exchange, key)

    # Release ------------------------------------------------------------------------------------------

    def release(self, case: FailedDelivery, reason: str, *, pause: bool, moving: bool = False) -> None:
        """Give a delivery back, at once or after a pause. `moving`: it was on its way into or out of quarantine."""
        self.report_release(case, reason)
        if pause:
            self.transfers.release_later(case.delivery, moving=moving)
        else:
            self.give_back(case.delivery)

    def report_release(self, case: FailedDelivery, reason: str) -> None:
        self._observer.settled(self._event(case, DeliveryOutcome.RELEASED, reason))

    def give_back(self, delivery: Delivery) -> None:
        """Return a delivery to the main queue, unchanged. Out of quarantine that takes a copy: requeued there, it would
        come back as one whose worker did not finish it.
        """
        transfers = self.transfers
        if not self.is_quarantined(delivery):
            delivery.nack(requeue=True)
        elif delivery not in transfers.returning and not transfers.closed:
            transfers.returning.add(delivery)
            headers, counter = _readable_headers(delivery), self._spec.headers.attempts
            history = read_history(headers, self._names.queue.name, count_header=counter, via_reject=False)
            mark = mark_of(delivery)
            again = ALONE if mark is not None and mark.alone else None
            raw = self.marked_properties(FailedDelivery(delivery, history, None, None), again)
            transfers.send(delivery, self._main, raw, None)

    # Quarantine (see `recovery.admission`) -------------------------------------------------------------

    def requeue(self, case: FailedDelivery, mark: Mark | None, reason: str) -> None:
        """Put a copy into the main queue, with this mark and the crashes of `case.history`."""
        event = self._event(case, DeliveryOutcome.RELEASED, reason)
        self.transfers.send(case.delivery, self._main, self.marked_properties(case, mark), event)

    async def quarantine(self, case: FailedDelivery, queue: str, raw: bytes) -> bool:
        """Move a delivery to a quarantine queue. Returns whether it is there; if not, it is released. Raises
        PublishRefused.
        """
        return await self.transfers.move(case.delivery, queue, raw, self._event(case, DeliveryOutcome.RELEASED, ""))

    def is_quarantined(self, delivery: Delivery) -> bool:
        """Whether it came out of a quarantine queue, rather than out of the main queue."""
        return _QUARANTINE in delivery.raw_properties and delivery.routing_key == self.quarantine_queue

    def is_handled_alone(self, delivery: Delivery) -> bool:
        """Whether it came out of quarantine to be handled alone."""
        mark = mark_of(delivery) if self.is_quarantined(delivery) else None
        return mark is not None and mark.alone

    def marked_properties(self, case: FailedDelivery, mark: Mark | None) -> bytes:
        """Return the properties of a copy with this mark, if they have room for it."""
        return properties_for_retry(
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

    # Events -------------------------------------------------------------------------------------------

    def _origin(self, case: FailedDelivery) -> Origin:
        history, delivery = case.history, case.delivery
        return Origin(
            exchange=delivery.exchange if history.exchange is None else history.exchange,
            routing_key=delivery.routing_key if history.routing_key is None else history.routing_key,
            queue=self._names.queue.name,
            app=self._app,
            host=self._host,
        )

    def _event(
        self, case: FailedDelivery, outcome: DeliveryOutcome, reason: str, delay: timedelta | None = None
    ) -> DeliverySettled:
        properties = _readable_properties(case.delivery)
        failure = case.failure
        return DeliverySettled(
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


def _is_safe_to_reject(delivery: Delivery) -> bool:
    """Return whether it may be rejected: an unreadable x-death ends a queue's process (RabbitMQ 3.10)."""
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
