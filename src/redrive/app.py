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
from typing import Any, Self

from redrive import environment
from redrive.broker.shared import SharedBroker
from redrive.client import BrokerURL, Connection
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
from redrive.outbox.mode import OutboxMode, arrange
from redrive.outbox.outbox import Outbox, OutboxPolicy
from redrive.outbox.relay import Relay
from redrive.outbox.relay_lock import RelayLock
from redrive.outbox.repository import OutboxRepository
from redrive.recovery.backoff import Backoff
from redrive.recovery.durations import Duration, duration
from redrive.recovery.history import HeaderNames
from redrive.router import F, Router
from redrive.topology import Naming, QueueType, Server, Topology, expand
from redrive.topology.naming import fill
from redrive.topology.plan import make_plan
from redrive.worker.clock import Clock, SystemClock, fitting_clock, wait
from redrive.worker.codecs import Codec, Codecs
from redrive.worker.consumer_spec import ConsumerSpec
from redrive.worker.events import Observer
from redrive.worker.periodic import tidying
from redrive.worker.publisher import Publisher, PublishHook, nothing_around
from redrive.worker.topology_apply import insist, provision

log = logging.getLogger("redrive")

# A relay that has claimed rows does not wait long for a broker: whoever else could publish them is kept from it.
_RELAY_PATIENCE = timedelta(seconds=5)
_CHANGING_HANDS = timedelta(seconds=10)  # the embedded broker's host ends, and another process takes over
_AGAIN = Backoff(first=timedelta(milliseconds=500), ceiling=timedelta(seconds=30), jitter=0)


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
        defaults: Mapping[str, Any] | None = None,  # options of all consumers that do not say them themselves
        patience: Duration = "30s",  # how long a publish waits for a broker that is away, before it is an error
        codecs: Mapping[str, Codec] | None = None,  # bodies by content type, beside JSON, MessagePack, text and bytes
        observers: Iterable[Observer] = (),  # who is told of everything that happens
        clock: Clock | None = None,  # for tests: one that a test advances (`redrive.testing.ManualClock`)
    ) -> None:
        super().__init__(defaults=defaults)
        if not name or not isinstance(name, str):
            raise ConfigurationError(f"app name {name!r}: want a text, it stands in logs and messages")
        self.name = name
        policy = outbox_policy or OutboxPolicy()
        self.transport = OutboxMode.of(policy.transport or environment.outbox_transport() or OutboxMode.RABBIT)
        self._named_broker = broker or environment.broker()
        if self._named_broker is not None:
            BrokerURL.parse(self._named_broker)
        self._arranged = arrange(
            self.transport, broker=self._named_broker, management=management or environment.management()
        )
        self.broker = self._arranged.broker
        self.management = self._arranged.management
        self.data = Path(data) if data is not None else environment.data()
        self.codecs = Codecs(codecs)
        self.observers: list[Observer] = list(observers)
        self.naming = naming or Naming()
        self._queue_type = QueueType(queue_type)
        self._delays = delays
        self._declares = declare
        self._patience = duration(patience, "patience")
        self.clock = fitting_clock(clock) if clock is not None else SystemClock()
        self.around_publish: PublishHook = nothing_around
        self.given: dict[type, object] = {App: self}  # what handlers can ask for by its type, beside the publisher
        self._running: ConnectedApp | None = None
        self._starters: list[Callable[[], Any]] = []
        self._preparing = asyncio.Lock()
        self._relay: Relay | None = None
        self.schema = Schema(outbox or OutboxNames(), inbox_table)
        url = database or environment.database()
        self.owns_database = url is None
        self.database = self._database(url)
        self.outbox = Outbox(self.schema.outbox, app=name, codecs=self.codecs, policy=policy)
        self.inbox = Inbox(self.database, inbox_table)

    def _database(self, url: str | None) -> Database:
        """The one that is named, or SQLite beside the embedded broker. Nothing is opened before it is used."""
        return Database(url) if url is not None else Database.embedded(self.data)

    @property
    def topology(self) -> Topology:
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
                with self.database.explaining():
                    await (function() if inspect.iscoroutinefunction(function) else asyncio.to_thread(function))
                self._starters.pop(0)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[ConnectedApp]:
        """Connected, with the topology in place: made, or found to be there (`declare=False`)."""
        await self.prepare()
        if any(spec.inbox for spec in self.chosen(())):
            with self.database.explaining():
                await self._ready_database(self.inbox.table.name)
        async with AsyncExitStack() as stack:
            connect = await self._reach(stack)
            consuming, settling = await connect("consuming"), await connect("settling")
            publishing = await connect("publishing", patience=self._patience)
            running = ConnectedApp(self, consuming, publishing, settling, await self._bring(consuming))
            yield running

    async def _reach(self, stack: AsyncExitStack) -> Callable[..., Awaitable[Connection]]:
        """How to connect to the broker, for as long as the stack lasts."""
        url, wait = self.broker, None
        if url is None:
            url, wait = (await stack.enter_async_context(SharedBroker(self.data))).url, _CHANGING_HANDS

        async def connect(what: str, **options: Any) -> Connection:
            connection = await Connection(url, name=f"{self.name} {what}", **options).open(wait=wait)
            stack.push_async_callback(connection.close)
            return connection

        return connect

    async def _bring(self, connection: Connection) -> Server:
        """Make what is missing of the topology, or see that nothing is; once more if the embedded broker changes hands
        meanwhile, as it does when a program that published a message ends.
        """
        try:
            return await self._bring_once(connection)
        except (ConnectionLost, ConnectionClosed):
            if self.broker is not None:
                raise
            return await self._bring_once(connection)

    async def _bring_once(self, connection: Connection) -> Server:
        snapshot = await inspect_broker(connection, self.topology, self.management)
        plan = make_plan(expand(self.topology, snapshot.server), snapshot)
        if self._declares:
            await provision(plan, connection)
        else:
            insist(plan)
        return snapshot.server

    async def __aenter__(self) -> Self:
        """`async with app: await app.publish(...)`: for programs that publish and handle nothing."""
        if self._running is not None:
            raise Closed(f"{self!r} is running already")
        self._stack = AsyncExitStack()
        self._running = await self._stack.enter_async_context(self.running())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._running = None
        await self._stack.aclose()

    async def publish(self, exchange: Any, routing_key: str, body: Any, *, session: Any = None, **options: Any) -> str:
        """Publish and wait for the broker's confirm; `options` are those of `Publisher.publish`. Gives the id.

        With a `session` the message goes into the outbox, as part of its transaction; `options` are then those of
        `Outbox.row`. A synchronous session does not need the `await` that this takes: use `app.outbox.add`.
        """
        if session is not None:
            added = self.outbox.add(session, exchange, routing_key, body, **options)
            return str(await added if inspect.isawaitable(added) else added)
        return await self.publisher.publish(exchange, routing_key, body, **options)

    @property
    def publisher(self) -> Publisher:
        """For as long as the application is connected."""
        if self._running is None:
            raise Closed(f"{self!r} is not connected: publish within `async with app:` or from a handler")
        return self._running.publisher

    @property
    def connected(self) -> ConnectedApp | None:
        """What it is connected by, if it is."""
        return self._running

    async def work(
        self,
        *,
        stop: asyncio.Event,
        queues: Iterable[str] = (),
        within: timedelta = timedelta(seconds=30),
        relay: bool = False,
        ready: Callable[[ConnectedApp], None] | None = None,
    ) -> bool:
        """Handle messages until `stop` is set, then drain. Whether everything was finished within the limit.

        `relay`: publish the rows of the outbox, too.
        """
        await self._tell_where_messages_are()
        async with self.running() as running, AsyncExitStack() as stack:
            before, self._running = self._running, running
            worker = running.worker(self.chosen(queues))
            if any(spec.inbox for spec in self.chosen(queues)):
                await stack.enter_async_context(tidying(self.forget_processed, "old entries of the inbox", self.clock))
            relaying = asyncio.create_task(self._publish_rows(stop, standby=True)) if relay else None
            try:
                await worker.start()
                if ready is not None:
                    ready(running)
                await _first(stop, relaying)
            finally:
                if relaying is not None and not stop.is_set():  # something went wrong: nobody is to outlive it
                    relaying.cancel()
                    await asyncio.wait([relaying])
                finished = await worker.stop(within)
                self._running = before
        if relaying is not None:
            await relaying
        return finished

    @asynccontextmanager
    async def listening(self, *, within: timedelta = timedelta(seconds=30)) -> AsyncIterator[bool]:
        """For an API's process, as long as it lives: with the transport LOCAL the outbox's events are handled in it.

        With RABBIT they are not: `redrive worker` handles them, and nobody a second time. Gives whether it listens.
        At the end it drains, `within` that time.
        """
        if not self._arranged.listens:
            log.info(
                "the outbox's transport is RABBIT: this process handles no messages, so that none is handled twice; "
                "`redrive worker --relay` publishes the events and handles them"
            )
            await self._tell_where_messages_are()
            yield False
            return
        if not self.consumers:
            raise ConfigurationError(
                "the outbox's transport is LOCAL, and the application has no consumers here: import the modules that "
                "declare them, or include their routers"
            )
        async with self.working(relay=True, within=within):
            yield True

    @asynccontextmanager
    async def working(
        self, *, queues: Iterable[str] = (), relay: bool = False, within: timedelta = timedelta(seconds=30)
    ) -> AsyncIterator[None]:
        """Handle messages beside something else in this process, an API for one, for as long as that takes.

        What breaks is logged and begun again; what cannot even begin is an error. At the end it drains, `within` that
        time. `relay`: publish the rows of the outbox, too.
        """
        stop, ready = asyncio.Event(), asyncio.Event()
        work = partial(self.work, stop=stop, queues=tuple(queues), within=within, relay=relay)
        working = asyncio.create_task(self._keep_working(work, stop, ready), name="redrive-working")
        try:
            await _first(ready, working)
            yield
        finally:
            stop.set()
            await working

    async def _keep_working(
        self, work: Callable[..., Awaitable[bool]], stop: asyncio.Event, ready: asyncio.Event
    ) -> None:
        """An API goes on whatever happens here: so this does as well."""
        for attempt in count(1):
            try:
                await work(ready=lambda _: ready.set())
                return
            except Exception as error:
                if stop.is_set() or not ready.is_set():  # who cannot even begin tells his caller
                    raise
                log.exception("messages are not handled now, and soon will be again: %s", error)
                if await wait(stop, self.clock, _AGAIN.delay(attempt, 0).total_seconds()):
                    return

    async def _tell_where_messages_are(self) -> None:
        """Log which broker is used where it may not be the expected one, and warn of messages in the other."""
        if self.transport is OutboxMode.LOCAL:
            unused = f"; {BrokerURL.parse(self._named_broker)} is not used" if self._named_broker is not None else ""
            log.info("the outbox's transport is LOCAL: messages stay in the broker in %s%s", self.data, unused)
        if self.broker is None:
            return
        if warning := await asyncio.to_thread(stranded_warning, self.topology, self.data):
            log.warning("%s", warning)

    async def relay(self, stop: asyncio.Event, *, ready: Callable[[Relay], None] | None = None) -> Relay:
        """Publish the rows of the outbox until `stop` is set. On SQLite there can be one relay: the next is refused.

        What is missing of the topology is made first: rows for an exchange that is not there yet would be parked.
        """
        if self._arranged.no_relay is not None:
            raise ConfigurationError(self._arranged.no_relay)
        await self._tell_where_messages_are()
        return await self._publish_rows(stop, ready=ready, bring=True)

    async def _publish_rows(
        self,
        stop: asyncio.Event,
        *,
        ready: Callable[[Relay], None] | None = None,
        standby: bool = False,
        bring: bool = False,
    ) -> Relay:
        """With `standby` a second relay on SQLite waits until its turn comes; `bring`: nobody has made the topology."""
        await self.prepare()
        with self.database.explaining():
            await self.ready_outbox()
        async with AsyncExitStack() as stack:
            connect = await self._reach(stack)
            connection = await connect("relay", patience=_RELAY_PATIENCE, window=5000)
            lock = None
            if not self.database.is_postgresql:  # SQLite has no locks on rows
                name = f"redrive.outbox.{self.schema.outbox.table}.{self.database.file_mark}"
                lock = RelayLock(connection, name, _RELAY_PATIENCE, self.clock)
                await lock.acquire(stop, standby=standby)
            if bring:
                await self._bring_for_relay(connection)
            listener = OutboxListener(self.database, channel_of(self.schema.outbox.table), self.clock)
            waker = await stack.enter_async_context(listener)
            policy = self.outbox.policy
            keep = duration(policy.keep, "outbox.keep") if policy.keep is not None else None
            claims = OutboxRepository(self.database, self.outbox.table, keep=keep, clock=self.clock)
            if keep is not None:
                old = partial(claims.prune, keep)
                await stack.enter_async_context(tidying(old, "published rows of the outbox", self.clock))
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

    async def _bring_for_relay(self, connection: Connection) -> None:
        """A relay needs no more than its rows' way to a queue. It may not be allowed to make anything, and queues that
        are not as wanted are the worker's trouble: neither is a reason to publish nothing.
        """
        try:
            await self._bring(connection)
        except (TopologyConflict, AccessRefused) as error:
            log.warning("the relay goes on with the topology as it is: %s", error)

    async def ready_outbox(self) -> None:
        """See that the outbox's table is there: whoever only writes to it would learn that from the first row."""
        await self._ready_database(self.outbox.table.name)

    async def _ready_database(self, table: str) -> None:
        """The embedded database is nobody else's, so its tables are made when needed; in others they must be there."""
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
        policies = {spec.queue.name: spec.inbox_policy for spec in self.chosen(())}
        return {queue: duration(policy.keep) for queue, policy in policies.items() if policy is not None}

    @property
    def header_names(self) -> dict[str, HeaderNames]:
        """How headers are called by those consumers, by queue, who have other names for them than the usual."""
        return {spec.queue.name: spec.headers for spec in self.consumers if spec.headers != HeaderNames()}

    def forget_processed(self) -> int:
        """Delete what each consumer's inbox has kept for as long as it is to. How much that was."""
        ahead = self.clock.ahead  # of the database, which stamps the entries
        return sum(self.inbox.prune(keep - ahead, consumer=queue) for queue, keep in self.inbox_windows.items())

    def chosen(self, queues: Iterable[str]) -> list[ConsumerSpec]:
        """The consumers of these queues, or all of them."""
        every = [*self.consumers, *(self._at_its_queue(spec) for _, spec in self.dead_letter_consumers)]
        wanted = set(queues)
        if unknown := wanted - {spec.queue.name for spec in every}:
            known = ", ".join(sorted({spec.queue.name for spec in every})) or "none"
            raise ConfigurationError(f"no consumer of {', '.join(sorted(unknown))}; there are consumers of {known}")
        return [spec for spec in every if not wanted or spec.queue.name in wanted]

    def _at_its_queue(self, spec: ConsumerSpec) -> ConsumerSpec:
        """A consumer of dead letters, with the queue where they are."""
        topology = self.topology
        main = topology.queue(spec.queue.name)
        if main is None:
            raise ConfigurationError(f"dlq_consumer of {spec.queue.name}: there is no such queue in the application")
        if not main.has_dlq(topology.queue_type):
            raise ConfigurationError(f"dlq_consumer of {spec.queue.name}: it has no dead-letter queue")
        name = fill(topology.names_of(main).dlq_queue, main.name)
        return replace(spec, queue=replace(main, name=name, bind=(), retry=None, dlq=False, dead_ends=()))

    def __repr__(self) -> str:
        where = BrokerURL.parse(self.broker) if self.broker is not None else f"embedded in {self.data}"
        return f"<App {self.name} {where} queues={len(self.queues)} consumers={len(self.consumers)}>"


async def _first(stop: asyncio.Event, relaying: asyncio.Task[Any] | None) -> None:
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
