"""The listener in the API's own process: who makes the XML where there is no worker.

| transport | worker.enabled | the XML is made by                                                              |
|-----------|----------------|---------------------------------------------------------------------------------|
| LOCAL     | false          | the listener, from the broker in the API's own process                          |
| RABBIT    | false          | the listener, from RabbitMQ's queue                                             |
| RABBIT    | true           | the worker; the listener is off                                                 |
| LOCAL     | true           | nobody, so that is refused (`settings`)                                         |

It is the worker's own function on the worker's own queue, with the worker's inbox: even where both are on, each event
is handled by one of them.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from redrive import App
from redrive.integrations.fastapi import Lifespan, lifespan

log = logging.getLogger("sagnus.nfe")


class NfeEmitidaToXmlListener:
    def __init__(self, app: App, *, worker_enabled: bool) -> None:
        self.app = app
        self.enabled = not worker_enabled

    def lifespan(self) -> Lifespan:
        """For an API on its own. When the listener is off it needs no broker: what it publishes goes to the outbox."""
        return lifespan(self.app, connect=False, work=self.enabled, within=self.tell)

    @asynccontextmanager
    async def tell(self, _: FastAPI) -> AsyncIterator[None]:
        if self.enabled:
            log.info("NfeEmitidaToXmlListener is on: this process makes the XML (%s)", self.app.transport)
        else:
            log.info("NfeEmitidaToXmlListener is off: sagnus.nfe.worker.enabled=true, the worker makes the XML")
        yield
