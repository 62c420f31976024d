"""A queue: messages that are ready, those that are with consumers, and the rules by which they come and go.

    publish ──> ready ──> with a consumer ──> settled
                  │  ^            │
          expired │  └── returned ┘──> rejected, delivery limit
          maxlen  v                         v
              dead-letter exchange  <───────┘

Everything happens within one call and in memory; the journal is told alongside and nobody here waits for it.
Messages expire only at the head of the queue, as in RabbitMQ: one with a short life behind one with a long life, or
of a lower priority, waits for it.
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
        self._elected: ChannelConsumer | None = None  # the single active consumer, where there is to be one
        self._had_consumers = False
        self._ready = self._make_ready()
        self._drops = settings.overflow == "drop-head" and settings.limited
        self._weighs = settings.max_bytes is not None
        self._bytes = 0  # of what is ready, if anybody wants to know
        self._next_position = 1
        self._mortal = False  # was there ever a message that can expire?
        self._expiry: Alarm | None = None
        self._expiry_due = 0.0
        self._unused: Alarm | None = None
        self._dispatching = False
        self.touch()

    def _make_ready(self) -> ReadyQueue:
        return PriorityQueue(self.settings.max_priority or 0)

    def __len__(self) -> int:
        """How many messages are ready."""
        return len(self._ready)

    @property
    def consumers(self) -> int:
        """How many there are, as clients are told."""
        return len(self._consumers)

    @property
    def survives(self) -> bool:
        """Is it there again after a restart? An exclusive queue is not, durable or not."""
        return self.durable and self.owner is None

    # In -----------------------------------------------------------------------------------------------

    def _size(self, message: Message) -> int:
        """What counts towards x-max-length-bytes."""
        return len(message.body)

    def _would_overflow(self, size: int) -> bool:
        settings = self.settings
        return (settings.max_length is not None and len(self._ready) >= settings.max_length) or (
            settings.max_bytes is not None and self._bytes + size > settings.max_bytes
        )

    def publish(self, message: Message, by: Channel | None = None) -> bool:  # noqa: ARG002 - a quorum queue wants to know
        """Take a message in, unless the queue is full and refuses. `by`: the channel, or nobody for a dead letter."""
        settings = self.settings
        if settings.overflow != "drop-head" and self._would_overflow(self._size(message)):
            if settings.overflow == "reject-publish-dlx":
                self.vhost.dead_letter(self, message, "maxlen", message.failures)
            return False
        self._enter(message)
        if self._consumers:
            self.dispatch()  # even what has no life at all, if somebody takes it at once
        dropped = self._drops and self._drop_overflow()
        if self._mortal and (dropped or len(self._ready) == 1):
            # Otherwise the head is the one it was, RabbitMQ thinks; even where a message of a higher priority is now.
            # A dead letter waits for the alarm, or one that kills itself over and over would let nobody else live.
            self._watch_head() if message.deaths else self.expire()
        return True

    def _enter(self, message: Message) -> None:
        entry = Entry(self.vhost.next_id(), message, self._next_position, self._deadline(message))
        if message.failures:
            entry.delivery_count, entry.redelivered = message.failures, True
        self._next_position += 1
        self.vhost.memory.take(message.weight)
        if self.survives and (message.facts.persistent or self.settings.quorum):
            self.vhost.store(self.id, entry)
        self._put(entry)

    def restore(self, entry: Entry) -> None:
        """Put back what the journal kept, in order, before anything else happens."""
        entry.stored = True
        self.vhost.memory.take(entry.message.weight)
        self._put(entry)
        self._next_position = max(self._next_position, entry.position + 1)

    def resume_after(self, delivered: int) -> None:
        """Positions go on above the highest that was ever handed out, or what comes next would look redelivered."""
        self._next_position = max(self._next_position, delivered + 1)

    def _put(self, entry: Entry) -> None:
        if entry.expires_at is not None:
            self._mortal = True
        self._ready.append(entry)
        if self._weighs:
            self._bytes += self._size(entry.message)

    def _take(self) -> Entry:
        entry = self._ready.popleft()
        if self._weighs:
            self._bytes -= self._size(entry.message)
        return entry

    def _deadline(self, message: Message) -> float | None:
        lives = [life for life in (message.facts.expiration, self.settings.message_ttl) if life is not None]
        return self.vhost.now() + min(lives) / 1000 if lives else None

    def _drop_overflow(self) -> bool:
        """Drop what is too much, at the head, and say whether there was anything."""
        settings, before = self.settings, len(self._ready)
        while self._ready and (
            (settings.max_length is not None and len(self._ready) > settings.max_length)
            or (settings.max_bytes is not None and self._bytes > settings.max_bytes)
        ):
            self._die(self._take(), "maxlen")
        return len(self._ready) != before

    # Expiry -------------------------------------------------------------------------------------------

    def _watch_head(self) -> None:
        """Have the alarm set for the head of the queue, if it can expire."""
        due = self._ready.deadline
        if due is None or (self._expiry is not None and self._expiry_due <= due):
            return
        if self._expiry is not None:
            self._expiry.cancel()
        self._expiry_due = min(due, self.vhost.now() + _LONGEST_ALARM)
        self._expiry = self.vhost.clock.call_at(self._expiry_due, self._alarm)

    def _alarm(self) -> None:
        self._expiry = None
        if not self.deleted:
            self.expire()

    def expire(self) -> None:
        """Let go of what has outlived its time at the head of the queue."""
        now = self.vhost.now()
        if self._expiry is not None and self._expiry_due <= now:  # it is about to ring, and has nothing more to say
            self._expiry.cancel()
            self._expiry = None
        try:
            while (entry := self._ready.take_expired(now)) is not None:
                if self._weighs:
                    self._bytes -= self._size(entry.message)
                self._die(entry, "expired")
        finally:  # whatever went wrong with one, the next one's time will come
            self._watch_head()

    # Out ----------------------------------------------------------------------------------------------

    def _active(self) -> Iterable[ChannelConsumer]:
        if not self.settings.single_active_consumer:
            return self._consumers
        return () if self._elected is None else (self._elected,)

    def dispatch(self) -> None:
        """Hand out what is ready to whoever has room: the highest priority first, equals by turns."""
        if self._dispatching:
            return
        self._dispatching = True
        try:
            while self._ready and (consumer := self._next_consumer()) is not None:
                consumer.deliver(self, self._take_out())
        finally:
            self._dispatching = False

    def _next_consumer(self) -> ChannelConsumer | None:
        for place, consumer in enumerate(self._active()):
            if consumer.has_room():
                if len(self._consumers) > 1 and not self.settings.single_active_consumer:
                    self._move_behind_its_peers(place)
                return consumer
        return None

    def _move_behind_its_peers(self, place: int) -> None:
        consumer = self._consumers.pop(place)
        while place < len(self._consumers) and self._consumers[place].priority == consumer.priority:
            place += 1
        self._consumers.insert(place, consumer)

    def _take_out(self) -> Entry:
        """The next one for a client. What was behind it may be at the end of its time."""
        entry = self._hand_over()
        if self._mortal:
            self.expire()
        return entry

    def _hand_over(self) -> Entry:
        entry = self._take()
        self.unacked += 1
        if entry.stored:
            self.vhost.journal.delivered(self.id, entry.position)
        return entry

    def get(self, *, no_ack: bool) -> Entry | None:
        """One message for basic.get; with `no_ack` it is settled already."""
        self.touch()
        if not self._ready:
            return None
        entry = self._take_out()
        self._got(entry, no_ack=no_ack)
        return entry

    def _got(self, entry: Entry, *, no_ack: bool) -> None:
        if no_ack:
            self.settle(entry)
        else:
            self.getting += 1

    # Back ---------------------------------------------------------------------------------------------

    def settle(self, entry: Entry) -> None:
        """Done with it."""
        self.unacked -= 1
        self._forget(entry)

    def _forget(self, entry: Entry) -> None:
        self.vhost.memory.release(entry.message.weight)
        if entry.stored:
            self.vhost.journal.forget(entry.id)

    def reject(self, entry: Entry, *, counts: bool) -> None:
        """Refused. `counts`: it failed, and its dead letter may tell."""
        self.unacked -= 1
        entry.delivery_count += counts
        if self.deleted:
            self._forget(entry)
        else:
            self._die(entry, "rejected")

    def put_back(self, entries: list[Entry], *, counts: bool, by_client: bool) -> None:  # noqa: ARG002
        """Returned unsettled, to where they were. `counts`: they failed. `by_client` matters to a quorum queue."""
        if self.deleted:
            for entry in entries:
                self.settle(entry)
            return
        for entry in entries:
            self.unacked -= 1
            entry.redelivered = True
            entry.delivery_count += counts
            if self._weighs:
                self._bytes += self._size(entry.message)
        self._ready.insert(entries)
        if self._drops:
            self._drop_overflow()
        if self._mortal:
            self.expire()
        self.dispatch()

    def _die(self, entry: Entry, reason: str) -> None:
        self._forget(entry)
        self.vhost.dead_letter(self, entry.message, reason, self._failures(entry))

    def _failures(self, entry: Entry) -> int:
        """How many failed deliveries a dead letter takes along."""
        return entry.delivery_count if self.vhost.dialect.remembers_failures else 0

    def purge(self) -> int:
        self.touch()
        entries = list(self._ready)
        self._ready.clear()
        self._bytes = 0
        for entry in entries:
            self._forget(entry)
        return len(entries)

    # Consumers ----------------------------------------------------------------------------------------

    def add(self, consumer: ChannelConsumer, *, exclusive: bool) -> None:
        self.touch()
        self._consumers.insert(self._place(consumer), consumer)
        if self.settings.single_active_consumer:
            self._elect()
        self._had_consumers = True
        self.exclusive_consumer = exclusive
        self._stop_waiting_for_use()

    def _place(self, consumer: ChannelConsumer) -> int:
        place = 0
        while place < len(self._consumers) and self._consumers[place].priority >= consumer.priority:
            place += 1
        return place

    def _elect(self) -> None:
        """The single active consumer is that until it leaves, whoever comes; then it is the first of the others."""
        if self._elected not in self._consumers:
            self._elected = self._consumers[0] if self._consumers else None

    def remove(self, consumer: ChannelConsumer) -> None:
        """It may be another one's turn now; to hand out is up to the caller, who may have something to give back."""
        if consumer in self._consumers:
            self._consumers.remove(consumer)
            if self.settings.single_active_consumer:
                self._elect()
            self.exclusive_consumer = False
        if not self._consumers:
            if self.auto_delete and self._had_consumers and not self.deleted:
                self.vhost.remove_queue(self)
                return
            self.touch()

    def delete(self) -> None:
        """The end. Consumers are told; what is with them is forgotten when they settle it."""
        self.deleted = True
        entries = list(self._ready)
        self._ready.clear()
        for entry in entries:
            self.vhost.memory.release(entry.message.weight)  # the journal forgets the queue as a whole
        for alarm in (self._expiry, self._unused):
            if alarm is not None:
                alarm.cancel()
        consumers, self._consumers = self._consumers, []
        for consumer in consumers:
            consumer.cancelled_by_broker()

    # Expiry of the queue itself -----------------------------------------------------------------------

    def touch(self) -> None:
        """It was used: the time until an unused queue goes away begins anew."""
        if self.settings.expires is None:
            return
        self._stop_waiting_for_use()
        if not self._consumers:
            due = self.vhost.now() + self.settings.expires / 1000
            self._unused = self.vhost.clock.call_at(due, self._expire_queue)

    def _stop_waiting_for_use(self) -> None:
        if self._unused is not None:
            self._unused.cancel()
            self._unused = None

    def _expire_queue(self) -> None:
        if not self._consumers and not self.deleted:
            self.vhost.remove_queue(self)

    def __repr__(self) -> str:
        return f"<Queue {self.name!r} ready={len(self._ready)} unacked={self.unacked} consumers={self.consumers}>"
