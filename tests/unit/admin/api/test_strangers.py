"""Bodies of clients that may not send them: refused before they are read."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.routing import APIRoute

from admin_api import admin_context, bearing
from redrive.admin import console
from redrive.admin.api import rest
from redrive.admin.api.application import Admin
from redrive.admin.console.forms import MOST_OF_STRANGERS
from redrive.testing import free_port

MB = 1024 * 1024
ONCE = {"Idempotency-Key": "1"}
OPEN = ("/sign-in", "/theme")  # anybody may send these forms


@pytest.fixture
async def admin(tmp_path: Path) -> AsyncIterator[Admin]:
    admin = Admin(admin_context(f"amqp://127.0.0.1:{free_port()}/", tmp_path, editing=True))
    async with admin.lifespan():
        yield admin


def taking_bodies(routes: Iterable[Any]) -> Iterator[tuple[str, str]]:
    for route in routes:
        if isinstance(route, APIRoute):
            path = route.path.replace("{queue:path}", "q.dlq").replace("{id}", "1").replace("{wish}", "pause")
            yield from ((method, path.replace("{token}", "t")) for method in route.methods - {"GET", "HEAD"})
        else:  # a router that is part of another
            yield from taking_bodies(route.original_router.routes)


ROUTES = sorted({*taking_bodies(rest.router.routes), *taking_bodies(console.router.routes)})


async def send(admin: Admin, method: str, path: str, headers: dict[str, str], size: int) -> tuple[int, int]:
    """Return the status of the answer, and how much of the body was read."""
    read = status = 0

    async def receive() -> dict[str, Any]:
        nonlocal read
        read += 64 * 1024
        return {"type": "http.request", "body": b"a" * 64 * 1024, "more_body": read < size}

    async def answer(message: Any) -> None:
        nonlocal status
        status = message.get("status", status)

    told = {"Host": "127.0.0.1", "Content-Type": "application/json", "Sec-Fetch-Site": "same-origin", **headers}
    scope = {
        "type": "http", "method": method, "path": path, "raw_path": path.encode(), "query_string": b"",
        "headers": [(name.lower().encode(), value.encode()) for name, value in told.items()],
        "client": ("192.0.2.1", 1), "server": ("127.0.0.1", 80), "scheme": "http", "root_path": "",
    }  # fmt: skip
    await admin(scope, receive, answer)
    return status, read


def test_there_are_routes_to_try() -> None:
    assert len(ROUTES) >= 15
    assert ("POST", "/admin/dlq/queues/q.dlq/import") in ROUTES
    assert ("PATCH", "/admin/operations/1") in ROUTES
    assert ("POST", "/queues/q.dlq/re-drive") in ROUTES


@pytest.mark.parametrize("extra", [{}, ONCE, {"Authorization": "Bearer rdk_1_2"}], ids=["", "once", "wrong key"])
async def test_the_body_of_a_stranger_is_not_read(extra: dict[str, str], admin: Admin) -> None:
    for method, path in ROUTES:
        status, read = await send(admin, method, path, extra, 64 * MB)

        assert status in (200, 303, 401, 403, 413, 422, 429), (method, path)
        assert read <= (MOST_OF_STRANGERS + 64 * 1024 if path in OPEN else 0), (method, path)


async def test_a_large_body_is_not_read_of_a_client_that_may_not_send_it(admin: Admin) -> None:
    paths = [path for _, path in ROUTES if path.endswith(("import", "edit", "edit-and-re-drive"))]
    assert len(paths) == 4
    for path in paths:
        for once in ({}, ONCE):
            assert await send(admin, "POST", path, bearing("viewer") | once, 64 * MB) == (403, 0), path


@pytest.mark.parametrize("once", [{}, ONCE], ids=["", "once"])
async def test_other_routes_read_256_kilobytes(once: dict[str, str], admin: Admin) -> None:
    path = "/admin/dlq/queues/q.dlq/re-drive/plan"

    assert await send(admin, "POST", path, bearing("operator") | once, 64 * MB) == (413, 5 * 64 * 1024)
