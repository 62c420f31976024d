"""The relay on each broker: what cannot be published is parked, with the reason, and holds up nobody."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from redrive import App
from redrive.client import Connection
from redrive.database.application_tables import RowState
from redrive.errors import TopologyMissing
from redrive.outbox.outbox import OutboxPolicy
from redrive.outbox.relay import Relay
from redrive.outbox.repository import OutboxRepository
from redrive.testing import Endpoint
from tests.support.proxy import FaultProxy


@pytest.fixture
async def app(amqp_url: str, tmp_path: Path, cleanliness: None) -> AsyncIterator[App]:  # noqa: ARG001
    database = f"sqlite:///{tmp_path / 'store.db'}"
    app = App("shop", broker=amqp_url, database=database, outbox_policy=OutboxPolicy(attempts=1))
    app.upgrade_database()
    app.queue("orders", dlq=False)
    yield app
    await app.database.close()


def add(app: App, *rows: dict[str, Any]) -> None:
    """Rows as they are, also such as `Outbox.add` would not write."""
    plain = {"exchange": "", "routing_key": "orders", "body": b"{}", "properties": None}
    with app.database.engine.begin() as connection:
        for number, row in enumerate(rows):
            values = plain | {"message_id": str(number), "body": b"%d" % number} | row
            connection.execute(sa.insert(app.outbox.table).values(**values))


async def relayed(app: App) -> dict[int, str]:
    """Relay until nothing is pending. What was parked, by its place, and why."""
    claims, stop = OutboxRepository(app.database, app.outbox.table), asyncio.Event()
    relaying = asyncio.create_task(app.relay(stop))
    while claims.status()["pending"]:  # noqa: ASYNC110 - the database is the one to ask
        await asyncio.sleep(0.01)
    stop.set()
    await relaying
    return {int(row["message_id"]): row["last_error"] for row in claims.list_rows(RowState.PARKED, 100)}


async def published(connection: Connection) -> set[bytes]:
    found = set()
    while (delivery := await connection.get("orders")) is not None:
        found.add(delivery.body)
        delivery.ack()
    return found


GOOD: dict[str, Any] = {}


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ({"routing_key": "nowhere"}, "no queue is bound for it"),
        ({"exchange": "missing"}, "there is no such exchange"),
        ({"exchange": "closed"}, "403"),
        ({"routing_key": "ü" * 200}, "400 bytes"),
        ({"properties": b"\xff\xff nonsense"}, "the broker would not have it"),
        ({"body": b"x" * 2_000_000, "routing_key": "short"}, "the broker refused it (nack)"),
    ],
    ids=["unroutable", "no-exchange", "forbidden", "unspeakable", "malformed", "full"],
)
async def test_a_row_that_cannot_be_published_is_parked_with_the_reason_and_the_others_go_on(
    app: App, connection: Connection, bad: dict[str, Any], reason: str
) -> None:
    await connection.declare_exchange("closed", internal=True)
    await connection.declare_queue("short", arguments={"x-max-length-bytes": 1000, "x-overflow": "reject-publish"})
    await connection.publish("", "short", b"x" * 1000)
    async with app:
        add(app, GOOD, bad, GOOD, GOOD)
        parked = await relayed(app)
    assert parked.keys() == {1}
    assert reason in parked[1]
    assert await published(connection) == {b"0", b"2", b"3"}


async def test_a_body_of_five_megabytes_arrives_whole(app: App, connection: Connection) -> None:
    body = bytes(range(256)) * 20_000
    async with app:
        add(app, {"body": body})
        assert await relayed(app) == {}
    assert await published(connection) == {body}


async def test_all_kinds_of_bad_rows_together_hold_up_nobody(app: App, connection: Connection) -> None:
    await connection.declare_exchange("closed", internal=True)
    bad = [{"exchange": "closed"}, {"exchange": "missing"}, {"routing_key": "nowhere"}, {"properties": b"\xff\xff"}]
    rows = [row for one in bad for row in (GOOD, one, one)]
    async with app:
        add(app, *rows)
        parked = await relayed(app)
    assert parked.keys() == {place for place, row in enumerate(rows) if row}
    assert await published(connection) == {b"%d" % place for place, row in enumerate(rows) if not row}


async def test_a_relay_that_comes_first_makes_the_topology(app: App, connection: Connection) -> None:
    add(app, GOOD)
    assert await relayed(app) == {}
    assert await published(connection) == {b"0"}


async def test_a_queue_that_is_not_as_wanted_is_told_and_published_to(
    app: App, connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    await connection.declare_queue("orders", arguments={"x-max-length": 5})
    add(app, GOOD)
    assert await relayed(app) == {}
    assert await published(connection) == {b"0"}
    assert "the relay goes on with the topology as it is" in caplog.text
    assert "x-max-length: has 5, wanted nothing" in caplog.text


async def test_a_relay_that_declares_nothing_leaves_its_rows_alone_until_there_is_a_place_for_them(
    app: App, amqp_url: str, connection: Connection
) -> None:
    url = app.database.url.render_as_string(hide_password=False)
    careful = App("shop", broker=amqp_url, database=url, declare=False, outbox_policy=OutboxPolicy(attempts=1))
    careful.queue("orders", dlq=False)
    add(careful, GOOD)
    with pytest.raises(TopologyMissing, match="queue orders"):
        await careful.relay(asyncio.Event())
    assert OutboxRepository(app.database, app.outbox.table).status()["pending"] == 1

    await connection.declare_queue("orders")
    assert await relayed(careful) == {}
    assert await published(connection) == {b"0"}
    await careful.database.close()


async def test_a_relay_that_lost_its_turn_with_its_connection_waits_until_it_has_it_again(
    app: App, amqp_url: str, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redrive.outbox.relay_lock._STANDBY", 0.01)
    monkeypatch.setattr("redrive.outbox.relay._TROUBLE", 0.01)
    async with FaultProxy(amqp_url) as network:
        url = app.database.url.render_as_string(hide_password=False)
        broken = App("shop", broker=network.url, database=url)
        first, second = At(broken), At(app)
        await first.work()
        standby = asyncio.create_task(second.work())
        network.refuse()
        network.cut()
        await standby
        await network.accept()
        await first.told("another relay has taken over")

        await connection.declare_queue("orders")
        add(app, GOOD)
        await second.published(1)
        await second.end()
        add(app, GOOD)
        await first.published(1)
        await first.end()
        await broken.database.close()
    assert (first.relay.published, second.relay.published) == (1, 1)


class At:
    """An application whose relay is at work, or waits to be."""

    def __init__(self, app: App) -> None:
        self.relay: Relay
        self._app = app
        self._stop = asyncio.Event()
        self._task: asyncio.Task[Relay]

    async def work(self) -> None:
        began: asyncio.Future[Relay] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._app._publish_rows(self._stop, ready=began.set_result, standby=True))
        self.relay = await began

    async def told(self, trouble: str) -> None:
        while trouble not in str(self.relay.last_error):  # noqa: ASYNC110 - it is not told in another way
            await asyncio.sleep(0.01)

    async def published(self, count: int) -> None:
        while self.relay.published < count:  # noqa: ASYNC110 - the relay is the one to ask
            await asyncio.sleep(0.01)

    async def end(self) -> None:
        self._stop.set()
        await self._task


@pytest.mark.rabbitmq
async def test_a_relay_that_may_publish_and_nothing_else_publishes(
    rabbitmq: Endpoint, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    vhost = name = f"relay-{secrets.token_hex(4)}"
    rabbitmq.add_vhost(vhost)
    rabbitmq.api(f"/users/{name}", "PUT", {"password": "secret", "tags": ""})
    # Its turn on SQLite is a queue, and that it may have.
    rights = {"configure": r"^redrive\.outbox\.", "write": "^events$", "read": "^$"}
    rabbitmq.api(f"/permissions/{vhost}/{name}", "PUT", rights)
    url = rabbitmq.url_for(vhost)
    app = App("shop", broker=url.replace("guest:guest@", f"{name}:secret@"), data=tmp_path)
    app.queue("orders", bind=app.exchange("events", "topic").on("order.*"), dlq=False)
    app.upgrade_database()
    try:
        async with Connection(url) as connection:
            await connection.declare_exchange("events", "topic")
            await connection.declare_queue("orders")
            await connection.bind_queue("orders", "events", "order.*")
            add(app, {"exchange": "events", "routing_key": "order.placed"})

            assert await relayed(app) == {}

            assert await published(connection) == {b"0"}
        assert "the relay goes on with the topology as it is: 403" in caplog.text
    finally:
        await app.database.close()
        rabbitmq.delete_vhost(vhost)
        rabbitmq.api(f"/users/{name}", "DELETE")
