"""The publisher for code that does not await: scripts, Django, Flask, threads.

    publisher = Publisher("amqp://guest:guest@localhost/")
    publisher.publish("", "orders", b'{"id": 1}')      # returns when the broker has confirmed it

It is the asyncio client in a background thread, with the same guarantees and the same errors. Any number of
threads may publish at once; their messages share one connection and are confirmed together. The connection is
made at the first publish, and again in a child process after a fork (gunicorn, multiprocessing): what the parent
had not finished stays the parent's.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import os
import threading
import weakref
from collections.abc import Coroutine, Iterable
from datetime import timedelta
from typing import Any, Self, TypeVar

from redrive.client.connection import Connection
from redrive.client.publisher import Publish
from redrive.client.url import BrokerURL
from redrive.errors import Closed, PublishUnknown
from redrive.wire.properties import Properties

__all__ = ["Properties", "Publish", "SyncPublisher"]

T = TypeVar("T")


class _Engine:
    """One thread, its event loop and the connection that lives there. It belongs to one process."""

    def __init__(self, url: BrokerURL, name: str, patience: timedelta) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"{name}-publisher", daemon=True)
        self._thread.start()
        self._opening = asyncio.run_coroutine_threadsafe(self._open(url, name, patience), self._loop)

    async def _open(self, url: BrokerURL, name: str, patience: timedelta) -> Connection:
        return await Connection(url, name=name, patience=patience).open(wait=patience)

    def connection(self) -> Connection:
        """Wait until it is open; raises what kept it from opening."""
        return self._opening.result()

    @property
    def failed(self) -> bool:
        return self._opening.done() and self._opening.exception() is not None

    def submit(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def end(self, within: timedelta) -> None:
        if not self._opening.cancel() and not self.failed:
            self.submit(self._opening.result().close(within=within)).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class SyncPublisher:
    """Publishes from code without an event loop; any number of threads may share it."""

    def __init__(
        self, url: str | BrokerURL, *, name: str = "redrive", patience: timedelta = timedelta(seconds=30)
    ) -> None:
        """`patience`: how long a publish waits for a connection, or for a blocked broker, before `NotPublished`."""
        self.url = url if isinstance(url, BrokerURL) else BrokerURL.parse(url)
        self._name = name
        self._patience = patience
        self._engine: _Engine | None = None
        self._lock = threading.Lock()
        self._closed = False
        _living.add(self)

    def publish(
        self,
        exchange: str,
        routing_key: str,
        body: bytes,
        properties: Properties | None = None,
        *,
        mandatory: bool = True,
        timeout: timedelta | None = None,
    ) -> None:
        """Publish a message and wait for the broker's confirm, at most for `timeout` (then: `PublishUnknown`)."""
        engine = self._require_engine()
        work = engine.connection().publish(exchange, routing_key, body, properties, mandatory=mandatory)
        confirmed = engine.submit(work)
        try:
            confirmed.result(timeout.total_seconds() if timeout is not None else None)
        except concurrent.futures.TimeoutError:
            confirmed.cancel()
            why = f"no confirm within {timeout}. It may be stored: publish it again"
            raise PublishUnknown(exchange, routing_key, why) from None

    def publish_many(self, messages: Iterable[Publish]) -> int:
        """Publish messages, pipelined, and wait for all confirms. They are iterated over in another thread."""
        engine = self._require_engine()
        return engine.submit(engine.connection().publish_many(messages)).result()

    def _require_engine(self) -> _Engine:
        with self._lock:
            if self._closed:
                raise Closed(f"{self!r} is closed")
            if self._engine is not None and self._engine.failed:
                engine, self._engine = self._engine, None
                engine.end(timedelta(0))
            if self._engine is None:
                self._engine = _Engine(self.url, self._name, self._patience)
            return self._engine

    def close(self, *, within: timedelta = timedelta(seconds=30)) -> None:
        """Wait for unconfirmed messages, then close. Publishing afterwards is an error."""
        with self._lock:
            engine, self._engine, self._closed = self._engine, None, True
        if engine is not None:
            engine.end(within)

    def _reset_after_fork(self) -> None:
        """This is a child process: the thread did not come along, and the connection is the parent's."""
        self._lock = threading.Lock()
        self._inherited, self._engine = self._engine, None  # kept, so that nothing of it is closed from here

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._closed else "idle" if self._engine is None else "running"
        return f"<Publisher {self.url} {state}>"


_living: weakref.WeakSet[SyncPublisher] = weakref.WeakSet()


def _after_fork() -> None:
    for publisher in list(_living):
        publisher._reset_after_fork()


@atexit.register
def _at_exit() -> None:
    for publisher in list(_living):
        publisher.close(within=timedelta(seconds=5))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
