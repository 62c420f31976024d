"""What can be set from outside, and what it is otherwise."""

import os
from pathlib import Path

from redrive import environment

# How long a task waits before each retry. The second queue is the oldest of them: see `topology.py`.
WAITS = os.environ.get("VIDEO_RETRY_WAITS", "30s,60s,2m,10m").split(",")
FOLDER = Path(os.environ.get("VIDEO_FOLDER", environment.data() / "video"))
TOOL_TIMEOUT = float(os.environ.get("VIDEO_TIMEOUT", "600"))


def broker() -> str:
    """`python -m examples.video` brings its own; else whoever listens where brokers do, `redrive broker` for one."""
    return environment.broker() or "amqp://guest:guest@127.0.0.1:5672/"


def results() -> str:
    """Where Celery keeps results."""
    folder = environment.data()
    folder.mkdir(parents=True, exist_ok=True)
    return "db+" + (environment.database() or f"sqlite:///{folder.resolve()}/results.db")
