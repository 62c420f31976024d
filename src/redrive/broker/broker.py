"""The broker: virtual hosts, users and sessions, and the journal behind them. No listening here: see `server`."""

from __future__ import annotations

import hmac
import logging
import secrets
from collections.abc import Mapping
from dataclasses import replace
from itertools import count

from redrive import __version__
from redrive.broker.clock import Clock, Lifetime, LoopClock
from redrive.broker.deadletter import decode_history
from redrive.broker.dialect import LATEST, Dialect
from redrive.broker.memory_alarm import DEFAULT_LIMIT, MemoryAlarm
from redrive.broker.message import Entry, Message, read_facts
from redrive.broker.session import Session
from redrive.broker.storage.journal import Journal, StoredMessage
from redrive.broker.storage.memory import MemoryJournal
from redrive.broker.vhost import VirtualHost
from redrive.protocol.handshake import PlainAuth, Tuning
from redrive.wire.values import Table

log = logging.getLogger("redrive.broker")

GUEST = {"guest": "guest"}
PRODUCT = "Redrive"


class Broker:
    def __init__(
        self,
        *,
        journal: Journal | None = None,
        clock: Clock | None = None,
        dialect: Dialect = LATEST,
        users: Mapping[str, str] = GUEST,
        tuning: Tuning = Tuning(),  # noqa: B008 - frozen
        memory_limit: int = DEFAULT_LIMIT,
        product: str = PRODUCT,
    ) -> None:
        """`product` is the name in the server properties: "RabbitMQ" for clients that refuse to use another."""
        self.journal = journal or MemoryJournal()
        self.clock = Lifetime(clock or LoopClock())
        self.dialect = dialect
        self.product = product
        self.tuning = tuning
        self.sessions: set[Session] = set()
        self.vhosts: dict[str, VirtualHost] = {}
        self.memory = MemoryAlarm(memory_limit, self._alarm)
        self.users = dict(users)
        self._ids = count(1)
        self._session_ids = count(1)
        self._name = secrets.token_hex(8)
        self._recover()
        if "/" not in self.vhosts:
            self.add_vhost("/")

    def next_id(self) -> int:
        return next(self._ids)

    def next_session_id(self) -> str:
        return f"{self._name}-{next(self._session_ids)}"

    def add_vhost(self, name: str) -> VirtualHost:
        vhost = self.vhosts[name] = VirtualHost(name, self)
        return vhost

    @property
    def alarm(self) -> str | None:
        """Why publishers have to wait, if they have to."""
        return self.memory.alarm

    def _alarm(self, reason: str | None) -> None:
        log.warning("memory alarm: %s", reason or "over")
        for session in list(self.sessions):
            session.alarm(reason)

    def accepts(self, credentials: PlainAuth) -> bool:
        password = self.users.get(credentials.username, "")
        known = hmac.compare_digest(password.encode(), credentials.password.encode())
        return known and credentials.username in self.users

    def properties(self) -> Table:
        """What the broker says about itself: RabbitMQ's capabilities, for clients that look."""
        return {
            "product": self.product,
            "version": self.dialect.version,
            "redrive_version": __version__,
            "platform": "Python",
            "cluster_name": "redrive@localhost",
            "capabilities": {
                "publisher_confirms": True,
                "exchange_exchange_bindings": True,
                "basic.nack": True,
                "consumer_cancel_notify": True,
                "connection.blocked": True,
                "consumer_priorities": True,
                "authentication_failure_close": True,
                "per_consumer_qos": True,
                "direct_reply_to": True,
            },
        }

    # Recovery -----------------------------------------------------------------------------------------

    def _recover(self) -> None:
        recovered = self.journal.recover()
        self._ids = count(recovered.next_id)
        order = {"vhost": 0, "exchange": 1, "queue": 2, "binding": 3}
        for definition in sorted(recovered.definitions, key=lambda found: (order[found.kind], found.id)):
            vhost = self.vhosts.get(definition.vhost) or self.add_vhost(definition.vhost)
            vhost.restore(definition)
        restore = {holder: put for vhost in self.vhosts.values() for holder, put in vhost.holders()}
        for stored in recovered.messages:
            if (put := restore.get(stored.queue)) is not None:
                put(self._entry(stored, recovered.delivered.get(stored.queue, 0)))
        queues = [queue for vhost in self.vhosts.values() for queue in vhost.queues.values()]
        for queue in queues:
            queue.skip_positions(recovered.delivered.get(queue.id, 0))
        for queue in queues:  # when all are ready for dead letters
            queue.expire()

    def _entry(self, stored: StoredMessage, delivered_up_to: int) -> Entry:
        deaths, copies = decode_history(stored.deaths)
        facts = read_facts(stored.properties, self.dialect)
        if copies is not None:
            facts = replace(facts, cc=copies.cc, bcc=copies.bcc)  # other keys than the properties tell
        message = Message(stored.route, stored.properties, stored.body, facts, deaths, stored.delivery_count)
        expires_at = None if stored.expires_at is None else stored.expires_at / 1000
        entry = Entry(stored.id, message, stored.position, expires_at)
        entry.delivery_count = stored.delivery_count
        entry.redelivered = stored.position <= delivered_up_to or stored.delivery_count > 0
        return entry

    async def close(self) -> None:
        self.clock.end()  # what falls due from now on is for whoever opens the journal next
        await self.journal.close()

    def __repr__(self) -> str:
        return f"<Broker {self.dialect.version} vhosts={len(self.vhosts)} sessions={len(self.sessions)}>"
