"""What was published, and what became of it, message by message: nothing may be missing at the end.

A message that is published is owed to every queue that it reaches. It is paid when that queue's consumer has handled
it; what is neither paid nor in a dead-letter queue when all work is done would be lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import TypeAlias

from redrive.recovery.history import HeaderNames
from redrive.runtime.message import Message
from redrive.runtime.observing import Observer, Outcome, Settled
from redrive.topology import Queue
from redrive.topology.routing import matches_topic

Debt: TypeAlias = "tuple[str, str | None]"  # a queue, and a message's id


class Books(Observer):
    def __init__(self) -> None:
        self.sent = 0
        self.processed: Counter[str] = Counter()  # by queue, as the next ones
        self.retried: Counter[str] = Counter()
        self.parked: Counter[str] = Counter()
        self.redriven: Counter[str] = Counter()
        self.owed: set[Debt] = set()

    def owe(self, message_id: str, exchange: str, key: str, queues: Iterable[Queue]) -> None:
        """Before it is published: it may be handled before its publisher hears of the confirm."""
        self.sent += 1
        self.owed |= {(queue.name, message_id) for queue in queues if _reaches(exchange, key.split("."), queue)}

    def take_back(self, message_id: str) -> None:
        """It was not published after all."""
        self.sent -= 1
        self.owed = {debt for debt in self.owed if debt[1] != message_id}

    @asynccontextmanager
    async def handling(self, message: Message) -> AsyncIterator[None]:
        if message.attempt == 1 and HeaderNames.REDRIVEN in message.headers:
            self.redriven[message.queue] += 1
        yield
        self.owed.discard((message.queue, message.message_id))

    def lost(self, dead: Iterable[Debt]) -> set[Debt]:
        """What is owed to a queue, and not among its dead letters; asked when nothing is under way any more."""
        return self.owed - set(dead)

    # As an observer -----------------------------------------------------------------------------------

    def done(self, queue: str, seconds: float) -> None:  # noqa: ARG002
        self.processed[queue] += 1

    def settled(self, event: Settled) -> None:
        if event.outcome is Outcome.RETRIED:
            self.retried[event.queue] += 1
        elif event.outcome is Outcome.PARKED:
            self.parked[event.queue] += 1


def _reaches(exchange: str, words: list[str], queue: Queue) -> bool:
    return any(bind.exchange == exchange and matches_topic(bind.routing_key.split("."), words) for bind in queue.bind)
