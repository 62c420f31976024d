"""`redrive broker` as a process, and programs run to their end."""

import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil

from redrive.testing import broker_process


class EmbeddedBroker(broker_process.EmbeddedBroker):
    @property
    def memory(self) -> int:
        """Resident bytes."""
        return int(psutil.Process(self.pid).memory_info().rss)


def run(
    *command: str,
    given: str = "",
    within: float = 30,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end. Whether it succeeded is for the caller to judge."""
    return subprocess.run(
        command, input=given, capture_output=True, text=True, timeout=within, check=False, cwd=cwd, env=environment
    )


def eventually(condition: Callable[[], object], *, within: float = 20) -> None:
    """Wait for a fact that has no event of its own."""
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.01)
