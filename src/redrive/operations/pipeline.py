"""Move the chosen messages of one pass, in portions, of which several are in flight at a time.

Three things go on at once. More is chosen; portions are published, each by a task; and one task records and acks them,
in the order in which they were chosen. Until then they are in flight.

A message is recorded before it is acked: one that was moved and is in the queue again is recognised by its item
(`reconciliation`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from itertools import chain, takewhile
from typing import NamedTuple, Protocol, TypeAlias

from redrive.deadletters.dead_letter import Summary, read_summary
from redrive.errors import (
    DestinationUnavailable,
    NotPublished,
    PublishError,
    PublishErrors,
    PublishUnknown,
    RedriveError,
    Unresolved,
)
from redrive.operations.control import OperationControl
from redrive.operations.operation import ItemOutcome, Operation, OperationItem
from redrive.operations.ports import BrowsedMessages, Message, OperationPort
from redrive.operations.returns import Returns
from redrive.operations.selector import Ignored, MessageSelector, Selected, Skipped
from redrive.protocol.messages import Delivery
from redrive.worker.clock import Clock

PORTION = 250
PORTIONS = 3  # in flight
UNDER_WAY = 4  # messages in flight, each a portion, with a rate
WINDOW = 1000  # messages that an operation may leave possibly duplicated
MOST_FAILURES = 1000  # in a row
QUIET = 2.0  # seconds without a message after which a queue that should have more is considered read


def in_flight(possibly_duplicated: int) -> int:
    """Return how many messages may be without a confirm at a time: three quarters of what is left of the window."""
    return max(UNDER_WAY, (WINDOW - possibly_duplicated) * 3 // 4)


def most_in_flight(steering: OperationControl) -> int:
    """Return how many messages of a running operation may be without a confirm at a time."""
    return UNDER_WAY if steering.has_rate else in_flight(steering.operation.counts.possibly_duplicated)


class SelectedMessage(NamedTuple):
    """A chosen message, with what it tells and where it goes."""

    delivery: Delivery
    dead_letter: Summary
    choice: Selected


class Unconfirmed(str):
    """Why a message that was sent has no confirm. It may be at its destination."""

    __slots__ = ()


class Unsent(str):
    """Why a message was not sent. It is not at its destination."""

    __slots__ = ()


Problems: TypeAlias = "Sequence[str | None]"  # for each message, why it was not done


class MessageAction(Protocol):
    """Decide what becomes of chosen messages.

    Returns for each of them the message to publish instead; None if nothing is to be published; or why it stays where
    it is: `Skipped`, or the text of a failure.
    """

    async def __call__(
        self, operation: Operation, taken: Sequence[SelectedMessage]
    ) -> Sequence[Message | str | None]: ...


class OperationPipeline:
    def __init__(
        self,
        steering: OperationControl,
        broker: OperationPort,
        act: MessageAction,
        clock: Clock,
        returns: Returns | None = None,
    ) -> None:
        """`returns` counts the messages of a canary that come back."""
        self._control = steering
        self._broker = broker
        self._act = act
        self._clock = clock
        self._returns = returns
        self._queue = steering.operation.order.queue
        self.chosen = 0  # in this pass
        self.acked = 0  # in this pass
        self._reported: set[int] = set()  # hashes of the ids of messages that were skipped, or failed
        self._failures = 0  # in a row
        self._portion: list[SelectedMessage] = []
        self._under_way: deque[tuple[asyncio.Task[Problems], list[SelectedMessage]]] = deque()
        self._settling: asyncio.Task[None] | None = None
        self._settled = asyncio.Event()  # some of it, or it failed

    async def run(
        self, held: BrowsedMessages, chooser: MessageSelector, *, at_most: int, room: int | None, until: float
    ) -> bool:
        """Go through the messages in hand and move at most `room` of them. Return whether the end was reached."""
        self.chosen = self.acked = 0
        try:
            return await self._run(held, chooser, at_most, room, until)
        finally:
            await self._drain(held)

    async def _run(
        self, held: BrowsedMessages, chooser: MessageSelector, at_most: int, room: int | None, until: float
    ) -> bool:
        position = 0
        while position < at_most and not self._control.is_requested.is_set():
            came = await held.next(QUIET)
            for delivery in came:
                position += 1
                taken = self._select(chooser, delivery, position)
                if taken is None:
                    continue
                if self._control.has_rate:
                    await self._control.throttle()
                self.chosen += 1
                self._portion.append(taken)
                if len(self._portion) >= self._portion_size:
                    await self._send(held)
                    if self._clock.monotonic() > until:
                        return False
                if self.chosen == room or self._control.is_requested.is_set():
                    return False
            self._broker.check()
            if not came:
                break
        return not self._control.is_requested.is_set()

    @property
    def _portion_size(self) -> int:
        if self._control.has_rate:
            return 1
        return min(PORTION, max(1, most_in_flight(self._control) // PORTIONS))

    def _select(self, chooser: MessageSelector, delivery: Delivery, position: int) -> SelectedMessage | None:
        """Return the message if it is to be moved. Record it if it is skipped."""
        dead_letter = read_summary(delivery.raw_properties, delivery.body, self._queue, position)
        choice = chooser.choose(dead_letter, delivery.body, delivery.raw_properties)
        if isinstance(choice, Ignored) or (self._reported and hash(dead_letter.id) in self._reported):
            return None
        if isinstance(choice, Selected):
            return SelectedMessage(delivery, dead_letter.with_source(choice.origin or dead_letter.source), choice)
        self._reported.add(hash(dead_letter.id))
        self._control.add(
            [OperationItem(dead_letter.id, ItemOutcome.SKIPPED, self._clock.now(), dead_letter.message_id, str(choice))]
        )
        return None

    async def _send(self, held: BrowsedMessages) -> None:
        """Begin to move what was chosen, and return when there is room for another portion."""
        self._begin()
        await asyncio.sleep(0)  # it begins before more is chosen
        self._keep_settling(held)
        while len(self._under_way) >= (UNDER_WAY if self._control.has_rate else PORTIONS):
            self._settled.clear()
            await self._settled.wait()
            self._keep_settling(held)

    def _begin(self) -> None:
        portion, self._portion = self._portion, []
        if portion:
            self._under_way.append((asyncio.create_task(self._move(portion)), portion))

    async def _move(self, portion: list[SelectedMessage]) -> Problems:
        """Do what the action decides. Return for each message why it was not moved."""
        decided = await self._act(self._control.operation, portion)
        messages = [each for each in decided if isinstance(each, tuple)]
        problems = await publish(self._broker, messages) if messages else ()
        if len(problems) == len(decided):
            return problems
        published = iter(problems)
        return [next(published) if isinstance(each, tuple) else each for each in decided]

    async def _drain(self, held: BrowsedMessages) -> None:
        """Finish what was chosen, also if something went wrong meanwhile: what is confirmed should be acked."""
        self._begin()
        problem: RedriveError | None = None
        while self._under_way or self._settling is not None:
            try:
                self._keep_settling(held)
            except RedriveError as error:
                problem = problem or error
            if self._settling is not None:
                await asyncio.wait([self._settling])
        if problem is not None:
            raise problem

    def _keep_settling(self, held: BrowsedMessages) -> None:
        """Begin with it if there is something to settle. Raises what ended it."""
        if self._settling is not None and self._settling.done():
            ended, self._settling = self._settling, None
            ended.result()
        if self._settling is None and self._under_way:
            self._settling = asyncio.create_task(self._settle(held))

    async def _settle(self, held: BrowsedMessages) -> None:
        while self._under_way:
            await asyncio.wait([self._under_way[0][0]])
            done = list(takewhile(_has_succeeded, self._under_way)) or [self._under_way[0]]
            try:
                pairs = (zip(portion, moving.result(), strict=True) for moving, portion in done)
                await self._record(held, list(chain.from_iterable(pairs)))
            finally:
                for _ in done:
                    self._under_way.popleft()
                self._settled.set()

    async def _record(self, held: BrowsedMessages, settled: Sequence[tuple[SelectedMessage, str | None]]) -> None:
        """Record the outcome of these messages, each with its problem, and ack those that were moved."""
        now, done, items, last, unresolved = self._clock.now(), [], [], "", ""
        for taken, problem in settled:
            dead_letter, outcome = taken.dead_letter, _outcome(problem)
            match outcome:
                case ItemOutcome.MOVED:
                    self._failures = 0
                    done.append(taken.delivery)
                case ItemOutcome.FAILED:
                    self._failures += 1
                    last = str(problem)
                case ItemOutcome.POSSIBLY_DUPLICATED | None:
                    unresolved = str(problem)
            if outcome in _LEFT_THERE:
                self._reported.add(hash(dead_letter.id))
            if outcome is not None:
                items.append(
                    OperationItem(
                        dead_letter.id,
                        outcome,
                        now,
                        dead_letter.message_id,
                        str(problem or ""),
                        _destination_text(taken.choice),
                    )
                )
            if self._returns is not None and outcome is ItemOutcome.MOVED:
                self._returns.note_sent(taken.choice.exchange, taken.choice.routing_key, dead_letter.source)
        self._control.add(items)
        await self._control.save()
        if held.ack(done):
            self.acked += len(done)
        if unresolved:
            raise Unresolved(f"the connection was lost: {unresolved}")
        if self._failures >= MOST_FAILURES:
            raise DestinationUnavailable(
                f"{self._failures} messages in a row could not be moved, the last because {last}"
            )

    def __repr__(self) -> str:
        return f"<Pipeline chosen={self.chosen} portions in flight={len(self._under_way)}>"


def _has_succeeded(under_way: tuple[asyncio.Task[Problems], list[SelectedMessage]]) -> bool:
    moving, _ = under_way
    return moving.done() and not moving.cancelled() and moving.exception() is None


_LEFT_THERE = (ItemOutcome.SKIPPED, ItemOutcome.FAILED)


def _outcome(problem: str | None) -> ItemOutcome | None:
    """Return the outcome of a message, or None if nothing happened to it."""
    match problem:
        case None:
            return ItemOutcome.MOVED
        case Skipped():
            return ItemOutcome.SKIPPED
        case Unconfirmed():
            return ItemOutcome.POSSIBLY_DUPLICATED
        case Unsent():
            return None
        case _:
            return ItemOutcome.FAILED


def _destination_text(choice: Selected) -> str:
    return f"{choice.exchange}:{choice.routing_key}" if choice.exchange else choice.routing_key


async def publish(broker: OperationPort, messages: Sequence[Message]) -> Problems:
    """Publish messages and wait for their confirms. Return for each of them what went wrong, or None."""
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
