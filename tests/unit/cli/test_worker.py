"""Several worker processes under one roof: started again when they die, and told of every signal, whenever it comes."""

import signal
import subprocess
import sys
import threading

import pytest

from redrive.cli.worker import _ProcessSupervisor

DIES = "raise SystemExit(3)"
WAITS = "import signal; signal.pause()"


class Family(_ProcessSupervisor):
    def __init__(self, program: str) -> None:
        super().__init__(2, reload=False)
        self._command = [sys.executable, "-c", program]
        self.spawned = 0

    def _spawn(self) -> subprocess.Popen[bytes]:
        self.spawned += 1
        return super()._spawn()


@pytest.fixture(autouse=True)
def _arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["redrive", "worker", "shop:app", "-p", "2"])


def test_a_signal_in_the_pause_before_another_worker_is_started_starts_none() -> None:
    family = Family(DIES)
    family._spawn_all()
    for child in family._children:
        child.wait()
    threading.Timer(0.05, family._on_signal, (signal.SIGTERM, None)).start()

    family._revive()

    assert family.spawned == 2
    assert family._leave() == 3


def test_a_signal_that_came_while_workers_were_started_is_passed_on_to_them() -> None:
    family = Family(WAITS)
    family._on_signal(signal.SIGTERM, None)
    family._spawn_all()

    assert not family._is_calm_for(60)
    assert family._leave() == signal.SIGTERM
    assert not family._live_children()


def test_pauses_grow_with_each_death_and_begin_anew_when_it_went_well(monkeypatch: pytest.MonkeyPatch) -> None:
    family, now = Family(DIES), iter([0, 1, 2, 500])
    monkeypatch.setattr("time.monotonic", lambda: next(now))

    assert [family._pause() for _ in range(4)] == [0.5, 1.0, 2.0, 0.5]
