"""The one object people hold: it connects, reconnects, restores, and tells its state.

    CLOSED -> CONNECTING -> OPEN <-> RECONNECTING -> CLOSED

A supervisor keeps one link alive. When it ends, the next is made, host after host, with a growing pause; then
the declarations are made again, and then publisher and consumers, who wait for `link()`, take up their work.
Declaring, publishing and each consumer have a channel of their own: what the broker refuses to one does not
disturb the others.
"""

from __future__ import annotations

import asyncio
import logging
import platform
import random
from collections.abc import Awaitable, Callable, Iterable
from datetime import timedelta
from enum import Enum, auto
from typing import Self

from redrive import __version__
from redrive.client.basic_get import Getter
from redrive.client.consumer import BulkHandler, Consumer, Handler, log_death
from redrive.client.outage_log import OutageLog
from redrive.client.publisher import AnyPublish, ConfirmingPublisher
from redrive.client.topology import Arguments, TopologyClient
from redrive.client.transport import Transport, open_transport
from redrive.client.url import BrokerURL
from redrive.errors import (
    AuthenticationFailed,
    Closed,
    ConfigurationError,
    ConnectionFailed,
    ConnectionLost,
    RedriveError,
)
from redrive.protocol.messages import Delivery
from redrive.recovery.backoff import Backoff
from redrive.wire.properties import Properties
from redrive.wire.values import Table
from redrive.worker.ports import ConfirmCallback

log = logging.getLogger("redrive.client")

# What a header frame needs at most beside the properties: its own frame, class and body size.
_HEADER_FRAME = 64


class LinkState(Enum):
    CLOSED = auto()
    CONNECTING = auto()
    OPEN = auto()
    RECONNECTING = auto()


class Connection(TopologyClient):
    def __init__(
        self,
        url: str | BrokerURL,
        *,
        name: str = "redrive",
        backoff: Backoff = Backoff(),  # noqa: B008 - frozen
        patience: timedelta = timedelta(seconds=30),
        window: int = 1000,
        window_bytes: int = 64 * 1024 * 1024,
        outages: OutageLog | None = None,
    ) -> None:
        """`patience`: how long a publish waits to be sent. `window`: how much may be unconfirmed at a time. `outages`:
        where it logs that it was lost, if it shares that with other connections.
        """
        super().__init__()
        self.url = url if isinstance(url, BrokerURL) else BrokerURL.parse(url)
        if window < 1 or window_bytes < 1:
            raise ConfigurationError(f"window {window}, window_bytes {window_bytes}: at least 1 of each must fit")
        self.state = LinkState.CLOSED
        self.last_error: RedriveError | None = None
        self.reconnects = 0
        self.troubles: list[str] = []  # what could not be restored after the last reconnect
        self._name = name
        self._backoff = backoff
        self._outages = outages or OutageLog()
        self._patience = patience.total_seconds()
        self._window = window
        self._window_bytes = window_bytes
        self._link: Transport | None = None
        self._known: Transport | None = None  # the last there was: what the broker is does not change while it is away
        self._publisher: ConfirmingPublisher | None = None
        self._consumers: list[Consumer] = []
        self._getter = Getter(self)
        self._changed: asyncio.Event = asyncio.Event()
        self._supervisor: asyncio.Task[None] | None = None
        self._closing = False  # from the beginning of `close` on
        self._listeners: list[Callable[[Connection], None]] = []

    # State --------------------------------------------------------------------------------------------

    @property
    def blocked(self) -> str | None:
        """The broker's reason to take no messages now (memory or disk alarm), or None."""
        return self._link.blocked if self._link is not None else None

    @property
    def unconfirmed(self) -> int:
        """How many publishes are waiting for the broker's confirm."""
        return self._publisher.unconfirmed if self._publisher is not None else 0

    @property
    def server_properties(self) -> Table:
        return self._known.server_properties if self._known is not None else {}

    @property
    def server_version(self) -> tuple[int, ...]:
        """(3, 10, 8) and the like; () when the broker does not say."""
        text = str(self.server_properties.get("version", ""))
        numbers = text.split("+")[0].split("-")[0].split(".")
        return tuple(int(number) for number in numbers if number.isdigit())

    @property
    def properties_max(self) -> int:
        """How many bytes the properties of a message may have: they must fit into one frame."""
        tuning = self._known.conversation.tuning if self._known is not None else self.url.tuning
        return tuning.frame_max - _HEADER_FRAME

    def on_change(self, listener: Callable[[Connection], None]) -> None:
        """Have `listener` called whenever the state, or whether the broker takes messages, changes."""
        self._listeners.append(listener)

    async def until(self, *states: LinkState) -> LinkState:
        """Wait until the connection is in one of these states."""
        while self.state not in states:
            await self._changed.wait()
        return self.state

    def _become(self, state: LinkState) -> None:
        self.state = state
        self._notify()

    def _notify(self) -> None:
        if self._publisher is not None:
            self._publisher.refresh()
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        for listener in self._listeners:
            try:
                listener(self)
            except Exception:
                log.exception("a listener to %r failed", self)

    # Opening and keeping open -------------------------------------------------------------------------

    async def open(self, *, wait: timedelta | None = None) -> Self:
        """Connect. Every host is tried once, or again and again for as long as `wait` says."""
        if self._supervisor is not None or self._closing or self.state is not LinkState.CLOSED:
            raise Closed(f"{self!r} was opened before: make a new one")
        self._become(LinkState.CONNECTING)
        self._publisher = ConfirmingPublisher(
            window=self._window, window_bytes=self._window_bytes, patience=self._patience
        )
        try:
            self._link = self._known = link = await self._open_first_link(wait)
        except BaseException:
            self._publisher = None
            self._become(LinkState.CLOSED)
            raise
        self._become(LinkState.OPEN)
        self._supervisor = asyncio.create_task(self._supervise(link), name="redrive-connection")
        self._supervisor.add_done_callback(log_death)
        return self

    async def _open_first_link(self, wait: timedelta | None) -> Transport:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + (wait.total_seconds() if wait is not None else 0)
        attempt = 0
        while True:
            try:
                return await self._discard_if_closing(await self._restore_on(await self._connect()))
            except (AuthenticationFailed, ConfigurationError, Closed):
                raise
            except RedriveError as error:
                attempt += 1
                pause = self._backoff.delay(attempt, random.random()).total_seconds()
                if loop.time() + pause > deadline:
                    raise
                log.info("not connected yet: %s", error)
                await asyncio.sleep(pause)

    async def _discard_if_closing(self, link: Transport) -> Transport:
        """Unless somebody closed this connection while it was being opened."""
        if self._closing:
            await link.close()
            raise Closed(f"{self!r} was closed while it was being opened")
        return link

    async def _connect(self) -> Transport:
        """Try each host once. Wrong credentials and settings are wrong everywhere, so these end it."""
        problems = []
        for host in self.url.hosts:
            try:
                return await open_transport(self.url, host, self._client_properties(), self._notify)
            except (AuthenticationFailed, ConfigurationError):
                raise
            except ConnectionFailed as error:
                problems.append(str(error))
            except RedriveError as error:
                problems.append(f"{host}: {error}")
        raise ConnectionFailed(f"cannot connect to {self.url}: {'; '.join(problems)}")

    def _client_properties(self) -> Table:
        return {
            "product": "redrive",
            "version": __version__,
            "platform": f"Python {platform.python_version()}",
            "connection_name": self._name,
        }

    async def _supervise(self, link: Transport) -> None:
        while True:
            self._on_lost(await self._keep_publisher_attached(link))
            link = await self._reconnect()
            self._link = self._known = link
            self.reconnects += 1
            self._become(LinkState.OPEN)
            self._outages.restored(self, self.url)

    async def _keep_publisher_attached(self, link: Transport) -> RedriveError:
        """Keep a publishing channel open for as long as the link lives: a refused publish closes it."""
        publisher = self._require_publisher()
        attempt = 0
        while True:
            await asyncio.wait([link.lost, publisher.interrupted], return_when=asyncio.FIRST_COMPLETED)
            if link.lost.done():
                return link.lost.result()
            try:
                await publisher.attach(link)
                attempt = 0
            except RedriveError as error:
                attempt += 1
                log.warning("cannot open a channel for publishing: %s", error)
                await asyncio.sleep(self._backoff.delay(attempt, random.random()).total_seconds())

    def _on_lost(self, reason: RedriveError) -> None:
        self._outages.lost(self, self.url, reason)
        self.last_error = reason
        self._link = self._topology_channel = None
        self._getter.on_disconnect()
        if self._publisher is not None:
            self._publisher.note_disconnect(reason)
        self._become(LinkState.RECONNECTING)

    async def _reconnect(self) -> Transport:
        attempt = 0
        while True:
            attempt += 1
            await asyncio.sleep(self._backoff.delay(attempt, random.random()).total_seconds())
            try:
                return await self._restore_on(await self._connect())
            except RedriveError as error:
                self.last_error = error
                if self._publisher is not None:
                    self._publisher.note_disconnect(error)
                log.debug("still not connected, try %d: %s", attempt, error)

    async def _restore_on(self, link: Transport) -> Transport:
        """A new link is ours only when everything declared is there again and publishing is possible."""
        try:
            self.troubles = await self._restore(link, list(self._declarations))
            await self._require_publisher().attach(link)
        except BaseException:
            link.abort(ConnectionLost("given up while restoring"))
            raise
        return link

    # For publisher and consumers ----------------------------------------------------------------------

    async def link(self) -> Transport:
        """The link that is open now, or the next one."""
        while self._link is None or not self._link.alive or self.state is not LinkState.OPEN:
            if self.state is LinkState.CLOSED:
                raise Closed(f"{self!r} is closed")
            await self._changed.wait()
        return self._link

    def forget(self, consumer: Consumer) -> None:
        if consumer in self._consumers:
            self._consumers.remove(consumer)

    # Publishing ---------------------------------------------------------------------------------------

    async def publish(
        self,
        exchange: str,
        routing_key: str,
        body: bytes,
        properties: Properties | bytes | None = None,
        *,
        mandatory: bool = True,
    ) -> None:
        """Publish a message and wait for the broker's confirm. Persistent unless `properties` say otherwise.

        Properties given as bytes are those of another message (`Delivery.raw_properties`), passed on as they are.

        Many may be under way at once. A caller that stops waiting (a timeout, a cancelled task) does not know
        what became of its message: that is a `PublishUnknown` of its own making.
        """
        await self._require_publisher().publish(exchange, routing_key, body, properties, mandatory)

    def publish_now(
        self, exchange: str, routing_key: str, body: bytes, properties: Properties | bytes, waiter: ConfirmCallback
    ) -> bool:
        """Publish without waiting, if a message may be sent at this moment: connected, not blocked, room in the window.

        If so, `waiter` (a future is one) is told what became of it; it is called in the middle of reading what the
        broker says, so it must be brief and not raise. If not, nothing was sent: `await publish`, which waits its turn.
        """
        return self._require_publisher().publish_now(exchange, routing_key, body, properties, waiter)

    async def publish_many(self, messages: Iterable[AnyPublish]) -> int:
        """Publish a stream of messages, pipelined, and wait for all confirms. Gives their number.

        When some fail the others are published all the same; `PublishErrors` then holds one error for each that
        failed, with its `index`.
        """
        return await self._require_publisher().publish_many(messages)

    def _require_publisher(self) -> ConfirmingPublisher:
        if self._publisher is None:
            raise Closed(f"{self!r} is not open: use `async with` or `await connection.open()`")
        return self._publisher

    # Consuming ----------------------------------------------------------------------------------------

    async def consume(
        self,
        queue: str,
        handler: Handler | None = None,
        *,
        prefetch: int = 100,
        concurrency: int = 1,
        exclusive: bool = False,
        arguments: Arguments | None = None,
        finishing: Callable[[], Awaitable[None]] | None = None,
        aborting: Callable[[], Awaitable[None]] | None = None,
        intercept: Callable[[Delivery], bool] | None = None,
    ) -> Consumer:
        """Consume a queue, by `handler` or by iterating over what this returns.

        A handler may leave a delivery to be settled by somebody else; `finishing` then waits for those, before the
        channel is closed and whatever is not settled goes back to the queue; `aborting` is awaited in its stead
        when the consumer is aborted. `intercept` gets each redelivered message when it arrives, and returns whether it
        settles it: such a message is not handled.
        """
        if concurrency < 1:
            raise ConfigurationError(f"concurrency {concurrency}: want at least 1")
        consumer = Consumer(
            self,
            queue,
            handler,
            prefetch=prefetch,
            concurrency=concurrency,
            exclusive=exclusive,
            arguments=dict(arguments or {}),
            backoff=self._backoff,
            finishing=finishing,
            aborting=aborting,
            intercept=intercept,
        )
        return await self._begin(consumer)

    async def consume_many(
        self,
        queue: str,
        handler: BulkHandler,
        *,
        prefetch: int = 100,
        finishing: Callable[[], Awaitable[None]] | None = None,
        aborting: Callable[[], Awaitable[None]] | None = None,
        intercept: Callable[[Delivery], bool] | None = None,
    ) -> Consumer:
        """Consume a queue by a handler that gets as many deliveries in one call as have come, but never so many that
        others would have to wait. Else as `consume`.
        """
        consumer = Consumer(
            self,
            queue,
            None,
            many=handler,
            prefetch=prefetch,
            backoff=self._backoff,
            finishing=finishing,
            aborting=aborting,
            intercept=intercept,
        )
        return await self._begin(consumer)

    async def _begin(self, consumer: Consumer) -> Consumer:
        if not 1 <= consumer.prefetch <= 65535:
            raise ConfigurationError(f"prefetch {consumer.prefetch}: want 1 to 65535; without a limit memory has none")
        if not self._closing:
            await consumer.start()
        if self._closing:  # before, or meanwhile: nobody would end it
            await consumer.abort()
            raise Closed(f"{self!r} is being closed")
        self._consumers.append(consumer)
        return consumer

    async def get(self, queue: str) -> Delivery | None:
        """Take one message from a queue, or None if it is empty. Each queue is read over a channel of its own."""
        return await self._getter.get(queue)

    # Closing ------------------------------------------------------------------------------------------

    async def close(self, *, within: timedelta = timedelta(seconds=30)) -> None:
        """Finish what is under way, say farewell, and close. After `within`, or when this is given up, close all the
        same.
        """
        if self.state is LinkState.CLOSED and self._supervisor is None:
            return
        self._closing, caller = True, asyncio.current_task()
        try:
            async with asyncio.timeout(within.total_seconds()):
                await self._drain(caller)
        except TimeoutError:
            log.warning("closing %r with work unfinished after %s", self, within)
        except BaseException:
            await self._end(caller, farewell=False)
            raise
        await self._end(caller, farewell=True)

    async def _drain(self, caller: asyncio.Task[object] | None) -> None:
        leaving = [consumer.drain(caller) for consumer in self._consumers]
        for error in filter(None, await asyncio.gather(*leaving, return_exceptions=True)):
            log.error("a consumer of %r did not finish in order", self, exc_info=error)
        if self._publisher is not None:
            self._publisher.close(Closed("the connection is being closed"))
            await self._publisher.wait_until_confirmed()

    async def _end(self, caller: asyncio.Task[object] | None, *, farewell: bool) -> None:
        if self._publisher is not None:
            self._publisher.close(Closed("the connection was closed"))
        if self._supervisor is not None:
            self._supervisor.cancel()
            await asyncio.gather(self._supervisor, return_exceptions=True)
        await asyncio.gather(*(consumer.abort(caller) for consumer in list(self._consumers)))
        link, self._link = self._link, None
        if link is not None and farewell:
            await link.close()
        elif link is not None:
            link.abort(ConnectionLost(f"{link.host}: closed by this side"))
        self._outages.closed(self)
        self._become(LinkState.CLOSED)

    async def __aenter__(self) -> Self:
        return await self.open() if self.state is LinkState.CLOSED else self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        blocked = f" blocked={self.blocked!r}" if self.blocked is not None else ""
        return (
            f"<Connection {self.url} {self.state.name} consumers={len(self._consumers)} "
            f"unconfirmed={self.unconfirmed}{blocked}>"
        )
