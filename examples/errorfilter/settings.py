"""What can be set from outside, and what it is otherwise."""

import os
from datetime import timedelta

from examples.errorfilter.exceptions import BY_NAME
from examples.errorfilter.filtering import (
    DELAY,
    LONGEST_DELAY,
    MAX_RETRIES,
    NON_RETRYABLE_ERRORS,
    RETRY_COUNT_HEADER,
    Errors,
    RabbitMQConsumerErrorFilter,
)
from redrive import BreakerPolicy
from redrive.recovery.durations import duration


def _errors(name: str, otherwise: Errors) -> Errors:
    """A list of errors by their names."""
    said = os.environ.get(name, "").replace(",", " ").split()
    if unknown := [one for one in said if one not in BY_NAME]:
        raise SystemExit(f"{name}: unknown {', '.join(unknown)}; there are {', '.join(BY_NAME)}")
    return tuple(BY_NAME[one] for one in said) or otherwise


def _backoff() -> bool:
    """Return whether the waits grow."""
    said = os.environ.get("RETRY_BACKOFF", "fixed")
    if said not in ("fixed", "exponential"):
        raise SystemExit(f"RETRY_BACKOFF: {said!r}; there are fixed and exponential")
    return said == "exponential"


def _length(name: str, otherwise: timedelta) -> timedelta:
    said = os.environ.get(name)
    return duration(said, name) if said else otherwise


FILTER = RabbitMQConsumerErrorFilter(
    header=os.environ.get("RETRY_COUNT_HEADER", RETRY_COUNT_HEADER),
    max_retries=int(os.environ.get("MAX_RETRIES", MAX_RETRIES)),
    non_retryable=_errors("NON_RETRYABLE_ERRORS", NON_RETRYABLE_ERRORS),
    retryable=_errors("RETRYABLE_ERRORS", (Exception,)),
    delay=_length("RETRY_DELAY", DELAY),
    ceiling=_length("RETRY_CEILING", LONGEST_DELAY),
    exponential=_backoff(),
)

# When half of the latest calls of the gateway failed, it is left alone for a while.
BREAKER_CALLS = int(os.environ.get("BREAKER_CALLS", "20"))
BREAKER_PAUSE = _length("BREAKER_PAUSE", timedelta(seconds=30))
BREAKER = BreakerPolicy(
    failure_rate=0.5,
    minimum_calls=BREAKER_CALLS,
    window=max(100, BREAKER_CALLS),
    pause=BREAKER_PAUSE,
    ceiling=10 * BREAKER_PAUSE,
)

SANDBOX = ("127.0.0.1", 8901)
GATEWAY_URL = os.environ.get("GATEWAY_URL")  # none: the sandbox, in the same process
GATEWAY_TIMEOUT = _length("GATEWAY_TIMEOUT", timedelta(seconds=2))
