"""`python -m examples.raffle`: the API, the consumer and the consumer of dead letters, in one process."""

import asyncio

import click
import uvicorn

from examples.raffle.api import make_api
from examples.raffle.app import app
from redrive.integrations.logs import configure_logging


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", default=8000, show_default=True)
def main(host: str, port: int) -> None:
    configure_logging(logger="")
    asyncio.run(app.prepare())  # fails before the port is open
    click.echo(f"{app!r}")
    click.echo(
        f'sign up:   curl --json \'{{"name": "João Silva", "email": "joao@email.com"}}\' '
        f"http://127.0.0.1:{port}/api/v1/users"
    )
    click.echo(f"watch:     http://127.0.0.1:{port}/metrics")
    uvicorn.run(make_api(work=True), host=host, port=port, log_config=None, log_level="warning")


if __name__ == "__main__":
    main()
