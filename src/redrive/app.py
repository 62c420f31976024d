"""The application: what it wants of its broker, who handles its messages, and where the broker is.

This is the composition root, the only module that knows concrete adapters: the client's connection, the embedded
broker, RabbitMQ's management API.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Self, Unpack, overload

from redrive import environment
from redrive.broker.shared import SharedBroker
from redrive.checks import checked
from redrive.client import BrokerURL, Connection
from redrive.client.outage_log import OutageLog
from redrive.connected_app import ConnectedApp
from redrive.database.application_tables import InboxNames, OutboxNames
from redrive.database.engine import Database
from redrive.database.schema import Schema, channel_of
from redrive.errors import (
    AccessRefused,
    Closed,
    ConfigurationError,
    ConnectionClosed,
    ConnectionLost,
    TopologyConflict,
)
from redrive.inspection import inspect_broker
from redrive.inspection.stranded import stranded_warning
from redrive.outbox.inbox import Inbox
from redrive.outbox.listener import OutboxListener
from redrive.outbox.mode import OutboxMode, mode_settings
from redrive.outbox.outbox import AsyncPlace, Outbox, OutboxPolicy, RowOptions, SyncPlace
from redrive.outbox.relay import Relay
from redrive.outbox.relay_lock import RelayLock
from redrive.outbox.repository import OutboxRepository
from redrive.recovery.backoff import Backoff
from redrive.recovery.durations import Duration, duration
from redrive.recovery.history import HeaderNames
from redrive.router import F, Router
from redrive.topology import Naming, QueueType, Topology, expand
from redrive.topology.model import Exchange
from redrive.topology.model import queue_type as as_queue_type
from redrive.topology.naming import fill
from redrive.topology.plan import Action, make_plan
from redrive.topology.snapshot import BrokerSnapshot
from redrive.worker.clock import Clock, SystemClock, check_clock, wait
from redrive.worker.codecs import Codec, Codecs
from redrive.worker.consumer_spec import ConsumerOptions, ConsumerSpec
from redrive.worker.events import Observer
from redrive.worker.periodic import run_periodically
from redrive.worker.publisher import Publisher, PublishHook, PublishOptions, no_hook
from redrive.worker.topology_apply import provision, require_applied

log = logging.getLogger("redrive")

# A relay that has claimed rows does not wait long for a broker: whoever else could publish them is kept from it.
_RELAY_PATIENCE = timedelta(seconds=5)
_BROKER_HANDOVER = timedelta(seconds=10)  # the embedded broker's host ends, and another process takes over
_RESTART_BACKOFF = Backoff(first=timedelta(milliseconds=500), ceiling=timedelta(seconds=30), jitter=0)


@checked(
    "app {name}", outbox="OutboxNames('my_outbox')", clock="redrive.testing.ManualClock(), the fixture redrive_clock"
)
class App(Router):
    """`App("uploads")` keeps its messages in `.redrive/`; `App("uploads", broker="amqps://...")` in RabbitMQ."""

    def __init__(
        self,
        name: str,  # stands in logs, and in the story of dead letters
        *,
        broker: str | None = None,  # the URL of RabbitMQ; without, the embedded broker
        management: str | None = None,  # the URL of RabbitMQ's management API, for what plain AMQP cannot tell
        database: str | None = None,  # the URL of the database; without, SQLite in `data`
        outbox: OutboxNames | None = None,  # how the outbox's table and columns are called
        outbox_policy: OutboxPolicy | None = None,  # how rows are tried, kept and carried
        inbox_table: InboxNames | str = "redrive_inbox",  # how the inbox's table is called
        data: Path | str | None = None,  # the folder of the embedded broker and database
        naming: Naming | None = None,  # how retry and dead-letter queues are called
        queue_type: QueueType | str = QueueType.CLASSIC,  # of all queues that say none: classic, quorum or stream
        delays: bool = False,  # publish with a delay, even if no queue retries by that route
        declare: bool = True,  # make what is missing when it connects; if not, that is an error
        defaults: ConsumerOptions | None = None,  # options of all consumers that do not say them themselves
        patience: Duration = "30s",  # how long a publish waits for a broker that is away, before it is an error
        codecs: Mapping[str, Codec] | None = None,  # bodies by content type, beside JSON, MessagePack, text and bytes
        observers: Iterable[Observer] = (),  # who is told of everything that happens
        clock: Clock | None = None,  # for tests: one that a test advances (`redrive.testing.ManualClock`)
    ) -> None:
        super().__init__(defaults=defaults)
        if not name:
            raise ConfigurationError("app: name is empty: it stands in logs and messages", option="name")
        self.name = name
        policy = outbox_policy or OutboxPolicy()
        self.transport = OutboxMode.of(policy.transport or environment.outbox_transport() or OutboxMode.RABBIT)
        self._configured_broker = broker or environment.broker()
        if self._configured_broker is not None:
            BrokerURL.parse(self._configured_broker)
        self._outbox_settings = mode_settings(
            self.transport, broker=self._configured_broker, management=management or environment.management()
        )
        self.broker = self._outbox_settings.broker
        self.management = self._outbox_settings.management
        self.data = Path(data) if data is not None else environment.data()
        self.codecs = Codecs(codecs)
        self.observers: list[Observer] = list(observers)
        self.naming = naming or Naming()
        self._queue_type = as_queue_type(queue_type, f"app {name}")
        self._delays = delays
        self._declares = declare
        self._patience = duration(patience, "patience")
        self.clock: Clock = clock if clock is not None else SystemClock()
        check_clock(self.clock)
        self.publish_hook: PublishHook = no_hook
        self.given: dict[type, object] = {App: self}  # what handlers can ask for by its type, beside the publisher
        self._connected: ConnectedApp | None = None
        self._starters: list[Callable[[], Any]] = []
        self._preparing = asyncio.Lock()
        self._relay: Relay | None = None
        self.schema = Schema(outbox or OutboxNames(), inbox_table)
        url = database or environment.database()
        self.owns_database = url is None
        # The application's database: `engine` and `async_engine`, `sessions()` and `async_sessions()`, `create_tables`
        self.database: Database = self._database(url)
        self.outbox = Outbox(self.schema.outbox, app=name, codecs=self.codecs, policy=policy)
        self.inbox = Inbox(self.database, inbox_table)

    def _database(self, url: str | None) -> Database:
        """The one that is named, or SQLite beside the embedded broker. Nothing is opened before it is used."""
        return Database(url) if url is not None else Database.embedded(self.data)

    @property
    def topology(self) -> Topology:
        """Return what the application wants of its broker."""
        return Topology(
            self.exchanges,
            self.queues,
            self.bindings,
            naming=self.naming,
            queue_type=self._queue_type,
            delays=self._delays,
        )

    # Running ------------------------------------------------------------------------------------------

    def on_start(self, function: F) -> F:
        """Call this function once in every process of the application, before anything else happens in it.

        Whichever part starts (a worker, a relay, an API, a program that publishes), it is called before the broker is
        connected and before a message or a request is taken. If it raises, the process does not start. It is for what
        the application needs: its tables (`app.database.create_tables(metadata)`, or `require_tables` where migrations
        create them), a folder, a service that must answer. A plain function runs in a thread.
        """
        self._starters.append(function)
        return function

    async def prepare(self) -> None:
        """Call the functions of `on_start`, the first time."""
        async with self._preparing:
            while self._starters:
                function = self._starters[0]
                with self.database.explain_errors():
                    await (function() if inspect.iscoroutinefunction(function) else asyncio.to_thread(function))
                self._starters.pop(0)

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[ConnectedApp]:
        """Connect, and declare the topology or check that it is there (`declare=False`). Yield the connected app."""
        await self.prepare()
        if any(spec.inbox for spec in self.select_consumers(())):
            with self.database.explain_errors():
                await self._ensure_tables(self.inbox.table.name)
        async with AsyncExitStack() as stack:
            connect = await self._connector(stack, observed=True)
            consuming, settling = await connect("consuming"), await connect("settling")
            publishing = await connect("publishing", patience=self._patience)
            running = ConnectedApp(self, consuming, publishing, settling, await self._apply_topology(consuming))
            yield running

    async def _connector(
        self, stack: AsyncExitStack, *, observed: bool = False
    ) -> Callable[..., Awaitable[Connection]]:
        """Return a function that connects to the broker until the stack closes. `observed`: observers see outages."""
        url, wait = self.broker, None
        if url is None:
            url, wait = (await stack.enter_async_context(SharedBroker(self.data))).url, _BROKER_HANDOVER

        outages = OutageLog(quiet=observed and any(observer.logs_connections for observer in self.observers))

        async def connect(what: str, **options: Any) -> Connection:
            named = Connection(url, name=f"{self.name} {what}", outages=outages, **options)
            connection = await named.open(wait=wait)
            stack.push_async_callback(connection.close)
            return connection

        return connect

    async def _apply_topology(self, connection: Connection) -> BrokerSnapshot:
        """Declare what is missing of the topology, or check that nothing is. Try once more if another process takes
        over the embedded broker meanwhile, as happens when a program that published a message ends.
        """
        try:
            return await self._apply_topology_once(connection)
        except (ConnectionLost, ConnectionClosed):
            if self.broker is not None:
                raise
            return await self._apply_topology_once(connection)

    async def _apply_topology_once(self, connection: Connection) -> BrokerSnapshot:
        snapshot = await inspect_broker(connection, self.topology, self.management)
        plan = make_plan(expand(self.topology.with_held(snapshot.effective), snapshot.server), snapshot)
        if self._declares:
            await provision(plan, connection)
        else:
            require_applied(plan)
        for step in plan.steps_by(Action.EXISTING):
            log.info("%s is taken as it is: %s", step.definition, step.note)
        return snapshot

    async def __aenter__(self) -> Self:
        """`async with app: await app.publish(...)`: for programs that publish and handle nothing."""
        if self._connected is not None:
            raise Closed(f"{self!r} is running already")
        self._stack = AsyncExitStack()
        self._connected = await self._stack.enter_async_context(self.connect())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._connected = None
        await self._stack.aclose()

    @overload
    async def publish(
        self,
        exchange: str | Exchange,
        routing_key: str,
        body: Any,
        *,
        session: None = None,
        **options: Unpack[PublishOptions],
    ) -> str: ...

    @overload
    async def publish(
        self,
        exchange: str | Exchange,
        routing_key: str,
        body: Any,
        *,
        session: AsyncPlace | SyncPlace,
        **options: Unpack[RowOptions],
    ) -> str: ...

    async def publish(
        self, exchange: str | Exchange, routing_key: str, body: Any, *, session: Any = None, **options: Any
    ) -> str:
        """Publish a message, wait for the broker's confirm, and return the message's id.

        With a `session` the message goes into the outbox, as part of the session's transaction. A synchronous session
        does not need the `await` that this takes: use `app.outbox.add`.

        In both cases:
            type: what kind of message it is
            headers: its headers
            content_type: how the body is encoded; by default as JSON, or as it is if it is bytes or a text
            message_id: its id; by default a UUIDv7
            correlation_id: the id of what it belongs to; by default that of the message being handled, or its own
            priority: its priority, on queues that have priorities
        Without a session:
            after: deliver it after this time; `exchange` is then "" and `routing_key` the name of a queue
            reply_to: where an answer is expected
            persistent: whether it survives a restart of the broker
        With a session:
            ordering_key: messages with the same key are published in the order of their rows
            envelope: wrap the body, `Envelope(...)` or `CloudEvent(...)`
        """
        if session is not None:
            added = self.outbox.add(session, exchange, routing_key, body, **options)
            return str(await added if inspect.isawaitable(added) else added)
        return await self.publisher.publish(exchange, routing_key, body, **options)

    @property
    def publisher(self) -> Publisher:
        """For as long as the application is connected."""
        if self._connected is None:
            raise Closed(f"{self!r} is not connected: publish within `async with app:` or from a handler")
        return self._connected.publisher

    @property
    def connected(self) -> ConnectedApp | None:
        """What it is connected by, if it is."""
        return self._connected

    async def run_worker(
        self,
        *,
        stop: asyncio.Event,
        queues: Iterable[str] = (),
        within: timedelta = timedelta(seconds=30),
        relay: bool = False,
        ready: Callable[[ConnectedApp], None] | None = None,
    ) -> bool:
        """Handle messages until `stop` is set, then drain. Return whether everything was finished within the limit.

        `relay`: publish the rows of the outbox, too.
        """
        await self._warn_stranded()
        async with self.connect() as running, AsyncExitStack() as stack:
            before, self._connected = self._connected, running
            worker = running.worker(self.select_consumers(queues))
            if any(spec.inbox for spec in self.select_consumers(queues)):
                pruning = run_periodically(self.prune_inbox, "old entries of the inbox", self.clock)
                await stack.enter_async_context(pruning)
            relaying = asyncio.create_task(self._publish_rows(stop, standby=True)) if relay else None
            try:
                await worker.start()
                if ready is not None:
                    ready(running)
                await _wait_either(stop, relaying)
            finally:
                if relaying is not None and not stop.is_set():  # something went wrong: nobody is to outlive it
                    relaying.cancel()
                    await asyncio.wait([relaying])
                finished = await worker.stop(within)
                self._connected = before
        if relaying is not None:
            await relaying
        return finished

    @asynccontextmanager
    async def local_worker(self, *, within: timedelta = timedelta(seconds=30)) -> AsyncIterator[bool]:
        """With the transport LOCAL, handle the outbox's events in this process inside the `with` block.

        With RABBIT they are not handled here: `redrive worker` handles them, and no message is handled twice. Yield
        whether this process handles them. At the end it drains, `within` that time.
        """
        if not self._outbox_settings.listens:
            log.info(
                "the outbox's transport is RABBIT: this process handles no messages, so that none is handled twice; "
                "`redrive worker --relay` publishes the events and handles them"
            )
            await self._warn_stranded()
            yield False
            return
        if not self.consumers:
            raise ConfigurationError(
                "the outbox's transport is LOCAL, and the application has no consumers here: import the modules that "
                "declare them, or include their routers"
            )
        async with self.worker(relay=True, within=within):
            yield True

    @asynccontextmanager
    async def worker(
        self, *, queues: Iterable[str] = (), relay: bool = False, within: timedelta = timedelta(seconds=30)
    ) -> AsyncIterator[None]:
        """Handle messages inside the `with` block, alongside whatever else this process does, an API for one.

        If the worker fails, it is logged and restarted; if it cannot start, the error is raised. At the end it drains,
        `within` that time. `relay`: publish the rows of the outbox, too.
        """
        stop, ready = asyncio.Event(), asyncio.Event()
        work = partial(self.run_worker, stop=stop, queues=tuple(queues), within=within, relay=relay)
        working = asyncio.create_task(self._restart_worker(work, stop, ready), name="redrive-worker")
        try:
            await _wait_either(ready, working)
            yield
        finally:
            stop.set()
            await working

    async def _restart_worker(
        self, work: Callable[..., Awaitable[bool]], stop: asyncio.Event, ready: asyncio.Event
    ) -> None:
        """Run the worker until `stop` is set, again after each failure: the API next to it continues as well."""
        for attempt in count(1):
            try:
                await work(ready=lambda _: ready.set())
                return
            except Exception as error:
                if stop.is_set() or not ready.is_set():  # it never started: the caller gets the error
                    raise
                log.exception("messages are not handled now, and soon will be again: %s", error)
                if await wait(stop, self.clock, _RESTART_BACKOFF.delay(attempt, 0).total_seconds()):
                    return

    async def _warn_stranded(self) -> None:
        """Log which broker is used where it may not be the expected one, and warn of messages in the other."""
        if self.transport is OutboxMode.LOCAL:
            unused = (
                f"; {BrokerURL.parse(self._configured_broker)} is not used"
                if self._configured_broker is not None
                else ""
            )
            log.info("the outbox's transport is LOCAL: messages stay in the broker in %s%s", self.data, unused)
        if self.broker is None:
            return
        if warning := await asyncio.to_thread(stranded_warning, self.topology, self.data):
            log.warning("%s", warning)

    async def relay(self, stop: asyncio.Event, *, ready: Callable[[Relay], None] | None = None) -> Relay:
        """Publish the rows of the outbox until `stop` is set. On SQLite there can be one relay: the next is refused.

        What is missing of the topology is made first: rows for an exchange that is not there yet would be parked.
        """
        if self._outbox_settings.no_relay is not None:
            raise ConfigurationError(self._outbox_settings.no_relay)
        await self._warn_stranded()
        return await self._publish_rows(stop, ready=ready, apply_topology=True)

    async def _publish_rows(
        self,
        stop: asyncio.Event,
        *,
        ready: Callable[[Relay], None] | None = None,
        standby: bool = False,
        apply_topology: bool = False,
    ) -> Relay:
        """With `standby` a second relay on SQLite waits until its turn comes; `apply_topology`: declare the
        topology first.
        """
        await self.prepare()
        with self.database.explain_errors():
            await self.ensure_outbox_table()
        async with AsyncExitStack() as stack:
            connect = await self._connector(stack)
            connection = await connect("relay", patience=_RELAY_PATIENCE, window=5000)
            lock = await self._acquire_relay_lock(connection, stop, standby)
            if apply_topology:
                await self._apply_topology_for_relay(connection)
            listener = OutboxListener(self.database, channel_of(self.schema.outbox.table), self.clock)
            waker = await stack.enter_async_context(listener)
            policy = self.outbox.policy
            keep = duration(policy.keep) if policy.keep is not None else None
            claims = OutboxRepository(self.database, self.outbox.table, keep=keep, clock=self.clock)
            if keep is not None:
                old = partial(claims.prune, keep)
                await stack.enter_async_context(run_periodically(old, "published rows of the outbox", self.clock))
            relay = Relay(
                claims,
                connection,
                waker,
                attempts=policy.attempts,
                lanes=2 if self.database.is_postgresql else 1,  # two would take the same rows
                lock=lock,
                clock=self.clock,
            )
            self._relay = relay
            if ready is not None:
                ready(relay)
            await relay.run(stop)
        return relay

    async def _acquire_relay_lock(self, connection: Connection, stop: asyncio.Event, standby: bool) -> RelayLock | None:
        """Return the lock that only one relay can have; None on PostgreSQL, which has locks on rows."""
        if self.database.is_postgresql:
            return None
        name = f"redrive.outbox.{self.schema.outbox.table}.{self.database.file_mark}"
        lock = RelayLock(connection, name, _RELAY_PATIENCE, self.clock)
        await lock.acquire(stop, standby=standby)
        return lock

    async def _apply_topology_for_relay(self, connection: Connection) -> None:
        """A relay needs no more than its rows' way to a queue. It may not be allowed to make anything, and queues that
        are not as wanted are the worker's trouble: neither is a reason to publish nothing.
        """
        try:
            await self._apply_topology(connection)
        except (TopologyConflict, AccessRefused) as error:
            log.warning("the relay goes on with the topology as it is: %s", error)

    async def ensure_outbox_table(self) -> None:
        """Check that the outbox's table is there: a process that only writes to it would notice at the first row."""
        await self._ensure_tables(self.outbox.table.name)

    async def _ensure_tables(self, table: str) -> None:
        """Create the missing tables of the embedded database, which is ours alone; in others they must be there."""
        if self.owns_database:
            await asyncio.to_thread(self.upgrade_database)
        else:
            await asyncio.to_thread(self.schema.check, self.database, table)

    def upgrade_database(self) -> bool:
        """Make the tables, or bring them to this version of Redrive. Whether anything was done."""
        return self.schema.upgrade(self.database)

    def outbox_facts(self) -> dict[str, float]:
        """For metrics: what is pending and since when, what is parked, and what this process has published."""
        status = OutboxRepository(self.database, self.outbox.table).status()
        oldest = status["oldest"]
        return {
            "pending": status["pending"],
            "oldest_seconds": (self.clock.now() - oldest).total_seconds() if oldest is not None else 0,
            "parked": status["parked"],
            "published_total": self._relay.published if self._relay is not None else 0,
        }

    @property
    def inbox_windows(self) -> dict[str, timedelta]:
        """For how long a message is known again, by the queues whose consumers have an inbox."""
        policies = {spec.queue.name: spec.inbox_policy for spec in self.select_consumers(())}
        return {queue: duration(policy.keep) for queue, policy in policies.items() if policy is not None}

    @property
    def header_names(self) -> dict[str, HeaderNames]:
        """How headers are called by those consumers, by queue, who have other names for them than the usual."""
        return {spec.queue.name: spec.headers for spec in self.consumers if spec.headers != HeaderNames()}

    def prune_inbox(self) -> int:
        """Delete the inbox entries that are older than their consumer keeps them. Return how many."""
        ahead = self.clock.ahead  # of the database, which stamps the entries
        return sum(self.inbox.prune(keep - ahead, consumer=queue) for queue, keep in self.inbox_windows.items())

    def select_consumers(self, queues: Iterable[str]) -> list[ConsumerSpec]:
        """Return the consumers of these queues, or all of them."""
        every = [*self.consumers, *(self._on_dead_letter_queue(spec) for _, spec in self.dead_letter_consumers)]
        wanted = set(queues)
        if unknown := wanted - {spec.queue.name for spec in every}:
            known = ", ".join(sorted({spec.queue.name for spec in every})) or "none"
            raise ConfigurationError(f"no consumer of {', '.join(sorted(unknown))}; there are consumers of {known}")
        return [spec for spec in every if not wanted or spec.queue.name in wanted]

    def _on_dead_letter_queue(self, spec: ConsumerSpec) -> ConsumerSpec:
        """A consumer of dead letters, with the queue where they are."""
        topology = self.topology
        main = topology.queue(spec.queue.name)
        if main is None:
            raise ConfigurationError(f"dlq_consumer of {spec.queue.name}: there is no such queue in the application")
        if not main.has_dlq(topology.queue_type):
            raise ConfigurationError(f"dlq_consumer of {spec.queue.name}: it has no dead-letter queue")
        name = fill(topology.names_of(main).dlq_queue, main.name)
        dead = replace(main, name=name, bind=(), retry=None, dlq=False, dead_ends=(), existing=False)
        return replace(spec, queue=dead)

    def __repr__(self) -> str:
        where = BrokerURL.parse(self.broker) if self.broker is not None else f"embedded in {self.data}"
        return f"<App {self.name} {where} queues={len(self.queues)} consumers={len(self.consumers)}>"


async def _wait_either(stop: asyncio.Event, relaying: asyncio.Task[Any] | None) -> None:
    """Wait for the event, or for the end of the task; if it died, its error is raised."""
    waiting = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait(
            [waiting, *([relaying] if relaying is not None else [])], return_when=asyncio.FIRST_COMPLETED
        )
    finally:
        waiting.cancel()
    if relaying is not None and relaying.done():
        relaying.result()
