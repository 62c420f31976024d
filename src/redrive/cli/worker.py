"""`redrive worker`: handle the messages of an application until told to stop."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from math import inf
from pathlib import Path
from typing import NoReturn

import click

from redrive.app import App
from redrive.cli.exit_codes import PARTIAL, stop_on_signals
from redrive.cli.health_pages import health_options, serve_health
from redrive.cli.loading import load_app
from redrive.cli.options import log_options
from redrive.connected_app import ConnectedApp
from redrive.errors import ConfigurationError
from redrive.integrations.logs import LogObserver, configure_logging
from redrive.integrations.monitoring import Monitoring
from redrive.integrations.tracing import Tracing, instrument
from redrive.recovery.backoff import Backoff
from redrive.recovery.durations import duration

log = logging.getLogger("redrive.worker")

_WATCH = 0.3  # seconds between looks at children and files
_TICK = 0.05  # seconds after which a signal is heard
_GOES_WELL = 60.0  # seconds without a death
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
@health_options
@log_options
@click.option("--relay", is_flag=True, help="Publish the rows of the outbox, too.")
@click.option("--reload", is_flag=True, help="Start again when a Python file here changes: for development.")
def worker(
    app: str,
    queues: tuple[str, ...],
    processes: int,
    drain: str,
    health_port: int | None,
    health_host: str,
    log_format: str,
    log_level: str,
    relay: bool,
    reload: bool,
) -> None:
    """Handle the messages of APP (module:app).

    \b
    redrive worker uploads:app
    redrive worker uploads:app -q q.thumbnail -p 4     only these queues, in four processes
    redrive worker uploads:app --reload                while developing

    SIGTERM and SIGINT drain: no more messages are taken, what is being handled is finished and settled. A second
    signal quits at once; what was not settled comes back.

    With the outbox's transport LOCAL (REDRIVE_OUTBOX_TRANSPORT) these are the messages in the embedded broker of this
    machine's data folder, shared with the application's own process.
    """
    duration(drain, "--drain")
    if processes < 1:
        raise ConfigurationError(f"--processes {processes}: want at least 1")
    if processes > 1 or reload:
        if health_port and processes > 1:
            raise ConfigurationError("--health-port with several processes: give 0, and each picks one")
        sys.exit(_ProcessSupervisor(processes, reload).run())
    configure_logging(log_format, log_level, logger="")
    names = tuple(name for given in queues for name in given.split(",") if name)
    work = _Work(load_app(app), names, duration(drain), relay)
    if not asyncio.run(work.run(health_host, health_port)):
        _end_at_once(PARTIAL)


def _end_at_once(status: int) -> NoReturn:
    """A plain function that goes on in its thread would keep the process for as long as it likes."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


class _Work:
    """An application at work, watched: its log lines, its metrics, its health."""

    def __init__(self, app: App, queues: tuple[str, ...], limit: timedelta, relay: bool) -> None:
        self._app = app
        self._queues = queues
        self._limit = limit
        self._relay = relay
        self._started = False
        self._monitoring = Monitoring(app, queues=queues, relay=relay)
        app.observers.append(LogObserver(app.name))
        instrument(app, Tracing())

    async def run(self, host: str, port: int | None) -> bool:
        stop = stop_on_signals("draining; once more to quit at once")
        async with serve_health(host, port, self._monitoring.metrics, self._problems):
            return await self._app.run_worker(
                stop=stop, queues=self._queues, within=self._limit, relay=self._relay, ready=self._ready
            )

    def _ready(self, running: ConnectedApp) -> None:
        self._started = True
        consumers = ", ".join(spec.queue.name for spec in self._app.select_consumers(self._queues)) or "nothing"
        click.echo(f"{self._app.name} is working on {running.server}: {consumers}")

    def _problems(self) -> list[str]:
        return self._monitoring.problems() if self._started else ["not started yet"]


class _ProcessSupervisor:
    """Several worker processes, or one that is started again when the code changes."""

    def __init__(self, processes: int, reload: bool) -> None:
        self._command = [sys.executable, "-m", "redrive", "worker", *_child_arguments(sys.argv[1:])]
        self._count = processes
        self._reload = reload
        self._children: list[subprocess.Popen[bytes]] = []
        self._signals: list[int] = []
        self._deaths = 0  # in a row
        self._last_death = -inf

    def run(self) -> int:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        seen = dict(_sources()) if self._reload else {}
        self._spawn_all()
        while self._is_calm_for(_WATCH):
            self._revive()
            if self._reload and (now := dict(_sources())) != seen:
                seen = now
                click.echo("redrive: the code changed, starting again", err=True)
                self._end_children()
                if self._is_calm_for(0):
                    self._spawn_all()
        return self._leave()

    def _spawn_all(self) -> None:
        self._children = [self._spawn() for _ in range(self._count)]

    def _spawn(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self._command, start_new_session=True)

    def _revive(self) -> None:
        for place, child in enumerate(self._children):
            if child.poll() is not None:
                pause = self._pause()
                click.echo(f"redrive: a worker ended with {child.returncode}; another one in {pause:g} s", err=True)
                if not self._is_calm_for(pause):
                    return
                self._children[place] = self._spawn()

    def _pause(self) -> float:
        """Before another one is started: longer each time, until it has gone well for a while."""
        now = time.monotonic()
        self._deaths = self._deaths + 1 if now - self._last_death < _GOES_WELL else 1
        self._last_death = now
        return _RESTARTS.delay(self._deaths, 0).total_seconds()

    def _end_children(self) -> None:
        for child in self._children:
            child.terminate()
        while self._live_children() and self._is_calm_for(_TICK):
            pass

    def _live_children(self) -> list[subprocess.Popen[bytes]]:
        return [child for child in self._children if child.poll() is None]

    # Signals are counted where they come, and passed on here: by then every child is known, whichever moment it was.

    def _on_signal(self, number: int, _: object) -> None:
        self._signals.append(number)

    def _is_calm_for(self, seconds: float) -> bool:
        """Wait, unless somebody wants this to end."""
        until = time.monotonic() + seconds
        while not self._signals and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, _TICK))
        return not self._signals

    def _leave(self) -> int:
        told = 0
        while living := self._live_children():
            for number in self._signals[told:]:
                told += 1
                for child in living:
                    child.send_signal(number)
            time.sleep(_TICK)
        return max((abs(child.returncode) for child in self._children), default=0)


def _sources() -> Iterator[tuple[Path, float]]:
    for path in Path.cwd().rglob("*.py"):
        if not any(part.startswith(".") for part in path.relative_to(Path.cwd()).parts):
            try:
                yield path, path.stat().st_mtime
            except OSError:
                continue


def _child_arguments(arguments: list[str]) -> list[str]:
    """The same command line, for one process that is not started again by itself."""
    own = iter(arguments[arguments.index("worker") + 1 :])
    kept = []
    for argument in own:
        if argument in ("--processes", "-p"):
            next(own, None)
        elif argument != "--reload" and not argument.startswith(("--processes=", "-p")):
            kept.append(argument)
    return kept
