"""Outbox rows as a stranger's SQL may write them: one that cannot be published fails alone, and says why."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from redrive import App
from redrive.admin.api.schemas import OutboxOut
from redrive.admin.authorized_queries import OutboxView
from redrive.client import Connection
from redrive.database.application_tables import RowState
from redrive.outbox.outbox import OutboxPolicy
from redrive.outbox.repository import OutboxRepository
from redrive.testing import Endpoint

GOOD = {"message_id": "'m'", "exchange": "''", "routing_key": "'orders'"}

# What is written into which column, and what the row's error says. Empty: the row is published all the same.
ANYWHERE = {
    "message id too long": ("message_id", "{long}", "message_id.* has 300 bytes"),
    "key too long": ("routing_key", "{long}", "300 bytes"),
    "exchange too long": ("exchange", "{long}", "300 bytes"),
    "no such exchange": ("exchange", "'missing'", "no such exchange"),
    "ordering key too long": ("ordering_key", "{long}", ""),
    "attempts at their end": ("attempts", "2147483647", ""),
    "attempts below 0": ("attempts", "-2147483648", ""),
    "created before 1970": ("created_at", "'1969-12-31 23:59:59'", "created_at.*1969"),
    "created in the far future": ("created_at", "'9999-12-31 23:59:59'", ""),
    "no properties at all": ("properties", "{empty}", "the broker would not have it"),
    "properties cut short": ("properties", "{blob:2000}", "the broker would not have it"),
    "properties of 200 KB": ("properties", "{blob:2000%s}" % ("00" * 200_000), "200002 bytes"),
}
SQLITE = {
    "message id is a blob": ("message_id", "x'ff'", "message_id is bytes"),
    "message id is not UTF-8": ("message_id", "CAST(x'ff' AS TEXT)", "message_id is not UTF-8"),
    "message id is null": ("message_id", "NULL", "message_id is NULL"),
    "message id with NUL": ("message_id", "CAST(x'610062' AS TEXT)", ""),
    "exchange is null": ("exchange", "NULL", "exchange is NULL"),
    "exchange is a blob": ("exchange", "x''", "exchange is bytes"),
    "key is not UTF-8": ("routing_key", "CAST(x'ff' AS TEXT)", "routing_key is not UTF-8"),
    "key is a number": ("routing_key", "17", "no queue is bound"),
    "key is null": ("routing_key", "NULL", "routing_key is NULL"),
    "body is null": ("body", "NULL", "body is NULL"),
    "body is a number": ("body", "17.5", ""),
    "body is not UTF-8": ("body", "CAST(x'ff' AS TEXT)", ""),
    "properties are text": ("properties", "'{{}}'", "the broker would not have it"),
    "properties are a number": ("properties", "17", "the broker would not have it"),
    "ordering key is a blob": ("ordering_key", "x'ff'", ""),
    "ordering key is not UTF-8": ("ordering_key", "CAST(x'ff' AS TEXT)", "ordering_key is not UTF-8"),
    "attempts are null": ("attempts", "NULL", ""),
    "attempts are text": ("attempts", "'many'", ""),
    "attempts are not UTF-8": ("attempts", "CAST(x'ff' AS TEXT)", ""),
    "attempts beyond 64 bits": ("attempts", "1e300", ""),
    "created at no time": ("created_at", "'yesterday'", "created_at.*yesterday"),
    "created at a blob": ("created_at", "x'ff'", "created_at"),
    "created not in UTF-8": ("created_at", "CAST(x'ff' AS TEXT)", "created_at"),
    "created at seconds since 1970": ("created_at", "1700000000", ""),
    "created at infinity": ("created_at", "9e999", "created_at"),
    "created at null": ("created_at", "NULL", ""),
}
POSTGRESQL = {
    "created at infinity": ("created_at", "'infinity'", "created_at"),
    "created before all time": ("created_at", "'-infinity'", "created_at"),
    "created before Christ": ("created_at", "'0044-03-15 BC'", "created_at"),
    "created after year 9999": ("created_at", "'20000-01-01'", "created_at"),
    "created at null": ("created_at", "NULL", ""),
    "message id is null": ("message_id", "NULL", "message_id is NULL"),
    "body is null": ("body", "NULL", "body is NULL"),
}

CASES = {"sqlite": ANYWHERE | SQLITE, "postgresql": ANYWHERE | POSTGRESQL}


@pytest.fixture(params=["sqlite memory", "postgresql memory", "sqlite rabbitmq"])
async def app(request: pytest.FixtureRequest, tmp_path: Path, cleanliness: None) -> AsyncIterator[App]:  # noqa: ARG001
    database, _, broker = request.param.partition(" ")
    vhost = f"rows-{secrets.token_hex(4)}"
    url = f"sqlite:///{tmp_path / 'store.db'}"
    if database == "postgresql":
        url = request.getfixturevalue("postgres_url").replace("postgresql://", "postgresql+psycopg://")
    if broker == "rabbitmq":
        node: Endpoint = request.getfixturevalue("rabbitmq")
        node.add_vhost(vhost)
        address = node.url_for(vhost)
    else:
        address = request.getfixturevalue("memory_broker").add_vhost(vhost)
    app = App("shop", broker=address, database=url, outbox_policy=OutboxPolicy(attempts=1))
    app.queue("orders", dlq=False)
    with app.database.engine.begin() as connection:
        connection.exec_driver_sql(_table("BLOB" if database == "sqlite" else "BYTEA"))
    yield app
    await app.database.close()


def _table(blob: str) -> str:
    """An application's own table, which promises less than the one that Redrive makes."""
    return f"""CREATE TABLE redrive_outbox (
        id INTEGER PRIMARY KEY {"" if blob == "BLOB" else "GENERATED ALWAYS AS IDENTITY"},
        message_id TEXT, exchange TEXT, routing_key TEXT, body {blob}, properties {blob}, ordering_key TEXT,
        state SMALLINT NOT NULL DEFAULT 0, attempts INTEGER DEFAULT 0,
        created_at TIMESTAMP{" WITH TIME ZONE" if blob == "BYTEA" else ""} DEFAULT CURRENT_TIMESTAMP,
        next_attempt_at TIMESTAMP{" WITH TIME ZONE" if blob == "BYTEA" else ""} NOT NULL DEFAULT CURRENT_TIMESTAMP,
        published_at TIMESTAMP{" WITH TIME ZONE" if blob == "BYTEA" else ""}, last_error TEXT)"""


def add(app: App, **values: str) -> None:
    """Write a row as SQL alone does it. The values are SQL, too."""
    row = GOOD | {"body": _blob(app, b"{}".hex())} | values
    with app.database.engine.begin() as connection:
        connection.exec_driver_sql(
            f"INSERT INTO redrive_outbox ({', '.join(row)}) VALUES ({', '.join(row.values())})".replace("%", "%%")
        )


def _blob(app: App, digits: str) -> str:
    return f"'\\x{digits}'::bytea" if app.database.is_postgresql else f"x'{digits}'"


def _sql(app: App, value: str) -> str:
    value = value.replace("{long}", f"'{'é' * 150}'").replace("{empty}", _blob(app, ""))
    return re.sub(r"\{blob:(\w*)\}", lambda found: _blob(app, found[1]), value)


async def relayed(app: App) -> list[dict[str, Any]]:
    """Relay until nothing is pending, and return the rows that failed."""
    claims, stop = OutboxRepository(app.database, app.outbox.table), asyncio.Event()
    relaying = asyncio.create_task(app.relay(stop))
    async with asyncio.timeout(60):
        while claims.status()["pending"] and not relaying.done():  # noqa: ASYNC110 - the database is the one to ask
            await asyncio.sleep(0.01)
    stop.set()
    await relaying
    return claims.list_rows(RowState.PARKED, 100)


async def test_a_hostile_value_fails_its_own_row_and_no_other(app: App) -> None:
    cases = CASES[app.database.kind]
    for name, (column, value, _) in cases.items():
        add(app, body=_blob(app, f"before {name}".encode().hex()))
        add(app, **{"body": _blob(app, name.encode().hex()), column: _sql(app, value)})
    async with app:
        failed = await relayed(app)
        async with Connection(app.broker or "") as connection:
            bodies = await published(connection)
    names = list(cases)
    errors = {names[row["id"] // 2 - 1]: row["last_error"] for row in failed}
    assert {
        name: errors.get(name) for name, case in cases.items() if not re.search(case[2] or "^$", errors.get(name, ""))
    } == {}
    assert {f"before {name}" for name in names} <= bodies
    assert {name for name, case in cases.items() if not case[2] and case[0] != "body"} <= bodies
    assert not {name for name, case in cases.items() if case[2]} & bodies
    assert OutboxOut.of(OutboxView(0, None, len(failed), tuple(failed))).rows
    for row in failed:
        assert re.fullmatch(r"[^\0\ud800-\udfff]*", "".join(map(str, row.values())))


async def published(connection: Connection) -> set[str]:
    found = set()
    while (delivery := await connection.get("orders")) is not None:
        found.add(delivery.body.decode("latin-1"))
        delivery.ack()
    return found
