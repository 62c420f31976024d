"""Engines and sessions, synchronous and not, on SQLite and PostgreSQL.

SQLite is set up to be safe and not to fail for being busy: write-ahead log, full sync, and a wait for the one writer.
A transaction that will write begins as one (`BEGIN IMMEDIATE`), so that two of them queue rather than one failing
half way. A reader (`reading_connection`) begins none, and neither waits for a writer nor keeps one waiting.

PostgreSQL gives up a transaction in which a statement has failed, and answers its COMMIT with ROLLBACK, which is no
error. Who caught the statement's error would take for stored what is not: so such a commit is refused here.

A process that starts creates its tables (`create_tables`) or checks that they exist (`require_tables`). Several
processes may start at once on a new database: `exclusive_transaction` lets one at a time change the schema.
"""

from __future__ import annotations

import hashlib
import os
import socket
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock
from time import monotonic, sleep
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import ArgumentError, PendingRollbackError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.pool import ConnectionPoolEntry

from redrive.database.connection_errors import Outages, explanation
from redrive.errors import ConfigurationError

_AUTOCOMMIT = "AUTOCOMMIT"
_BUSY = 30  # seconds that a writer waits for another
_AGAIN = 0.01  # seconds
_CONNECT = 5  # seconds for a server that does not answer, unless the URL says otherwise (connect_timeout)
_ASYNC_DRIVERS = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+psycopg"}
_SYNC_DRIVERS = {"sqlite": "sqlite+pysqlite", "postgresql": "postgresql+psycopg"}


class Database:
    """A database by its URL: `Database("postgresql+psycopg://...")`, `Database("sqlite:///shop.db")`."""

    def __init__(self, url: str, *, pool_size: int = 20) -> None:
        try:
            self.url = sa.make_url(url)
        except ArgumentError:
            raise ConfigurationError(
                "database URL: want postgresql+psycopg://user:password@host/name or sqlite:///file"
            ) from None
        self.kind = self.url.get_backend_name()
        if self.kind not in _SYNC_DRIVERS:
            raise ConfigurationError(f"database {self.kind}: Redrive knows sqlite and postgresql")
        self._pool_size = pool_size
        self.outages = Outages()
        self._making = Lock()
        self._engine: sa.Engine | None = None
        self._async_engine: AsyncEngine | None = None

    @classmethod
    def embedded(cls, folder: Path) -> Database:
        """Return the SQLite database in a data folder."""
        path = folder / "redrive.db"
        with suppress(OSError):  # it does not exist, or belongs to another user
            path.chmod(0o600)
        return cls(f"sqlite:///{path}")

    @property
    def is_postgresql(self) -> bool:
        """Return whether the database is PostgreSQL; otherwise it is SQLite."""
        return self.kind == "postgresql"

    @property
    def file_mark(self) -> str:
        """By which SQLite's file is told from all others, on all machines."""
        place = f"{socket.gethostname()}:{Path(self.url.database or '').resolve()}"
        return hashlib.sha256(place.encode()).hexdigest()[:12]

    @property
    def engine(self) -> sa.Engine:
        """The same for all threads, whichever of them comes first."""
        with self._making:
            if self._engine is None:
                options = self._options(_SYNC_DRIVERS)
                engine = sa.create_engine(options.pop("url"), **options)
                self._set_up(engine)
                self._engine = engine
            return self._engine

    @property
    def async_engine(self) -> AsyncEngine:
        """Return SQLAlchemy's engine for coroutines."""
        if self._async_engine is None:
            options = self._options(_ASYNC_DRIVERS)
            self._async_engine = create_async_engine(options.pop("url"), **options)
            self._set_up(self._async_engine.sync_engine)
        return self._async_engine

    def _set_up(self, engine: sa.Engine) -> None:
        (_set_up_postgresql if self.is_postgresql else _set_up_sqlite)(engine)
        self.outages.watch(engine)

    def _options(self, drivers: dict[str, str]) -> dict[str, Any]:
        # Errors are told in headers and logs, where the values of a statement, a message's content, have no business.
        options: dict[str, Any] = {"url": self.url.set(drivername=drivers[self.kind]), "hide_parameters": True}
        if self.is_postgresql:
            options |= {"pool_size": self._pool_size, "max_overflow": 0, "pool_pre_ping": True, "pool_recycle": 1800}
            if "connect_timeout" not in self.url.query:
                options["connect_args"] = {"connect_timeout": _CONNECT}
        else:
            options["connect_args"] = {"timeout": _BUSY}
            if self.url.database and not self.url.database.startswith((":memory:", "file:")):
                _make_file(Path(self.url.database))
        return options

    @contextmanager
    def reading_connection(self) -> Iterator[sa.Connection]:
        """A connection for reading what is committed, statement by statement."""
        with self.engine.connect().execution_options(isolation_level=_AUTOCOMMIT) as connection:
            yield connection

    # Starting -----------------------------------------------------------------------------------------

    @contextmanager
    def exclusive_transaction(self, name: str) -> Iterator[sa.Connection]:
        """Open a transaction that only one process at a time can be in. `name` is the lock's, on PostgreSQL."""
        with self.engine.begin() as connection:
            if self.is_postgresql:  # SQLite's transactions wait for each other anyway
                lock = sa.func.pg_advisory_xact_lock(sa.func.hashtextextended(name, 0))
                connection.execute(sa.select(lock))
            yield connection

    def create_tables(self, metadata: sa.MetaData) -> None:
        """Create the tables of an application that do not exist. Several processes may do so at the same moment."""
        with self.exclusive_transaction("redrive_create_tables") as connection:
            metadata.create_all(connection)

    def require_tables(self, tables: Iterable[str], create: str = "run the application's migrations") -> None:
        """Raise one error that names the tables that do not exist, and says how to `create` them.

        For the start of a process: a message whose handling fails for want of a table is parked in the end, and it is
        not the message's fault. The tables of a `MetaData` are its keys: `require_tables(metadata.tables)`.
        """
        known = sa.inspect(self.engine)
        if missing := [table for table in tables if not known.has_table(table)]:
            raise ConfigurationError(f"there is no table {' nor '.join(missing)} in {self}: {create}")

    @contextmanager
    def explain_errors(self) -> Iterator[None]:
        """Raise errors of the driver as errors that say in a sentence what to do: for the start of a process."""
        try:
            yield
        except SQLAlchemyError as error:
            raise explanation(error, str(self)) from None

    def delete_in_batches(self, table: sa.Table, where: sa.ColumnElement[bool], batch: int) -> int:
        """Run transactions that each delete at most `batch` rows, until none is left. Return how many there were.

        `where` must select at most that many rows at a time.
        """
        removed = 0
        while True:
            with self.engine.begin() as connection:
                count = connection.execute(sa.delete(table).where(where)).rowcount
            removed += count
            if count < batch:
                return removed

    # Sessions -----------------------------------------------------------------------------------------

    def sessions(self) -> sessionmaker[Session]:
        """Return a factory of sessions for plain functions."""
        return sessionmaker(self.engine, expire_on_commit=False)

    def async_sessions(self) -> async_sessionmaker[AsyncSession]:
        """Return a factory of sessions for coroutines."""
        return async_sessionmaker(self.async_engine, expire_on_commit=False)

    async def close(self) -> None:
        """Close every connection."""
        if self._engine is not None:
            self._engine.dispose()
        if self._async_engine is not None:
            await self._async_engine.dispose()
        self._engine = self._async_engine = None

    @property
    def location(self) -> str:
        """Return where it is, without a password: the whole path of a file, or a URL."""
        path = self.url.database
        return str(self) if self.is_postgresql or not path or path == ":memory:" else str(Path(path).resolve())

    def __str__(self) -> str:
        return self.url.render_as_string(hide_password=True)

    def __repr__(self) -> str:
        return f"<Database {self}>"


def _make_file(path: Path) -> None:
    """For its owner alone: it holds what messages hold, and digests of keys. One that exists stays as it is."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with suppress(FileExistsError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise ConfigurationError(f"cannot create the database {path}: {error.strerror}") from None


def _set_up_sqlite(engine: sa.Engine) -> None:
    @event.listens_for(engine, "connect")
    def on_connect(connection: Any, _: ConnectionPoolEntry) -> None:
        connection.isolation_level = None  # the driver begins nothing by itself: `begun` does
        cursor = connection.cursor()
        _write_ahead(cursor)
        for pragma in ("synchronous=FULL", "foreign_keys=ON", f"busy_timeout={_BUSY * 1000}"):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    @event.listens_for(engine, "begin")
    def on_begin(connection: sa.Connection) -> None:
        if connection.get_execution_options().get("isolation_level") != _AUTOCOMMIT:
            connection.exec_driver_sql("BEGIN IMMEDIATE")


def _set_up_postgresql(engine: sa.Engine) -> None:
    @event.listens_for(engine, "commit")
    def on_commit(connection: sa.Connection) -> None:
        driver: Any = connection.connection.driver_connection
        if driver.info.transaction_status.name == "INERROR":  # known here: PostgreSQL is not asked
            raise PendingRollbackError(
                "a statement of this transaction failed, so that PostgreSQL can only roll all of it back: nothing is "
                "committed. To go on after an error, catch it around a savepoint: `with session.begin_nested(): ...`"
            )


def _write_ahead(cursor: Any) -> None:
    """For this SQLite does not wait as for all else: of two who open a new file at the same moment, one is told at once
    that it is locked.
    """
    until = monotonic() + _BUSY
    while True:
        try:
            cursor.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or monotonic() > until:
                raise
            sleep(_AGAIN)
