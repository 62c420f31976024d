"""`python -m chaos.soak`: work for half an hour, a fault of any kind every few seconds, and nothing may grow.

One worker is never ended: what it holds, in memory and in files, is looked at all the time, and so is the producer. The
faults are those of `chaos.faults` that leave it alone; which comes next, and when, is up to the seed.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import click
import msgspec
import psutil

from chaos.brokers import Broker, Node
from chaos.faults import FAULTS, Fault
from chaos.report import between
from chaos.roots import root_of
from chaos.scene import Scene
from chaos.systems import SYSTEMS
from redrive.testing import ServerFailed
from tests.support.postgres import Postgres

DOCUMENT = Path(__file__).parent.parent / "docs" / "reliability.md"
RESULT = Path(__file__).parent / "soak.json"
GROWTH = 1.1  # times what it was after a tenth of the time: flat
SPARE_FILES = 5  # a connection more or less at the moment of the look
_LOOK = 5.0  # seconds
_PAUSE = (4.0, 20.0)  # seconds between two faults
_EXCLUDED = {"delete-queue", "clock"}  # the one waits until all is done, the other needs clocks that can be set


class Weather(Fault):
    """Any fault, chosen anew at every strike."""

    name, title, network, database = "soak", "any", True, True

    def __init__(self, broker: Broker) -> None:
        self.kinds = [one for one in FAULTS.values() if one.possible_on(broker) and one.name not in _EXCLUDED]
        self.struck: list[str] = []

    async def strike(self, scene: Scene, chance: Random) -> None:
        chosen = chance.choice(self.kinds)
        self.struck.append(chosen.name)
        await chosen.strike(scene, chance)


class Sample(msgspec.Struct, frozen=True):
    seconds: float
    memory: int  # bytes
    files: int


@dataclass
class Watched:
    """A process that is to last, and what it held over time."""

    name: str
    pid: int
    began: float
    samples: list[Sample] = field(default_factory=list)

    def look(self) -> None:
        """What it holds now, unless it has come to its end."""
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(self.pid)
            if process.status() == psutil.STATUS_ZOMBIE:
                return
            seconds = time.monotonic() - self.began
            self.samples.append(Sample(seconds, process.memory_info().rss, process.num_fds()))


class Held(msgspec.Struct, frozen=True):
    """After a tenth of the time, at most from then on, and at the end."""

    early: int
    most: int
    end: int

    @classmethod
    def of(cls, values: list[int]) -> Held:
        later = values[len(values) // 10 :]
        return cls(later[0], max(later), later[-1])


class Soaked(msgspec.Struct, frozen=True):
    broker: str
    system: str
    seed: int
    minutes: float
    messages: int
    faults: dict[str, int]
    lost: int
    stuck: int
    doubled: int
    parked_wrongly: int
    worst_recovery: float
    memory: dict[str, Held]
    files: dict[str, Held]

    @property
    def flat(self) -> bool:
        return all(held.end <= held.early * GROWTH for held in self.memory.values()) and all(
            held.end <= held.early + SPARE_FILES for held in self.files.values()
        )

    def __str__(self) -> str:
        faults = ", ".join(f"{name} {count}" for name, count in sorted(self.faults.items()))
        lines = [
            f"{self.minutes:.0f} minutes on {self.broker}, {SYSTEMS[self.system].title}: {self.messages:,} messages, "
            f"{sum(self.faults.values())} faults ({faults}). {self.lost} lost, {self.stuck} stuck, "
            f"{self.doubled} doubled, {self.parked_wrongly} parked because their attempts did not outlast the "
            f"database's absence; the longest recovery took {self.worst_recovery:.0f} s.",
            "",
            "| | after a tenth | at most | at the end |",
            "|---|---|---|---|",
        ]
        for name, held in self.memory.items():
            lines.append(f"| {name}: memory | " + " | ".join(f"{n / 1e6:.0f} MB" for n in _three(held)) + " |")
            lines.append(f"| {name}: open files | " + " | ".join(map(str, _three(self.files[name]))) + " |")
        return "\n".join(lines)


def _three(held: Held) -> tuple[int, int, int]:
    return held.early, held.most, held.end


class Soak(Scene):
    """A scene in which the strikes come by the clock."""

    def __init__(self, broker: Broker, folder: Path, postgres: Postgres, minutes: float) -> None:
        self.weather = Weather(broker)
        longest = minutes * 60 + 600
        super().__init__(
            SYSTEMS["redrive_inbox"], broker, self.weather, folder, postgres, look=_LOOK, longest=longest, quiet=90
        )
        self._minutes = minutes
        self.watched: list[Watched] = []

    @property
    def strikes(self) -> int:
        return len(self.weather.struck)

    async def disturb(self, messages: int, chance: Random) -> list[float]:  # noqa: ARG002
        began, recoveries = time.monotonic(), []
        assert self.producer is not None
        self.watched = [
            Watched("a worker", self.workers[-1].pid, began),
            Watched("the producer", self.producer.pid, began),
        ]
        watching = asyncio.create_task(self._watch())
        try:
            while time.monotonic() - began < self._minutes * 60:
                await asyncio.sleep(chance.uniform(*_PAUSE))
                await self.weather.strike(self, chance)
                recoveries.append(await self.recovery())
                click.echo(f"{time.monotonic() - began:6.0f} s  {self.weather.struck[-1]}, {recoveries[-1]:.0f} s")
        finally:
            watching.cancel()
        if not psutil.pid_exists(self.watched[0].pid):
            raise ServerFailed("the worker that was to last has ended by itself")
        return recoveries

    async def _watch(self) -> None:
        while True:
            for one in self.watched:
                one.look()
            await asyncio.sleep(_LOOK)


@click.command()
@click.option("--minutes", default=30.0, show_default=True)
@click.option("--rate", default=250.0, show_default=True, help="Messages a second.")
@click.option("--seed", default=1, show_default=True, help="Of all chance.")
@click.option("--broker", "which", default="4.3", show_default=True, type=click.Choice(["3.10", "4.3"]))
@click.option("--write/--no-write", default=True, help="Put what came of it into docs/reliability.md.")
def main(minutes: float, rate: float, seed: int, which: str, write: bool) -> None:
    """Work for a long time, with faults of all kinds, and see whether anything is lost or grows."""
    with tempfile.TemporaryDirectory(prefix="soak-") as name:
        folder = Path(name)
        folder.chmod(0o755)  # the database's user goes through it
        with Postgres(folder / "postgres") as postgres:
            broker = Node(folder / which, which, root_of(which))
            try:
                soak = Soak(broker, folder / "run", postgres, minutes)
                outcome = asyncio.run(soak.run(messages=round(minutes * 60 * rate), rate=rate, seed=seed))
            finally:
                broker.close()
    account = outcome.account
    if not account.sound:
        click.echo(f"lost {account.lost}, stuck {account.stuck}", err=True)
    soaked = Soaked(
        broker=broker.name,
        system=soak.system.name,
        seed=seed,
        minutes=minutes,
        messages=account.confirmed,
        faults={kind: soak.weather.struck.count(kind) for kind in set(soak.weather.struck)},
        lost=len(account.lost),
        stuck=len(account.stuck),
        doubled=account.doubled,
        parked_wrongly=len(account.parked_wrongly),
        worst_recovery=max(outcome.recoveries, default=0.0),
        memory={one.name: Held.of([sample.memory for sample in one.samples]) for one in soak.watched},
        files={one.name: Held.of([sample.files for sample in one.samples]) for one in soak.watched},
    )
    click.echo(soaked)
    if write:
        RESULT.write_bytes(msgspec.json.format(msgspec.json.encode(soaked)) + b"\n")
        between(DOCUMENT, "soak", str(soaked))
    if soaked.lost or soaked.stuck or soaked.doubled or not soaked.flat:
        raise SystemExit("something was lost, stuck or done twice, or something grew")


if __name__ == "__main__":
    main()
