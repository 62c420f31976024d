"""Plays one sequence on two brokers and compares what was seen.

RabbitMQ does some things when it gets to them: a quorum queue writes to its log before it acts, a dead letter is on its
way for a moment. So a difference is only believed when it is there again, and again, with more patience each time; if
RabbitMQ does once what the other did, then it is one of the things that RabbitMQ does.

And there is one thing that nobody promises: in which order messages arrive that come into a queue on different ways at
the same time, say one from a publisher and one from a queue in which it died; or one that died in this very queue,
while others are handed out. From the step where that happens on, a difference means nothing, and the sequence counts as
compared up to there. How often either happened is counted.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import astuple, dataclass, fields
from typing import Any, NamedTuple
from unittest import mock

from differential.acts import EXCHANGES, FRAME_MAX, LONG_NAMES, QUEUES, TRANSACTIONS, Step
from differential.transcript import Line, Stage
from redrive.broker.channel import Channel
from redrive.broker.message import Entry, Message
from redrive.broker.queue import Queue
from redrive.broker.quorum import QuorumQueue
from redrive.broker.vhost import VirtualHost
from redrive.client import Connection
from redrive.errors import RemoteProtocolError

# Seconds without news, at the first try and at each further one.
PATIENCE = (0.0, 0.05, 0.3, 0.1, 0.3)
QUORUM_PATIENCE = (0.03, 0.15, 0.4, 0.1, 0.3)
LAST = Step("the last look", Stage.last_look)


class Ways:
    """On which ways messages came into the queues of the embedded broker within one step, from consumers included.

    Two more things are as good as a crossing. Of what a transaction brings, a quorum queue handles several messages at
    once, and dead letters among these may leave in any order. And a message that dies of its delivery limit gives room
    for two to the consumer that had it (3.10): a prefetch of one is two from then on.

    A dead letter that reaches a quorum queue while a channel ends is a crossing if a consumer of that channel took it:
    it comes from the queue in which it died, and then from that consumer.

    What several channels give back to a quorum queue when their connection ends is a crossing, too: they end at the
    same time, in any order. So is a message that a commit brings to a full queue with consumers: RabbitMQ handles acks
    before the publishes that wait with them, and the room they make may save it.
    """

    def __init__(self, *, transactions: bool) -> None:
        self._transactions = transactions
        self._ways: dict[str, set[object]] = defaultdict(set)
        self._ending: Channel | None = None

    def published(self, queue: Queue, message: Message) -> None:
        if not message.deaths:
            self._ways[queue.name].add("a publisher")
            return
        source = queue.vhost.queues.get(message.deaths[0].queue)
        at_once = self._transactions and isinstance(source, QuorumQueue)
        self._ways[queue.name].add((source, message) if at_once else source)
        if source is queue:
            self._ways[queue.name].add("its own dead letter while others are handed out")

    def returned(self, queue: Queue, entries: list[Entry]) -> None:
        if entries:
            self._ways[queue.name].add(self._ending if isinstance(queue, QuorumQueue) else None)

    def ends(self, channel: Channel) -> None:
        self._ending = channel

    def died(self, queue: Queue, reason: str) -> None:
        if reason == "delivery_limit" and queue.consumers:
            self._ways[queue.name] |= {"room for one", "room for two"}
        if reason == "maxlen" and queue.consumers and self._transactions:
            self._ways[queue.name] |= {"before an ack", "after an ack"}

    def crossed(self) -> bool:
        """Were there several into one queue? Asked at the end of a step."""
        crossed = any(len(ways) > 1 for ways in self._ways.values())
        self._ways.clear()
        self._ending = None
        return crossed


@contextmanager
def watched(*, transactions: bool) -> Iterator[Ways]:
    ways = Ways(transactions=transactions)
    with ExitStack() as stack:
        for kind in (Queue, QuorumQueue):
            _spy(stack, kind, "publish", lambda queue, message, *_: ways.published(queue, message))
            _spy(stack, kind, "requeue", lambda queue, entries, **_: ways.returned(queue, entries))
        _spy(stack, Channel, "close", ways.ends)
        _spy(stack, VirtualHost, "dead_letter", lambda _, queue, message, reason, *__: ways.died(queue, reason))  # noqa: ARG005
        yield ways


def _spy(stack: ExitStack, kind: type, method: str, note: Callable[..., None]) -> None:
    """Have a note taken before each call of a method."""
    original = getattr(kind, method)

    def noted(*args: Any, **named: Any) -> Any:
        note(*args, **named)
        return original(*args, **named)

    stack.enter_context(mock.patch.object(kind, method, noted))


class Transcript(NamedTuple):
    seen: list[list[Line]]  # after each step
    crossed: int | None = None  # the first step after which an order is undefined, if there is one


class Difference(NamedTuple):
    """The first step after which two brokers differ."""

    number: int
    step: str
    wanted: list[Line]
    got: list[Line]

    def __str__(self) -> str:
        missing = [line for line in self.wanted if line not in self.got]
        added = [line for line in self.got if line not in self.wanted]
        lines = [f"after {self.step}", *(f"  - {line}" for line in missing), *(f"  + {line}" for line in added)]
        return "\n".join(lines if missing or added else [*lines, "  in another order", *map(repr, self.got)])


@dataclass
class Tally:
    """What was compared: `60 sequences, 1100 acts, 0 divergences`."""

    sequences: int = 0
    acts: int = 0
    divergences: int = 0
    again: int = 0  # sequences on which RabbitMQ was not of one mind
    crossed: int = 0  # sequences that were compared up to where an order is undefined

    def __iter__(self) -> Iterator[int]:
        return iter(astuple(self))

    def add(self, counts: Iterable[int]) -> None:
        for one, more in zip(fields(self), counts, strict=True):
            setattr(self, one.name, getattr(self, one.name) + more)

    def __str__(self) -> str:
        counted = f"{self.sequences} sequences, {self.acts} acts, {self.divergences} divergences"
        return f"{counted}; {self.crossed} compared up to an undefined order, {self.again} on which RabbitMQ varied"


async def play(url: str, sequence: list[Step], patience: float, ways: Ways | None = None) -> Transcript:
    """Do it all, and give what was seen after each step."""
    await clean(url)
    stage = Stage(f"{url}?frame_max={FRAME_MAX}", QUEUES, patience)
    await stage.open()
    seen: list[list[Line]] = []
    crossed: int | None = None
    try:
        for number, step in enumerate([*sequence, LAST]):
            stage.short_lived = stage.short_lived or step.short_lived
            async with asyncio.timeout(30):
                await step.act(stage)
                await stage.rest()
                await stage.look()
            if ways is not None and ways.crossed() and crossed is None:
                crossed = number
            seen.append(list(stage.lines))
            stage.lines.clear()
    finally:
        await stage.close()
    return Transcript(seen, crossed)


async def clean(url: str) -> None:
    async with Connection(url) as connection:
        for queue in (*QUEUES, *LONG_NAMES):
            await connection.delete_queue(queue)
        for exchange in (*EXCHANGES, *LONG_NAMES):
            await connection.delete_exchange(exchange)


async def compare(real_url: str, our_url: str, sequence: list[Step], tally: Tally) -> Difference | None:
    """`our_url` is the embedded broker's, in a thread of this process."""
    tally.sequences += 1
    tally.acts += len(sequence)
    difference: Difference | None = None
    with watched(transactions=TRANSACTIONS in sequence) as ways:
        for number, patience in enumerate(QUORUM_PATIENCE if "quorum" in repr(sequence) else PATIENCE):
            real, ours = _play_real(real_url, sequence, patience), play(our_url, sequence, 0, ways)
            wanted, got = await asyncio.gather(real, ours)
            difference = first_difference(sequence, wanted, got)
            if difference is None:
                tally.again += number > 0
                return None
            if got.crossed is not None and got.crossed <= difference.number:
                tally.crossed += 1
                return None
    tally.divergences += 1
    return difference


async def _play_real(url: str, sequence: list[Step], patience: float) -> Transcript:
    """Once more if RabbitMQ, now and then, delivers from a quorum queue on a channel that it has closed already."""
    for _ in range(3):
        try:
            return await play(url, sequence, patience)
        except RemoteProtocolError as error:
            if "basic.deliver on" not in str(error):
                raise
    return await play(url, sequence, patience)


def first_difference(sequence: list[Step], wanted: Transcript, got: Transcript) -> Difference | None:
    names = map(repr, [*sequence, LAST])
    for number, (name, real, ours) in enumerate(zip(names, wanted.seen, got.seen, strict=True)):
        if real != ours:
            return Difference(number, name, real, ours)
    return None
