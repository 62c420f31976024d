"""The console of the demo, in a thread of its own."""

from __future__ import annotations

import socket
import threading
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING

import uvicorn

from redrive.admin.access.roles import Principal, Role
from redrive.admin.api.application import Admin
from redrive.admin.context import AdminContext

if TYPE_CHECKING:
    from collections.abc import Iterator

    from redrive.app import App

_FRESH = 540.0  # seconds: an invitation lasts for ten minutes


class Website:
    def __init__(self, app: App, port: int) -> None:
        self._context = AdminContext.of(app, apart=False)
        self._listener = socket.create_server(("127.0.0.1", port))
        self.address = f"http://127.0.0.1:{self._listener.getsockname()[1]}/"
        self._invited = -_FRESH
        self._link = ""

    @property
    def link(self) -> str:
        """Return a link that signs in once."""
        if monotonic() - self._invited >= _FRESH:
            self._invited = monotonic()
            token = self._context.gate.sessions.invite(Principal("demo", Role.ADMIN))
            self._link = f"{self.address}sign-in/link/{token}"
        return self._link

    @contextmanager
    def open(self) -> Iterator[None]:
        config = uvicorn.Config(
            Admin(self._context), log_config=None, access_log=False, server_header=False, timeout_graceful_shutdown=2
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, args=([self._listener],), name="redrive-demo-console")
        thread.start()
        try:
            yield
        finally:
            server.should_exit = True
            thread.join()
