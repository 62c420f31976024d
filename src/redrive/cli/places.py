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
from redrive.cli.sources import load, load_target, management_option
from redrive.store.audit import Audit
from redrive.store.database import Database
from redrive.store.operations import OperationsStore
from redrive.store.schema import Schema

if TYPE_CHECKING:
    from redrive.admin.office import Office

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
        return Service(self._target(), OperationsStore(database), Audit(database), by=who())

    def office(self, **options: Any) -> Office:
        """Return what an admin server needs."""
        from redrive.admin.office import Office  # other commands work without the packages of the server

        return Office(self._target(), self.open_database(), app=self._app(), archives=self.archives, **options)

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


def who() -> str:
    """Return the name of the operator, for the audit."""
    try:
        return environment.user() or f"{getpass.getuser()}@{socket.gethostname()}"
    except (KeyError, OSError):  # a user without a name
        return f"unknown@{socket.gethostname()}"


_app_option = click.option("--app", metavar="APP", help="module:app, or a topology file: says which queues there are.")
_database_option = click.option(
    "--database",
    metavar="URL",
    help=f"Where operations and audit are kept. [env: {environment.DATABASE}; default: in .redrive]",
)


def target_options(command: F) -> F:
    """`--app`, `--broker`, `--management`, `--database`; the command gets them as `target`."""

    @functools.wraps(command)
    def wrapped(
        app: str | None, broker: str | None, management: str | None, database: str | None, **others: Any
    ) -> Any:
        return command(target=CommandTarget(app, broker, management, database), **others)

    options = [
        _app_option,
        click.option("--broker", metavar="URL", help=f"The broker. [env: {environment.BROKER}]"),
        management_option,
        _database_option,
    ]
    for option in reversed(options):
        wrapped = option(wrapped)
    return wrapped  # type: ignore[return-value]


def database_options(command: F) -> F:
    """`--app` and `--database`, for commands that need no broker; they get them as `target`."""

    @functools.wraps(command)
    def wrapped(app: str | None, database: str | None, **others: Any) -> Any:
        return command(target=CommandTarget(app, None, None, database), **others)

    for option in (_database_option, _app_option):
        wrapped = option(wrapped)
    return wrapped  # type: ignore[return-value]
