"""The messages of a queue that are ready, in the order in which they will be delivered.

A classic queue has a lane for each priority, and in a lane a message that comes back takes the place it had. A quorum
queue delivers what came back before anything else, in the order in which it came back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Protocol

from redrive.broker.message import Entry


class Ready(Protocol):
    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Entry]: ...

    @property
    def head(self) -> Entry | None: ...

    def append(self, entry: Entry) -> None: ...

    def insert(self, entries: Iterable[Entry]) -> None:
        """What was delivered and comes back."""

    def popleft(self) -> Entry: ...

    def clear(self) -> None: ...


class Lanes:
    """By priority, then by position. Without priorities there is one lane."""

    def __init__(self, top: int) -> None:
        self._lanes: list[deque[Entry]] = [deque() for _ in range(top + 1)]
        self._top = top
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Entry]:
        for lane in reversed(self._lanes):
            yield from lane

    @property
    def head(self) -> Entry | None:
        lane = self._first()
        return lane[0] if lane else None

    def append(self, entry: Entry) -> None:
        self._lanes[min(entry.message.facts.priority, self._top)].append(entry)
        self._count += 1

    def insert(self, entries: Iterable[Entry]) -> None:
        """Their old positions are mostly near the head, so the search begins there."""
        lanes: dict[int, list[Entry]] = {}
        for entry in sorted(entries, key=lambda entry: entry.position):
            lanes.setdefault(min(entry.message.facts.priority, self._top), []).append(entry)
        for number, returning in lanes.items():
            lane, before = self._lanes[number], []
            for entry in returning:
                while lane and lane[0].position < entry.position:
                    before.append(lane.popleft())
                before.append(entry)
            lane.extendleft(reversed(before))
            self._count += len(returning)

    def popleft(self) -> Entry:
        self._count -= 1
        return self._first().popleft()

    def _first(self) -> deque[Entry]:
        """The lane with the head of the queue; an empty one if there is none."""
        if not self._top:
            return self._lanes[0]
        return next((lane for lane in reversed(self._lanes) if lane), self._lanes[0])

    def clear(self) -> None:
        for lane in self._lanes:
            lane.clear()
        self._count = 0


class ReturnsFirst:
    def __init__(self) -> None:
        self._returned: deque[Entry] = deque()
        self._fresh: deque[Entry] = deque()

    def __len__(self) -> int:
        return len(self._returned) + len(self._fresh)

    def __iter__(self) -> Iterator[Entry]:
        yield from self._returned
        yield from self._fresh

    @property
    def head(self) -> Entry | None:
        first = self._returned or self._fresh
        return first[0] if first else None

    def append(self, entry: Entry) -> None:
        self._fresh.append(entry)

    def insert(self, entries: Iterable[Entry]) -> None:
        self._returned.extend(entries)

    def popleft(self) -> Entry:
        return (self._returned or self._fresh).popleft()

    def clear(self) -> None:
        self._returned.clear()
        self._fresh.clear()
