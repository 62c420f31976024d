"""What an operation does with the messages it has chosen."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime

from redrive.deadletters.dead_letter import read_dead_letter
from redrive.deadletters.edits import Content
from redrive.deadletters.redrive_headers import moved, redriven
from redrive.errors import NotPublished, PublishError, PublishErrors, PublishUnknown, TransformFailed
from redrive.protocol.content import Delivery
from redrive.recovery.history import HeaderNames
from redrive.recovery.story import NAMES
from redrive.runtime.clock import Clock
from redrive.runtime.dlq.archive import Archive
from redrive.runtime.dlq.letters import encode_letter
from redrive.runtime.dlq.moving import Problems, Skipped, Taken, Unconfirmed, Unsent
from redrive.runtime.dlq.operation import Operation
from redrive.runtime.dlq.ports import Message, Moves
from redrive.runtime.dlq.transforming import Transform, transformed


class Redriving:
    """Send messages back to work."""

    def __init__(self, broker: Moves, clock: Clock, names: Mapping[str, HeaderNames] | None = None) -> None:
        """`names`: in which headers consumers count, by their queues, where they have names of their own for that."""
        self._broker = broker
        self._clock = clock
        self._names = names or {}

    async def __call__(self, operation: Operation, taken: Sequence[Taken]) -> Problems:
        now = self._clock.now()
        return await publish(self._broker, [self._message(operation, each, each.delivery, now) for each in taken])

    def _message(self, operation: Operation, taken: Taken, content: Delivery | Content, now: datetime) -> Message:
        order = operation.order
        properties = redriven(
            content.raw_properties,
            taken.letter,
            operation=operation.id,
            by=order.by,
            at=now,
            reason=order.reason,
            from_queue=order.queue,
            keep_counters=order.keep_counters,
            names=self._names.get(taken.letter.source or "", NAMES),
            budget=self._broker.budget,
        )
        return taken.choice.exchange, taken.choice.routing_key, content.body, properties, True


class Moving:
    """Publish messages to another dead-letter queue, with their failure records."""

    def __init__(self, broker: Moves) -> None:
        self._broker = broker

    async def __call__(self, operation: Operation, taken: Sequence[Taken]) -> Problems:  # noqa: ARG002
        return await publish(self._broker, [self._message(each) for each in taken])

    def _message(self, taken: Taken) -> Message:
        content, choice = taken.delivery, taken.choice
        properties = moved(content.raw_properties, taken.letter, budget=self._broker.budget)
        return choice.exchange, choice.routing_key, content.body, properties, True


async def publish(broker: Moves, messages: Sequence[Message]) -> Problems:
    problems: list[str | None] = [None] * len(messages)
    try:
        await broker.publish_many(messages)
    except PublishErrors as errors:
        for error in errors.exceptions:
            assert isinstance(error, PublishError)
            assert error.index is not None
            problems[error.index] = _problem(error)
    return problems


def _problem(error: PublishError) -> str:
    match error:
        case PublishUnknown():
            return Unconfirmed(error.why)
        case NotPublished():
            return Unsent(error.why)
        case _:
            return error.why


class Discarding:
    """Write messages to an archive, and let them go."""

    def __init__(self, archive: Archive) -> None:
        self._shelf = _Shelf(archive)

    async def __call__(self, operation: Operation, taken: Sequence[Taken]) -> Problems:  # noqa: ARG002
        await self._shelf.put(taken)
        return [None] * len(taken)


class Transforming(Redriving):
    """Send messages back to work, each changed; the originals go to an archive first."""

    def __init__(
        self,
        broker: Moves,
        clock: Clock,
        transform: Transform,
        archive: Archive,
        *,
        force: bool,
        names: Mapping[str, HeaderNames] | None = None,
    ) -> None:
        super().__init__(broker, clock, names)
        self._transform = transform
        self._shelf = _Shelf(archive)
        self._force = force

    async def __call__(self, operation: Operation, taken: Sequence[Taken]) -> Problems:
        problems: list[str | None] = []
        changed: list[tuple[Taken, Content]] = []
        for each in taken:
            problem, content = self._changed(each)
            problems.append(problem)
            if content is not None:
                changed.append((each, content))
        await self._shelf.put([each for each, _ in changed])
        now = self._clock.now()
        messages = [self._message(operation, each, content, now) for each, content in changed]
        published = iter(await publish(self._broker, messages))
        return [problem if problem is not None else next(published) for problem in problems]

    def _changed(self, taken: Taken) -> tuple[str | None, Content | None]:
        """Why not, or the message as it will be."""
        delivery = taken.delivery
        letter = read_dead_letter(
            delivery.raw_properties, delivery.body, queue=taken.letter.queue, position=taken.letter.position
        )
        try:
            content = transformed(self._transform, delivery, letter, force=self._force)
        except TransformFailed as error:
            return str(error), None
        return (None, content) if content is not None else (Skipped("the transform skipped it"), None)


class _Shelf:
    """An archive that takes portions in the order in which they come, though several are under way at a time."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        self._in_order = asyncio.Lock()

    async def put(self, taken: Sequence[Taken]) -> None:
        lines = [encode_letter(each.delivery, each.letter) for each in taken]
        async with self._in_order:
            if lines:
                await asyncio.to_thread(self._archive.write, lines)
