"""The status of the embedded broker, which any client can get over AMQP from a queue of this name."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import msgspec

from redrive.client.connection import Connection
from redrive.inspection.management import snapshot_of_rows
from redrive.inspection.passive import server_of
from redrive.topology.snapshot import BrokerSnapshot
from redrive.wire.methods.basic import BasicGet

STATUS_QUEUE = "amq.redrive.inventory"


async def read_status(connection: Connection) -> BrokerSnapshot:
    """Return everything that the broker holds, up to date."""
    rows = await read_rows(connection)
    return snapshot_of_rows(server_of(connection), rows["exchanges"], rows["queues"], rows["bindings"])


async def read_rows(connection: Connection) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of its exchanges, queues and bindings, as RabbitMQ's management API has them."""
    channel = await (await connection.link()).channel()
    try:
        event = await channel.ask(BasicGet(queue=STATUS_QUEUE, no_ack=True))
    finally:
        channel.abandon()
    rows: dict[str, list[dict[str, Any]]] = msgspec.json.decode(event.body)
    return rows


class EmbeddedMonitor:
    """What a migration asks about the queues of the embedded broker."""

    lag = timedelta(0)

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def snapshot(self) -> BrokerSnapshot:
        return await read_status(self._connection)

    async def count_held(self, queue: str) -> int | None:
        return (await self.snapshot()).state(queue).unacknowledged

    async def consumers(self, queue: str) -> Sequence[str]:  # noqa: ARG002 - it reports no names
        return ()

    def __repr__(self) -> str:
        return f"<EmbeddedWatcher over {self._connection!r}>"
