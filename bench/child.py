"""The interpreter in which one contender does one job: reads an `Assignment`, writes an `Elapsed`, as JSON."""

from __future__ import annotations

import asyncio
import inspect
import sys

import msgspec

from bench.catalogue import find_scenarios, find_system
from bench.contract import Contender, Elapsed, NotDone, Stopwatch


class Assignment(msgspec.Struct, frozen=True):
    scenario: str
    peer: str  # the file in bench/peers
    contender: str
    job: msgspec.Raw


def perform(assignment: Assignment) -> Elapsed:
    contender = _find(assignment)
    job = msgspec.json.decode(assignment.job, type=find_scenarios()[assignment.scenario].job)
    watch = Stopwatch()
    if inspect.iscoroutinefunction(contender.function):
        with asyncio.Runner(loop_factory=_loop_factory(contender.loop)) as runner:
            runner.run(contender.function(job, watch))
    else:
        contender.function(job, watch)
    if watch.elapsed is None:
        raise NotDone(f"{contender.name} never stopped the watch")
    return watch.elapsed


def _find(assignment: Assignment) -> Contender:
    entered = find_system(assignment.peer).contenders
    wanted = (assignment.scenario, assignment.contender)
    return next(contender for contender in entered if (contender.scenario, contender.name) == wanted)


def _loop_factory(name: str) -> type[asyncio.AbstractEventLoop]:
    if name == "uvloop":
        import uvloop

        return uvloop.Loop
    return asyncio.SelectorEventLoop


if __name__ == "__main__":
    assignment = msgspec.json.decode(sys.stdin.buffer.read(), type=Assignment)
    elapsed = perform(assignment)
    sys.stdout.buffer.write(msgspec.json.encode(elapsed) + b"\n")
