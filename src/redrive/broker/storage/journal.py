"""The broker's memory beyond its own life: the contract.

The broker is a state machine in memory; the journal stands behind it and is read only once, at the start. Every
change to something durable is *appended*, by a plain call that costs next to nothing. Appended changes gather in
a batch, a batch is committed as a whole, and while one is on its way to the disk the next one gathers. What the
broker may say only when it is true on disk (a confirm, a declare-ok) it says in `after_commit`.

Three promises hold for every journal:

1. Changes appended without giving control back to the loop are kept or lost together. Moving a message (`store`
   in one queue, `forget` in the other) can therefore neither lose nor double it.
2. Changes are kept in the order in which they were appended: what is found after a crash is everything up to
   some moment, and that moment is not before the last `after_commit` that was called back.
3. `forget`, `returned` and `delivered` may linger before they are written, as losing them costs a redelivery and
   not a message; all other changes, and `after_commit`, are a reason to commit as soon as the disk is free.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol


class StoredMessage(NamedTuple):
    """One message in one queue. A message routed to three queues is stored three times."""

    id: int  # increasing, never given twice
    queue: int  # the id of the queue's definition
    position: int  # its order in the queue, unique there; lower than an older message's when put back in front
    expires_at: int | None  # milliseconds since the epoch
    delivery_count: int
    route: bytes  # exchange and routing key, as short strings
    properties: bytes  # as they came
    body: bytes
    deaths: bytes  # the dead-letter history, and copies that the properties do not tell; the broker's own encoding


class Definition(NamedTuple):
    """An exchange, a queue, a binding, a virtual host or a user. `value` is the broker's own encoding of it."""

    id: int
    kind: str
    vhost: str
    name: str
    value: bytes


class Recovered(NamedTuple):
    """What the journal remembers from the broker's last life."""

    definitions: list[Definition]  # by id, which is the order in which they were first defined
    messages: Iterator[StoredMessage]  # each queue's by position; read while it is consumed, so consume it first
    delivered: dict[int, int]  # queue -> the highest position ever handed to a consumer
    next_id: int  # higher than every id in use


class Journal(Protocol):
    @property
    def pending(self) -> int:
        """How many changes are not on disk yet. Publishers who outrun the disk must be slowed down by this."""

    def recover(self) -> Recovered:
        """Once, before anything is appended. Nothing is committed until its messages are consumed."""

    def store(self, message: StoredMessage) -> None: ...

    def forget(self, id: int) -> None:
        """The message was acknowledged, expired, dropped or moved. An unknown id is no error."""

    def forget_queue(self, queue: int) -> None:
        """All messages of the queue: purged, or deleted with it."""

    def note_return(self, id: int, delivery_count: int) -> None:
        """The message came back to its queue after so many deliveries."""

    def note_delivery(self, queue: int, position: int) -> None:
        """A consumer has seen the message at this position. Only the highest of a queue is remembered."""

    def define(self, definition: Definition) -> None:
        """Add a definition, or change the one with this id."""

    def undefine(self, id: int) -> None:
        """Drop a definition. The messages of a queue do not go with it: call `forget_queue` in the same breath."""

    def after_commit(self, callback: Callable[[], None]) -> None:
        """Call back, in the loop, once everything appended so far is on disk. Callbacks keep their order."""

    async def close(self) -> None:
        """Commit what is left and let go of the files. Raises when that, or a commit before, failed."""
