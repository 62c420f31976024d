"""Our end of `prepared.py`: where programs come from that begin at once, and how they are waited for."""

from __future__ import annotations

import atexit
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

from redrive.testing.processes import ServerFailed

_POLL = 0.02
_PREPARED = re.compile(r"(redrive|python (-m examples\.|-c |\S+\.py\b))")
_SHELL = re.compile(r"[|<>&;`$*]")


def words_of(text: str) -> list[str] | None:
    """The words of a command that can be had from here; None: it is for a shell, or another program."""
    quoted = re.sub(r"'[^']*'", "", text)
    return shlex.split(text, comments=True) if _PREPARED.match(text) and not _SHELL.search(quoted) else None


class Child:
    """A program that was started: a `ServerProcess`, as far as a page needs one."""

    def __init__(self, nursery: Nursery, pid: int) -> None:
        self._nursery = nursery
        self.pid = pid
        self._status: int | None = None

    @property
    def running(self) -> bool:
        if self._status is None:
            self._status = self._nursery.ask("poll", pid=self.pid)
        return self._status is None

    def join(self) -> int:
        if self._status is None:
            self._status = int(self._nursery.ask("wait", pid=self.pid))
        return self._status

    def wait_until(self, ready: Callable[[], bool], *, timeout: float) -> None:
        """Return when `ready()`; raise `ServerFailed` when it ends first or takes too long."""
        deadline = time.monotonic() + timeout
        while not ready():
            if not self.running:
                raise ServerFailed(f"it ended with status {self._status}")
            if time.monotonic() > deadline:
                raise ServerFailed(f"it was not ready after {timeout:.0f} s")
            time.sleep(_POLL)

    def ended_within(self, timeout: float) -> bool:
        deadline = time.monotonic() + timeout
        while self.running and time.monotonic() < deadline:
            time.sleep(_POLL)
        return not self.running

    def stop(self, how: signal.Signals = signal.SIGTERM, *, timeout: float = 60) -> None:
        if self.running:
            os.kill(self.pid, how)
        if not self.ended_within(timeout):
            os.killpg(self.pid, signal.SIGKILL)
        self.join()


class Nursery:
    def __init__(self, environment: Mapping[str, str]) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("prepared.py")), str(theirs.fileno())],
            env=environment,
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
        )
        theirs.close()
        atexit.register(self._close)

    def start(
        self,
        words: list[str],
        folder: Path,
        environment: Mapping[str, str],
        files: tuple[int, int, int],
        *,
        terminal: bool = False,
    ) -> Child:
        order = {"words": words, "folder": str(folder), "environment": dict(environment), "terminal": terminal}
        return Child(self, int(self.ask("start", files, **order)))

    def run(
        self, words: list[str], folder: Path, environment: Mapping[str, str], *, within: float
    ) -> subprocess.CompletedProcess[str]:
        """To its end, which comes within that time or by force."""
        output = folder / ".said"
        with ExitStack() as stack:
            nothing = stack.enter_context(open(os.devnull))
            said = stack.enter_context(output.open("wb"))
            child = self.start(words, folder, environment, (nothing.fileno(), said.fileno(), said.fileno()))
            if not child.ended_within(within):
                child.stop(signal.SIGKILL)
        return subprocess.CompletedProcess(words, child.join(), output.read_text(errors="replace"))

    def ask(self, do: str, files: tuple[int, ...] = (), **order: Any) -> Any:
        packet = json.dumps({"do": do, **order}).encode()
        socket.send_fds(self._socket, [packet], files) if files else self._socket.send(packet)
        return json.loads(self._socket.recv(1 << 16))

    def _close(self) -> None:
        self._socket.close()
        self._process.wait()


@cache
def nursery() -> Nursery:
    from docs.running import environment

    return Nursery(environment())
