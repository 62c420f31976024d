"""`redrive broker` as a process that a test owns: started, stopped, killed, and started again on the same port."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from redrive.testing.ports import LOOPBACK, free_port
from redrive.testing.processes import PrivateServer, ServerFailed, ServerProcess, tail

_READY = "listening on amqp://"


class EmbeddedBroker(PrivateServer):
    """`<EmbeddedBroker port=23456 data=data RUNNING pid=4711>`; without a data folder it keeps nothing."""

    def __init__(self, directory: Path, *, data: Path | None = None) -> None:
        self.directory = directory
        self.data = data
        self.port = free_port()

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@{LOOPBACK}:{self.port}/"

    @property
    def command(self) -> list[str]:
        kept = ["--memory"] if self.data is None else ["--data", str(self.data)]
        return [sys.executable, "-m", "redrive", "broker", "--port", str(self.port), *kept]

    @property
    def log(self) -> Path:
        return self.directory / "broker.log"

    def start(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        before = self.log.stat().st_size if self.log.exists() else 0
        self._process = ServerProcess(self.command, environment=dict(os.environ), log=self.log)
        try:
            self._process.wait_until(lambda: _READY in self.log.read_text()[before:], timeout=30)
        except ServerFailed as failed:
            self.kill()
            raise ServerFailed(f"the embedded broker did not start: {failed}\n{tail(self.log)}") from None

    def discard(self) -> None:
        """End it. The folder is its owner's, who may look into it, or start another on its data."""
        self.kill()

    def __repr__(self) -> str:
        return f"<EmbeddedBroker port={self.port} data={self.data} {self.state}>"
