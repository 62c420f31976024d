"""The messages of a queue that are ready, in the order in which they will be delivered.

A classic queue has a lane for each priority, and in a lane a message that comes back takes the place it had. A quorum
queue delivers what came back before anything else, in the order in which it came back. What it does with priorities
depends on the version: nothing, or two lanes of which the upper one gives two messages for each of the lower, or one
lane for each of 32.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from redrive.broker.message import Entry


class Ready(Protocol):
    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Entry]: ...

    def append(self, entry: Entry) -> None: ...

    def insert(self, entries: Sequence[Entry]) -> None:
        """What was delivered and comes back."""

    def popleft(self) -> Entry: ...

    def take_expired(self, now: float) -> Entry | None:
        """One that is at the end of its time and stands where messages expire: at the head, or at one of several."""

    @property
    def deadline(self) -> float | None:
        """When the next one expires, of those that stand where messages do."""

    def clear(self) -> None: ...


class Lanes:
    """By priority, then by position. Without priorities there is one lane.

    `usual`: the priority of who has none. `each_expires`: messages expire at the head of each lane.
    """

    def __init__(self, top: int, usual: int = 0, *, each_expires: bool = False) -> None:
        self._lanes: list[deque[Entry]] = [deque() for _ in range(top + 1)]
        self._top = top
        self._usual = usual
        self._each_expires = each_expires
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Entry]:
        for lane in reversed(self._lanes):
            yield from lane

    def append(self, entry: Entry) -> None:
        self._lanes[self._lane(entry) if self._top else 0].append(entry)
        self._count += 1

    def _lane(self, entry: Entry) -> int:
        priority = entry.message.facts.priority
        return min(self._usual if priority is None else priority, self._top)

    def insert(self, entries: Sequence[Entry]) -> None:
        """Their old positions are mostly near the head, so the search begins there."""
        self._count += len(entries)
        if len(entries) == 1:
            lane = self._lanes[self._lane(entries[0])]
            lane.insert(_place(lane, entries[0].position), entries[0])
            return
        lanes: dict[int, list[Entry]] = {}
        for entry in sorted(entries, key=_position):
            lanes.setdefault(self._lane(entry), []).append(entry)
        for number, returning in lanes.items():
            lane, before = self._lanes[number], []
            for entry in returning:
                while lane and lane[0].position < entry.position:
                    before.append(lane.popleft())
                before.append(entry)
            lane.extendleft(reversed(before))

    def popleft(self) -> Entry:
        self._count -= 1
        return self._first().popleft() if self._top else self._lanes[0].popleft()

    def _first(self) -> deque[Entry]:
        """The lane with the head of the queue; an empty one if there is none."""
        if not self._top:
            return self._lanes[0]
        return next((lane for lane in reversed(self._lanes) if lane), self._lanes[0])

    def take_expired(self, now: float) -> Entry | None:
        for lane in self._expiring():
            if lane and (due := lane[0].expires_at) is not None and due <= now:
                self._count -= 1
                return lane.popleft()
        return None

    @property
    def deadline(self) -> float | None:
        dues = [due for lane in self._expiring() if lane and (due := lane[0].expires_at) is not None]
        return min(dues, default=None)

    def _expiring(self) -> Iterable[deque[Entry]]:
        """The lanes at whose head messages expire. Mostly all of them have the usual priority."""
        if not self._each_expires:
            return (self._first(),)
        usual = self._lanes[self._usual]
        return (usual,) if len(usual) == self._count else [lane for lane in reversed(self._lanes) if lane]

    def clear(self) -> None:
        for lane in self._lanes:
            lane.clear()
        self._count = 0


def _place(lane: deque[Entry], position: int) -> int:
    """How many come before it: in steps that double, then between the last two of them."""
    high = 1
    while high <= len(lane) and lane[high - 1].position < position:
        high *= 2
    return bisect_left(lane, position, high // 2, min(high, len(lane)), key=_position)


def _position(entry: Entry) -> int:
    return entry.position


class TwoToOne:
    """Two lanes: above priority 4, and the rest. Every third message is of the lower one, if that is older."""

    def __init__(self) -> None:
        self._high: deque[Entry] = deque()
        self._low: deque[Entry] = deque()
        self._taken = 0

    def __len__(self) -> int:
        return len(self._high) + len(self._low)

    def __iter__(self) -> Iterator[Entry]:
        yield from self._high
        yield from self._low

    def append(self, entry: Entry) -> None:
        (self._high if (entry.message.facts.priority or 0) > 4 else self._low).append(entry)

    def popleft(self) -> Entry:
        entry = self._next().popleft()
        self._taken = (self._taken + 1) % 3
        return entry

    def take_expired(self, now: float) -> Entry | None:
        due = self.deadline
        return self.popleft() if due is not None and due <= now else None

    @property
    def deadline(self) -> float | None:
        lane = self._next()
        return lane[0].expires_at if lane else None

    def _next(self) -> deque[Entry]:
        turns = self._high and self._low and self._taken == 2
        if turns and self._low[0].position < self._high[0].position:
            return self._low
        return self._high or self._low

    def clear(self) -> None:
        self._high.clear()
        self._low.clear()


class ReturnsFirst:
    """`each_expires`: fresh ones do so even while others have come back."""

    def __init__(self, fresh: Lanes | TwoToOne, *, each_expires: bool = False) -> None:
        self._returned: deque[Entry] = deque()
        self._fresh = fresh
        self._each_expires = each_expires

    def __len__(self) -> int:
        return len(self._returned) + len(self._fresh)

    def __iter__(self) -> Iterator[Entry]:
        yield from self._returned
        yield from self._fresh

    def append(self, entry: Entry) -> None:
        self._fresh.append(entry)

    def insert(self, entries: Sequence[Entry]) -> None:
        self._returned.extend(entries)

    def popleft(self) -> Entry:
        return self._returned.popleft() if self._returned else self._fresh.popleft()

    def take_expired(self, now: float) -> Entry | None:
        if self._returned:
            due = self._returned[0].expires_at
            if due is not None and due <= now:
                return self._returned.popleft()
            if not self._each_expires:
                return None
        return self._fresh.take_expired(now)

    @property
    def deadline(self) -> float | None:
        if not self._returned:
            return self._fresh.deadline
        due = self._returned[0].expires_at
        fresh = self._fresh.deadline if self._each_expires else None
        return fresh if due is None else due if fresh is None else min(due, fresh)

    def clear(self) -> None:
        self._returned.clear()
        self._fresh.clear()
