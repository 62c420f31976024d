"""Is the database unavailable, or is a statement wrong?

A consumer whose database cannot be reached waits for it; one whose statement fails has failed. The error says which:

    PostgreSQL    SQLSTATE class 08 (connection), class 53 (disk full, out of memory, too many connections), 57P01 to
                  57P05 (shut down, crashed, starting up), 25006 (a standby, or set read-only because its disk is full),
                  class 28 and 3D000 (the server refuses the login, or has no such database), and errors of the
                  connection itself, which have no SQLSTATE
    SQLite        locked, cannot open, read-only, disk full, I/O error
    the pool      no connection became free in time

Everything else (a constraint, a missing table, a deadlock, a statement timeout) is about the statement.

An error that reaches a consumer may have been wrapped by the handler, or be another database's. So `Outages` remembers
which connections of one engine failed because of an outage: a transaction asks for its own.
"""

from __future__ import annotations

import sqlite3
from typing import Any
from weakref import WeakSet

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from redrive.errors import ConfigurationError, DatabaseUnavailable, RedriveError

_SQLSTATES = ("08", "53", "57P01", "57P02", "57P03", "57P05", "25006", "28", "3D000")  # they begin with
_ENDS = ("08", "57P")  # after which the server closes the connection
_MOST_REASON = 300  # characters
_PRIMARY = 0xFF  # the bits of SQLite's primary result code
_SQLITE_CODES = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_PROTOCOL,
    }
)


def is_outage(error: BaseException) -> bool:
    """Return whether an error of SQLAlchemy means that the database is unavailable."""
    if isinstance(error, PoolTimeout):
        return True
    if not isinstance(error, DBAPIError):
        return False
    driver: Any = error.orig
    if isinstance(driver, sqlite3.Error):
        return getattr(driver, "sqlite_errorcode", 0) & _PRIMARY in _SQLITE_CODES
    state = getattr(driver, "sqlstate", None)
    if state is not None:
        return str(state).startswith(_SQLSTATES)
    return isinstance(error, OperationalError | InterfaceError)  # of the connection: a server's errors have a state


def reason(error: SQLAlchemyError) -> str:
    """Return what the driver reports, in one line: without the statement and without SQLAlchemy's own remarks."""
    return " ".join(str(getattr(error, "orig", None) or error).split())


def problem(error: SQLAlchemyError) -> str:
    """Return in one line what the database reports, and what to do if its tables are missing."""
    said = reason(error)[:_MOST_REASON]
    hint = ". Make the tables: redrive db upgrade APP" if "no such table" in said or "does not exist" in said else ""
    return f"the database: {said}{hint}"


def explanation(error: SQLAlchemyError, database: str = "the database") -> RedriveError:
    """Return an error that says in a sentence why a database cannot be used, and what to do."""
    why = reason(error).partition(" Is the server running on")[0].rstrip(".")
    if not is_outage(error):
        return ConfigurationError(f"{database} cannot be used: {why}")
    # A refused connection has no SQLSTATE: that the server lacks the database only its words say.
    if 'database "' in why and "does not exist" in why:
        return ConfigurationError(f"{database} cannot be used: {why}. Create it, or correct REDRIVE_DATABASE")
    return DatabaseUnavailable(f"{database} cannot be reached: {why}. Start it, or correct REDRIVE_DATABASE")


class Outages:
    """The connections of a database that failed because it was unavailable."""

    def __init__(self) -> None:
        self._failed: WeakSet[sa.Connection] = WeakSet()

    def watch(self, engine: sa.Engine) -> None:
        @event.listens_for(engine, "handle_error")
        def on_error(context: Any) -> None:
            error = context.sqlalchemy_exception or context.original_exception
            if context.connection is not None and is_outage(error):
                self._failed.add(context.connection)
                if str(getattr(context.original_exception, "sqlstate", None)).startswith(_ENDS):
                    context.is_disconnect = True  # the driver may not have read the end of the stream yet

    def hit(self, connection: sa.Connection) -> bool:
        """Return whether one of this connection's statements failed because of an outage."""
        return connection in self._failed

    def __repr__(self) -> str:
        return f"<Outages connections={len(self._failed)}>"
