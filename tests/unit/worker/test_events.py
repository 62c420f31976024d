"""Several observers of one worker."""

from __future__ import annotations

import pytest

from redrive.worker.events import Observer, Observers


class Counter(Observer):
    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []

    def started(self, queue: str) -> None:
        self.calls.append(("started", queue))

    def batch(self, queue: str, size: int, seconds: float) -> None:
        self.calls.append(("batch", queue, size, seconds))


class Broken(Observer):
    def started(self, queue: str) -> None:
        raise ValueError(queue)


def test_an_observer_that_fails_is_logged_and_the_others_are_called(caplog: pytest.LogCaptureFixture) -> None:
    counter = Counter()

    Observers([Broken(), counter]).started("orders")

    assert counter.calls == [("started", "orders")]
    assert "Broken failed to observe" in caplog.text


def test_each_observer_gets_the_events_that_it_overrides() -> None:
    counter, other = Counter(), Counter()
    observers = Observers([counter, Observer(), Observers([other])])

    observers.batch("orders", 3, 0.5)
    observers.done("orders", 0.5)

    assert counter.calls == other.calls == [("batch", "orders", 3, 0.5)]


def test_every_hook_of_an_observer_is_passed_on() -> None:
    class All(Observer):
        pass

    hooks = [name for name, value in vars(Observer).items() if callable(value)]
    for name in hooks:
        setattr(All, name, lambda *_: None)

    assert set(vars(Observers([All()]))) == set(hooks)
