"""Carry out an operation: take, choose, publish, confirm, write down, ack.

    lock     one operation for each queue, by a lock in the broker
    scope    what is ready in the queue now; what arrives later is not touched
    step     all of it, or as many as the canary says
      pass     hold the queue; for each portion of chosen messages, in order:
                   publish (mandatory) and wait for the confirms
                   write down what became of each
                   ack those that were confirmed
               then give back all others, in order
      outcome  of a canary's step: how many came back, and are the others settled? Whoever goes on with a canary asks
               that first. If it cannot be told, the operation stops: see `canary` and `returns`

What can die between which two steps:

    before the confirm is    the message is still in the queue, and is sent again. If the broker had it, it arrives
    recorded                 twice, with its message_id unchanged, so that an inbox absorbs it
    before the broker has    the message is in the queue again. It has an item, so it is recognised and acked, not
    stored the ack           sent (`reconciliation`)

Nothing is lost. The first case is counted as `possibly_duplicated`: exactly, where the connection was lost, because the
messages without a confirm are known; by as many as may have been in flight, where the process was killed, because they
are not. At most three quarters of what is left of `WINDOW` are in flight at a time (`in_flight`), so the first five
losses of an operation together leave at most `WINDOW` such messages, and each further one `UNDER_WAY`.

A lost connection is survived: the lock is taken again, the queue is reconciled, and the next pass goes on where the
last one ended. So does another process that resumes the operation. A message that is not accepted at its destination
stays in the queue, and is reported; when nothing is accepted any more the operation ends.

A pass does not last longer than a few minutes, because RabbitMQ ends a consumer that keeps a message for half an hour.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import chain, takewhile
from typing import NamedTuple, Protocol, TypeAlias

from redrive.deadletters.dead_letter import Summary, read_summary
from redrive.errors import Closed, ConnectionLost, Hopeless, RedriveError, Unresolved
from redrive.protocol.content import Delivery
from redrive.runtime.clock import Clock
from redrive.runtime.dlq.canary import Settled, StepClock, steps, too_many
from redrive.runtime.dlq.choosing import Choice, Chooser, Route, Verdict
from redrive.runtime.dlq.operation import Item, Operation, Outcome, Ramp, State
from redrive.runtime.dlq.ports import Held, Moves, Remembers
from redrive.runtime.dlq.reconciliation import Reconciliation, key_of
from redrive.runtime.dlq.returns import Counted, Returns, Sight
from redrive.runtime.dlq.steering import Changed, Steering
from redrive.topology.dead_ends import Feeders

log = logging.getLogger("redrive.dlq")

PORTION = 250
PORTIONS = 3  # in flight
UNDER_WAY = 4  # messages in flight, each a portion, with a rate
WINDOW = 1000  # messages that an operation may leave possibly duplicated
MOST_FAILURES = 1000  # in a row
DEFAULT_WAIT = 30.0  # seconds that a canary waits for failures, where nothing else is known

_QUIET = 2.0  # seconds without a message after which a queue that should have more is taken at its word
_LONGEST_PASS = timedelta(minutes=10).total_seconds()
_BROKER_PATIENCE = 120.0
_RECOVERY = 10.0  # seconds within which a queue has its messages back after a loss
_EVERYTHING = 2**31
_MOST_IN_VAIN = 3  # passes, where each may have found only what came since it began


class Taken(NamedTuple):
    """A chosen message, with what it tells and where it goes."""

    delivery: Delivery
    letter: Summary
    choice: Choice


class Skipped(str):
    """Why a message was left where it is on purpose: no failure."""

    __slots__ = ()


class Unconfirmed(str):
    """Why a message that was sent has no confirm. It may be at its destination."""

    __slots__ = ()


class Unsent(str):
    """Why a message was not sent. It is not at its destination."""

    __slots__ = ()


Problems: TypeAlias = "Sequence[str | None]"  # for each message, why it was not done


class Act(Protocol):
    """What is done with chosen messages. Raises if it is not known what became of them."""

    async def __call__(self, operation: Operation, taken: Sequence[Taken]) -> Problems: ...


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
        feeders: Feeders | None = None,
        keeps_order: bool = True,
        prefers_urgent: bool = False,
        sight: Sight | None = None,
        changed: Changed = lambda _: None,
    ) -> None:
        """`keeps_order`: does the queue put what it gets back where it was? `prefers_urgent`: does what comes later
        stand before the rest if it has a higher priority? `sight`: what is known of the broker's queues, for a canary.
        `changed` hears of every progress.
        """
        self.steering = Steering(operation, memory, clock, changed)
        self.queue = operation.order.queue
        self._broker = broker
        self._memory = memory
        self._act = act
        self._clock = clock
        self._retries = retries or {}
        self._feeders = feeders
        self._keeps_order = keeps_order
        self._prefers_urgent = prefers_urgent
        self._goes_on = operation.started_at is not None  # with what another process has begun
        self._returns = Returns(operation, broker, sight) if operation.order.ramp is not None else None
        self._passes = 0
        self._told: set[int] = set()  # hashes of the ids of messages that were skipped, or failed
        self._failures = 0  # in a row
        self._in_vain = 0  # passes in a row that found nothing to move
        self._acked = 0  # in this pass
        self._lost_acks = self._goes_on  # perhaps: the queue may have messages that were moved

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
        counts = self.operation.counts
        if self._goes_on:
            in_flight = min(self._in_flight, max(0, scope - counts.moved))
            counts = replace(counts, possibly_duplicated=counts.possibly_duplicated + in_flight)
        await self.steering.become(replace(self.operation, state=state, scope=scope, started_at=began, counts=counts))
        await self.steering.hear()  # before anything is moved: somebody may have wanted it to end while nobody listened

    async def _work(self) -> tuple[State, str]:
        try:
            ended = await self._steps()
            await self._reconcile()
            return ended
        except RedriveError as error:
            log.warning("operation %s on %s failed: %s", self.operation.id, self.queue, error)
            return State.FAILED, f"{error}. Nothing is lost: what was not moved is in the queue"

    async def _steps(self) -> tuple[State, str]:
        ramp = self.operation.order.ramp
        # What became of a step that another process took nobody has asked yet.
        if self.operation.counts.moved and (why := await self._objection(ramp)):
            return self._stopped(why, ended=self._room(None) == 0)
        for number, size in steps(ramp, self.operation.counts.moved):
            await self.steering.become(replace(self.operation, step=number))
            before = self.operation.counts.moved
            ended = await self._step(size)
            if self.operation.counts.moved > before and (why := await self._objection(ramp)):
                return self._stopped(why, ended=ended)
            if self.steering.is_cancelled:
                return State.CANCELLED, "what was moved stays moved"
            if ended:
                break
        failed = self.operation.counts.failed
        if failed:
            return State.PARTIAL, f"{failed} could not be moved, and stay in the queue: see its items"
        return State.SUCCEEDED, ""

    def _stopped(self, why: str, *, ended: bool) -> tuple[State, str]:
        return State.STOPPED_BY_GUARD, why if ended else f"{why}: the rest was left where it is"

    async def _step(self, size: int | None) -> bool:
        """Move so many. Whether there is nothing more to move."""
        target = None if size is None else self.operation.counts.moved + size
        while not self.steering.is_cancelled:
            await self.steering.while_paused()
            await self._reconcile()
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
        counts, limit = self.operation.counts, self.operation.order.selection.limit
        bounds = [bound - counts.moved for bound in (target, limit, counts.planned) if bound is not None]
        return max(0, min(bounds)) if bounds else None

    async def _survive(self, error: RedriveError) -> None:
        """Wait until a lost connection is back, and take the lock again. Raise any other error."""
        try:
            self._broker.check()
        except RedriveError:
            log.warning("operation %s: %s; waiting for the broker", self.operation.id, error)
            self._lost_acks = True
            await self._reconnect()
        else:
            raise error

    async def _reconnect(self) -> None:
        """Take the lock again, also if the connection is lost once more meanwhile."""
        while True:
            await self._broker.restored(_BROKER_PATIENCE)
            try:
                return await self._broker.lock(self.queue)
            except (ConnectionLost, Closed) as error:
                log.warning("operation %s: %s; waiting for the broker again", self.operation.id, error)

    # Reconciliation -----------------------------------------------------------------------------------

    async def _reconcile(self) -> None:
        """If acks may be lost, ack what this operation has moved already, and what the queue has again."""
        while self._lost_acks:
            try:
                await self._until_recovered()
                if self.operation.counts.moved:
                    await self._ack_already_moved()
                self._broker.check()
                self._lost_acks = False
            except RedriveError as error:
                await self._survive(error)

    async def _until_recovered(self) -> None:
        """Wait until the queue has at least what was not moved: a quorum queue reports less for a moment, and another
        one gets back what a lost connection held. Give up after a while: others may have removed messages.
        """
        until = self._clock.monotonic() + _RECOVERY
        while await self._broker.depth(self.queue) < self._left and self._clock.monotonic() < until:  # noqa: ASYNC110
            await asyncio.sleep(0.05)

    async def _ack_already_moved(self) -> None:
        reconciliation = Reconciliation(
            await asyncio.to_thread(self._count_moved),
            remaining=self._left,
            is_newer=self._chooser(mixed=True).is_newer,
            keeps_order=self._keeps_order,
        )
        scope = self.operation.scope or 0
        held = await self._broker.hold(self.queue, _EVERYTHING if self._is_mixed else scope)
        try:
            await self._read(held, reconciliation)
            found, doubtful = reconciliation.already_moved()
            held.ack(found)
        finally:
            await held.release()
        log.info("operation %s: %d messages of %s had been moved already", self.operation.id, len(found), self.queue)
        await self._count_duplicated(doubtful)

    async def _count_duplicated(self, more: int) -> None:
        """Count messages that are sent again. They are moved when that is done."""
        counts = self.operation.counts
        counts = replace(
            counts, possibly_duplicated=counts.possibly_duplicated + more, moved=max(0, counts.moved - more)
        )
        await self.steering.become(replace(self.operation, counts=counts))

    def _count_moved(self) -> Counter[int]:
        return Counter(map(key_of, self._memory.moved(self.operation.id)))

    async def _read(self, held: Held, reconciliation: Reconciliation) -> None:
        """Read the queue until nothing comes that was there when the operation began."""
        position, quiet_since = 0, self._clock.monotonic()
        while came := await held.next(_QUIET):
            for delivery in came:
                position += 1
                letter = read_summary(delivery.raw_properties, delivery.body, self.queue, position)
                if reconciliation.add(delivery, letter):
                    quiet_since = self._clock.monotonic()
            if self._clock.monotonic() - quiet_since > _QUIET:
                break

    # A pass -------------------------------------------------------------------------------------------

    async def _pass(self, room: int | None) -> bool:
        """Go through the queue once, and move as many. Whether its end was reached."""
        self._broker.check()
        depth = await self._broker.depth(self.queue)
        left = self._left
        mixed = self._is_mixed
        at_most = (depth if left else 0) if mixed else min(depth, left)
        if not at_most:
            return True
        self._passes += 1
        self._acked = 0
        held = await self._broker.hold(self.queue, at_most)
        if mixed:  # not every message tells when it died: in no case more than were there
            room = left if room is None else min(room, left)
        flow = _Flow(self, held, self._chooser(mixed), at_most, room)
        try:
            ended = await flow.run(until=self._clock.monotonic() + _LONGEST_PASS)
        finally:
            try:
                await flow.drain()
            finally:
                await held.release()
        self._broker.check()
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

    @property
    def _left(self) -> int:
        """How many of the messages that were there when it began were not moved."""
        return max(0, (self.operation.scope or 0) - self.operation.counts.moved)

    def _chooser(self, mixed: bool) -> Chooser:
        return Chooser(
            self.operation.order,
            operation=self.operation.id,
            began=self._asked_at,
            mixed=mixed,
            retries=self._retries,
            feeders=self._feeders,
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

    def _choose(self, chooser: Chooser, delivery: Delivery, position: int) -> Taken | None:
        letter = read_summary(delivery.raw_properties, delivery.body, self.queue, position)
        choice = chooser.choose(letter, delivery.body, delivery.raw_properties)
        if choice.verdict is Verdict.PASS or (self._told and hash(letter.id) in self._told):
            return None
        if choice.verdict is Verdict.TAKE:
            return Taken(delivery, letter.with_source(choice.origin or letter.source), choice)
        self._told.add(hash(letter.id))
        self.steering.add([Item(letter.id, Outcome.SKIPPED, self._clock.now(), letter.message_id, choice.why)])
        return None

    async def _done(self, held: Held, settled: Sequence[tuple[Taken, str | None]]) -> None:
        """Write down what became of these, each with the problem it had, and ack what is done."""
        now, done, items, last, unresolved = self._clock.now(), [], [], "", ""
        for taken, problem in settled:
            letter, outcome = taken.letter, _outcome(problem)
            match outcome:
                case Outcome.MOVED:
                    self._failures = 0
                    done.append(taken.delivery)
                case Outcome.FAILED:
                    self._failures += 1
                    last = str(problem)
                case Outcome.POSSIBLY_DUPLICATED | None:
                    unresolved = str(problem)
            if outcome in _LEFT_THERE:
                self._told.add(hash(letter.id))
            if outcome is not None:
                items.append(Item(letter.id, outcome, now, letter.message_id, str(problem or ""), _place(taken.choice)))
            if self._returns is not None and outcome is Outcome.MOVED:
                self._returns.sent(taken.choice.exchange, taken.choice.routing_key, letter.source)
        self.steering.add(items)
        await self.steering.write_down()
        if held.ack(done):
            self._acked += len(done)
        if unresolved:
            raise Unresolved(f"the connection was lost: {unresolved}")
        if self._failures >= MOST_FAILURES:
            raise Hopeless(f"{self._failures} messages in a row could not be moved, the last because {last}")

    @property
    def portion(self) -> int:
        """How many messages are sent together."""
        return 1 if self.steering.has_rate else min(PORTION, max(1, self._in_flight // PORTIONS))

    @property
    def _in_flight(self) -> int:
        return UNDER_WAY if self.steering.has_rate else in_flight(self.operation.counts.possibly_duplicated)

    # Canary -------------------------------------------------------------------------------------------

    async def _objection(self, ramp: Ramp | None) -> str:
        """Give what was moved its time. Return why the canary must not go on; nothing if it may."""
        if ramp is None or self._returns is None:
            return ""
        while True:
            try:
                return await self._watch(ramp, self._returns)
            except RedriveError as error:
                await self._survive(error)

    async def _watch(self, ramp: Ramp, returns: Returns) -> str:
        wait = ramp.wait if ramp.wait is not None else DEFAULT_WAIT
        clock, known = StepClock(wait, self._clock.monotonic()), await returns.depths()
        settled = Settled.NOT_YET
        while settled is Settled.NOT_YET and not self.steering.is_cancelled:
            self._broker.check()
            depths = await returns.depths()
            if any(depth > known[queue] for queue, depth in depths.items()) and (why := await self._too_many(ramp)):
                return why
            known = depths
            settled = clock.see(await returns.look(), self._clock.monotonic())
            if settled is Settled.NOT_YET:
                await self.steering.idle(min(max(wait / 10, 0.05), 1.0))
            if self.operation.state is State.PAUSED:
                await self.steering.while_paused()
                clock = StepClock(wait, self._clock.monotonic())
        return await self._verdict(ramp, settled, wait)

    async def _verdict(self, ramp: Ramp, settled: Settled, wait: float) -> str:
        counted = await self._count()
        if (why := self._share(ramp)) or self.steering.is_cancelled:
            return why
        unsure = f"undecided: {self.operation.counts.returned} of {self.operation.counts.moved} came back, and "
        if counted.unseen:
            return f"{unsure}there may be more: {counted.unseen}"
        if settled is Settled.UNDECIDED:
            return f"{unsure}the others may not have been handled: {self._returns} made no progress for {wait:g} s"
        return ""

    async def _too_many(self, ramp: Ramp) -> str:
        await self._count()
        return self._share(ramp)

    async def _count(self) -> Counted:
        assert self._returns is not None
        counted = await self._returns.count()
        counts = replace(self.operation.counts, returned=counted.returned)
        await self.steering.become(replace(self.operation, counts=counts))
        return counted

    def _share(self, ramp: Ramp) -> str:
        counts = self.operation.counts
        if not too_many(ramp, counts.moved, counts.returned):
            return ""
        return f"{counts.returned} of {counts.moved} came back, more than {ramp.returned_pct:g} %"

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
                taken = self._mover._choose(self._chooser, delivery, position)
                if taken is None:
                    continue
                if self._steering.has_rate:
                    await self._steering.in_time()
                self.chosen += 1
                self._portion.append(taken)
                if len(self._portion) >= self._mover.portion:
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
        while len(self._under_way) >= (UNDER_WAY if self._steering.has_rate else PORTIONS):
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


def in_flight(possibly_duplicated: int) -> int:
    """Return how many messages may be without a confirm at a time: three quarters of what is left of the window."""
    return max(UNDER_WAY, (WINDOW - possibly_duplicated) * 3 // 4)


_LEFT_THERE = (Outcome.SKIPPED, Outcome.FAILED)


def _outcome(problem: str | None) -> Outcome | None:
    """Return the outcome of a message, or None if nothing happened to it."""
    match problem:
        case None:
            return Outcome.MOVED
        case Skipped():
            return Outcome.SKIPPED
        case Unconfirmed():
            return Outcome.POSSIBLY_DUPLICATED
        case Unsent():
            return None
        case _:
            return Outcome.FAILED


def _place(choice: Choice) -> str:
    return f"{choice.exchange}:{choice.routing_key}" if choice.exchange else choice.routing_key
