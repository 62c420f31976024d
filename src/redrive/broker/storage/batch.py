"""The changes of one transaction, and which of them cancel out.

A message that is published, delivered and acknowledged before its batch is cut leaves no trace: under load that
is the common life of a message. Of several changes to one thing only the last is kept, so a batch has no order
within, except this one, in which it is written: what came back, what is forgotten, what is stored.
"""

from __future__ import annotations

from collections.abc import Callable

from redrive.broker.storage.journal import Definition, StoredMessage


class Batch:
    __slots__ = ("callbacks", "definitions", "delivered", "emptied", "forgotten", "returned", "stored")

    def __init__(self) -> None:
        self.stored: dict[int, StoredMessage] = {}
        self.forgotten: list[int] = []
        self.emptied: set[int] = set()  # queues
        self.returned: dict[int, int] = {}  # message -> delivery count
        self.delivered: dict[int, int] = {}  # queue -> position
        self.definitions: dict[int, Definition | None] = {}  # None: undefined
        self.callbacks: list[Callable[[], None]] = []  # whom to tell when it is on disk

    def forget_queue(self, queue: int) -> None:
        for id in [message.id for message in self.stored.values() if message.queue == queue]:
            del self.stored[id]
        self.emptied.add(queue)

    def returned_to_queue(self, id: int, delivery_count: int) -> None:
        message = self.stored.get(id)
        if message is not None:
            self.stored[id] = message._replace(delivery_count=delivery_count)
        else:
            self.returned[id] = delivery_count

    def __len__(self) -> int:
        """The changes to write. A batch may be empty and yet have somebody to tell."""
        changes = len(self.stored) + len(self.forgotten) + len(self.definitions)
        return changes + len(self.emptied) + len(self.returned) + len(self.delivered)

    def __repr__(self) -> str:
        filled = (f" {name}={len(getattr(self, name))}" for name in self.__slots__ if getattr(self, name))
        return f"<Batch{''.join(filled)}>"
