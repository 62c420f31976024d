"""When a failed message is tried again, and on which way it gets there.

A `Retry` is a value: how many attempts in all, how long to wait after each failed one, and by which route the
message waits. The waits are a function of the attempt number. Since a wait is a queue with a TTL (one TTL per queue:
per-message TTLs block each other), the different waits of a policy are its *rungs*, and each of them has a name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from functools import lru_cache
from math import inf
from typing import cast

from redrive.checks import checked
from redrive.errors import ConfigurationError
from redrive.recovery.durations import Duration, duration, format_duration, milliseconds
from redrive.recovery.exception_filter import Errors, check_errors

# A wait is a queue: more of them than this is a mistake in the schedule.
MOST_RUNGS = 32

# With jitter, a rung is spread over this many queues of nearby TTLs.
_SHARDS = 3

# The longest `x-message-ttl` that RabbitMQ takes (2^32 - 1 ms).
LONGEST = timedelta(milliseconds=2**32 - 1)


class RetryRoute(StrEnum):
    """How a retried message waits (see the table in docs/topology.md)."""

    REJECT = "reject"
    REPUBLISH = "republish"
    DELAYED = "delayed"
    QUORUM = "quorum"


@dataclass(frozen=True, slots=True)
class Rung:
    """One wait, and how it is called in queue names: as it was written."""

    delay: timedelta
    label: str

    @classmethod
    def of(cls, value: Duration, what: str) -> Rung:
        try:
            return _rung(value, what)
        except TypeError:  # no key for a cache, so no length of time either: hear what is wrong with it
            return _rung.__wrapped__(value, what)

    def with_shorter_delay(self, share: float) -> Rung:
        return Rung.of(timedelta(milliseconds=max(1, round(milliseconds(self.delay) * (1 - share)))), "delay")


@lru_cache(1024)  # asked for with every retry, and always for the same few
def _rung(value: Duration, what: str) -> Rung:
    delay = duration(value, what)
    if not timedelta(milliseconds=1) <= delay <= LONGEST:
        raise ConfigurationError(
            f"{what} {value!r}: want 1ms to {format_duration(LONGEST)}, which is what a queue's TTL can be"
        )
    return Rung(delay, value.strip().replace(" ", "") if isinstance(value, str) else format_duration(delay))


@checked("exponential")
@dataclass(frozen=True, slots=True)
class Exponential:
    """Waits that grow: `first`, `first * factor`, and so on, up to `ceiling`."""

    first: Duration = "5s"  # the first wait
    factor: float = 2.0  # how many times longer each wait is than the one before
    ceiling: Duration = "5m"  # no wait is longer

    def __post_init__(self) -> None:
        first, ceiling = duration(self.first, "exponential.first"), duration(self.ceiling, "exponential.ceiling")
        if not timedelta(0) < first <= ceiling:
            raise ConfigurationError(f"exponential from {self.first!r} to {self.ceiling!r}: want 0 < first <= ceiling")
        if not 1 <= self.factor < inf:
            raise ConfigurationError(f"exponential.factor {self.factor!r}: want at least 1")

    def rung(self, retry: int) -> Rung:
        """The wait before retry number `retry`, counted from 1."""
        first, ceiling = duration(self.first), duration(self.ceiling)
        try:
            seconds = min(first.total_seconds() * float(self.factor) ** (retry - 1), ceiling.total_seconds())
        except OverflowError:
            seconds = ceiling.total_seconds()
        if seconds == first.total_seconds():
            return Rung.of(self.first, "exponential.first")
        return Rung.of(timedelta(milliseconds=round(seconds * 1000)), "exponential")


@checked("retry", exponential="Exponential('5s')")
@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """`attempts` in all, with a wait after each failed one: `delay`, or `steps`, or `exponential`.

        Retry(attempts=3, delay="15s")                     15s, 15s
        Retry(steps=["30s", "2m", "10m"])                  30s, 2m, 10m: four attempts
        Retry(attempts=11, exponential=Exponential("5s"))  5s, 10s, 20s, ... up to 5m

    With `jitter`, chance takes up to that share off each wait. `max_age` after its first failure a message is parked,
    whatever is left. `only` these errors are retried, or `never` those; `classify` looks at an error first and says
    True (retry), False (park) or None (whatever the rest says).
    """

    # how many attempts there are, the first one included: 3 if not given, or one more than there are `steps`
    attempts: int = cast(int, None)
    delay: Duration | None = None  # the same wait after each failed attempt; 15s if nothing is said of waits
    steps: Sequence[Duration] = ()  # one wait after another; the last one is repeated if there are more attempts
    exponential: Exponential | None = None  # waits that grow
    jitter: float = 0.0  # chance takes up to this share off each wait, from 0 to below 1
    max_age: Duration | None = None  # a message whose first failure is longer ago is parked, whatever attempts are left
    via: RetryRoute | str = RetryRoute.REPUBLISH  # how it waits: republish, reject, delayed or quorum
    only: Errors = ()  # retry these errors alone: a class, `http_status(500, 599)`, a function, or a tuple of these
    never: Errors = ()  # park these errors at once
    # looks at an error first: True retries, False parks, None leaves it to the rest
    classify: Callable[[BaseException], bool | None] | None = None

    def __post_init__(self) -> None:
        ways = [name for name in ("delay", "steps", "exponential") if getattr(self, name) not in (None, (), [])]
        if len(ways) > 1:
            raise ConfigurationError(f"retry: {' and '.join(ways)} exclude each other: give one of them")
        put = object.__setattr__
        put(self, "steps", tuple(self.steps))
        if not ways:
            put(self, "delay", "15s")
        if cast("int | None", self.attempts) is None:
            put(self, "attempts", len(self.steps) + 1 if self.steps else 3)
        self._check()
        put(self, "via", _route(self.via))
        self.rungs  # noqa: B018 - a schedule that cannot be must fail now

    def _check(self) -> None:
        if self.attempts < 1:
            raise ConfigurationError(f"retry.attempts {self.attempts!r}: want a number from 1 (the first one counts)")
        if not 0 <= self.jitter < 1:
            raise ConfigurationError(f"retry.jitter {self.jitter!r}: want a share from 0 to below 1")
        if self.max_age is not None and duration(self.max_age, "retry.max_age") <= timedelta(0):
            raise ConfigurationError(f"retry.max_age {self.max_age!r}: want more than nothing")
        check_errors("retry.only", self.only)
        check_errors("retry.never", self.never)

    @property
    def schedule(self) -> Retry:
        """The same for all errors: which are meant may be said by functions, and those stay where they are."""
        return replace(self, only=(), never=(), classify=None)

    def rung(self, retry: int, chance: float = 0.0) -> Rung:
        """Where retry number `retry` (the first is 1) waits; `chance`, from 0 to below 1, picks the shard."""
        whole = self._whole(retry)
        return self._shards(whole)[int(chance * _SHARDS)] if self.jitter else whole

    @property
    def rungs(self) -> tuple[Rung, ...]:
        """Every wait that this policy can ask for, in the order in which they come."""
        found: dict[timedelta, Rung] = {}
        for retry in range(1, min(self.attempts, 10_000)):
            for rung in self._shards(self._whole(retry)):
                found.setdefault(rung.delay, rung)
            if len(found) > MOST_RUNGS:
                raise ConfigurationError(
                    f"retry: more than {MOST_RUNGS} different waits, and each is a queue: use fewer steps or a ceiling"
                )
            if self._is_last(retry):
                break
        return tuple(found.values())

    def _shards(self, rung: Rung) -> tuple[Rung, ...]:
        if not self.jitter:
            return (rung,)
        shares = (self.jitter * shard / (_SHARDS - 1) for shard in range(_SHARDS))
        return tuple(rung if not share else rung.with_shorter_delay(share) for share in shares)

    def _whole(self, retry: int) -> Rung:
        if self.exponential is not None:
            return self.exponential.rung(retry)
        if self.steps:
            number = min(retry, len(self.steps))
            return Rung.of(self.steps[number - 1], f"retry.steps[{number - 1}]")
        assert self.delay is not None
        return Rung.of(self.delay, "retry.delay")

    def _is_last(self, retry: int) -> bool:
        """Does every retry after this one wait just as long?"""
        if self.exponential is not None:
            return self.exponential.factor == 1 or self._whole(retry).delay >= duration(self.exponential.ceiling)
        return retry >= len(self.steps)


def _route(value: str) -> RetryRoute:
    try:
        return RetryRoute(value)
    except ValueError:
        raise ConfigurationError(f"retry.via {value!r}: want one of {', '.join(RetryRoute)}") from None


def retry_example(value: object) -> str:
    """Return what to give for `retry` instead of a value."""
    match value:
        case bool():
            return "Retry() or None"
        case int():
            return f"Retry(attempts={value}), the first attempt included"
        case str():
            return f"Retry(delay={value!r})"
        case _:
            return "Retry(attempts=3, delay='15s')"


NO_RETRY = Retry(attempts=1)
