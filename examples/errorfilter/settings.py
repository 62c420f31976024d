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
from examples.variables import length, number
from redrive import BreakerPolicy
from redrive.errors import ConfigurationError


def _errors(name: str, otherwise: Errors) -> Errors:
    """A list of errors by their names."""
    said = os.environ.get(name, "").replace(",", " ").split()
    if unknown := [one for one in said if one not in BY_NAME]:
        raise ConfigurationError(f"{name}: unknown {', '.join(unknown)}; there are {', '.join(BY_NAME)}")
    return tuple(BY_NAME[one] for one in said) or otherwise


def _backoff() -> bool:
    """Return whether the waits grow."""
    said = os.environ.get("RETRY_BACKOFF", "fixed")
    if said not in ("fixed", "exponential"):
        raise ConfigurationError(f"RETRY_BACKOFF: {said!r}; there are fixed and exponential")
    return said == "exponential"


FILTER = RabbitMQConsumerErrorFilter(
    header=os.environ.get("RETRY_COUNT_HEADER", RETRY_COUNT_HEADER),
    max_retries=number("MAX_RETRIES", MAX_RETRIES, least=0, most=1000),
    non_retryable=_errors("NON_RETRYABLE_ERRORS", NON_RETRYABLE_ERRORS),
    retryable=_errors("RETRYABLE_ERRORS", (Exception,)),
    delay=length("RETRY_DELAY", DELAY),
    ceiling=length("RETRY_CEILING", LONGEST_DELAY),
    exponential=_backoff(),
)

# When half of the latest calls of the gateway failed, it is left alone for a while.
BREAKER_CALLS = number("BREAKER_CALLS", 20)
BREAKER_PAUSE = length("BREAKER_PAUSE", timedelta(seconds=30))
BREAKER = BreakerPolicy(
    failure_rate=0.5,
    minimum_calls=BREAKER_CALLS,
    window=max(100, BREAKER_CALLS),
    pause=BREAKER_PAUSE,
    ceiling=10 * BREAKER_PAUSE,
)

SANDBOX = ("127.0.0.1", number("SANDBOX_PORT", 8901, most=65_535))
GATEWAY_URL = os.environ.get("GATEWAY_URL")  # none: the sandbox, in the same process
GATEWAY_TIMEOUT = length("GATEWAY_TIMEOUT", timedelta(seconds=2))
