"""Everything that moves messages, with something going wrong at every step: nothing is lost.

The short form plays every seventh of the single mishaps, each time beginning with another one. `make test-slow` plays
all of them, and pairs. Whatever fails says by which command it is played again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

import pytest

from redrive.client import Connection, Properties
from redrive.errors import PublishError
from simulation.playing import Scenario, explore, pairs_of_mishaps, play, read, single_mishaps, told
from simulation.scenarios import SCENARIOS, Publishing, Retrying
from simulation.stores import throw_all_away
from simulation.world import Mishap, SimulatedLoop, Stuck

EVERY = 7
PAIRS = 400  # of each scenario, in the long form

scenarios = pytest.mark.parametrize("kind", SCENARIOS, ids=lambda kind: kind.name)


@pytest.fixture(autouse=True)
def quietly() -> Iterator[None]:
    """What is lost and found again is logged thousands of times."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture(scope="module", autouse=True)
def tidy() -> Iterator[None]:
    yield
    throw_all_away()


@scenarios
def test_one_mishap_costs_no_message(kind: type[Scenario]) -> None:
    steps = play(kind, {})
    plans = list(single_mishaps(steps))

    assert explore(kind, plans[SCENARIOS.index(kind) % EVERY :: EVERY]) >= steps * len(Mishap) // EVERY


@pytest.mark.slow
@scenarios
def test_no_mishap_costs_a_message(kind: type[Scenario], capsys: pytest.CaptureFixture[str]) -> None:
    steps = play(kind, {})
    alone = explore(kind, single_mishaps(steps))
    together = sum(1 for _ in pairs_of_mishaps(steps))
    pairs = explore(kind, pairs_of_mishaps(steps, max(1, together // PAIRS)))

    with capsys.disabled():
        print(f"\n{kind.name}: {steps} steps, {alone} single mishaps, {pairs} of {together} pairs: nothing lost")


# The world itself -----------------------------------------------------------------------------------


def test_the_same_plan_makes_the_same_run() -> None:
    plan = read(["cut@30", "late@41"])

    assert read(told(plan).split()) == plan
    assert play(Retrying, plan) == play(Retrying, plan)


def test_a_loss_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A publisher that takes a lost connection for a confirm."""

    async def hasty(self: Publishing, stop: asyncio.Event) -> None:  # noqa: ARG001
        async with Connection(self.world.url) as connection:
            for number in range(self.orders):
                try:
                    await connection.publish("", "orders", b"%d" % number, Properties(delivery_mode=2))
                except PublishError:
                    pass
                self.confirmed.add(number)

    monkeypatch.setattr(Publishing, "live", hasty)
    steps = play(Publishing, {})

    with pytest.raises(AssertionError) as failed:
        explore(Publishing, ({step: Mishap.LOSE} for step in range(steps // 2, steps)))
    assert "python -m simulation.playing publish lose@" in failed.value.__notes__[0]


def test_time_passes_when_everybody_waits_and_a_deadlock_is_told() -> None:
    async def wait() -> float:
        await asyncio.sleep(3600)
        return asyncio.get_running_loop().time()

    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        assert runner.run(wait()) == pytest.approx(3600)

    loop = SimulatedLoop()
    with pytest.raises(Stuck):
        loop.run_until_complete(loop.create_future())
    loop.close()
