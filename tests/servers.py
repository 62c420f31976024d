"""The servers that all tests of one run share, and how each test gets its corner of them.

Under pytest-xdist a run is many processes: a controller and its workers. A shared server must start once, only when a
test needs it, and outlive the worker that needed it first, since workers end one by one. So the controller owns the
servers: it listens on a socket, workers ask for a server by name, and the first question starts it. Without xdist the
only process asks itself, in the same way.

The answer is the server's address, never the server: no test can stop what others are using.
"""

import dataclasses
import json
import os
import shutil
import socketserver
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from socket import AF_UNIX, socket
from typing import Any

from redrive.testing.installation import find_rabbitmq
from redrive.testing.processes import delete_at_exit
from redrive.testing.rabbitmq import Endpoint, RabbitMQ
from tests.support.postgres import Database, Postgres, find_postgres
from tests.support.tls import TLSEndpoint, TLSFiles, TLSRabbitMQ, make_certificates


def rabbitmq_root() -> Path | None:
    """The folder with the RabbitMQ to test against (make test-matrix sets it); None is the system's own."""
    chosen = os.environ.get("REDRIVE_RABBITMQ_ROOT", "")
    return Path(chosen).resolve() if chosen else None


def missing(server: str) -> str | None:
    """Why tests that need this server cannot run here, in one line; None when they can."""
    if server == "rabbitmq" and find_rabbitmq(rabbitmq_root()) is None:
        return f"no RabbitMQ in {rabbitmq_root() or 'this system'}: run tools/install_servers.sh"
    if server == "postgres" and find_postgres() is None:
        return "no PostgreSQL on this system: run tools/install_servers.sh"
    return None


def open_directory() -> Path:
    """A new folder others can pass through. As root, PostgreSQL runs as another user, and pytest's own are closed."""
    directory = Path(tempfile.mkdtemp(prefix="redrive-tests-"))
    directory.chmod(0o711)
    delete_at_exit(directory)
    return directory


class SharedServers:
    """The controller's side: owns the servers of the run and answers where they are."""

    def __init__(self) -> None:
        self.directory = open_directory()
        self.socket = self.directory / "socket"
        self._running: dict[str, RabbitMQ | Postgres] = {}
        self._answers: dict[str, dict[str, Any]] = {}
        self._one_at_a_time = threading.Lock()
        self._listener = _Listener(str(self.socket), _Question)
        self._listener.answer = self._answer
        threading.Thread(target=self._listener.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        """End and wipe everything. The run is over: nobody needs an orderly shutdown of throwaway data."""
        self._listener.shutdown()
        self._listener.server_close()
        for server in self._running.values():
            server.discard()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _answer(self, name: str) -> dict[str, Any]:
        """A server that failed to start is not tried again: every test that needs it hears the same reason."""
        with self._one_at_a_time:
            if name not in self._answers:
                try:
                    self._answers[name] = {"address": dataclasses.asdict(self._start(name))}
                except Exception as failure:
                    self._answers[name] = {"failure": str(failure)}
            return self._answers[name]

    def _start(self, name: str) -> RabbitMQ | Postgres:
        server = self._make(name)
        self._running[name] = server
        server.start()
        return server

    def _make(self, name: str) -> RabbitMQ | Postgres:
        match name:
            case "rabbitmq":
                return RabbitMQ(self.directory / name, name="shared", root=rabbitmq_root(), management=True)
            case "rabbitmq with TLS":
                return self._make_tls(self.directory / "tls")
            case "postgres":
                return Postgres(self.directory / name, fsync=False)
            case _:
                raise LookupError(f"no shared server is called {name}")

    @staticmethod
    def _make_tls(directory: Path) -> RabbitMQ:
        """Also lets a client log in by its certificate alone (EXTERNAL), as the user named in it: guest."""
        return TLSRabbitMQ(
            directory / "node",
            name="tls",
            root=rabbitmq_root(),
            plugins=["rabbitmq_auth_mechanism_ssl"],
            tls=make_certificates(directory / "certificates"),
            config="auth_mechanisms.1 = PLAIN\nauth_mechanisms.2 = EXTERNAL\nssl_cert_login_from = common_name",
        )


class _Listener(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    answer: Callable[[str], dict[str, Any]]


class _Question(socketserver.StreamRequestHandler):
    """One line with a server's name, answered by one line of JSON.

    A worker that asks for nothing is one that watches us: it gets no answer, and an end of the stream when we are gone.
    """

    server: _Listener

    def handle(self) -> None:
        name = self.rfile.readline().decode().strip()
        if not name:
            return
        answer = self.server.answer(name)
        self.wfile.write(json.dumps(answer, default=str).encode() + b"\n")


def shared_rabbitmq(run: Path) -> Endpoint:
    """Where the run's RabbitMQ node answers; started if this is the first test to ask."""
    address = _ask(run, "rabbitmq")
    address["version"] = tuple(address["version"])
    return Endpoint(**address)


def shared_tls_rabbitmq(run: Path) -> TLSEndpoint:
    """Where the run's RabbitMQ node with TLS answers; started if this is the first test to ask."""
    address = _ask(run, "rabbitmq with TLS")
    address["version"] = tuple(address["version"])
    address["tls"] = TLSFiles(**{file: Path(path) for file, path in address["tls"].items()})
    return TLSEndpoint(**address)


def shared_postgres(run: Path) -> Database:
    """Where the run's PostgreSQL answers; started if this is the first test to ask."""
    address = _ask(run, "postgres")
    address["binaries"] = Path(address["binaries"])
    return Database(**address)


def end_with(run: Path) -> None:
    """End this worker when its controller is gone, even if it was killed; xdist finishes the test at hand first."""
    connection = socket(AF_UNIX)
    connection.connect(str(run))

    def watch() -> None:
        connection.recv(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _ask(run: Path, name: str) -> dict[str, Any]:
    with socket(AF_UNIX) as connection:
        connection.connect(str(run))
        connection.sendall(name.encode() + b"\n")
        answer: dict[str, Any] = json.loads(connection.makefile().readline())
    if "failure" in answer:
        raise RuntimeError(answer["failure"])
    address: dict[str, Any] = answer["address"]
    return address
