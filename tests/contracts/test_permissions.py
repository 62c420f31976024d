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
from redrive.admin.access.roles import Principal, Role
from redrive.admin.api.application import make_api
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
    role: Role  # the least role
    scope: Scope


V, O, A = Role.VIEWER, Role.OPERATOR, Role.ADMIN  # noqa: E741
OPEN = Need(V, Scope.OPEN)
_QUEUE, _MESSAGE, _OPERATION = (
    "/admin/dlq/queues/{queue}",
    "/admin/dlq/queues/{queue}/messages/{id}",
    "/operations/{id}",
)

# Written by hand, and not taken from the code that is tested.
NEEDS: dict[str, Need] = {
    "GET /healthz": OPEN,
    "GET /readyz": OPEN,
    "GET /metrics": Need(V, Scope.LIST),
    "GET /static/{name}": OPEN,
    "GET /sign-in": OPEN,
    "POST /sign-in": OPEN,
    "GET /sign-in/link/{token}": OPEN,
    "POST /sign-in/link/{token}": OPEN,
    "POST /sign-out": OPEN,
    "POST /theme": OPEN,
    # The API
    "GET /admin/openapi.json": OPEN,
    "GET /admin/me": Need(V, Scope.LIST),
    "GET /admin/dlq/queues": Need(V, Scope.LIST),
    f"GET {_QUEUE}": Need(V, Scope.QUEUE),
    f"GET {_QUEUE}/messages": Need(V, Scope.QUEUE),
    f"POST {_QUEUE}/messages": Need(O, Scope.QUEUE),
    f"GET {_MESSAGE}": Need(V, Scope.QUEUE),
    f"GET {_MESSAGE}?reveal=true": Need(A, Scope.QUEUE),
    f"POST {_MESSAGE}": Need(O, Scope.QUEUE),
    f"GET {_QUEUE}/groups": Need(V, Scope.QUEUE),
    f"POST {_QUEUE}/groups": Need(O, Scope.QUEUE),
    f"GET {_QUEUE}/export": Need(O, Scope.QUEUE),
    f"GET {_QUEUE}/export?reveal=true": Need(A, Scope.QUEUE),
    f"POST {_QUEUE}/import": Need(A, Scope.QUEUE),
    f"POST {_QUEUE}/re-drive/plan": Need(O, Scope.QUEUE),
    f"POST {_QUEUE}/re-drive": Need(O, Scope.QUEUE),
    f"POST {_QUEUE}/move": Need(O, Scope.QUEUE),
    f"POST {_QUEUE}/discard": Need(A, Scope.QUEUE),
    f"POST {_MESSAGE}/edit-and-re-drive": Need(A, Scope.QUEUE),
    "GET /admin/operations": Need(V, Scope.LIST),
    f"GET /admin{_OPERATION}": Need(V, Scope.OPERATION),
    f"GET /admin{_OPERATION}/items": Need(V, Scope.OPERATION),
    f"GET /admin{_OPERATION}/events": Need(V, Scope.OPERATION),
    f"POST /admin{_OPERATION}/pause": Need(O, Scope.OPERATION),
    f"POST /admin{_OPERATION}/resume": Need(O, Scope.RESUMED),
    f"POST /admin{_OPERATION}/cancel": Need(O, Scope.OPERATION),
    f"PATCH /admin{_OPERATION}": Need(O, Scope.OPERATION),
    "GET /admin/outbox": Need(V, Scope.ALL),
    "POST /admin/outbox/{id}/retry": Need(O, Scope.ALL),
    "POST /admin/outbox/{id}/discard": Need(A, Scope.ALL),
    "GET /admin/topology": Need(V, Scope.ALL),
    "GET /admin/doctor": Need(V, Scope.ALL),
    "GET /admin/audit": Need(O, Scope.LIST),
    # The console
    "GET /": Need(V, Scope.LIST),
    "GET /operations": Need(V, Scope.LIST),
    f"GET {_OPERATION}": Need(V, Scope.OPERATION),
    f"POST {_OPERATION}/{{wish}}": Need(O, Scope.OPERATION),
    "GET /outbox": Need(V, Scope.ALL),
    "POST /outbox/retry": Need(O, Scope.ALL),
    "POST /outbox/{id}/retry": Need(O, Scope.ALL),
    "GET /outbox/{id}/discard": Need(V, Scope.ALL),
    "POST /outbox/{id}/discard": Need(A, Scope.ALL),
    "GET /topology": Need(V, Scope.ALL),
    "GET /topology.svg": Need(V, Scope.ALL),
    "GET /doctor": Need(V, Scope.ALL),
    "GET /audit": Need(O, Scope.LIST),
    "GET /queues/{queue}": Need(V, Scope.QUEUE),
    "POST /queues/{queue}": Need(O, Scope.QUEUE),
    "GET /queues/{queue}/messages": Need(V, Scope.QUEUE),
    "POST /queues/{queue}/messages": Need(O, Scope.QUEUE),
    "GET /queues/{queue}/messages/{id}": Need(V, Scope.QUEUE),
    "GET /queues/{queue}/messages/{id}?reveal=true": Need(A, Scope.QUEUE),
    "POST /queues/{queue}/messages/{id}": Need(O, Scope.QUEUE),
    "GET /queues/{queue}/messages/{id}/edit": Need(A, Scope.QUEUE),
    "POST /queues/{queue}/messages/{id}/edit": Need(A, Scope.QUEUE),
    "GET /queues/{queue}/re-drive": Need(O, Scope.QUEUE),
    "POST /queues/{queue}/re-drive": Need(O, Scope.QUEUE),
    "GET /queues/{queue}/move": Need(O, Scope.QUEUE),
    "POST /queues/{queue}/move": Need(O, Scope.QUEUE),
    "GET /queues/{queue}/discard": Need(A, Scope.QUEUE),
    "POST /queues/{queue}/discard": Need(A, Scope.QUEUE),
    "GET /queues/{queue}/import": Need(A, Scope.QUEUE),
    "POST /queues/{queue}/import": Need(A, Scope.QUEUE),
}
REVEALS = "?reveal=true"
# There is no outbox here, and nobody signs in with these.
NEVER_REACHED = {name for name in NEEDS if "/outbox" in name} | {"POST /sign-in", "POST /sign-in/link/{token}"}
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
        takes = {parameter.name for parameter in route.dependant.query_params}
        for method in route.methods:
            for query in ("", REVEALS) if "reveal" in takes else ("",):
                name = f"{method} {path}{query}"
                assert name in NEEDS, f"{name} has no line in this table"
                found.append(Route(name, method, path + query, route.operation_id, NEEDS[name]))
    return found


def _each(routes: Iterable[Any]) -> Iterator[APIRoute]:
    """Those of included routers as well, which newer versions of FastAPI keep as they are."""
    for route in routes:
        if isinstance(route, APIRoute):
            yield route
        else:
            yield from _each(route.original_router.routes)


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
    if who.role < need.role or (need.scope is Scope.QUEUE and unseen):
        return {"refused"}
    if need.scope in (Scope.ALL, Scope.RESUMED) and not who.is_unrestricted:
        return {"refused"}
    return {"allowed", "absent"} if need.scope is Scope.ALL else {"allowed"}


async def test_every_route_is_for_those_who_have_its_role_and_see_its_queue(
    client: httpx.AsyncClient, context: AdminContext
) -> None:
    begun = await client.post(f"/admin/dlq/queues/{DLQ}/re-drive", json={"limit": 1}, headers={"Prefer": "wait=20"})
    wrong, reached = [], set()
    for role, queues in PRINCIPALS:
        who, headers = Principal("bob", role, queues), bearing(role, "bob", queues=list(queues))
        for route in routes(context):
            answered = outcome(await ask(client, route, begun.json()["id"], headers))
            if answered not in expected(who, route.need):
                wrong.append((route.name, str(role), queues, answered))
            if answered == "allowed":
                reached.add(route.name)
    assert wrong == [], wrong
    assert NEEDS.keys() - reached <= NEVER_REACHED


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
    assert NEEDS.keys() - {route.name for route in routes(context)} == set()


def test_the_openapi_document_names_the_role_of_each_operation(context: AdminContext) -> None:
    named = {
        f"{method.upper()} {path.replace('{queue:path}', '{queue}')}": operation["x-role"]
        for path, item in make_api(context).openapi()["paths"].items()
        for method, operation in item.items()
    }
    assert named
    assert named == {name: str(NEEDS[name].role) for name in named}
