"""`redrive demo`, as a process, as somebody sees it who has just installed it."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from redrive.cli.exit_codes import GUARDED

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
COMMAND = [sys.executable, "-m", "redrive", "demo"]
NOBODY = "amqp://127.0.0.1:1/"  # a broker that a demo must not look for


def environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "TMPDIR": str(folder), "REDRIVE_BROKER": NOBODY, "TERM": "xterm-256color", "COLUMNS": "160"}


def counts(text: str) -> dict[str, int]:
    """The summary, by the first words of its lines."""
    found = re.findall(
        r"^\s+(published|processed|retried|parked|re-driven|still dead|lost)\s+([\d,]+)", text, re.MULTILINE
    )
    return {name: int(count.replace(",", "")) for name, count in found}


def test_once_it_settles_the_account_and_leaves_nothing_behind(tmp_path: Path) -> None:
    command = [*COMMAND, "--once", "--seed", "7"]
    done = subprocess.run(command, env=environment(tmp_path), text=True, capture_output=True, timeout=180, check=False)

    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    told = counts(done.stdout)
    assert told["lost"] == 0
    assert told["published"] > 1000
    assert told["processed"] > told["published"]
    assert told["retried"] >= 2 * told["re-driven"] > 100
    assert told["parked"] == told["re-driven"] + told["still dead"]
    assert told["still dead"] > 0
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_in_use_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")

    command = [*COMMAND, "--once", "--data", str(tmp_path)]
    done = subprocess.run(command, env=environment(tmp_path), text=True, capture_output=True, timeout=60, check=False)

    assert done.returncode == 2
    assert "there is something in it already; name a new folder" in done.stderr
    assert [file.name for file in tmp_path.iterdir()] == ["mine"]


class Terminal:
    """A process in a terminal of its own."""

    def __init__(self, command: list[str], folder: Path) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 45, 160, 0, 0))
        self.process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, start_new_session=True, env=environment(folder)
        )
        os.close(slave)
        self._seen = b""

    @property
    def text(self) -> str:
        return _ESCAPES.sub("", self._seen.decode(errors="replace")).replace("\r", "")

    def read(self, seconds: float = 0.2) -> None:
        if select.select([self._master], [], [], seconds)[0]:
            try:
                self._seen += os.read(self._master, 65536)
            except OSError:  # nobody writes any more
                time.sleep(seconds)

    def until(self, pattern: str, within: float = 90) -> re.Match[str]:
        deadline = time.monotonic() + within
        while (found := re.search(pattern, self.text)) is None:
            assert time.monotonic() < deadline, self.text[-3000:]
            assert self.process.poll() is None, self.text[-3000:]
            self.read()
        return found

    def end(self) -> int:
        """Ctrl-C."""
        self.process.send_signal(signal.SIGINT)
        deadline = time.monotonic() + 90
        while self.process.poll() is None:
            assert time.monotonic() < deadline, self.text[-3000:]
            self.read()
        self.read()
        return self.process.returncode

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._master)


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    terminal = Terminal([*COMMAND, "--rate", "20", "--seed", "7"], tmp_path)
    yield terminal
    terminal.close()


def test_on_a_terminal_it_works_until_it_is_stopped(terminal: Terminal, tmp_path: Path) -> None:
    """Counters, a console to sign in to, commands that work, failures, and an account that is right."""
    link = terminal.until(r"\n(http://127\.0\.0\.1:\d+/sign-in/link/\S+)\n")[1]
    folder = terminal.until(r"unset REDRIVE_BROKER\n +export REDRIVE_DATA=(\S+)\n")[1]
    page = httpx.get(link, timeout=30)
    assert page.status_code == 200
    assert "sign" in page.text.lower()

    terminal.until(r"q\.extractor +\d+ +\d+ +\d+ +[1-9]\d*")  # the catalogue was away, and some were parked
    commands = re.findall(r"^  redrive (dlq .*)$", terminal.text, re.MULTILINE)[-3:]
    assert [command.split()[1] for command in commands] == ["groups", "peek", "redrive"]
    shell = {**os.environ, "REDRIVE_DATA": folder}
    for command in commands:
        words = [sys.executable, "-m", "redrive", *command.split(), *(["--yes"] if "--ramp" in command else [])]
        done = subprocess.Popen(words, env=shell, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        while done.poll() is None:
            terminal.read()
        assert done.communicate()[0]
        # A canary that stops itself is no mistake of the command's: the catalogue may be away again.
        assert done.returncode in ((0, GUARDED) if "--ramp" in command else (0,)), command
    terminal.until(r"re-driven [1-9]")

    assert terminal.end() == 0
    assert counts(terminal.text)["lost"] == 0
    assert list(tmp_path.iterdir()) == []
