"""A network that breaks on demand, between a client and a server.

    async with FaultProxy(amqp_url) as network:
        connection = await connect(network.url)
        network.cut()

Each way a network fails is one method: connections reset (`cut`), a cable pulled out so that nothing arrives and nobody
is told (`stall`), a server that is not there (`refuse`), slow lines (`delay`), a stream that ends in the middle of a
frame (`truncate_after`). Directions are named after where the bytes go. The proxy understands no AMQP; it works for TLS
and PostgreSQL as well. In front of several servers that are one it is a balancer: a client gets the first that answers.
"""

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable
from datetime import timedelta
from types import TracebackType
from typing import Literal, Self
from urllib.parse import urlsplit, urlunsplit

from redrive.testing.ports import LOOPBACK, free_port

Direction = Literal["client", "server"]

_CHUNK = 65_536
# Linger for zero seconds: closing then sends a reset, not the polite end of a stream.
_RESET = struct.pack("ii", 1, 0)


class FaultProxy:
    """A TCP proxy in front of the server of `target`: `<FaultProxy port=20001 ACCEPTING connections=2/5>`."""

    def __init__(self, target: str, *others: str) -> None:
        self._target = urlsplit(target)
        self._servers = [_address(url) for url in (target, *others)]
        self.port = free_port()
        self.delay = timedelta(0)
        self.accepted = 0
        self._listener: asyncio.Server | None = None
        self._links: set[_Link] = set()
        self._changed = asyncio.Event()
        self._flowing: dict[Direction, asyncio.Event] = {"client": asyncio.Event(), "server": asyncio.Event()}
        self._budget: dict[Direction, int | None] = {"client": None, "server": None}
        self.resume()

    @property
    def url(self) -> str:
        """The target's URL with the proxy in place of the server."""
        login, at, _ = self._target.netloc.rpartition("@")
        # The name stays, since a certificate is for a name; only names of this very machine can be served here.
        host = "localhost" if self._target.hostname == "localhost" else LOOPBACK
        return urlunsplit(self._target._replace(netloc=f"{login}{at}{host}:{self.port}"))

    @property
    def connections(self) -> int:
        """How many clients are connected now."""
        return len(self._links)

    async def wait_for(self, condition: Callable[["FaultProxy"], bool]) -> None:
        """Wait until `condition(proxy)` holds, looking whenever a connection comes or goes."""
        while not condition(self):
            self._changed.clear()
            await self._changed.wait()

    # -- faults ---------------------------------------------------------------------------------------------

    def cut(self) -> None:
        """Reset all connections now, in both directions. New ones are served."""
        for link in tuple(self._links):
            link.reset()

    def stall(self, to: Direction | None = None) -> None:
        """Forward nothing, not even the end of a stream, to one side or to both, until `resume()`.

        Everything stays open and new connections are accepted: the peer has vanished without a word.
        """
        for direction in self._directions(to):
            self._flowing[direction].clear()

    def resume(self, to: Direction | None = None) -> None:
        """Forward again, beginning with what was held back."""
        for direction in self._directions(to):
            self._flowing[direction].set()

    def refuse(self) -> None:
        """Stop listening: new connections are refused, those there are go on."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    async def accept(self) -> None:
        """Listen (again), on the same port."""
        if self._listener is None:
            self._listener = await asyncio.start_server(self._welcome, LOOPBACK, self.port)

    def truncate_after(self, size: int, to: Direction) -> None:
        """Forward `size` more bytes to one side and then end the stream, in the middle of whatever it was. Once."""
        self._budget[to] = size

    # -- life -----------------------------------------------------------------------------------------------

    async def close(self) -> None:
        self.refuse()
        self.cut()
        self.resume()
        await self.wait_for(lambda proxy: proxy.connections == 0)

    async def __aenter__(self) -> Self:
        await self.accept()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        state = "REFUSING" if self._listener is None else "ACCEPTING"
        if not all(event.is_set() for event in self._flowing.values()):
            state += " STALLED"
        return f"<FaultProxy port={self.port} {state} connections={self.connections}/{self.accepted}>"

    # -- forwarding -----------------------------------------------------------------------------------------

    def _welcome(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = _Link(reader, writer)
        # A task of our own: asyncio logs an error for each connection handler of its own that is cancelled.
        link.task = asyncio.create_task(self._join(link))
        self._links.add(link)
        self.accepted += 1
        self._changed.set()

    async def _join(self, link: "_Link") -> None:
        try:
            # The server is called only when bytes may reach it, so a stalled proxy accepts and keeps silent.
            await self._flowing["server"].wait()
            from_server, to_server = await self._call_server()
            link.writers.append(to_server)
            async with asyncio.TaskGroup() as pumps:
                pumps.create_task(self._pump(link.from_client, to_server, "server"))
                pumps.create_task(self._pump(from_server, link.to_client, "client"))
        except* OSError:
            pass  # one side is gone; so is, now, the other
        finally:
            link.abort()
            self._links.discard(link)
            self._changed.set()

    async def _call_server(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """The next in turn that answers."""
        for _ in self._servers[1:]:
            server = self._servers[0]
            self._servers.append(self._servers.pop(0))
            with contextlib.suppress(OSError):
                return await asyncio.open_connection(*server)
        return await asyncio.open_connection(*self._servers[0])

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, to: Direction) -> None:
        """Forward one direction up to its end. The delay holds up each read in turn: a slow line is also narrow."""
        ended = False
        while not ended:
            chunk = await source.read(_CHUNK)
            if self.delay:
                await asyncio.sleep(self.delay.total_seconds())
            await self._flowing[to].wait()
            passed, ended = self._spend(to, chunk)
            sink.write(passed)
            await sink.drain()
        sink.write_eof()

    def _spend(self, to: Direction, chunk: bytes) -> tuple[bytes, bool]:
        """What of a chunk may pass, and whether the stream ends there."""
        budget = self._budget[to]
        if budget is None or len(chunk) < budget:
            self._budget[to] = None if budget is None else budget - len(chunk)
            return chunk, not chunk
        self._budget[to] = None
        return chunk[:budget], True

    @staticmethod
    def _directions(to: Direction | None) -> tuple[Direction, ...]:
        return ("client", "server") if to is None else (to,)


def _address(url: str) -> tuple[str, int]:
    address = urlsplit(url)
    if address.hostname is None or address.port is None:
        raise ValueError(f"the proxy needs a URL with a host and a port, not {url!r}")
    return address.hostname, address.port


class _Link:
    """One client's connection with the one to the server behind it, and the task that joins them."""

    def __init__(self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        self.from_client = from_client
        self.to_client = to_client
        self.writers = [to_client]
        self.task: asyncio.Task[None] | None = None

    def reset(self) -> None:
        self.abort()
        if self.task is not None:
            self.task.cancel()

    def abort(self) -> None:
        for writer in self.writers:
            if not writer.transport.is_closing():
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                writer.transport.abort()
