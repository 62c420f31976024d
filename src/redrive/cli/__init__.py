"""The `redrive` command: one file for each subcommand. Data goes to stdout, notes to stderr.

A subcommand is imported when it is called for: who runs the embedded broker does not wait for SQLAlchemy.
"""

from __future__ import annotations

from importlib import import_module

import click

from redrive.version import version

_HOMES = {
    "admin": "redrive.cli.admin",
    "audit": "redrive.cli.ops",
    "broker": "redrive.cli.broker",
    "db": "redrive.cli.outbox",
    "demo": "redrive.cli.demo",
    "dlq": "redrive.cli.dlq",
    "doctor": "redrive.cli.doctor",
    "explain": "redrive.cli.explain",
    "health": "redrive.cli.health",
    "init": "redrive.cli.init",
    "ops": "redrive.cli.ops",
    "outbox": "redrive.cli.outbox",
    "ping": "redrive.cli.ping",
    "serve": "redrive.cli.serve",
    "topology": "redrive.cli.topology",
    "worker": "redrive.cli.worker",
}


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click asks with it
        return sorted(_HOMES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in _HOMES:
            return None
        command = getattr(import_module(_HOMES[cmd_name]), cmd_name)
        assert isinstance(command, click.Command)
        return command


def _tell_version(ctx: click.Context, _: click.Parameter, asked: bool) -> None:
    if asked and not ctx.resilient_parsing:
        click.echo(f"redrive, version {version()}")
        ctx.exit()


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_tell_version, help="Its version.")
def main() -> None:
    """RabbitMQ messages that survive failure."""
