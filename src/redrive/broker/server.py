"""Listens for clients and hands each a session."""

from __future__ import annotations

import asyncio
import ipaddress
from pathlib import Path
from typing import Self

from redrive.broker.broker import GUEST, Broker
from redrive.broker.session import Session
from redrive.errors import ConfigurationError, ReplyCode

BACKLOG = 1024


class BrokerServer:
    """A broker that clients can reach: `<BrokerServer amqp://127.0.0.1:5672/ sessions=3>`."""

    def __init__(self, broker: Broker, *, host: str = "127.0.0.1", port: int = 0, path: Path | None = None) -> None:
        if not _is_loopback(host) and broker.users == GUEST:
            raise ConfigurationError(
                f"listening on {host} lets others in: give the broker users of its own instead of guest, "
                "or listen on 127.0.0.1"
            )
        self.broker = broker
        self.host = host
        self.port = port
        self.path = path
        self._listeners: list[asyncio.Server] = []

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"amqp://{host}:{self.port}/"

    async def start(self) -> Self:
        loop = asyncio.get_running_loop()
        listener = await loop.create_server(self._welcome, self.host, self.port, backlog=BACKLOG)
        self.port = listener.sockets[0].getsockname()[1]
        self._listeners.append(listener)
        if self.path is not None:
            self._listeners.append(await loop.create_unix_server(self._welcome, self.path, backlog=BACKLOG))
        return self

    def _welcome(self) -> Session:
        return Session(self.broker)

    async def stop(self, *, within: float = 5.0) -> None:
        """No new clients, farewell to those there are, and everything on disk."""
        for listener in self._listeners:
            listener.close()
        sessions = list(self.broker.sessions)
        for session in sessions:
            session.close(ReplyCode.CONNECTION_FORCED, "CONNECTION_FORCED - broker forced connection closure")
        if sessions:
            await asyncio.wait([session.ended for session in sessions], timeout=within)
        for session in list(self.broker.sessions):
            session.abort()
        await asyncio.sleep(0)  # a socket that was aborted is closed in the loop's next turn
        await self.broker.close()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def __repr__(self) -> str:
        return f"<BrokerServer {self.url} sessions={len(self.broker.sessions)}>"


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
