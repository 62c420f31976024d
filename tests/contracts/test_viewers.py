"""What people with fewer permissions than an admin can see, find out and cause; on every broker."""

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from admin_api import HOST, admin_context, asking, bearing
from contracts.test_admin_api import DLQ, QUEUE, WAIT, problem
from dead_lettering import SOURCE, dead_letter, prepare, until_depth
from redrive.admin.access.roles import Role
from redrive.admin.api.application import Admin
from redrive.admin.context import AdminContext
from redrive.client import Connection, Properties
from redrive.operations.audit_entry import AuditEntry
from redrive.protocol.messages import Delivery

TOMORROW = datetime.now(UTC) + timedelta(days=1)
VIEWER, OPERATOR = bearing("viewer", "bob", exp=TOMORROW), bearing("operator", "eve", exp=TOMORROW)
BROWSER = {"Authorization": ""}
PASSWORD, CARD = "hunter2", "4111111111111111"


@pytest.fixture
def context(amqp_url: str, management_url: str | None, tmp_path: Path) -> AdminContext:
    return admin_context(amqp_url, tmp_path, management=management_url, editing=True)


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the broker holds is asked each time: tests change it faster than people do."""
    monkeypatch.setattr("redrive.admin.cached_target._FRESH", 0)
    monkeypatch.setattr("redrive.admin.authorized_queries._DEPTHS", 0)


@pytest.fixture
async def client(context: AdminContext, cleanliness: None) -> AsyncIterator[httpx.AsyncClient]:  # noqa: ARG001
    async with asking(context) as client:
        yield client


def entries(context: AdminContext, action: str) -> list[AuditEntry]:
    return [entry for _, entry in reversed(context.service.audit.list_entries(action=action))]


# Deliveries that a look costs ---------------------------------------------------------------------------


def costs(connection: Connection) -> bool:
    """Does a look at a quorum queue with a limit count?"""
    return connection.server_version < (4, 3)


@pytest.mark.parametrize("path", ["messages", "messages/m-0", "groups"])
async def test_a_get_spends_no_delivery(client: httpx.AsyncClient, connection: Connection, path: str) -> None:
    await prepare(connection, 1, "quorum", **{"x-delivery-limit": 5})
    if not costs(connection):
        return

    for headers in (VIEWER, OPERATOR, {}):
        refused = await client.get(f"{QUEUE}/{path}", params={"spend_deliveries": True}, headers=headers)
        problem(refused, 409, "peek-unsafe")

    assert await delivery_count(connection) == 0


async def test_a_page_that_another_site_opens_spends_no_delivery(
    client: httpx.AsyncClient, connection: Connection, context: AdminContext
) -> None:
    await prepare(connection, 1, "quorum", **{"x-delivery-limit": 5})
    if not costs(connection):
        return
    cookie = await signed_in(client, context, Role.ADMIN)

    for path in ("", "/messages", "/messages/m-0", "/re-drive", "/move", "/discard"):
        params = {"spend": "1", "spend_deliveries": "1", "form": "1", "to": "other.dlq"}
        headers = cookie | {"Sec-Fetch-Site": "cross-site"}
        await client.get(f"/queues/{DLQ}{path}", params=params, headers=headers)
    posted = await client.post(f"/queues/{DLQ}/messages", data={"spend": "1"}, headers=headers)

    assert posted.status_code == 403
    assert await delivery_count(connection) == 0


async def test_an_operator_spends_deliveries_by_a_post_and_never_the_last_one(
    client: httpx.AsyncClient, connection: Connection, context: AdminContext
) -> None:
    await prepare(connection, 2, "quorum", **{"x-delivery-limit": 3})
    spend = {"spend_deliveries": True, "reason": "INC-7"}

    problem(await client.post(f"{QUEUE}/messages", json=spend, headers=VIEWER), 403, "not-allowed")
    looks = [await client.post(f"{QUEUE}/messages", json=spend, headers=OPERATOR) for _ in range(2)]
    third = await client.post(f"{QUEUE}/groups", json=spend, headers=OPERATOR)
    shown = await client.get(f"{QUEUE}/messages", headers=VIEWER)

    assert [(look.status_code, len(look.json()["items"])) for look in looks] == [(200, 2)] * 2
    assert shown.status_code == 200  # what was seen, without another look
    if costs(connection):
        assert "limit" in problem(third, 409, "peek-unsafe")["why"]
        spent = [(entry.by, entry.counts["deliveries"]) for entry in entries(context, "deliveries spent")]
        assert spent == [("eve", 1), ("eve", 1), ("eve", 2), ("eve", 2)]
        assert await delivery_count(connection) == 2
    await until_depth(connection, DLQ, 2)


async def test_deliveries_that_others_spent_count_as_well(client: httpx.AsyncClient, connection: Connection) -> None:
    await prepare(connection, 1, "quorum", **{"x-delivery-limit": 4})
    if not costs(connection):
        return
    await give_back(connection)
    spend = {"spend_deliveries": True}

    first = await client.post(f"{QUEUE}/messages", json=spend)
    await give_back(connection)
    second = await client.post(f"{QUEUE}/messages/m-0", json=spend)

    assert first.status_code == 200
    assert second.status_code == 200  # it cannot be known without a look
    problem(await client.post(f"{QUEUE}/re-drive/plan", json=spend), 409, "peek-unsafe")
    await until_depth(connection, DLQ, 1)


async def give_back(connection: Connection) -> None:
    async with asyncio.timeout(20):
        while (delivery := await connection.get(DLQ)) is None:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    delivery.nack(requeue=True)
    await until_depth(connection, DLQ, 1)


async def delivery_count(connection: Connection) -> int:
    async with asyncio.timeout(20):
        while (delivery := await connection.get(DLQ)) is None:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    found = (delivery.properties.headers or {}).get("x-delivery-count", 0)
    delivery.nack(requeue=True)
    assert isinstance(found, int)
    return found


async def signed_in(
    client: httpx.AsyncClient, context: AdminContext, role: Role, queues: tuple[str, ...] = ("*",)
) -> Any:
    """The headers of a browser."""
    _, key = await asyncio.to_thread(context.gate.keys.create, f"browser-{role}", role, queues)
    answer = await client.post("/sign-in", data={"key": key}, headers=BROWSER | {"Origin": HOST})
    assert answer.status_code == 303
    client.cookies.clear()
    return BROWSER | {"Cookie": answer.headers["set-cookie"].partition(";")[0]}


# Queues for work ----------------------------------------------------------------------------------------

WORK = f"/admin/dlq/queues/{SOURCE}"


@pytest.mark.parametrize("path", ["messages", "messages/w-1", "groups", "export"])
async def test_a_queue_for_work_is_not_peeked_at(client: httpx.AsyncClient, connection: Connection, path: str) -> None:
    await prepare(connection, 1)
    await connection.publish("", SOURCE, b"{}", Properties(message_id="w-1"))

    told = problem(await client.get(f"{WORK}/{path}"), 409, "not-a-dead-letter-queue")

    assert "any_queue" in told["detail"]
    delivery = await connection.get(SOURCE)
    assert delivery is not None
    assert not delivery.redelivered
    delivery.ack()


async def test_nothing_of_a_queue_for_work_is_planned_or_discarded(
    client: httpx.AsyncClient, connection: Connection
) -> None:
    await prepare(connection, 0)
    await connection.publish("", SOURCE, b"{}", Properties(message_id="w-1"))

    for path, asked in (
        ("re-drive/plan", {"to": DLQ}),
        ("re-drive", {"to": DLQ}),
        ("move", {"to": DLQ}),
        ("discard", {"confirm": SOURCE}),
        ("messages/w-1/edit-and-re-drive", {"body": "{}"}),
    ):
        problem(await client.post(f"{WORK}/{path}", json=asked, headers=WAIT), 409, "not-a-dead-letter-queue")
    await client.get(f"{WORK}")
    await client.get(f"/queues/{SOURCE}")

    delivery = await connection.get(SOURCE)
    assert delivery is not None
    assert not delivery.redelivered
    delivery.ack()


async def test_an_operator_who_says_so_peeks_at_any_queue(
    client: httpx.AsyncClient, connection: Connection, context: AdminContext
) -> None:
    await prepare(connection, 0)
    await connection.publish("", SOURCE, b"{}", Properties(message_id="w-1"))
    anyway = {"any_queue": True, "reason": "INC-8"}

    problem(await client.post(f"{WORK}/messages", json=anyway, headers=VIEWER), 403, "not-allowed")
    seen = await client.post(f"{WORK}/messages", json=anyway, headers=OPERATOR)

    assert [one["message_id"] for one in seen.json()["items"]] == ["w-1"]
    problem(await client.get(f"{WORK}/messages", headers=VIEWER), 409, "not-a-dead-letter-queue")
    [entry] = [entry for entry in entries(context, "peek") if entry.by == "eve"]
    assert (entry.queue, entry.reason, entry.allowed) == (SOURCE, "INC-8", True)


async def test_a_dead_letter_queue_with_a_consumer_is_not_peeked_at(
    client: httpx.AsyncClient, connection: Connection
) -> None:
    await prepare(connection, 0)

    async def ignore(_: Delivery) -> None:
        """It keeps what it gets."""

    async with await connection.consume(DLQ, ignore):
        refused = await client.get(f"{QUEUE}/messages")
        anyway = await client.post(f"{QUEUE}/messages", json={"any_queue": True}, headers=OPERATOR)

    assert "consumer" in problem(refused, 409, "not-a-dead-letter-queue")["detail"]
    assert anyway.status_code == 200


# What is hidden -----------------------------------------------------------------------------------------


async def park_a_secret(connection: Connection) -> None:
    await prepare(connection, 0)
    letter = dead_letter(
        1,
        **{"x-redrive-message": f"login with password={PASSWORD}", "api-token": "t0ps3cret"},
    )
    body = json.dumps({"order": 1, "password": PASSWORD, "card": CARD, "amount": 7}).encode()
    await connection.publish("", DLQ, body, letter.properties)
    await until_depth(connection, DLQ, 1)


GUESSES = [
    f"body:{PASSWORD}",
    f"body.password:{PASSWORD}",
    "body.password:h",
    f"body.card:{CARD}",
    "body.card:>4000000000000000",
    f"error:{PASSWORD}",
    "header.api-token:t0ps3cret",
    PASSWORD,
    CARD,
]


@pytest.mark.parametrize("guess", GUESSES)
async def test_a_search_finds_no_more_than_is_shown(
    client: httpx.AsyncClient, connection: Connection, guess: str
) -> None:
    await park_a_secret(connection)
    for query in (guess, f"-{guess}"):
        expected = 0 if query == guess else 1
        peeked = await client.get(f"{QUEUE}/messages", params={"q": query}, headers=VIEWER)
        grouped = await client.get(f"{QUEUE}/groups", params={"q": query}, headers=VIEWER)
        planned = await client.post(f"{QUEUE}/re-drive/plan", json={"q": query}, headers=OPERATOR)
        exported = await client.get(f"{QUEUE}/export", params={"q": query}, headers=OPERATOR)
        found = [
            len(peeked.json()["items"]),
            grouped.json()["matched"],
            planned.json()["matched"],
            len(exported.text.splitlines()),
        ]
        assert found == [expected] * 4, query
    over = await client.post(f"{QUEUE}/re-drive", json={"q": guess}, headers=OPERATOR | WAIT)
    assert over.json()["counts"]["moved"] == 0
    assert (await client.get(f"{QUEUE}/messages", params={"q": guess})).json()["items"]  # by an admin, in the audit


async def test_a_search_without_secrets_finds_what_is_shown(client: httpx.AsyncClient, connection: Connection) -> None:
    await park_a_secret(connection)
    for query in ("body.amount:>6", "body.order:1", "header.tenant:acme", "error:login", "body:order"):
        found = await client.get(f"{QUEUE}/messages", params={"q": query}, headers=VIEWER)
        assert len(found.json()["items"]) == 1, query


async def test_a_patch_that_does_not_fit_quotes_nothing(
    client: httpx.AsyncClient, connection: Connection, context: AdminContext
) -> None:
    await park_a_secret(connection)
    path = f"{QUEUE}/messages/m-1/edit-and-re-drive"
    patch = [{"op": "test", "path": "/password", "value": "guess"}]

    tried = await client.post(path, json={"patch": patch, "dry_run": True})
    over = await client.post(path, json={"patch": patch, "reason": f"password={PASSWORD}"}, headers=WAIT)
    id = over.json()["id"]
    items = await client.get(f"/admin/operations/{id}/items", headers=VIEWER)

    assert "the test failed" in tried.text
    assert over.json()["counts"]["failed"] == 1
    for answer in (tried, over, items, await client.get(f"/operations/{id}", headers=VIEWER)):
        assert PASSWORD not in answer.text
    assert PASSWORD not in str(context.service.audit.list_entries())


# What is not one's own ----------------------------------------------------------------------------------


async def test_who_has_some_queues_is_not_told_the_names_of_others(
    client: httpx.AsyncClient, connection: Connection
) -> None:
    await connection.declare_queue("payroll")
    await connection.declare_queue(
        "payroll.work", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "mine.dlq"}
    )
    await connection.declare_queue("mine.dlq")
    await prepare(connection, 1)
    await client.post(f"{QUEUE}/re-drive", json={"to": "payroll"}, headers=WAIT)
    mine = bearing("operator", "eve", queues=["mine.*"])

    for path in ("/admin/dlq/queues", "/admin/dlq/queues/mine.dlq", "/metrics", "/", "/queues/mine.dlq"):
        told = await client.get(path, headers=mine)
        assert told.status_code == 200, path
        assert "payroll" not in told.text, path
        assert DLQ not in told.text, path


async def test_metrics_count_only_operations_of_queues_that_are_seen(
    client: httpx.AsyncClient, connection: Connection
) -> None:
    await prepare(connection, 30)
    running = (await client.post(f"{QUEUE}/re-drive", json={"rate": 5})).json()

    everything = (await client.get("/metrics")).text
    mine = (await client.get("/metrics", headers=bearing("viewer", "eve", queues=["mine.*"]))).text

    assert "redrive_operations_running 1.0" in everything
    assert "redrive_operations_running 0.0" in mine
    await client.post(f"/admin/operations/{running['id']}/cancel")


async def test_a_key_and_a_token_of_one_name_share_nothing(
    client: httpx.AsyncClient, connection: Connection, context: AdminContext
) -> None:
    await prepare(connection, 4)
    _, key = await asyncio.to_thread(context.gate.keys.create, "ada", Role.ADMIN)
    by_key = {"Authorization": f"Bearer {key}"}
    planned = await client.post(f"{QUEUE}/re-drive/plan", json={})
    once = {"Idempotency-Key": "k-1"} | WAIT
    first = await client.post(f"{QUEUE}/re-drive", json={"limit": 1}, headers=once)

    taken = await client.post(f"{QUEUE}/re-drive", json={"plan_token": planned.json()["plan_token"]}, headers=by_key)
    other = await client.post(f"{QUEUE}/re-drive", json={"limit": 1}, headers=once | by_key)

    problem(taken, 409, "plan-expired")
    assert "idempotency-replayed" not in other.headers
    assert other.json()["id"] != first.json()["id"]


async def test_a_session_and_the_key_that_opened_it_share_their_plans(
    client: httpx.AsyncClient, connection: Connection, context: AdminContext
) -> None:
    await prepare(connection, 1)
    cookie = await signed_in(client, context, Role.ADMIN)
    planned = await client.post(f"{QUEUE}/re-drive/plan", json={}, headers=cookie | {"Origin": HOST})
    again = await client.post(
        f"{QUEUE}/re-drive",
        json={"plan_token": planned.json()["plan_token"]},
        headers=cookie | {"Origin": HOST} | WAIT,
    )
    assert again.json()["counts"]["moved"] == 1


async def test_a_principal_of_the_host_application_is_not_believed(context: AdminContext, cleanliness: None) -> None:  # noqa: ARG001
    admin = Admin(context)
    host = FastAPI()

    @host.middleware("http")
    async def sign_in(request: Any, call_next: Any) -> Any:
        request.state.principal = type("User", (), {"name": "mallory", "may": lambda *_: True, "role": "admin"})()
        return await call_next(request)

    host.mount("/ops", admin)
    async with (
        admin.lifespan(),
        httpx.AsyncClient(transport=httpx.ASGITransport(host), base_url=HOST) as client,
    ):
        problem(await client.get("/ops/admin/me"), 401, "unauthenticated")
        known = await client.get("/ops/admin/me", headers=bearing("viewer", "bob"))
        page = await client.get("/ops/", headers=bearing("viewer", "bob"))
        nowhere = await client.get("/ops/nowhere")
    assert known.json()["name"] == "bob"
    assert page.status_code == 200
    assert nowhere.status_code == 404


@pytest.mark.parametrize("how", ["key", "session"])
async def test_events_end_with_the_key_that_opened_them(
    client: httpx.AsyncClient, connection: Connection, context: AdminContext, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr("redrive.admin.api.operations._BEAT", 0.01)
    monkeypatch.setattr("redrive.admin.api.operations._RECHECKED", 0.0)
    await prepare(connection, 30)
    running = (await client.post(f"{QUEUE}/re-drive", json={"rate": 0.1})).json()
    cookie = await signed_in(client, context, Role.VIEWER)
    made, key = await asyncio.to_thread(context.gate.keys.create, "ada", Role.VIEWER)
    shown = cookie["Cookie"] if how == "session" else f"Bearer {key}"
    header = (b"cookie" if how == "session" else b"authorization", shown.encode())
    stream = Stream(f"/admin/operations/{running['id']}/events", header)

    watching = asyncio.create_task(stream.read(Admin(context).api))
    await stream.until(3)
    await asyncio.to_thread(context.gate.keys.revoke, f"browser-{Role.VIEWER}" if how == "session" else made.id)
    async with asyncio.timeout(20):
        await watching

    assert (await client.get(f"/admin/operations/{running['id']}")).json()["state"] == "RUNNING"
    await client.post(f"/admin/operations/{running['id']}/cancel")


class Stream:
    """An answer that comes in parts, which httpx would collect first."""

    def __init__(self, path: str, header: tuple[bytes, bytes]) -> None:
        self._scope = {
            "type": "http",
            "method": "GET",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": [header],
        }
        self._parts: list[bytes] = []
        self._came = asyncio.Event()

    async def read(self, app: Any) -> None:
        await app(self._scope, self._receive, self._send)

    async def until(self, count: int) -> None:
        async with asyncio.timeout(20):
            while len(self._parts) < count:
                self._came.clear()
                await self._came.wait()

    async def _receive(self) -> dict[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError

    async def _send(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.body" and message["body"]:
            self._parts.append(message["body"])
            self._came.set()


# The audit ----------------------------------------------------------------------------------------------


async def test_peeks_are_in_the_audit(client: httpx.AsyncClient, connection: Connection, context: AdminContext) -> None:
    await prepare(connection, 2)
    for path in ("messages", "messages/m-0", "groups"):
        assert (await client.get(f"{QUEUE}/{path}", params={"q": "source:orders"}, headers=VIEWER)).status_code == 200
    await client.get(f"{QUEUE}/messages", params={"q": "source:orders"}, headers=OPERATOR)  # from the same snapshot

    told = [(entry.by, entry.queue, entry.filter, entry.allowed) for entry in entries(context, "peek")]
    assert told == [
        ("bob", DLQ, "source:orders", True),
        ("bob", DLQ, "id:m-0", True),
        ("bob", DLQ, "source:orders", True),
        ("eve", DLQ, "source:orders", True),
    ]
