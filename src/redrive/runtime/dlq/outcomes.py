"""Record what became of each message of an operation, and ack those that were moved.

The record comes first: a message that was moved and is in the queue again is recognised by its item (`reconciliation`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypeAlias

from redrive.deadletters.dead_letter import Summary, read_summary
from redrive.errors import RedriveError
from redrive.protocol.content import Delivery
from redrive.runtime.clock import Clock
from redrive.runtime.dlq.choosing import Chooser, Ignored, Selected, Skipped
from redrive.runtime.dlq.operation import Item, Operation, Outcome
from redrive.runtime.dlq.ports import Held, Message
from redrive.runtime.dlq.returns import Returns
from redrive.runtime.dlq.steering import Steering

MOST_FAILURES = 1000  # in a row


class Taken(NamedTuple):
    """A chosen message, with what it tells and where it goes."""

    delivery: Delivery
    letter: Summary
    choice: Selected


class Unconfirmed(str):
    """Why a message that was sent has no confirm. It may be at its destination."""

    __slots__ = ()


class Unsent(str):
    """Why a message was not sent. It is not at its destination."""

    __slots__ = ()


Problems: TypeAlias = "Sequence[str | None]"  # for each message, why it was not done


class Act(Protocol):
    """Decide what becomes of chosen messages.

    Returns for each of them the message to publish instead; None if nothing is to be published; or why it stays where
    it is: `Skipped`, or the text of a failure.
    """

    async def __call__(self, operation: Operation, taken: Sequence[Taken]) -> Sequence[Message | str | None]: ...


class Unresolved(RedriveError):
    """The connection was lost before some messages were confirmed. They are still in the dead-letter queue.

    Whose: nobody's.

    Do: nothing, if the operation continues by itself; else begin another. A message that was sent already may arrive
    twice, with the same id, so that an inbox recognises it. The operation counts it as possibly duplicated. Nothing is
    lost.
    """


class Hopeless(RedriveError):
    """Nothing is accepted at the destination any more.

    Whose: the destination's.

    Why: it refuses one message after the other: it is full, gone, or not routable any more. So the operation ended
    itself, as FAILED.

    Do: mend the destination, then begin another operation: everything that was not moved is still in the dead-letter
    queue.
    """


class OutcomeRecorder:
    def __init__(self, steering: Steering, clock: Clock, returns: Returns | None) -> None:
        """`returns` counts the messages of a canary that come back."""
        self._steering = steering
        self._clock = clock
        self._returns = returns
        self._queue = steering.operation.order.queue
        self._reported: set[int] = set()  # hashes of the ids of messages that were skipped, or failed
        self._failures = 0  # in a row
        self.acked = 0  # since this was last set to zero

    def select(self, chooser: Chooser, delivery: Delivery, position: int) -> Taken | None:
        """Return the message if it is to be moved. Record it if it is skipped."""
        letter = read_summary(delivery.raw_properties, delivery.body, self._queue, position)
        choice = chooser.choose(letter, delivery.body, delivery.raw_properties)
        if isinstance(choice, Ignored) or (self._reported and hash(letter.id) in self._reported):
            return None
        if isinstance(choice, Selected):
            return Taken(delivery, letter.with_source(choice.origin or letter.source), choice)
        self._reported.add(hash(letter.id))
        self._steering.add([Item(letter.id, Outcome.SKIPPED, self._clock.now(), letter.message_id, str(choice))])
        return None

    async def record(self, held: Held, settled: Sequence[tuple[Taken, str | None]]) -> None:
        """Record what became of these messages, each with the problem it had, and ack those that were moved."""
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
                self._reported.add(hash(letter.id))
            if outcome is not None:
                items.append(Item(letter.id, outcome, now, letter.message_id, str(problem or ""), _to(taken.choice)))
            if self._returns is not None and outcome is Outcome.MOVED:
                self._returns.sent(taken.choice.exchange, taken.choice.routing_key, letter.source)
        self._steering.add(items)
        await self._steering.write_down()
        if held.ack(done):
            self.acked += len(done)
        if unresolved:
            raise Unresolved(f"the connection was lost: {unresolved}")
        if self._failures >= MOST_FAILURES:
            raise Hopeless(f"{self._failures} messages in a row could not be moved, the last because {last}")

    def __repr__(self) -> str:
        return f"<OutcomeRecorder of {self._queue} acked={self.acked} failures={self._failures}>"


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


def _to(choice: Selected) -> str:
    return f"{choice.exchange}:{choice.routing_key}" if choice.exchange else choice.routing_key
