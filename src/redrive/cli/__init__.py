"""The `redrive` command: one file for each subcommand. Data goes to stdout, notes to stderr."""

from __future__ import annotations

import click

from redrive.cli.broker import broker
from redrive.cli.doctor import doctor
from redrive.cli.outbox import db, outbox
from redrive.cli.ping import ping
from redrive.cli.topology import topology
from redrive.cli.worker import worker
from redrive.version import __version__


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="redrive")
def main() -> None:
    """RabbitMQ messages that survive failure."""


main.add_command(broker)
main.add_command(db)
main.add_command(doctor)
main.add_command(outbox)
main.add_command(ping)
main.add_command(topology)
main.add_command(worker)
