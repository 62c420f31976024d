"""The benchmark of workers runs, checks that the work was done, and judges its goals: Redrive's rows, few messages."""

import os
from pathlib import Path
from typing import Self

import pytest
from bench import report
from bench.catalogue import Catalogue, find_scenarios, find_system
from bench.contract import Contender, Goal, Rivals
from bench.goals import judge
from bench.results import Results, Sample
from bench.run import Plan, run
from bench.workplace import Workplace

PEERS = ("redrive_worker", "redrive_batches", "psycopg")
SETTINGS = {"prefetch": 20, "handlers": 10, "threads": 2}


class SharedServers(Workplace):
    """The servers of the test run, which the benchmark may use and must not end."""

    def __init__(self, url: str, dsn: str) -> None:
        super().__init__()
        self._url, self._dsn = url, dsn

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._directory.cleanup()

    @property
    def url(self) -> str:
        return self._url

    @property
    def dsn(self) -> str:
        return self._dsn

    @property
    def pid(self) -> int:
        """Of somebody who is at rest: how busy other tests keep the servers does not matter here."""
        return os.getpid()


@pytest.fixture
def catalogue(amqp_url: str, postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> Catalogue:
    monkeypatch.chdir(Path(__file__).parents[2])  # where `python -m bench.workers` is run
    scenarios = {name: scenario for name, scenario in find_scenarios().items() if scenario.suite == "workers"}
    servers = SharedServers(amqp_url, postgres_url.replace("+psycopg", ""))
    for scenario in scenarios.values():
        monkeypatch.setattr(scenario, "arena", lambda: servers)
    return Catalogue(scenarios, {peer: find_system(peer) for peer in PEERS})


def measure(catalogue: Catalogue, *names: str) -> Results:
    def wanted(contender: Contender) -> bool:
        return contender.name in names

    return run(Plan("workers", 1, 1.0, SETTINGS, most=200), catalogue, wanted, lambda _: None)


def test_workers_are_measured_with_each_handler(catalogue: Catalogue) -> None:
    results = measure(catalogue, "redrive")

    assert results.failed == {}
    assert [(sample.case, sample.count) for sample in results.samples] == [("no-op", 200), ("1 ms I/O", 200)]
    assert all(sample.seconds > 0 and sample.cpu_seconds > 0 for sample in results.samples)


def test_batches_are_measured_and_judged_by_the_slower_of_queue_and_database(catalogue: Catalogue) -> None:
    results = measure(catalogue, "redrive batches", "redrive bare consuming", "psycopg bare COPY")

    assert results.failed == {}
    assert {sample.count for sample in results.samples} == {1000}, "no batch is left to wait for its timeout"
    told = report.markdown(results, catalogue.scenarios.values())
    assert "redrive batches ≥ 0.8 × the slowest of redrive bare consuming, psycopg bare COPY" in told
    assert "reached" in told


def of_rates(**rates: float) -> Results:
    samples = [Sample("handle", "no-op", name, 1, 1000, 1000 / rate, 0.1, 0.0) for name, rate in rates.items()]
    return Results("made up", "", {}, {}, {}, {}, {}, [], samples)


@pytest.mark.parametrize(("which", "figure"), [("fastest", "2.00 × quick"), ("slowest", "5.00 × slow")])
def test_a_goal_among_rivals_is_judged_by_one_of_them(which: str, figure: str) -> None:
    goal = Goal("ours", at_least=3, than=Rivals(which, ("quick", "slow")))  # type: ignore[arg-type]

    judgement = judge(goal, of_rates(ours=1000, quick=500, slow=200), "handle", "no-op")

    assert (judgement.figure, judgement.reached) == (figure, which == "slowest")


def test_a_goal_among_rivals_is_not_judged_when_one_of_them_is_missing() -> None:
    goal = Goal("ours", at_least=3, than=Rivals("fastest", ("quick", "slow")))

    assert judge(goal, of_rates(ours=1000, slow=200), "handle", "no-op").reached is None
