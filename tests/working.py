"""Run an application's consumers in a test, and wait for what they tell."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

from redrive import App
from redrive.client import Connection
from redrive.connected_app import ConnectedApp
from redrive.protocol.messages import Delivery
from redrive.testing.recorder import Recorder


@asynccontextmanager
async def working(app: App, *, within: float = 10) -> AsyncIterator[tuple[ConnectedApp, Recorder]]:
    """The consumers of an application at work, and drained at the end."""
    watcher = Recorder()
    app.observers.append(watcher)
    async with app.connect() as running:
        worker = running.worker(app.select_consumers(()))
        app._connected = running
        await worker.start()
        try:
            yield running, watcher
        finally:
            await worker.stop(timedelta(seconds=within))
            app._connected = None


async def take(connection: Connection, queue: str, within: float = 10) -> Delivery:
    """Wait for one message of a queue, and acknowledge it."""
    async with asyncio.timeout(within), await connection.consume(queue, prefetch=1) as consumer:
        async for delivery in consumer:
            delivery.properties  # noqa: B018 - decoded while it is here
            delivery.ack()
            return delivery
    raise AssertionError


async def depth(connection: Connection, queue: str) -> int:
    return (await connection.queue_info(queue)).messages
