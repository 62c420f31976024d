"""The options of all operators' commands: which application, which broker, which database."""

from __future__ import annotations

import functools
import getpass
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from redrive import environment
from redrive.admin.service import Service
from redrive.admin.target import BrokerTarget
from redrive.app import App
from redrive.cli.loading import load, load_target, management_option
from redrive.database.engine import Database
from redrive.database.schema import Schema
from redrive.integrations.logs import LogFormat
from redrive.operations.audit_log import AuditLog
from redrive.operations.peek_allowance import Risk
from redrive.operations.repository import OperationRepository

if TYPE_CHECKING:
    from redrive.admin.context import AdminContext

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class CommandTarget:
    """The options of a command that say which application, broker and database it is for."""

    app: str | None
    broker: str | None
    management: str | None
    database: str | None

    def service(self) -> Service:
        database = self.open_database()
        return Service(self._target(), OperationRepository(database), AuditLog(database), by=operator_name())

    def admin_context(self, **options: Any) -> AdminContext:
        """Return what an admin server needs."""
        from redrive.admin.context import AdminContext  # other commands work without the packages of the server

        return AdminContext(self._target(), self.open_database(), app=self._app(), archives=self.archives, **options)

    def open_database(self) -> Database:
        """Return the database of operations, audit and keys: the one named here, that of the application, or SQLite in
        the data folder, where the tables are created when they are needed.
        """
        app, url = self._app(), self.database or environment.database()
        if url is not None:
            return Database(url)
        if app is not None and not app.owns_database:
            return app.database
        database = Database.embedded(app.data if app is not None else environment.data())
        Schema().upgrade(database)
        return database

    @property
    def archives(self) -> Path:
        return environment.data() / "archive"

    def _target(self) -> BrokerTarget:
        return load_target(self.app, self.broker, self.management)

    def _app(self) -> App | None:
        found = load(self.app) if self.app is not None else None
        return found if isinstance(found, App) else None


def operator_name() -> str:
    """Return the name of the operator, for the audit."""
    try:
        return environment.user() or f"{getpass.getuser()}@{socket.gethostname()}"
    except (KeyError, OSError):  # a user without a name
        return f"unknown@{socket.gethostname()}"


# Options ------------------------------------------------------------------------------------------


def options(*decorators: Callable[[Any], Any]) -> Callable[[F], F]:
    """Combine options into one decorator. `--help` lists them in this order."""

    def add(command: F) -> F:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return add


def _with_target(command: Callable[..., Any]) -> Callable[..., Any]:
    """Pass the options about broker, application and database to the command as `target`."""

    @functools.wraps(command)
    def wrapped(
        app: str | None, database: str | None, broker: str | None = None, management: str | None = None, **others: Any
    ) -> Any:
        return command(target=CommandTarget(app, broker, management, database), **others)

    return wrapped


def _with_risk(command: Callable[..., Any]) -> Callable[..., Any]:
    """Pass `--spend-deliveries` and `--any-queue` to the command as `risk`."""

    @functools.wraps(command)
    def wrapped(spend: bool, any_queue: bool, **others: Any) -> Any:
        return command(risk=Risk(spend, any_queue), **others)

    return wrapped


_app_option = click.option("--app", metavar="APP", help="module:app, or a topology file: says which queues there are.")
_database_option = click.option(
    "--database",
    metavar="URL",
    help=f"Where operations and audit are kept. [env: {environment.DATABASE}; default: in .redrive]",
)
_broker_option = click.option("--broker", metavar="URL", help=f"The broker. [env: {environment.BROKER}]")
target_options = options(_app_option, _broker_option, management_option, _database_option, _with_target)
database_options = options(_app_option, _database_option, _with_target)  # for commands that need no broker
risk_options = options(
    click.option(
        "--spend-deliveries",
        "spend",
        is_flag=True,
        help="Look although it counts towards the queue's delivery limit: each look costs one, and never the last one.",
    ),
    click.option(
        "--any-queue", is_flag=True, help="Also a queue that is not a dead-letter queue, or that has consumers."
    ),
    _with_risk,
)
log_options = options(
    click.option(
        "--log-format",
        type=click.Choice([str(form) for form in LogFormat]),
        default=str(LogFormat.AUTO),
        show_default=True,
        help="JSON for machines, text for people; auto looks whether stderr is a terminal.",
    ),
    click.option("--log-level", default="info", show_default=True, help="debug, info, warning, error or critical."),
)
query_option = click.option(
    "-q", "--query", default="", metavar="QUERY", help="Which messages; see `redrive dlq query`."
)
limit_option = click.option("--limit", type=click.IntRange(1), default=20, show_default=True, help="At most this many.")
json_option = click.option("--json", "json", is_flag=True, help="JSON for scripts.")
yes_option = click.option("--yes", is_flag=True, help="Do not ask.")
no_input_option = click.option("--no-input", is_flag=True, help="Never ask; without --yes nothing is done.")
