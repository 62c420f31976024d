"""The SQLite file: how it is made, checked, written and read back. No asyncio here, and no threads.

Messages lie in the order of their ids, like a log, and have no index. That is measured (256-byte bodies in 100
queues, CPU per row): without an index a row costs 6.5 µs to insert and 1.5 to delete; an index on queue and position
makes that 9 and 3, clustering by queue and position 18 and 6.5. Nor would an index help recovery, which would look
for each row in another place, 6.7 s of CPU per million; from front to back it takes 2.8. The price is that emptying
a queue looks at every row, 0.2 s per million, in the background and once for all queues of a batch.

For small bodies pages of 4 to 32 KiB are alike; large bodies like large pages, and 8 KiB is between. The write-ahead
log goes back into the file at 16 MiB, like 4 and better than 64, which slows single commits; it is cut to that size
when one transaction made it longer. The lock on the file is never given back (`locking_mode`), so that no reader can
keep the log from being reused, and no shared memory is needed, which a full disk could refuse.

Recovery reads every page that is in use, so damage is found there, when it is not found sooner; a `quick_check`
before would only read everything twice. Bytes that changed inside a body are not noticed: SQLite has no checksums.
"""

from __future__ import annotations

import errno
import json
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path
from struct import unpack_from
from typing import Any

from redrive.broker.storage.directory import sync_directory
from redrive.broker.storage.journal import Definition, StoredMessage
from redrive.errors import (
    CorruptFile,
    DirectoryInUse,
    DiskFull,
    ForeignFile,
    NewerFile,
    NotWritable,
    StorageError,
    StorageFailed,
)

FORMAT = 1
APPLICATION_ID = 0x5265_4472  # "ReDr", where `file` and we look for it

PAGE_SIZE = 8192
LOG_SIZE = 16 * 1024 * 1024

_SCHEMA = f"""
PRAGMA page_size = {PAGE_SIZE};
BEGIN;
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {FORMAT};
CREATE TABLE definition (
    id      INTEGER PRIMARY KEY,
    kind    TEXT NOT NULL,
    vhost   TEXT NOT NULL,
    name    TEXT NOT NULL,
    value   BLOB NOT NULL
);
CREATE TABLE message (
    id              INTEGER PRIMARY KEY,
    queue           INTEGER NOT NULL,
    position        INTEGER NOT NULL,
    expires_at      INTEGER,
    delivery_count  INTEGER NOT NULL,
    route           BLOB NOT NULL,
    properties      BLOB NOT NULL,
    body            BLOB NOT NULL,
    deaths          BLOB NOT NULL
);
-- Beside the message, not in it: to change a column SQLite writes the whole row again, body and all.
CREATE TABLE returned (
    id              INTEGER PRIMARY KEY,
    delivery_count  INTEGER NOT NULL
);
CREATE TRIGGER forget_returned AFTER DELETE ON message BEGIN DELETE FROM returned WHERE id = old.id; END;
CREATE TABLE delivered (
    queue     INTEGER PRIMARY KEY,
    position  INTEGER NOT NULL
);
COMMIT;
PRAGMA journal_mode = WAL;
"""

# While the thread that writes is inside SQLite the loop's thread runs, and each time it comes out the two contend
# for the interpreter. So it goes in seldom: many rows by one INSERT, everything else as one JSON text. Beside a busy
# loop that carries a sixth more messages than `executemany`, which comes out once per row.
_ROW = "(?, ?, ?, ?, ?, ?, ?, ?, ?)"
_STORE = {rows: f"INSERT INTO message VALUES {', '.join([_ROW] * rows)}" for rows in (64, 8, 1)}
# A statement keeps its parameters in memory until its next use, so large bodies do not travel in company.
_LARGE_BODY = 64 * 1024

_FORGET = "DELETE FROM message WHERE id IN (SELECT value FROM json_each(?))"
_FORGET_QUEUES = "DELETE FROM message WHERE queue IN (SELECT value FROM json_each(?))"
_RETURNED = """
INSERT OR REPLACE INTO returned
SELECT message.id, value FROM json_each(?) JOIN message ON message.id = CAST(key AS INTEGER)
"""
_DELIVERED = """
INSERT INTO delivered SELECT CAST(key AS INTEGER), value FROM json_each(?) WHERE true
ON CONFLICT DO UPDATE SET position = max(position, excluded.position)
"""
_DEFINE = "INSERT OR REPLACE INTO definition VALUES (?, ?, ?, ?, ?)"
_UNDEFINE = "DELETE FROM definition WHERE id = ?"
_UNDELIVERED = "DELETE FROM delivered WHERE queue = ?"

_MESSAGES = """
SELECT message.id, queue, position, expires_at, coalesce(returned.delivery_count, message.delivery_count),
       route, properties, body, deaths
FROM message LEFT JOIN returned ON returned.id = message.id
"""
_IN_ORDER = _MESSAGES + "WHERE queue NOT IN (SELECT value FROM json_each(?)) ORDER BY message.id"
_OUT_OF_ORDER = _MESSAGES + "WHERE queue IN (SELECT value FROM json_each(?)) ORDER BY queue, position"
_HIGHEST_ID = """
SELECT max(coalesce((SELECT max(id) FROM message), 0), coalesce((SELECT max(id) FROM definition), 0))
"""


class Batch:
    """The changes of one transaction, without those that cancel out.

    A message that is published, delivered and acknowledged before its batch is cut leaves no trace: under load that is
    the common case. Of several changes to one thing only the last is kept, so a batch has no order within, except that
    in which it is written: returned, forgotten, stored.
    """

    __slots__ = ("callbacks", "definitions", "delivered", "emptied", "forgotten", "returned", "stored")

    def __init__(self) -> None:
        self.stored: dict[int, StoredMessage] = {}
        self.forgotten: list[int] = []
        self.emptied: set[int] = set()  # queues
        self.returned: dict[int, int] = {}  # message -> delivery count
        self.delivered: dict[int, int] = {}  # queue -> position
        self.definitions: dict[int, Definition | None] = {}  # None: undefined
        self.callbacks: list[Callable[[], None]] = []  # whom to tell when it is on disk

    def forget_queue(self, queue: int) -> None:
        for id in [message.id for message in self.stored.values() if message.queue == queue]:
            del self.stored[id]
        self.emptied.add(queue)

    def note_return(self, id: int, delivery_count: int) -> None:
        message = self.stored.get(id)
        if message is not None:
            self.stored[id] = message._replace(delivery_count=delivery_count)
        else:
            self.returned[id] = delivery_count

    def __len__(self) -> int:
        """The changes to write. A batch may be empty and yet have somebody to tell."""
        changes = len(self.stored) + len(self.forgotten) + len(self.definitions)
        return changes + len(self.emptied) + len(self.returned) + len(self.delivered)

    def __repr__(self) -> str:
        filled = (f" {name}={len(getattr(self, name))}" for name in self.__slots__ if getattr(self, name))
        return f"<Batch{''.join(filled)}>"


class DataFile:
    """May be used by any thread, and by one at a time. What goes wrong is raised as a StorageError."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            if not path.exists():
                _create(path)
            _check_header(path)
            self._db = _open(path)
        except (OSError, sqlite3.Error) as error:
            raise explain(error, path) from error

    # Reading ------------------------------------------------------------------------------------------

    def definitions(self) -> list[Definition]:
        return [Definition(*row) for row in self._select("SELECT * FROM definition ORDER BY id")]

    def delivered_positions(self) -> dict[int, int]:
        return dict(self._select("SELECT queue, position FROM delivered"))

    def highest_id(self) -> int:
        [(id,)] = self._select(_HIGHEST_ID)
        return int(id)

    def counts(self) -> dict[int, int]:
        """How many messages each queue has."""
        return dict(self._select("SELECT queue, count(*) FROM message GROUP BY queue"))

    def messages(self) -> Iterator[StoredMessage]:
        """Each queue's by position. In most queues that is the order of ids, in which they are read at no cost."""
        disordered = self._disordered_queues()
        queues = json.dumps(list(disordered))
        yield from map(StoredMessage._make, self._select(_IN_ORDER, queues))
        if disordered:
            yield from map(StoredMessage._make, self._select(_OUT_OF_ORDER, queues))

    def _disordered_queues(self) -> set[int]:
        """The queues in which a younger message stands before an older one."""
        last: dict[int, int] = {}
        disordered: set[int] = set()
        for queue, position in self._select("SELECT queue, position FROM message ORDER BY id"):
            if position < last.get(queue, position):
                disordered.add(queue)
            last[queue] = position
        return disordered

    def _select(self, sql: str, *parameters: str) -> Iterator[Any]:
        try:
            yield from self._db.execute(sql, parameters)
        except sqlite3.Error as error:
            raise explain(error, self._path) from error

    # Writing ------------------------------------------------------------------------------------------

    def write(self, batch: Batch) -> None:
        """All of it, in one transaction; on return it is on disk."""
        try:
            with self._db:
                self._db.execute("BEGIN IMMEDIATE")
                self._write_definitions(batch.definitions)
                self._write_deliveries(batch)
                self._forget(batch)
                self._store(batch.stored.values())
        except sqlite3.Error as error:
            raise explain(error, self._path) from error

    def _write_definitions(self, definitions: dict[int, Definition | None]) -> None:
        gone = [(id,) for id, definition in definitions.items() if definition is None]
        self._db.executemany(_UNDEFINE, gone)
        self._db.executemany(_UNDELIVERED, gone)
        self._db.executemany(_DEFINE, filter(None, definitions.values()))

    def _write_deliveries(self, batch: Batch) -> None:
        if batch.delivered:
            self._db.execute(_DELIVERED, (json.dumps(batch.delivered),))
        if batch.returned:
            self._db.execute(_RETURNED, (json.dumps(batch.returned),))

    def _forget(self, batch: Batch) -> None:
        if batch.emptied:
            self._db.execute(_FORGET_QUEUES, (json.dumps(list(batch.emptied)),))
        if batch.forgotten:
            self._db.execute(_FORGET, (json.dumps(batch.forgotten),))

    def _store(self, messages: Iterable[StoredMessage]) -> None:
        small: list[StoredMessage] = []
        large: list[StoredMessage] = []
        for message in messages:
            (small if len(message.body) <= _LARGE_BODY else large).append(message)
        start = 0
        for rows, insert in _STORE.items():
            while start + rows <= len(small):
                self._db.execute(insert, list(chain.from_iterable(small[start : start + rows])))
                start += rows
        self._db.executemany(_STORE[1], large)

    def close(self) -> None:
        """The log goes back into the file, as far as there is room for it."""
        self._db.close()

    def __repr__(self) -> str:
        return f"<DataFile {self._path}>"


# Making and opening -----------------------------------------------------------------------------------


def _create(path: Path) -> None:
    """Make a complete file under another name first: one that has the name is whole, whenever the power goes."""
    log = path.with_name(path.name + "-wal")
    if log.exists():
        text = f"is missing, but what was written last is still in {log.name}. Restore it, or move that away too"
        raise StorageError(path, text)
    draft = path.with_name(path.name + ".new")
    for suffix in ("", "-journal", "-wal", "-shm"):  # what a start that was killed may have left
        draft.with_name(draft.name + suffix).unlink(missing_ok=True)
    db = sqlite3.connect(draft, isolation_level=None)
    try:
        db.executescript(_SCHEMA)
    finally:
        db.close()
    os.chmod(draft, 0o600)  # messages and the password hashes of users
    draft.rename(path)
    sync_directory(path.parent)


def _check_header(path: Path) -> None:
    """Whose is it? Asked without SQLite, which would already repair, and so change, what is not ours.

    The database header: https://sqlite.org/fileformat.html#the_database_header
    """
    with path.open("rb+") as file:  # "+": refused here when it may not be written
        header = file.read(100)
    if len(header) < 100 or not header.startswith(b"SQLite format 3\x00"):
        raise ForeignFile(path, "is not a SQLite database. Move it away, or choose another data directory")
    (version,) = unpack_from(">I", header, 60)
    (application,) = unpack_from(">I", header, 68)
    if application != APPLICATION_ID:
        text = "is a SQLite database, but not one of a Redrive broker. Move it away, or choose another data directory"
        raise ForeignFile(path, text)
    _check_version(path, version)


def _check_version(path: Path, version: int) -> None:
    if version > FORMAT:
        raise NewerFile(path, version, FORMAT)


def _open(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, isolation_level=None, timeout=0, check_same_thread=False)
    try:
        db.execute("PRAGMA locking_mode = EXCLUSIVE")
        db.execute("PRAGMA synchronous = FULL")  # in WAL mode: the log is on the disk before COMMIT returns
        db.execute("PRAGMA secure_delete = OFF")
        db.execute(f"PRAGMA wal_autocheckpoint = {LOG_SIZE // PAGE_SIZE}")
        db.execute(f"PRAGMA journal_size_limit = {LOG_SIZE}")
        db.execute("BEGIN IMMEDIATE")  # takes the lock, for good
        [(version,)] = db.execute("PRAGMA user_version")  # again: the log may know better than the header
        _check_version(path, version)
        tables = {name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
        if missing := {"definition", "message", "returned", "delivered"} - tables:
            raise CorruptFile(path, f"it has no table {', '.join(sorted(missing))}")
        db.execute("ROLLBACK")
    except BaseException:
        db.close()
        raise
    return db


# Errors -----------------------------------------------------------------------------------------------

_NO_ROOM = {errno.ENOSPC, errno.EDQUOT}
_NOT_ALLOWED = {errno.EACCES, errno.EPERM, errno.EROFS}


def explain(error: OSError | sqlite3.Error, path: Path) -> StorageError:
    """What the error means to whoever runs the broker."""
    if isinstance(error, OSError):
        return _explain_system(error, path)
    match getattr(error, "sqlite_errorcode", 0) & 0xFF:  # the rest is detail
        case sqlite3.SQLITE_FULL:
            return DiskFull(path)
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
            return CorruptFile(path, str(error))
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return DirectoryInUse(path, None)
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_PERM:
            return NotWritable(path, str(error))
        case _:
            return StorageFailed(path, f"{error} ({getattr(error, 'sqlite_errorname', 'SQLite')})")


def _explain_system(error: OSError, path: Path) -> StorageError:
    if error.errno in _NO_ROOM:
        return DiskFull(path)
    if error.errno in _NOT_ALLOWED:
        return NotWritable(path, error.strerror or str(error))
    return StorageError(path, f"cannot be used ({error})")
