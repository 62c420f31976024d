"""`redrive ping`: which broker is it?"""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import click

from redrive.cli.exit_codes import UNREACHABLE, fail
from redrive.client import Connection
from redrive.errors import ConfigurationError, RedriveError


@click.command()
@click.option(
    "--broker",
    envvar="REDRIVE_BROKER",
    default="amqp://guest:guest@localhost/",
    help="Broker URL. [env: REDRIVE_BROKER]",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of a sentence.")
def ping(broker: str, as_json: bool) -> None:
    """Connect to a broker, say which one it is, and leave.

    \b
    redrive ping --broker amqps://shop:secret@rabbit.example.com/shop
    """
    try:
        answer = asyncio.run(_ping(broker))
    except ConfigurationError as error:
        raise click.UsageError(str(error)) from None
    except RedriveError as error:
        fail(error, UNREACHABLE)
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
