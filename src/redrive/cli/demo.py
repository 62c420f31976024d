"""`redrive demo`: the product at work, on this machine alone."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
import sys
import tempfile
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.text import Text

from redrive import environment
from redrive.cli.exit_codes import PARTIAL
from redrive.errors import ConfigurationError

if TYPE_CHECKING:
    from redrive.demo.web import Website


@click.command()
@click.option("--once", is_flag=True, help="A bounded scenario to its end, and a summary. Without a terminal: always.")
@click.option("--rate", type=click.FloatRange(0.1, 200), default=5, show_default=True, help="Pictures a second.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Where the console listens. [default: any]")
@click.option("--data", type=click.Path(file_okay=False, path_type=Path), help="A new folder for its data, to keep.")
@click.option("--seed", type=int, help="The same pictures as another time.")
def demo(once: bool, rate: float, port: int, data: Path | None, seed: int | None) -> None:
    """See it at work: pictures go through seven queues, some fail, wait, are parked and sent back to work.

    \b
    redrive demo            with live counters and the console, until Ctrl-C
    redrive demo --once     in seconds: published, processed, retried, parked, re-driven, lost

    Everything happens on this machine, on an embedded broker in a folder of the demo's own, which is deleted at the
    end. No broker or database that the environment names is touched.
    """
    if data is not None and data.exists() and any(data.iterdir()):
        raise ConfigurationError(f"--data {data}: there is something in it already; name a new folder")
    folder = data if data is not None else Path(tempfile.mkdtemp(prefix="redrive-demo-"))
    folder.mkdir(parents=True, exist_ok=True)
    named = _forget_the_environment(folder)
    screen = Console(highlight=False)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that the folder is deleted
    try:
        _log_to(folder / "demo.log")
        chance = Random(seed)
        if once or not screen.is_terminal:
            lost = asyncio.run(_once(chance, screen))
        else:
            lost = asyncio.run(_until_stopped(chance, screen, rate, port, named))
    finally:
        if data is None:
            shutil.rmtree(folder, ignore_errors=True)
    if lost:
        sys.exit(PARTIAL)


def _forget_the_environment(folder: Path) -> list[str]:
    """Nobody's broker is to be found by a demo. What was set, and would lead the user's own commands elsewhere."""
    named = [name for name in os.environ if name.startswith("REDRIVE_")]
    for name in named:
        del os.environ[name]
    os.environ[environment.DATA] = str(folder)
    return sorted(set(named) - {environment.DATA})


def _log_to(file: Path) -> None:
    logging.basicConfig(filename=file, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")


async def _once(chance: Random, screen: Console) -> int:
    from redrive.demo.scenario import Scenario  # the application looks at the environment when it is made

    show = Scenario(chance, screen)
    async with show.open():
        screen.print("[bold]Redrive[/bold], on an embedded broker")
        await show.once()
        return await show.settle()


async def _until_stopped(chance: Random, screen: Console, rate: float, port: int, named: list[str]) -> int:
    from redrive.demo.scenario import Scenario

    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # the last: its window was closed
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    show = Scenario(chance, screen)
    async with show.open():
        website = _website(port)
        opened: AbstractContextManager[None] = website.open() if website is not None else nullcontext()
        with opened:
            await show.go_on(stop, rate, lambda: _below(website, named))
            screen.print("\n  finishing what is under way …")
            return await show.settle()


def _website(port: int) -> Website | None:
    from redrive.demo.pipeline import app

    try:
        from redrive.demo.web import Website
    except ModuleNotFoundError:
        return None
    try:
        return Website(app, port)
    except OSError as error:
        raise ConfigurationError(f"cannot listen on port {port}: {error.strerror}") from None


def _below(website: Website | None, named: list[str]) -> Text:
    """Where to look next."""
    if website is None:
        lines = ["The console needs more: pip install 'redrive[admin]'"]
    else:
        # On a line of its own it fits into 80 columns: a link that is broken in two is none.
        lines = [f"The console is at {website.address}; sign in, once, by this link:", website.link]
    lines += [
        "",
        "Try, in another terminal:",
        *([f"  unset {' '.join(named)}"] if named else []),
        f"  export {environment.DATA}={os.environ[environment.DATA]}",
        "  redrive dlq groups q.extractor.dlq",
        "  redrive dlq peek q.thumbnail.dlq",
        "  redrive dlq redrive q.extractor.dlq --ramp 1,5,20",
        "",
        "Ctrl-C settles the account and ends.",
    ]
    return Text("\n".join(lines))
