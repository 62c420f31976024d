"""The breakers of one consumer: one for each dependency of its handler.

A message is handled when all of them let it pass. A failure counts for those whose policies blame its error
(`BreakerPolicy(only=...)`); for the others it proves nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from redrive.recovery.breaker import Breaker, BreakerState
from redrive.worker.clock import Clock
from redrive.worker.events import BreakerChanged, Observer


class Breakers:
    """`breakers`: by the name of the dependency. Consumers with the same dependency share one."""

    def __init__(self, queue: str, breakers: Mapping[str, Breaker], observer: Observer, clock: Clock) -> None:
        self._queue = queue
        self._breakers = dict(breakers)
        self._observer = observer
        self._clock = clock

    def pause(self) -> float:
        """Return 0.0 if a message may be handled now, else the seconds after which to ask again."""
        now = self._clock.monotonic()
        passed: list[Breaker] = []
        for name, breaker in self._breakers.items():
            before = breaker.state
            pause = breaker.permits(now)
            self._notify(name, breaker.state if breaker.state is not before else None)
            if pause > 0:
                for one in passed:  # this message is no probe of them after all: another may be
                    one.record_inconclusive()
                return pause
            passed.append(breaker)
        return 0.0

    def record_success(self) -> None:
        now = self._clock.monotonic()
        for name, breaker in self._breakers.items():
            self._notify(name, breaker.record_success(now))

    def record_failure(self, blamed: Collection[Breaker]) -> None:
        now = self._clock.monotonic()
        for name, breaker in self._breakers.items():
            if breaker in blamed:
                self._notify(name, breaker.record_failure(now))
            else:
                breaker.record_inconclusive()

    def record_inconclusive(self) -> None:
        for breaker in self._breakers.values():
            breaker.record_inconclusive()

    def _notify(self, name: str, state: BreakerState | None) -> None:
        if state is not None:
            self._observer.breaker(BreakerChanged(name, self._queue, state, self._breakers[name].failure_rate))

    def __iter__(self) -> Iterator[Breaker]:
        return iter(self._breakers.values())

    def __repr__(self) -> str:
        states = " ".join(f"{name}={breaker.state}" for name, breaker in self._breakers.items())
        return f"<Breakers of {self._queue} {states}>"
