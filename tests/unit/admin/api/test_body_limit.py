"""How much a request may send, and for how long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any

import pytest
from fastapi import HTTPException

from redrive.admin.api import body_limit
from redrive.admin.api.body_limit import MOST_BYTES, MOST_EDITED, MOST_IMPORTED_ONCE, BodyLimits, bound_of

MB = 1024 * 1024


@pytest.mark.parametrize(
    ("method", "path", "once", "most"),
    [
        ("POST", "/admin/dlq/queues/q/re-drive", False, MOST_BYTES),
        ("GET", "/admin/dlq/queues/q/import", False, MOST_BYTES),
        ("PATCH", "/admin/operations/op_1", False, MOST_BYTES),
        ("POST", "/sign-in", False, MOST_BYTES),
        ("POST", "/admin/dlq/queues/q/messages/m/edit-and-re-drive", False, MOST_EDITED),
        ("POST", "/queues/q/messages/m/edit", False, MOST_EDITED),
        ("POST", "/admin/dlq/queues/q/import", True, MOST_IMPORTED_ONCE),
        ("POST", "/admin/dlq/queues/q/import", False, None),
        ("POST", "/queues/q/import", False, None),
    ],
)
def test_only_edits_and_imports_may_send_more(method: str, path: str, once: bool, most: int | None) -> None:
    assert bound_of(method, path, once=once).most == most


async def read(parts: Iterable[bytes], headers: dict[bytes, bytes] | None = None, path: str = "/x") -> int:
    """How much an application gets of a request."""
    got = 0
    messages: AsyncIterator[dict[str, Any]] = _messages(parts)

    async def application(_: Any, receive: Any, __: Any) -> None:
        nonlocal got
        more = True
        while more:
            message = await receive()
            got += len(message.get("body", b""))
            more = message.get("more_body", False)

    async def send(_: Any) -> None: ...

    scope = {"type": "http", "method": "POST", "path": path, "headers": list((headers or {}).items())}
    await BodyLimits(application)(scope, messages.__anext__, send)
    return got


async def _messages(parts: Iterable[bytes]) -> AsyncIterator[dict[str, Any]]:
    for part in parts:
        yield {"type": "http.request", "body": part, "more_body": True}
    yield {"type": "http.request", "body": b"", "more_body": False}


async def test_what_is_small_enough_passes() -> None:
    assert await read([bytes(MOST_BYTES // 2)] * 2) == MOST_BYTES
    assert await read([bytes(MB)] * 8, path="/queues/q/messages/m/edit") == MOST_EDITED


async def test_what_is_too_large_is_refused_when_it_is() -> None:
    with pytest.raises(HTTPException) as refused:
        await read([bytes(MOST_BYTES), b"x"])
    assert refused.value.status_code == 413
    assert "256 KB" in refused.value.detail


async def test_what_is_announced_as_too_large_is_not_even_read() -> None:
    with pytest.raises(HTTPException) as refused:
        await read([], {b"content-length": b"99999999999999"})
    assert refused.value.status_code == 413


async def test_a_length_that_is_none_is_left_to_the_server() -> None:
    assert await read([b"x"], {b"content-length": b"-1"}) == 1


async def test_an_import_has_a_limit_of_its_own() -> None:
    assert await read([bytes(MB)] * 20, path="/admin/dlq/queues/q/import") == 20 * MB


async def test_a_body_that_does_not_go_on_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body_limit, "BODY_WITHIN", 0.01)

    async def never(_: Any, receive: Any, __: Any) -> None:
        await receive()

    async def silence() -> dict[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError

    scope = {"type": "http", "method": "POST", "path": "/x", "headers": []}
    with pytest.raises(HTTPException) as refused:
        await BodyLimits(never)(scope, silence, silence)  # type: ignore[arg-type]
    assert refused.value.status_code == 408


async def test_the_time_for_a_body_does_not_begin_again_with_each_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body_limit, "BODY_WITHIN", 0.05)
    sent = 0

    async def trickle() -> dict[str, Any]:
        nonlocal sent
        await asyncio.sleep(0.01)
        sent += 1
        return {"type": "http.request", "body": b"x", "more_body": sent < 1000}

    async def application(_: Any, receive: Any, __: Any) -> None:
        while (await receive())["more_body"]:
            pass

    scope = {"type": "http", "method": "POST", "path": "/x", "headers": []}
    with pytest.raises(HTTPException) as refused:
        await BodyLimits(application)(scope, trickle, trickle)  # type: ignore[arg-type]
    assert refused.value.status_code == 408
    assert sent < 20


async def test_who_waits_for_the_end_of_a_connection_may_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """As answers do that go on for long: the body is complete, and nothing is late."""
    monkeypatch.setattr(body_limit, "BODY_WITHIN", 0.01)
    gone = asyncio.Event()
    told = iter([{"type": "http.request", "body": b"", "more_body": False}])

    async def receive() -> dict[str, Any]:
        for message in told:
            return message
        await gone.wait()
        return {"type": "http.disconnect"}

    async def application(_: Any, receive: Any, __: Any) -> None:
        await receive()
        ending = asyncio.create_task(receive())
        await asyncio.sleep(0.05)
        assert not ending.done()
        gone.set()
        assert (await ending)["type"] == "http.disconnect"

    scope = {"type": "http", "method": "GET", "path": "/x", "headers": []}
    await BodyLimits(application)(scope, receive, receive)  # type: ignore[arg-type]
