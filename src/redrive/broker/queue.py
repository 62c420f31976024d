"""A queue: messages that are ready, those that are with consumers, and the rules by which they come and go.

    publish ──> ready ──> with a consumer ──> settled
                  │  ^            │
          expired │  └── returned ┘──> rejected, delivery limit
          maxlen  v                         v
              dead-letter exchange  <───────┘

Everything happens within one call and in memory; the journal is told alongside and nobody here waits for it.
Messages expire only at the head of the queue, as in RabbitMQ: one with a short life behind one with a long life
waits for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Protocol

from redrive.broker.clock import Alarm
from redrive.broker.message import Entry, Message
from redrive.broker.settings import QueueSettings
from redrive.wire.values import Table

if TYPE_CHECKING:
    from redrive.broker.vhost import VirtualHost

# The longest wait an event loop's timer is set for; a longer one is set again when it rings.
_LONGEST_ALARM = 24 * 3600.0


class Consumer(Protocol):
    """Whoever takes messages from a queue. A channel makes them."""

    priority: int

    def has_room(self) -> bool:
        """Does it take one more now?"""

    def deliver(self, queue: Queue, entry: Entry) -> None: ...

    def cancelled_by_broker(self) -> None: ...


class Queue:
    def __init__(
        self,
        vhost: VirtualHost,
        name: str,
        *,
        id: int,
        durable: bool,
        owner: object | None,
        auto_delete: bool,
        arguments: Table,
        settings: QueueSettings,
    ) -> None:
        self.vhost = vhost
        self.name = name
        self.id = id
        self.durable = durable
        self.owner = owner  # the connection that has it exclusively
        self.auto_delete = auto_delete
        self.arguments = arguments
        self.settings = settings
        self.unacked = 0
        self.deleted = False
        self.exclusive_consumer = False
        self._consumers: list[Consumer] = []  # in the order of delivery: by priority, then by turn
        self._had_consumers = False
        self._ready = _Ready(settings.max_priority)
        self._bytes = 0
        self._next_position = 1
        self._expiry: Alarm | None = None
        self._expiry_due = 0.0
        self._unused: Alarm | None = None
        self._dispatching = False
        self.touch()

    def __len__(self) -> int:
        """How many messages are ready."""
        return len(self._ready)

    @property
    def consumers(self) -> int:
        return len(self._consumers)

    @property
    def survives(self) -> bool:
        """Is it there again after a restart? An exclusive queue is not, durable or not."""
        return self.durable and self.owner is None

    # In -----------------------------------------------------------------------------------------------

    @property
    def refuses(self) -> bool:
        """Full, and told to say so to publishers."""
        settings = self.settings
        return settings.overflow != "drop-head" and (
            (settings.max_length is not None and len(self._ready) >= settings.max_length)
            or (settings.max_bytes is not None and self._bytes >= settings.max_bytes)
        )

    def publish(self, message: Message) -> bool:
        """Take a message in, unless the queue is full and refuses."""
        settings = self.settings
        if settings.overflow != "drop-head" and self.refuses:
            if settings.overflow == "reject-publish-dlx":
                self.vhost.dead_letter(self, message, "maxlen")
            return False
        entry = Entry(self.vhost.next_id(), message, self._next_position, self._deadline(message))
        self._next_position += 1
        self.vhost.memory.take(len(message.body))
        if self.survives and (message.facts.persistent or settings.quorum):
            self.vhost.store(self.id, entry)
        if entry.expires_at is not None and entry.expires_at <= self.vhost.now() and not self._can_deliver():
            # A life of zero: delivered at once or never.
            self._die(entry, "expired")
            return True
        self._put(entry)
        if self._consumers:
            self.dispatch()
        if settings.overflow == "drop-head":
            self._shorten()
        if entry.expires_at is not None:
            self._watch_head()
        return True

    def restore(self, entry: Entry) -> None:
        """Put back what the journal kept, in order, before anything else happens."""
        entry.stored = True
        self.vhost.memory.take(len(entry.message.body))
        self._put(entry)
        self._next_position = max(self._next_position, entry.position + 1)

    def resume_after(self, delivered: int) -> None:
        """Positions go on above the highest that was ever handed out, or what comes next would look redelivered."""
        self._next_position = max(self._next_position, delivered + 1)

    def _put(self, entry: Entry) -> None:
        self._ready.append(entry)
        self._bytes += len(entry.message.body)

    def _take(self) -> Entry:
        entry = self._ready.popleft()
        self._bytes -= len(entry.message.body)
        return entry

    def _deadline(self, message: Message) -> float | None:
        lives = [life for life in (message.facts.expiration, self.settings.message_ttl) if life is not None]
        return self.vhost.now() + min(lives) / 1000 if lives else None

    def _shorten(self) -> None:
        settings = self.settings
        while self._ready and (
            (settings.max_length is not None and len(self._ready) > settings.max_length)
            or (settings.max_bytes is not None and self._bytes > settings.max_bytes)
        ):
            self._die(self._take(), "maxlen")

    # Expiry -------------------------------------------------------------------------------------------

    def _watch_head(self) -> None:
        """Have the alarm set for the head of the queue, if it can expire."""
        due = self._ready.first_deadline()
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
        while (entry := self._ready.expired_head(now)) is not None:
            self._bytes -= len(entry.message.body)
            self._die(entry, "expired")
        self._watch_head()

    # Out ----------------------------------------------------------------------------------------------

    def _can_deliver(self) -> bool:
        return not self._ready and any(consumer.has_room() for consumer in self._active())

    def _active(self) -> Iterable[Consumer]:
        return self._consumers[:1] if self.settings.single_active_consumer else self._consumers

    def dispatch(self) -> None:
        """Hand out what is ready to whoever has room: the highest priority first, equals by turns."""
        if self._dispatching:
            return
        self._dispatching = True
        try:
            while self._ready and (consumer := self._next_consumer()) is not None:
                if self._expiry is not None and self._expiry_due <= self.vhost.now():
                    self.expire()
                    continue
                self._hand_out(consumer)
        finally:
            self._dispatching = False

    def _next_consumer(self) -> Consumer | None:
        for place, consumer in enumerate(self._active()):
            if consumer.has_room():
                if len(self._consumers) > 1 and not self.settings.single_active_consumer:
                    self._to_the_end_of_its_peers(place)
                return consumer
        return None

    def _to_the_end_of_its_peers(self, place: int) -> None:
        consumer = self._consumers.pop(place)
        while place < len(self._consumers) and self._consumers[place].priority == consumer.priority:
            place += 1
        self._consumers.insert(place, consumer)

    def _hand_out(self, consumer: Consumer) -> None:
        entry = self._take()
        self.unacked += 1
        if entry.stored:
            self.vhost.journal.delivered(self.id, entry.position)
        consumer.deliver(self, entry)

    def get(self) -> Entry | None:
        """One message for basic.get."""
        self.touch()
        self.expire()
        if not self._ready:
            return None
        entry = self._take()
        self.unacked += 1
        if entry.stored:
            self.vhost.journal.delivered(self.id, entry.position)
        return entry

    # Back ---------------------------------------------------------------------------------------------

    def settle(self, entry: Entry) -> None:
        """Done with it."""
        self.unacked -= 1
        self._forget(entry)

    def _forget(self, entry: Entry) -> None:
        self.vhost.memory.release(len(entry.message.body))
        if entry.stored:
            self.vhost.journal.forget(entry.id)

    def reject(self, entry: Entry) -> None:
        self.unacked -= 1
        if self.deleted:
            self._forget(entry)
        else:
            self._die(entry, "rejected")

    @property
    def _rotates(self) -> bool:
        """Do messages that a client gives back go to the end?"""
        settings = self.settings
        return settings.quorum and settings.delivery_limit is None and not self.vhost.dialect.keeps_order_on_return

    def put_back(self, entries: Iterable[Entry], *, counts: bool, by_client: bool) -> None:
        """Returned unsettled, to where they were. `counts`: towards the delivery limit of a quorum queue."""
        if self.deleted:
            for entry in entries:
                self.settle(entry)
            return
        returned = []
        for entry in entries:
            self.unacked -= 1
            entry.redelivered = True
            entry.acquired += 1
            if self.settings.quorum and counts:
                entry.delivery_count += 1
                if self._beyond_limit(entry):
                    self._die(entry, "delivery_limit")
                    continue
                if entry.stored:
                    self.vhost.journal.returned(entry.id, entry.delivery_count)
            if by_client and self._rotates:
                self._move_to_end(entry)
                self._ready.append(entry)
            else:
                returned.append(entry)
            self._bytes += len(entry.message.body)
        self._ready.insert(returned)
        self._watch_head()
        if self.settings.overflow == "drop-head":
            self._shorten()
        self.dispatch()

    def _move_to_end(self, entry: Entry) -> None:
        if entry.stored:
            self.vhost.journal.forget(entry.id)
        entry.id = self.vhost.next_id()
        entry.position, self._next_position = self._next_position, self._next_position + 1
        if entry.stored:
            self.vhost.store(self.id, entry)

    def _beyond_limit(self, entry: Entry) -> bool:
        limit = self.settings.delivery_limit
        return limit is not None and entry.delivery_count > limit

    def _die(self, entry: Entry, reason: str) -> None:
        self._forget(entry)
        self.vhost.dead_letter(self, entry.message, reason)

    def purge(self) -> int:
        self.touch()
        count = len(self._ready)
        for entry in self._ready:
            self._forget(entry)
        self._ready.clear()
        self._bytes = 0
        return count

    # Consumers ----------------------------------------------------------------------------------------

    def add(self, consumer: Consumer, *, exclusive: bool) -> None:
        self.touch()
        place = 0
        while place < len(self._consumers) and self._consumers[place].priority >= consumer.priority:
            place += 1
        self._consumers.insert(place, consumer)
        self._had_consumers = True
        self.exclusive_consumer = exclusive
        self._stop_waiting_for_use()

    def remove(self, consumer: Consumer) -> None:
        if consumer in self._consumers:
            self._consumers.remove(consumer)
            self.exclusive_consumer = False
        if not self._consumers:
            if self.auto_delete and self._had_consumers and not self.deleted:
                self.vhost.remove_queue(self)
                return
            self.touch()
        if not self.deleted:
            self.dispatch()

    def delete(self) -> int:
        """The end. Consumers are told; what is with them is forgotten when they settle it."""
        self.deleted = True
        count = len(self._ready)
        for entry in self._ready:
            self.vhost.memory.release(len(entry.message.body))  # the journal forgets the queue as a whole
        self._ready.clear()
        for alarm in (self._expiry, self._unused):
            if alarm is not None:
                alarm.cancel()
        consumers, self._consumers = self._consumers, []
        for consumer in consumers:
            consumer.cancelled_by_broker()
        return count

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


class _Ready:
    """The ready messages in the order of delivery: by priority if the queue has them, then by position."""

    def __init__(self, max_priority: int | None) -> None:
        self._lanes: list[deque[Entry]] = [deque() for _ in range((max_priority or 0) + 1)]
        self._top = max_priority or 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Entry]:
        for lane in reversed(self._lanes):
            yield from lane

    def _lane(self, entry: Entry) -> deque[Entry]:
        return self._lanes[min(entry.message.facts.priority, self._top)]

    def append(self, entry: Entry) -> None:
        self._lane(entry).append(entry)
        self._count += 1

    def insert(self, entries: Iterable[Entry]) -> None:
        """At their old positions. These are mostly near the head, so the search begins there."""
        lanes: dict[int, list[Entry]] = {}
        for entry in sorted(entries, key=lambda entry: entry.position):
            lanes.setdefault(min(entry.message.facts.priority, self._top), []).append(entry)
        for number, returning in lanes.items():
            lane, before = self._lanes[number], []
            for entry in returning:
                while lane and lane[0].position < entry.position:
                    before.append(lane.popleft())
                before.append(entry)
            lane.extendleft(reversed(before))
            self._count += len(returning)

    def popleft(self) -> Entry:
        self._count -= 1
        if not self._top:
            return self._lanes[0].popleft()
        return next(lane for lane in reversed(self._lanes) if lane).popleft()

    def first_deadline(self) -> float | None:
        """When the first of the heads expires."""
        deadlines = [lane[0].expires_at for lane in self._lanes if lane]
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    def expired_head(self, now: float) -> Entry | None:
        for lane in self._lanes:
            if lane and (deadline := lane[0].expires_at) is not None and deadline <= now:
                self._count -= 1
                return lane.popleft()
        return None

    def clear(self) -> None:
        for lane in self._lanes:
            lane.clear()
        self._count = 0
