"""Count the messages of a canary that failed again, and find out whether the others are settled.

Where a message fails again it ends in a dead-letter queue of the queue it was sent to: in any of them, not only in the
one it was taken from. So returns are counted in all of them, each under its lock, because what another look or
operation holds is not seen. What cannot be counted, or followed, makes a step undecided: silence is not success.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple, Protocol

from redrive.errors import OperationConflict, PeekUnsafe
from redrive.operations.browse import count_returned
from redrive.operations.canary import CanaryFacts
from redrive.operations.operation import DestinationKind, Operation
from redrive.operations.ports import OperationPort


class Sight(Protocol):
    """What is known of the broker's queues."""

    def seeds(self, operation: Operation) -> Collection[str]:
        """Return the queues that an operation sends to, as far as its order shows them."""

    def dead_letter_queues_of(self, queue: str) -> Collection[str]:
        """Return the dead-letter queues in which failures of a queue end, as far as they are known."""

    def reachable_queues(self, exchange: str, routing_key: str) -> Collection[str] | None:
        """Return the queues that an exchange leads to; None: not known."""

    async def check_peek(self, queue: str, *, spend: bool) -> object:
        """Raise `PeekUnsafe` if a look would harm."""

    async def canary_facts(self, queues: Collection[str]) -> CanaryFacts | None:
        """Return what is left in these queues and for them; None: only their ready messages can be seen."""


class Counted(NamedTuple):
    returned: int
    unseen: str = ""  # why there may be more


class Returns:
    def __init__(self, operation: Operation, broker: OperationPort, sight: Sight | None) -> None:
        self._operation = operation.id
        self._way = operation.order.to.way
        self._queue = operation.order.queue
        self._broker = broker
        self._sight = sight
        self._to: set[str] = set()
        self._unknown: set[str] = set()  # destinations whose dead-letter queues are not known
        if sight is not None and operation.counts.moved:  # by another process
            self._to |= set(sight.seeds(operation))

    def note_sent(self, exchange: str, routing_key: str, source: str | None) -> None:
        """Remember where a message went."""
        if self._way is DestinationKind.RETRY:
            self._to.add(source or "")
        elif not exchange:
            self._add(routing_key, source)
        else:
            reached = self._sight.reachable_queues(exchange, routing_key) if self._sight is not None else None
            if reached is None:
                self._unknown.add(f"exchange {exchange}")
            for queue in reached or ():
                self._add(queue, source)

    def _add(self, queue: str, source: str | None) -> None:
        if queue not in self._to:
            self._to.add(queue)
            if queue != source and not self._dead_letter_queues_of(queue):
                self._unknown.add(queue)

    def _dead_letter_queues_of(self, queue: str) -> Collection[str]:
        return self._sight.dead_letter_queues_of(queue) if self._sight is not None else ()

    async def canary_facts(self) -> CanaryFacts:
        """Return what is left where the messages went."""
        seen = await self._sight.canary_facts(self._to) if self._sight is not None else None
        return seen if seen is not None else CanaryFacts(sum([await self._broker.depth(queue) for queue in self._to]))

    async def depths(self) -> Mapping[str, int]:
        """Return the depth of every dead-letter queue in which messages can return."""
        return {queue: await self._broker.depth(queue) for queue in (self._queue, *self._others)}

    @property
    def _others(self) -> list[str]:
        every = set[str]().union(*(self._dead_letter_queues_of(queue) for queue in self._to))
        return sorted(every - {self._queue})

    async def count(self) -> Counted:
        """Count the messages of this operation in every dead-letter queue."""
        found, unseen = await count_returned(self._broker, self._queue, self._operation), []
        for queue in self._others:
            try:
                found += await self._count_in(queue)
            except OperationConflict:
                unseen.append(f"{queue} is locked by another operation or look")
            except PeekUnsafe:
                unseen.append(f"a look into {queue} would count towards its delivery limit")
        if not self._to:
            unseen.append("the queues that its messages were sent to are not known")
        unseen += [f"the dead-letter queues of {name} are not known" for name in sorted(self._unknown)]
        return Counted(found, "; ".join(unseen))

    async def _count_in(self, queue: str) -> int:
        """Raises what keeps it from being looked at."""
        if self._sight is not None:
            await self._sight.check_peek(queue, spend=False)
        await self._broker.lock(queue)
        try:
            return await count_returned(self._broker, queue, self._operation)
        finally:
            await self._broker.unlock(queue)

    def __str__(self) -> str:
        return ", ".join(sorted(self._to)) or "where its messages went"

    def __repr__(self) -> str:
        return f"<Returns of {self._operation} to {self}>"
