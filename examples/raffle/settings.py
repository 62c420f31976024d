"""What can be set from outside, and what it is otherwise."""

import os

from redrive.errors import ConfigurationError


def _number(name: str, default: int, most: int = 1_000_000_000) -> int:
    said = os.environ.get(name, "").strip() or str(default)
    if not (said.isascii() and said.isdigit() and 1 <= int(said) <= most):
        raise ConfigurationError(f"{name} {said!r}: want a whole number from 1 to {most:,}")
    return int(said)


RETRY_TTL_MS = _number("RETRY_TTL_MS", 10_000)
MAX_RETRIES = _number("MAX_RETRIES", 3, most=1000)  # attempts in all before the dead-letter queue; README.md says why

# A batch is one INSERT, and SQLite takes 32,766 values in a statement: three for each user.
USERS_BATCH_SIZE = _number("USERS_BATCH_SIZE", 1000, most=10_000)
USERS_BATCH_TIMEOUT_MS = _number("USERS_BATCH_TIMEOUT_MS", 1000)
USERS_PROC_CONCURRENCY = _number("USERS_PROC_CONCURRENCY", 8, most=1000)
USERS_BATCH_CONCURRENCY = _number("USERS_BATCH_CONCURRENCY", 2, most=20)  # each has a connection to the database
