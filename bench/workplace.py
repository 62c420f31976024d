"""The servers of the scenarios about workers: the private RabbitMQ node, and for some of them a private PostgreSQL."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import psycopg

from bench.broker import Broker
from tests.support.postgres import Postgres

# What frameworks declare beside the queue that they are given: for retries, delays and dead letters.
_BESIDE = ("", ".retry", ".dlq", ".DQ", ".XQ", ".dead")


class Workplace(Broker):
    def __init__(self) -> None:
        super().__init__()
        self._works = itertools.count(1)
        self._postgres: Postgres | None = None
        Path(self._directory.name).chmod(0o711)  # as root, PostgreSQL runs as another user, who has to get there

    def __exit__(self, *reason: object) -> None:
        if self._postgres is not None:
            self._postgres.discard()
        super().__exit__(*reason)

    @contextmanager
    def undeclared_queue(self) -> Iterator[str]:
        """The name of a queue that is not there: frameworks declare theirs themselves, with arguments of their own."""
        name = f"work-{next(self._works)}"
        try:
            yield name
        finally:
            self.delete(*(name + beside for beside in _BESIDE))

    @property
    def dsn(self) -> str:
        """Of a database, whose server is started when first asked for. It syncs each commit to the disk."""
        if self._postgres is None:
            self._postgres = Postgres(Path(self._directory.name) / "postgres")
            self._postgres.start()
        return self._postgres.dsn

    def versions(self) -> dict[str, str]:
        if self._postgres is None:
            return super().versions()
        with psycopg.connect(self._postgres.dsn) as connection:
            major, minor = divmod(connection.info.server_version, 10_000)
        return {**super().versions(), "PostgreSQL": f"{major}.{minor}"}

    def cpu_seconds(self) -> float:
        return super().cpu_seconds() + self._cpu_of_postgres()

    def _cpu_of_postgres(self) -> float:
        """The server, its sessions, and the sessions that have ended."""
        if self._postgres is None or self._postgres.pid is None:
            return 0.0
        server = psutil.Process(self._postgres.pid)
        times = server.cpu_times()
        seconds = times.user + times.system + times.children_user + times.children_system
        for session in server.children():
            with suppress(psutil.NoSuchProcess):
                own = session.cpu_times()
                seconds += own.user + own.system
        return float(seconds)
