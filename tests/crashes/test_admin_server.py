"""The admin server while its broker, or its database, is away: it says so at once, and recovers by itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from admin_api import admin_context, asking
from dead_lettering import DLQ, prepare
from redrive.client import Connection
from redrive.database.engine import Database
from redrive.testing import RabbitMQ
from tests.support.postgres import Postgres

QUEUE = f"/admin/dlq/queues/{DLQ}"
SOON = 6.0  # seconds: nothing hangs


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is shown from memory."""
    monkeypatch.setattr("redrive.admin.cached_target._FRESH", 0)
    monkeypatch.setattr("redrive.admin.authorized_queries._DEPTHS", 0)


@pytest.fixture
async def client(own_rabbitmq: RabbitMQ, own_postgres: Postgres, tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    database = Database(own_postgres.url.replace("postgresql://", "postgresql+psycopg://"))
    async with Connection(own_rabbitmq.url) as connection:
        await prepare(connection, 5)
    async with asking(admin_context(own_rabbitmq.url, tmp_path, database=database)) as client:
        yield client
    await database.close()


async def asked(client: httpx.AsyncClient, path: str, **options: Any) -> tuple[int, str]:
    """The status and the type of problem, within a time that somebody waits."""
    began = time.monotonic()
    response = await (client.post(path, **options) if options else client.get(path))
    took = time.monotonic() - began
    assert took < SOON, f"{path} took {took:.1f} s"
    told = response.json() if "json" in response.headers.get("content-type", "") else {}
    return response.status_code, str(told.get("type", "")).rpartition(":")[2]


async def until_well(client: httpx.AsyncClient, path: str) -> None:
    async with asyncio.timeout(60):
        while (await asked(client, path))[0] != 200:  # noqa: ASYNC110
            await asyncio.sleep(0.1)


async def test_without_its_broker(client: httpx.AsyncClient, own_rabbitmq: RabbitMQ) -> None:
    assert await asked(client, "/admin/dlq/queues") == (200, "")
    await asyncio.to_thread(own_rabbitmq.kill)
    for path in ("/admin/dlq/queues", f"{QUEUE}/messages?fresh=true", f"{QUEUE}/groups", "/admin/topology"):
        assert await asked(client, path) == (503, "broker-unavailable"), path
    assert await asked(client, f"{QUEUE}/re-drive", json={"limit": 1}) == (503, "broker-unavailable")
    assert await asked(client, "/readyz") == (503, "")
    assert await asked(client, "/healthz") == (200, "")
    assert await asked(client, "/admin/operations") == (200, "")
    assert await asked(client, "/admin/audit") == (200, "")

    await asyncio.to_thread(own_rabbitmq.start)

    await until_well(client, "/admin/dlq/queues")
    assert await asked(client, f"{QUEUE}/messages?fresh=true") == (200, "")
    assert await asked(client, "/readyz") == (200, "")


async def test_without_its_database(client: httpx.AsyncClient, own_postgres: Postgres) -> None:
    await asyncio.to_thread(own_postgres.kill)
    assert await asked(client, "/admin/operations") == (503, "database-unavailable")
    assert (await asked(client, f"{QUEUE}/re-drive", json={"limit": 1}))[0] == 503
    assert await asked(client, f"{QUEUE}/messages") == (200, "")
    assert await asked(client, "/readyz") == (503, "")

    await asyncio.to_thread(own_postgres.start)

    await until_well(client, "/admin/operations")
    assert (await asked(client, f"{QUEUE}/re-drive", json={"limit": 1}))[0] == 202


async def test_a_broker_that_is_away_from_the_start(tmp_path: Path, own_rabbitmq: RabbitMQ) -> None:
    await asyncio.to_thread(own_rabbitmq.kill)
    async with asking(admin_context(own_rabbitmq.url, tmp_path)) as client:
        answers = await asyncio.gather(*(asked(client, "/admin/dlq/queues") for _ in range(20)))
        assert set(answers) == {(503, "broker-unavailable")}
        await asyncio.to_thread(own_rabbitmq.start)
        await until_well(client, "/admin/dlq/queues")
