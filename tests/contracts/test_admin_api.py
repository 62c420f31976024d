"""The admin API on every broker: what it tells, what it does, and what it refuses."""

import asyncio
import json
import re
import threading
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from fastapi.routing import APIRoute
from sqlalchemy.exc import OperationalError

from admin_api import admin_context, asking, bearing
from dead_lettering import DLQ, SOURCE, bodies, dead_letter, orders, prepare, until_depth
from redrive.admin.access.roles import Role
from redrive.admin.api.rest import ACTS, router
from redrive.admin.context import AdminContext
from redrive.client import Connection
from redrive.client.publisher import Publish
from redrive.errors import AuditUnavailable, ConfigurationError
from redrive.operations.export_format import Exported, decode_dead_letter
from redrive.operations.operation import Operation
from redrive.recovery.retry import Retry
from redrive.topology import Queue, Topology

QUEUE = f"/admin/dlq/queues/{DLQ}"
WAIT = {"Prefer": "wait=20"}


@pytest.fixture
def context(amqp_url: str, management_url: str | None, tmp_path: Path) -> AdminContext:
    return admin_context(amqp_url, tmp_path, management=management_url)


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the broker holds is asked each time: tests change it faster than people do."""
    monkeypatch.setattr("redrive.admin.cached_target._FRESH", 0)
    monkeypatch.setattr("redrive.admin.authorized_queries._DEPTHS", 0)


@pytest.fixture
async def client(context: AdminContext, cleanliness: None) -> AsyncIterator[httpx.AsyncClient]:  # noqa: ARG001
    async with asking(context) as client:
        yield client


def problem(response: httpx.Response, status: int, kind: str) -> dict[str, Any]:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    told: dict[str, Any] = response.json()
    assert told["type"] == f"urn:redrive:problem:{kind}"
    assert told["status"] == status
    assert told["detail"]
    return told


# Where a re-drive goes by default ------------------------------------------------------------------


async def declare_retry(connection: Connection) -> None:
    """Declare a retry queue in which messages stay."""
    await connection.declare_exchange("retry.orders", "direct")
    await connection.declare_queue("orders.retry")
    await connection.bind_queue("orders.retry", "retry.orders", "retry")


def shop(redrive_to: str) -> Topology:
    return Topology(queues=[Queue(SOURCE, retry=Retry(), redrive_to=redrive_to), Queue("elsewhere")])


@pytest.mark.parametrize("redrive_to", ["retry", "exchange:retry.orders:retry"])
async def test_a_re_drive_without_a_destination_goes_where_the_topology_says(
    amqp_url: str, connection: Connection, tmp_path: Path, redrive_to: str
) -> None:
    await prepare(connection, 3)
    await declare_retry(connection)
    async with asking(admin_context(amqp_url, tmp_path, topology=shop(redrive_to))) as client:
        listed = {one["name"]: one["redrive_to"] for one in (await client.get("/admin/dlq/queues")).json()["items"]}
        plan = (await client.post(f"{QUEUE}/re-drive/plan", json={"limit": 2})).json()
        by_plan = await client.post(f"{QUEUE}/re-drive", json={"plan_token": plan["plan_token"]}, headers=WAIT)
        named = await client.post(f"{QUEUE}/re-drive", json={"to": "own"}, headers=WAIT)

    assert listed[DLQ] == "retry"
    assert [(one["exchange"], one["routing_key"], one["count"]) for one in plan["targets"]] == [
        ("retry.orders", "retry", 2)
    ]
    assert (by_plan.json()["to"], by_plan.json()["counts"]["moved"]) == ("retry", 2)
    assert (named.json()["to"], named.json()["counts"]["moved"]) == ("own", 1)
    assert await bodies(connection, "orders.retry") == orders(0, 1)
    assert await bodies(connection, SOURCE) == orders(2)


async def test_an_edited_message_goes_where_the_topology_says(
    amqp_url: str, connection: Connection, tmp_path: Path
) -> None:
    await prepare(connection, 1)
    await declare_retry(connection)
    async with asking(admin_context(amqp_url, tmp_path, editing=True, topology=shop("retry"))) as client:
        path = f"{QUEUE}/messages/m-0/edit-and-re-drive"
        answer = await client.post(path, json={"body": '{"order": 7}'}, headers=WAIT)

    assert answer.json()["counts"]["moved"] == 1
    assert await bodies(connection, "orders.retry") == orders(7)


@pytest.mark.parametrize(
    ("redrive_to", "shown"),
    [("retry", "retry"), ("original", "own"), ("elsewhere", "own"), ("exchange:retry.orders:retry", "retry")],
)
async def test_a_restricted_operator_gets_own_where_the_default_leads_out_of_its_queues(
    amqp_url: str, connection: Connection, tmp_path: Path, redrive_to: str, shown: str
) -> None:
    await prepare(connection, 1)
    await declare_retry(connection)
    await connection.declare_queue("elsewhere")
    context = admin_context(amqp_url, tmp_path, topology=shop(redrive_to))
    async with asking(context, "operator", queues=["orders*"]) as client:
        listed = {one["name"]: one["redrive_to"] for one in (await client.get("/admin/dlq/queues")).json()["items"]}
        answer = await client.post(f"{QUEUE}/re-drive", json={"limit": 10}, headers=WAIT)

    assert listed[DLQ] == shown
    assert (answer.json()["to"], answer.json()["counts"]["moved"]) == (shown, 1)
    assert await bodies(connection, SOURCE if shown == "own" else "orders.retry") == orders(0)


# Only the application's own dead-letter queues ------------------------------------------------------

_OWN = Topology(queues=[Queue(SOURCE, retry=Retry(), dead_ends=["orders.invalid"]), Queue("bills")])
_REQUESTS = [
    ("GET", "", None),
    ("GET", "/messages", None),
    ("POST", "/messages", {"any_queue": True}),
    ("GET", "/messages/m-0", None),
    ("GET", "/messages/m-0?reveal=true", None),
    ("GET", "/groups", None),
    ("GET", "/export", None),
    ("POST", "/import", {}),
    ("POST", "/re-drive", {"limit": 10}),
    ("POST", "/re-drive", {"limit": 10, "any_queue": True}),
    ("POST", "/re-drive/plan", {}),
    ("POST", "/move", {"to": DLQ}),
    ("POST", "/discard", {"confirm": "x"}),
    ("POST", "/messages/m-0/edit-and-re-drive", {"body": "{}"}),
]


@pytest.mark.parametrize(
    ("queue", "why"),
    [
        (SOURCE, "orders is a queue for work"),
        ("orders.retry", "orders.retry is a retry queue of orders"),
        ("theirs.dlq", "theirs.dlq is not a queue of this application"),
        ("unknown.dlq", "unknown.dlq is not a queue of this application"),
    ],
    ids=["work", "retry", "foreign", "unknown"],
)
async def test_a_server_can_accept_only_the_dead_letter_queues_of_its_application(
    amqp_url: str, connection: Connection, tmp_path: Path, queue: str, why: str
) -> None:
    await prepare(connection, 1)
    await declare_retry(connection)
    await connection.declare_queue("theirs.dlq")
    context = admin_context(amqp_url, tmp_path, editing=True, topology=_OWN, name="shop", own_queues_only=True)
    accepted = "this server accepts only the dead-letter queues of shop: bills.dlq, orders.dlq, orders.invalid"
    async with asking(context) as client:
        for method, path, asked in _REQUESTS:
            body = {"json": asked} if asked is not None else {}
            told = problem(await client.request(method, f"/admin/dlq/queues/{queue}{path}", **body), 404, "not-found")
            assert (told["detail"], told["error"]) == (f"{why}; {accepted}", "queue-not-accepted"), path


async def test_a_server_that_accepts_only_its_own_queues_lists_and_serves_them(
    amqp_url: str, connection: Connection, tmp_path: Path
) -> None:
    await prepare(connection, 2)
    await connection.declare_queue("theirs.dlq")
    async with asking(admin_context(amqp_url, tmp_path, topology=_OWN)) as client:
        everything = (await client.get("/admin/dlq/queues")).json()["items"]
        theirs = await client.get("/admin/dlq/queues/theirs.dlq/messages")
        operation = (await client.post(f"{QUEUE}/re-drive", json={"limit": 1}, headers=WAIT)).json()["id"]
    only = admin_context(amqp_url, tmp_path, topology=_OWN, own_queues_only=True)
    async with asking(only) as client:
        listed = (await client.get("/admin/dlq/queues")).json()["items"]
        page = await client.get(f"{QUEUE}/messages")
        redriven = await client.post(f"{QUEUE}/re-drive", json={"to": "theirs.dlq"}, headers=WAIT)
        operations = (await client.get("/admin/operations")).json()["items"]
    bills = admin_context(amqp_url, tmp_path, topology=Topology(queues=[Queue("bills")]), own_queues_only=True)
    async with asking(bills) as client:
        none = (await client.get("/admin/operations")).json()["items"]
        hidden = await client.get(f"/admin/operations/{operation}")

    assert theirs.status_code == 200
    assert {one["name"] for one in everything} >= {DLQ}
    assert [one["name"] for one in listed] == [DLQ]
    assert [one["message_id"] for one in page.json()["items"]] == ["m-1"]
    assert redriven.json()["counts"]["moved"] == 1  # a destination may be any queue
    assert len(operations) == 2
    assert none == []
    problem(hidden, 404, "not-found")


async def test_who_may_not_ask_is_not_told_which_queues_are_accepted(
    amqp_url: str,
    tmp_path: Path,
    cleanliness: None,  # noqa: ARG001
) -> None:
    context = admin_context(amqp_url, tmp_path, topology=_OWN, name="shop", own_queues_only=True)
    async with asking(context, "operator", queues=["orders*"]) as client:
        problem(await client.get("/admin/dlq/queues/theirs.dlq/messages"), 403, "not-allowed")
        told = problem(await client.get("/admin/dlq/queues/orders/messages"), 404, "not-found")
        viewer = bearing("viewer")
        problem(await client.post("/admin/dlq/queues/orders/re-drive", json={}, headers=viewer), 403, "not-allowed")

    assert told["detail"].endswith("of shop: orders.dlq, orders.invalid")


def test_only_the_own_queues_of_nothing_is_an_error(amqp_url: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="own_queues_only needs an application or a topology file"):
        admin_context(amqp_url, tmp_path, own_queues_only=True)


# The three that the first system had ----------------------------------------------------------------


async def test_queues_messages_and_a_re_drive(client: httpx.AsyncClient, connection: Connection) -> None:
    await prepare(connection, 12)

    listed = (await client.get("/admin/dlq/queues")).json()["items"]
    page = (await client.get(f"{QUEUE}/messages", params={"limit": 20})).json()
    answer = await client.post(f"{QUEUE}/re-drive", json={"limit": 10})

    assert [(one["name"], one["depth"]) for one in listed if one["name"] == DLQ] == [(DLQ, 12)]
    assert [one["message_id"] for one in page["items"]] == [f"m-{number}" for number in range(12)]
    assert page["next_cursor"] is None
    assert answer.status_code == 202
    watching = answer.headers["location"]
    assert watching == f"/admin/operations/{answer.json()['id']}"
    over = await until_over(client, watching)
    assert (over["state"], over["counts"]["moved"]) == ("SUCCEEDED", 10)
    assert await bodies(connection, SOURCE) == orders(*range(10))
    assert await bodies(connection, DLQ) == orders(10, 11)


async def until_over(client: httpx.AsyncClient, path: str) -> dict[str, Any]:
    async with asyncio.timeout(30):
        while True:
            told: dict[str, Any] = (await client.get(path)).json()
            if told["ended_at"] is not None:
                return told
            await asyncio.sleep(0.02)


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/admin/dlq/queues"), ("GET", f"{QUEUE}/messages?limit=20"), ("POST", f"{QUEUE}/re-drive")],
)
async def test_nobody_comes_in_without_a_token_or_without_a_role(
    client: httpx.AsyncClient, context: AdminContext, method: str, path: str
) -> None:
    asked = {"json": {"limit": 10}} if method == "POST" else {}
    nobody = await client.request(method, path, headers={"Authorization": ""}, **asked)
    forged = await client.request(method, path, headers={"Authorization": "Bearer aaa.bbb.ccc"}, **asked)
    roleless = await client.request(method, path, headers=bearing(None), **asked)

    problem(nobody, 401, "unauthenticated")
    problem(forged, 401, "unauthenticated")
    problem(roleless, 403, "not-allowed")
    assert nobody.headers["www-authenticate"].startswith("Bearer")
    [(_, entry)] = context.service.audit.list_entries()
    assert (entry.by, entry.allowed) == ("ada", False)
    assert entry.action.startswith(f"{method} /admin/dlq/queues")


async def test_a_viewer_looks_and_may_not_act(
    client: httpx.AsyncClient, connection: Connection, context: AdminContext
) -> None:
    await prepare(connection, 3)
    viewer = bearing("viewer", "bob")

    assert (await client.get(f"{QUEUE}/messages", headers=viewer)).status_code == 200
    for path, asked in (
        (f"{QUEUE}/re-drive", {"limit": 1}),
        (f"{QUEUE}/re-drive/plan", {}),
        (f"{QUEUE}/discard", {"confirm": DLQ}),
    ):
        problem(await client.post(path, json=asked, headers=viewer), 403, "not-allowed")
    problem(await client.get("/admin/audit", headers=viewer), 403, "not-allowed")

    recorded = [entry for _, entry in context.service.audit.list_entries(by="bob")]
    assert [(entry.allowed, entry.action) for entry in recorded] == [
        (False, "read audit"),
        (False, "discard"),
        (False, "plan"),
        (False, "re-drive"),
        (True, "peek"),
    ]
    assert (await connection.queue_info(DLQ)).messages == 3


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/admin/dlq/queues"), ("GET", f"{QUEUE}/messages?limit=20"), ("POST", f"{QUEUE}/re-drive")],
)
async def test_a_server_can_require_a_role_of_everybody(
    amqp_url: str, connection: Connection, tmp_path: Path, method: str, path: str
) -> None:
    await prepare(connection, 3)
    asked = {"json": {"limit": 10}} if method == "POST" else {}
    context = admin_context(amqp_url, tmp_path, least_role="admin")
    async with asking(context) as client:
        viewer = await client.request(method, path, headers=bearing("viewer", "bob"), **asked)
        operator = await client.request(method, path, headers=bearing("operator", "eve"), **asked)
        admin = await client.request(method, path, **asked)

    assert problem(viewer, 403, "not-allowed")["detail"] == (
        "bob has the role viewer, and this server needs the role admin"
    )
    problem(operator, 403, "not-allowed")
    assert admin.status_code in (200, 202)
    refused = [(entry.by, entry.allowed) for _, entry in context.service.audit.list_entries() if not entry.allowed]
    assert refused == [("eve", False), ("bob", False)]


def test_a_role_that_does_not_exist_is_an_error(amqp_url: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="least_role 'adm': want one of viewer, operator, admin"):
        admin_context(amqp_url, tmp_path, least_role="adm")


async def test_every_operation_needs_the_role_that_its_document_says(
    amqp_url: str, connection: Connection, tmp_path: Path
) -> None:
    """Who has the role below it is refused, whatever else there is to say."""
    await prepare(connection, 2)
    async with asking(admin_context(amqp_url, tmp_path / "editing", editing=True)) as client:
        begun = await client.post(f"{QUEUE}/re-drive", json={"limit": 1}, headers=WAIT)
        for name, method, path in operations(begun.json()["id"]):
            below = {Role.OPERATOR: Role.VIEWER, Role.ADMIN: Role.OPERATOR}[ACTS[name].needs]
            asked = {"json": BODIES.get(name, {})} if method in ("POST", "PATCH") and name != "import" else {}
            answer = await client.request(method, path, headers=bearing(below, "bob"), **asked)
            assert "not allowed" in problem(answer, 403, "not-allowed")["detail"], name


BODIES: dict[str, Any] = {
    "discard": {"confirm": DLQ},
    "edit": {"set_headers": {"a": "b"}},
    "move": {"to": "odd.dlq"},
    "steer": {"rate": 5},
}


def operations(id: str) -> list[tuple[str, str, str]]:
    """Name, method and path of each that a viewer may not do."""
    values = {"queue:path": DLQ, "id": id}
    found = []
    for route in router.routes:
        assert isinstance(route, APIRoute)
        if route.include_in_schema and ACTS[str(route.operation_id)].needs is not Role.VIEWER:
            [method] = route.methods
            path = route.path.replace("/outbox/{id}", "/outbox/1")
            found.append((str(route.operation_id), method, re.sub(r"{([^}]+)}", lambda part: values[part[1]], path)))
    assert {name for name, _, _ in found} == {name for name, act in ACTS.items() if act.needs is not Role.VIEWER}
    return found


async def test_who_has_one_queue_sees_no_other(client: httpx.AsyncClient, connection: Connection) -> None:
    await prepare(connection, 2)
    await connection.declare_queue("payments.dlq")
    mine = bearing("operator", "eve", queues=["payments.*"])

    listed = (await client.get("/admin/dlq/queues", headers=mine)).json()["items"]

    assert {one["name"] for one in listed} <= {"payments.dlq"}
    problem(await client.get(f"{QUEUE}/messages", headers=mine), 403, "not-allowed")
    problem(await client.post(f"{QUEUE}/re-drive", json={}, headers=mine), 403, "not-allowed")
    problem(await client.get("/admin/outbox", headers=mine), 403, "not-allowed")


FOREIGN = ("ledger", "no-such-queue", "exchange:amq.fanout:", "exchange:no-such-exchange:key", "original")


@pytest.mark.parametrize("to", FOREIGN)
async def test_who_has_one_queue_sends_into_no_other(
    amqp_url: str, tmp_path: Path, connection: Connection, to: str
) -> None:
    """And is not told whether it is there."""
    await one_of_mine_and_one_of_others(connection)
    async with asking(admin_context(amqp_url, tmp_path, editing=True), "admin", "eve", queues=["payments.*"]) as eve:
        for path, asked in (
            ("re-drive/plan", {}),
            ("re-drive", {}),
            ("re-drive", {"ramp": [1]}),
            ("re-drive", {"dry_run": True}),
            ("move", {}),
            ("move", {"dry_run": True}),
            ("messages/m-1/edit-and-re-drive", {"body": "{}"}),
            ("messages/m-1/edit-and-re-drive", {"body": "{}", "dry_run": True}),
        ):
            told = problem(await eve.post(f"{MINE}/{path}", json={**asked, "to": to}), 403, "not-allowed")
            assert told["detail"] == "not allowed: eve sees the queues payments.*, and nothing else"
        denied = (await eve.get("/admin/audit", headers=bearing("admin", "root"))).json()["items"]
        assert (await eve.get("/admin/operations")).json()["items"] == []

    assert [one["by"] for one in denied if not one["allowed"]] == ["eve"] * 8
    assert {one["action"] for one in denied if one["allowed"]} == {"peek"}
    assert (await connection.queue_info("ledger")).messages == 0


async def test_a_plan_is_not_carried_out_into_a_queue_that_is_not_ones_own_any_more(
    client: httpx.AsyncClient, connection: Connection
) -> None:
    await one_of_mine_and_one_of_others(connection)
    planned = await client.post(f"{MINE}/re-drive/plan", json={"to": "ledger"})
    order = {"plan_token": planned.json()["plan_token"]}

    refused = await client.post(f"{MINE}/re-drive", json=order, headers=bearing("admin", queues=["payments.*"]))

    problem(refused, 403, "not-allowed")
    assert (await connection.queue_info("ledger")).messages == 0


async def test_who_has_some_queues_sends_from_one_to_the_other(
    client: httpx.AsyncClient, connection: Connection
) -> None:
    await one_of_mine_and_one_of_others(connection)
    mine = bearing("operator", "eve", queues=["payments.*", "ledger"]) | WAIT

    over = await client.post(f"{MINE}/re-drive", json={"to": "ledger"}, headers=mine)

    assert (over.json()["state"], over.json()["counts"]["moved"]) == ("SUCCEEDED", 1)
    assert await bodies(connection, "ledger") == orders(1)


MINE = "/admin/dlq/queues/payments.dlq"


async def one_of_mine_and_one_of_others(connection: Connection) -> None:
    for queue in ("payments.dlq", "ledger"):
        await connection.declare_queue(queue)
    letter = dead_letter(1)
    await connection.publish("", "payments.dlq", letter.body, letter.properties)
    await until_depth(connection, "payments.dlq", 1)


# Looking ----------------------------------------------------------------------------------------------


async def test_pages_go_on_where_the_last_one_ended(client: httpx.AsyncClient, connection: Connection) -> None:
    await prepare(connection, 7)
    found, cursor = [], None
    for _ in range(4):
        params = {"limit": 3} | ({"cursor": cursor} if cursor else {})
        page = (await client.get(f"{QUEUE}/messages", params=params)).json()
        found.append([one["message_id"] for one in page["items"]])
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert found == [["m-0", "m-1", "m-2"], ["m-3", "m-4", "m-5"], ["m-6"]]


async def test_a_message_with_its_story_and_without_its_secrets(
    client: httpx.AsyncClient, connection: Connection, context: AdminContext
) -> None:
    await prepare(connection, 0)
    letter = dead_letter(1, **{"api-token": "t0ps3cret", "weird": "a\x1b[31m\u202eb"})
    await connection.publish("", DLQ, b'{"order": 1, "password": "hunter2"}', letter.properties)
    await until_depth(connection, DLQ, 1)

    hidden = await client.get(f"{QUEUE}/messages/m-1")
    shown = await client.get(f"{QUEUE}/messages/m-1", params={"reveal": True})
    refused = await client.get(f"{QUEUE}/messages/m-1", params={"reveal": True}, headers=bearing("operator", "bob"))

    told = hidden.json()
    assert "hunter2" not in hidden.text
    assert "t0ps3cret" not in hidden.text
    assert "\\x1b[31m\\u202eb" in told["headers"]["weird"]
    assert told["body"]["kind"] == "json"
    assert told["error"] == "TimeoutError"
    assert any("parked" in line for line in told["timeline"])
    assert "hunter2" in shown.json()["body"]["text"]
    assert shown.json()["headers"]["api-token"] == "t0ps3cret"
    problem(refused, 403, "not-allowed")
    assert [(entry.by, entry.allowed) for _, entry in context.service.audit.list_entries(action="reveal")] == [
        ("bob", False),
        ("ada", True),
    ]


CARD = "4111 1111 1111 1111"
QUOTING = {"x-redrive-message": f"card {CARD} was refused", "x-redrive-stack": "Refused: login with password=hunter2"}


async def test_what_an_error_says_is_without_secrets_as_well(client: httpx.AsyncClient, connection: Connection) -> None:
    await prepare(connection, 0)
    letter = dead_letter(1, **QUOTING)
    await connection.publish("", DLQ, letter.body, letter.properties)
    await until_depth(connection, DLQ, 1)

    one = await client.get(f"{QUEUE}/messages/m-1")
    for answer in (
        one,
        await client.get(f"{QUEUE}/messages"),
        await client.get(f"{QUEUE}/groups"),
        await client.post(f"{QUEUE}/re-drive/plan", json={}),
    ):
        assert answer.status_code == 200
        assert "[redacted] was refused" in answer.text
        assert CARD not in answer.text
    assert "hunter2" not in one.text
    shown = (await client.get(f"{QUEUE}/messages/m-1", params={"reveal": True})).json()
    assert shown["error_message"] == QUOTING["x-redrive-message"]
    assert shown["stack"] == QUOTING["x-redrive-stack"]


async def test_two_hundred_who_look_at_the_same_are_one_look(
    client: httpx.AsyncClient, connection: Connection, context: AdminContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    await prepare(connection, 5)
    looks = []
    peek = context.service.peek

    async def counted(*args: Any, **options: Any) -> Any:
        looks.append(args)
        return await peek(*args, **options)

    monkeypatch.setattr(type(context.service), "peek", lambda _, *args, **options: counted(*args, **options))

    answers = await asyncio.gather(*(client.get(f"{QUEUE}/messages") for _ in range(200)))
    again = await client.get(f"{QUEUE}/messages", params={"fresh": True})

    assert {answer.status_code for answer in answers} == {200}
    assert {len(answer.json()["items"]) for answer in answers} == {5}
    assert len(looks) == 2
    assert again.json()["seen_at"] > answers[0].json()["seen_at"]


async def test_groups(client: httpx.AsyncClient, connection: Connection) -> None:
    await prepare(connection, 5)
    told = (await client.get(f"{QUEUE}/groups")).json()
    assert [(one["key"], one["count"]) for one in told["items"]] == [("77d1beef00", 3), ("3fa9c0ffee", 2)]
    by = (await client.get(f"{QUEUE}/groups", params={"by": "error"})).json()
    assert [(one["key"], one["count"]) for one in by["items"]] == [("TimeoutError", 5)]


@pytest.mark.parametrize(
    "name", ["a/b.dlq", "50%.dlq", "a#b?c.dlq", "ü ß.dlq", "a/messages", "<script>.dlq", "x%2Fy.dlq"]
)
async def test_queues_have_any_name(client: httpx.AsyncClient, connection: Connection, name: str) -> None:
    await connection.declare_queue(name)
    dies_into_it = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": name}
    await connection.declare_queue(SOURCE, arguments=dies_into_it)
    letter = dead_letter(1)
    await connection.publish("", name, b"{}", letter.properties)
    await until_depth(connection, name, 1)
    path = f"/admin/dlq/queues/{quote(name, safe='')}"

    assert (await client.get(path)).json()["name"] == name
    assert (await client.get(f"{path}/messages")).json()["depth"] == 1
    assert (await client.get(f"{path}/messages/m-1")).json()["queue"] == name
    planned = (await client.post(f"{path}/re-drive/plan", json={})).json()
    assert planned["queue"] == name


async def test_what_is_not_there(client: httpx.AsyncClient, connection: Connection) -> None:
    await prepare(connection, 1)
    problem(await client.get("/admin/dlq/queues/nowhere.dlq"), 404, "not-found")
    problem(await client.get("/admin/dlq/queues/nowhere.dlq/messages"), 404, "not-found")
    problem(await client.get(f"{QUEUE}/messages/m-99"), 404, "not-found")
    problem(await client.get("/admin/operations/op_nothing"), 404, "not-found")
    problem(await client.get("/admin/nothing"), 404, "not-found")
    problem(await client.get("/admin/outbox"), 404, "not-found")
    problem(await client.delete("/admin/dlq/queues"), 405, "method-not-allowed")


@pytest.mark.parametrize(
    ("params", "says"),
    [
        ({"limit": 0}, "limit"),
        ({"limit": "many"}, "limit"),
        ({"q": "nonsense:x"}, "nonsense"),
        ({"cursor": "aaaa"}, "next_cursor"),
        ({"cursor": "b3BlcmF0aW9uczo1"}, "next_cursor"),
    ],
)
async def test_what_makes_no_sense_is_said(
    client: httpx.AsyncClient, connection: Connection, params: dict[str, Any], says: str
) -> None:
    await prepare(connection, 1)
    told = problem(await client.get(f"{QUEUE}/messages", params=params), 422, "invalid-request")
    assert says in json.dumps(told)


# Re-driving -------------------------------------------------------------------------------------------


async def test_a_plan_is_carried_out_once_and_as_it_was_shown(
    client: httpx.AsyncClient, connection: Connection
) -> None:
    await prepare(connection, 6)
    planned = (await client.post(f"{QUEUE}/re-drive/plan", json={"group": "3fa9", "reason": "INC-1"})).json()
    assert (planned["matched"], planned["eligible"], planned["also_receives"]) == (3, 3, [])
    assert [(one["routing_key"], one["count"], one["exists"]) for one in planned["targets"]] == [(SOURCE, 3, True)]
    assert len(planned["sample"]) == 3
    token = {"plan_token": planned["plan_token"]}

    mixed = await client.post(f"{QUEUE}/re-drive", json=token | {"limit": 1})
    problem(mixed, 422, "invalid-request")
    planned = (await client.post(f"{QUEUE}/re-drive/plan", json={"group": "3fa9", "reason": "INC-1"})).json()
    token = {"plan_token": planned["plan_token"]}
    over = await client.post(f"{QUEUE}/re-drive", json=token, headers=WAIT)
    again = await client.post(f"{QUEUE}/re-drive", json=token)

    assert over.status_code == 200
    assert over.headers["preference-applied"] == "wait=20"
    told = over.json()
    assert (told["state"], told["counts"]["planned"], told["counts"]["moved"]) == ("SUCCEEDED", 3, 3)
    assert told["reason"] == "INC-1"
    problem(again, 409, "plan-expired")
    assert await bodies(connection, SOURCE) == orders(1, 3, 5)


async def test_somebody_elses_plan_is_none(client: httpx.AsyncClient, connection: Connection) -> None:
    await prepare(connection, 1)
    planned = (await client.post(f"{QUEUE}/re-drive/plan", json={})).json()
    other = await client.post(
        f"{QUEUE}/re-drive", json={"plan_token": planned["plan_token"]}, headers=bearing("admin", "bob")
    )
    problem(other, 409, "plan-expired")


async def test_a_dry_run_moves_nothing(client: httpx.AsyncClient, connection: Connection) -> None:
    await prepare(connection, 2)
    told = await client.post(f"{QUEUE}/re-drive", json={"limit": 1, "dry_run": True})
    assert told.status_code == 200
    assert told.json()["eligible"] == 1
    assert (await connection.queue_info(DLQ)).messages == 2


async def test_the_same_request_again_is_done_once(client: httpx.AsyncClient, connection: Connection) -> None:
    await prepare(connection, 4)
    key = {"Idempotency-Key": "k-1", **WAIT}

    first = await client.post(f"{QUEUE}/re-drive", json={"limit": 2}, headers=key)
    again = await client.post(f"{QUEUE}/re-drive", json={"limit": 2}, headers=key)
    other = await client.post(f"{QUEUE}/re-drive", json={"limit": 3}, headers=key)
    bad = await client.post(f"{QUEUE}/re-drive", json={"limit": 2}, headers={"Idempotency-Key": "x" * 300})

    assert first.status_code == 200
    assert again.json() == first.json()
    assert again.headers["idempotency-replayed"] == "true"
    assert again.headers["location"] == first.headers["location"]
    problem(other, 422, "key-reused")
    problem(bad, 422, "invalid-request")
    assert (await connection.queue_info(DLQ)).messages == 2


async def test_at_the_same_time_it_is_done_once_as_well(client: httpx.AsyncClient, connection: Connection) -> None:
    await prepare(connection, 20)
    key = {"Idempotency-Key": "k-2", **WAIT}

    answers = await asyncio.gather(
        *(client.post(f"{QUEUE}/re-drive", json={"limit": 2}, headers=key) for _ in range(5))
    )

    assert sorted(answer.status_code for answer in answers)[0] == 200
    assert {answer.status_code for answer in answers} <= {200, 409}
    assert (await connection.queue_info(DLQ)).messages == 18


async def test_a_request_that_takes_long_keeps_its_key(
    context: AdminContext, client: httpx.AsyncClient, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    await prepare(connection, 30)
    kept: list[str] = []
    monkeypatch.setattr("redrive.admin.api.idempotency.KEEP_EVERY", timedelta(milliseconds=1))
    monkeypatch.setattr(context.requests, "keep", lambda who, key, _: kept.append(f"{who}: {key}"))

    order = client.post(f"{QUEUE}/re-drive", json={"rate": 100}, headers={"Idempotency-Key": "k-3", **WAIT})
    assert (await order).status_code == 200
    told = len(kept)
    assert told > 1
    [key] = set(kept)
    assert key.startswith("token ")
    assert key.endswith(": k-3")
    await asyncio.sleep(0.01)
    assert len(kept) == told  # not after it was answered


async def test_what_was_begun_is_answered_though_it_cannot_be_looked_at(
    context: AdminContext, client: httpx.AsyncClient, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    await prepare(connection, 40)

    find, looks = context.service.store.find, 0

    def find_or_not(id: str) -> list[Operation]:
        nonlocal looks
        looks += 1
        if looks == 3:  # the first two are the executor's, the third is of the request that waits
            raise OperationalError("SELECT", None, Exception("the database is away"))
        return find(id)

    monkeypatch.setattr(context.service.store, "find", find_or_not)
    asked: dict[str, Any] = {"json": {"limit": 10, "rate": 100}, "headers": {"Idempotency-Key": "k-5", **WAIT}}
    first = await client.post(f"{QUEUE}/re-drive", **asked)
    again = await client.post(f"{QUEUE}/re-drive", **asked)

    assert first.status_code == 202
    assert first.json()["state"] == "RUNNING"
    assert again.json()["id"] == first.json()["id"]
    assert again.headers["idempotency-replayed"] == "true"
    await until_over(client, first.headers["location"])
    assert len((await client.get("/admin/operations")).json()["items"]) == 1


async def test_what_was_done_is_answered_though_it_cannot_be_remembered(
    context: AdminContext, client: httpx.AsyncClient, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    await prepare(connection, 4)

    def refuse(*_: object) -> None:
        raise OperationalError("UPDATE", None, Exception("the database is away"))

    monkeypatch.setattr(context.requests, "finish", refuse)
    key = {"Idempotency-Key": "k-4", **WAIT}
    first = await client.post(f"{QUEUE}/re-drive", json={"limit": 2}, headers=key)
    again = await client.post(f"{QUEUE}/re-drive", json={"limit": 2}, headers=key)

    assert first.status_code == 200
    assert first.json()["counts"]["moved"] == 2
    problem(again, 409, "request-in-progress")
    assert (await connection.queue_info(DLQ)).messages == 2


async def test_a_target_that_is_not_there_is_told_before_anything_is_done(
    client: httpx.AsyncClient, connection: Connection
) -> None:
    await prepare(connection, 1)
    for to in ("no-such-queue", "exchange:no-such-exchange:key"):
        problem(await client.post(f"{QUEUE}/re-drive", json={"to": to}), 409, "target-unroutable")
    assert (await client.get("/admin/operations")).json()["items"] == []


async def test_one_operation_at_a_time_which_others_watch_and_steer(
    client: httpx.AsyncClient, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redrive.operations.control._BEAT", 0.02)
    await prepare(connection, 30)
    running = (await client.post(f"{QUEUE}/re-drive", json={"rate": 5})).json()
    path = f"/admin/operations/{running['id']}"

    conflict = problem(await client.post(f"{QUEUE}/re-drive", json={"limit": 1}), 409, "operation-in-progress")
    assert running["id"] in conflict["holder"]
    assert (await client.post(f"{path}/pause")).status_code == 200
    await until_state(client, path, "PAUSED")
    assert (await client.post(f"{path}/resume")).status_code == 200
    await until_state(client, path, "RUNNING")
    assert (await client.patch(path, json={"rate": 10000})).status_code == 200
    over = await until_over(client, path)
    assert (over["state"], over["counts"]["moved"]) == ("SUCCEEDED", 30)
    assert problem(await client.post(f"{path}/cancel"), 409, "operation-over")["state"] == "SUCCEEDED"
    listed = (await client.get("/admin/operations", params={"queue": DLQ, "state": "SUCCEEDED"})).json()["items"]
    assert [one["id"] for one in listed] == [running["id"]]
    items = (await client.get(f"{path}/items", params={"limit": 20, "outcome": "moved"})).json()
    rest = (await client.get(f"{path}/items", params={"limit": 20, "cursor": items["next_cursor"]})).json()
    assert (len(items["items"]), len(rest["items"]), rest["next_cursor"]) == (20, 10, None)


async def until_state(client: httpx.AsyncClient, path: str, state: str) -> None:
    async with asyncio.timeout(20):
        while (await client.get(path)).json()["state"] != state:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_progress_comes_as_events(client: httpx.AsyncClient, connection: Connection) -> None:
    await prepare(connection, 5)
    running = (await client.post(f"{QUEUE}/re-drive", json={"rate": 4})).json()
    told = await client.get(f"/admin/operations/{running['id']}/events")
    assert told.headers["content-type"].startswith("text/event-stream")
    events = [json.loads(line.removeprefix("data: ")) for line in told.text.splitlines() if line.startswith("data: ")]
    assert events[-1]["state"] == "SUCCEEDED"
    assert events[-1]["counts"]["moved"] == 5
    assert len(events) >= 2


async def test_a_canary_stops_by_itself(client: httpx.AsyncClient, connection: Connection) -> None:
    await prepare(connection, 30)
    failing = asyncio.create_task(fail_all(connection))
    asked = {"ramp": [1, 5], "stop_if": {"returned_pct": 10}, "step_wait": "300ms"}
    over = (await client.post(f"{QUEUE}/re-drive", json=asked, headers={"Prefer": "wait=30"})).json()
    failing.cancel()
    assert over["state"] == "STOPPED_BY_GUARD", over
    assert over["counts"]["moved"] == 1


async def fail_all(connection: Connection) -> None:
    """Whatever comes back to work dies again at once, with the operation that sent it still in its headers."""
    while True:
        delivery = await connection.get(SOURCE)
        if delivery is None:
            await asyncio.sleep(0.01)
            continue
        await connection.publish("", DLQ, delivery.body, delivery.properties)
        delivery.ack()


async def test_a_move_to_another_dead_letter_queue_keeps_the_failure_record(
    client: httpx.AsyncClient, connection: Connection
) -> None:
    await prepare(connection, 4)
    await connection.declare_queue("odd.dlq")

    planned = (await client.post(f"{QUEUE}/move", json={"to": "odd.dlq", "group": "3fa9", "dry_run": True})).json()
    over = (await client.post(f"{QUEUE}/move", json={"to": "odd.dlq", "group": "3fa9"}, headers=WAIT)).json()

    assert (planned["eligible"], planned["plan_token"]) == (2, None)
    assert (over["kind"], over["state"], over["counts"]["moved"]) == ("move", "SUCCEEDED", 2)
    moved = (await client.get("/admin/dlq/queues/odd.dlq/messages")).json()["items"]
    assert [(one["source"], one["reason"], one["attempts"]) for one in moved] == [(SOURCE, "exhausted", 3)] * 2
    problem(await client.post(f"{QUEUE}/move", json={"to": DLQ}), 422, "invalid-request")
    problem(await client.post(f"{QUEUE}/move", json={"to": SOURCE}), 422, "invalid-request")
    problem(await client.post(f"{QUEUE}/move", json={"to": "none.dlq"}), 409, "target-unroutable")
    problem(await client.post(f"{QUEUE}/move", json={}), 422, "invalid-request")


async def test_discarding_needs_the_name_and_leaves_an_archive(
    client: httpx.AsyncClient, connection: Connection, tmp_path: Path
) -> None:
    await prepare(connection, 4)
    problem(await client.post(f"{QUEUE}/discard", json={"confirm": "orders"}), 422, "invalid-request")
    problem(await client.post(f"{QUEUE}/discard", json={}), 422, "invalid-request")

    over = await client.post(f"{QUEUE}/discard", json={"confirm": DLQ, "group": "3fa9"}, headers=WAIT)

    assert (over.json()["state"], over.json()["counts"]["moved"]) == ("SUCCEEDED", 2)
    assert (await connection.queue_info(DLQ)).messages == 2
    assert len(list((tmp_path / "archive").rglob("*.*"))) >= 1


async def test_out_of_one_queue_and_into_another(client: httpx.AsyncClient, connection: Connection) -> None:
    await prepare(connection, 3)
    await connection.declare_queue("copy")
    redacted = await client.get(f"{QUEUE}/export", headers=bearing("operator"))
    whole = await client.get(f"{QUEUE}/export", params={"reveal": True})
    assert [line["message_id"] for line in map(json.loads, whole.text.splitlines())] == ["m-0", "m-1", "m-2"]

    refused = await client.post("/admin/dlq/queues/copy/import", content=redacted.content)
    broken = await client.post("/admin/dlq/queues/copy/import", content=whole.content + b"{nonsense}\n")
    problem(refused, 422, "invalid-request")
    problem(broken, 422, "invalid-request")
    assert (await connection.queue_info("copy")).messages == 0
    done = await client.post("/admin/dlq/queues/copy/import", content=whole.content)

    assert done.json() == {"lines": 3}
    assert await bodies(connection, "copy") == orders(0, 1, 2)


@pytest.mark.parametrize("headers", [{}, {"Idempotency-Key": "1"}], ids=["", "once"])
async def test_an_import_into_no_queue_is_not_even_read(client: httpx.AsyncClient, headers: dict[str, str]) -> None:
    read = 0

    async def content() -> AsyncIterator[bytes]:
        nonlocal read
        for _ in range(100):
            read += 1
            yield b"{}\n" * 1000

    answer = await client.post("/admin/dlq/queues/nowhere/import", content=content(), headers=headers)

    problem(answer, 404, "not-found")
    assert read == 0


async def test_an_import_is_decoded_in_threads(
    client: httpx.AsyncClient, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    await prepare(connection, 3)
    await connection.declare_queue("copy")
    exported = (await client.get(f"{QUEUE}/export", params={"reveal": True})).content
    threads = []

    def decode(line: bytes, number: int) -> Exported:
        threads.append(threading.current_thread())
        return decode_dead_letter(line, number)

    monkeypatch.setattr("redrive.admin.api.export.decode_dead_letter", decode)
    done = await client.post("/admin/dlq/queues/copy/import", content=exported * 200)

    assert done.json() == {"lines": 600}
    assert len(threads) == 1200  # once to check all of it, once to publish
    assert threading.main_thread() not in threads
    assert (await connection.queue_info("copy")).messages == 600


async def test_a_line_of_an_import_has_a_longest_length(
    client: httpx.AsyncClient, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    await connection.declare_queue("copy")
    monkeypatch.setattr("redrive.admin.api.export._LONGEST_LINE", 1000)

    answer = await client.post("/admin/dlq/queues/copy/import", content=b"\n" + b"x" * 5000 + b"\n")

    assert "line 2: it has more than 1000 bytes" in problem(answer, 422, "invalid-request")["detail"]


async def test_messages_are_changed_only_where_that_is_allowed(
    amqp_url: str, client: httpx.AsyncClient, connection: Connection, tmp_path: Path
) -> None:
    await prepare(connection, 2)
    change = {"patch": [{"op": "replace", "path": "/order", "value": 7}]}
    path = f"{QUEUE}/messages/m-1/edit-and-re-drive"
    problem(await client.post(path, json=change), 403, "not-editable")

    async with asking(admin_context(amqp_url, tmp_path / "editing", editing=True)) as editor:
        nothing = await editor.post(path, json={})
        seen = await editor.post(path, json=change | {"dry_run": True})
        over = await editor.post(path, json=change, headers=WAIT)
        operator = await editor.post(path, json=change, headers=bearing("operator"))

    problem(nothing, 422, "invalid-request")
    assert '+  "order": 7' in seen.json()["items"][0]["difference"]
    assert over.json()["counts"]["moved"] == 1
    problem(operator, 403, "not-allowed")
    [changed] = await bodies(connection, SOURCE)
    assert json.loads(changed) == {"order": 7}


# All else ---------------------------------------------------------------------------------------------


async def test_the_audit_tells_who_did_what(client: httpx.AsyncClient, connection: Connection) -> None:
    await prepare(connection, 1)
    await client.post(f"{QUEUE}/re-drive", json={"reason": "INC-42"}, headers=WAIT)
    async with asyncio.timeout(20):  # it is over before that is recorded
        while len((await client.get("/admin/audit", params={"queue": DLQ})).json()["items"]) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    told = (await client.get("/admin/audit", params={"queue": DLQ, "limit": 1})).json()
    rest = (await client.get("/admin/audit", params={"queue": DLQ, "cursor": told["next_cursor"]})).json()
    assert [(one["by"], one["action"]) for one in told["items"]] == [("ada", "re-drive ended")]
    assert [(one["action"], one["reason"]) for one in rest["items"]] == [("re-drive", "INC-42")]


async def test_what_cannot_be_recorded_is_not_done(
    client: httpx.AsyncClient, connection: Connection, context: AdminContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    await prepare(connection, 1)

    def refuse(*_: Any) -> None:
        raise AuditUnavailable("the disk is full")

    monkeypatch.setattr(context.service.audit, "write", refuse)
    problem(await client.post(f"{QUEUE}/re-drive", json={}), 503, "audit-unavailable")
    assert (await connection.queue_info(DLQ)).messages == 1


async def test_topology_doctor_and_who_i_am(client: httpx.AsyncClient, connection: Connection) -> None:
    await prepare(connection, 0)
    topology = (await client.get("/admin/topology")).json()
    assert topology["server"]
    assert isinstance((await client.get("/admin/doctor")).json()["items"], list)
    me = (await client.get("/admin/me")).json()
    assert (me["name"], me["role"], me["queues"]) == ("ada", "admin", ["*"])
    assert "discard" in me["acts"]


async def test_the_topology_is_that_of_the_application_unless_everything_is_asked_for(
    amqp_url: str, management_url: str | None, connection: Connection, tmp_path: Path
) -> None:
    await prepare(connection, 0)
    await connection.declare_queue("somebody.elses")
    topology = Topology(queues=[Queue(SOURCE, existing=True), Queue("absent", existing=True)])
    office = admin_context(amqp_url, tmp_path, topology=topology, management=management_url)
    async with asking(office) as client:
        own = (await client.get("/admin/topology")).json()["drift"]
        everything = (await client.get("/admin/topology", params={"all": "true"})).json()["drift"]
    actions = {step["what"]: step["action"] for step in own}
    assert (actions[f"queue {SOURCE}"], actions["queue absent"]) == ("existing", "missing")
    assert "queue somebody.elses" not in actions
    (taken,) = (step for step in own if step["action"] == "existing")
    assert "what expires in it, overflows or is rejected by others" in taken["note"]
    assert {"queue somebody.elses": "other"}.items() <= {step["what"]: step["action"] for step in everything}.items()


async def test_health_is_open_and_metrics_are_not(client: httpx.AsyncClient, connection: Connection) -> None:
    await prepare(connection, 3)
    nobody = {"Authorization": ""}
    assert (await client.get("/healthz", headers=nobody)).text == "ok\n"
    assert (await client.get("/readyz", headers=nobody)).text == "ok\n"
    problem(await client.get("/metrics", headers=nobody), 401, "unauthenticated")
    told = (await client.get("/metrics", headers=bearing("viewer"))).text
    assert f'redrive_dead_letters{{queue="{DLQ}"}} 3.0' in told


async def test_every_answer_keeps_browsers_safe(client: httpx.AsyncClient) -> None:
    for path in ("/admin/me", "/admin/nothing", "/healthz"):
        headers = (await client.get(path)).headers
        assert headers["content-security-policy"].startswith("default-src 'none'")
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"


async def test_a_large_and_hostile_message_is_an_answer(client: httpx.AsyncClient, connection: Connection) -> None:
    await prepare(connection, 0)
    hostile = dead_letter(1, **{"<b>": "\x00\x07", "deep": {"a": [{"b": [1.5, b"\xff\xfe"]}]}})
    await connection.publish_many([Publish("", DLQ, b"\xff\x00" * 500_000, hostile.properties)])
    await until_depth(connection, DLQ, 1)
    told = await client.get(f"{QUEUE}/messages/m-1")
    assert told.status_code == 200
    assert told.json()["body"]["truncated"] is True
    assert len(told.content) < 200_000
