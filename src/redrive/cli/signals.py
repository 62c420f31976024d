"""Stop when told to: in order the first time, at once the second."""

from __future__ import annotations

import asyncio
import signal
import sys

import click


def stop_on_signals(farewell: str) -> asyncio.Event:
    """An event that SIGTERM and SIGINT set. The next one kills: nothing is lost by that, it only comes again."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def signalled() -> None:
        if stop.is_set():
            click.echo("redrive: quitting at once; what was not settled comes back", err=True)
            sys.stderr.flush()
            signal.raise_signal(signal.SIGKILL)
        stop.set()
        click.echo(f"redrive: {farewell}", err=True)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signalled)
    return stop
