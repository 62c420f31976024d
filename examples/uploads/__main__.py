"""`python -m examples.uploads`: the API, the seven consumers, the admin API and the console, in one process."""

import asyncio

import click
import uvicorn

from examples.uploads.api import make_api
from examples.uploads.app import app
from redrive.integrations.logs import configure_logging


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", default=8000, show_default=True)
def main(host: str, port: int) -> None:
    configure_logging(logger="")
    asyncio.run(app.prepare())  # fails before the port is open
    click.echo(f"{app!r}")
    click.echo(f"upload:    curl -F file=@picture.png http://127.0.0.1:{port}/files")
    click.echo(f"operate:   http://127.0.0.1:{port}/   with a key: redrive admin keys create me --role admin")
    uvicorn.run(make_api(work=True), host=host, port=port, log_config=None, log_level="warning")


if __name__ == "__main__":
    main()
