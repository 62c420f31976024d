"""What can be set from outside, and what it is otherwise."""

from examples.variables import number

RETRY_TTL_MS = number("RETRY_TTL_MS", 10_000)
MAX_RETRIES = number("MAX_RETRIES", 3, most=1000)  # attempts in all before the dead-letter queue; README.md says why

# A batch is one INSERT, and SQLite takes 32,766 values in a statement: three for each user.
USERS_BATCH_SIZE = number("USERS_BATCH_SIZE", 1000, most=10_000)
USERS_BATCH_TIMEOUT_MS = number("USERS_BATCH_TIMEOUT_MS", 1000)
USERS_PROC_CONCURRENCY = number("USERS_PROC_CONCURRENCY", 8, most=1000)
USERS_BATCH_CONCURRENCY = number("USERS_BATCH_CONCURRENCY", 2, most=20)  # each has a connection to the database
