"""What a quorum queue does differently from a classic one. It has one copy of its log instead of several.

It stores every message, persistent or not, counts failed deliveries, and dead-letters a message that failed too often.
Requeued messages are delivered first; where a queue has no delivery limit and the dialect says so, messages that a
client requeues go to the end instead. After every change it does the same three things in the same order: expire,
dispatch, drop what exceeds its limits. A TTL of zero is one of a millisecond. Where it has 32 priorities, messages
expire at the head of each of them.

It also refuses publishers differently: see `PublisherLimit`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from redrive.broker.message import Entry, Message
from redrive.broker.queue import Queue
from redrive.broker.queue_arguments import QueueSettings
from redrive.broker.ready_queue import PriorityQueue, ReadyQueue, ReturnedFirstQueue, WeightedPriorityQueue

if TYPE_CHECKING:
    from redrive.broker.channel import Channel
    from redrive.broker.consumer import ChannelConsumer

_LOW = 0.8  # of a limit


class PublisherLimit:
    """`reject-publish`: channels are refused when the queue is too full, until it is empty enough again.

    A message that makes it too full is still accepted. From then on all channels that have ever published to it are
    refused, until no more than 80 % of each limit is in use. A channel that comes in between gets the state at its
    first publish; and one that commits a transaction keeps the state that it had at the beginning of the commit.
    """

    def __init__(self, settings: QueueSettings) -> None:
        self._settings = settings
        self._refused: WeakKeyDictionary[Channel, bool] = WeakKeyDictionary()  # by channel
        self._low = True

    def admits(self, channel: Channel, messages: int, size: int) -> bool:
        if channel.admitted is None:
            return self._admits(channel, messages, size)
        if self not in channel.admitted:
            channel.admitted[self] = self._admits(channel, messages, size)
        return channel.admitted[self]

    def _admits(self, channel: Channel, messages: int, size: int) -> bool:
        if channel not in self._refused:
            self._refused[channel] = not self._within(1.0, messages, size)
        return not self._refused[channel]

    def update(self, messages: int, size: int) -> None:
        """Apply the number and size of the ready messages after a change."""
        was_low, self._low = self._low, self._within(_LOW, messages, size)
        if not self._within(1.0, messages, size):
            self._set_all(refused=True)
        elif self._low and not was_low:
            self._set_all(refused=False)

    def _within(self, share: float, messages: int, size: int) -> bool:
        limits = ((self._settings.max_length, messages), (self._settings.max_bytes, size))
        return all(limit is None or used <= int(limit * share) for limit, used in limits)

    def _set_all(self, *, refused: bool) -> None:
        for channel in self._refused:
            self._refused[channel] = refused

    def __repr__(self) -> str:
        return f"<PublisherLimit refuses {sum(self._refused.values())} of {len(self._refused)}>"


class QuorumQueue(Queue):
    _publisher_limit: PublisherLimit | None = None
    _leaving: tuple[ChannelConsumer, ...] = ()  # consumers that were cancelled and have not settled everything
    _yielding = False  # the single active consumer gets no more, since one of a higher priority came

    def _make_ready(self) -> ReadyQueue:
        if self.settings.overflow == "reject-publish" and self.settings.limited:
            self._publisher_limit = PublisherLimit(self.settings)
        priorities, each = self.vhost.dialect.quorum_priorities, self.vhost.dialect.expires_by_priority
        fresh = (
            WeightedPriorityQueue() if priorities == 2 else PriorityQueue(priorities - 1, usual=4, each_expires=each)
        )
        return ReturnedFirstQueue(fresh, each_expires=each)

    def _size(self, message: Message) -> int:
        """A dead letter counts without its x-death header, which RabbitMQ writes when it is delivered."""
        size = super()._size(message)
        return size + len(message.facts.raw) if self.vhost.dialect.counts_properties else size

    @property
    def consumers(self) -> int:
        """Return the number of active consumers, and of others that have unacknowledged messages."""
        served = min(1, len(self._consumers)) if self.settings.single_active_consumer else len(self._consumers)
        self._leaving = tuple(consumer for consumer in self._leaving if consumer.unacked)
        return served + self.getting + len(self._leaving)

    def remove(self, consumer: ChannelConsumer) -> None:
        self._leaving = tuple(leaving for leaving in (*self._leaving, consumer) if leaving.unacked)
        super().remove(consumer)

    def _insertion_index(self, consumer: ChannelConsumer) -> int:
        if self.settings.single_active_consumer and not self.vhost.dialect.active_consumer_yields:
            return len(self._consumers)
        return super()._insertion_index(consumer)

    def _active(self) -> Iterable[ChannelConsumer]:
        if self._yielding:
            self._elect()  # it may have settled everything
        return () if self._yielding else super()._active()

    def _elect(self) -> None:
        """The single active consumer yields to a higher priority, when it has settled its deliveries.

        It gets nothing more before that, even if the other one has left again.
        """
        before = self._active_consumer
        super()._elect()
        if before is None or self._active_consumer is not before:
            self._yielding = False
            return
        first = self._consumers[0]
        self._yielding = self._yielding or first.priority > before.priority
        if self._yielding and not before.unacked:
            self._active_consumer, self._yielding = first, False

    def publish(self, message: Message, by: Channel | None = None) -> bool:
        """Add a message, unless its channel is refused. Dead letters are never refused."""
        if (
            self._publisher_limit is not None
            and by is not None
            and not self._publisher_limit.admits(by, len(self._ready), self._bytes)
        ):
            return False
        self._accept(message)
        self.dispatch()
        return True

    def dispatch(self) -> None:
        if self._has_expiring:
            self.expire()
        super().dispatch()
        if self._drops and self._drop_overflow() and self._has_expiring:
            self._schedule_expiry()
        self._update_publisher_limit()

    def _on_expiry_timer(self) -> None:
        super()._on_expiry_timer()
        if not self.deleted:
            self.dispatch()

    def _update_publisher_limit(self) -> None:
        if self._publisher_limit is not None:
            self._publisher_limit.update(len(self._ready), self._bytes)

    def get(self, *, no_ack: bool) -> Entry | None:
        """Take one message. With `no_ack`, messages behind it expire before the rest is counted; else after it."""
        self.reset_idle_timer()
        if not self._ready:
            return None
        entry = self._take_for_delivery()
        self._settle_get(entry, no_ack=no_ack)
        if no_ack:
            self.dispatch()
        elif self._has_expiring:
            self._schedule_expiry()
        self._update_publisher_limit()
        return entry

    def purge(self) -> int:
        count = super().purge()
        self._update_publisher_limit()
        return count

    def _deadline(self, message: Message) -> float | None:
        deadline = super()._deadline(message)
        return None if deadline is None else max(deadline, self.vhost.now() + 0.001)

    # Back ---------------------------------------------------------------------------------------------

    @property
    def _requeues_to_end(self) -> bool:
        """Return whether messages that a client requeues go to the end."""
        return self.settings.delivery_limit is None and not self.vhost.dialect.keeps_order_on_return

    def requeue(self, entries: Iterable[Entry], *, counts: bool, by_client: bool) -> None:
        """Put messages back. `counts`: their deliveries count as failed. `by_client`: not because a channel ended."""
        for entry in entries:
            self.unacked -= 1
            if self.deleted:
                self._forget(entry)
            elif not counts or self._count_failure(entry):
                self._put_back(entry, to_the_end=by_client and self._requeues_to_end)
        if not self.deleted:
            self.dispatch()

    def _count_failure(self, entry: Entry) -> bool:
        entry.delivery_count += 1
        limit = self.settings.delivery_limit
        if limit is not None and entry.delivery_count > limit:
            self._dead_letter(entry, "delivery_limit")
            return False
        if entry.stored:
            self.vhost.journal.note_return(entry.id, entry.delivery_count)
        return True

    def _put_back(self, entry: Entry, *, to_the_end: bool) -> None:
        entry.redelivered = True
        entry.acquired += 1
        if self._counts_bytes:
            self._bytes += self._size(entry.message)
        if to_the_end:
            self._move_to_end(entry)
            self._ready.append(entry)
        else:
            self._ready.insert((entry,))

    def _move_to_end(self, entry: Entry) -> None:
        if entry.stored:
            self.vhost.journal.forget(entry.id)
        entry.id = self.vhost.next_id()
        entry.position, self._next_position = self._next_position, self._next_position + 1
        if entry.stored:
            self.vhost.store(self.id, entry)
