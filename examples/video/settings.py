"""What can be set from outside, and what it is otherwise."""

import os
from pathlib import Path

from examples.variables import seconds
from redrive import BrokerURL, Database, duration, environment, explains_errors
from redrive.errors import ConfigurationError

# Celery shows a traceback for any error in the modules that it imports. So each function ends the process by itself.


@explains_errors
def _waits() -> list[str]:
    waits = os.environ.get("VIDEO_RETRY_WAITS", "30s,60s,2m,10m").split(",")
    if len(waits) < 2:
        raise ConfigurationError(f"VIDEO_RETRY_WAITS {waits[0]!r}: want two waits or more, as in 30s,60s")
    for wait in waits:
        duration(wait, "VIDEO_RETRY_WAITS")
    return waits


# How long a task waits before each retry. The second queue is the oldest of them: see `topology.py`.
WAITS = _waits()
FOLDER = Path(os.environ.get("VIDEO_FOLDER", environment.data() / "video"))
TOOL_TIMEOUT = explains_errors(seconds)("VIDEO_TIMEOUT", 600)


@explains_errors
def broker() -> str:
    """`python -m examples.video` brings its own; else whoever listens where brokers do, `redrive broker` for one."""
    url = environment.broker() or "amqp://guest:guest@127.0.0.1:5672/"
    BrokerURL.parse(url)
    return url


@explains_errors
def database() -> Database:
    """Return the database in which Celery keeps results."""
    folder = environment.data()
    folder.mkdir(parents=True, exist_ok=True)
    return Database(environment.database() or f"sqlite:///{folder.resolve()}/results.db")


def results() -> str:
    """Return the database as Celery names it."""
    return "db+" + database().url.render_as_string(hide_password=False)
