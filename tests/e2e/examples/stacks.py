"""An example as a process, on the embedded default or on RabbitMQ and PostgreSQL; a test's own way to its broker."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa

from redrive.broker.shared import SharedBroker
from redrive.client import Connection
from redrive.database.engine import Database
from redrive.testing.processes import ServerFailed, ServerProcess, tail

ROOT = Path(__file__).parent.parent.parent.parent
WITHIN = 60.0


@dataclass(frozen=True)
class Stack:
    """Where an example runs: `broker` and `database` are None where it brings its own."""

    folder: Path
    broker: str | None = None
    database: str | None = None
    management: str | None = None

    @property
    def data(self) -> Path:
        return self.folder / ".redrive"

    def environment(self, **said: str) -> dict[str, str]:
        """That of a process of this example: nothing of ours but what is said, and where everything is."""
        ours = {name: value for name, value in os.environ.items() if not name.startswith("REDRIVE_")}
        places = {
            "REDRIVE_BROKER": self.broker,
            "REDRIVE_DATABASE": self.database,
            "REDRIVE_MANAGEMENT": self.management,
        }
        path = {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "PYTHONUNBUFFERED": "1"}
        return ours | path | {name: value for name, value in places.items() if value is not None} | said

    @contextmanager
    def running(self, *command: str, log: str = "example.log", **said: str) -> Iterator[Program]:
        """`python -m …` in the stack's folder, and its orderly end."""
        program = Program(self, command, self.folder / log, said)
        try:
            yield program
        finally:
            program.stop()

    def run(self, *command: str, within: float = WITHIN, **said: str) -> subprocess.CompletedProcess[str]:
        """`python -m …`, to its end."""
        return subprocess.run(
            [sys.executable, "-m", *command],
            env=self.environment(**said),
            cwd=self.folder,
            text=True,
            capture_output=True,
            timeout=within,
            check=False,
        )

    def hold(self, definitions: Path) -> None:
        """Declare what a definitions.json has, and have the broker compared with it: nothing less, nothing else."""
        for command in (["apply"], ["check", "--strict"]):
            told = self.run("redrive", "topology", *command, str(definitions))
            assert told.returncode == 0, told.stdout + told.stderr

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """To the broker that the example uses, as a guest of the embedded one."""
        if self.broker is not None:
            async with Connection(self.broker, name="test") as connection:
                yield connection
            return
        async with SharedBroker(self.data) as broker, Connection(broker.url, name="test") as connection:
            yield connection

    @contextmanager
    def looking(self) -> Iterator[sa.Connection]:
        """At the database that the example uses, at what is committed."""
        database = Database(self.database) if self.database is not None else Database.embedded(self.data)
        try:
            with database.reading_connection() as connection:
                yield connection
        finally:
            database.engine.dispose()


class Program:
    def __init__(self, stack: Stack, command: tuple[str, ...], log: Path, said: Mapping[str, str]) -> None:
        self.log = log
        self.process = ServerProcess(
            [sys.executable, "-m", *command], environment=stack.environment(**said), log=self.log
        )
        self._ended = False  # not by `stop`

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def wait_for(self, pattern: str, within: float = WITHIN) -> re.Match[str]:
        """Until it has said that; what it said."""
        found: list[re.Match[str]] = []

        def said() -> bool:
            match = re.search(pattern, self.output)
            found[:] = [match] if match else []
            return bool(match)

        try:
            self.process.wait_until(said, timeout=within)
        except ServerFailed as error:
            raise AssertionError(f"no {pattern!r}: {error}\n{tail(self.log)}") from error
        return found[0]

    def wait_for_the_end(self, within: float = WITHIN) -> int:
        """Return how it ended by itself, for whatever reason."""
        deadline = time.monotonic() + within
        while self.process.running:
            assert time.monotonic() < deadline, f"it did not end\n{tail(self.log)}"
            time.sleep(0.02)
        self._ended = True
        return self.process.join()

    def kill(self) -> None:
        self._ended = True
        self.process.kill()

    def stop(self) -> None:
        """By SIGTERM, which it obeys, with nothing to be ashamed of in its log."""
        if self._ended:
            return
        self.process.stop()
        # uvicorn passes the signal on when it is done, so that whoever waits for the process knows why it ended.
        assert self.process.join() in (0, -signal.SIGTERM), tail(self.log)
        assert "Traceback" not in self.output.replace('"Traceback', ""), tail(self.log)
