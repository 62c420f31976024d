"""The messages of a queue that are ready, in the order in which they will be delivered.

A classic queue has a bucket for each priority, and a message that is requeued takes its old place in its bucket. A
quorum queue delivers requeued messages first, in the order in which they came back. Its priorities depend on the
version: none, or two buckets of which the upper one gives two messages for each of the lower, or one bucket for each
of 32.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

from redrive.broker.message import Entry


class PriorityQueue:
    """By priority, then by position. Without priorities there is one bucket.

    `usual`: the priority of who has none. `each_expires`: messages expire at the head of each bucket.
    """

    def __init__(self, top: int, usual: int = 0, *, each_expires: bool = False) -> None:
        self._buckets: list[deque[Entry]] = [deque() for _ in range(top + 1)]
        self._top = top
        self._usual = usual
        self._each_expires = each_expires
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Entry]:
        for bucket in reversed(self._buckets):
            yield from bucket

    def append(self, entry: Entry) -> None:
        self._buckets[self._bucket(entry) if self._top else 0].append(entry)
        self._count += 1

    def _bucket(self, entry: Entry) -> int:
        priority = entry.message.facts.priority
        return min(self._usual if priority is None else priority, self._top)

    def insert(self, entries: Sequence[Entry]) -> None:
        """Put requeued entries back. Their old positions are mostly near the head, so the search begins there."""
        self._count += len(entries)
        if len(entries) == 1:
            bucket = self._buckets[self._bucket(entries[0])]
            bucket.insert(_place(bucket, entries[0].position), entries[0])
            return
        buckets: dict[int, list[Entry]] = {}
        for entry in sorted(entries, key=_position):
            buckets.setdefault(self._bucket(entry), []).append(entry)
        for number, returning in buckets.items():
            bucket, before = self._buckets[number], []
            for entry in returning:
                while bucket and bucket[0].position < entry.position:
                    before.append(bucket.popleft())
                before.append(entry)
            bucket.extendleft(reversed(before))

    def popleft(self) -> Entry:
        self._count -= 1
        return self._first().popleft() if self._top else self._buckets[0].popleft()

    def _first(self) -> deque[Entry]:
        """The bucket with the head of the queue; an empty one if there is none."""
        if not self._top:
            return self._buckets[0]
        return next((bucket for bucket in reversed(self._buckets) if bucket), self._buckets[0])

    def take_expired(self, now: float) -> Entry | None:
        """Take out an entry that has expired and is at the head, or at the head of a bucket with `each_expires`."""
        for bucket in self._expiring_buckets():
            if bucket and (due := bucket[0].expires_at) is not None and due <= now:
                self._count -= 1
                return bucket.popleft()
        return None

    @property
    def deadline(self) -> float | None:
        """Return when the next of the entries that `take_expired` looks at expires."""
        dues = [due for bucket in self._expiring_buckets() if bucket and (due := bucket[0].expires_at) is not None]
        return min(dues, default=None)

    def _expiring_buckets(self) -> Iterable[deque[Entry]]:
        """The buckets at whose head messages expire. Mostly all of them have the usual priority."""
        if not self._each_expires:
            return (self._first(),)
        usual = self._buckets[self._usual]
        return (usual,) if len(usual) == self._count else [bucket for bucket in reversed(self._buckets) if bucket]

    def clear(self) -> None:
        for bucket in self._buckets:
            bucket.clear()
        self._count = 0


def _place(bucket: deque[Entry], position: int) -> int:
    """How many come before it: in steps that double, then between the last two of them."""
    high = 1
    while high <= len(bucket) and bucket[high - 1].position < position:
        high *= 2
    return bisect_left(bucket, position, high // 2, min(high, len(bucket)), key=_position)


def _position(entry: Entry) -> int:
    return entry.position


class WeightedPriorityQueue:
    """Two buckets: above priority 4, and the rest. Every third message is of the lower one, if that is older."""

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
        bucket = self._next()
        return bucket[0].expires_at if bucket else None

    def _next(self) -> deque[Entry]:
        turns = self._high and self._low and self._taken == 2
        if turns and self._low[0].position < self._high[0].position:
            return self._low
        return self._high or self._low

    def clear(self) -> None:
        self._high.clear()
        self._low.clear()


class ReturnedFirstQueue:
    """`each_expires`: fresh ones do so even while others have come back."""

    def __init__(self, fresh: PriorityQueue | WeightedPriorityQueue, *, each_expires: bool = False) -> None:
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


ReadyQueue: TypeAlias = "PriorityQueue | ReturnedFirstQueue"
