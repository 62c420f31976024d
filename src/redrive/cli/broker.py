"""`redrive broker`: the embedded broker as a process of its own."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

import click
from click.core import ParameterSource

from redrive.broker.broker import GUEST, PRODUCT, Broker
from redrive.broker.dialect import DIALECTS, LATEST
from redrive.broker.server import BrokerServer
from redrive.broker.storage.journal import Journal
from redrive.broker.storage.memory import MemoryJournal
from redrive.broker.storage.sqlite import SQLiteJournal
from redrive.cli.exit_codes import CONFLICT, DEFECT, fail
from redrive.cli.output import note
from redrive.errors import ConfigurationError, DirectoryInUse, StorageError


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=5672, show_default=True, help="Port to listen on; 0 picks a free one.")
@click.option(
    "--unix",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Listen on this Unix socket. On a port as well only with --host or --port.",
)
@click.option(
    "--data", type=click.Path(path_type=Path), default=Path(".redrive"), show_default=True, help="Data folder."
)
@click.option("--memory", is_flag=True, help="Keep nothing on disk.")
@click.option("--user", help="The one user that may connect, instead of guest.")
@click.option("--password-file", type=click.Path(path_type=Path, exists=True, dir_okay=False), help="Its password.")
@click.option(
    "--dialect", type=click.Choice(sorted(DIALECTS)), help="Which RabbitMQ to be like.  [default: the latest]"
)
@click.option(
    "--product",
    default=PRODUCT,
    show_default=True,
    help="Product name to report to clients. Some clients require RabbitMQ.",
)
@click.pass_context
def broker(
    context: click.Context,
    host: str,
    port: int,
    unix: Path | None,
    data: Path,
    memory: bool,
    user: str | None,
    password_file: Path | None,
    dialect: str | None,
    product: str,
) -> None:
    """Run the embedded broker until it is interrupted.

    \b
    redrive broker                          on 127.0.0.1:5672, kept in .redrive
    redrive broker --port 5673 --memory     beside a RabbitMQ, and keeping nothing

    Any AMQP 0-9-1 client can use it. Durable queues and persistent messages are kept in the data folder and survive
    kill -9. Beyond loopback it wants --user and --password-file.
    """
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s", stream=sys.stderr)
    if (user is None) != (password_file is None):
        raise click.UsageError("--user and --password-file go together")
    users = {user: _password(password_file)} if user is not None and password_file is not None else GUEST
    tcp = unix is None or _was_given(context, "host") or _was_given(context, "port")
    door = _ListenOptions(host if tcp else None, port, unix)
    try:
        chosen = DIALECTS[dialect] if dialect is not None else LATEST
        make = partial(Broker, users=users, dialect=chosen, product=product)
        asyncio.run(_run(None if memory else data, door, make))
    except ConfigurationError as error:
        raise click.UsageError(str(error)) from None
    except StorageError as error:
        fail(error, CONFLICT if isinstance(error, DirectoryInUse) else DEFECT)
    except OSError as error:
        click.echo(f"redrive: cannot listen on {error.filename or f'{host}:{port}'}: {error.strerror}", err=True)
        sys.exit(CONFLICT)


def _password(file: Path) -> str:
    password = file.read_text().strip()
    if not password:
        raise click.UsageError(f"{file} is empty: it must contain the password of --user")
    return password


class _ListenOptions(NamedTuple):
    """Where clients come in."""

    host: str | None
    port: int
    path: Path | None


def _was_given(context: click.Context, option: str) -> bool:
    return context.get_parameter_source(option) is not ParameterSource.DEFAULT


async def _run(data: Path | None, door: _ListenOptions, make: Callable[..., Broker]) -> None:
    """Serve until interrupted. `make` builds the broker once there is an event loop and a journal."""
    loop = asyncio.get_running_loop()
    over: asyncio.Future[StorageError | None] = loop.create_future()

    def end(failure: StorageError | None = None) -> None:
        if not over.done():
            over.set_result(failure)

    journal: Journal = MemoryJournal() if data is None else SQLiteJournal(data, on_failure=end)
    server = BrokerServer(make(journal=journal), **door._asdict())
    await server.start()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, end)
    if server.broker.users == GUEST:
        note("redrive: any user of this machine may connect, as guest with password guest; --user sets another one")
    click.echo(f"listening on {' and '.join(server.addresses)}")  # whoever reads this may end it
    failure = await over
    with suppress(StorageError):
        await server.stop()
    if failure is not None:
        raise failure
