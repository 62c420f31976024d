"""How many to move next, when a step is settled, and when enough has come back to stop.

    steps 1, 5, 20, 100, and then everything else

After each step the moved messages get time to fail again. What fails comes back to a dead-letter queue with the id of
the operation in its headers, and is counted there (`redrive.operations.returns`). The share is reckoned over
everything that was moved so far, so that a single failure in the first step of one stops the operation, and a single
one in the hundredth message does not.

A step is settled when

    nothing is left         no message is ready, unacknowledged or waiting for a retry. The embedded broker shows that
    or it had its time      the queues that the messages went to had no ready message for as long as one may be tried
                            (`CanarySchedule.wait`) in total. A backlog stops that clock: until it is gone, the messages
                            of the step may not have been delivered. Where the number of unacknowledged messages is
                            known, it must have been zero, too

and undecided when the queues have not come nearer to that for `CanarySchedule.wait`: no consumer, or one that is slower
than what arrives. RabbitMQ does not report which messages are unacknowledged: there, one that is unacknowledged for
longer than `CanarySchedule.wait` is not noticed.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum, auto
from typing import NamedTuple

from redrive.operations.operation import CanarySchedule


def steps(ramp: CanarySchedule | None, moved: int = 0) -> Iterator[tuple[int, int | None]]:
    """Number and size of each step; None: everything else. Whoever has `moved` some already goes on from there."""
    number = 0
    for number, size in enumerate(ramp.steps if ramp is not None else (), 1):
        if moved >= size:
            moved -= size
            continue
        yield number, size - moved
        moved = 0
    yield number + 1, None


def step_count(ramp: CanarySchedule | None) -> int:
    return len(ramp.steps) + 1 if ramp is not None else 1


def exceeds_limit(ramp: CanarySchedule, moved: int, returned: int) -> bool:
    return moved > 0 and returned * 100 > ramp.returned_pct * moved


class CanaryFacts(NamedTuple):
    """How many messages are where a step's messages may be; None: not visible."""

    ready: int  # in the queues that they went to
    unacknowledged: int | None = None
    waiting: int | None = None  # for another attempt

    @property
    def show_nothing_left(self) -> bool:
        return self.ready == self.unacknowledged == self.waiting == 0


class CanarySettled(Enum):
    NOT_YET = auto()
    YES = auto()
    UNDECIDED = auto()


class StepClock:
    """Decides from one look after the other whether a step is settled."""

    def __init__(self, wait: float, now: float) -> None:
        self._wait = wait
        self._seen_at = now
        self._nearer_at = now
        self._idle = 0.0  # seconds without a ready message
        self._was_idle = False
        self._fewest: int | None = None  # ready and unacknowledged
        self._fewest_unacknowledged: int | None = None

    def observe(self, facts: CanaryFacts, now: float) -> CanarySettled:
        passed, self._seen_at = now - self._seen_at, now
        if self._is_nearer(facts):
            self._nearer_at = now
        if not facts.ready:
            self._idle += passed if self._was_idle else 0
            self._observe_unacknowledged(facts.unacknowledged)
        self._was_idle = not facts.ready
        if facts.show_nothing_left or (self._idle >= self._wait and not self._fewest_unacknowledged):
            return CanarySettled.YES
        return CanarySettled.UNDECIDED if now - self._nearer_at > self._wait else CanarySettled.NOT_YET

    def _is_nearer(self, facts: CanaryFacts) -> bool:
        there = facts.ready + (facts.unacknowledged or 0)
        fewer = self._fewest is None or there < self._fewest
        self._fewest = there if self._fewest is None else min(there, self._fewest)
        return fewer or (not facts.ready and self._idle < self._wait)

    def _observe_unacknowledged(self, count: int | None) -> None:
        """A message that was held all the time was in every count: at most the smallest of them is still held."""
        if count is not None:
            known = self._fewest_unacknowledged
            self._fewest_unacknowledged = count if known is None else min(count, known)

    def __repr__(self) -> str:
        return f"<StepClock idle {self._idle:g} of {self._wait:g} s, fewest={self._fewest}>"
