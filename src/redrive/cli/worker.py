"""`redrive worker`: handle the messages of an application until told to stop."""

from __future__ import annotations

import asyncio
import logging
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import click

from redrive.app import App, Running
from redrive.cli.exits import PARTIAL
from redrive.cli.signals import stop_on_signals
from redrive.cli.sources import explains_errors, load_app
from redrive.errors import ConfigurationError
from redrive.recovery.backoff import Backoff
from redrive.recovery.durations import duration

log = logging.getLogger("redrive.worker")

_WATCH = 0.3  # seconds between looks at children and files
_RESTARTS = Backoff(first=timedelta(milliseconds=500), ceiling=timedelta(seconds=30), jitter=0)


@click.command()
@click.argument("app")
@click.option(
    "--queues", "-q", multiple=True, help="Only the consumers of these queues; more than once, or with commas."
)
@click.option("--processes", "-p", default=1, show_default=True, help="How many worker processes.")
@click.option(
    "--drain", default="30s", show_default=True, help="How long to finish what is under way when told to stop."
)
@click.option("--relay", is_flag=True, help="Publish the rows of the outbox, too.")
@click.option("--reload", is_flag=True, help="Start again when a Python file here changes: for development.")
@explains_errors
def worker(app: str, queues: tuple[str, ...], processes: int, drain: str, relay: bool, reload: bool) -> None:
    """Handle the messages of APP (module:app).

    SIGTERM and SIGINT drain: no more messages are taken, what is being handled is finished and settled. A second
    signal quits at once; what was not settled comes back.
    """
    names = tuple(name for given in queues for name in given.split(",") if name)
    limit = duration(drain, "--drain")
    if processes < 1:
        raise ConfigurationError(f"--processes {processes}: want at least 1")
    if processes > 1 or reload:
        sys.exit(_Family([app, *_options(names, drain, relay)], processes, reload).run())
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    if not asyncio.run(_work(load_app(app), names, limit, relay)):
        sys.exit(PARTIAL)


def _options(queues: tuple[str, ...], drain: str, relay: bool) -> list[str]:
    return [*(f"--queues={name}" for name in queues), f"--drain={drain}", *(["--relay"] if relay else [])]


async def _work(app: App, queues: tuple[str, ...], limit: timedelta, relay: bool) -> bool:
    stop = stop_on_signals("draining; once more to quit at once")

    def ready(running: Running) -> None:
        consumers = ", ".join(spec.queue.name for spec in app.chosen(queues)) or "nothing"
        click.echo(f"{app.name} is working on {running.server}: {consumers}")

    return await app.work(stop=stop, queues=queues, within=limit, relay=relay, ready=ready)


class _Family:
    """Several worker processes, or one that is started again when the code changes."""

    def __init__(self, arguments: list[str], processes: int, reload: bool) -> None:
        self._command = [sys.executable, "-m", "redrive", "worker", *arguments]
        self._count = processes
        self._reload = reload
        self._children: list[subprocess.Popen[bytes]] = []
        self._signals = 0
        self._deaths = 0

    def run(self) -> int:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._signalled)
        seen = dict(_sources()) if self._reload else {}
        self._children = [self._spawn() for _ in range(self._count)]
        while not self._signals:
            time.sleep(_WATCH)
            self._revive()
            if self._reload and (now := dict(_sources())) != seen:
                seen = now
                click.echo("redrive: the code changed, starting again", err=True)
                self._end_children()
                self._children = [self._spawn() for _ in range(self._count)]
        return max((abs(child.wait()) for child in self._children), default=0)

    def _spawn(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self._command, start_new_session=True)

    def _revive(self) -> None:
        for place, child in enumerate(self._children):
            if child.poll() is not None and not self._signals:
                self._deaths += 1
                pause = _RESTARTS.delay(self._deaths, 0).total_seconds()
                click.echo(f"redrive: a worker ended with {child.returncode}; another one in {pause:g} s", err=True)
                time.sleep(pause)
                self._children[place] = self._spawn()

    def _end_children(self) -> None:
        for child in self._children:
            child.terminate()
        for child in self._children:
            child.wait()

    def _signalled(self, number: int, _: object) -> None:
        self._signals += 1
        for child in self._children:
            if child.poll() is None:
                child.send_signal(number)


def _sources() -> Iterator[tuple[Path, float]]:
    for path in Path.cwd().rglob("*.py"):
        if not any(part.startswith(".") for part in path.relative_to(Path.cwd()).parts):
            try:
                yield path, path.stat().st_mtime
            except OSError:
                continue
