"""An application as its watchers see it: its metrics, and what is wrong with it.

`redrive worker` serves them on a port of their own, an API beside its paths (`redrive.integrations.fastapi.monitor`).

How many messages are in a queue is asked of the broker at each scrape. It counts those that nobody has taken. What
this process has taken and not settled is `redrive_unsettled`: a dead-letter queue with a consumer that fails looks
empty to the broker, for all that was in it waits here to be put back.

The age of the first message is what the broker reports without a peek. A message that was taken and returned counts as
redelivered, which may bring it closer to its delivery limit, and looks like a crash to the worker that gets it next.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Iterable
from typing import TypeVar

from prometheus_client import CollectorRegistry

from redrive.app import App
from redrive.connected_app import ConnectedApp
from redrive.errors import RedriveError
from redrive.integrations.prometheus import PrometheusObserver, Samples, exposition

__all__ = ["Monitoring"]

log = logging.getLogger("redrive.integrations")

K = TypeVar("K")
V = TypeVar("V")

_PATIENCE = 5.0  # seconds for a broker that is asked; whoever scrapes does not wait longer


async def outbox_samples(app: App) -> Samples:
    """Return the metrics of the outbox; none when its database is unavailable."""
    try:
        async with asyncio.timeout(_PATIENCE):
            facts = await asyncio.to_thread(app.outbox_facts)
            return {f"redrive_outbox_{name}": {(app.outbox.table.name,): value} for name, value in facts.items()}
    except Exception as error:
        said = str(error).partition("\n")[0]  # a database goes on with its statement
        log.warning("what is in the outbox is not known for this scrape: %s", said or "no answer in time")
        return {}


async def _known(what: str, asked: Awaitable[dict[K, V]]) -> dict[K, V]:
    """Return what was asked for; nothing if there is no answer in time."""
    try:
        async with asyncio.timeout(_PATIENCE):
            return await asked
    except (RedriveError, TimeoutError) as error:
        log.warning("%s are not known for this scrape: %s", what, str(error) or "no answer in time")
        return {}


class Monitoring:
    """Observes an application from its next connection on, which may be with no consumers, some, or all."""

    def __init__(self, app: App, *, queues: Iterable[str] = (), relay: bool = False) -> None:
        self._app = app
        self._specs = app.select_consumers(queues)
        self._relay = relay
        self._queues: Samples = {}
        self._outbox: Samples = {}
        self._registry = CollectorRegistry()
        observer = PrometheusObserver(
            self._registry,
            sources={
                "messages and consumers of queues": lambda: self._queues,
                "messages taken from queues": self._unsettled_samples,
                "rows of the outbox": lambda: self._outbox,
            },
        )
        for spec in self._specs:
            observer.expect_consumer(spec)
        for exchange in ("", *(exchange.name for exchange in app.exchanges)):
            observer.expect_exchange(exchange)
        app.observers.append(observer)

    async def metrics(self) -> bytes:
        """The page that Prometheus reads. What cannot be known now is not told."""
        self._queues = await self._ask(self._app.connected)
        if self._relay:
            self._outbox = await outbox_samples(self._app)
        return exposition(self._registry)

    async def _ask(self, running: ConnectedApp | None) -> Samples:
        if running is None or not running.is_ready:
            return {}
        infos = await _known("messages and consumers of queues", running.queue_infos(self._specs))
        times = await _known("times of the first messages", running.publishing_times())
        consumed, now = {spec.queue.name for spec in self._specs}, self._app.clock.now().timestamp()
        return {
            "redrive_queue_messages": {place: info.messages for place, info in infos.items()},
            "redrive_queue_consumers": {
                (name,): info.consumers for (name, _), info in infos.items() if name in consumed
            },
            "redrive_queue_oldest_seconds": {
                (name, role): max(0.0, now - times[name])
                for (name, role), info in infos.items()
                if info.messages and name in times
            },
        }

    def _unsettled_samples(self) -> Samples:
        unsettled = self._app.connected.unsettled if self._app.connected is not None else {}
        return {"redrive_unsettled": {(queue,): count for queue, count in unsettled.items()}}

    def problems(self) -> list[str]:
        """Why it should get no work; nothing if all is well."""
        running = self._app.connected
        return running.problems if running is not None else ["not connected"]

    def __repr__(self) -> str:
        return f"<Monitoring {self._app.name} consumers={len(self._specs)}>"
