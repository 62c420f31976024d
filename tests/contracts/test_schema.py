"""The tables are made, and changed step by step, on SQLite and on PostgreSQL."""

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
import sqlalchemy as sa

from redrive.database.application_tables import OutboxNames, inbox_table, outbox_table
from redrive.database.engine import Database
from redrive.database.schema import LATEST, VERSION_TABLE, Schema
from redrive.errors import ConfigurationError

FIRST = {"redrive_outbox", "redrive_inbox"}
SECOND = {"redrive_operations", "redrive_operation_items", "redrive_audit"}
THIRD = {"redrive_keys", "redrive_sessions", "redrive_plans", "redrive_requests"}

UPGRADE = """
import sys
from redrive.database.engine import Database
from redrive.database.schema import Schema
database, schema = Database(sys.argv[1]), Schema()
import alembic.migration, alembic.operations  # takes its time: let all begin together
print("ready", flush=True)
sys.stdin.readline()
print(schema.upgrade(database))
"""
CREATE = """
import sys
import sqlalchemy as sa
from redrive.database.engine import Database
database, metadata = Database(sys.argv[1]), sa.MetaData()
for number in range(20):
    sa.Table(f"own_{number}", metadata, sa.Column("id", sa.Integer, primary_key=True))
print("ready", flush=True)
sys.stdin.readline()
print(database.create_tables(metadata))
"""


def tables_of(database: Database) -> set[str]:
    return set(sa.inspect(database.engine).get_table_names())


def version_of(database: Database) -> list[str]:
    with database.reading_connection() as connection:
        return list(connection.execute(sa.text(f"SELECT version_num FROM {VERSION_TABLE}")).scalars())


def take_first_step(database: Database) -> None:
    """As the first version of Redrive left a database, with something in it."""
    metadata = sa.MetaData()
    outbox_table(metadata)
    inbox_table(metadata)
    metadata.create_all(database.engine)
    with database.engine.begin() as connection:
        connection.exec_driver_sql(f"CREATE TABLE {VERSION_TABLE} (version_num VARCHAR(32) NOT NULL PRIMARY KEY)")
        connection.exec_driver_sql(f"INSERT INTO {VERSION_TABLE} VALUES ('0001')")
        connection.exec_driver_sql("INSERT INTO redrive_inbox (consumer, message_id) VALUES ('orders', 'm-1')")


def test_everything_is_made_from_nothing_and_once(fresh_database: Database) -> None:
    assert Schema().upgrade(fresh_database) is True
    assert tables_of(fresh_database) == FIRST | SECOND | THIRD | {VERSION_TABLE}
    assert version_of(fresh_database) == [LATEST] == ["0004"]
    assert Schema().upgrade(fresh_database) is False


def test_the_names_of_all_tables_that_are_made_are_known(fresh_database: Database) -> None:
    schema = Schema(OutboxNames("nfe_outbox_event"), "nfe_inbox")
    schema.upgrade(fresh_database)
    assert schema.tables == tables_of(fresh_database)


def test_a_database_of_the_first_step_gets_what_is_missing_and_keeps_what_it_has(fresh_database: Database) -> None:
    take_first_step(fresh_database)
    assert Schema().upgrade(fresh_database) is True
    assert tables_of(fresh_database) == FIRST | SECOND | THIRD | {VERSION_TABLE}
    assert version_of(fresh_database) == [LATEST]
    with fresh_database.reading_connection() as connection:
        assert connection.execute(sa.text("SELECT message_id FROM redrive_inbox")).scalars().all() == ["m-1"]


def test_operations_of_the_third_step_get_the_count_of_possibly_duplicated_messages(fresh_database: Database) -> None:
    Schema().upgrade(fresh_database)
    with fresh_database.engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE redrive_operations DROP COLUMN possibly_duplicated")
        connection.exec_driver_sql(f"UPDATE {VERSION_TABLE} SET version_num = '0003'")
        connection.exec_driver_sql(
            "INSERT INTO redrive_operations (id, queue, asked, created_at, state, moved, skipped, failed, returned, "
            "step, owner, note) VALUES ('op_1', 'q', '{}', '2026-01-01 00:00:00', 'SUCCEEDED', 3, 0, 0, 0, 0, '', '')"
        )

    assert Schema().upgrade(fresh_database) is True

    assert version_of(fresh_database) == [LATEST]
    with fresh_database.reading_connection() as connection:
        assert connection.execute(sa.text("SELECT possibly_duplicated FROM redrive_operations")).scalars().all() == [0]


def test_a_step_that_fails_leaves_the_database_as_it_was(
    fresh_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_first_step(fresh_database)
    monkeypatch.setattr("redrive.database.schema.append_only_statements", lambda _: ["NONSENSE"])
    with pytest.raises(sa.exc.DBAPIError):
        Schema().upgrade(fresh_database)
    assert tables_of(fresh_database) == FIRST | {VERSION_TABLE}
    assert version_of(fresh_database) == ["0001"]


def test_an_up_to_date_database_is_not_kept_waiting_by_a_writer(fresh_database: Database) -> None:
    Schema().upgrade(fresh_database)
    with fresh_database.engine.begin() as writer:
        writer.exec_driver_sql("INSERT INTO redrive_inbox (consumer, message_id) VALUES ('orders', 'm-1')")
        assert Schema().upgrade(fresh_database) is False


def race(program: str, database: Database) -> list[str]:
    """Let four processes run a program at the same moment, and return what each prints."""
    command = [sys.executable, "-c", program, database.url.render_as_string(hide_password=False)]
    racers = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()
    said = [racer.communicate(timeout=120) for racer in racers]
    assert [racer.returncode for racer in racers] == [0, 0, 0, 0], said
    return sorted(out.strip() for out, _ in said)


def test_processes_that_upgrade_at_the_same_moment_do_it_once(fresh_database: Database) -> None:
    assert race(UPGRADE, fresh_database) == ["False", "False", "False", "True"]
    assert version_of(fresh_database) == [LATEST]


def test_processes_that_create_their_own_tables_at_the_same_moment_all_succeed(fresh_database: Database) -> None:
    race(CREATE, fresh_database)

    assert tables_of(fresh_database) == {f"own_{number}" for number in range(20)}


def test_tables_that_are_required_and_missing_are_one_error_that_names_them_all(fresh_database: Database) -> None:
    metadata = sa.MetaData()
    for name in ("orders", "customers", "invoices"):
        sa.Table(name, metadata, sa.Column("id", sa.Integer, primary_key=True))
    metadata.tables["orders"].create(fresh_database.engine)

    with pytest.raises(ConfigurationError, match=r"^there is no table customers nor invoices in .*: alembic upgrade"):
        fresh_database.require_tables(metadata.tables, create="alembic upgrade head")

    fresh_database.create_tables(metadata)
    fresh_database.require_tables(metadata.tables)


async def test_a_new_file_that_another_is_writing_to_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not a write-ahead log yet, and SQLite does not wait with making it one."""
    writer = sqlite3.connect(tmp_path / "redrive.db", isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    monkeypatch.setattr("redrive.database.engine.sleep", lambda _: writer.close())
    database = Database.embedded(tmp_path)
    assert Schema().upgrade(database) is True
    await database.close()


def test_the_printed_sql_makes_everything_and_an_upgrade_after_it_too(fresh_database: Database) -> None:
    sql = Schema().sql(fresh_database.kind)
    with fresh_database.engine.begin() as connection:
        for statement in filter(str.strip, sql.split(";\n")):
            connection.exec_driver_sql(statement)
    assert tables_of(fresh_database) == FIRST | SECOND | THIRD
    assert Schema().upgrade(fresh_database) is True
    assert version_of(fresh_database) == [LATEST]


def test_a_database_of_a_newer_redrive_is_left_alone(fresh_database: Database) -> None:
    Schema().upgrade(fresh_database)
    with fresh_database.engine.begin() as connection:
        connection.exec_driver_sql(f"UPDATE {VERSION_TABLE} SET version_num = '9999'")
    with pytest.raises(ConfigurationError, match=r"made by a newer Redrive \(version 9999\): upgrade Redrive"):
        Schema().upgrade(fresh_database)


async def test_the_embedded_database_is_made_in_a_folder_that_is_not_there_yet(tmp_path: Path) -> None:
    database = Database.embedded(tmp_path / "new" / "folder")
    assert Schema().upgrade(database) is True
    assert tables_of(database) >= SECOND | THIRD
    await database.close()


async def test_an_error_does_not_tell_the_values_of_its_statement(fresh_database: Database) -> None:
    """It goes into headers and logs, and the values came from a message."""
    for engine in (fresh_database.engine, fresh_database.async_engine.sync_engine):
        assert engine.hide_parameters
    with pytest.raises(sa.exc.SQLAlchemyError) as raised, fresh_database.engine.begin() as connection:
        connection.execute(sa.text("INSERT INTO nowhere VALUES (:name)"), {"name": "Ada"})

    assert "nowhere" in str(raised.value)
    assert "Ada" not in str(raised.value)
