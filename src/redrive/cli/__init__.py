"""The `redrive` command: one file for each subcommand. Data goes to stdout, notes to stderr."""

from __future__ import annotations

import click

from redrive import __version__
from redrive.cli.broker import broker
from redrive.cli.ping import ping


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="redrive")
def main() -> None:
    """RabbitMQ messages that survive failure."""


main.add_command(broker)
main.add_command(ping)
