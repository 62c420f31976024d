"""When to stop calling something that fails, and when to dare again.

    CLOSED --tripped--> OPEN --rested--> PROBING --recovered--> CLOSED
                          ^--------relapsed---------|

A breaker stands between a consumer and what its handler depends on. While it is CLOSED, messages pass and outcomes are
counted. When too many of the latest failed, it is OPEN: nothing passes, messages stay in the broker and no attempt is
burnt. After a pause it is PROBING: a few messages pass, and what becomes of them decides. Each relapse makes the next
pause longer.

Only failures that say something about the dependency count, and the caller knows which do: a timeout is recorded as a
failure, a malformed message as inconclusive. What counts is when an outcome comes, not when its handler began: a
message from before the trip that succeeds during the probing is as good a proof as a probe's. While the breaker is OPEN
outcomes are ignored: the pause is a promise to the dependency.

A probe whose outcome never comes (a connection lost, a worker stopped) must not close the door for good: after another
pause the breaker lets new probes pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum, StrEnum, auto
from math import inf
from typing import assert_never

from redrive.checks import checked
from redrive.errors import ConfigurationError
from redrive.recovery.backoff import Backoff
from redrive.recovery.durations import Duration, duration
from redrive.recovery.exception_filter import Errors, check_errors, is_one_of
from redrive.recovery.failure_window import CountWindow, FailureWindow, TimeWindow


class BreakerState(StrEnum):
    CLOSED = "closed"  # messages pass
    OPEN = "open"  # nothing passes until the pause is over
    PROBING = "probing"  # a few messages pass, and their outcomes decide


class Cause(Enum):
    TRIPPED = auto()  # too many of the latest outcomes were failures
    RESTED = auto()  # the pause is over
    RECOVERED = auto()  # as many successes as there are probes
    RELAPSED = auto()  # a failure while probing


LIFECYCLE: Mapping[BreakerState, Mapping[Cause, BreakerState]] = {
    BreakerState.CLOSED: {Cause.TRIPPED: BreakerState.OPEN},
    BreakerState.OPEN: {Cause.RESTED: BreakerState.PROBING},
    BreakerState.PROBING: {Cause.RECOVERED: BreakerState.CLOSED, Cause.RELAPSED: BreakerState.OPEN},
}

_CLOSED = BreakerState.CLOSED  # looked up once: this is asked for every message

# While probing, the answer can come at any moment: who waits for it asks again this soon (seconds).
_SOON = 0.1


def _check_count(name: str, value: int) -> None:
    if value < 1:
        raise ConfigurationError(f"breaker.{name} {value!r}: want a number from 1")


@checked("breaker")
@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerPolicy:
    """Trip when `failure_rate` of the latest calls failed, if there were `minimum_calls`; pause; let `probes` pass.

    BreakerPolicy(window=100)       of the last 100 calls
    BreakerPolicy(window="1m")      of the calls of the last minute
    BreakerPolicy(only=DBAPIError)  and nothing but the database is to blame: other errors say nothing about it
    """

    failure_rate: float = 0.5  # trip when this share of the latest calls failed
    minimum_calls: int = 20  # and there were at least so many
    window: int | Duration = 100  # the latest calls: a number of them, or a time
    pause: Duration = "30s"  # how long nothing passes
    factor: float = 2.0  # how much longer a pause is than the one before, if the probes failed
    ceiling: Duration = "5m"  # no pause is longer
    probes: int = 1  # so many messages pass after a pause, to see
    # the errors that count: a class, `http_status(500, 599)`, a function, or a tuple of these; without it all that are
    # retried
    only: Errors = ()

    def __post_init__(self) -> None:
        if not 0 < self.failure_rate <= 1:
            raise ConfigurationError(f"breaker.failure_rate {self.failure_rate!r}: want a share above 0, at most 1")
        _check_count("minimum_calls", self.minimum_calls)
        _check_count("probes", self.probes)
        check_errors("breaker.only", self.only)
        self._check_window()
        self._check_pauses()

    def _check_window(self) -> None:
        if isinstance(self.window, int):
            _check_count("window", self.window)
            if self.window < self.minimum_calls:
                raise ConfigurationError(
                    f"breaker.window {self.window} never holds breaker.minimum_calls {self.minimum_calls}: "
                    "it would never trip"
                )
        elif duration(self.window, "breaker.window") <= timedelta(0):
            raise ConfigurationError(f"breaker.window {self.window!r}: want more than nothing")

    def _check_pauses(self) -> None:
        pause, ceiling = duration(self.pause, "breaker.pause"), duration(self.ceiling, "breaker.ceiling")
        if not timedelta(0) < pause <= ceiling:
            raise ConfigurationError(
                f"breaker.pause {self.pause!r}, breaker.ceiling {self.ceiling!r}: want 0 < pause <= ceiling"
            )
        if not 1 <= self.factor < inf:
            raise ConfigurationError(f"breaker.factor {self.factor!r}: want at least 1")

    def blames(self, error: BaseException) -> bool:
        """Return whether an error counts as a failure of the dependency."""
        return self.only == () or is_one_of(error, self.only)

    def outcomes(self) -> FailureWindow:
        """Return an empty window of outcomes."""
        if isinstance(self.window, int):
            return CountWindow(self.window)
        return TimeWindow(duration(self.window).total_seconds())

    def pauses(self) -> Backoff:
        """Return the lengths of the pauses, one relapse after another."""
        return Backoff(duration(self.pause), self.factor, duration(self.ceiling), jitter=0)


class Breaker:
    """`now` is the time of a clock that never goes back, in seconds: `loop.time()`."""

    __slots__ = (
        "_failure_rate",
        "_outcomes",
        "_pauses",
        "_policy",
        "_probes",
        "_successes",
        "_trips",
        "_until",
        "state",
    )

    def __init__(self, policy: BreakerPolicy = BreakerPolicy()) -> None:  # noqa: B008 - frozen
        self.state = _CLOSED
        self._policy = policy
        self._outcomes = policy.outcomes()
        self._pauses = policy.pauses()
        self._failure_rate = 0.0  # for which it last tripped
        self._trips = 0  # since it was last closed
        self._until = 0.0  # the end of the pause; while probing, when the probes are given up
        self._probes = 0  # how many more may pass
        self._successes = 0  # how many have been heard of

    # What a worker does: the new state is returned where there is one -----------------------------------

    def permits(self, now: float) -> float:
        """0.0: a message may be handled now. Else the seconds after which to ask again.

        Asking ends a pause that is over: `state` is then PROBING.
        """
        if self.state is _CLOSED:
            return 0.0
        if now >= self._until:
            if self.state is BreakerState.OPEN:
                self._become(Cause.RESTED, now)
            else:
                self._let_probes_pass(now)  # nothing was heard of the last ones
        if self.state is BreakerState.OPEN:
            return self._until - now
        return 0.0 if self._takes_probe() else min(self._until - now, _SOON)

    def record_success(self, now: float) -> BreakerState | None:
        if self.state is _CLOSED:
            self._outcomes.add(now, False)
            return None
        if self.state is BreakerState.OPEN:
            return None
        self._successes += 1
        return self._become(Cause.RECOVERED, now) if self._successes >= self._policy.probes else None

    def record_failure(self, now: float) -> BreakerState | None:
        if self.state is BreakerState.OPEN:
            return None
        if self.state is BreakerState.PROBING:
            return self._become(Cause.RELAPSED, now)
        self._outcomes.add(now, True)
        return self._become(Cause.TRIPPED, now) if self._is_too_much() else None

    def blames(self, error: BaseException) -> bool:
        """Does an error that may pass say something about the dependency?"""
        return self._policy.blames(error)

    def record_inconclusive(self) -> None:
        """A message that was permitted ended in a way that says nothing about the dependency: another may probe."""
        if self.state is BreakerState.PROBING and self._probes + self._successes < self._policy.probes:
            self._probes += 1

    # What it means -----------------------------------------------------------------------------------

    @property
    def failure_rate(self) -> float:
        """Of the latest calls; from the trip to the recovery, of those for which it tripped."""
        return self._rate() if self.state is _CLOSED else self._failure_rate

    def _rate(self) -> float:
        return self._outcomes.failures / self._outcomes.calls if self._outcomes.calls else 0.0

    def _is_too_much(self) -> bool:
        return self._outcomes.calls >= self._policy.minimum_calls and self._rate() >= self._policy.failure_rate

    def _become(self, cause: Cause, now: float) -> BreakerState:
        self.state = LIFECYCLE[self.state][cause]
        match cause:
            case Cause.TRIPPED:
                self._failure_rate = self._rate()
                self._stop_probing(now)
            case Cause.RELAPSED:
                self._stop_probing(now)
            case Cause.RESTED:
                self._let_probes_pass(now)
            case Cause.RECOVERED:
                self._outcomes.clear()
                self._trips = 0
            case _ as never:
                assert_never(never)
        return self.state

    def _stop_probing(self, now: float) -> None:
        self._trips += 1
        self._until = now + self._pause()

    def _let_probes_pass(self, now: float) -> None:
        self._probes = self._policy.probes
        self._successes = 0
        self._until = now + self._pause()

    def _takes_probe(self) -> bool:
        if not self._probes:
            return False
        self._probes -= 1
        return True

    def _pause(self) -> float:
        return self._pauses.delay(self._trips, chance=0).total_seconds()

    def __repr__(self) -> str:
        match self.state:
            case BreakerState.CLOSED:
                return f"<Breaker CLOSED failed={self._outcomes.failures}/{self._outcomes.calls}>"
            case BreakerState.OPEN:
                return f"<Breaker OPEN until={self._until:.3f} trips={self._trips}>"
            case BreakerState.PROBING:
                return f"<Breaker PROBING succeeded={self._successes}/{self._policy.probes} trips={self._trips}>"
            case _ as never:
                assert_never(never)
