"""The messages of one call of a batch handler."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

from redrive.protocol.content import Delivery
from redrive.runtime.message import Message

T = TypeVar("T")


class Item(Generic[T]):
    """One of them: what it says, what came with it, and the delivery that brought it."""

    __slots__ = ("body", "delivery", "message")

    def __init__(self, body: T, message: Message, delivery: Delivery) -> None:
        self.body = body
        self.message = message
        self.delivery = delivery

    def __repr__(self) -> str:
        return f"<Item {self.body!r} of {self.message!r}>"


class Batch(Generic[T]):
    """The messages of one call. `fail` one, and the others are done all the same."""

    def __init__(self, items: Sequence[Item[T]]) -> None:
        self.items = tuple(items)
        self.failures: dict[int, BaseException] = {}

    @property
    def bodies(self) -> list[T]:
        return [item.body for item in self.items]

    @property
    def messages(self) -> list[Message]:
        return [item.message for item in self.items]

    def fail(self, item: Item[T] | Message | int, error: BaseException | str) -> None:
        """Say that one of them failed: by item, message or position. It is retried or parked on its own."""
        self.failures[self._position(item)] = error if isinstance(error, BaseException) else RuntimeError(error)

    def _position(self, item: Item[T] | Message | int) -> int:
        for position, known in enumerate(self.items):
            if item is known or item is known.message or (type(item) is int and item == position):
                return position
        raise ValueError(f"{item!r} is not in this batch")

    def __iter__(self) -> Iterator[Item[T]]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)

    def __repr__(self) -> str:
        return f"<Batch of {len(self.items)} failures={len(self.failures)}>"
