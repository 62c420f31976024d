"""Listens for clients and hands each a session: on a TCP port, on a Unix socket, or on both.

A Unix socket is a file. Only its owner may connect (mode 0600), and it is deleted when the broker stops. One that a
killed broker left behind is replaced; one at which somebody answers is not, nor is a file of another kind.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import socket
from contextlib import suppress
from pathlib import Path
from typing import Self

from redrive.broker.broker import GUEST, Broker
from redrive.broker.session import Session
from redrive.errors import ConfigurationError, ReplyCode

BACKLOG = 1024


class BrokerServer:
    """A broker that clients can reach: `<BrokerServer amqp://127.0.0.1:5672/ sessions=3>`. No host: no TCP."""

    def __init__(
        self, broker: Broker, *, host: str | None = "127.0.0.1", port: int = 0, path: Path | None = None
    ) -> None:
        if host is None and path is None:
            raise ConfigurationError("a broker listens on a host, on a path, or on both")
        if host is not None and not _is_loopback(host) and (broker.users == GUEST or "" in broker.users.values()):
            raise ConfigurationError(
                f"listening on {host} lets others in: give the broker users with passwords instead of guest, "
                "or listen on 127.0.0.1"
            )
        self.broker = broker
        self.host = host
        self.port = port
        self.path = path
        self._listeners: list[asyncio.Server] = []
        self._socket_file: tuple[int, int] | None = None  # which file on the disk the Unix socket is

    @property
    def url(self) -> str:
        """Where it listens on TCP."""
        host = f"[{self.host}]" if ":" in (self.host or "") else self.host
        return f"amqp://{host}:{self.port}/"

    @property
    def addresses(self) -> list[str]:
        tcp = [self.url] if self.host is not None else []
        return tcp + ([f"unix:{self.path}"] if self.path is not None else [])

    async def start(self) -> Self:
        try:
            if self.host is not None:
                await self._listen_on_tcp(self.host)
            if self.path is not None:
                await self._listen_on_file(self.path)
        except BaseException:
            self._stop_listening()
            raise
        return self

    async def _listen_on_tcp(self, host: str) -> None:
        loop = asyncio.get_running_loop()
        listener = await loop.create_server(self._new_session, host, self.port, backlog=BACKLOG)
        self.port = listener.sockets[0].getsockname()[1]
        self._listeners.append(listener)

    async def _listen_on_file(self, path: Path) -> None:
        bound = _bind(path)
        self._socket_file = _file_identity(path)
        listener = await asyncio.get_running_loop().create_unix_server(self._new_session, sock=bound, backlog=BACKLOG)
        self._listeners.append(listener)

    def _stop_listening(self) -> None:
        for listener in self._listeners:
            listener.close()
        if self.path is not None and self._socket_file is not None and _file_identity(self.path) == self._socket_file:
            self.path.unlink()
        self._socket_file = None

    def _new_session(self) -> Session:
        return Session(self.broker)

    async def stop(self, *, within: float = 5.0) -> None:
        """No new clients, farewell to those there are, and everything on disk."""
        self._stop_listening()
        sessions = list(self.broker.sessions)
        for session in sessions:  # all of them first, or what one gives back would be handed to the next
            session.stop_delivering()
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
        return f"<BrokerServer {' '.join(self.addresses)} sessions={len(self.broker.sessions)}>"


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _bind(path: Path) -> socket.socket:
    """A Unix socket at this path. Nobody can connect before its mode is right, since it does not listen yet."""
    _remove_stale_socket(path)
    bound = socket.socket(socket.AF_UNIX)
    try:
        bound.bind(str(path))
        path.chmod(0o600)
    except OSError as error:
        bound.close()
        raise OSError(error.errno, error.strerror or str(error), str(path)) from None
    return bound


def _remove_stale_socket(path: Path) -> None:
    """Remove the socket that a dead process left behind. What is anything else stays, and is in the way."""
    if not path.exists():
        return
    if not path.is_socket():
        raise OSError(errno.EEXIST, "there is a file that is not a socket", str(path))
    with socket.socket(socket.AF_UNIX) as visitor:
        visitor.setblocking(False)
        try:
            visitor.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
        except BlockingIOError:
            pass  # so many are waiting to be let in that somebody must be there
    raise OSError(errno.EADDRINUSE, "another process is listening there", str(path))


def _file_identity(path: Path) -> tuple[int, int] | None:
    with suppress(OSError):
        found = path.stat()
        return found.st_dev, found.st_ino
    return None
