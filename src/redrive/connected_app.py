"""An application that is connected to its broker."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

from redrive.client import Connection, LinkState
from redrive.client.topology import QueueInfo
from redrive.errors import ConfigurationError, NotFound
from redrive.inspection import publishing_times
from redrive.outbox.transactions import SESSION_TYPES, StoreTransactions
from redrive.topology.dlq_detection import declared_dlqs
from redrive.topology.expansion import QueueLayout
from redrive.topology.model import queue_type
from redrive.topology.snapshot import BrokerSnapshot
from redrive.worker.consumer_spec import ConsumerSpec
from redrive.worker.events import ConnectionChanged, Observers
from redrive.worker.publisher import Publisher
from redrive.worker.worker import Worker, WorkerContext

if TYPE_CHECKING:
    from redrive.app import App


class ConnectedApp:
    """An application that is connected, three times, so that no part of it can disturb another.

    A broker in a memory or disk alarm stops reading connections that publish, acks included: so one connection
    consumes and never publishes. A publish to an exchange that is missing ends the channel for all who publish on it:
    so what the application publishes and what retries and parking publish go separate ways.
    """

    def __init__(
        self, app: App, consuming: Connection, publishing: Connection, settling: Connection, snapshot: BrokerSnapshot
    ) -> None:
        """`snapshot`: what the broker held when the application connected."""
        self.app = app
        self.server = server = snapshot.server
        self.topology = app.topology.with_held(snapshot.effective)
        self.consuming = consuming
        self.publishing = publishing
        self.settling = settling
        self.observer = Observers(app.observers)
        self._workers: list[Worker] = []
        self.publisher = Publisher(
            publishing,
            app=app.name,
            codecs=app.codecs,
            clock=app.clock,
            observer=self.observer,
            hook=app.publish_hook,
            delayed_exchange=app.naming.delayed_exchange if server.delayed_exchanges else None,
        )
        for name, connection in self._connections.items():
            self.observer.connection(ConnectionChanged(name, "open", None, 0))
            connection.on_change(self._state_observer(name))

    @property
    def _connections(self) -> dict[str, Connection]:
        return {"consuming": self.consuming, "publishing": self.publishing, "settling": self.settling}

    def worker(self, specs: Iterable[ConsumerSpec]) -> Worker:
        """Return a worker for consumers of the application."""
        around = WorkerContext(
            topology=self.topology,
            server=self.server,
            app=self.app.name,
            host=socket.gethostname(),
            codecs=self.app.codecs,
            clock=self.app.clock,
            observer=self.observer,
            given={Publisher: self.publisher, **self.app.given},
            transactions=StoreTransactions(self.app.database, self.app.inbox),
            session_types=SESSION_TYPES,
            budget=lambda: self.settling.properties_max,
            worker=secrets.token_hex(6),
        )
        ready = [
            replace(found, middleware=(*self.app.middleware, *found.middleware)) for found in map(self._as_held, specs)
        ]
        worker = Worker(ready, self.consuming, self.settling, around)
        self._workers.append(worker)
        return worker

    def _as_held(self, spec: ConsumerSpec) -> ConsumerSpec:
        """Return the consumer of an existing queue, or of its dead letters, with what the broker says of the queue."""
        dead = declared_dlqs(self.topology, self.server) if spec.for_dead_letters else {}
        main = self.topology.queue(dead.get(spec.queue.name, spec.queue.name))
        held = self.topology.held_queue(main) if main is not None else None
        if held is None:
            return spec
        if spec.park == "reject" and not spec.for_dead_letters and held.dead_letter_exchange is None:
            raise ConfigurationError(
                f"consumer of {held.name}: park='reject' leaves parking to the queue's own dead-letter exchange, and "
                "the queue, taken as it is, has none that is known (plain AMQP does not report policies; "
                "management= does): RabbitMQ would drop the message. Use park='publish'"
            )
        limit = None if spec.for_dead_letters else held.arguments.get("x-delivery-limit")
        found = replace(spec.queue, existing=False, type=queue_type(held.type, str(held)), delivery_limit=limit)
        return replace(spec, queue=found)

    @property
    def unsettled(self) -> dict[str, int]:
        """How many messages this process has taken from each queue and not settled yet."""
        return {queue: count for worker in self._workers for queue, count in worker.unsettled.items()}

    def _state_observer(self, name: str) -> Callable[[Connection], None]:
        known, lost_at = LinkState.OPEN, 0.0

        def tell(connection: Connection) -> None:
            """Report only what is news: that it was lost, that it is back."""
            nonlocal known, lost_at
            if connection.state in (known, LinkState.CLOSED):
                return
            known, now = connection.state, self.app.clock.monotonic()
            reason: str | None = None
            lasted: timedelta | None = None
            if known is LinkState.OPEN:
                lasted = timedelta(seconds=now - lost_at)
            else:
                reason, lost_at = str(connection.last_error), now
            self.observer.connection(ConnectionChanged(name, known.name.lower(), reason, connection.reconnects, lasted))

        return tell

    async def queue_infos(self, specs: Iterable[ConsumerSpec]) -> dict[tuple[str, str], QueueInfo]:
        """Return the messages and consumers of the queues of these consumers, by queue and role: main, retry, dlq."""
        found: dict[tuple[str, str], QueueInfo] = {}
        for spec in specs:
            if spec.for_dead_letters:
                continue  # that queue is counted with its main queue
            names = QueueLayout(self.topology, spec.queue, self.server)
            roles = {spec.queue.name: "main"} | dict.fromkeys(names.waiting_queues, "retry")
            roles |= dict.fromkeys(names.dead_letter_queues, "dlq")
            for queue, role in roles.items():
                with suppress(NotFound):
                    found[queue, role] = await self.publishing.queue_info(queue)
        return found

    async def publishing_times(self) -> dict[str, int]:
        """Return when the first message of each queue was published, where the broker reports it."""
        return await publishing_times(self.publishing, self.app.management)

    @property
    def problems(self) -> list[str]:
        """Why it should get no work; nothing if all is well."""
        broker = [] if self.is_ready else ["not connected, or the broker takes no messages"]
        return broker + [problem for worker in self._workers for problem in worker.problems]

    @property
    def is_ready(self) -> bool:
        """Are all connections up, and does the broker take messages?"""
        return all(one.state.name == "OPEN" and one.blocked is None for one in self._connections.values())

    def __repr__(self) -> str:
        return f"<Running {self.app.name} on {self.server} ready={self.is_ready}>"
