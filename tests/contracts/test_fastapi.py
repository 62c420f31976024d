"""An API with Redrive in it: what it publishes, commits and handles, and what its callers are told."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
import uvicorn
from fastapi import FastAPI, HTTPException

from contracts.observing import eventually
from redrive import App, Park, Publisher
from redrive.client import Connection
from redrive.errors import ConfigurationError
from redrive.integrations.fastapi import Application, Publishing, Transaction, explain_errors, lifespan, monitor
from redrive.outbox.outbox import OutboxPolicy
from redrive.testing.broker import ThreadedBroker
from redrive.testing.ports import free_port
from working import take

USERS = sa.Table("users", sa.MetaData(), sa.Column("name", sa.String(40), primary_key=True))


class Shop:
    """An API whose every way to a message is one path."""

    def __init__(self, url: str | None, folder: Path, **options: Any) -> None:
        policy = OutboxPolicy(transport=options.pop("transport", None))
        self.app = App("shop", broker=url, data=folder, patience="200ms", outbox_policy=policy)
        self.events = self.app.exchange("events", "topic")
        self.handled: asyncio.Queue[str] = asyncio.Queue()
        self.app.consumer("greetings", bind=self.events.on("user.*"))(self.greet)
        self.api = FastAPI(lifespan=lifespan(self.app, **options))
        explain_errors(self.api)
        self.api.post("/publish")(self.publish)
        self.api.post("/commit")(self.commit)
        with self.app.database.engine.begin() as connection:
            USERS.create(connection)

    async def greet(self, user: dict[str, str]) -> None:
        self.handled.put_nowait(user["name"])
        if user["name"] == "Mallory":
            raise Park("not you")

    async def publish(self, name: str, publisher: Publishing, key: str = "user.new") -> str:
        return await publisher.publish(self.events, key, {"name": name})

    async def commit(self, name: str, session: Transaction, app: Application) -> None:
        await session.execute(sa.insert(USERS).values(name=name))
        await app.publish(self.events, "user.new", {"name": name}, session=session)
        if name == "Mallory":
            raise HTTPException(422, "not you")

    @asynccontextmanager
    async def open(self) -> AsyncIterator[httpx.AsyncClient]:
        transport = httpx.ASGITransport(self.api)
        async with (
            self.api.router.lifespan_context(self.api),
            httpx.AsyncClient(transport=transport, base_url="http://shop") as client,
        ):
            yield client
        await self.app.database.close()

    def committed(self) -> tuple[list[str], int]:
        """The users, and how many events wait in the outbox."""
        with self.app.database.reading_connection() as connection:
            users = list(connection.execute(sa.select(USERS.c.name)).scalars())
            return users, connection.execute(sa.select(sa.func.count()).select_from(self.app.outbox.table)).scalar_one()


@pytest.mark.usefixtures("cleanliness")
async def test_a_path_operation_publishes_and_answers_when_it_is_confirmed(amqp_url: str, tmp_path: Path) -> None:
    async with Shop(amqp_url, tmp_path).open() as client, Connection(amqp_url) as connection:
        answer = await client.post("/publish", params={"name": "Ada"})
        delivery = await take(connection, "greetings")

    assert answer.status_code == 200
    assert (delivery.properties.message_id, delivery.body) == (answer.json(), b'{"name":"Ada"}')


@pytest.mark.usefixtures("cleanliness")
async def test_a_transaction_is_committed_before_the_answer_is_sent(amqp_url: str, tmp_path: Path) -> None:
    shop = Shop(amqp_url, tmp_path)
    seen: list[tuple[int, tuple[list[str], int]]] = []

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            seen.append((message["status"], shop.committed()))

    scope = {"type": "http", "method": "POST", "path": "/commit", "headers": [], "query_string": b"name=Ada"}
    async with shop.open():
        await shop.api(scope, _nothing, send)  # type: ignore[arg-type]

    assert seen == [(200, (["Ada"], 1))]


async def _nothing() -> dict[str, Any]:
    return {"type": "http.request", "body": b"", "more_body": False}


@pytest.mark.usefixtures("cleanliness")
async def test_what_is_refused_leaves_neither_row_nor_event(amqp_url: str, tmp_path: Path) -> None:
    shop = Shop(amqp_url, tmp_path)
    async with shop.open() as client:
        answer = await client.post("/commit", params={"name": "Mallory"})
        committed = shop.committed()

    assert (answer.status_code, committed) == (422, ([], 0))


@pytest.mark.usefixtures("cleanliness")
async def test_an_api_that_is_told_to_work_relays_and_handles_what_it_commits(amqp_url: str, tmp_path: Path) -> None:
    shop = Shop(amqp_url, tmp_path, work=True, relay=True)
    async with shop.open() as client, asyncio.timeout(20):
        await client.post("/commit", params={"name": "Ada"})
        await client.post("/publish", params={"name": "Grace"})
        names = {await shop.handled.get(), await shop.handled.get()}

    assert names == {"Ada", "Grace"}


@pytest.mark.usefixtures("cleanliness")
async def test_what_fails_in_an_api_that_works_is_logged(
    amqp_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shop = Shop(amqp_url, tmp_path, work=True)
    async with shop.open() as client, asyncio.timeout(20):
        await client.post("/publish", params={"name": "Mallory"})
        await shop.handled.get()

    assert [entry.getMessage().partition(" [")[0] for entry in caplog.records if entry.name == "redrive"] == [
        "greetings: parked as requested after attempt 1 of 3: redrive.recovery.handler_signals.Park: not you"
    ]


async def test_with_the_transport_local_the_api_handles_its_own_events(tmp_path: Path) -> None:
    shop = Shop(None, tmp_path, transport="LOCAL")
    async with shop.open() as client, asyncio.timeout(20):
        await client.post("/commit", params={"name": "Ada"})

        assert await shop.handled.get() == "Ada"


async def test_a_broker_that_is_away_is_told_as_a_problem_that_is_worth_another_try(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broker = ThreadedBroker().start()
    async with Shop(broker.url, tmp_path).open() as client:
        await asyncio.to_thread(broker.stop)
        answer = await client.post("/publish", params={"name": "Ada"})

    assert (answer.status_code, answer.headers["content-type"]) == (503, "application/problem+json")
    assert answer.headers["retry-after"] == "2"
    assert answer.json() == {
        "type": "about:blank",
        "title": "The broker cannot be reached",
        "status": 503,
        "detail": "Nothing was taken. Send it again in a moment.",
        "instance": "/publish",
    }
    assert [entry.levelno for entry in caplog.records if entry.name == "redrive.integrations"] == [logging.WARNING]


async def test_an_api_that_publishes_by_the_outbox_alone_needs_no_broker(tmp_path: Path) -> None:
    shop = Shop(f"amqp://127.0.0.1:{free_port()}/", tmp_path, connect=False)
    async with shop.open() as client:
        answer = await client.post("/commit", params={"name": "Ada"})

    assert (answer.status_code, shop.committed()) == (200, (["Ada"], 1))


async def test_such_an_api_does_not_start_without_the_table_of_its_outbox(tmp_path: Path) -> None:
    app = App("shop", database=f"sqlite:///{tmp_path / 'own.db'}", data=tmp_path)
    api = FastAPI(lifespan=lifespan(app, connect=False))

    with pytest.raises(ConfigurationError, match=r"there is no table redrive_outbox in .*: make it with"):
        await api.router.lifespan_context(api).__aenter__()

    app.on_start(app.upgrade_database)
    async with api.router.lifespan_context(api):
        pass
    await app.database.close()


async def test_why_an_api_does_not_start_is_one_line_for_uvicorn(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("uvicorn.error"), "filters", [])
    app = App("shop", data=tmp_path, database=f"postgresql+psycopg://ana:secret@127.0.0.1:{free_port()}/shop")
    api = FastAPI(lifespan=lifespan(app, connect=False))

    with pytest.raises(SystemExit):
        await uvicorn.Server(uvicorn.Config(api, port=0, log_config=None)).serve()

    reason, end = (entry.getMessage() for entry in caplog.records if entry.name == "uvicorn.error")
    assert ("\n" in reason, "secret" in reason, end) == (False, False, "Application startup failed. Exiting.")
    assert reason.endswith("Connection refused. Start it, or correct REDRIVE_DATABASE")


async def test_with_the_transport_local_it_handles_its_events_all_the_same(tmp_path: Path) -> None:
    shop = Shop(None, tmp_path, transport="LOCAL", connect=False)
    async with shop.open() as client, asyncio.timeout(20):
        await client.post("/commit", params={"name": "Ada"})

        assert await shop.handled.get() == "Ada"


@pytest.mark.usefixtures("cleanliness")
async def test_what_no_queue_takes_is_not_worth_another_try(amqp_url: str, tmp_path: Path) -> None:
    async with Shop(amqp_url, tmp_path).open() as client:
        answer = await client.post("/publish", params={"name": "Ada", "key": "nobody"})

    assert (answer.status_code, answer.json()["title"]) == (502, "The broker cannot take that")
    assert "retry-after" not in answer.headers


async def test_a_lifespan_of_ones_own_runs_within_and_may_publish(amqp_url: str, tmp_path: Path) -> None:
    order: list[str] = []

    @asynccontextmanager
    async def own(api: FastAPI) -> AsyncIterator[dict[str, Publisher]]:
        await shop.app.publish(shop.events, "user.new", {"name": "first"})
        order.append(api.title)
        yield {"publisher": shop.app.publisher}
        order.append("end")

    shop = Shop(amqp_url, tmp_path, within=own)
    async with shop.api.router.lifespan_context(shop.api) as state:
        assert isinstance(state["publisher"], Publisher)  # type: ignore[index]
    await shop.app.database.close()

    assert order == ["FastAPI", "end"]


async def test_an_api_without_the_lifespan_says_what_it_wants(tmp_path: Path) -> None:
    shop = Shop(None, tmp_path)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(shop.api), base_url="http://shop") as client:
        with pytest.raises(ConfigurationError, match="FastAPI\\(lifespan=lifespan\\(app\\)\\)"):
            await client.post("/publish", params={"name": "Ada"})


def test_queues_without_work_are_a_mistake() -> None:
    with pytest.raises(ConfigurationError, match="work=True"):
        lifespan(App("shop"), queues=["greetings"])


# Watching -----------------------------------------------------------------------------------------


async def tells(client: httpx.AsyncClient, what: str) -> bool:
    return what in (await client.get("/metrics")).text


async def status_of(client: httpx.AsyncClient, path: str) -> int:
    return (await client.get(path)).status_code


@pytest.mark.usefixtures("cleanliness")
async def test_an_api_tells_its_metrics_and_its_health(amqp_url: str, tmp_path: Path) -> None:
    shop = Shop(amqp_url, tmp_path, work=True)
    monitor(shop.api, shop.app)
    async with shop.open() as client, asyncio.timeout(20):
        await client.post("/publish", params={"name": "Mallory"})
        await shop.handled.get()
        await eventually(lambda: tells(client, '{outcome="parked",queue="greetings"} 1.0'), True)
        told = (await client.get("/metrics")).text
        alive, ready = await client.get("/healthz"), await client.get("/readyz")
        paths = (await client.get("/openapi.json")).json()["paths"]

    assert 'redrive_failures_total{error="redrive.recovery.handler_signals.Park",queue="greetings"} 1.0' in told
    assert 'redrive_queue_messages{queue="greetings.dlq",role="dlq"} 1.0' in told
    assert 'redrive_unsettled{queue="greetings"} 0.0' in told
    assert 'redrive_publish_seconds_count{exchange="events"} 1.0' in told
    assert [answer.status_code for answer in (alive, ready)] == [200, 200]
    assert sorted(paths) == ["/commit", "/publish"]


async def test_without_a_broker_an_api_is_alive_not_ready_and_tells_what_it_knows(tmp_path: Path) -> None:
    broker = ThreadedBroker().start()
    shop = Shop(broker.url, tmp_path)
    monitor(shop.api, shop.app)
    async with shop.open() as client, asyncio.timeout(20):
        await client.post("/publish", params={"name": "Ada"})
        await asyncio.to_thread(broker.stop)
        await eventually(lambda: status_of(client, "/readyz"), 503)
        ready, alive, told = [await client.get(path) for path in ("/readyz", "/healthz", "/metrics")]

    assert (ready.status_code, ready.json()["problems"]) == (503, ["not connected, or the broker takes no messages"])
    assert (alive.status_code, told.status_code) == (200, 200)
    assert 'redrive_publish_seconds_count{exchange="events"} 1.0' in told.text
    assert "redrive_queue_messages{" not in told.text
