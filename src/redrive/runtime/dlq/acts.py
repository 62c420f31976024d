"""What an operation does with the messages it has chosen."""

from __future__ import annotations

from collections.abc import Sequence

from redrive.errors import NotPublished, PublishError, PublishErrors, PublishUnknown, RedriveError
from redrive.recovery.redriving import redriven
from redrive.runtime.clock import Clock
from redrive.runtime.dlq.moving import Problems, Taken
from redrive.runtime.dlq.operation import Operation
from redrive.runtime.dlq.ports import Message, Moves


class Unresolved(RedriveError):
    """The connection was lost before it was known what became of some messages. They are still in the queue."""


class Redriving:
    """Send messages back to work."""

    def __init__(self, broker: Moves, clock: Clock) -> None:
        self._broker = broker
        self._clock = clock

    async def __call__(self, operation: Operation, taken: Sequence[Taken]) -> Problems:
        return await publish(self._broker, [self._message(operation, each) for each in taken])

    def _message(self, operation: Operation, taken: Taken) -> Message:
        order = operation.order
        properties = redriven(
            taken.delivery.raw_properties,
            taken.letter,
            operation=operation.id,
            by=order.by,
            at=self._clock.now(),
            reason=order.reason,
            from_queue=order.queue,
            keep_counters=order.keep_counters,
            budget=self._broker.budget,
        )
        return taken.choice.exchange, taken.choice.routing_key, taken.delivery.body, properties, True


async def publish(broker: Moves, messages: Sequence[Message]) -> Problems:
    problems: list[str | None] = [None] * len(messages)
    try:
        await broker.publish_many(messages)
    except PublishErrors as errors:
        for error in errors.exceptions:
            if isinstance(error, PublishUnknown | NotPublished):
                raise Unresolved(f"the connection was lost: {error.why}") from errors
            assert isinstance(error, PublishError)
            assert error.index is not None
            problems[error.index] = error.why
    return problems
