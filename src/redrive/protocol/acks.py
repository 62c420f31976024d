"""Which deliveries of a channel are settled, told to the broker in the fewest frames.

Delivery tags count up from 1 within a channel. Acks that complete an unbroken run from the start become one
`basic.ack` with `multiple`; those beyond a gap are told one by one, at once, since the delivery in the gap may
take an hour and the broker counts prefetch by what it was told.

Two rules of RabbitMQ decide the details. An ack with `multiple` must name a tag that is still open: for a tag
it does not know, RabbitMQ 3.10 takes every older one and then closes the channel. And a nack or reject goes
out before any later ack with `multiple`, which would otherwise ack the message it refuses: the caller writes it
at once, and acks only when `take` is called.
"""

from __future__ import annotations

from typing import NamedTuple


class AckRun(NamedTuple):
    """What to tell: one ack with `multiple`, if any, and then single ones."""

    upto: int | None
    singles: list[int]


class AckLedger:
    __slots__ = ("_beyond", "_next", "_pending")

    def __init__(self) -> None:
        self._next = 1  # every delivery below this is settled
        self._beyond: set[int] = set()  # settled ones above it
        self._pending: list[int] = []  # acked, and the broker does not know

    @property
    def pending(self) -> int:
        return len(self._pending)

    def ack(self, tag: int) -> None:
        self._pending.append(tag)
        self.settle(tag)

    def ack_all(self, tags: list[int]) -> None:
        self._pending += tags
        if not self._beyond and tags == list(range(self._next, self._next + len(tags))):
            self._next += len(tags)  # a run from the start, as most are
        else:
            for tag in tags:
                self.settle(tag)

    def settle(self, tag: int) -> None:
        """Count a delivery as settled that the broker is told about in another way."""
        if tag != self._next:
            self._beyond.add(tag)
            return
        self._next += 1
        while self._beyond and self._next in self._beyond:
            self._beyond.remove(self._next)
            self._next += 1

    def take(self) -> AckRun:
        """The acks that the broker has not been told about. They count as told from here on."""
        untold, self._pending = self._pending, []
        run = [tag for tag in untold if tag < self._next]
        if len(run) == len(untold):
            return AckRun(max(run, default=None), [])
        return AckRun(max(run, default=None), [tag for tag in untold if tag > self._next])

    def __repr__(self) -> str:
        return f"<Settlements all below {self._next} and {len(self._beyond)} beyond, untold={len(self._pending)}>"
