"""Plans a run, finds how much work makes a measurement of the wanted length, and measures round by round.

Within a round every contender of a case is measured before anyone is measured again, and each round begins with
another one: whatever disturbs the machine for a while disturbs all of them alike.
"""

from __future__ import annotations

import datetime as dt
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from bench import machine
from bench.catalogue import Catalogue
from bench.child import Assignment
from bench.contract import Arena, Case, Contender, Elapsed, NotDone, Scenario
from bench.results import Results, Sample

_FIRST_PROBE = 500
_PROBE_SECONDS = 0.3  # a shorter probe says little about the rate
_PATIENCE = 120.0  # for one measurement; the slowest takes seconds


@dataclass(frozen=True)
class Plan:
    name: str
    rounds: int
    seconds: float  # how long a measurement should take
    settings: Mapping[str, int]
    most: int | None = None  # messages of one measurement, however fast they are handled


@dataclass(frozen=True)
class Entry:
    """One contender in one case, and how many messages it is given."""

    scenario: Scenario[Any]
    case: Case
    peer: str
    contender: Contender
    count: int = 0

    def __str__(self) -> str:
        return f"{self.scenario.name} {self.case.name} {self.contender.name}"


def run(plan: Plan, catalogue: Catalogue, wanted: Callable[[Contender], bool], say: Callable[[str], None]) -> Results:
    results = Results(
        name=plan.name,
        began=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        machine=machine.describe(),
        versions={},
        settings={"rounds": plan.rounds, **({"messages at most": plan.most} if plan.most else {}), **plan.settings},
        skipped=dict(catalogue.skipped),
        failed={},
        remarks=[remark for scenario in catalogue.scenarios.values() for remark in scenario.remarks()],
        samples=[],
    )
    with ExitStack() as stack:
        measure = _Measuring(plan, stack)
        entries = measure.calibrated(_entries(catalogue, wanted), results, say)
        for system in catalogue.systems.values():
            results.versions |= system.versions()
        for number in range(plan.rounds):
            for group in _groups(entries):
                shift = number % len(group)
                for entry in group[shift:] + group[:shift]:
                    measure.sample(entry, number + 1, results, say)
        results.versions |= measure.arena_versions()
    return results


def _entries(catalogue: Catalogue, wanted: Callable[[Contender], bool]) -> list[Entry]:
    return [
        Entry(scenario, case, peer, contender)
        for scenario in catalogue.scenarios.values()
        for case in scenario.cases
        for peer, contender in catalogue.contenders(scenario.name)
        if wanted(contender)
    ]


def _groups(entries: list[Entry]) -> list[list[Entry]]:
    """Those that are compared with each other."""
    groups: dict[tuple[str, str], list[Entry]] = {}
    for entry in entries:
        groups.setdefault((entry.scenario.name, entry.case.name), []).append(entry)
    return list(groups.values())


class _Measuring:
    """Opens the arenas that are needed, each once, and runs measurements in them."""

    def __init__(self, plan: Plan, stack: ExitStack) -> None:
        self._plan = plan
        self._stack = stack
        self._arenas: dict[Any, Arena] = {}

    def arena_versions(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for arena in self._arenas.values():
            found |= arena.versions()
        return found

    def calibrated(self, entries: list[Entry], results: Results, say: Callable[[str], None]) -> list[Entry]:
        """Give each entry as much work as fills the wanted time. Those that fail are noted and left out."""
        fit = []
        for entry in entries:
            try:
                count = self._fitting_count(entry)
            except (NotDone, subprocess.SubprocessError) as error:
                results.failed[str(entry)] = str(error)
                say(f"{entry}: FAILED, left out: {error}")
                continue
            say(f"{entry}: {count} messages")
            fit.append(replace(entry, count=count))
        return fit

    def _fitting_count(self, entry: Entry) -> int:
        unit = entry.scenario.unit
        most = entry.scenario.most_bytes // (entry.case.size + 1000)  # the broker keeps more than the body
        most = min(most, self._plan.most or most)
        count = _whole(_FIRST_PROBE, unit)
        if most <= count:
            return _whole(most, unit)
        while True:
            elapsed, _ = self._measure(entry, count)
            fitting = min(most, int(count * self._plan.seconds / elapsed.seconds))
            if elapsed.seconds >= _PROBE_SECONDS or fitting <= count * 2:
                return _whole(_rounded(fitting), unit)
            count = _whole(min(fitting, count * 10), unit)

    def sample(self, entry: Entry, number: int, results: Results, say: Callable[[str], None]) -> None:
        try:
            elapsed, disturbance = self._measure(entry, entry.count)
        except (NotDone, subprocess.SubprocessError) as error:
            results.failed[f"{entry}, round {number}"] = str(error)
            say(f"round {number}, {entry}: FAILED: {error}")
            return
        sample = Sample(
            entry.scenario.name,
            entry.case.name,
            entry.contender.name,
            number,
            entry.count,
            round(elapsed.seconds, 4),
            round(elapsed.cpu_seconds, 4),
            round(disturbance, 2),
        )
        results.samples.append(sample)
        say(f"round {number}, {entry}: {sample.rate:,.0f}/s, {sample.cpu_per_message:.1f} µs")

    def _measure(self, entry: Entry, count: int) -> tuple[Elapsed, float]:
        """Gives also how many cores others kept busy."""
        arena = self._arena(entry.scenario)
        with entry.scenario.stage(arena, entry.case, count, self._plan.settings) as job:
            others, began = _cpu_of_others(arena), time.monotonic()
            elapsed = _in_child(entry, job)
            return elapsed, max(0.0, (_cpu_of_others(arena) - others) / (time.monotonic() - began))

    def _arena(self, scenario: Scenario[Any]) -> Arena:
        if scenario.arena not in self._arenas:
            self._arenas[scenario.arena] = self._stack.enter_context(scenario.arena())
        return self._arenas[scenario.arena]


def _cpu_of_others(arena: Arena) -> float:
    return machine.busy_seconds() - machine.children_seconds() - arena.cpu_seconds()


def _in_child(entry: Entry, job: msgspec.Struct) -> Elapsed:
    encoded = msgspec.Raw(msgspec.json.encode(job))
    assignment = Assignment(entry.scenario.name, entry.peer, entry.contender.name, encoded)
    done = subprocess.run(
        [sys.executable, "-m", "bench.child"],
        input=msgspec.json.encode(assignment),
        capture_output=True,
        timeout=_PATIENCE,
        check=False,
    )
    if done.returncode:
        raise NotDone(done.stderr.decode(errors="replace").strip().rpartition("\n")[2])
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=Elapsed)


def _rounded(count: int) -> int:
    """Two figures are enough."""
    unit = int(10 ** max(0, len(str(count)) - 2))
    return max(1, count // unit * unit)


def _whole(count: int, unit: int) -> int:
    """No less than `count`, and a multiple of the unit."""
    return -(-count // unit) * unit
