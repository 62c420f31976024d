"""What becomes of the messages that an operation has chosen: re-driven, moved, changed, discarded.

An action decides, and archives what must be on the disk first; `pipeline` publishes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TypeAlias

from redrive.deadletters.dead_letter import read_dead_letter
from redrive.deadletters.edits import Content
from redrive.deadletters.redrive_headers import properties_for_move, properties_for_redrive
from redrive.errors import TransformFailed
from redrive.operations.archive import Archive
from redrive.operations.export_format import encode_dead_letter
from redrive.operations.operation import Operation
from redrive.operations.pipeline import SelectedMessage
from redrive.operations.ports import Message, OperationPort
from redrive.operations.selector import Skipped
from redrive.operations.transforms import Transform, apply_transform
from redrive.protocol.messages import Delivery
from redrive.recovery.failure_headers import NAMES
from redrive.recovery.history import HeaderNames
from redrive.worker.clock import Clock

Decided: TypeAlias = "Sequence[Message | str | None]"  # as `redrive.operations.pipeline.MessageAction` returns it


class RedriveAction:
    """Send messages back to work."""

    def __init__(self, broker: OperationPort, clock: Clock, names: Mapping[str, HeaderNames] | None = None) -> None:
        """`names`: in which headers consumers count, by their queues, where they have names of their own for that."""
        self._broker = broker
        self._clock = clock
        self._names = names or {}

    async def __call__(self, operation: Operation, taken: Sequence[SelectedMessage]) -> Decided:
        now = self._clock.now()
        return [self._message(operation, each, each.delivery, now) for each in taken]

    def _message(
        self, operation: Operation, taken: SelectedMessage, content: Delivery | Content, now: datetime
    ) -> Message:
        order = operation.order
        properties = properties_for_redrive(
            content.raw_properties,
            taken.dead_letter,
            operation=operation.id,
            by=order.by,
            at=now,
            reason=order.reason,
            from_queue=order.queue,
            keep_counters=order.keep_counters,
            names=self._names.get(taken.dead_letter.source or "", NAMES),
            budget=self._broker.budget,
        )
        return taken.choice.exchange, taken.choice.routing_key, content.body, properties, True


class MoveAction:
    """Publish messages to another dead-letter queue, with their failure records."""

    def __init__(self, broker: OperationPort) -> None:
        self._broker = broker

    async def __call__(self, operation: Operation, taken: Sequence[SelectedMessage]) -> Decided:  # noqa: ARG002
        return [self._message(each) for each in taken]

    def _message(self, taken: SelectedMessage) -> Message:
        content, choice = taken.delivery, taken.choice
        properties = properties_for_move(content.raw_properties, taken.dead_letter, budget=self._broker.budget)
        return choice.exchange, choice.routing_key, content.body, properties, True


class DiscardAction:
    """Write messages to an archive, and let them go."""

    def __init__(self, archive: Archive) -> None:
        self._shelf = _OrderedArchiveWriter(archive)

    async def __call__(self, operation: Operation, taken: Sequence[SelectedMessage]) -> Decided:  # noqa: ARG002
        await self._shelf.put(taken)
        return [None] * len(taken)


class TransformAction(RedriveAction):
    """Send messages back to work, each changed; the originals go to an archive first."""

    def __init__(
        self,
        broker: OperationPort,
        clock: Clock,
        transform: Transform,
        archive: Archive,
        *,
        force: bool,
        names: Mapping[str, HeaderNames] | None = None,
    ) -> None:
        super().__init__(broker, clock, names)
        self._transform = transform
        self._shelf = _OrderedArchiveWriter(archive)
        self._force = force

    async def __call__(self, operation: Operation, taken: Sequence[SelectedMessage]) -> Decided:
        now = self._clock.now()
        changes = [self._change(each) for each in taken]
        await self._shelf.put([each for each, new in zip(taken, changes, strict=True) if isinstance(new, Content)])
        return [
            self._message(operation, each, new, now) if isinstance(new, Content) else new
            for each, new in zip(taken, changes, strict=True)
        ]

    def _change(self, taken: SelectedMessage) -> Content | str:
        """Return the message as it will be, or why it stays as it is."""
        delivery = taken.delivery
        dead_letter = read_dead_letter(
            delivery.raw_properties, delivery.body, queue=taken.dead_letter.queue, position=taken.dead_letter.position
        )
        try:
            content = apply_transform(self._transform, delivery, dead_letter, force=self._force)
        except TransformFailed as error:
            return str(error)
        return content if content is not None else Skipped("the transform skipped it")


class _OrderedArchiveWriter:
    """An archive that takes portions in the order in which they come, though several are under way at a time."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        self._in_order = asyncio.Lock()

    async def put(self, taken: Sequence[SelectedMessage]) -> None:
        lines = [encode_dead_letter(each.delivery, each.dead_letter) for each in taken]
        async with self._in_order:
            if lines:
                await asyncio.to_thread(self._archive.write, lines)
