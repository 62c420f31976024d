"""An application as its watchers see it: its metrics, and what is wrong with it.

`redrive worker` serves them on a port of their own, an API beside its paths (`redrive.integrations.fastapi.monitor`).

How many messages are in a queue is asked of the broker at each scrape. It counts those that nobody has taken. What
this process has taken and not settled is `redrive_unsettled`: a dead-letter queue with a consumer that fails looks
empty to the broker, for all that was in it waits here to be put back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from prometheus_client import CollectorRegistry

from redrive.app import App
from redrive.connected_app import ConnectedApp
from redrive.errors import RedriveError
from redrive.integrations.prometheus import PrometheusObserver, Samples, exposition

__all__ = ["Monitoring"]

log = logging.getLogger("redrive.integrations")

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


class Monitoring:
    """Observes an application from its next connection on, which may be with no consumers, some, or all."""

    def __init__(self, app: App, *, queues: Iterable[str] = (), relay: bool = False) -> None:
        self._app = app
        self._specs = app.select_consumers(queues)
        self._relay = relay
        self._depths: dict[tuple[str, str], int] = {}
        self._outbox: Samples = {}
        self._registry = CollectorRegistry()
        app.observers.append(
            PrometheusObserver(
                self._registry,
                queues=[spec.queue.name for spec in self._specs],
                sources={
                    "depths of queues": lambda: {"redrive_queue_messages": self._depths},
                    "messages taken from queues": self._unsettled_samples,
                    "rows of the outbox": lambda: self._outbox,
                },
            )
        )

    async def metrics(self) -> bytes:
        """The page that Prometheus reads. What cannot be known now is not told."""
        self._depths = await self._ask(self._app.connected)
        if self._relay:
            self._outbox = await outbox_samples(self._app)
        return exposition(self._registry)

    async def _ask(self, running: ConnectedApp | None) -> dict[tuple[str, str], int]:
        if running is None or not running.is_ready:
            return {}
        try:
            async with asyncio.timeout(_PATIENCE):
                return await running.depths(self._specs)
        except (RedriveError, TimeoutError) as error:
            log.warning("the depths of queues are not known for this scrape: %s", error)
            return {}

    def _unsettled_samples(self) -> Samples:
        unsettled = self._app.connected.unsettled if self._app.connected is not None else {}
        return {"redrive_unsettled": {(queue,): count for queue, count in unsettled.items()}}

    def problems(self) -> list[str]:
        """Why it should get no work; nothing if all is well."""
        running = self._app.connected
        return running.problems if running is not None else ["not connected"]

    def __repr__(self) -> str:
        return f"<Monitoring {self._app.name} consumers={len(self._specs)}>"
