"""A PostgreSQL server that belongs to a test: its own data, port, socket and password.

It listens on loopback and on a socket in its own directory. The superuser has a random password: a superuser may run
programs, and loopback is open to everyone on the machine.

PostgreSQL refuses to run as root, so root hands it over to another user, who must be able to reach the directory:
every folder above it needs the right to be passed through (`chmod o+x`).
"""

import contextlib
import os
import pwd
import secrets
import select
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from redrive.testing.ports import LOOPBACK, free_port
from redrive.testing.processes import PrivateServer, ServerFailed, ServerProcess, tail

_BINARIES = ("usr/lib/postgresql/*/bin", "usr/pgsql-*/bin", "opt/homebrew/opt/postgresql*/bin", "usr/local/bin")
_PROGRAMS = ("initdb", "postgres", "pg_isready", "createdb", "dropdb")
_SUPERUSER = "postgres"


def find_postgres() -> Path | None:
    """The folder with PostgreSQL's programs, of the newest version installed; None when missing."""
    folders = (
        folder for pattern in _BINARIES for folder in sorted(Path("/").glob(pattern), key=_version, reverse=True)
    )
    return next((folder for folder in folders if all((folder / name).exists() for name in _PROGRAMS)), None)


def _version(folder: Path) -> int:
    return int("".join(filter(str.isdigit, str(folder))) or 0)


@dataclass(eq=False, repr=False)
class Database:
    """The address of a running server: what a test may know of one that it shares."""

    port: int
    password: str
    binaries: Path

    @property
    def dsn(self) -> str:
        return self.dsn_for("postgres")

    @property
    def url(self) -> str:
        return self.url_for("postgres")

    def dsn_for(self, database: str) -> str:
        """For psycopg and `psql`."""
        return f"postgresql://{_SUPERUSER}:{self.password}@{LOOPBACK}:{self.port}/{database}"

    def url_for(self, database: str) -> str:
        """For SQLAlchemy."""
        return self.dsn_for(database).replace("postgresql://", "postgresql+psycopg://")

    def create_database(self, name: str) -> None:
        self._run("createdb", name)

    def drop_database(self, name: str) -> None:
        """Also while somebody is connected: the test that used it is over."""
        self._run("dropdb", "--force", name)

    def _run(self, program: str, *arguments: str) -> None:
        server = ["--host", LOOPBACK, "--port", str(self.port), "--username", _SUPERUSER]
        done = subprocess.run(
            [str(self.binaries / program), *server, *arguments],
            env={**_environment(), "PGPASSWORD": self.password},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{program} {' '.join(arguments)}: {done.stderr}")

    def __repr__(self) -> str:
        return f"<Database port={self.port}>"


class Postgres(PrivateServer, Database):
    """A private server: `<Postgres port=23456 RUNNING pid=4711>`.

    `fsync=False` makes it quicker. It then still survives its own death by `kill -9`, as the kernel has what was
    written, but not a power cut.
    """

    _ended_by = signal.SIGINT  # PostgreSQL's "fast" shutdown, which does not wait for clients to leave

    def __init__(self, directory: Path, *, fsync: bool = True) -> None:
        self.directory = directory.resolve()
        self.fsync = fsync
        self._user = _servant() if os.geteuid() == 0 else None
        binaries = find_postgres()
        if binaries is None:
            raise FileNotFoundError("no PostgreSQL on this machine: install postgresql")
        Database.__init__(self, port=free_port(), password=secrets.token_urlsafe(16), binaries=binaries)

    def start(self, *, timeout: float = 60) -> None:
        """Start the server and return when it accepts connections; the first time, make its data."""
        if self.running:
            raise RuntimeError(f"{self!r} is already running")
        try:
            if not (self._data / "PG_VERSION").exists():
                self._initialise()
            self._process = ServerProcess(self._command(), environment=_environment(), log=self.log, user=self._user)
            self._process.wait_until(self._accepts, timeout=timeout)
        except ServerFailed as failed:
            self.kill()
            logged = tail(self.log)
            raise ServerFailed(f"PostgreSQL did not start in {self.directory}: {failed}\n{logged}") from None

    def kill(self) -> None:
        """`kill -9` the server and its sessions; the next start recovers from the log."""
        if self._process is None:
            return
        sessions = list(_children(self._process.pid))
        self._process.kill()
        self._process = None
        # Sessions end when they notice; a server started before that would refuse to share the data with them.
        for session in sessions:
            _kill_and_wait(session)

    def __repr__(self) -> str:
        return f"<Postgres port={self.port} {self.state}>"

    @property
    def log(self) -> Path:
        return self.directory / "postgres.log"

    @property
    def _data(self) -> Path:
        return self.directory / "data"

    def _initialise(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        secret = self.directory / "password"
        secret.touch(0o600)
        secret.write_text(self.password)
        if self._user is not None:
            shutil.chown(self.directory, self._user, self._user)
            shutil.chown(secret, self._user, self._user)
        options = ["--username", _SUPERUSER, "--pwfile", str(secret), "--auth", "scram-sha-256"]
        unsafe = ["--no-sync"] if not self.fsync else []
        command = [str(self.binaries / "initdb"), "-D", str(self._data), "--encoding=UTF8", "--no-locale"]
        initdb = ServerProcess([*command, *options, *unsafe], environment=_environment(), log=self.log, user=self._user)
        if status := initdb.join():
            raise ServerFailed(f"initdb ended with status {status}")

    def _command(self) -> list[str]:
        settings = {
            "listen_addresses": LOOPBACK,
            "port": self.port,
            "unix_socket_directories": self.directory,
            "fsync": "on" if self.fsync else "off",
            "full_page_writes": "on" if self.fsync else "off",
            "max_connections": 200,
            # Kept in the data directory, not in /dev/shm, where a killed server would leave it for ever.
            "dynamic_shared_memory_type": "mmap",
        }
        options = [option for name, value in settings.items() for option in ("-c", f"{name}={value}")]
        return [str(self.binaries / "postgres"), "-D", str(self._data), *options]

    def _accepts(self) -> bool:
        probe = [str(self.binaries / "pg_isready"), "--quiet", "--host", LOOPBACK, "--port", str(self.port)]
        return subprocess.run(probe, check=False).returncode == 0


def _servant() -> str:
    """The user that root runs PostgreSQL as."""
    for user in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(user).pw_name
    raise RuntimeError("PostgreSQL cannot run as root, and this machine has neither a user postgres nor nobody")


def _environment() -> dict[str, str]:
    return {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "LC_ALL": "C"}


def _children(pid: int) -> Iterator[int]:
    with contextlib.suppress(OSError):
        yield from map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())


def _kill_and_wait(pid: int) -> None:
    """Wait through a pidfd: the process is not our child, and its number may be used again once it is gone."""
    with contextlib.suppress(ProcessLookupError):
        descriptor = os.pidfd_open(pid)
        try:
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            select.select([descriptor], [], [], 10)
        finally:
            os.close(descriptor)
