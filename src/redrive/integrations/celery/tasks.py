"""`Task`: a retry is published to the waiting queue of its attempt, with the story of what failed.

Everything that Celery does about a retry stays (the same id, `retries` one more, `max_retries`, chains, links, stamps,
signals, events), since Celery does it: only the way is another. Not equipped are

    eager tasks, and functions called directly
    tasks that came by a queue which is not of the topology
    a retry that says its way itself: `self.retry(queue=...)`
    Celery's own tasks: `celery.chord_unlock` looks every second whether its chord is complete

A retry that cannot be published must not be lost, and must not be acknowledged as if it were under way:

    no queue takes it, or the broker refuses it    the task is rejected, and so parked: it would not be taken next time
    the connection is lost                         it goes back into its queue, and comes again
"""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import celery
from celery.exceptions import Reject, Retry

from redrive.errors import PublishError
from redrive.integrations.celery.decisions import next_wait
from redrive.integrations.celery.producer import Rewrite, budget_of, confirmed_producer
from redrive.integrations.celery.queues import CeleryQueue, find_place
from redrive.recovery.failure import describe
from redrive.recovery.failure_headers import Origin, properties_for_retry
from redrive.recovery.history import read_history
from redrive.recovery.verdict import RetryVerdict

_OWN = "celery."  # how the names of Celery's own tasks begin
_WAYS = ("queue", "exchange", "routing_key")
_STORY = "redrive_story"  # an option of apply_async, which no message ever has


class Task(celery.Task):  # type: ignore[misc]  # Celery has no types
    """The base of an equipped application's tasks. One with a base of its own: `class Mine(app.Task)`."""

    abstract = True
    Request = "redrive.integrations.celery.requests:Request"

    def retry(
        self,
        args: Any = None,
        kwargs: Any = None,
        exc: BaseException | None = None,
        throw: bool = True,
        eta: datetime | None = None,
        countdown: float | None = None,
        max_retries: int | None = None,
        **options: Any,
    ) -> Any:
        detour = self._detour(exc, eta, countdown, options)
        if detour is None:
            return super().retry(args, kwargs, exc, throw, eta, countdown, max_retries, **options)
        exchange, routing_key = detour.to
        way = {"exchange": exchange, "routing_key": routing_key, "declare": [], _STORY: detour.rewrite}
        try:
            # Without a countdown: what is published now is due when the broker brings it.
            retry = super().retry(args, kwargs, exc, False, None, 0, max_retries, **options, **way)
        except Reject as rejected:
            raise _reject(rejected.reason) from rejected
        retry.when = detour.seconds
        if throw:
            raise retry
        return retry

    def apply_async(self, *args: Any, **options: Any) -> Any:
        rewrite: Rewrite | None = options.pop(_STORY, None)
        if rewrite is None:
            return super().apply_async(*args, **options)
        with confirmed_producer(self.app, rewrite) as producer:
            return super().apply_async(*args, **{**options, "producer": producer})

    def _detour(
        self, exc: BaseException | None, eta: datetime | None, countdown: float | None, options: Mapping[str, Any]
    ) -> _Detour | None:
        """Where this retry goes; None: by Celery's own way."""
        request = self.request
        if request.called_directly or request.is_eager or self.name.startswith(_OWN):
            return None
        place = find_place(self.app, request.delivery_info, request.headers or {})
        if place is None or place.policy is None or any(options.get(way) for way in _WAYS):
            return None
        now, headers = datetime.now(UTC), request.headers or {}
        attempt = max(read_history(headers, place.name, via_reject=False).failed, request.retries) + 1
        verdict = next_wait(place.policy, attempt, self._requested_delay(eta, countdown, now), now, random.random())
        if verdict is None:
            return None
        error = exc or sys.exc_info()[1] or Retry("the task asked to be tried again")
        return _Detour(
            place,
            verdict,
            attempt,
            error,
            place.origin(self.app, request.delivery_info, request.hostname),
            headers,
            now,
            budget_of(self.app),
        )

    def _requested_delay(self, eta: datetime | None, countdown: float | None, now: datetime) -> timedelta | None:
        """How long the task wants to wait. One that says nothing leaves it to the ladder; so does Celery's default."""
        if eta is not None:
            moment = eta if eta.tzinfo is not None else eta.replace(tzinfo=self.app.timezone)
            return max(timedelta(0), moment - now)
        if countdown is None and self.default_retry_delay != celery.Task.default_retry_delay:
            countdown = self.default_retry_delay
        return timedelta(seconds=max(0.0, countdown)) if countdown is not None else None


@dataclass(frozen=True, slots=True)
class _Detour:
    """One retry: where it waits, and what it tells."""

    place: CeleryQueue
    verdict: RetryVerdict
    attempt: int
    error: BaseException
    origin: Origin
    headers: Mapping[str, Any]
    now: datetime
    budget: int

    @property
    def to(self) -> tuple[str, str]:
        return self.place.retry_destination(self.verdict.rung)

    @property
    def seconds(self) -> float:
        wait = self.verdict.rung.delay if self.verdict.not_before is None else self.verdict.not_before - self.now
        return wait.total_seconds()

    def rewrite(self, raw: bytes) -> bytes:
        return properties_for_retry(
            raw,
            read_history(self.headers, self.place.name, via_reject=False),
            describe(self.error, self.now, stack=False),
            origin=self.origin,
            attempt=self.attempt,
            delay=self.verdict.rung.delay,
            not_before=self.verdict.not_before,
            budget=self.budget,
        )


def _reject(why: object) -> Reject:
    """Refused for good: to the dead-letter queue. Anything else has to do with the connection: once more."""
    if isinstance(why, PublishError):
        return Reject(why, requeue=False)
    return Reject(f"its retry could not be published: {why!r}", requeue=True)
