"""Find the dead letters that an operation has already moved and that are in its queue again.

A broker that is killed forgets acks. Measured with `kill -9` on RabbitMQ 3.10, 4.0 and 4.3 and on the embedded broker:

    classic queue     all acks since the queue last wrote its index: thousands, seconds old. Order is kept. Afterwards
                      `redelivered` is set for every message, also for those that were never delivered
    quorum queue      up to some hundred acks at full speed, none at a slow rate. Order is not kept. `redelivered` is
                      set for those that were delivered before, and only for those. The depth is 0 for a moment
    embedded broker   the acks of the last 50 ms. `redelivered` may be forgotten with them

A connection that is lost loses the acks on their way, and a process that is killed did not send all of its acks. In all
cases the database has an item for each message that was moved, since that is written before the ack. So after a loss
the whole queue is read once, before anything else is moved, and each message whose id has an item is a candidate.

The id of a dead letter is a digest of properties and body (`redrive.deadletters.dead_letter`), so equal ids mean
identical messages, and a candidate may be a copy that was not moved yet. Counting decides. Of the messages that were in
the queue when the operation began (`scope`), all but the moved ones must still be there. As many as there are beyond
that are there because their ack was lost:

    surplus = messages of the scope that are in the queue now - (scope - moved)

If there are no more candidates than that, each of them was moved. Else some are copies that were not moved, and the
first in the queue are those that were, because messages are moved in the order of the queue. The others are sent. A
candidate without a copy is among them only if others removed messages of the scope meanwhile (a purge, an expiry), or
if its copy was moved and acked before: it is sent and counted as possibly duplicated, since nothing may be lost.

A message that has neither a message id nor a time of death could have arrived since, with the content of one that was
moved. It is never acked for that: it is sent, and counted as possibly duplicated.

In a queue that does not keep its order the first are not known. There a message without a copy is more likely to be one
that was moved than one of several copies, so those come first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from redrive.deadletters.dead_letter import Summary
from redrive.protocol.messages import Delivery


class ReconciliationCandidate(NamedTuple):
    """A message whose id has an item. Kept instead of the message, which may be large."""

    delivery_tag: int
    key: int


class Reconciliation:
    """One reading of the queue: `add` each message in order, then `split_moved`."""

    def __init__(
        self,
        moved: Counter[int],
        *,
        remaining: int,
        is_newer: Callable[[Summary], bool],
        keeps_order: bool,
    ) -> None:
        """`moved`: how often each id was moved, by `key_of`. `remaining`: how many messages of the scope were not.
        `keeps_order`: of the queue. RabbitMQ's quorum queues do not; there a message without `redelivered` was never
        delivered, so it was not moved.
        """
        self._moved = moved
        self._remaining = remaining
        self._is_newer = is_newer
        self._keeps_order = keeps_order
        self._found: Counter[int] = Counter()
        self._candidates: list[ReconciliationCandidate] = []
        self._unidentified = 0  # like one that was moved, with nothing that tells it from a later arrival
        self.in_scope = 0

    def add(self, delivery: Delivery, dead_letter: Summary) -> bool:
        """Count a message. Return False if it arrived after the operation began."""
        if self._is_newer(dead_letter):
            return False
        self.in_scope += 1
        key = key_of(dead_letter.id)
        copies = self._moved.get(key, 0)
        if copies and (delivery.redelivered or self._keeps_order):
            self._found[key] += 1
            if dead_letter.message_id is None and dead_letter.dead_at is None:
                self._unidentified += 1
            elif self._found[key] <= copies:
                self._candidates.append(ReconciliationCandidate(delivery.delivery_tag, key))
        return True

    @property
    def surplus(self) -> int:
        return max(0, self.in_scope - self._remaining)

    def split_moved(self) -> tuple[list[ReconciliationCandidate], int]:
        """Return the messages to ack, and how many of the others may be duplicated because they are sent."""
        candidates = self._candidates if self._keeps_order else sorted(self._candidates, key=self._has_copies)
        moved, others = candidates[: self.surplus], candidates[self.surplus :]
        unidentified = min(self._unidentified, self.surplus - len(moved))
        return moved, len(others) - sum(map(self._has_copies, others)) + unidentified

    def _has_copies(self, candidate: ReconciliationCandidate) -> bool:
        return self._moved[candidate.key] > 1 or self._found[candidate.key] > 1

    def __repr__(self) -> str:
        return f"<Reconciliation in_scope={self.in_scope} candidates={len(self._candidates)} surplus={self.surplus}>"


def key_of(id: str) -> int:
    """Return eight bytes that stand for an id in this process. A million ids take less than 100 MB in a Counter."""
    return hash(id)
