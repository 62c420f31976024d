"""What a peer, a scenario and a measurement are.

A scenario is a question ("how many messages can be published and confirmed?") with cases (message sizes). A
system is a library that can answer it, and a contender is one way to use that system: a function that takes the
scenario's job and a stopwatch, prepares itself, and does the job while the watch runs:

    system = System("aio-pika", packages=("aio-pika", "aiormq"))

    @system.contends("publish")
    async def publish(job: MessageJob, watch: Stopwatch) -> None:
        connection = await aio_pika.connect(job.url)
        ...
        with watch:
            ...

Contenders run in interpreters of their own. Connecting, importing and closing are not measured.
"""

from __future__ import annotations

import importlib.metadata
import resource
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Literal, NamedTuple, Protocol, Self, TypeVar

import msgspec

Function = Callable[[Any, "Stopwatch"], Awaitable[None] | None]
F = TypeVar("F", bound=Function)


class Arena(Protocol):
    """What the measurements of a run share: a broker, a database."""

    def versions(self) -> dict[str, str]: ...

    def cpu_seconds(self) -> float:
        """What its processes have used so far."""
        ...


A = TypeVar("A", bound=Arena)


class Elapsed(NamedTuple):
    seconds: float
    cpu_seconds: float  # user and system time of the client's process, all its threads


class Stopwatch:
    """Wall clock and CPU of this process, from entry to exit."""

    def __init__(self, cpu_seconds: Callable[[], float] | None = None) -> None:
        """`cpu_seconds`: for a contender that is more than this process."""
        self.elapsed: Elapsed | None = None
        self._cpu_seconds = cpu_seconds or own_cpu_seconds

    def __enter__(self) -> Self:
        self._cpu = self._cpu_seconds()
        self._began = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.elapsed = Elapsed(time.perf_counter() - self._began, self._cpu_seconds() - self._cpu)

    def record(self, elapsed: Elapsed) -> None:
        """For a contender whose work is done, and measured, by another program."""
        self.elapsed = elapsed


def own_cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


@dataclass(frozen=True)
class Contender:
    """One way to use one system in one scenario: one row of the table."""

    system: str
    variant: str
    scenario: str
    function: Function = field(repr=False)
    loop: str = "asyncio"
    one_at_a_time: bool = False  # its library waits for each message before it sends the next

    @property
    def name(self) -> str:
        return f"{self.system} {self.variant}".strip()


class System:
    """A library under test. Each file in `bench/peers` makes one, called `system`."""

    def __init__(self, name: str, *, packages: tuple[str, ...] = ()) -> None:
        self.name = name
        self.packages = packages
        self.contenders: list[Contender] = []

    def contends(
        self, scenario: str, variant: str = "", *, loop: str = "asyncio", one_at_a_time: bool = False
    ) -> Callable[[F], F]:
        """Enter a function for a scenario. `loop="uvloop"` runs a coroutine function there; stack for several rows."""

        def enter(function: F) -> F:
            self.contenders.append(Contender(self.name, variant, scenario, function, loop, one_at_a_time))
            return function

        return enter

    def obstacle(self) -> str | None:
        """Why the system cannot take part on this machine, or None."""
        return None

    def versions(self) -> dict[str, str]:
        return {package: importlib.metadata.version(package) for package in self.packages}

    def __repr__(self) -> str:
        return f"<System {self.name} contenders={len(self.contenders)}>"


class Case(NamedTuple):
    """One size of a scenario's work."""

    name: str
    size: int


class Rivals(NamedTuple):
    """Several contenders, of whom the fastest counts, or the slowest. None of them may be missing."""

    which: Literal["fastest", "slowest"]
    names: tuple[str, ...]

    def __str__(self) -> str:
        return f"the {self.which} of {', '.join(self.names)}"


@dataclass(frozen=True)
class Goal:
    """What Redrive set out to reach in a scenario: a ratio of rates to another contender, or a limit on CPU."""

    contender: str
    at_least: float = 0  # times the rate of `than`
    than: str | Rivals | None = None
    cpu_at_most: float | None = None  # µs of the client per message
    case: str | None = None  # the only one in which it counts

    def __str__(self) -> str:
        if self.than is not None:
            return f"{self.contender} ≥ {self.at_least:g} × {self.than}"
        return f"{self.contender} ≤ {self.cpu_at_most:g} µs CPU per message"


class Scenario(ABC, Generic[A]):
    """A question. Each file in `bench/scenarios` makes one, called `scenario`.

    `arena` makes what all measurements share; scenarios that name the same one share it.
    """

    suite: ClassVar[str] = "clients"  # which command asks it: `clients` is `python -m bench`
    place: ClassVar[int]  # in the report
    name: ClassVar[str]
    title: ClassVar[str]
    cases: ClassVar[tuple[Case, ...]]
    yardsticks: ClassVar[tuple[str, ...]]  # contenders whose rate the table compares with
    goals: ClassVar[tuple[Goal, ...]]
    job: ClassVar[type[msgspec.Struct]]
    arena: Callable[[], AbstractContextManager[A]]
    unit: ClassVar[int] = 1  # a measurement handles a multiple of this many messages
    most_bytes: ClassVar[int] = 160_000_000  # of one measurement: a broker that runs out of memory measures that

    @abstractmethod
    def stage(
        self, arena: A, case: Case, count: int, settings: Mapping[str, int]
    ) -> AbstractContextManager[msgspec.Struct]:
        """Prepare one measurement and give its job; afterwards check that it was done, and clear away."""

    def remarks(self) -> list[str]:
        """What else a reader should know about the figures."""
        return []


class NotDone(Exception):
    """A contender returned, and its job was not done."""
