"""A database is opened once, by whoever comes first."""

from __future__ import annotations

import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import sqlalchemy as sa

from redrive.database import engine as databases
from redrive.database.engine import Database
from redrive.errors import ConfigurationError, DatabaseUnavailable


def test_threads_that_come_together_get_the_same_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    database, together = Database(f"sqlite:///{tmp_path / 'shop.db'}"), threading.Barrier(2)
    create = databases.sa.create_engine

    def slowly(*args: object, **options: object) -> object:
        try:
            together.wait(0.2)  # for another one who makes one, and who must not come
        except threading.BrokenBarrierError:
            pass
        return create(*args, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(databases.sa, "create_engine", slowly)
    with ThreadPoolExecutor(4) as threads:
        engines = list(threads.map(lambda _: database.engine, range(4)))

    assert len({id(engine) for engine in engines}) == 1


def test_an_engine_is_set_up_before_anybody_has_it(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'shop.db'}")

    with database.reading_connection() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2


async def test_the_database_and_its_folder_are_for_their_owner_alone(tmp_path: Path) -> None:
    database = Database.embedded(tmp_path / "data")
    with database.engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE t (x INTEGER)"))
    files = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "data").iterdir()}
    await database.close()

    assert stat.S_IMODE((tmp_path / "data").stat().st_mode) == 0o700
    assert "redrive.db" in files
    assert set(files.values()) == {0o600}


async def test_an_older_database_of_the_data_folder_is_closed_to_others(tmp_path: Path) -> None:
    path = tmp_path / "redrive.db"
    path.touch(mode=0o644)

    await Database.embedded(tmp_path).close()

    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("path", ["/proc/nowhere/shop.db", "/dev/null/shop.db"])
def test_a_file_that_cannot_be_created_is_named(path: str) -> None:
    with pytest.raises(ConfigurationError, match=f"cannot create the database {path}: "):
        _ = Database(f"sqlite:///{path}").engine


def test_an_outage_is_explained_and_so_is_a_statement_that_is_refused(tmp_path: Path) -> None:
    folder, file = Database(f"sqlite:///{tmp_path}"), Database(f"sqlite:///{tmp_path / 'shop.db'}")

    unreachable = pytest.raises(DatabaseUnavailable, match=r"reached: unable to open database file\. Start it")
    with unreachable, folder.explain_errors(), folder.reading_connection():
        pass
    refused = pytest.raises(ConfigurationError, match="cannot be used: no such table: orders")
    with refused, file.explain_errors(), file.reading_connection() as connection:
        connection.exec_driver_sql("SELECT * FROM orders")
