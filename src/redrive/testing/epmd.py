"""The Erlang port mapper, one per private node or cluster.

Erlang nodes find each other's ports by asking the epmd of the machine, and trust each other by a shared secret, the
cookie. By default all nodes of a machine register at one epmd, on port 4369, which the first of them leaves running for
ever. A private node must do neither, so it brings its own.
"""

import secrets
from pathlib import Path

from redrive.testing.installation import PATH, Installation
from redrive.testing.ports import LOOPBACK, free_port, is_open
from redrive.testing.processes import ServerProcess


class Epmd:
    """The Erlang port mapper, and the cookie: what nodes that may talk to each other have in common."""

    def __init__(self, directory: Path, installation: Installation) -> None:
        self.directory = directory
        self.installation = installation
        self.port = free_port()
        self.cookie = secrets.token_hex(16)
        self._process: ServerProcess | None = None

    def start(self) -> None:
        """Start it unless it runs. In the foreground, so that it stays our child; RabbitMQ would daemonise one."""
        if self._process is not None:
            return
        self.directory.mkdir(parents=True, exist_ok=True)
        listen = ["epmd", "-port", str(self.port), "-address", LOOPBACK]
        command = self.installation.command(listen, shared=self.directory)
        log = self.directory / "epmd.log"
        self._process = ServerProcess(command, environment={"PATH": PATH}, log=log)
        self._process.wait_until(lambda: is_open(self.port), timeout=30)

    def end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process = None
