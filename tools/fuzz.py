"""Fuzz the frame reader, the conversation of either side and the decoders of messages.

    python tools/fuzz.py --inputs 1000000                       both sides and all decoders
    python tools/fuzz.py --side server --seconds 60 --jobs 2    for a minute, on two cores
    python tools/fuzz.py --replay tests/fuzz/findings/*.bin     what was found, again
    python tools/fuzz.py --inputs 1000000 --grow                keep the inputs that showed something new
    python tools/fuzz.py --make-corpus                          write the valid conversations anew

Inputs are mutations of those in tests/fuzz/corpus and of the ones that have shown a target something new since.
Every input must lead to events and complaints about the peer, never to another exception; within bounded time;
leaving a conversation that holds no more than it was told, says only what its peer can read, and is silent after
the peer broke the rules. What does not is saved, with the command that repeats it. The same seed tries the same
inputs.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from fuzzing import corpus
from fuzzing.mutation import Mutator
from fuzzing.targets import ConversationTarget, Target, target_named, targets
from redrive.wire.method import Sender

FINDINGS = Path(__file__).parents[1] / "tests" / "fuzz" / "findings"
TIME_LIMIT = 1.0  # seconds of processor time for one input; a typical one takes a thousandth of it
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
            f"inputs={self.inputs} seconds={self.seconds:.0f} crashes={len(self.findings)} "
            f"peak_rss={self.peak_rss}MiB seed={self.seed}"
        )


# One input ----------------------------------------------------------------------------------------------------------


@contextmanager
def time_limit() -> Iterator[None]:
    """Have `Hang` raised wherever an input is when its time is up. Processor time: a busy machine is no hang."""

    def ring(*_: object) -> None:
        raise Hang(f"took more than {TIME_LIMIT} s")

    before = signal.signal(signal.SIGVTALRM, ring)
    try:
        yield
    finally:
        signal.signal(signal.SIGVTALRM, before)


def try_input(target: Target, data: bytes) -> set[str] | Finding:
    """What the target saw, or how it failed. To be called within `time_limit`."""
    signal.setitimer(signal.ITIMER_VIRTUAL, TIME_LIMIT)
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
        data = chance.choice(self.inputs)
        if isinstance(self.target, ConversationTarget):
            return mutator.stream(data, self.inputs)
        return mutator.payload(data, self.inputs)

    def learn(self, data: bytes, words: set[str], *, is_seed: bool = False) -> None:
        if words <= self._known:
            return
        self._known |= words
        if not is_seed and len(self.inputs) < self.LIMIT:
            self.inputs.append(data)
            self.news.append(data)


class Run:
    """A seeded number of inputs, target after target."""

    def __init__(self, sides: tuple[Sender, ...], seed: int) -> None:
        self.report = Report(seed)
        stored = corpus.load()
        self.pools = [Pool(target, corpus.seeds_for(target, stored)) for target in targets(sides)]
        self._chance = Random(seed)
        self._mutator = Mutator(self._chance)
        self._kinds: set[str] = set()
        self._rss_before = _peak_rss()

    def go(self, inputs: int, seconds: float | None = None) -> Report:
        start = time.monotonic()
        with time_limit():
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
        elif result.kind not in self._kinds:
            self._kinds.add(result.kind)
            self.report.findings.append(result)

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

SIDES = {"client": (Sender.CLIENT,), "server": (Sender.SERVER,), "both": (Sender.CLIENT, Sender.SERVER)}


def main() -> int:
    options = arguments()
    if options.make_corpus:
        corpus.make()
        return 0
    report = replay(options.replay) if options.replay else fuzz(options)
    for finding in report.findings:
        tell(finding)
    print(report)
    return 1 if report.findings else 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=100_000, help="how many to try at least (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="the same seed tries the same inputs (%(default)s)")
    parser.add_argument("--side", choices=SIDES, default="both", help="whose conversation (%(default)s)")
    parser.add_argument("--seconds", type=float, help="stop after this time")
    parser.add_argument("--jobs", type=int, default=1, help="processes to share the work (%(default)s)")
    parser.add_argument("--grow", action="store_true", help="add the inputs that showed something new to the corpus")
    parser.add_argument("--make-corpus", action="store_true", help="write the valid conversations of the corpus")
    parser.add_argument("--replay", nargs="+", type=Path, metavar="FILE", help="try these files instead")
    return parser.parse_args()


def fuzz(options: argparse.Namespace) -> Report:
    share = -(-options.inputs // options.jobs)
    work = [(options.side, options.seed + job, share, options.seconds, options.grow) for job in range(options.jobs)]
    report = Report(options.seed)
    if options.jobs == 1:
        report.add(run_share(*work[0]))
        return report
    with multiprocessing.get_context("spawn").Pool(options.jobs) as workers:
        for part in workers.starmap(run_share, work):
            report.add(part)
    return report


def run_share(side: str, seed: int, inputs: int, seconds: float | None, grow: bool) -> Report:
    """What one process does."""
    run = Run(SIDES[side], seed)
    report = run.go(inputs, seconds)
    if grow:
        corpus.grow([(pool.target, data) for pool in run.pools for data in pool.news])
    return report


def replay(paths: Sequence[Path]) -> Report:
    report = Report(seed=0)
    with time_limit():
        for path in paths:
            report.inputs += 1
            result = try_input(target_named(corpus.target_name(path)), path.read_bytes())
            if isinstance(result, Finding):
                report.findings.append(result)
    return report


def tell(finding: Finding) -> None:
    path = corpus.keep(finding.target, finding.data, FINDINGS)
    print(finding.story, f"repeat it with: python tools/fuzz.py --replay {path}", sep="\n", end="\n\n")


if __name__ == "__main__":
    sys.exit(main())
