"""Where a command finds its broker, its application and its memory: the options that all operators' commands share."""

from __future__ import annotations

import functools
import getpass
import socket
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from redrive import environment
from redrive.admin.place import Place
from redrive.admin.service import Service
from redrive.app import App
from redrive.cli.sources import Source, import_object, load_source
from redrive.store.audit import Audit
from redrive.store.database import Database
from redrive.store.operations import OperationsStore
from redrive.store.schema import Schema
from redrive.topology import Topology

if TYPE_CHECKING:
    from redrive.admin.office import Office

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Where:
    """What the command line says, or the environment."""

    app: str | None
    broker: str | None
    management: str | None
    database: str | None

    def memory(self) -> Database:
        """The database in which operations, the audit and keys are kept."""
        return self._database(self._source())

    def service(self) -> Service:
        source = self._source()
        database = self._database(source)
        return Service(self._place(source), OperationsStore(database), Audit(database), by=who())

    def office(self, **options: Any) -> Office:
        """For a server."""
        from redrive.admin.office import Office  # who only looks needs no more than Redrive itself

        source = self._source()
        database = self._database(source)
        return Office(self._place(source), database, app=self._found(), archives=self.archives, **options)

    def _place(self, source: Source) -> Place:
        app = self._found()
        place = Place(source.broker, source.management, source.data, source.topology)
        if app is None:
            return place
        return replace(place, inbox_windows=app.inbox_windows, header_names=app.header_names)

    @property
    def archives(self) -> Path:
        return environment.data() / "archive"

    def _source(self) -> Source:
        if self.app is not None:
            source = load_source(self.app)
        else:
            source = Source(Topology(), environment.broker(), environment.management())
        return replace(source, broker=self.broker or source.broker, management=self.management or source.management)

    def _database(self, source: Source) -> Database:
        """Named here, by the application, or SQLite in the data folder, whose tables are made when they are needed."""
        url = self.database or environment.database()
        app = self._found()
        if url is None and app is not None and not app.owns_database:
            return app.database
        if url is not None:
            return Database(url)
        database = Database.embedded(source.data or environment.data())
        Schema().upgrade(database)
        return database

    def _found(self) -> App | None:
        found = import_object(self.app) if self.app is not None and ":" in self.app else None
        return found if isinstance(found, App) else None


def who() -> str:
    """Who is acting, as the audit will have it."""
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


def place_options(command: F) -> F:
    """`--app`, `--broker`, `--management`, `--database`; the command gets them as `where`."""

    @functools.wraps(command)
    def wrapped(
        app: str | None, broker: str | None, management: str | None, database: str | None, **others: Any
    ) -> Any:
        return command(where=Where(app, broker, management, database), **others)

    options = [
        _app_option,
        click.option("--broker", metavar="URL", help=f"The broker. [env: {environment.BROKER}]"),
        click.option(
            "--management",
            metavar="URL",
            help=f"RabbitMQ's management API, which tells what plain AMQP cannot. [env: {environment.MANAGEMENT}]",
        ),
        _database_option,
    ]
    for option in reversed(options):
        wrapped = option(wrapped)
    return wrapped  # type: ignore[return-value]


def memory_options(command: F) -> F:
    """`--app` and `--database`, for commands that need no broker; they get them as `where`."""

    @functools.wraps(command)
    def wrapped(app: str | None, database: str | None, **others: Any) -> Any:
        return command(where=Where(app, None, None, database), **others)

    for option in (_database_option, _app_option):
        wrapped = option(wrapped)
    return wrapped  # type: ignore[return-value]
