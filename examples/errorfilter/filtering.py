"""The error filter: what becomes of a message whose consumer raised.

    the error                                    x-retry-count       then
    is one of `non_retryable`                    whatever it says    Nack(false): to the dead-letter queue
    is another, and one of `retryable`           < `max_retries`     retry(): published again with x-delay
    is another, and one of `retryable`           >= `max_retries`    Nack(false)

A filter is a value. `options` makes a consumer's options of it: for one consumer, or for all of an application. What
decides is Redrive. `decide` asks it as a worker does, without a broker; `DECISION_TABLE` says what it has to answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from examples.errorfilter.exceptions import (
    BadRequestException,
    ServiceUnavailableException,
    UnprocessableEntityException,
    ValidationException,
)
from redrive import ConsumerOptions, Exponential, HeaderNames, Retry, milliseconds
from redrive.recovery import FailureKind, RecoveryPolicy, RetryVerdict, classify, decide, read_history

RETRY_COUNT_HEADER = "x-retry-count"
MAX_RETRIES = 10
NON_RETRYABLE_ERRORS = (ValidationException, BadRequestException, UnprocessableEntityException)
DELAY = timedelta(milliseconds=5000)
LONGEST_DELAY = timedelta(minutes=5)

Errors = tuple[type[Exception], ...]


@dataclass(frozen=True, slots=True)
class Decision:
    """In the words of the table. `x_delay` and `retry_count` are what the copy says, if there is one."""

    action: Literal["retry()", "Nack(false)"]
    should_retry: bool | None = None  # None: it was not even asked
    retry_count: int | None = None
    x_delay: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RabbitMQConsumerErrorFilter:
    """Errors of `non_retryable` are not retried, and of the others only those of `retryable`.

    Every retry waits `delay`. With `exponential`, retry number n waits min(`ceiling`, `delay` * 2^(n-1)).
    """

    non_retryable: Errors = NON_RETRYABLE_ERRORS
    retryable: Errors = (Exception,)
    max_retries: int = MAX_RETRIES
    header: str = RETRY_COUNT_HEADER
    delay: timedelta = DELAY
    ceiling: timedelta = LONGEST_DELAY
    exponential: bool = False

    @property
    def policy(self) -> Retry:
        waits: dict[str, Any] = {"delay": self.delay}
        if self.exponential:
            waits = {"exponential": Exponential(self.delay, 2, self.ceiling)}
        return Retry(
            attempts=self.max_retries + 1,  # the first one is no retry
            via="delayed",
            never=self.non_retryable,
            only=self.retryable,
            **waits,
        )

    @property
    def options(self) -> ConsumerOptions:
        """`@app.consumer("a.queue", **options)` for one consumer, `App("name", defaults=options)` for all of them."""
        return {"retry": self.policy, "headers": HeaderNames(attempts=self.header), "park": "reject"}

    def decide(self, error: BaseException, headers: Mapping[str, object], now: datetime | None = None) -> Decision:
        """What a worker with this filter does with a message that has these headers, when its handler raises that."""
        now, policy = now or datetime.now(UTC), self.policy
        classified = classify(error, policy, now)
        history = read_history(headers, "", count_header=self.header, via_reject=False)
        verdict = decide(classified, history, RecoveryPolicy(policy), now, chance=0)
        if isinstance(verdict, RetryVerdict):
            due = verdict.not_before or now  # later than the waits there are, if the gateway asked for that
            delay = max(verdict.rung.delay, due - now)
            return Decision("retry()", True, history.failed + 1, milliseconds(delay))
        return Decision("Nack(false)", False if classified.kind is FailureKind.TRANSIENT else None)


@dataclass(frozen=True, slots=True)
class Row:
    situation: str
    errors: tuple[Exception, ...]
    counts: tuple[object, ...]  # what x-retry-count may say then; None: there is no such header
    should_retry: bool | None
    action: str
    effect: str


_TRANSIENT = (TimeoutError("no answer"), ConnectionRefusedError("nobody there"), ServiceUnavailableException())

DECISION_TABLE = (
    Row(
        "NON_RETRYABLE_ERRORS",
        tuple(kind("it will not do") for kind in NON_RETRYABLE_ERRORS),
        (None, 0, 3, MAX_RETRIES),
        None,
        "Nack(false)",
        "rejected without requeue: dead-letter queue",
    ),
    Row(
        f"transient, {RETRY_COUNT_HEADER} < {MAX_RETRIES}",
        _TRANSIENT,
        (None, *range(MAX_RETRIES)),
        True,
        "retry()",
        "published again with x-delay",
    ),
    Row(
        f"transient, {RETRY_COUNT_HEADER} >= {MAX_RETRIES}",
        _TRANSIENT,
        (MAX_RETRIES, MAX_RETRIES + 1, 2**31 - 1),
        False,
        "Nack(false)",
        "rejected without requeue: dead-letter queue",
    ),
)
