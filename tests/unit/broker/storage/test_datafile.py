"""The file is made whole, and is refused, untouched, when it is not one that we can use."""

import errno
import pickle
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from redrive.broker.storage.datafile import FORMAT, LOG_SIZE, PAGE_SIZE, Batch, DataFile, explain
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
from unit.broker.storage.samples import definition, message


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "broker.sqlite3"


@pytest.fixture
def file(path: Path) -> Iterator[DataFile]:
    with closing(DataFile(path)) as file:
        yield file


def batch_of(ids: range, body: bytes = b"hello") -> Batch:
    batch = Batch()
    batch.stored = {id: message(id, body=body) for id in ids}
    return batch


def written(path: Path, batch: Batch) -> None:
    with closing(DataFile(path)) as file:
        file.write(batch)


def found(path: Path) -> list[int]:
    with closing(DataFile(path)) as file:
        return [message.id for message in file.messages()]


# Making and opening -------------------------------------------------------------------------------


def test_a_new_file_is_empty(file: DataFile, path: Path) -> None:
    assert file.definitions() == []
    assert list(file.messages()) == []
    assert file.delivered_positions() == {}
    assert file.highest_id() == 0
    assert repr(file) == f"<DataFile {path}>"


def test_a_new_file_is_for_its_owner_only(file: DataFile, path: Path) -> None:
    file.write(batch_of(range(1, 2)))

    assert {name.name: oct(name.stat().st_mode & 0o777) for name in path.parent.iterdir()} == {
        "broker.sqlite3": "0o600",
        "broker.sqlite3-wal": "0o600",
    }


def test_a_commit_waits_for_the_disk(file: DataFile) -> None:
    settings = {
        name: file._db.execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("journal_mode", "synchronous", "locking_mode", "page_size")
    }

    assert settings == {"journal_mode": "wal", "synchronous": 2, "locking_mode": "exclusive", "page_size": PAGE_SIZE}


def test_what_a_killed_start_left_is_swept_away(path: Path) -> None:
    for suffix in ("", "-journal", "-wal", "-shm"):
        path.with_name(f"broker.sqlite3.new{suffix}").write_bytes(b"half of something")

    assert found(path) == []
    assert [name.name for name in path.parent.iterdir()] == ["broker.sqlite3"]


def test_a_file_that_another_program_has_open_is_refused(path: Path) -> None:
    written(path, batch_of(range(1, 4)))
    with closing(sqlite3.connect(path)) as other:
        other.execute("SELECT * FROM message").fetchone()
        with pytest.raises(DirectoryInUse, match="in use by another program"):
            DataFile(path)

    assert found(path) == [1, 2, 3]


@pytest.mark.usefixtures("file")
def test_no_other_program_can_open_the_file_meanwhile(path: Path) -> None:
    with closing(sqlite3.connect(path, timeout=0)) as other, pytest.raises(sqlite3.OperationalError, match="locked"):
        other.execute("SELECT * FROM message")


# Refusing -----------------------------------------------------------------------------------------


def refused(path: Path, kind: type[StorageError], words: str) -> None:
    """With an error of this kind, in these words, and everything in the directory as it was."""
    before = {name: name.read_bytes() for name in path.parent.iterdir()}
    with pytest.raises(kind, match=words):
        found(path)

    assert {name: name.read_bytes() for name in path.parent.iterdir()} == before


@pytest.mark.parametrize("content", [b"", b"SQLite format 3\x00", b"To do: buy milk\n" * 1000], ids=len)
def test_a_file_that_is_no_database_is_refused(path: Path, content: bytes) -> None:
    path.write_bytes(content)

    refused(path, ForeignFile, "is not a SQLite database. Move it away")


def test_a_database_that_is_not_a_brokers_is_refused(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE message (id INTEGER PRIMARY KEY)")

    refused(path, ForeignFile, "but not one of a Redrive broker")


def test_a_newer_file_is_refused(path: Path) -> None:
    written(path, batch_of(range(1, 4)))
    with closing(sqlite3.connect(path)) as db:
        db.execute(f"PRAGMA user_version = {FORMAT + 1}")

    refused(path, NewerFile, rf"written by a newer Redrive \(format {FORMAT + 1}, this one knows {FORMAT}\)")


def test_a_file_that_became_newer_right_before_the_power_went_is_refused(path: Path, tmp_path: Path) -> None:
    written(path, batch_of(range(1, 4)))
    after = tmp_path / "after"
    after.mkdir()
    with closing(sqlite3.connect(path)) as db:
        db.execute(f"PRAGMA user_version = {FORMAT + 1}")
        for suffix in ("", "-wal"):
            shutil.copy(f"{path}{suffix}", after)

    with pytest.raises(NewerFile):
        DataFile(after / path.name)


def test_a_file_without_its_tables_is_refused(path: Path) -> None:
    written(path, batch_of(range(1, 4)))
    with closing(sqlite3.connect(path)) as db:
        db.executescript("DROP TABLE delivered; DROP TABLE returned;")

    refused(path, CorruptFile, "it has no table delivered, returned")


def test_a_log_without_its_file_is_refused(path: Path) -> None:
    path.with_name("broker.sqlite3-wal").write_bytes(b"what was written last")

    refused(path, StorageError, "is missing, but what was written last is still in broker.sqlite3-wal")


def truncated(content: bytes) -> bytes:
    return content[: len(content) // 2]


def overwritten(content: bytes) -> bytes:
    """All pages but the first, which holds the schema."""
    return content[:PAGE_SIZE] + b"\xa5" * (len(content) - PAGE_SIZE)


@pytest.mark.parametrize("damage", [truncated, overwritten])
def test_a_damaged_file_is_refused(path: Path, damage: Callable[[bytes], bytes]) -> None:
    written(path, batch_of(range(1, 1000)))
    path.write_bytes(damage(path.read_bytes()))

    refused(path, CorruptFile, "is damaged .*malformed.* restore it from a backup")


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), DiskFull, "the disk is full.*make room"),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), DiskFull, "the disk is full"),
        (OSError(errno.EROFS, "Read-only file system"), NotWritable, "cannot be written .Read-only file system"),
        (OSError(errno.EACCES, "Permission denied"), NotWritable, "cannot be written .Permission denied"),
        (NotADirectoryError(errno.ENOTDIR, "Not a directory"), StorageError, "cannot be used .*Not a directory"),
        (sqlite3.SQLITE_FULL, DiskFull, "the disk is full"),
        (sqlite3.SQLITE_CORRUPT, CorruptFile, "is damaged"),
        (sqlite3.SQLITE_NOTADB, CorruptFile, "is damaged"),
        (sqlite3.SQLITE_BUSY, DirectoryInUse, "in use"),
        (sqlite3.SQLITE_READONLY, NotWritable, "cannot be written"),
        (sqlite3.SQLITE_CANTOPEN, NotWritable, "cannot be written"),
        (sqlite3.SQLITE_IOERR | 4 << 8, StorageFailed, "SQLite's words.*nothing is confirmed any more"),
    ],
)
def test_an_error_says_what_is_wrong_and_what_to_do(error: OSError | int, kind: type[StorageError], words: str) -> None:
    explained = explain(error if isinstance(error, OSError) else sqlite_error(error), Path("/data/broker.sqlite3"))

    assert type(explained) is kind
    with pytest.raises(kind, match=f"^/data/broker.sqlite3: .*{words}"):
        raise explained


def sqlite_error(code: int) -> sqlite3.Error:
    error = sqlite3.OperationalError("SQLite's words")
    error.sqlite_errorcode = code
    return error


@pytest.mark.parametrize(
    "error",
    [
        StorageError(Path("/data"), "is gone"),
        DirectoryInUse(Path("/data"), 4711),
        NewerFile(Path("/data"), 9, 1),
        CorruptFile(Path("/data"), "malformed"),
        DiskFull(Path("/data")),
    ],
)
def test_an_error_survives_the_way_to_another_process(error: StorageError) -> None:
    again = pickle.loads(pickle.dumps(error))

    assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))


# Writing ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 7, 8, 63, 64, 65, 200])
def test_any_number_of_messages_is_written(file: DataFile, count: int) -> None:
    file.write(batch_of(range(1, count + 1)))

    assert [message.id for message in file.messages()] == list(range(1, count + 1))


@pytest.mark.parametrize("size", [0, 1, 64 * 1024, 64 * 1024 + 1, 16 * 1024 * 1024])
def test_bodies_of_any_size_come_back(file: DataFile, size: int) -> None:
    body = bytes(range(256)) * (size // 256 + 1)
    file.write(batch_of(range(1, 3), body[:size]))

    assert [message.body == body[:size] for message in file.messages()] == [True, True]


def test_a_batch_that_fails_halfway_leaves_nothing(file: DataFile) -> None:
    file.write(batch_of(range(5, 6)))
    batch = batch_of(range(1, 10))
    batch.definitions[20] = definition(20)
    with pytest.raises(StorageFailed, match="UNIQUE constraint failed"):
        file.write(batch)

    assert [message.id for message in file.messages()] == [5]
    assert file.definitions() == []


def test_messages_in_the_middle_can_be_forgotten(file: DataFile) -> None:
    file.write(batch_of(range(1, 101)))
    batch = Batch()
    batch.forgotten = [3, 99, 50, 51, 12345]
    file.write(batch)

    assert {message.id for message in file.messages()} == set(range(1, 101)) - set(batch.forgotten)


def test_the_count_of_a_message_goes_with_it(file: DataFile) -> None:
    file.write(batch_of(range(1, 3)))
    batch = Batch()
    batch.returned = {1: 4, 2: 5, 77: 6}
    file.write(batch)
    assert [message.delivery_count for message in file.messages()] == [4, 5]
    batch = Batch()
    batch.forgotten = [1, 2]
    file.write(batch)

    assert file._db.execute("SELECT * FROM returned").fetchall() == []


def test_the_log_does_not_grow_without_end(file: DataFile, path: Path) -> None:
    log = path.with_name("broker.sqlite3-wal")
    file.write(batch_of(range(40), bytes(1024 * 1024)))
    assert log.stat().st_size > 2 * LOG_SIZE  # one transaction, however large, is in the log as a whole
    for start in range(100, 200, 20):
        file.write(batch_of(range(start, start + 20), bytes(100 * 1024)))

    assert log.stat().st_size <= 1.25 * LOG_SIZE
