"""How a client settles the deliveries of a channel, and what that does to their queues."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from enum import Enum
from typing import TYPE_CHECKING, TypeAlias

from redrive.broker.consumer import ChannelConsumer
from redrive.broker.errors import precondition
from redrive.broker.message import Entry
from redrive.broker.queue import Queue

if TYPE_CHECKING:
    from redrive.broker.channel import Channel

Unacked: TypeAlias = "tuple[Queue, Entry, ChannelConsumer | None]"  # no consumer: read by basic.get


class SettlementKind(Enum):
    """The value says whether it is requeued, and whether it counts as a failure where deliveries are counted."""

    ACKED = ()
    REJECTED = (False, True)
    REJECTED_UNCOUNTED = (False, False)
    REQUEUED = (True, True)
    REQUEUED_UNCOUNTED = (True, False)

    @classmethod
    def of(cls, requeue: bool, counts: bool) -> SettlementKind:
        return cls((requeue, counts))


def take(channel: Channel, tag: int, multiple: bool) -> dict[int, Unacked]:
    """Take out the deliveries that a settlement names. Tag 0 with `multiple` means all."""
    unacked = channel.unacked
    if multiple and tag == 0:
        channel.unacked = {}
        return unacked
    if tag not in unacked:
        raise precondition(f"unknown delivery tag {tag}")
    if not multiple:
        return {tag: unacked.pop(tag)}
    tags = []
    for open_tag in unacked:
        if open_tag > tag:
            break
        tags.append(open_tag)
    return {open_tag: unacked.pop(open_tag) for open_tag in tags}


def settle(channel: Channel, settlement: SettlementKind, taken: dict[int, Unacked]) -> None:
    if settlement is SettlementKind.ACKED:
        _acknowledge(channel, taken.values())
    else:
        for together in _groups_returned_together(taken):
            give_back(together, settlement)
        dispatch(channel, ())


def _acknowledge(channel: Channel, taken: Iterable[Unacked]) -> None:
    queues: dict[Queue, None] = {}
    for queue, entry, consumer in taken:
        if consumer is not None:
            consumer.unacked -= 1
        else:
            queue.getting -= 1
        queue.settle(entry)
        queues[queue] = None
    dispatch(channel, queues)


def give_back(taken: Iterable[Unacked], settlement: SettlementKind, *, by_client: bool = True) -> None:
    """Reject or requeue deliveries. `by_client` is False when the channel ended."""
    requeue, counts = settlement.value
    returned: dict[Queue, list[Entry]] = {}
    for queue, entry, consumer in taken:
        if consumer is not None:
            consumer.unacked -= 1
        else:
            queue.getting -= 1
        entries = returned.setdefault(queue, [])
        if requeue:
            entries.append(entry)
        else:
            queue.reject(entry, counts=counts)
    for queue, entries in returned.items():
        queue.requeue(entries, counts=requeue and counts, by_client=by_client)


def _groups_returned_together(taken: dict[int, Unacked]) -> Iterable[list[Unacked]]:
    """Yield each delivery read by basic.get, then those of each consumer by its tag: a queue delivers what it has back
    before it gets the next group.
    """
    if len(taken) == 1:
        return [list(taken.values())]
    got: list[list[Unacked]] = []
    consumed: dict[str, list[Unacked]] = {}
    for tag in sorted(taken):
        delivery = taken[tag]
        if delivery[2] is None:
            got.append([delivery])
        else:
            consumed.setdefault(delivery[2].tag, []).append(delivery)
    return [*got, *(consumed[name] for name in sorted(consumed))]


def return_order(tag: int, consumer: ChannelConsumer | None, *, by_name: bool) -> tuple[int, str, int]:
    """Sort key for what a channel gives back when it ends. basic.get counts as a consumer named by its delivery tag."""
    if consumer is None:
        return 0 if by_name else sys.maxsize, str(tag), tag
    return 0 if by_name else consumer.number, consumer.tag, tag


def dispatch(channel: Channel, queues: Iterable[Queue]) -> None:
    if channel.prefetch:  # room on the channel is room for all of its consumers
        _take_turns(channel)
    for queue in list(queues):
        if not queue.deleted:
            queue.dispatch()


def _take_turns(channel: Channel) -> None:
    """Let the queues fill the room on the channel. A queue that delivered moves to the end, so that none starves."""
    consumers = channel.consumers
    for queue in list(dict.fromkeys(consumer.queue for consumer in consumers.values())):
        ready = len(queue)
        queue.dispatch()
        if len(queue) < ready:
            for tag in [tag for tag, consumer in consumers.items() if consumer.queue is queue]:
                consumers[tag] = consumers.pop(tag)
