"""Watch a broker for a migration: what it holds, and who has which of its messages in hands."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from urllib.parse import quote

from redrive.client.connection import Connection
from redrive.client.inventory import read_inventory
from redrive.client.management import Management
from redrive.topology.survey import Survey

# A queue tells its figures every five seconds, and these are collected every five seconds: up to ten were measured, on
# 3.10, 4.0 and 4.3 alike. A broker with another `collect_statistics_interval` needs twice that.
LAG = timedelta(seconds=11)

# A queue has messages that nobody can take: delivered, dead and not yet accepted elsewhere, held back for a retry.
_HELD = ("messages_unacknowledged", "messages_dlx", "messages_delayed")


class ManagementWatcher:
    """Over RabbitMQ's management API."""

    def __init__(self, management: Management, vhost: str, *, lag: timedelta = LAG) -> None:
        self.lag = lag
        self._management = management
        self._vhost = vhost

    async def survey(self) -> Survey:
        return await self._management.survey(self._vhost)

    async def held(self, queue: str) -> int | None:
        row = await self._row(queue)
        figures = [figure for name in _HELD if isinstance(figure := row.get(name), int)]
        return sum(figures) if figures else None

    async def consumers(self, queue: str) -> Sequence[str]:
        details = (await self._row(queue)).get("consumer_details", ())
        channels = [consumer.get("channel_details") or {} for consumer in details]
        return tuple(f"{channel.get('user', '?')} at {channel.get('connection_name', '?')}" for channel in channels)

    async def _row(self, queue: str) -> dict[str, Any]:
        row: dict[str, Any] = await self._management.get(
            f"/queues/{quote(self._vhost, safe='')}/{quote(queue, safe='')}"
        )
        return row

    def __repr__(self) -> str:
        return f"<ManagementWatcher of {self._vhost} over {self._management}>"


class InventoryWatcher:
    """Over the embedded broker's inventory, which is always up to date."""

    lag = timedelta(0)

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def survey(self) -> Survey:
        return await read_inventory(self._connection)

    async def held(self, queue: str) -> int | None:
        return (await self.survey()).state(queue).unacknowledged

    async def consumers(self, queue: str) -> Sequence[str]:  # noqa: ARG002 - it knows no names
        return ()

    def __repr__(self) -> str:
        return f"<InventoryWatcher over {self._connection!r}>"
