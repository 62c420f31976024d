"""Server processes that tests own: started, watched, ended by pid, never left behind.

Each server leads a session of its own, so that the Ctrl-C of an impatient developer reaches pytest and not the broker
under it, and pytest can end the broker in order. What remains when this process ends, in whatever way, is killed by
the reaper (see `reaper.py`).
"""

import atexit
import contextlib
import shutil
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

_POLL = 0.02
# Enough for an Erlang crash report, which comes after its cause and is long.
_TAIL = 16_000


class ServerFailed(RuntimeError):
    """A server did not start or ended by itself. The message ends with what the server logged."""


class ServerProcess:
    """One running server: `<ServerProcess 4711 RUNNING>`."""

    def __init__(
        self, command: Sequence[str], *, environment: Mapping[str, str], log: Path, user: str | None = None
    ) -> None:
        self.log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                command,
                env=environment,
                cwd=log.parent,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                user=user,
                group=user,
                extra_groups=None if user is None else [],
            )
        _reaper().watch(self.pid)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def wait_until(self, ready: Callable[[], bool], *, timeout: float) -> None:
        """Return when `ready()`; raise `ServerFailed` when the server ends first or takes too long."""
        deadline = time.monotonic() + timeout
        while not ready():
            if not self.running:
                raise ServerFailed(f"it ended with status {self._process.returncode}")
            if time.monotonic() > deadline:
                raise ServerFailed(f"it was not ready after {timeout:.0f} s")
            time.sleep(_POLL)

    def stop(self, with_signal: signal.Signals = signal.SIGTERM, *, timeout: float = 60) -> None:
        """Ask for an orderly end; a server that does not obey in time is killed."""
        if self.running:
            self._process.send_signal(with_signal)
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._waited_for()

    def join(self) -> int:
        """Wait for a program that ends by itself and return its exit status."""
        self._waited_for()
        return self._process.returncode

    def kill(self) -> None:
        """`kill -9`, and wait until the process is gone."""
        self._process.kill()
        self._waited_for()

    def _waited_for(self) -> None:
        self._process.wait()
        _reaper().forget(self.pid)

    def __repr__(self) -> str:
        return f"<ServerProcess {self.pid} {'RUNNING' if self.running else 'ENDED'}>"


class Throwaway(ABC):
    """As a context manager it is started on entry and thrown away, data and all, on exit."""

    @abstractmethod
    def start(self) -> None:
        """Return when it serves. Data of an earlier life are still there."""

    @abstractmethod
    def discard(self) -> None:
        """End it without ceremony and delete all that it stored."""

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.discard()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.discard()


class PrivateServer(Throwaway):
    """One process, and a directory of its own."""

    directory: Path
    _process: ServerProcess | None = None
    _ended_by: ClassVar[signal.Signals] = signal.SIGTERM  # in order

    @property
    def running(self) -> bool:
        """Return whether the server's process is alive."""
        return self._process is not None and self._process.running

    @property
    def pid(self) -> int | None:
        """The process id of the server."""
        return self._process.pid if self._process is not None and self._process.running else None

    @property
    def state(self) -> str:
        """Return whether the server runs, was stopped, or was killed."""
        return f"RUNNING pid={self.pid}" if self.running else "DOWN"

    def stop(self) -> None:
        """Shut down in order, as an operator does it."""
        if self._process is not None:
            self._process.stop(self._ended_by)
            self._process = None

    def kill(self) -> None:
        """`kill -9`: what a power cut does to it, except that the kernel keeps what was written."""
        if self._process is not None:
            self._process.kill()
            self._process = None

    def restart(self) -> None:
        """Stop the server and start it again, with its data."""
        self.stop()
        self.start()

    def discard(self) -> None:
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)


def delete_at_exit(directory: Path) -> None:
    """Delete a folder when this process is gone, if nobody has done so before."""
    _reaper().delete(directory)


def tail(*logs: Path) -> str:
    """The last lines of each log that exists, for an error message."""
    parts = (f"--- {log.name}\n{log.read_text(errors='replace')[-_TAIL:]}" for log in logs if log.exists())
    return "\n".join(parts)


class _Reaper:
    """Our end of the pipe to `reaper.py`."""

    def __init__(self) -> None:
        # -I -S: the reaper needs nothing but the standard library and should be up at once.
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(__file__).with_name("reaper.py"))],
            stdin=subprocess.PIPE,
            start_new_session=True,
            cwd="/",
            text=True,
            bufsize=1,
        )
        atexit.register(self._close)

    def watch(self, pid: int) -> None:
        self._tell(f"+{pid}\n")

    def forget(self, pid: int) -> None:
        self._tell(f"-{pid}\n")

    def delete(self, directory: Path) -> None:
        self._tell(f"{directory.resolve()}\n")

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line)

    def _close(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()


@cache
def _reaper() -> _Reaper:
    return _Reaper()
