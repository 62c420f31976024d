"""The `redrive` command.

Data goes to stdout and notes to stderr; exit codes say what happened: 0 ok, 2 usage, 7 the broker is unreachable.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

import click

from redrive import __version__
from redrive.client import Connection
from redrive.errors import ConfigurationError, RedriveError

UNREACHABLE = 7


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="redrive")
def main() -> None:
    """RabbitMQ messages that survive failure."""


@main.command()
@click.option(
    "--broker",
    envvar="REDRIVE_BROKER",
    default="amqp://guest:guest@localhost/",
    help="Broker URL. [env: REDRIVE_BROKER]",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of a sentence.")
def ping(broker: str, as_json: bool) -> None:
    """Connect to a broker, say which one it is, and leave."""
    try:
        answer = asyncio.run(_ping(broker))
    except ConfigurationError as error:
        raise click.UsageError(str(error)) from None
    except RedriveError as error:
        click.echo(f"redrive: {error}", err=True)
        sys.exit(UNREACHABLE)
    text = "{product} {version} at {url} answered in {milliseconds} ms".format_map(answer)
    click.echo(json.dumps(answer) if as_json else text)


async def _ping(broker: str) -> dict[str, Any]:
    began = time.perf_counter()
    async with Connection(broker, name="redrive ping") as connection:
        took = time.perf_counter() - began
        return {
            "url": str(connection.url),
            "product": str(connection.server_properties.get("product", "a broker")),
            "version": str(connection.server_properties.get("version", "of unknown version")),
            "milliseconds": round(took * 1000, 1),
        }
