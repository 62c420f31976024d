"""Fuzz everything that reads what strangers write.

    python tools/fuzz.py                                        every target, for as long as `make fuzz` takes
    python tools/fuzz.py --list                                 what there is
    python tools/fuzz.py queries bodies --inputs 100000         two targets
    python tools/fuzz.py protocol --seconds 60 --jobs 2         for a minute, on two cores
    python tools/fuzz.py --replay tests/fuzz/findings/*.bin     what was found, again
    python tools/fuzz.py frames --grow                          keep the inputs that showed something new
    python tools/fuzz.py --make-corpus                          write the inputs to begin with anew

Inputs are mutations of those in tests/fuzz/corpus and of the ones that have shown a target something new since. What
each target promises stands at the head of its module in tools/fuzzing; none may answer an input with an exception that
is not the sender's to hear, nor take more than bounded time and memory. What does is saved, with the command that
repeats it. The same seed tries the same inputs.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

ROOT = Path(__file__).parents[1]
# Targets that need a server use those of the tests, and processes that they start need the package.
sys.path[1:1] = [str(ROOT / "src"), str(ROOT / "tests"), str(ROOT)]
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT / "src"), os.environ.get("PYTHONPATH"))))

from fuzzing import corpus  # noqa: E402
from fuzzing.families import FAMILIES, target_named  # noqa: E402
from fuzzing.mutation import Mutator  # noqa: E402
from fuzzing.targets import Target  # noqa: E402

FINDINGS = ROOT / "tests" / "fuzz" / "findings"
MEMORY_LIMIT = 240  # megabytes that the process may grow by
ENOUGH = 10  # findings, after which a run ends


class Hang(BaseException):
    """An input took too long. Not an Exception, so that nothing can catch it on its way out."""


@dataclass(frozen=True)
class Finding:
    target: str
    data: bytes
    story: str

    @property
    def kind(self) -> str:
        """Where it happened: two findings of one kind are one."""
        return "".join(self.story.strip().splitlines()[-3:])


@dataclass
class Report:
    what: str
    seed: int
    inputs: int = 0
    seconds: float = 0.0
    peak_rss: int = 0  # megabytes
    findings: list[Finding] = field(default_factory=list)

    def add(self, other: Report) -> None:
        self.inputs += other.inputs
        self.seconds = max(self.seconds, other.seconds)
        self.peak_rss = max(self.peak_rss, other.peak_rss)
        self.findings += other.findings

    def __str__(self) -> str:
        return (
            f"{self.what:<12} inputs={self.inputs} seconds={self.seconds:.0f} findings={len(self.findings)} "
            f"peak_rss={self.peak_rss}MiB seed={self.seed}"
        )


# One input ----------------------------------------------------------------------------------------------------------


@contextmanager
def time_limit() -> Iterator[None]:
    """Have `Hang` raised wherever an input is when its time is up. Processor time: a busy machine is no hang."""

    def ring(*_: object) -> None:
        raise Hang("took more processor time than an input may")

    before = signal.signal(signal.SIGVTALRM, ring)
    try:
        yield
    finally:
        signal.signal(signal.SIGVTALRM, before)


def try_input(target: Target, data: bytes) -> set[str] | Finding:
    """What the target saw, or how it failed. To be called within `time_limit`."""
    signal.setitimer(signal.ITIMER_VIRTUAL, target.seconds)
    try:
        return target.run(data)
    except (Exception, Hang):
        return Finding(target.name, data, traceback.format_exc())
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


# Many inputs --------------------------------------------------------------------------------------------------------


class Pool:
    """The inputs of one target that are worth mutating: its seeds, and whatever showed it something new."""

    LIMIT = 400

    def __init__(self, target: Target, seeds: Sequence[bytes]) -> None:
        self.target = target
        self.inputs = list(seeds)
        self.news: list[bytes] = []
        self._known: set[str] = set()

    def next(self, chance: Random, mutator: Mutator) -> bytes:
        return self.target.mutate(mutator, chance.choice(self.inputs), self.inputs)

    def learn(self, data: bytes, words: set[str], *, is_seed: bool = False) -> None:
        if words <= self._known:
            return
        self._known |= words
        if not is_seed and len(self.inputs) < self.LIMIT:
            self.inputs.append(data)
            self.news.append(data)


class Run:
    """A seeded number of inputs for the targets of one family, one after the other."""

    def __init__(self, family: str, seed: int) -> None:
        self.report = Report(family, seed)
        stored = corpus.load()
        self.pools = [Pool(target, corpus.seeds_for(target, stored)) for target in FAMILIES[family].make()]
        self._chance = Random(seed)
        self._mutator = Mutator(self._chance)
        self._kinds: set[str] = set()
        self._rss_before = _peak_rss()

    def go(self, inputs: int, seconds: float | None = None) -> Report:
        start = time.monotonic()
        with ExitStack() as servers, time_limit():
            for pool in self.pools:
                servers.enter_context(pool.target)
            self._replay_seeds()
            while self.report.inputs < inputs and len(self.report.findings) < ENOUGH:
                if seconds is not None and time.monotonic() - start > seconds:
                    break
                for pool in self.pools:
                    self._try(pool, pool.next(self._chance, self._mutator))
        self.report.seconds = time.monotonic() - start
        self._check_memory()
        return self.report

    def _replay_seeds(self) -> None:
        for pool in self.pools:
            for data in list(pool.inputs):
                self._try(pool, data, is_seed=True)

    def _try(self, pool: Pool, data: bytes, *, is_seed: bool = False) -> None:
        self.report.inputs += 1
        result = try_input(pool.target, data)
        if not isinstance(result, Finding):
            pool.learn(data, result, is_seed=is_seed)
            return
        if result.kind not in self._kinds:
            self._kinds.add(result.kind)
            self.report.findings.append(result)
        pool.target.__exit__()
        pool.target.__enter__()

    def _check_memory(self) -> None:
        self.report.peak_rss = _peak_rss()
        grown = self.report.peak_rss - self._rss_before
        if grown > MEMORY_LIMIT:
            story = f"the process grew by {grown} MiB; {MEMORY_LIMIT} are allowed"
            self.report.findings.append(Finding("memory", b"", story))


def _peak_rss() -> int:
    """In megabytes, so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


# The command ----------------------------------------------------------------------------------------------------------


def main() -> int:
    options = arguments()
    if options.list:
        print(*(f"{family.name:<12} {family.what}" for family in FAMILIES.values()), sep="\n")
        return 0
    if options.make_corpus:
        corpus.make(target for family in FAMILIES.values() for target in family.make())
        return 0
    reports = [replay(options.replay)] if options.replay else fuzz(options)
    found = False
    for report in reports:
        for finding in report.findings:
            tell(finding)
            found = True
        print(report, flush=True)
    return 1 if found else 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="which to fuzz (all; see --list)")
    parser.add_argument("--inputs", type=int, help="how many to try of each at least (each has its own number)")
    parser.add_argument("--seed", type=int, default=1, help="the same seed tries the same inputs (%(default)s)")
    parser.add_argument("--seconds", type=float, help="stop with each target after this time")
    parser.add_argument("--jobs", type=int, default=1, help="processes to share the work (%(default)s)")
    parser.add_argument("--grow", action="store_true", help="add the inputs that showed something new to the corpus")
    parser.add_argument("--make-corpus", action="store_true", help="write the corpus' inputs to begin with")
    parser.add_argument("--list", action="store_true", help="the targets there are")
    parser.add_argument("--replay", nargs="+", type=Path, metavar="FILE", help="try these files instead")
    options = parser.parse_args()
    if unknown := set(options.targets) - FAMILIES.keys():
        parser.error(f"no target {', '.join(sorted(unknown))}: there are {', '.join(FAMILIES)}")
    return options


def fuzz(options: argparse.Namespace) -> Iterator[Report]:
    for name in options.targets or FAMILIES:
        inputs = options.inputs or FAMILIES[name].inputs
        share = -(-inputs // options.jobs)
        work = [(name, options.seed + job, share, options.seconds, options.grow) for job in range(options.jobs)]
        yield _shared(Report(name, options.seed), work)


def _shared(report: Report, work: list[tuple[str, int, int, float | None, bool]]) -> Report:
    if len(work) == 1:
        report.add(run_share(*work[0]))
        return report
    with multiprocessing.get_context("spawn").Pool(len(work)) as workers:
        for part in workers.starmap(run_share, work):
            report.add(part)
    return report


def run_share(family: str, seed: int, inputs: int, seconds: float | None, grow: bool) -> Report:
    """What one process does."""
    run = Run(family, seed)
    report = run.go(inputs, seconds)
    targets = [pool.target for pool in run.pools if pool.target.grows]
    if grow and targets:
        news = [(pool.target, data) for pool in run.pools if pool.target.grows for data in pool.news]
        corpus.grow(news, targets)
    return report


def replay(paths: Sequence[Path]) -> Report:
    report = Report("replay", seed=0)
    start = time.monotonic()
    by_target: dict[str, list[Path]] = {}
    for path in paths:
        by_target.setdefault(corpus.target_name(path), []).append(path)
    for name, group in by_target.items():
        with target_named(name) as target, time_limit():
            for path in group:
                report.inputs += 1
                result = try_input(target, path.read_bytes())
                if isinstance(result, Finding):
                    report.findings.append(result)
                    target.__exit__()
                    target.__enter__()
    report.seconds, report.peak_rss = time.monotonic() - start, _peak_rss()
    return report


def tell(finding: Finding) -> None:
    path = corpus.keep(finding.target, finding.data, FINDINGS)
    print(finding.story, f"repeat it with: python tools/fuzz.py --replay {path}", sep="\n", end="\n\n")


if __name__ == "__main__":
    sys.exit(main())
