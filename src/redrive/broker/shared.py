"""One data folder, one broker, any number of processes: the first hosts it and the others find it.

    async with SharedBroker(Path(".redrive")) as broker:
        connection = await Connection(broker.url).open()

Whoever gets the folder's lock hosts the broker and writes its address beside the data; everybody else reads the
address and connects there. The address has a random password: a user who cannot read the folder cannot connect. When
the host ends, the lock is free: one of the others takes it, opens the same data and listens on the same port, with the
same password, and the clients of all of them reconnect to where they were.

    states:  hosting    this process has the lock, the data and the listener
             guest      another one has; this one waits for the lock
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Self

from redrive.broker.broker import Broker
from redrive.broker.dialect import LATEST, Dialect
from redrive.broker.server import BrokerServer
from redrive.broker.storage.sqlite import SQLiteJournal
from redrive.errors import ConnectionFailed, DirectoryInUse, StorageError

log = logging.getLogger("redrive.broker")

_USER = "guest"  # with a password that nobody guesses
_POLL = 0.2  # seconds between a guest's looks at the lock
_ADDRESS_WITHIN = 10.0  # seconds from taking the lock to listening; then whoever has the lock is not a host


class SharedBroker:
    """The embedded broker of a data folder, shared by all processes that use the folder."""

    def __init__(self, directory: Path, *, dialect: Dialect = LATEST) -> None:
        self.directory = directory
        self._dialect = dialect
        self._address = directory / "broker.address"
        self._server: BrokerServer | None = None
        self._port = 0
        self._password = ""
        self._watch: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None

    @property
    def hosting(self) -> bool:
        """Return whether this process hosts the broker."""
        return self._server is not None

    @property
    def url(self) -> str:
        """Return the broker's URL."""
        return f"amqp://{_USER}:{self._password}@127.0.0.1:{self._port}/"

    async def __aenter__(self) -> Self:
        deadline = asyncio.get_running_loop().time() + _ADDRESS_WITHIN
        while not await self._host() and not await self._find_host():
            if asyncio.get_running_loop().time() > deadline:
                raise ConnectionFailed(f"{self.directory} is in use, but nobody serves it: who holds broker.lock?")
            await asyncio.sleep(_POLL / 4)
        if not self.hosting:
            self._watch = asyncio.create_task(self._take_over(), name="redrive-broker-guest")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        if self._server is not None:
            await self._server.stop()
            self._server = None

    async def _host(self) -> bool:
        """Take the lock and serve, or find that somebody else does."""
        try:
            journal = SQLiteJournal(self.directory, on_failure=self._on_journal_failure)
        except DirectoryInUse:
            return False
        try:
            server = await self._serve(journal)
        except BaseException:
            with suppress(StorageError):
                await journal.close()  # and with it the lock: whoever can may try
            raise
        self._server, self._port = server, server.port
        self._write_address()
        return True

    async def _serve(self, journal: SQLiteJournal) -> BrokerServer:
        port, password = self._last_address()
        self._password = self._password or password or secrets.token_urlsafe(24)  # clients go on with the one they have
        users = {_USER: self._password}
        server = BrokerServer(Broker(journal=journal, dialect=self._dialect, users=users), port=port)
        try:
            return await server.start()
        except OSError:  # somebody else listens there now
            server.port = 0
            return await server.start()

    def _on_journal_failure(self, failure: StorageError) -> None:
        """The disk did not take it: say goodbye to everybody rather than confirm what is not kept."""
        log.critical("the broker in %s ends: %s", self.directory, failure)
        if self._server is not None:
            self._ending = asyncio.create_task(self._stop_server(self._server), name="redrive-broker-ends")

    async def _stop_server(self, server: BrokerServer) -> None:
        self._server = None
        with suppress(StorageError):
            await server.stop()

    async def _find_host(self) -> bool:
        """Is somebody at the address that the folder names?"""
        self._port, self._password = self._last_address()
        if not self._port or not self._password:
            return False
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError:
            return False
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
        return True

    async def _take_over(self) -> None:
        """Wait for the host to end, and be the next one; or wait on, if another guest was quicker, or if the folder is
        in no state to be hosted: an operator may fix it.
        """
        told = ""
        while not self.hosting:
            try:
                await self._host()
            except (StorageError, OSError) as error:
                if str(error) != told:
                    log.critical("nobody hosts the broker in %s, and this process cannot: %s", self.directory, error)
                told = str(error)
            if not self.hosting:
                await asyncio.sleep(_POLL)  # the kernel has no event for a lock that is free
        log.warning("the process that hosted the broker in %s ended; this one hosts it now", self.directory)

    def _last_address(self) -> tuple[int, str]:
        """Return the port and the password of the last host; 0 and nothing if there was none."""
        with suppress(OSError, ValueError, KeyError, TypeError):
            written = json.loads(self._address.read_text())
            return int(written["port"]), str(written.get("password", ""))
        return 0, ""

    def _write_address(self) -> None:
        beside = self._address.with_suffix(".new")
        beside.unlink(missing_ok=True)
        with open(beside, "x", opener=_open_private) as file:
            json.dump({"port": self._port, "pid": os.getpid(), "password": self._password}, file)
        beside.replace(self._address)

    def __repr__(self) -> str:
        return f"<SharedBroker {self.directory} {'hosting' if self.hosting else 'guest'} port {self._port}>"


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
