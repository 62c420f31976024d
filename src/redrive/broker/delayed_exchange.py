"""The messages that an `x-delayed-message` exchange holds back, as RabbitMQ's plugin of that name does.

A message with an `x-delay` header is held for that number of milliseconds, and then routed as if it had been published
at that moment. Persistent messages survive a restart if the exchange does, under its id in the journal.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING

from redrive.broker.clock import Alarm
from redrive.broker.message import Entry, Message

if TYPE_CHECKING:
    from redrive.broker.vhost import VirtualHost


class DelayedMessages:
    def __init__(self, vhost: VirtualHost, exchange: int, *, durable: bool) -> None:
        self._vhost = vhost
        self._exchange = exchange  # its id in the journal
        self._durable = durable
        self._held: list[tuple[float, int, Entry]] = []
        self._alarm: Alarm | None = None

    def hold(self, message: Message, delay: int) -> None:
        number = self._vhost.next_id()
        entry = Entry(number, message, number, self._vhost.now() + delay / 1000)
        if self._durable and message.facts.persistent:
            self._vhost.store(self._exchange, entry)
        self._put(entry)

    def restore(self, entry: Entry) -> None:
        """Restore an entry from the journal."""
        entry.stored = True
        self._put(entry)

    def _put(self, entry: Entry) -> None:
        assert entry.expires_at is not None
        self._vhost.memory.take(entry.message.weight)
        heappush(self._held, (entry.expires_at, entry.id, entry))
        self._set_alarm()

    def _set_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = self._vhost.clock.call_at(self._held[0][0], self._release) if self._held else None

    def _release(self) -> None:
        self._alarm = None
        now = self._vhost.now()
        try:
            while self._held and self._held[0][0] <= now:
                _, _, entry = heappop(self._held)
                self._route(entry)
        finally:  # even if routing one of them failed
            self._set_alarm()

    def _route(self, entry: Entry) -> None:
        """Route a message, and only then remove it from the journal."""
        self._vhost.memory.release(entry.message.weight)
        self._vhost.route(entry.message)
        if entry.stored:
            self._vhost.journal.forget(entry.id)

    def clear(self) -> None:
        """Drop all messages: the exchange was deleted."""
        held, self._held = self._held, []
        self._set_alarm()
        if self._durable:
            self._vhost.journal.forget_queue(self._exchange)
        for _, _, entry in held:
            self._vhost.memory.release(entry.message.weight)

    def __repr__(self) -> str:
        return f"<DelayedMessages held={len(self._held)}>"
