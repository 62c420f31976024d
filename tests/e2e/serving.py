"""`redrive serve` as a process, for tests."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from admin_api import SECRET
from redrive.testing.processes import ServerProcess, tail

ROOT = Path(__file__).parent.parent.parent
_ADDRESS = re.compile(r"the console is at (http://[^ ]+)/ and the API")
_LINK = re.compile(r"within ten minutes: (http://\S+)")


class Server:
    def __init__(
        self, folder: Path, broker: str | None, *words: str, management: str | None = None, **said: str
    ) -> None:
        ours = {name: value for name, value in os.environ.items() if not name.startswith("REDRIVE_")}
        told = {"REDRIVE_BROKER": broker, "REDRIVE_MANAGEMENT": management, "REDRIVE_ADMIN_JWT_SECRET": SECRET, **said}
        self.environment = ours | {name: value for name, value in told.items() if value is not None}
        self.folder = folder
        self.words = words
        self.log = folder / "serve.log"
        self.process: ServerProcess | None = None
        self.address = ""

    def start(self, port: int = 0) -> None:
        before = self.log.stat().st_size if self.log.exists() else 0
        command = [sys.executable, "-m", "redrive", "serve", "--port", str(port), *self.words]
        self.process = ServerProcess(command, environment=self.environment, log=self.log)

        def is_up() -> bool:
            found = _ADDRESS.search(self.log.read_text()[before:])
            self.address = found[1] if found else ""
            return bool(found) and self._answers()

        try:
            self.process.wait_until(is_up, timeout=60)
        except Exception as error:
            raise AssertionError(tail(self.log)) from error

    def _answers(self) -> bool:
        try:
            return httpx.get(f"{self.address}/healthz", timeout=5).status_code == 200
        except httpx.TransportError:
            return False

    @property
    def port(self) -> int:
        return httpx.URL(self.address).port or 0

    @property
    def link(self) -> str:
        """By which to sign in, once (--dev)."""
        found = _LINK.findall(self.log.read_text())
        return str(found[-1])

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()

    def stop(self) -> None:
        assert self.process is not None
        self.process.stop()


@contextmanager
def serving(folder: Path, broker: str | None, *words: str, **said: str | None) -> Iterator[Server]:
    server = Server(folder, broker, *words, **said)
    server.start()
    try:
        yield server
    finally:
        server.stop()
        text = server.log.read_text()
    assert "Traceback" not in text, text
