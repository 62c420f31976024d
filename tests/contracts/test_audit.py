"""What the audit promises, on SQLite and on PostgreSQL."""

import re
import sqlite3
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy.exc import DBAPIError

from redrive.database.engine import Database
from redrive.database.schema import Schema
from redrive.errors import AuditUnavailable
from redrive.operations.audit_entry import AuditEntry
from redrive.operations.audit_log import AuditLog

DOCUMENTATION = Path(__file__).parents[2] / "docs" / "audit.md"
NOON = datetime(2024, 5, 17, 12, 0, 0, 123456, tzinfo=UTC)


@pytest.fixture
def audit(fresh_database: Database) -> AuditLog:
    Schema().upgrade(fresh_database)
    return AuditLog(fresh_database)


def entry(by: str = "ann", action: str = "peek", queue: str = "q.dlq", **options: Any) -> AuditEntry:
    return AuditEntry(**{"at": NOON, "by": by, "action": action, "queue": queue, "allowed": True, **options})


def listed(audit: AuditLog, **options: Any) -> list[AuditEntry]:
    return [found for _, found in audit.list_entries(**options)]


# Writing and reading ------------------------------------------------------------------------------


def test_an_entry_is_there_to_the_last_field(audit: AuditLog) -> None:
    full = entry(
        action="re-drive",
        allowed=False,
        operation="op_1",
        filter='error:Timeout since:2h "ü"',
        counts={"planned": None, "moved": 3_000_000_000},
        reason="INC-42",
        detail="may not: q.dlq is for admins",
    )
    audit.write(full)
    audit.write(entry())
    assert listed(audit) == [entry(), full]


def test_moments_come_back_in_utc_from_whatever_zone_they_were_in(audit: AuditLog) -> None:
    audit.write(entry(at=NOON.astimezone(timezone(timedelta(hours=5)))))
    (found,) = listed(audit)
    assert (found.at, found.at.tzinfo) == (NOON, UTC)


def test_entries_are_listed_the_newest_first_page_by_page(audit: AuditLog) -> None:
    for number in range(5):
        audit.write(entry(detail=str(number)))
    page = audit.list_entries(limit=2)
    assert [found.detail for _, found in page] == ["4", "3"]
    assert [found.detail for found in listed(audit, before=page[-1][0])] == ["2", "1", "0"]


def test_entries_are_listed_by_queue_by_person_and_by_action(audit: AuditLog) -> None:
    audit.write(entry("ann", "peek", "a.dlq"))
    audit.write(entry("bob", "discard", "a.dlq"))
    audit.write(entry("ann", "discard", "b.dlq"))
    assert [found.by for found in listed(audit, queue="a.dlq")] == ["bob", "ann"]
    assert [found.queue for found in listed(audit, by="ann")] == ["b.dlq", "a.dlq"]
    assert [found.by for found in listed(audit, action="discard", queue="a.dlq")] == ["bob"]
    assert listed(audit, queue="c.dlq") == []


def test_no_text_keeps_an_entry_from_being_written(audit: AuditLog) -> None:
    """Else whoever puts such a thing into a name or a reason would be told that the database is broken."""
    nasty = "x\0\udcff'; DROP TABLE redrive_audit; --" + "\U0001f600" * 20_000
    audit.write(entry(nasty, nasty, nasty, operation=nasty, filter=nasty, reason=nasty, detail=nasty))
    (found,) = listed(audit, queue=nasty, by=nasty, action=nasty)
    assert found.queue.startswith("x\\x00\\udcff'; DROP")
    assert (len(found.queue), len(found.reason)) == (255, 10_000)


# Only ever added to -------------------------------------------------------------------------------


def change(database: Database, sql: str) -> None:
    with database.engine.begin() as connection:
        connection.exec_driver_sql(sql)


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE redrive_audit SET who = 'nobody'",
        "DELETE FROM redrive_audit",
        "DELETE FROM redrive_audit WHERE number = 1",
    ],
)
def test_entries_can_neither_be_changed_nor_deleted(audit: AuditLog, sql: str) -> None:
    audit.write(entry())
    with pytest.raises(DBAPIError, match="redrive_audit is append-only"):
        change(audit.database, sql)
    assert listed(audit) == [entry()]


def test_the_table_cannot_be_emptied_in_postgresqls_other_way(audit: AuditLog) -> None:
    if not audit.database.is_postgresql:
        pytest.skip("SQLite has no TRUNCATE")
    audit.write(entry())
    with pytest.raises(DBAPIError, match="redrive_audit is append-only"):
        change(audit.database, "TRUNCATE redrive_audit")
    assert listed(audit) == [entry()]


def test_the_owner_of_the_database_removes_old_entries_as_documented(audit: AuditLog) -> None:
    audit.write(entry(at=datetime.now(UTC) - timedelta(days=3 * 365)))
    new = entry(at=datetime.now(UTC))
    audit.write(new)
    scripts = re.findall(r"```sql\n(.*?)```", DOCUMENTATION.read_text(), re.DOTALL)
    run_script(audit.database, scripts[0 if audit.database.is_postgresql else 1])
    assert listed(audit) == [new]
    with pytest.raises(DBAPIError, match="append-only"):
        change(audit.database, "DELETE FROM redrive_audit")


def run_script(database: Database, script: str) -> None:
    """As somebody does who has the database and no Redrive."""
    if database.is_postgresql:
        dsn = database.url.set(drivername="postgresql").render_as_string(hide_password=False)
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(script.encode())
    else:
        file = sqlite3.connect(database.url.database or "")
        file.executescript(script)
        file.close()


# When it cannot be written ------------------------------------------------------------------------


def test_without_its_table_nothing_is_to_be_done(fresh_database: Database) -> None:
    with pytest.raises(AuditUnavailable, match=r"nothing was done: .*redrive_audit.*Make the tables with") as caught:
        AuditLog(fresh_database).write(entry(reason="a secret"))
    assert "a secret" not in str(caught.value)
    assert "INSERT" not in str(caught.value)


async def test_without_a_database_nothing_is_to_be_done(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("this is no folder")
    nowhere = Database(f"sqlite:///{tmp_path / 'file' / 'redrive.db'}")
    with pytest.raises(AuditUnavailable, match=r"nothing was done: .*file"):
        AuditLog(nowhere).write(entry())
    unreachable = Database("postgresql://me:secret@127.0.0.1:1/x?connect_timeout=2")
    with pytest.raises(AuditUnavailable, match="the audit cannot be written, so nothing was done") as caught:
        AuditLog(unreachable).write(entry())
    assert "secret" not in str(caught.value)
    await unreachable.close()


def test_a_moment_without_a_zone_is_not_guessed(audit: AuditLog) -> None:
    with pytest.raises(AuditUnavailable, match="has no time zone"):
        audit.write(entry(at=NOON.replace(tzinfo=None)))
