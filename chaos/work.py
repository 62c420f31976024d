"""The work: numbered orders. What becomes of an order depends on its number alone.

Of two hundred orders one can never be handled and is to be parked, ten fail once, and the others succeed. Every handler
writes down what it did before its message is acknowledged; the producer writes down what was confirmed.
"""

from __future__ import annotations

import os
import re
import time
from enum import Enum
from pathlib import Path

import msgspec

ATTEMPTS = 3
WAIT = 1.0  # seconds between attempts
QUEUE = "orders"
HEARTBEAT = 5  # seconds, for every system: what a silent network is found by
_MARK = re.compile(rb"order-(\d+)")


class Fate(Enum):
    FINE = "fine"
    FAILS_ONCE = "fails once"
    HOPELESS = "hopeless"


def fate_of(number: int) -> Fate:
    rest = number % 200
    if rest == 0:
        return Fate.HOPELESS
    return Fate.FAILS_ONCE if rest <= 10 else Fate.FINE


def name_of(number: int) -> str:
    """As it is written into a message: whoever encodes it, and however, it can be found there."""
    return f"order-{number}"


def number_of(body: bytes) -> int | None:
    found = _MARK.search(body)
    return int(found[1]) if found else None


class DestinationUnavailable(ValueError):
    """An order that can never be handled."""


class Busy(OSError):
    """An order that can be handled the next time."""


class DatabaseAway(Busy):
    """What needs the database can be done when it is back."""


class Job(msgspec.Struct, frozen=True):
    """All that a program of a system is told, by the environment."""

    url: str
    folder: str  # where everything is written down
    messages: int
    rate: float  # messages a second, at the most
    kind: str  # of the queues: classic, quorum
    database: str | None = None  # effects are rows in this one, and lines in a file otherwise

    VARIABLE = "CHAOS_JOB"

    @classmethod
    def given(cls) -> Job:
        return msgspec.json.decode(os.environ[cls.VARIABLE], type=cls)

    def environment(self) -> dict[str, str]:
        return {self.VARIABLE: msgspec.json.encode(self).decode()}

    @property
    def confirmed(self) -> Path:
        return Path(self.folder) / "confirmed"

    @property
    def effects(self) -> Path:
        return Path(self.folder) / "effects"

    @property
    def pause(self) -> Path:
        """While this file is there, nobody publishes."""
        return Path(self.folder) / "pause"


class Lines:
    """A file to which whole lines are added, each in the system's hands when `write` returns."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY)

    def write(self, *words: object) -> None:
        os.write(self._file, (" ".join(map(str, words)) + "\n").encode())


class Handling:
    """What every system's handler does, once it has an order in its hands and knows the attempt."""

    def __init__(self, job: Job) -> None:
        self._lines = Lines(job.effects)
        self._table = _Table(job.database) if job.database is not None else None

    def decide(self, order: str, attempt: int) -> int:
        """Its number, if it can be handled now."""
        number = number_of(order.encode())
        assert number is not None, order
        fate = fate_of(number)
        if fate is Fate.HOPELESS or (fate is Fate.FAILS_ONCE and attempt == 1):
            self._lines.write(number, attempt, "failed")
            raise DestinationUnavailable(order) if fate is Fate.HOPELESS else Busy(order)
        return number

    def handle(self, order: str, attempt: int) -> None:
        number = self.decide(order, attempt)
        if self._table is not None:
            self._table.add(number)
        else:
            self.note(number, attempt)

    def note(self, number: int, attempt: int) -> None:
        self._lines.write(number, attempt, "done")


class _Table:
    """Effects as rows, each committed by itself; a lost connection is an error, and the next one is new."""

    def __init__(self, database: str) -> None:
        import threading

        self._address = database.replace("postgresql+psycopg://", "postgresql://")
        self._local = threading.local()

    def add(self, number: int) -> None:
        import psycopg

        try:
            connection = getattr(self._local, "connection", None)
            if connection is None:
                connection = psycopg.connect(self._address, autocommit=True, connect_timeout=5)
                self._local.connection = connection
            connection.execute("INSERT INTO effects (number) VALUES (%s)", (number,))
        except psycopg.Error as error:
            if connection is not None:
                connection.close()
            self._local.connection = None
            raise DatabaseAway(f"order-{number}: {error}") from error


class Turns:
    """The numbers that a producer publishes, no faster than it may; given again until they are confirmed."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._numbers = iter(range(job.messages))
        self._lines = Lines(job.confirmed)
        self._began = time.monotonic()
        self._given = 0

    def __iter__(self) -> Turns:
        return self

    def __next__(self) -> int:
        number = next(self._numbers)
        self._given += 1
        return number

    def wait(self) -> float:
        """Seconds until the next one may be published."""
        if self._job.pause.exists():
            self._began, self._given = time.monotonic(), 0
            return 0.1
        return self._began + self._given / self._job.rate - time.monotonic()

    def confirmed(self, number: int) -> None:
        self._lines.write(number)
