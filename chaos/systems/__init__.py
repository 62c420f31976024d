"""Who does the work. Each is a program for its producer and for its worker, started as its manual says."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from chaos.work import ATTEMPTS, QUEUE


@dataclass(frozen=True)
class System:
    name: str
    title: str
    module: str
    worker: tuple[str, ...]  # what comes behind `python -m`
    waiting: tuple[str, ...] = ()  # queues besides the main one where a message is still on its way
    parked: str = f"{QUEUE}.dlq"
    inbox: bool = False  # its effects are rows of a database, always
    tries: int = 1  # how often it tries what is hopeless

    def command(self, part: str) -> list[str]:
        if part == "work":
            return [sys.executable, "-m", *self.worker]
        return [sys.executable, "-m", self.module, part]


def _own(name: str, title: str, **more: object) -> System:
    module = f"chaos.systems.{name}"
    return System(
        name, title, module, ("redrive", "worker", f"{module}:app"), (f"{QUEUE}.retry",), tries=ATTEMPTS, **more
    )  # type: ignore[arg-type]


SYSTEMS = {
    system.name: system
    for system in (
        _own("redrive", "Redrive"),
        _own("redrive_inbox", "Redrive, inbox", inbox=True),
        System(
            "faststream",
            "FastStream",
            "chaos.systems.faststream",
            ("chaos.systems.faststream", "work"),
        ),
        System(
            "celery",
            "Celery, acks_late",
            "chaos.systems.celery",
            ("celery", "-A", "chaos.systems.celery", "worker", "--pool=prefork", "--concurrency=2", "--loglevel=INFO"),
            tries=ATTEMPTS,
        ),
        System(
            "dramatiq",
            "dramatiq",
            "chaos.systems.dramatiq",
            ("dramatiq", "chaos.systems.dramatiq", "--processes=1", "--threads=8"),
            (f"{QUEUE}.DQ",),
            f"{QUEUE}.XQ",
            tries=ATTEMPTS,
        ),
        System("aio_pika", "aio-pika, robust", "chaos.systems.aio_pika", ("chaos.systems.aio_pika", "work")),
    )
}

# One that loses messages, to see that it is found out.
CARELESS = System("careless", "acknowledges first", "chaos.systems.aio_pika", ("chaos.systems.aio_pika", "carelessly"))
