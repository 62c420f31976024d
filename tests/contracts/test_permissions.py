"""Who may do what, as a table: every route of the server, for every role, with all queues and with some.

The routes come from the server itself: one that is added without a line here fails the test.
"""

import re
from collections.abc import AsyncIterator, Iterable, Iterator
from enum import Enum, auto
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from fastapi.routing import APIRoute

from admin_api import admin_context, asking, bearing
from dead_lettering import DLQ, prepare
from redrive.admin.access.roles import Permission, Principal, Role
from redrive.admin.api.application import make_api
from redrive.admin.api.rest import ACTS
from redrive.admin.context import AdminContext
from redrive.client import Connection
from redrive.testing.broker import ThreadedBroker


class Scope(Enum):
    """What an act is about, and so which principals it is for."""

    OPEN = auto()  # anybody, without a credential
    LIST = auto()  # everybody who has the role; restricted principals get their part
    QUEUE = auto()  # of a queue that the principal sees
    OPERATION = auto()  # on a queue that the principal sees; others are not told that there is one
    RESUMED = auto()  # the same; and the operation sends to every queue, so it is for unrestricted principals
    ALL = auto()  # names every queue: for unrestricted principals


class Need(NamedTuple):
    act: Permission
    scope: Scope


OPEN = Need(Permission.LOOK, Scope.OPEN)
OTHERS: dict[str, Need] = {
    "GET /healthz": OPEN,
    "GET /readyz": OPEN,
    "GET /metrics": Need(Permission.LOOK, Scope.LIST),
    "GET /admin/openapi.json": OPEN,
    "GET /static/{name}": OPEN,
    "GET /sign-in": OPEN,
    "POST /sign-in": OPEN,
    "GET /sign-in/link/{token}": OPEN,
    "POST /sign-in/link/{token}": OPEN,
    "POST /sign-out": OPEN,
    "POST /theme": OPEN,
    "GET /": Need(Permission.LOOK, Scope.LIST),
    "GET /operations": Need(Permission.LOOK, Scope.LIST),
    "GET /operations/{id}": Need(Permission.LOOK, Scope.OPERATION),
    "POST /operations/{id}/{wish}": Need(Permission.STEER, Scope.OPERATION),
    "GET /outbox": Need(Permission.LOOK, Scope.ALL),
    "POST /outbox/retry": Need(Permission.RETRY_OUTBOX, Scope.ALL),
    "POST /outbox/{id}/retry": Need(Permission.RETRY_OUTBOX, Scope.ALL),
    "GET /outbox/{id}/discard": Need(Permission.LOOK, Scope.ALL),
    "POST /outbox/{id}/discard": Need(Permission.DISCARD_OUTBOX, Scope.ALL),
    "GET /topology": Need(Permission.LOOK, Scope.ALL),
    "GET /topology.svg": Need(Permission.LOOK, Scope.ALL),
    "GET /doctor": Need(Permission.LOOK, Scope.ALL),
    "GET /audit": Need(Permission.READ_AUDIT, Scope.LIST),
    "GET /queues/{queue}": Need(Permission.LOOK, Scope.QUEUE),
    "POST /queues/{queue}": Need(Permission.SPEND, Scope.QUEUE),
    "GET /queues/{queue}/messages": Need(Permission.LOOK, Scope.QUEUE),
    "POST /queues/{queue}/messages": Need(Permission.SPEND, Scope.QUEUE),
    "GET /queues/{queue}/messages/{id}": Need(Permission.LOOK, Scope.QUEUE),
    "POST /queues/{queue}/messages/{id}": Need(Permission.SPEND, Scope.QUEUE),
    "GET /queues/{queue}/messages/{id}/edit": Need(Permission.EDIT, Scope.QUEUE),
    "POST /queues/{queue}/messages/{id}/edit": Need(Permission.EDIT, Scope.QUEUE),
    "GET /queues/{queue}/re-drive": Need(Permission.PLAN, Scope.QUEUE),
    "POST /queues/{queue}/re-drive": Need(Permission.REDRIVE, Scope.QUEUE),
    "GET /queues/{queue}/move": Need(Permission.PLAN, Scope.QUEUE),
    "POST /queues/{queue}/move": Need(Permission.REDRIVE, Scope.QUEUE),
    "GET /queues/{queue}/discard": Need(Permission.DISCARD, Scope.QUEUE),
    "POST /queues/{queue}/discard": Need(Permission.DISCARD, Scope.QUEUE),
    "GET /queues/{queue}/import": Need(Permission.IMPORT, Scope.QUEUE),
    "POST /queues/{queue}/import": Need(Permission.IMPORT, Scope.QUEUE),
}
BODIES: dict[str, Any] = {
    "discard": {"confirm": "another"},
    "edit": {"set_headers": {"a": "b"}, "dry_run": True},
    "move": {"to": "orders.other.dlq", "dry_run": True},
    "redrive": {"dry_run": True},
    "steer": {"rate": 5},
}
PRINCIPALS = [(role, queues) for role in Role for queues in (("*",), ("orders*",), ("mail*",))]


class Route(NamedTuple):
    name: str  # method and path
    method: str
    path: str
    operation: str | None
    need: Need


@pytest.fixture(scope="module")
def broker() -> Iterator[ThreadedBroker]:
    with ThreadedBroker() as broker:
        yield broker


@pytest.fixture
def context(broker: ThreadedBroker, tmp_path: Path) -> AdminContext:
    return admin_context(broker.url, tmp_path, editing=True)


@pytest.fixture
async def client(broker: ThreadedBroker, context: AdminContext) -> AsyncIterator[httpx.AsyncClient]:
    async with Connection(broker.url) as connection, asking(context) as client:
        await connection.delete_queue(DLQ)
        await prepare(connection, 3)
        yield client


def routes(context: AdminContext) -> list[Route]:
    found = []
    for route in _each(make_api(context).routes):
        path = route.path.replace("{queue:path}", "{queue}")
        for method in route.methods:
            name = f"{method} {path}"
            need = _of_the_api(route) if route.operation_id is not None else OTHERS.get(name)
            assert need is not None, f"{name} has no line in this table"
            found.append(Route(name, method, path, route.operation_id, need))
    return found


def _each(routes: Iterable[Any]) -> Iterator[APIRoute]:
    """Those of included routers as well, which newer versions of FastAPI keep as they are."""
    for route in routes:
        if isinstance(route, APIRoute):
            yield route
        else:
            yield from _each(route.original_router.routes)


def _of_the_api(route: APIRoute) -> Need:
    act = ACTS[str(route.operation_id)]
    if "{queue" in route.path:
        return Need(act, Scope.QUEUE)
    if "/operations/{id}" in route.path:
        return Need(act, Scope.RESUMED if route.path.endswith("/resume") else Scope.OPERATION)
    everything = re.search(r"/(outbox|topology|doctor)", route.path) is not None
    return Need(act, Scope.ALL if everything else Scope.LIST)


async def ask(client: httpx.AsyncClient, route: Route, operation: str, headers: dict[str, str]) -> int:
    id = operation if "/operations/" in route.path else "1" if "/outbox/" in route.path else "m-1"
    values = {"queue": DLQ, "id": id, "wish": "pause", "name": "console.css", "token": "t"}
    path = re.sub(r"{([^}]+)}", lambda part: values[part[1]], route.path)
    if route.operation == "import" or route.method == "GET":
        sent: dict[str, Any] = {}
    elif route.operation is not None:
        sent = {"json": BODIES.get(route.operation, {})}
    else:
        sent = {"data": {"form": "1"}}
    headers = headers | {"Sec-Fetch-Site": "same-origin"}
    return (await client.request(route.method, path, headers=headers, **sent)).status_code


def outcome(status: int) -> str:
    return {401: "unknown", 403: "refused", 404: "absent"}.get(status, "allowed")


def expected(who: Principal, need: Need) -> set[str]:
    """What may be answered. Who is allowed to may still find nothing there."""
    unseen = not who.sees(DLQ)
    if need.scope is Scope.OPEN:
        return {"allowed", "absent", "unknown"}
    if need.scope in (Scope.OPERATION, Scope.RESUMED) and unseen:
        return {"absent"}
    if who.role < need.act.needs or (need.scope is Scope.QUEUE and unseen):
        return {"refused"}
    if need.scope in (Scope.ALL, Scope.RESUMED) and not who.is_unrestricted:
        return {"refused"}
    return {"allowed", "absent"} if need.scope in (Scope.QUEUE, Scope.ALL) else {"allowed"}


async def test_every_route_is_for_those_who_have_its_role_and_see_its_queue(
    client: httpx.AsyncClient, context: AdminContext
) -> None:
    begun = await client.post(f"/admin/dlq/queues/{DLQ}/re-drive", json={"limit": 1}, headers={"Prefer": "wait=20"})
    wrong = []
    for role, queues in PRINCIPALS:
        who, headers = Principal("bob", role, queues), bearing(role, "bob", queues=list(queues))
        for route in routes(context):
            answered = outcome(await ask(client, route, begun.json()["id"], headers))
            if answered not in expected(who, route.need):
                wrong.append((route.name, str(role), queues, answered))
    assert wrong == [], wrong


async def test_without_a_credential_only_open_routes_answer(client: httpx.AsyncClient, context: AdminContext) -> None:
    wrong = []
    for route in routes(context):
        status = await ask(client, route, "op_1", {"Authorization": ""})
        is_page = not route.path.startswith(("/admin", "/metrics"))
        closed = 303 if is_page and route.method == "GET" else 401
        if (status == closed) is (route.need.scope is Scope.OPEN):
            wrong.append(route.name)
    assert wrong == ["POST /sign-in", "POST /sign-in/link/{token}"]  # with a key and a link that are not valid


def test_the_table_has_no_line_too_many(context: AdminContext) -> None:
    assert OTHERS.keys() - {route.name for route in routes(context)} == set()
