"""How long to wait before the next try.

A delay is a function of the attempt number and of chance, which is an argument: the same two give the same
delay. Jitter shortens, never lengthens, so that `ceiling` is a promise.

An `OutageBackoff` is shared by all failures of one outage: a thousand messages that a database refuses in one moment
are one failure, and the pause grows with the length of the outage, not with the number of messages.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from math import inf

from redrive.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Backoff:
    first: timedelta = timedelta(milliseconds=100)
    factor: float = 2.0
    ceiling: timedelta = timedelta(seconds=5)
    jitter: float = 0.5  # how much of a delay chance may take away: 0 none, 1 all of it

    def __post_init__(self) -> None:
        if self.first < timedelta(0) or self.ceiling < self.first:
            raise ConfigurationError(f"backoff from {self.first} to {self.ceiling}: want 0 <= first <= ceiling")
        if not 1 <= self.factor < inf or not 0 <= self.jitter <= 1:
            raise ConfigurationError(f"backoff factor {self.factor}, jitter {self.jitter}: want factor >= 1, 0..1")

    def delay(self, attempt: int, chance: float) -> timedelta:
        """The wait before try number `attempt` (the first retry is 1), `chance` from 0 to 1."""
        return timedelta(seconds=self._whole(attempt) * (1 - self.jitter * chance))

    def _whole(self, attempt: int) -> float:
        first, ceiling = self.first.total_seconds(), self.ceiling.total_seconds()
        try:
            return min(first * float(self.factor) ** (attempt - 1), ceiling)
        except OverflowError:  # a number with 300 digits: the ceiling has long been reached
            return ceiling if first else 0


class OutageBackoff:
    """Pauses that grow for as long as things go wrong. Whoever fails during a pause of the others pauses as long."""

    def __init__(self, backoff: Backoff) -> None:
        self._backoff = backoff
        self._pauses = 0
        self._until = -inf

    def pause(self, now: float, chance: float) -> timedelta:
        """How long to wait after a failure at `now`, in seconds of a clock that only goes forward."""
        if now < self._until:
            return self._backoff.delay(self._pauses, chance)
        self._pauses += 1
        pause = self._backoff.delay(self._pauses, chance)
        self._until = now + pause.total_seconds()
        return pause

    def end(self) -> None:
        """Something succeeded: the next pause is the first one again."""
        self._pauses, self._until = 0, -inf

    def __repr__(self) -> str:
        return f"<Spell pauses={self._pauses}>"
