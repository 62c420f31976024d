"""Whole workers: decode each message of a full queue, call a handler, acknowledge, with all that a framework does.

Two handlers: one that does nothing, which shows what the framework costs, and one that waits for a millisecond, as if
for a database: whoever can wait for many things at a time has the advantage that it has in life.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from bench.contract import Case, Goal, NotDone, Rivals, Scenario
from bench.handling import HandleJob
from bench.workplace import Workplace

NO_OP = Case("no-op", 256)
WAITS = Case("1 ms I/O", 256)
PAUSES = {NO_OP.name: 0.0, WAITS.name: 0.001}
PEERS = ("FastStream", "dramatiq", "Celery prefork 1", "Celery solo", "taskiq")
PEERS_ON_UVLOOP = ("FastStream uvloop", "taskiq uvloop")


class Handle(Scenario[Workplace]):
    suite = "workers"
    place = 3
    name = "handle"
    title = "Workers: decode, handle, acknowledge"
    cases = (NO_OP, WAITS)
    yardsticks = ("FastStream", "dramatiq", "taskiq")
    goals = (
        Goal("redrive", at_least=5, than=Rivals("fastest", PEERS), case=NO_OP.name),
        Goal("redrive uvloop", at_least=5, than=Rivals("fastest", PEERS_ON_UVLOOP), case=NO_OP.name),
    )
    job = HandleJob
    arena = Workplace

    @contextmanager
    def stage(self, arena: Workplace, case: Case, count: int, settings: Mapping[str, int]) -> Iterator[HandleJob]:
        with arena.undeclared_queue() as queue:
            arena.wait_until_idle()
            yield HandleJob(
                url=arena.url,
                broker=arena.pid,
                queue=queue,
                size=case.size,
                count=count,
                warm_up=settings["prefetch"],  # so that those who had prefetched before the clock started gain nothing
                pause=PAUSES[case.name],
                prefetch=settings["prefetch"],
                handlers=settings["handlers"],
                threads=settings["threads"],
            )
            if left := arena.depth(queue):
                raise NotDone(f"{left} messages were not acknowledged")

    def remarks(self) -> list[str]:
        return [
            "workers prefetch `prefetch` messages and acknowledge each after its handler has returned",
            "redrive, taskiq: `handlers` coroutines at a time; FastStream: one for each message that was prefetched",
            "dramatiq, redrive threads: a plain function in `threads` threads; Celery: a plain function, one at a time",
            "redrive: with its usual retries and dead-letter queue; dramatiq: with its usual middleware",
            "FastStream: msgspec, no injection, no logs; taskiq: no validation, no results",
            "Celery: no results, events, gossip, mingle, heartbeat or remote control",
            "Celery prefork 1: two processes, the worker and its pool; the CPU is that of both",
        ]


scenario = Handle()
