"""Server processes that tests own: started, watched, ended by pid, never left behind.

Each server leads a session of its own, so that the Ctrl-C of an impatient developer reaches pytest and not the broker
under it, and pytest can end the broker in order. What remains when this process ends, in whatever way, is killed by
the reaper (see `reaper.py`).
"""

import atexit
import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path

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
