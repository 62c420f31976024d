"""A service that the pipeline depends on, over a socket. Sometimes it is unavailable."""

from __future__ import annotations

import asyncio
import json
from typing import Any

HOST = "127.0.0.1"


class Catalogue:
    """A server that can be stopped, and started again on the same port."""

    def __init__(self) -> None:
        self.port = 0
        self.entries: dict[str, Any] = {}
        self._server: asyncio.Server | None = None

    @property
    def is_up(self) -> bool:
        return self._server is not None

    async def up(self) -> None:
        self._server = await asyncio.start_server(self._serve, HOST, self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def down(self) -> None:
        """Stop listening: connections are refused by the operating system."""
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()
            self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        entry = json.loads(await reader.readline())
        self.entries[entry["file"]] = entry
        writer.write(b"entered\n")
        await writer.drain()
        writer.close()


async def enter(port: int, entry: dict[str, Any]) -> None:
    """Connect, send an entry, and wait for the answer."""
    async with asyncio.timeout(2):
        reader, writer = await asyncio.open_connection(HOST, port)
        try:
            writer.write(json.dumps(entry).encode() + b"\n")
            if await reader.readline() != b"entered\n":
                raise ConnectionError("the catalogue did not answer")
        finally:
            writer.close()
