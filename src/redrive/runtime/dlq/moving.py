"""Carry out an operation: take, choose, publish, confirm, write down, ack.

    lock     one operation for each queue, by a lock in the broker
    scope    what is ready in the queue now; what arrives later is not touched
    step     all of it, or as many as the canary says
      pass     hold the queue; for each portion of chosen messages, in order:
                   publish (mandatory) and wait for the confirms
                   write down what became of each
                   ack those that were confirmed
               then give back all others, in order
      outcome  of a canary's step: how many came back? Whoever goes on with a canary asks that first

What can die between which two steps:

    before the confirm    the message is still in the queue. If it was sent, it is at its destination, too
    before the ack        the same: a duplicate, with its message_id unchanged, so that an inbox absorbs it
    after the ack         nothing

so at most `WINDOW` messages come twice, and none is lost. A lost connection is a death that is survived: the lock is
taken again, and the next pass goes on where the last one ended; what was confirmed and could not be acked any more is
known, and acked when it comes again. Which acks were lost on their way is not known, nor which ones another process,
with whose operation one goes on, could not send any more: so the next pass goes through as many messages more as that
may be (`WINDOW` of another process), and sends again what it finds there. A message that is not accepted at its
destination stays in the queue, and is told of; when nothing is accepted any more the operation ends.

A pass does not last longer than a few minutes, because RabbitMQ ends a consumer that keeps a message for half an hour.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import chain, takewhile
from typing import NamedTuple, Protocol, TypeAlias

from redrive.errors import RedriveError
from redrive.protocol.content import Delivery
from redrive.recovery.dead_letter import Summary, read_summary
from redrive.runtime.clock import Clock
from redrive.runtime.dlq.canary import steps, too_many
from redrive.runtime.dlq.choosing import Choice, Chooser, Route, Verdict
from redrive.runtime.dlq.looking import returned
from redrive.runtime.dlq.operation import Item, Operation, Outcome, Ramp, State
from redrive.runtime.dlq.ports import Held, Moves, Remembers
from redrive.runtime.dlq.steering import Changed, Steering

log = logging.getLogger("redrive.dlq")

PORTION = 250
UNDER_WAY = 4  # portions
WINDOW = PORTION * UNDER_WAY
MOST_FAILURES = 1000  # in a row
DEFAULT_WAIT = 30.0  # seconds that a canary waits for failures, where nothing else is known

_QUIET = 2.0  # seconds without a message after which a queue that should have more is taken at its word
_LONGEST_PASS = timedelta(minutes=10).total_seconds()
_BROKER_PATIENCE = 120.0
_MOST_IN_VAIN = 3  # passes, where each may have found only what came since it began


class Taken(NamedTuple):
    """A chosen message, with what it tells and where it goes."""

    delivery: Delivery
    letter: Summary
    choice: Choice


class Skipped(str):
    """Why a message was left where it is on purpose: no failure."""

    __slots__ = ()


Problems: TypeAlias = "Sequence[str | None]"  # for each message, why it was not done


class Act(Protocol):
    """What is done with chosen messages. Raises if it is not known what became of them."""

    async def __call__(self, operation: Operation, taken: Sequence[Taken]) -> Problems: ...


class Hopeless(RedriveError):
    """Nothing is accepted at the destination any more.

    Whose: the destination's.

    Why: it refuses one message after the other: it is full, gone, or not routable any more. So the operation ended
    itself, as FAILED.

    Do: mend the destination, then begin another operation: everything that was not moved is still in the dead-letter
    queue.
    """


class Mover:
    def __init__(
        self,
        operation: Operation,
        broker: Moves,
        memory: Remembers,
        act: Act,
        *,
        clock: Clock,
        retries: Mapping[str, Route] | None = None,
        keeps_order: bool = True,
        prefers_urgent: bool = False,
        settled: Callable[[], Awaitable[bool]] | None = None,
        changed: Changed = lambda _: None,
    ) -> None:
        """`keeps_order`: does the queue put what it gets back where it was? `prefers_urgent`: does what comes later
        stand before the rest if it has a higher priority? `settled`: is everything handled that was moved, as far as
        that can be seen? `changed` hears of every progress.
        """
        self.steering = Steering(operation, memory, clock, changed)
        self.queue = operation.order.queue
        self._broker = broker
        self._act = act
        self._clock = clock
        self._retries = retries or {}
        self._keeps_order = keeps_order
        self._prefers_urgent = prefers_urgent
        self._goes_on = operation.started_at is not None  # with what another process has begun
        self._settled = settled
        self._passes = 0
        self._told: set[int] = set()  # hashes of the ids of messages that were skipped, or failed
        self._failures = 0  # in a row
        self._in_vain = 0  # passes in a row that found nothing to move
        self._unacked: Counter[str] = Counter()  # moved, and the broker could not be told
        self._acked = 0  # in this pass
        # Of what another process has moved it may have died before it told the broker: so many may still be there.
        # And with a connection acks are lost, too.
        self._unsure = min(operation.counts.moved, WINDOW)

    @property
    def operation(self) -> Operation:
        return self.steering.operation

    # The whole of it ----------------------------------------------------------------------------------

    async def run(self) -> Operation:
        """To its end, whatever that is. Raises only if it cannot begin, or if its memory fails."""
        await self._broker.lock(self.queue)
        try:
            await self._begin()
            async with self.steering.alive():
                state, note = await self._work()
            await self.steering.become(replace(self.operation, state=state, ended_at=self._clock.now(), note=note))
            return self.operation
        finally:
            await self._broker.unlock(self.queue)

    async def _begin(self) -> None:
        scope = self.operation.scope
        if scope is None:
            scope = await self._broker.depth(self.queue)
        began = self.operation.started_at or self._clock.now()
        state = State.RUNNING if self.operation.state is State.PENDING else self.operation.state
        await self.steering.become(replace(self.operation, state=state, scope=scope, started_at=began))
        await self.steering.hear()  # before anything is moved: somebody may have wanted it to end while nobody listened

    async def _work(self) -> tuple[State, str]:
        try:
            return await self._steps()
        except RedriveError as error:
            log.warning("operation %s on %s failed: %s", self.operation.id, self.queue, error)
            return State.FAILED, f"{error}. Nothing is lost: what was not moved is in the queue"

    async def _steps(self) -> tuple[State, str]:
        ramp = self.operation.order.ramp
        # What became of a step that another process took nobody has asked yet.
        if ramp is not None and self.operation.counts.moved and await self._comes_back(ramp):
            return self._stopped(ramp, ended=self._room(None) == 0)
        for number, size in steps(ramp, self.operation.counts.moved):
            await self.steering.become(replace(self.operation, step=number))
            before = self.operation.counts.moved
            ended = await self._step(size)
            if ramp is not None and self.operation.counts.moved > before and await self._comes_back(ramp):
                return self._stopped(ramp, ended=ended)
            if self.steering.is_cancelled:
                return State.CANCELLED, "what was moved stays moved"
            if ended:
                break
        failed = self.operation.counts.failed
        if failed:
            return State.PARTIAL, f"{failed} could not be moved, and stay in the queue: see its items"
        return State.SUCCEEDED, ""

    def _stopped(self, ramp: Ramp, *, ended: bool) -> tuple[State, str]:
        counts = self.operation.counts
        rest = "" if ended else ": the rest was left where it is"
        told = f"{counts.returned} of {counts.moved} came back, more than {ramp.returned_pct:g} %{rest}"
        return State.STOPPED_BY_GUARD, told

    async def _step(self, size: int | None) -> bool:
        """Move so many. Whether there is nothing more to move."""
        target = None if size is None else self.operation.counts.moved + size
        while not self.steering.is_cancelled:
            await self.steering.while_paused()
            room = self._room(target)
            if room == 0:
                return self._room(None) == 0
            try:
                if await self._pass(room):
                    return True
            except RedriveError as error:
                await self._survive(error)
        return True

    def _room(self, target: int | None) -> int | None:
        """How many may still be moved; None: all there are."""
        moved, limit = self.operation.counts.moved, self.operation.order.selection.limit
        bounds = [bound - moved for bound in (target, limit) if bound is not None]
        return max(0, min(bounds)) if bounds else None

    async def _survive(self, error: RedriveError) -> None:
        """A lost connection is survived, with the lock taken anew; anything else is the end."""
        try:
            self._broker.check()
        except RedriveError:
            log.warning("operation %s: %s; waiting for the broker", self.operation.id, error)
            self._unsure += self._acked
            self._acked = 0
            await self._broker.restored(_BROKER_PATIENCE)
            await self._broker.lock(self.queue)
        else:
            raise error

    # A pass -------------------------------------------------------------------------------------------

    async def _pass(self, room: int | None) -> bool:
        """Go through the queue once, and move as many. Whether its end was reached."""
        self._broker.check()
        depth = await self._broker.depth(self.queue)
        left = self._left(depth)
        mixed = self._is_mixed
        at_most = (depth if left else 0) if mixed else min(depth, left)
        if not at_most:
            return True
        self._passes += 1
        self._acked = 0
        held = await self._broker.hold(self.queue, at_most)
        if mixed:  # not every message tells when it died: in no case more than were there
            room = left if room is None else min(room, left)
        flow = _Flow(self, held, self._chooser(mixed or self._unsure > 0), at_most, room)
        try:
            ended = await flow.run(until=self._clock.monotonic() + _LONGEST_PASS)
        finally:
            try:
                await flow.drain()
            finally:
                await held.release()
        return ended and not (self._prefers_urgent and await self._is_more_behind(at_most, flow.chosen))

    async def _is_more_behind(self, seen: int, chosen: int) -> bool:
        """What is urgent and came since the pass began stood before the rest, of which so many were not reached."""
        self._in_vain = 0 if chosen else self._in_vain + 1
        there = await self._broker.depth(self.queue)
        return there > seen - self._acked and self._in_vain < _MOST_IN_VAIN

    @property
    def _is_mixed(self) -> bool:
        """May what came later stand among what was there? In some queues once a pass has given back the rest, in others
        at any time.
        """
        return self._prefers_urgent or (not self._keeps_order and (self._goes_on or self._passes > 0))

    def _left(self, depth: int) -> int:
        """How many of those that were there when it began may still be there."""
        scope = depth if self.operation.scope is None else self.operation.scope
        return max(0, scope - self.operation.counts.moved + self._unacked.total() + self._unsure)

    def _chooser(self, mixed: bool) -> Chooser:
        return Chooser(
            self.operation.order,
            operation=self.operation.id,
            began=self._asked_at,
            mixed=mixed,
            retries=self._retries,
            budget=self._broker.budget,
        )

    @property
    def _asked_at(self) -> datetime:
        """After which nothing is meant. Where the urgent come first that is when it was planned: more may have come
        before those that were shown until it began.
        """
        began = self.operation.started_at or self._clock.now()
        planned = self.operation.order.selection.now if self._prefers_urgent else None
        return min(began, planned) if planned is not None else began

    def _choose(self, held: Held, chooser: Chooser, delivery: Delivery, position: int) -> Taken | None:
        letter = read_summary(delivery.raw_properties, delivery.body, self.queue, position)
        if self._unacked and self._unacked[letter.id]:
            self._unacked[letter.id] -= 1
            self._ack(held, [delivery], [letter.id])
            return None
        choice = chooser.choose(letter, delivery.body, delivery.raw_properties)
        if choice.verdict is Verdict.PASS or (self._told and hash(letter.id) in self._told):
            return None
        if choice.verdict is Verdict.TAKE:
            return Taken(delivery, letter, choice)
        self._told.add(hash(letter.id))
        self.steering.add([Item(letter.id, Outcome.SKIPPED, self._clock.now(), letter.message_id, choice.why)])
        return None

    async def _done(self, held: Held, settled: Sequence[tuple[Taken, str | None]]) -> None:
        """Write down what became of these, each with the problem it had, and ack what is done."""
        now, done, items, last = self._clock.now(), [], [], ""
        for taken, problem in settled:
            letter, outcome = taken.letter, _outcome(problem)
            if outcome is Outcome.MOVED:
                self._failures = 0
                done.append(taken)
            else:
                self._told.add(hash(letter.id))
            if outcome is Outcome.FAILED:
                self._failures += 1
                last = str(problem)
            items.append(Item(letter.id, outcome, now, letter.message_id, str(problem or ""), _place(taken.choice)))
        self.steering.add(items)
        await self.steering.write_down()
        self._ack(held, [taken.delivery for taken in done], [taken.letter.id for taken in done])
        if self._failures >= MOST_FAILURES:
            raise Hopeless(f"{self._failures} messages in a row could not be moved, the last because {last}")

    def _ack(self, held: Held, done: Sequence[Delivery], ids: Sequence[str]) -> None:
        if held.ack(done):
            self._acked += len(done)
        else:
            self._unacked.update(ids)

    # Canary -------------------------------------------------------------------------------------------

    async def _comes_back(self, ramp: Ramp) -> bool:
        """Give what was moved its time. Whether too much of it came back."""
        wait = ramp.wait if ramp.wait is not None else DEFAULT_WAIT
        until = self._clock.monotonic() + wait
        while True:
            try:
                return await self._waited(ramp, wait, until)
            except RedriveError as error:
                await self._survive(error)

    async def _waited(self, ramp: Ramp, wait: float, until: float) -> bool:
        expected = await self._broker.depth(self.queue)
        while not self.steering.is_cancelled:
            self._broker.check()
            left = until - self._clock.monotonic()
            arrived = await self._broker.depth(self.queue) - expected
            if arrived > 0:
                expected += arrived
                if await self._too_many(ramp):
                    return True
            elif left <= 0 or (self._settled is not None and await self._settled()):
                break
            await self.steering.idle(max(0.05, min(left, wait / 10)))
            await self.steering.while_paused()
        return await self._too_many(ramp)

    async def _too_many(self, ramp: Ramp) -> bool:
        back = await returned(self._broker, self.queue, self.operation.id)
        await self.steering.become(replace(self.operation, counts=replace(self.operation.counts, returned=back)))
        return too_many(ramp, self.operation.counts.moved, back)

    def __repr__(self) -> str:
        return f"<Mover of {self.queue} {self.operation.id} {self.operation.state}>"


class _Flow:
    """The messages of one pass: chosen one by one, acted on in portions, some of which are under way at a time.

    Three things go on at once. More is chosen; portions are acted on, each by a task; and one task settles them, in
    the order in which they were chosen: it writes down and acks as many as are done. Until then they are under way.
    """

    def __init__(self, mover: Mover, held: Held, chooser: Chooser, at_most: int, room: int | None) -> None:
        self._mover = mover
        self._steering = mover.steering
        self._held = held
        self._chooser = chooser
        self._at_most = at_most
        self._room = room
        self.chosen = 0
        self._portion: list[Taken] = []
        self._under_way: deque[tuple[asyncio.Task[Problems], list[Taken]]] = deque()
        self._settling: asyncio.Task[None] | None = None
        self._settled = asyncio.Event()  # some of it, or it failed

    async def run(self, until: float) -> bool:
        """Whether the end was reached."""
        position = 0
        while position < self._at_most and not self._steering.wish.is_set():
            came = await self._held.next(_QUIET)
            for delivery in came:
                position += 1
                taken = self._mover._choose(self._held, self._chooser, delivery, position)
                if taken is None:
                    continue
                if self._steering.has_rate:
                    await self._steering.in_time()
                self.chosen += 1
                self._portion.append(taken)
                if len(self._portion) >= PORTION or self._steering.has_rate:
                    await self._send()
                    if self._mover._clock.monotonic() > until:
                        return False
                if self.chosen == self._room or self._steering.wish.is_set():
                    return False
            self._mover._broker.check()
            if not came:
                break
        return not self._steering.wish.is_set()

    async def _send(self) -> None:
        """Have what was chosen acted on, and return when there is room for another portion."""
        self._act()
        await asyncio.sleep(0)  # it begins before more is chosen
        self._keep_settling()
        while len(self._under_way) >= UNDER_WAY:
            self._settled.clear()
            await self._settled.wait()
            self._keep_settling()

    def _act(self) -> None:
        portion, self._portion = self._portion, []
        if portion:
            self._under_way.append((asyncio.create_task(self._acting(portion)), portion))

    async def _acting(self, portion: list[Taken]) -> Problems:
        return await self._mover._act(self._mover.operation, portion)

    async def drain(self) -> None:
        """Finish what was chosen, also if something went wrong meanwhile: what is confirmed should be acked."""
        self._act()
        problem: RedriveError | None = None
        while self._under_way or self._settling is not None:
            try:
                self._keep_settling()
            except RedriveError as error:
                problem = problem or error
            if self._settling is not None:
                await asyncio.wait([self._settling])
        if problem is not None:
            raise problem

    def _keep_settling(self) -> None:
        """Begin with it if there is something to settle. Raises what ended it."""
        if self._settling is not None and self._settling.done():
            ended, self._settling = self._settling, None
            ended.result()
        if self._settling is None and self._under_way:
            self._settling = asyncio.create_task(self._settle())

    async def _settle(self) -> None:
        while self._under_way:
            await asyncio.wait([self._under_way[0][0]])
            done = list(takewhile(_succeeded, self._under_way)) or [self._under_way[0]]
            try:
                pairs = (zip(portion, acting.result(), strict=True) for acting, portion in done)
                await self._mover._done(self._held, list(chain.from_iterable(pairs)))
            finally:
                for _ in done:
                    self._under_way.popleft()
                self._settled.set()


def _succeeded(under_way: tuple[asyncio.Task[Problems], list[Taken]]) -> bool:
    acting, _ = under_way
    return acting.done() and not acting.cancelled() and acting.exception() is None


def _outcome(problem: str | None) -> Outcome:
    match problem:
        case None:
            return Outcome.MOVED
        case Skipped():
            return Outcome.SKIPPED
        case _:
            return Outcome.FAILED


def _place(choice: Choice) -> str:
    return f"{choice.exchange}:{choice.routing_key}" if choice.exchange else choice.routing_key
