"""An embedded broker in a thread of its own, for tests with any AMQP client, blocking or not.

    with ThreadedBroker(clock=ManualClock()) as broker:
        connection = pika.BlockingConnection(pika.URLParameters(broker.url))
        ...
        broker.advance("15s")      # what waits for a TTL has waited

Without a `data` folder nothing is written to disk and every broker is empty when it starts. With a `ManualClock` time
stands still until it is advanced; without one it runs by itself. `product="RabbitMQ"` is for clients that look for that
name in the server properties.

An application of Redrive shares the clock while it is attached:

    with broker.attach(app) as recorder:
        async with app, app.working():
            await app.publish("events", "order.placed", {"id": 7})
            await recorder.retried("orders")
            broker.advance("15s")
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar
from urllib.parse import quote

from redrive.broker.broker import PRODUCT, Broker
from redrive.broker.clock import Clock, LoopClock
from redrive.broker.dialect import LATEST, Dialect
from redrive.broker.server import BrokerServer
from redrive.broker.storage.memory import MemoryJournal
from redrive.broker.storage.sqlite import SQLiteJournal
from redrive.errors import ConfigurationError
from redrive.recovery.durations import Duration
from redrive.testing.clock import ManualClock

if TYPE_CHECKING:
    from redrive.app import App
    from redrive.testing.recorder import Recorder

T = TypeVar("T")


class ThreadedBroker:
    """The embedded broker in a thread, in memory, for any client library."""

    def __init__(
        self,
        *,
        clock: ManualClock | None = None,
        dialect: Dialect = LATEST,
        data: Path | None = None,
        product: str = PRODUCT,
    ) -> None:
        self.clock = clock
        self._dialect = dialect
        self._data = data
        self._product = product
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="redrive-test-broker", daemon=True)
        self._server: BrokerServer | None = None

    @property
    def url(self) -> str:
        """Where it listens, as `guest`."""
        return self.server.url.replace("amqp://", "amqp://guest:guest@")

    @property
    def server(self) -> BrokerServer:
        """The server of the broker."""
        if self._server is None:
            raise RuntimeError("the broker was not started: use it as a context manager")
        return self._server

    def start(self) -> Self:
        """Start the thread, and wait until the broker listens."""
        self._thread.start()
        clock: Clock = self.clock or LoopClock()
        self._server = asyncio.run_coroutine_threadsafe(self._serve(clock), self._loop).result()
        if self.clock is not None:
            self.clock.before_advance.append(self._catch_up)
        return self

    async def _serve(self, clock: Clock) -> BrokerServer:
        journal = SQLiteJournal(self._data) if self._data is not None else MemoryJournal()
        broker = Broker(journal=journal, clock=clock, dialect=self._dialect, product=self._product)
        return await BrokerServer(broker).start()

    def stop(self) -> None:
        """Stop the broker and its thread."""
        if self.clock is not None:
            self.clock.before_advance.remove(self._catch_up)
        asyncio.run_coroutine_threadsafe(self._finish(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _finish(self) -> None:
        await self.server.stop(within=1)
        for _ in range(3):  # what was closed is gone after a turn or two of the loop
            await asyncio.sleep(0)

    def advance(self, by: Duration) -> None:
        """Let time pass for the broker and for what shares its clock: TTLs, delays and queue expiry fall due."""
        if self.clock is None:
            raise RuntimeError("this broker's clock runs by itself: ThreadedBroker(clock=ManualClock())")
        self.clock.advance(by)

    def _catch_up(self) -> None:
        """Wait until the broker has read what clients have sent: a message published before an advance waits from then.

        Its sender does not wait for a confirm, as a rule.
        """
        if threading.current_thread() is not self._thread:
            asyncio.run_coroutine_threadsafe(self._read_all(), self._loop).result()

    async def _read_all(self) -> None:
        while any(session.has_unread_input() for session in self.server.broker.sessions):  # noqa: ASYNC110
            await asyncio.sleep(0)

    @contextmanager
    def attach(self, app: App) -> Iterator[Recorder]:
        """Let an application use this broker and its clock, and record what happens to its messages, until this ends.

        Attach it before it connects. Its own settings come back at the end.
        """
        from redrive.testing.recorder import Recorder  # people who test with pika need no application

        if app.connected is not None:
            raise ConfigurationError(f"{app!r} is connected already: attach it before it connects")
        before = app.broker, app.management, app.clock, app.observers
        app.observers = list(app.observers)
        app.broker, app.management, app.clock = self.url, None, self.clock or app.clock
        try:
            yield Recorder(app)
        finally:
            app.broker, app.management, app.clock, app.observers = before

    def call(self, action: Callable[[], T]) -> T:
        """Do something in the broker's thread and give its result."""

        async def act() -> T:
            return action()

        return asyncio.run_coroutine_threadsafe(act(), self._loop).result()

    def add_vhost(self, name: str) -> str:
        """Make a virtual host and give its URL."""
        self.call(lambda: self.server.broker.add_vhost(name))
        return f"{self.url}{quote(name, safe='')}"

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<ThreadedBroker {self._server!r}>"
