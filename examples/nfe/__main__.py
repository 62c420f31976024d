"""`python -m examples.nfe`: the API, the relay and whoever makes the XML, in one process; `--only` runs a part."""

from __future__ import annotations

import asyncio

import click
import uvicorn

import redrive.cli
from redrive import explains_errors
from redrive.errors import ConfigurationError
from redrive.integrations.fastapi import lifespan
from redrive.integrations.logs import configure_logging

APP = "examples.nfe.app:app"


@click.command()
@click.option("--only", type=click.Choice(["api", "relay", "worker"]), help="This part alone.")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", default=8000, show_default=True)
@explains_errors
def main(only: str | None, host: str, port: int) -> None:
    # The settings are read with the application: what is wrong with them is to be explained.
    from examples.nfe.app import settings

    if only == "worker" and not settings.worker_enabled:
        raise ConfigurationError(
            "sagnus.nfe.worker.enabled=false: the listener in the API's process makes the XML. With true, here and "
            "there, the worker does"
        )
    match only:
        case "relay":
            redrive.cli.main(["outbox", "relay", APP])
        case "worker":
            redrive.cli.main(["worker", APP])
        case _:
            serve(host, port, alone=only == "api")


def serve(host: str, port: int, *, alone: bool) -> None:
    """The API: `alone`, or with the relay and the worker in the same process."""
    from examples.nfe.api import listener, make_api
    from examples.nfe.app import app

    asyncio.run(app.prepare())  # fails before the port is open
    click.echo(f"{app!r}")
    click.echo(f"emit:      curl --json @examples/nfe/nota.json http://127.0.0.1:{port}/nfe")
    configure_logging(logger="")
    api = make_api(listener.lifespan() if alone else lifespan(app, work=True, relay=True, within=listener.tell))
    uvicorn.run(api, host=host, port=port, log_config=None, log_level="warning")


if __name__ == "__main__":
    main()
