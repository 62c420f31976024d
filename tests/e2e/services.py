"""The service that `redrive init shop` makes, and its processes, for tests."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from redrive.cli import main
from redrive.testing.processes import ServerFailed, ServerProcess, tail

ROOT = Path(__file__).parent.parent.parent
WITHIN = 90.0


def scaffold(folder: Path, name: str) -> Path:
    """A new service in a folder of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        made = CliRunner().invoke(main, ["init", name])
    assert made.exit_code == 0, made.output
    return folder / name


def environment_for(service: Path, **said: str) -> dict[str, str]:
    """Of a process of the service: it is importable, as Redrive is, and nothing of ours leads it anywhere."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith("REDRIVE_")}
    path = {"PYTHONPATH": f"{service}{os.pathsep}{ROOT / 'src'}", "PYTHONUNBUFFERED": "1"}
    return ours | path | said


def run(service: Path, *command: str, **said: str) -> subprocess.CompletedProcess[str]:
    """`python -m ...` in the service's folder, to a good end."""
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=service,
        env=environment_for(service, **said),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, f"{' '.join(command)}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


class Process:
    """`python -m ...`, and everything that it says."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self.log = log
        self._process = ServerProcess([sys.executable, "-m", *command], environment=environment, log=log)

    @property
    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def wait_for(self, text: str, count: int = 1) -> None:
        try:
            self._process.wait_until(lambda: self.said.count(text) >= count, timeout=WITHIN)
        except ServerFailed as error:
            raise AssertionError(f"no {text!r}: {error}\n{tail(self.log)}") from None

    def stop(self) -> int:
        """By SIGTERM, which it obeys; how it ended."""
        self._process.stop(signal.SIGTERM)
        return self._process.join()


@contextmanager
def running(command: Sequence[str], environment: Mapping[str, str], log: Path) -> Iterator[Process]:
    process = Process(command, environment, log)
    try:
        yield process
    finally:
        ended = process.stop()
    # uvicorn passes the signal on when it is done, so that whoever waits for the process knows why it ended.
    assert ended in (0, -signal.SIGTERM), tail(log)
    assert "Traceback" not in process.said, process.said
