"""Move the chosen messages of one pass, in portions, of which several are in flight at a time.

Three things go on at once. More is chosen; portions are published, each by a task; and one task records and acks them,
in the order in which they were chosen. Until then they are in flight.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from itertools import chain, takewhile

from redrive.errors import NotPublished, PublishError, PublishErrors, PublishUnknown, RedriveError
from redrive.runtime.clock import Clock
from redrive.runtime.dlq.choosing import Chooser
from redrive.runtime.dlq.outcomes import Act, OutcomeRecorder, Problems, Taken, Unconfirmed, Unsent
from redrive.runtime.dlq.ports import Held, Message, Moves
from redrive.runtime.dlq.steering import Steering

PORTION = 250
PORTIONS = 3  # in flight
UNDER_WAY = 4  # messages in flight, each a portion, with a rate
WINDOW = 1000  # messages that an operation may leave possibly duplicated
QUIET = 2.0  # seconds without a message after which a queue that should have more is considered read


def in_flight(possibly_duplicated: int) -> int:
    """Return how many messages may be without a confirm at a time: three quarters of what is left of the window."""
    return max(UNDER_WAY, (WINDOW - possibly_duplicated) * 3 // 4)


def most_in_flight(steering: Steering) -> int:
    """Return how many messages of a running operation may be without a confirm at a time."""
    return UNDER_WAY if steering.has_rate else in_flight(steering.operation.counts.possibly_duplicated)


class Pipeline:
    def __init__(self, steering: Steering, broker: Moves, act: Act, recorder: OutcomeRecorder, clock: Clock) -> None:
        self._steering = steering
        self._broker = broker
        self._act = act
        self._recorder = recorder
        self._clock = clock
        self.chosen = 0  # in this pass
        self._portion: list[Taken] = []
        self._under_way: deque[tuple[asyncio.Task[Problems], list[Taken]]] = deque()
        self._settling: asyncio.Task[None] | None = None
        self._settled = asyncio.Event()  # some of it, or it failed

    async def run(self, held: Held, chooser: Chooser, *, at_most: int, room: int | None, until: float) -> bool:
        """Go through the messages in hand and move at most `room` of them. Return whether the end was reached."""
        self.chosen = 0
        try:
            return await self._run(held, chooser, at_most, room, until)
        finally:
            await self._drain(held)

    async def _run(self, held: Held, chooser: Chooser, at_most: int, room: int | None, until: float) -> bool:
        position = 0
        while position < at_most and not self._steering.wish.is_set():
            came = await held.next(QUIET)
            for delivery in came:
                position += 1
                taken = self._recorder.select(chooser, delivery, position)
                if taken is None:
                    continue
                if self._steering.has_rate:
                    await self._steering.in_time()
                self.chosen += 1
                self._portion.append(taken)
                if len(self._portion) >= self._portion_size:
                    await self._send(held)
                    if self._clock.monotonic() > until:
                        return False
                if self.chosen == room or self._steering.wish.is_set():
                    return False
            self._broker.check()
            if not came:
                break
        return not self._steering.wish.is_set()

    @property
    def _portion_size(self) -> int:
        if self._steering.has_rate:
            return 1
        return min(PORTION, max(1, most_in_flight(self._steering) // PORTIONS))

    async def _send(self, held: Held) -> None:
        """Begin to move what was chosen, and return when there is room for another portion."""
        self._begin()
        await asyncio.sleep(0)  # it begins before more is chosen
        self._keep_settling(held)
        while len(self._under_way) >= (UNDER_WAY if self._steering.has_rate else PORTIONS):
            self._settled.clear()
            await self._settled.wait()
            self._keep_settling(held)

    def _begin(self) -> None:
        portion, self._portion = self._portion, []
        if portion:
            self._under_way.append((asyncio.create_task(self._move(portion)), portion))

    async def _move(self, portion: list[Taken]) -> Problems:
        """Do what the action decides. Return for each message why it was not moved."""
        decided = await self._act(self._steering.operation, portion)
        messages = [each for each in decided if isinstance(each, tuple)]
        problems = await publish(self._broker, messages) if messages else ()
        if len(problems) == len(decided):
            return problems
        published = iter(problems)
        return [next(published) if isinstance(each, tuple) else each for each in decided]

    async def _drain(self, held: Held) -> None:
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

    def _keep_settling(self, held: Held) -> None:
        """Begin with it if there is something to settle. Raises what ended it."""
        if self._settling is not None and self._settling.done():
            ended, self._settling = self._settling, None
            ended.result()
        if self._settling is None and self._under_way:
            self._settling = asyncio.create_task(self._settle(held))

    async def _settle(self, held: Held) -> None:
        while self._under_way:
            await asyncio.wait([self._under_way[0][0]])
            done = list(takewhile(_succeeded, self._under_way)) or [self._under_way[0]]
            try:
                pairs = (zip(portion, moving.result(), strict=True) for moving, portion in done)
                await self._recorder.record(held, list(chain.from_iterable(pairs)))
            finally:
                for _ in done:
                    self._under_way.popleft()
                self._settled.set()

    def __repr__(self) -> str:
        return f"<Pipeline chosen={self.chosen} portions in flight={len(self._under_way)}>"


def _succeeded(under_way: tuple[asyncio.Task[Problems], list[Taken]]) -> bool:
    moving, _ = under_way
    return moving.done() and not moving.cancelled() and moving.exception() is None


async def publish(broker: Moves, messages: Sequence[Message]) -> Problems:
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
