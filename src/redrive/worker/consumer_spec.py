"""What an application says about a consumer: a frozen value, checked when built."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Annotated, Any, Literal, TypeAlias, TypedDict

from redrive.checks import checked
from redrive.errors import ConfigurationError
from redrive.recovery.breaker import BreakerPolicy
from redrive.recovery.durations import Duration, duration
from redrive.recovery.exception_filter import ErrorFilter, Errors, check_errors, check_filter, is_one_of
from redrive.recovery.history import HeaderNames
from redrive.recovery.retry import NO_RETRY, Retry, RetryRoute
from redrive.recovery.verdict import CrashGuard, RecoveryPolicy
from redrive.topology.model import DeclarationOptions, DlqOption, Queue
from redrive.worker.message import Message
from redrive.worker.transactions import InboxPolicy

_LEAST_PREFETCH = 10  # by measurement: docs/decisions/0018
_LEAST_OF_DEAD_LETTERS = 50  # those that fail wait here, unsettled, for their pause

Middleware: TypeAlias = Callable[[Message], AbstractAsyncContextManager[Any]]


@checked("batch")
@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSpec:
    """`size` messages, or what came within `max_wait` of the first; `batchers` batches at a time.

    `prepare` is called with each message before it is gathered, to validate, decode or enrich it. Like a handler it is
    a plain or an async function of the body and, if it names it, the `Message`. Its return value replaces the body in
    the batch. If it raises, this one message has failed, and is in no batch.
    """

    size: int = 100  # messages in a batch
    max_wait: Duration = "1s"  # or as many as came within this time of the first
    batchers: int = 1  # batches handled at a time
    prepare: Callable[..., Any] | None = None  # called with each message before it is gathered
    processors: int | None = None  # how many messages are prepared at a time; None: one, in the order of the queue
    key: Callable[[Any], Any] | None = None  # messages of one batch have one key
    isolate: bool | Errors = True  # when a batch fails (with these errors), find by halves which message it was

    def __post_init__(self) -> None:
        if self.prepare is not None:
            _check_function("batch prepare", self.prepare)
        for name in ("size", "batchers", "processors"):
            if (number := getattr(self, name)) is not None and number < 1:
                raise ConfigurationError(f"batch {name} {number!r}: want at least 1")
        if self.prepare is None and self.processors is not None:
            raise ConfigurationError(
                f"batch processors {self.processors}: processors run prepare=, and there is none. Add prepare=, or "
                "leave processors out: messages are read as they arrive"
            )
        if not isinstance(self.isolate, bool):
            check_errors("batch isolate", self.isolate)
        if duration(self.max_wait, "batch max_wait") <= timedelta(0):
            raise ConfigurationError(f"batch max_wait {self.max_wait!r}: want more than nothing")

    @property
    def prepared_at_a_time(self) -> int:
        """The number of processors: 0 without `prepare`."""
        return (self.processors or 1) if self.prepare is not None else 0

    def isolates(self, error: BaseException) -> bool:
        """Can one message be to blame for that, so that the others are worth another call?"""
        return self.isolate if isinstance(self.isolate, bool) else is_one_of(error, self.isolate)


@checked("consumer of {queue.name}")
@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSpec:
    queue: Queue  # the queue whose messages are handled
    function: Callable[..., Any]  # the handler
    concurrency: int = 1  # messages handled at a time
    prefetch: int = 0  # messages that the broker delivers ahead; 0: twice the concurrency, at least 10
    timeout: Duration | None = None  # a handler that takes longer has failed
    processes: int = 0  # processes for heavy work; 0: handle it in this one
    # publish: with its story, to the dead-letter queue. reject: by the broker, as it came
    park: Literal["publish", "reject"] = "publish"
    crash_limit: int | None = 5  # a message that killed its worker so often is parked; None: no guard
    # how long a worker that lost its connection has to come back before it counts as dead
    crash_grace: Duration = "30s"
    # stop consuming while what the handler depends on fails: one policy, or one for each dependency by its name
    breaker: BreakerPolicy | Mapping[str, BreakerPolicy] | None = None
    # the dependency, or several, each with a breaker: consumers that depend on the same share it
    depends_on: str | Sequence[str] | None = None
    rate: float | None = None  # messages a second
    # how the headers are called in which attempts are counted
    headers: HeaderNames = field(default_factory=HeaderNames)
    dead_ends: Mapping[ErrorFilter, str] = field(default_factory=dict)  # dead-letter queues by error
    middleware: Sequence[Middleware] = ()  # context managers around each call of the handler
    batch: BatchSpec | None = None  # handle many messages at once
    inbox: InboxPolicy | bool | None = None  # process each message once, in one transaction with what it writes
    # while the database of its transactions is unavailable: wait for it, or count that as a failed attempt
    database_outage: Literal["wait", "retry"] = "wait"
    for_dead_letters: bool = False  # the queue is one of dead letters: what fails goes back, after a pause

    def __post_init__(self) -> None:
        who = f"consumer of {self.queue.name}"
        _check_function(who, self.function, self.processes)
        if self.concurrency < 1:
            raise ConfigurationError(f"{who}: concurrency {self.concurrency}: want at least 1")
        if self.park == "reject" and self.rejects_to_retry:
            raise ConfigurationError(f"{who}: with via='reject' a reject is a retry without end: use park='publish'")
        if self.processes < 0:
            raise ConfigurationError(f"{who}: processes {self.processes}: want at least 0")
        if self.prefetch < 0 or self.prefetch > 65535:
            raise ConfigurationError(f"{who}: prefetch {self.prefetch}: want 1 to 65535")
        if self.crash_limit is not None and self.crash_limit < 1:
            raise ConfigurationError(f"{who}: crash_limit {self.crash_limit}: want at least 1, or None for no guard")
        if duration(self.crash_grace, "crash_grace") <= timedelta(0):
            raise ConfigurationError(f"{who}: crash_grace {self.crash_grace!r}: want more than nothing")
        if self.timeout is not None and duration(self.timeout, "timeout") <= timedelta(0):
            raise ConfigurationError(f"{who}: timeout {self.timeout!r}: want more than nothing")
        if isinstance(self.breaker, Mapping) and self.depends_on is not None:
            raise ConfigurationError(f"{who}: breaker names the dependencies already: leave depends_on out")
        for kind, name in self.dead_ends.items():
            check_filter(f"{who}: dlq", kind)
            if not (isinstance(name, str) and name):
                raise ConfigurationError(f"{who}: dlq {{{kind!r}: {name!r}}}: want a queue's name")
        if self.rate is not None and self.rate <= 0:
            raise ConfigurationError(f"{who}: rate {self.rate}: want more than 0 messages a second")

    @property
    def inbox_policy(self) -> InboxPolicy | None:
        return InboxPolicy() if self.inbox is True else self.inbox or None

    @property
    def breakers(self) -> dict[str | None, BreakerPolicy]:
        """A policy for each dependency; for None, if the consumer has a breaker and names no dependency."""
        if self.breaker is None:
            return {}
        if not isinstance(self.breaker, BreakerPolicy):
            return dict(self.breaker.items())
        if self.depends_on is None or isinstance(self.depends_on, str):
            return {self.depends_on: self.breaker}
        return dict.fromkeys(self.depends_on, self.breaker)

    @property
    def retry(self) -> Retry:
        return self.queue.retry or NO_RETRY

    @property
    def rejects_to_retry(self) -> bool:
        """Does the queue's own dead-letter exchange lead to its retry queue?"""
        return self.retry.via is RetryRoute.REJECT and bool(self.retry.rungs)

    @property
    def guards_against_crashes(self) -> bool:
        """Where the broker retries, it counts crashes as attempts; dead letters have no other place to go."""
        return self.crash_limit is not None and self.retry.via is not RetryRoute.QUORUM and not self.for_dead_letters

    def recovery(self, *, keeps_failures: bool) -> RecoveryPolicy:
        """Return what the decisions about a delivery depend on. `keeps_failures`: the broker goes on counting the
        failures of a rejected message when it comes out of a retry queue.
        """
        return RecoveryPolicy(
            self.retry,
            CrashGuard.QUARANTINE if self.guards_against_crashes else CrashGuard.NONE,
            self.crash_limit or 1,
            keeps_rejections=keeps_failures and self.retry.via is RetryRoute.REJECT,
            for_dead_letters=self.for_dead_letters,
        )

    @property
    def prefetched(self) -> int:
        """How many messages may be here at a time."""
        if self.prefetch:
            return self.prefetch
        if self.batch is not None:
            return min(65535, self.batch.size * (self.batch.batchers + 1) + self.batch.prepared_at_a_time)
        least = _LEAST_OF_DEAD_LETTERS if self.for_dead_letters else _LEAST_PREFETCH
        return min(65535, max(self.concurrency * 2, least))


def name_of(function: Callable[..., Any]) -> str:
    """Return where a function is defined, for messages."""
    return f"{function.__module__}.{getattr(function, '__qualname__', type(function).__qualname__)}"


def _check_function(who: str, function: Callable[..., Any], processes: int = 0) -> None:
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigurationError(f"{who}: {name_of(function)} yields, so calling it would not run it: want a return")
    if processes and inspect.iscoroutinefunction(function):
        raise ConfigurationError(
            f"{who}: processes {processes}: processes are for plain functions, and {name_of(function)} is a coroutine "
            "function, which runs in the event loop: leave processes out, or make it a plain function"
        )


class HandlerOptions(TypedDict, total=False):
    """The options of a consumer that are not about its queue."""

    concurrency: int
    prefetch: int
    timeout: Duration | None
    processes: int
    park: Literal["publish", "reject"]
    crash_limit: int | None
    crash_grace: Duration
    breaker: BreakerPolicy | Mapping[str, BreakerPolicy] | None
    depends_on: str | Sequence[str] | None
    rate: float | None
    headers: HeaderNames
    middleware: Sequence[Middleware]
    inbox: InboxPolicy | bool | None
    database_outage: Literal["wait", "retry"]


class GatheringOptions(TypedDict, total=False):
    """The options with which messages are gathered into batches."""

    size: int
    max_wait: Duration
    batchers: int
    prepare: Callable[..., Any] | None
    processors: int | None
    key: Callable[[Any], Any] | None
    isolate: bool | Errors


class ConsumerOptions(DeclarationOptions, HandlerOptions, total=False):
    """The options of `consumer`, as keyword arguments."""

    dlq: Annotated[
        DlqOption | Mapping[ErrorFilter, str],
        "true, false, the name of its dead-letter queue, or a table {error class or http_status(422): "
        "dead-letter queue}",
    ]


class BatchConsumerOptions(ConsumerOptions, GatheringOptions, total=False):
    """The options of `batch_consumer`, as keyword arguments."""


class DlqBatchConsumerOptions(HandlerOptions, GatheringOptions, total=False):
    """The options of `dlq_batch_consumer`, as keyword arguments."""
