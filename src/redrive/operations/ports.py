"""What operations need of a broker (`dlq_adapter` has it) and of a database (`repository` has it)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from redrive.operations.operation import ControlRequest, Operation, OperationItem
from redrive.protocol.messages import Delivery
from redrive.wire.properties import Properties

Message = tuple[str, str, bytes, "Properties | bytes", bool]  # exchange, key, body, properties, mandatory


class Tagged(Protocol):
    """A delivery, or what was kept of one."""

    @property
    def delivery_tag(self) -> int: ...


class BrowsedMessages(Protocol):
    """The messages of a queue in hand, in their order."""

    taken: int

    async def next(self, patience: float) -> Sequence[Delivery]:
        """What has come since the last time; nothing if nothing comes for so many seconds."""

    def ack(self, deliveries: Iterable[Tagged]) -> bool:
        """These are done. False: too late, the broker has everything back."""

    async def release(self) -> int:
        """Give back all others."""


class BrowsePort(Protocol):
    async def depth(self, queue: str) -> int:
        """How many messages are ready in it."""

    async def browse(self, queue: str, at_most: int) -> BrowsedMessages: ...


class OperationPort(BrowsePort, Protocol):
    @property
    def budget(self) -> int:
        """How many bytes the properties of a message may have."""

    async def lock(self, queue: str) -> None:
        """One operation for each queue: raises `OperationConflict` while another has it. Ends with the connection."""

    async def unlock(self, queue: str) -> None: ...

    def check(self) -> None:
        """Raise if the connection was lost since the lock was taken: the lock is lost, too."""

    async def wait_until_restored(self, patience: float) -> None:
        """Wait for the connection to come back; raises what keeps it away when that takes longer than `patience`."""

    async def publish_many(self, messages: Iterable[Message]) -> int:
        """Raises `PublishErrors`, with the index of each message that is not known to be safe."""


class OperationStore(Protocol):
    """Keeps operations. Its methods block: they are called in threads."""

    def save(self, operation: Operation, items: Sequence[OperationItem]) -> None:
        """How far it is, and what became of these messages."""

    def moved_ids(self, id: str) -> Iterable[str]:
        """Return the ids of the messages that an operation has moved, once for each item."""

    def control_request(self, id: str) -> ControlRequest: ...

    def clear_request(self, id: str, wish: ControlRequest) -> None: ...
