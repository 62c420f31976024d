"""`redrive outbox` and `redrive db`, as their user types them, on SQLite in a folder."""

from __future__ import annotations

import json
import sqlite3
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa
from click.testing import CliRunner, Result

from redrive.app import App
from redrive.cli import main
from redrive.cli.loading import load_app
from redrive.outbox.repository import OutboxRepository, RefusedRow

PROGRAM = """
from redrive import App
from redrive.outbox.outbox import OutboxPolicy
app = App("shop", database="sqlite:///shop.db", outbox_policy=OutboxPolicy(keep="1d"))
nothing = "no app"

@app.consumer("orders", inbox=True)
async def handle(order: dict) -> None: ...
"""


@pytest.fixture(autouse=True)
def _own_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    for variable in ("REDRIVE_BROKER", "REDRIVE_DATABASE", "REDRIVE_DATA"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "shop.py").write_text(PROGRAM)
    yield
    shop = sys.modules.pop("shop", None)
    if shop is not None:
        shop.app.database.engine.dispose()


def redrive(*arguments: str, answer: str | None = None) -> Result:
    return CliRunner().invoke(main, arguments, input=answer)


@pytest.fixture
def app() -> App:
    assert redrive("db", "upgrade", "shop:app").exit_code == 0
    return load_app("shop:app")


def add(app: App, *keys: str) -> None:
    with app.database.sessions()() as session, session.begin():
        for key in keys:
            app.outbox.add(session, "events", key, {"key": key})


def park(app: App) -> None:
    """As a relay does with what the broker refuses for good."""
    claims = OutboxRepository(app.database, app.outbox.table)
    with claims.claim(100) as claim:
        claim.settle([], [RefusedRow(row.id, "no queue is bound for it", None) for row in claim.rows])


def publish(app: App) -> None:
    claims = OutboxRepository(app.database, app.outbox.table, keep=timedelta(days=1))
    with claims.claim(100) as claim:
        claim.settle([row.id for row in claim.rows], [])


# status and ls ------------------------------------------------------------------------------------


def test_status_tells_what_waits_since_when_and_what_is_parked(app: App) -> None:
    assert redrive("outbox", "status", "shop:app").stdout == "0 pending; 0 parked\n"
    add(app, "a", "b")
    park(app)
    add(app, "c")
    said = redrive("outbox", "status", "shop:app").stdout
    assert said.startswith("1 pending, the oldest for ")
    assert said.endswith("; 2 parked\n")


def test_status_as_json_has_the_age_in_seconds(app: App) -> None:
    empty = json.loads(redrive("outbox", "status", "shop:app", "--json").stdout)
    assert empty == {"pending": 0, "oldest": None, "parked": 0, "oldest_seconds": None}
    add(app, "a")
    found = json.loads(redrive("outbox", "status", "shop:app", "--json").stdout)
    assert (found["pending"], found["parked"]) == (1, 0)
    assert found["oldest"].endswith("Z")
    assert 0 <= found["oldest_seconds"] < 60


def test_ls_shows_the_parked_with_the_reason_unless_told_otherwise(app: App) -> None:
    add(app, "a")
    park(app)
    add(app, "b")
    (parked,) = redrive("outbox", "ls", "shop:app").stdout.splitlines()
    assert parked.split()[0] == "1"
    assert parked.endswith("events a  1 attempts: no queue is bound for it")
    (pending,) = redrive("outbox", "ls", "shop:app", "--state", "pending").stdout.splitlines()
    assert pending.endswith("events b")
    nothing = redrive("outbox", "ls", "shop:app", "--state", "published")
    assert (nothing.exit_code, nothing.stdout, nothing.stderr) == (0, "", "redrive: no published rows\n")


def test_ls_as_json_has_no_bodies_and_stops_at_the_limit(app: App) -> None:
    add(app, "a", "b", "c")
    rows = json.loads(redrive("outbox", "ls", "shop:app", "--state", "pending", "--limit", "2", "--json").stdout)
    assert [row["routing_key"] for row in rows] == ["a", "b"]
    assert not {"body", "properties"} & rows[0].keys()
    assert json.loads(redrive("outbox", "ls", "shop:app", "--json").stdout) == []


# retry and discard --------------------------------------------------------------------------------


def test_retry_lets_the_named_rows_or_all_be_published_again(app: App) -> None:
    add(app, "a", "b", "c")
    park(app)
    assert redrive("outbox", "retry", "shop:app", "2").stdout == "1 will be tried again\n"
    assert redrive("outbox", "retry", "shop:app", "--all").stdout == "2 will be tried again\n"
    rows = json.loads(redrive("outbox", "ls", "shop:app", "--state", "pending", "--json").stdout)
    assert [row["attempts"] for row in rows] == [0, 0, 0]


def test_discard_asks_and_then_deletes_for_good(app: App) -> None:
    add(app, "a", "b")
    park(app)
    refused = redrive("outbox", "discard", "shop:app", "1", answer="n\n")
    assert refused.exit_code == 2
    assert "Delete 1 rows for good?" in refused.stderr
    assert redrive("outbox", "discard", "shop:app", "1", answer="y\n").stdout.endswith("1 discarded\n")
    assert redrive("outbox", "discard", "shop:app", "2", "--yes").stdout == "1 discarded\n"
    assert redrive("outbox", "status", "shop:app").stdout == "0 pending; 0 parked\n"


def test_what_was_changed_can_be_had_as_json(app: App) -> None:
    add(app, "a", "b", "c")
    park(app)
    assert json.loads(redrive("outbox", "retry", "shop:app", "1", "2", "--json").stdout) == {"rows": 2}
    assert json.loads(redrive("outbox", "discard", "shop:app", "3", "--yes", "--json").stdout) == {"rows": 1}
    assert json.loads(redrive("outbox", "prune", "shop:app", "--json").stdout) == {"published": 0, "processed": 0}


@pytest.mark.parametrize("command", [("retry", "shop:app", "7"), ("discard", "shop:app", "7", "--yes")])
def test_rows_that_are_not_parked_are_exit_code_4(app: App, command: tuple[str, ...]) -> None:
    add(app, "pending, and so left alone")
    result = redrive("outbox", *command)
    assert (result.exit_code, result.stderr) == (4, "redrive: no such parked rows\n")
    assert redrive("outbox", "discard", "shop:app", "1", "--yes").exit_code == 4
    assert redrive("outbox", "status", "shop:app", "--json").stdout.startswith('{"pending":1')


@pytest.mark.parametrize(
    "command",
    [
        ("retry", "shop:app"),
        ("retry", "shop:app", "1", "--all"),
        ("retry", "shop:app", "first"),
        ("discard", "shop:app"),
        ("ls", "shop:app", "--state", "lost"),
        ("ls", "shop:app", "--limit", "-1"),
        ("prune", "shop:app", "--older-than", "7"),
        ("status", "shop"),
        ("status", "shop:nothing"),
        ("status", "nowhere:app"),
    ],
)
@pytest.mark.usefixtures("app")
def test_what_makes_no_sense_is_exit_code_2_and_changes_nothing(command: tuple[str, ...]) -> None:
    assert redrive("outbox", *command).exit_code == 2


# prune --------------------------------------------------------------------------------------------


def test_prune_deletes_what_was_kept_for_as_long_as_the_application_says(app: App) -> None:
    add(app, "a", "b")
    publish(app)
    add(app, "c")
    with app.database.sessions()() as session, session.begin():
        app.inbox.note(session, "orders", ["m-1", "m-2"])
        app.inbox.note(session, "of another application", ["m-1"])
    assert redrive("outbox", "prune", "shop:app").stdout.splitlines() == [
        "0 published rows deleted",
        "0 processed messages forgotten",
    ]
    with app.database.engine.begin() as connection:
        connection.execute(sa.text("UPDATE redrive_outbox SET published_at = '2001-01-01 00:00:00' WHERE id = 1"))
        connection.execute(
            sa.text("UPDATE redrive_inbox SET processed_at = '2001-01-01 00:00:00' WHERE message_id = 'm-1'")
        )
    assert redrive("outbox", "prune", "shop:app").stdout.splitlines() == [
        "1 published rows deleted",
        "1 processed messages forgotten",
    ]
    assert len(json.loads(redrive("outbox", "ls", "shop:app", "--state", "published", "--json").stdout)) == 1
    assert redrive("outbox", "status", "shop:app").stdout.startswith("1 pending")


def test_prune_older_than_means_everybodys(app: App) -> None:
    with app.database.sessions()() as session, session.begin():
        app.inbox.note(session, "of another application", ["m-1"])
    with app.database.engine.begin() as connection:
        connection.execute(sa.text("UPDATE redrive_inbox SET processed_at = '2001-01-01 00:00:00'"))
    assert json.loads(redrive("outbox", "prune", "shop:app", "--json").stdout)["processed"] == 0
    pruned = redrive("outbox", "prune", "shop:app", "--older-than", "30d", "--json")
    assert json.loads(pruned.stdout)["processed"] == 1


# db -----------------------------------------------------------------------------------------------


def test_db_upgrade_makes_the_tables_of_those_who_have_no_application(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REDRIVE_DATABASE", f"sqlite:///{tmp_path}/memory.db")

    assert redrive("db", "upgrade").stdout == f"sqlite:///{tmp_path}/memory.db: upgraded\n"
    assert redrive("db", "upgrade").stdout == f"sqlite:///{tmp_path}/memory.db: up to date\n"


def test_db_upgrade_makes_the_tables_once() -> None:
    assert redrive("db", "upgrade", "shop:app").stdout == "sqlite:///shop.db: upgraded\n"
    assert redrive("db", "upgrade", "shop:app").stdout == "sqlite:///shop.db: up to date\n"


def test_db_sql_prints_what_a_database_can_run() -> None:
    sql = redrive("db", "sql", "shop:app").stdout
    with sqlite3.connect(":memory:") as connection:
        connection.executescript(sql)
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    connection.close()
    assert {
        "redrive_outbox",
        "redrive_inbox",
        "redrive_operations",
        "redrive_operation_items",
        "redrive_audit",
    } <= tables
    assert not Path("shop.db").exists()


def test_db_sql_speaks_postgresql_too_with_the_trigger_that_wakes_the_relay() -> None:
    sql = redrive("db", "sql", "shop:app", "--dialect", "postgresql").stdout
    assert "BIGSERIAL" in sql
    assert "pg_notify('redrive_outbox_added'" in sql
    assert redrive("db", "sql", "shop:app", "--dialect", "mysql").exit_code == 2


def test_a_table_name_that_is_none_is_not_printed() -> None:
    Path("odd.py").write_text(
        "from redrive import App\nfrom redrive.database.application_tables import OutboxNames\n"
        "app = App('odd', database='sqlite:///odd.db', outbox=OutboxNames('a; drop'))\n"
    )
    result = redrive("db", "sql", "odd:app")
    sys.modules.pop("odd")
    assert result.exit_code == 2
    assert "'a; drop' is no name for a table" in result.stderr


# A database that is not as it should be -----------------------------------------------------------


@pytest.mark.parametrize("command", ["status", "ls", "prune"])
def test_missing_tables_are_told_with_what_makes_them(command: str) -> None:
    result = redrive("outbox", command, "shop:app")
    assert result.exit_code == 7
    assert "no such table: redrive_outbox" in result.stderr
    assert "redrive db upgrade" in result.stderr


def test_a_relay_without_its_table_does_not_start() -> None:
    result = redrive("outbox", "relay", "shop:app")
    assert result.exit_code == 2
    assert "there is no table redrive_outbox in sqlite:///shop.db: make it with `redrive db upgrade" in result.stderr


def test_a_database_that_is_down_is_exit_code_7_without_its_password() -> None:
    url = "postgresql+psycopg://me:secret@127.0.0.1:1/shop"
    Path("shop.py").write_text(PROGRAM.replace("sqlite:///shop.db", url))
    for command in (("outbox", "status"), ("outbox", "relay"), ("db", "upgrade")):
        result = redrive(*command, "shop:app")
        assert result.exit_code == 7
        assert "127.0.0.1" in result.stderr
        assert "secret" not in result.output
