"""The `redrive` command: one file for each subcommand. Data goes to stdout, notes to stderr.

A subcommand is imported when it is called for: who runs the embedded broker does not wait for SQLAlchemy. So what the
tour says of each (`redrive --help`) stands here, and is written for somebody who sees it for the first time.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import click

from redrive import __version__

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

# By what one wants to do.
TOUR = {
    "Start here": {
        "demo": "see it at work: failures, retries, dead letters, the console",
        "init": "begin a service of your own, with its tests",
        "worker": "handle the messages of an application",
        "broker": "run the embedded broker, for any AMQP client",
    },
    "Look": {
        "dlq": "dead letters: what failed and why; send it back without loss",
        "doctor": "find what loses messages, and how to fix it",
        "ping": "connect to a broker, and say which one it is",
        "health": "ask a worker, relay or server whether it is ready",
        "audit": "who did what to dead letters",
        "explain": "what an error or a finding means, and what to do",
    },
    "Act": {
        "ops": "operations on dead letters: watch, slow down, pause, cancel",
        "outbox": "publish what was committed with the application's data",
    },
    "Serve": {
        "serve": "the admin API and the web console",
        "admin": "who may come in: API keys",
    },
    "Prepare": {
        "topology": "exchanges and queues as code: plan, apply, check, migrate",
        "db": "make the tables of outbox, inbox, operations and audit",
    },
}
_STEPS = (
    ("redrive demo", "see it fail and recover, on this machine"),
    ("redrive init shop", "begin a service of your own"),
    ("redrive dlq groups orders.dlq", "see what failed, and why"),
)


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click asks with it
        return sorted(_HOMES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in _HOMES:
            return None
        command = getattr(import_module(_HOMES[cmd_name]), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run the subcommand. An error that Redrive or the database raised ends it with a sentence and an exit code."""
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except Exception as error:
            from redrive.cli.loading import exit_if_expected  # loads SQLAlchemy

            exit_if_expected(error)
            raise

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The tour first: whoever asks for help wants to do something."""
        self.format_commands(ctx, formatter)
        click.Command.format_options(self, ctx, formatter)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        width = max(map(len, _HOMES))
        for title, commands in TOUR.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), says) for name, says in commands.items()])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("First steps"):
            formatter.write_dl(_STEPS)
        formatter.write("\nredrive COMMAND --help shows how each is used, with examples.\n")


def _tell_version(ctx: click.Context, _: click.Parameter, asked: bool) -> None:
    if asked and not ctx.resilient_parsing:
        click.echo(f"redrive, version {__version__}")
        ctx.exit()


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_tell_version, help="Its version.")
def main() -> None:
    """RabbitMQ messages that survive failure."""
