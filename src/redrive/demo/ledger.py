"""The account of every message: what was published, and its outcome.

A published message is owed to every queue that it reaches, until that queue's consumer has handled it. A message that
is still owed when all work is done, and is not in a dead-letter queue, is lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import TypeAlias

from redrive.recovery.history import HeaderNames
from redrive.topology import Queue
from redrive.topology.routing import matches_topic
from redrive.worker.events import DeliveryOutcome, DeliverySettled, Observer
from redrive.worker.message import Message

Debt: TypeAlias = "tuple[str, str | None]"  # a queue, and a message's id


class Ledger(Observer):
    def __init__(self) -> None:
        self.sent = 0
        self.processed: Counter[str] = Counter()  # by queue, as the next ones
        self.retried: Counter[str] = Counter()
        self.parked: Counter[str] = Counter()
        self.redriven: Counter[str] = Counter()
        self.owed: set[Debt] = set()

    def owe(self, message_id: str, exchange: str, key: str, queues: Iterable[Queue]) -> None:
        """Call it before publishing: a message may be handled before its publisher receives the confirm."""
        self.sent += 1
        self.owed |= {(queue.name, message_id) for queue in queues if _reaches(exchange, key.split("."), queue)}

    def take_back(self, message_id: str) -> None:
        """Remove a message whose publish failed."""
        self.sent -= 1
        self.owed = {debt for debt in self.owed if debt[1] != message_id}

    @asynccontextmanager
    async def record_handling(self, message: Message) -> AsyncIterator[None]:
        if message.attempt == 1 and HeaderNames.REDRIVEN in message.headers:
            self.redriven[message.queue] += 1
        yield
        self.owed.discard((message.queue, message.message_id))

    def lost_debts(self, dead: Iterable[Debt]) -> set[Debt]:
        """Return what is still owed to a queue and is not among its dead letters. Call it when all work is done."""
        return self.owed - set(dead)

    # As an observer -----------------------------------------------------------------------------------

    def done(self, queue: str, seconds: float) -> None:  # noqa: ARG002
        self.processed[queue] += 1

    def settled(self, event: DeliverySettled) -> None:
        if event.outcome is DeliveryOutcome.RETRIED:
            self.retried[event.queue] += 1
        elif event.outcome is DeliveryOutcome.PARKED:
            self.parked[event.queue] += 1


def _reaches(exchange: str, words: list[str], queue: Queue) -> bool:
    return any(bind.exchange == exchange and matches_topic(bind.routing_key.split("."), words) for bind in queue.bind)
