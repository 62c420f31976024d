"""Deliveries that looks cost in a queue that counts them.

A quorum queue counts how often a message was given back, in `x-delivery-count`, and drops it beyond its limit. The
count can be read only in a delivered message, so by a look. Each look measures it, and the audit keeps the figure: the
next look, also by another process, is refused before it would bring a message to the limit. A queue that other clients
look at may be closer to it than is known here.
"""

from __future__ import annotations

from typing import NamedTuple

from redrive.errors import PeekUnsafe, RemoteProtocolError
from redrive.protocol.messages import Delivery
from redrive.recovery.history import read_count
from redrive.wire.raw_properties import find_header
from redrive.wire.values import read_value

_HEADER = b"x-delivery-count"


class Risk(NamedTuple):
    """What an operator accepts explicitly when looking into a queue."""

    spend: bool = False  # a look that counts towards a delivery limit
    any_queue: bool = False  # one that is not known to be a dead-letter queue, or has consumers
    reason: str = ""

    def __str__(self) -> str:
        told = {"although it costs deliveries": self.spend, "at any queue": self.any_queue}
        return ", ".join(words for words, accepted in told.items() if accepted)


NO_RISK = Risk()


class Allowance:
    """`<Allowance of orders.dlq: 3 of 20 spent>`"""

    def __init__(self, queue: str, limit: int | None, spent: int) -> None:
        """`spent`: the most deliveries that a message of the queue is known to have. `limit`: None if not known."""
        self.queue = queue
        self.limit = limit
        self._before = spent
        self._measured: int | None = None

    @property
    def spent(self) -> int:
        return self._before if self._measured is None else self._measured

    def spend(self) -> None:
        """Count a look. Raises what `check` raises."""
        self.check()
        self._before, self._measured = self.spent + 1, None

    def check(self) -> None:
        """Raise `PeekUnsafe` if another look would bring a message to the limit."""
        if self.limit is not None and self.spent + 1 >= self.limit:
            raise PeekUnsafe(
                self.queue,
                f"its messages were given back {self.spent} times, and another look would reach the limit of "
                f"{self.limit}",
                "have the limit lifted or raised by a policy: `redrive doctor` says how",
            )

    def see(self, delivery: Delivery) -> None:
        """Measure a delivered message: it has one delivery more when it is given back."""
        self._measured = max(self._measured or 0, _count(delivery.raw_properties) + 1)

    def __repr__(self) -> str:
        return f"<Allowance of {self.queue}: {self.spent} of {self.limit or 'an unknown number'} spent>"


def _count(raw_properties: bytes) -> int:
    try:
        raw = find_header(raw_properties, _HEADER)
        return read_count(read_value(raw, 0, len(raw))[0]) if raw is not None else 0
    except RemoteProtocolError:
        return 0
