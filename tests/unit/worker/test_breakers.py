"""Several breakers of one consumer."""

from __future__ import annotations

from datetime import timedelta

import pytest

from redrive import App
from redrive.errors import ConfigurationError
from redrive.recovery.breaker import Breaker, BreakerPolicy, BreakerState
from redrive.testing.clock import ManualClock
from redrive.worker.breakers import Breakers
from redrive.worker.events import Observer

POLICY = BreakerPolicy(window=1, minimum_calls=1, pause="10s")


def test_a_probe_that_another_breaker_holds_back_leaves_room_for_another() -> None:
    bank, ledger, clock = Breaker(POLICY), Breaker(POLICY), ManualClock()
    both = Breakers("orders", {"bank": bank, "ledger": ledger}, Observer(), clock)
    bank.record_failure(clock.monotonic())
    clock.advance(timedelta(seconds=6))
    ledger.record_failure(clock.monotonic())
    clock.advance(timedelta(seconds=6))

    assert both.pause() == 4.0  # the bank may be probed, the ledger may not
    clock.advance(timedelta(seconds=4))

    assert both.pause() == 0.0
    assert (bank.state, ledger.state) == (BreakerState.PROBING, BreakerState.PROBING)


def test_a_failure_says_nothing_about_a_dependency_that_it_does_not_blame() -> None:
    bank, ledger = Breaker(POLICY), Breaker(POLICY)

    Breakers("orders", {"bank": bank, "ledger": ledger}, Observer(), ManualClock()).record_failure([ledger])

    assert (bank.state, ledger.state) == (BreakerState.CLOSED, BreakerState.OPEN)


def test_dependencies_are_named_in_one_place() -> None:
    with pytest.raises(ConfigurationError, match="leave depends_on out"):
        App("shop").consumer("orders", breaker={"bank": POLICY}, depends_on="ledger")(lambda: None)
