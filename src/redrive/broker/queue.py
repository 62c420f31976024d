"""A queue: its ready messages, its unacknowledged messages, and when they are delivered, expired or dropped.

    publish ──> ready ──> unacknowledged ───> settled
                  │  ^            │
          expired │  └── requeued ┘──> rejected, delivery limit
          maxlen  v                         v
              dead-letter exchange  <───────┘

Everything happens within one call and in memory; changes are appended to the journal, and nothing here waits for it.
Messages expire only at the head of the queue, as in RabbitMQ: a message with a short TTL waits behind one with a long
TTL or a higher priority.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from redrive.broker.clock import Alarm
from redrive.broker.message import Entry, Message
from redrive.broker.queue_arguments import QueueSettings
from redrive.broker.ready_queue import PriorityQueue, ReadyQueue
from redrive.wire.methods.queue import QueueDeclare

if TYPE_CHECKING:
    from redrive.broker.channel import Channel
    from redrive.broker.consumer import ChannelConsumer
    from redrive.broker.vhost import VirtualHost

# The longest wait an event loop's timer is set for; a longer one is set again when it rings.
_LONGEST_ALARM = 24 * 3600.0


class Queue:
    def __init__(
        self,
        vhost: VirtualHost,
        name: str,
        declare: QueueDeclare,
        settings: QueueSettings,
        *,
        id: int,
        owner: object | None,
    ) -> None:
        self.vhost = vhost
        self.name = name
        self.id = id
        self.durable = declare.durable
        self.owner = owner  # the connection that has it exclusively
        self.auto_delete = declare.auto_delete
        self.arguments = declare.arguments
        self.settings = settings
        self.unacked = 0
        self.getting = 0  # of these, by basic.get
        self.deleted = False
        self.exclusive_consumer = False
        self._consumers: list[ChannelConsumer] = []  # in the order of delivery: by priority, then by turn
        self._active_consumer: ChannelConsumer | None = None  # the single active consumer, where there is to be one
        self._had_consumers = False
        self._ready = self._make_ready()
        self._drops = settings.overflow == "drop-head" and settings.limited
        self._counts_bytes = settings.max_bytes is not None
        self._bytes = 0  # of what is ready, if anybody wants to know
        self._next_position = 1
        self._has_expiring = False  # was there ever a message that can expire?
        self._expiry_timer: Alarm | None = None
        self._expiry_due = 0.0
        self._idle_timer: Alarm | None = None
        self._dispatching = False
        self.reset_idle_timer()

    def _make_ready(self) -> ReadyQueue:
        return PriorityQueue(self.settings.max_priority or 0)

    def __len__(self) -> int:
        """Return the number of ready messages."""
        return len(self._ready)

    @property
    def head(self) -> Message | None:
        """Return the first of the ready messages."""
        entry = next(iter(self._ready), None)
        return None if entry is None else entry.message

    @property
    def consumers(self) -> int:
        """Return the number of consumers, as clients see it."""
        return len(self._consumers)

    @property
    def survives(self) -> bool:
        """Return whether it exists after a restart. An exclusive queue does not, durable or not."""
        return self.durable and self.owner is None

    # In -----------------------------------------------------------------------------------------------

    def _size(self, message: Message) -> int:
        """Return what a message counts towards x-max-length-bytes."""
        return len(message.body)

    def _would_overflow(self, size: int) -> bool:
        settings = self.settings
        return (settings.max_length is not None and len(self._ready) >= settings.max_length) or (
            settings.max_bytes is not None and self._bytes + size > settings.max_bytes
        )

    def publish(self, message: Message, by: Channel | None = None) -> bool:  # noqa: ARG002 - a quorum queue wants to know
        """Add a message, unless the queue is full and refuses it. `by`: the channel, or None for a dead letter."""
        settings = self.settings
        if settings.overflow != "drop-head" and self._would_overflow(self._size(message)):
            if settings.overflow == "reject-publish-dlx":
                self.vhost.dead_letter(self, message, "maxlen", message.failures)
            return False
        self._accept(message)
        if self._consumers:
            self.dispatch()  # even a message with a TTL of 0, if a consumer has room
        dropped = self._drops and self._drop_overflow()
        if self._has_expiring and (dropped or len(self._ready) == 1):
            # Otherwise RabbitMQ assumes that the head is unchanged, even where a message of a higher priority is now.
            # A dead letter waits for the timer, or one that expires over and over would block the event loop.
            self._schedule_expiry() if message.deaths else self.expire()
        return True

    def _accept(self, message: Message) -> None:
        entry = Entry(self.vhost.next_id(), message, self._next_position, self._deadline(message))
        if message.failures:
            entry.delivery_count, entry.redelivered = message.failures, True
        self._next_position += 1
        self.vhost.memory.take(message.weight)
        if self.survives and (message.facts.persistent or self.settings.quorum):
            self.vhost.store(self.id, entry)
        self._put(entry)

    def restore(self, entry: Entry) -> None:
        """Restore an entry from the journal. Called in order, before anything else happens."""
        entry.stored = True
        self.vhost.memory.take(entry.message.weight)
        self._put(entry)
        self._next_position = max(self._next_position, entry.position + 1)

    def skip_positions(self, delivered: int) -> None:
        """Continue above the highest position ever delivered, or the next messages would look redelivered."""
        self._next_position = max(self._next_position, delivered + 1)

    def _put(self, entry: Entry) -> None:
        if entry.expires_at is not None:
            self._has_expiring = True
        self._ready.append(entry)
        if self._counts_bytes:
            self._bytes += self._size(entry.message)

    def _take(self) -> Entry:
        entry = self._ready.popleft()
        if self._counts_bytes:
            self._bytes -= self._size(entry.message)
        return entry

    def _deadline(self, message: Message) -> float | None:
        lives = [life for life in (message.facts.expiration, self.settings.message_ttl) if life is not None]
        return self.vhost.now() + min(lives) / 1000 if lives else None

    def _drop_overflow(self) -> bool:
        """Drop messages at the head until the limits hold. Returns whether any was dropped."""
        settings, before = self.settings, len(self._ready)
        while self._ready and (
            (settings.max_length is not None and len(self._ready) > settings.max_length)
            or (settings.max_bytes is not None and self._bytes > settings.max_bytes)
        ):
            self._dead_letter(self._take(), "maxlen")
        return len(self._ready) != before

    # Expiry -------------------------------------------------------------------------------------------

    def _schedule_expiry(self) -> None:
        """Set the timer for the head of the queue, if it can expire."""
        due = self._ready.deadline
        if due is None or (self._expiry_timer is not None and self._expiry_due <= due):
            return
        if self._expiry_timer is not None:
            self._expiry_timer.cancel()
        self._expiry_due = min(due, self.vhost.now() + _LONGEST_ALARM)
        self._expiry_timer = self.vhost.clock.call_at(self._expiry_due, self._on_expiry_timer)

    def _on_expiry_timer(self) -> None:
        self._expiry_timer = None
        if not self.deleted:
            self.expire()

    def expire(self) -> None:
        """Remove the expired messages at the head of the queue."""
        now = self.vhost.now()
        if self._expiry_timer is not None and self._expiry_due <= now:  # it would find nothing
            self._expiry_timer.cancel()
            self._expiry_timer = None
        try:
            while (entry := self._ready.take_expired(now)) is not None:
                if self._counts_bytes:
                    self._bytes -= self._size(entry.message)
                self._dead_letter(entry, "expired")
        finally:  # even if dead-lettering one of them failed
            self._schedule_expiry()

    # Out ----------------------------------------------------------------------------------------------

    def _active(self) -> Iterable[ChannelConsumer]:
        if not self.settings.single_active_consumer:
            return self._consumers
        return () if self._active_consumer is None else (self._active_consumer,)

    def dispatch(self) -> None:
        """Deliver ready messages to consumers that have room: the highest priority first, equals in turn."""
        if self._dispatching:
            return
        self._dispatching = True
        try:
            while self._ready and (consumer := self._next_consumer()) is not None:
                consumer.deliver(self, self._take_for_client())
        finally:
            self._dispatching = False

    def _next_consumer(self) -> ChannelConsumer | None:
        for place, consumer in enumerate(self._active()):
            if consumer.has_room():
                if len(self._consumers) > 1 and not self.settings.single_active_consumer:
                    self._move_behind_peers(place)
                return consumer
        return None

    def _move_behind_peers(self, place: int) -> None:
        consumer = self._consumers.pop(place)
        while place < len(self._consumers) and self._consumers[place].priority == consumer.priority:
            place += 1
        self._consumers.insert(place, consumer)

    def _take_for_client(self) -> Entry:
        """Take the next message for a client, then expire what was behind it."""
        entry = self._take_for_delivery()
        if self._has_expiring:
            self.expire()
        return entry

    def _take_for_delivery(self) -> Entry:
        entry = self._take()
        self.unacked += 1
        if entry.stored:
            self.vhost.journal.note_delivery(self.id, entry.position)
        return entry

    def get(self, *, no_ack: bool) -> Entry | None:
        """Take one message for basic.get; with `no_ack` it is settled at once."""
        self.reset_idle_timer()
        if not self._ready:
            return None
        entry = self._take_for_client()
        self._settle_get(entry, no_ack=no_ack)
        return entry

    def _settle_get(self, entry: Entry, *, no_ack: bool) -> None:
        if no_ack:
            self.settle(entry)
        else:
            self.getting += 1

    # Back ---------------------------------------------------------------------------------------------

    def settle(self, entry: Entry) -> None:
        """Remove an acknowledged message."""
        self.unacked -= 1
        self._forget(entry)

    def _forget(self, entry: Entry) -> None:
        self.vhost.memory.release(entry.message.weight)
        if entry.stored:
            self.vhost.journal.forget(entry.id)

    def reject(self, entry: Entry, *, counts: bool) -> None:
        """Dead-letter a rejected message. `counts`: the delivery counts as failed."""
        self.unacked -= 1
        entry.delivery_count += counts
        if self.deleted:
            self._forget(entry)
        else:
            self._dead_letter(entry, "rejected")

    def requeue(self, entries: list[Entry], *, counts: bool, by_client: bool) -> None:  # noqa: ARG002
        """Put messages back to their old positions. `counts`: their deliveries count as failed. `by_client` is for
        quorum queues.
        """
        if self.deleted:
            for entry in entries:
                self.settle(entry)
            return
        for entry in entries:
            self.unacked -= 1
            entry.redelivered = True
            entry.delivery_count += counts
            if self._counts_bytes:
                self._bytes += self._size(entry.message)
        self._ready.insert(entries)
        if self._drops:
            self._drop_overflow()
        if self._has_expiring:
            self.expire()
        self.dispatch()

    def _dead_letter(self, entry: Entry, reason: str) -> None:
        self._forget(entry)
        self.vhost.dead_letter(self, entry.message, reason, self._failures_for_dead_letter(entry))

    def _failures_for_dead_letter(self, entry: Entry) -> int:
        """Return the number of failed deliveries that a dead letter carries."""
        return entry.delivery_count if self.vhost.dialect.remembers_failures else 0

    def purge(self) -> int:
        self.reset_idle_timer()
        entries = list(self._ready)
        self._ready.clear()
        self._bytes = 0
        for entry in entries:
            self._forget(entry)
        return len(entries)

    # Consumers ----------------------------------------------------------------------------------------

    def add(self, consumer: ChannelConsumer, *, exclusive: bool) -> None:
        self.reset_idle_timer()
        self._consumers.insert(self._insertion_index(consumer), consumer)
        if self.settings.single_active_consumer:
            self._elect()
        self._had_consumers = True
        self.exclusive_consumer = exclusive
        self._cancel_idle_timer()

    def _insertion_index(self, consumer: ChannelConsumer) -> int:
        place = 0
        while place < len(self._consumers) and self._consumers[place].priority >= consumer.priority:
            place += 1
        return place

    def _elect(self) -> None:
        """Keep the single active consumer until it leaves; then choose the first of the others."""
        if self._active_consumer not in self._consumers:
            self._active_consumer = self._consumers[0] if self._consumers else None

    def remove(self, consumer: ChannelConsumer) -> None:
        """Remove a consumer. The caller dispatches, since it may have messages to requeue first."""
        if consumer in self._consumers:
            self._consumers.remove(consumer)
            if self.settings.single_active_consumer:
                self._elect()
            self.exclusive_consumer = False
        if not self._consumers:
            if self.auto_delete and self._had_consumers and not self.deleted:
                self.vhost.remove_queue(self)
                return
            self.reset_idle_timer()

    def delete(self) -> None:
        """Cancel the consumers. Their unacknowledged messages are forgotten when they settle them."""
        self.deleted = True
        entries = list(self._ready)
        self._ready.clear()
        for entry in entries:
            self.vhost.memory.release(entry.message.weight)  # the journal forgets the queue as a whole
        for alarm in (self._expiry_timer, self._idle_timer):
            if alarm is not None:
                alarm.cancel()
        consumers, self._consumers = self._consumers, []
        for consumer in consumers:
            consumer.cancel_by_broker()

    # Expiry of the queue itself -----------------------------------------------------------------------

    def reset_idle_timer(self) -> None:
        """Restart the time after which an unused queue is deleted (x-expires)."""
        if self.settings.expires is None:
            return
        self._cancel_idle_timer()
        if not self._consumers:
            due = self.vhost.now() + self.settings.expires / 1000
            self._idle_timer = self.vhost.clock.call_at(due, self._expire_queue)

    def _cancel_idle_timer(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None

    def _expire_queue(self) -> None:
        if not self._consumers and not self.deleted:
            self.vhost.remove_queue(self)

    def __repr__(self) -> str:
        return f"<Queue {self.name!r} ready={len(self._ready)} unacked={self.unacked} consumers={self.consumers}>"
