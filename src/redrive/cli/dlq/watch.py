"""Tell somebody: about new dead letters, and about an operation that shows no life any more."""

from __future__ import annotations

import asyncio
import logging
import random
import shlex
import sys

import click

from redrive import environment
from redrive.admin.notifications import Command, Notifier, Send, Webhook, deliver
from redrive.admin.service import Service
from redrive.cli.exit_codes import stop_on_signals
from redrive.cli.loading import run
from redrive.cli.options import CommandTarget, target_options
from redrive.cli.output import note
from redrive.errors import RedriveError
from redrive.recovery.durations import duration
from redrive.text import one_line


@click.command(short_help="Notify of new dead letters, and of operations that stall.")
@click.argument("queues", nargs=-1, metavar="[QUEUE]...")
@click.option(
    "--webhook", metavar="URL", help=f"POST each notice there, as JSON. Signed with {environment.WEBHOOK_SECRET}."
)
@click.option("--command", metavar="COMMAND", help="Run this, with the notice as JSON on its stdin.")
@click.option("--every", default="30s", show_default=True, help="Look this often. Only depths are read, no messages.")
@click.option("--interval", default="5m", show_default=True, help="At most one notice for each queue in this time.")
@target_options
def watch(
    target: CommandTarget, queues: tuple[str, ...], webhook: str | None, command: str | None, every: str, interval: str
) -> None:
    """Notify when there are new dead letters, or when an operation stalls. Runs until it is told to stop.

    \b
    redrive dlq watch --app shop.app:app --webhook https://chat.example.com/hooks/1
    redrive dlq watch orders.dlq --command './page-somebody.sh'

    A notice that could not be delivered is tried again.
    """
    if (webhook is None) == (command is None):
        raise click.UsageError("say --webhook or --command")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    send: Send = (
        Webhook(webhook, secret=environment.webhook_secret())
        if webhook is not None
        else Command(shlex.split(command or ""))
    )
    pause = duration(every, "--every").total_seconds()
    notifier = Notifier(interval=duration(interval, "--interval"))
    run(_watch, target.service(), queues, notifier, send, pause)


async def _watch(service: Service, queues: tuple[str, ...], notifier: Notifier, send: Send, pause: float) -> None:
    stop = stop_on_signals("no more notices")
    note("watching; Ctrl-C to stop")
    backlogs: frozenset[str] | None = None
    while not stop.is_set():
        try:
            backlogs = await look(service, queues, notifier, backlogs)
        except RedriveError as error:  # the broker is away: it will be back
            note(f"redrive: {error}")
        await deliver(notifier, send, service.clock, random.random)
        try:
            async with asyncio.timeout(pause):
                await stop.wait()
        except TimeoutError:
            pass


async def look(
    service: Service, queues: tuple[str, ...], notifier: Notifier, backlogs: frozenset[str] | None = None
) -> frozenset[str]:
    """Show the notifier what there is. Return the queues whose backlog is not known yet, for the next look.

    What is in a queue when the watch begins (`backlogs` is None) is not new; nor is what a migration moves.
    """
    now = service.clock.now()
    depths, migrated = await service.depths(queues, notifier.depths)
    for queue, depth in depths.items():
        if backlogs is None or queue in backlogs:
            notifier.record_backlog(queue, depth)
        else:
            notifier.record_queue(queue, depth, now)
    for queue in sorted(migrated):
        note(f"redrive: {one_line(queue)} is being migrated: it is watched again when that is over")
    for operation in await service.operations(limit=50):
        notifier.record_operation(operation, now)
    return (migrated if backlogs is None else backlogs & migrated) - notifier.depths.keys()
