"""`Request`: what becomes of a message, in the worker's main process.

Celery asks a request whether it is revoked before it runs it, and tells it how the task ended. In between it calls
`acknowledge` or `reject`, and that is where a message leaves its queue. So these two are where it is parked instead, if
what Celery was told is an end:

    Celery has                                  calls                 here
    a result, Ignore, Retry, a revoked task     acknowledge           that
    an exception that was not retried           acknowledge           a copy with its story is published to the
    a time limit that was exceeded              acknowledge           dead-letter exchange, confirmed; then it is
    Reject                                      reject                acknowledged
    Reject(requeue=True)                        reject, requeue       that
    a child process that is gone                reject, requeue       a copy is put back with the crash counted; after
                                                                      `crash_limit` of them it is parked

If a copy cannot be published the message is rejected: the queue's own dead-letter exchange leads to the same place,
without the story of the last attempt.

Results, errbacks, chords, signals and events are Celery's: they are told before or after, as ever.
"""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

from billiard.einfo import ExceptionInfo, ExceptionWithTraceback
from celery.exceptions import Reject, TimeLimitExceeded
from celery.worker import state
from celery.worker.request import Request as CeleryRequest
from msgspec.structs import replace

from redrive.integrations.celery.decisions import CrashedTooOften, Fate, fate_of, reason_of
from redrive.integrations.celery.messages import body_of, properties_of
from redrive.integrations.celery.producer import budget_of, hand_over
from redrive.integrations.celery.queues import CeleryQueue, equipment_of, find_place
from redrive.recovery.admission import Arrival, admit
from redrive.recovery.failure import MOST_STACK, Failure, describe
from redrive.recovery.failure_headers import ParkReason, properties_for_parking, properties_for_retry
from redrive.recovery.history import History, read_count, read_history
from redrive.recovery.verdict import (
    Crashed,
    CrashGuard,
    ParkVerdict,
    RequeueVerdict,
    RetryVerdict,
    Verdict,
    decide,
)
from redrive.text import elide_lines

log = logging.getLogger("redrive.integrations.celery")


class Request(CeleryRequest):  # type: ignore[misc]  # Celery has no types
    _fate = Fate.CELERYS
    _told: Any = None  # the ExceptionInfo of how it ended

    # Before it is run ---------------------------------------------------------------------------------

    def revoked(self) -> bool:
        """Celery asks this before it runs a task: is it done with, without being run?"""
        return bool(super().revoked()) or self._is_held_back()

    def _is_held_back(self) -> bool:
        place = self._place
        if place is None or self.acknowledged:
            return False
        match admit(self._arrival(place), self._history, place.recovery, datetime.now(UTC)):
            case ParkVerdict():
                self._end(CrashedTooOften("it was delivered again and again, and never came to an end"))
                return True
            case RetryVerdict() | RequeueVerdict() as verdict:
                if not self._replaced(place, verdict):
                    return False  # it is run after all
                state.task_ready(self)
                return True
            case _:
                return False

    def _arrival(self, place: CeleryQueue) -> Arrival:
        deliveries = read_count(self._headers.get("x-delivery-count")) if place.counts_deliveries else None
        return Arrival(bool(self.delivery_info.get("redelivered")), deliveries)

    def _replaced(self, place: CeleryQueue, verdict: RetryVerdict | RequeueVerdict) -> bool:
        """Publish a copy that waits on, or has one more crash counted, and acknowledge the original. Returns whether
        that was possible.
        """
        wait = verdict if isinstance(verdict, RetryVerdict) else None
        if isinstance(verdict, RetryVerdict):
            to, history = place.retry_destination(verdict.rung), self._history.with_another_snooze()
        else:
            to, history = ("", place.name), self._history.with_crashes(verdict.crashes)
        raw = properties_for_retry(
            properties_of(self._message).encode(),
            history,
            None,
            origin=place.origin(self._app, self.delivery_info, self.hostname),
            attempt=self._attempt,
            delay=wait.rung.delay if wait is not None else None,
            not_before=wait.not_before if wait is not None else None,
            budget=budget_of(self._app),
        )
        if not self._hand_over(raw, to):
            return False
        super().acknowledge()
        return True

    # After it was run ---------------------------------------------------------------------------------

    def on_failure(self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False) -> Any:
        error = _unwrap(exc_info)
        fate = fate_of(error)
        if fate is Fate.CRASHED and isinstance(self._after_crash(), ParkVerdict) and not self._is_done():
            times = self._history.crashes + 1
            exc_info, fate = (
                _exception_info(CrashedTooOften(f"it ended its process {times} times: {error}")),
                Fate.PARKED,
            )
        self._fate, self._told = fate, exc_info
        try:
            return super().on_failure(exc_info, send_failed_event, return_ok)
        finally:
            self._fate = Fate.CELERYS

    def on_timeout(self, soft: bool, timeout: float) -> None:
        if not soft and not state.should_terminate:
            self._fate, self._told = Fate.PARKED, _exception_info(TimeLimitExceeded(timeout))
        try:
            super().on_timeout(soft, timeout)
        finally:
            self._fate = Fate.CELERYS

    def _end(self, error: BaseException) -> None:
        """As if it had failed with this."""
        self.on_failure(_exception_info(error))

    def _after_crash(self) -> Verdict | None:
        """Return what becomes of the task now that its process is gone; None if Celery settles it. Where the queue
        counts deliveries it counts this crash, too: see `_is_held_back`.
        """
        place = self._place
        if place is None or place.counts_deliveries or place.recovery.crash_guard is CrashGuard.NONE:
            return None
        if state.should_terminate:  # the worker is told to end at once: that is no crash
            return None
        return decide(Crashed(alone=True), self._history, place.recovery, datetime.now(UTC), 0.0)

    def _is_done(self) -> bool:
        return self._already_cancelled or self._already_revoked or bool(self._success_was_stored())

    def acknowledge(self) -> None:
        if self._fate is not Fate.PARKED or not self._parked():
            super().acknowledge()

    def reject(self, requeue: bool = False) -> None:
        if self._fate is Fate.PARKED and not requeue and self._parked():
            return
        if self._fate is Fate.CRASHED and requeue and self._requeued():
            return
        super().reject(requeue)

    def _requeued(self) -> bool:
        """Put a copy back with the crash counted. If that fails, the crash is counted when it is redelivered."""
        verdict, place = self._after_crash(), self._place
        if verdict is None or place is None or self.acknowledged:
            return False
        if not isinstance(verdict, RequeueVerdict):  # it would be parked, but Celery knows that it is done
            verdict = RequeueVerdict("its process died", self._history.crashes + 1)
        return self._replaced(place, verdict)

    # Parking ------------------------------------------------------------------------------------------

    def _parked(self) -> bool:
        """Is it settled by this? Else Celery settles it, because it keeps nothing or the task is not ours."""
        place = self._place
        if place is None or place.dlq_destination is None or self.acknowledged:
            return False
        failure, reason = _failure_of(self._told, datetime.now(UTC)), self._reason()
        if place.parking == "publish" and self._hand_over(
            self._parked_properties(place, failure, reason), place.dlq_destination
        ):
            super().acknowledge()
        else:
            super().reject(requeue=False)
        log.warning("%s[%s] is parked (%s): %s", self.name, self.id, reason, f"{failure.error_type}: {failure.message}")
        return True

    def _reason(self) -> ParkReason:
        return reason_of(_unwrap(self._told), self._retries, self.task.max_retries)

    def _parked_properties(self, place: CeleryQueue, failure: Failure, reason: ParkReason) -> bytes:
        return properties_for_parking(
            properties_of(self._message).encode(),
            self._history,
            failure,
            reason=reason,
            origin=place.origin(self._app, self.delivery_info, self.hostname),
            attempt=self._attempt,
            at=failure.at,
            budget=budget_of(self._app),
        )

    def _hand_over(self, raw: bytes, to: tuple[str, str]) -> bool:
        try:
            hand_over(self._app, body_of(self._message), raw, to)
        except Exception as error:  # whatever it is, the message is still ours: whoever asked does without
            log.error("a copy of %s[%s] cannot be published: %s", self.name, self.id, error)
            return False
        return True

    # What is known of it ------------------------------------------------------------------------------

    @property
    def _headers(self) -> dict[str, Any]:
        return self._message.headers or {}

    @cached_property
    def _place(self) -> CeleryQueue | None:
        return find_place(self._app, self.delivery_info, self._headers)

    @cached_property
    def _history(self) -> History:
        return read_history(self._headers, self._place.name if self._place else "", via_reject=False)

    @property
    def _retries(self) -> int:
        return read_count(self.request_dict.get("retries"))

    @property
    def _attempt(self) -> int:
        return max(self._history.failed, self._retries) + 1


# What an ExceptionInfo tells ----------------------------------------------------------------------


def remember_failure(sender: Any = None, exception: Any = None, einfo: Any = None, **_: Any) -> None:
    """Celery's signal `task_failure`, in the process that ran the task, where the error still has its frames: what
    reaches the main process is a copy without.
    """
    if einfo is None or isinstance(exception, Reject) or equipment_of(getattr(sender, "app", None)) is None:
        return  # a Reject is told of in the main process, and its reason says more than it does
    einfo.redrive = describe(sys.exc_info()[1] or exception, datetime.now(UTC))


def _failure_of(exc_info: Any, now: datetime) -> Failure:
    told = getattr(exc_info, "redrive", None)
    if isinstance(told, Failure):
        return told
    error = _unwrap(exc_info)
    if isinstance(error, Reject):  # as it was raised: on its way here a text of its frames became its cause
        error = error.reason if isinstance(error.reason, BaseException) else Reject(error.reason, error.requeue)
    failure = describe(error, now, stack=False)
    return replace(failure, stack=elide_lines(str(exc_info.traceback or ""), MOST_STACK))


def _unwrap(exc_info: Any) -> BaseException:
    error: BaseException = exc_info.exception
    return error.exc if isinstance(error, ExceptionWithTraceback) else error


def _exception_info(error: BaseException) -> Any:
    try:
        raise error
    except type(error):
        return ExceptionInfo()
