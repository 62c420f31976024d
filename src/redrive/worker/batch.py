"""The messages of one call of a batch handler."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cached_property
from typing import Generic, NamedTuple, TypeVar

from redrive.protocol.messages import Delivery
from redrive.worker.message import Message

T = TypeVar("T")


class BatchItem(NamedTuple, Generic[T]):
    """One message of a batch: its body, its headers, and its delivery."""

    body: T
    message: Message
    delivery: Delivery

    def __repr__(self) -> str:
        return f"<Item {self.body!r} of {self.message!r}>"


class Batch(Generic[T]):
    """The messages of one call. `fail` marks one as failed; the others are acknowledged."""

    def __init__(
        self, bodies: Sequence[T], deliveries: Sequence[Delivery], message_of: Callable[[Delivery], Message]
    ) -> None:
        """`bodies`: one for each delivery. Most handlers need nothing else, so items are made on demand."""
        self.deliveries = tuple(
            deliveries
        )  # a tuple: a handler that reordered them would have the wrong ones acknowledged
        self.failures: dict[int, BaseException] = {}
        self._bodies = bodies
        self._message_of = message_of

    @property
    def bodies(self) -> list[T]:
        """Return the bodies in a new list, which the caller may change."""
        return list(self._bodies)

    @cached_property
    def items(self) -> tuple[BatchItem[T], ...]:
        """Return the messages with their bodies."""
        return tuple(
            BatchItem(body, self._message_of(delivery), delivery)
            for body, delivery in zip(self._bodies, self.deliveries, strict=True)
        )

    @property
    def messages(self) -> list[Message]:
        """Return the messages, without their bodies."""
        return [item.message for item in self.items]

    def fail(self, item: BatchItem[T] | Message | int, error: BaseException | str) -> None:
        """Mark one message as failed, by item, message or position. It is retried or parked on its own."""
        self.failures[self._position(item)] = error if isinstance(error, BaseException) else RuntimeError(error)

    def _position(self, item: BatchItem[T] | Message | int) -> int:
        for position, known in enumerate(self.items):
            if item is known or item is known.message or (type(item) is int and item == position):
                return position
        raise ValueError(f"{item!r} is not in this batch")

    def part(self, positions: Collection[int]) -> Batch[T]:
        """Return a batch of the messages at these positions, without failures."""
        return Batch(
            [self._bodies[position] for position in positions],
            [self.deliveries[position] for position in positions],
            self._message_of,
        )

    def __iter__(self) -> Iterator[BatchItem[T]]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.deliveries)

    def __repr__(self) -> str:
        return f"<Batch of {len(self)} failures={len(self.failures)}>"
