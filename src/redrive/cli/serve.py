"""`redrive serve`: the admin API and the web console."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import click

from redrive import environment
from redrive.admin.access.roles import Principal, Role
from redrive.cli.options import CommandTarget, log_options, target_options
from redrive.database.schema import Schema
from redrive.errors import ConfigurationError
from redrive.integrations.logs import configure_logging

if TYPE_CHECKING:
    import uvicorn

    from redrive.admin.context import AdminContext

_LOOPBACK = ("127.0.0.1", "::1", "localhost")


@click.command()
@click.argument("app_", metavar="[APP]", required=False)
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=8080, show_default=True, help="0 picks one.")
@click.option("--root-path", default="", metavar="PATH", help="The path that a proxy in front strips: /ops.")
@click.option(
    "--trust-proxy",
    multiple=True,
    metavar="CIDR",
    help=f"Read X-Forwarded-For and -Proto of proxies in this network. [env: {environment.ADMIN_TRUST_PROXY}]",
)
@click.option(
    "--least-role",
    type=click.Choice([str(role) for role in Role]),
    default=str(Role.VIEWER),
    show_default=True,
    help="Refuse principals with a lower role, whatever they ask for.",
)
@click.option(
    "--own-queues-only",
    is_flag=True,
    help="List, look into and operate on the dead-letter queues of APP, and no others.",
)
@click.option("--tls-cert", type=click.Path(exists=True, dir_okay=False), help="A certificate, with its chain (PEM).")
@click.option("--tls-key", type=click.Path(exists=True, dir_okay=False), help="Its key.")
@click.option("--dev", is_flag=True, help="On this machine alone: print a link by which to sign in, once, as admin.")
@log_options
@target_options
def serve(
    target: CommandTarget,
    app_: str | None,
    host: str,
    port: int,
    root_path: str,
    trust_proxy: tuple[str, ...],
    least_role: str,
    own_queues_only: bool,
    tls_cert: str | None,
    tls_key: str | None,
    dev: bool,
    log_format: str,
    log_level: str,
) -> None:
    """The admin API and the web console. APP is module:app, or a topology file; without it, --broker says where.

    \b
    redrive serve shop.app:app --dev
    redrive serve shop.app:app --host 0.0.0.0 --tls-cert cert.pem --tls-key key.pem
    redrive serve --broker amqp://... --management http://... --port 9000
    redrive serve shop.app:app --trust-proxy 127.0.0.1        behind a proxy on this machine

    Nobody comes in without a key (redrive admin keys create) or a token (REDRIVE_ADMIN_JWT_SECRET, or
    REDRIVE_ADMIN_JWT_JWKS). Operations run in the server: they go on when the browser is closed, and after a restart.
    """
    try:
        import uvicorn

        from redrive.admin.access.settings import AccessSettings, networks
        from redrive.admin.api.application import Admin
        from redrive.admin.api.connection_limit import protocol_behind
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"there is no module {error.name}: the admin server needs more. pip install 'redrive[admin]'"
        ) from None
    if dev and host not in _LOOPBACK:
        raise ConfigurationError(f"--dev is for this machine alone, and {host} is for others: leave out one of them")
    if (tls_cert is None) != (tls_key is None):
        raise ConfigurationError("--tls-cert and --tls-key go together")
    if app_ is not None and target.app is not None and app_ != target.app:
        raise ConfigurationError(f"two applications, {app_} and {target.app}: say one")
    access = AccessSettings.from_environment()
    if trust_proxy:
        access = replace(access, proxies=networks(trust_proxy))
    configure_logs = partial(configure_logging, log_format, log_level, logger="")
    configure_logs()
    options = {
        "access": access,
        "least_role": least_role,
        "own_queues_only": own_queues_only,
        "configure_logs": configure_logs,
    }
    context = replace(target, app=app_ or target.app).admin_context(**options)
    config = uvicorn.Config(
        Admin(context),
        host=host,
        port=port,
        http=protocol_behind(access.proxies),
        root_path=root_path.rstrip("/"),
        proxy_headers=False,  # uvicorn's own would believe every client on this machine: see `web.proxies`
        ssl_certfile=tls_cert,
        ssl_keyfile=tls_key,
        log_config=None,
        log_level=logging.getLogger().level,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=5,
    )
    listener = _listen(host, port)
    shown = f"[{host}]" if ":" in host else host
    address = f"{'https' if tls_cert else 'http'}://{shown}:{listener.getsockname()[1]}"
    _print_start(context, address, host, dev=dev, tls=tls_cert is not None)
    server = uvicorn.Server(config)
    with _exit_cleanly_on_signal(server):
        server.run(sockets=[listener])


@contextmanager
def _exit_cleanly_on_signal(server: uvicorn.Server) -> Iterator[None]:
    """When uvicorn has ended because of a signal it raises that again, and by default the process would be seen to die
    of it (143). Here it is the end that was asked for: 0, as of a worker.
    """

    def end(*_: object) -> None:
        server.should_exit = True  # it may also come before uvicorn listens to signals

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        raise ConfigurationError(f"cannot listen on {host}, port {port}: {error.strerror}") from None


def _print_start(context: AdminContext, address: str, host: str, *, dev: bool, tls: bool) -> None:
    click.echo(f"redrive: the console is at {address}/ and the API at {address}/admin")
    click.echo(f"redrive: API keys are those of {context.database.location}")
    if dev:
        Schema().upgrade(context.database)
        token = context.gate.sessions.invite(Principal("dev", Role.ADMIN))
        click.echo(f"redrive: sign in, once, within ten minutes: {address}/sign-in/link/{token}")
    elif not asyncio.run(_has_anybody(context)):
        click.echo("redrive: nobody can sign in yet. Make a key: redrive admin keys create NAME --role admin")
    if host not in _LOOPBACK and not tls:
        click.echo("redrive: without TLS browsers keep no session here: say --tls-cert, or have a proxy that does it")


async def _has_anybody(context: AdminContext) -> bool:
    return await context.gate.can_anybody_sign_in()
