"""Three pages, and nothing else, for whoever asks properly; and no harm from whoever does not."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from datetime import timedelta
from http import HTTPStatus
from http.client import HTTPResponse
from io import BytesIO
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.integrations import health_server
from redrive.integrations.health_server import HealthPage, HealthRequest, HealthServer, health, read_request, response

SOON = timedelta(milliseconds=50)


async def ask(server: HealthServer, request: bytes) -> bytes:
    """Everything that the server has to say to these bytes, until it ends the conversation."""
    reader, writer = await asyncio.open_connection(server.host, server.port)
    try:
        writer.write(request)
        async with asyncio.timeout(10):
            return await reader.read()
    finally:
        writer.transport.abort()


async def get(server: HealthServer, path: str, method: str = "GET") -> tuple[HTTPResponse, bytes]:
    return parsed(await ask(server, f"{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()), method)


def parsed(answer: bytes, method: str = "GET") -> tuple[HTTPResponse, bytes]:
    """Read by somebody else's client."""

    class Answer:
        def makefile(self, *_: object) -> BytesIO:
            return BytesIO(answer)

    understood = HTTPResponse(cast("Any", Answer()), method=method)
    understood.begin()
    return understood, understood.read()


@asynccontextmanager
async def talking_to(server: HealthServer) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection(server.host, server.port)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


# The pages ---------------------------------------------------------------------------------------------


async def test_metrics_are_served_as_prometheus_wants_them() -> None:
    async with HealthServer(metrics=lambda: b"redrive_up 1\n") as server:
        answer, body = await get(server, "/metrics")

    assert (answer.status, body) == (200, b"redrive_up 1\n")
    assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"


async def test_metrics_may_take_their_time() -> None:
    async def metrics() -> bytes:
        await asyncio.sleep(0)
        return b"late 1\n"

    async with HealthServer(metrics=metrics) as server:
        assert (await get(server, "/metrics"))[1] == b"late 1\n"


async def test_where_nobody_measures_there_are_no_metrics() -> None:
    async with HealthServer() as server:
        assert (await get(server, "/metrics"))[0].status == 404


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
async def test_a_worker_about_which_nothing_is_wrong_is_well(path: str) -> None:
    async with HealthServer() as server:
        answer, body = await get(server, path)

    assert (answer.status, json.loads(body)) == (200, {"status": "ok", "problems": []})
    assert answer.headers["Content-Type"] == "application/json"
    assert answer.headers["Cache-Control"] == "no-store"


async def asynchronous_trouble() -> Iterable[str]:
    return ["no broker at amqp://u:s3cret@h"]


@pytest.mark.parametrize("trouble", [lambda: ["no broker at amqp://u:s3cret@h"], asynchronous_trouble])
async def test_a_worker_that_is_alive_may_not_be_ready_and_says_why(
    trouble: Callable[[], Iterable[str] | Awaitable[Iterable[str]]],
) -> None:
    async with HealthServer(ready=trouble) as server:
        answer, body = await get(server, "/readyz")
        alive, _ = await get(server, "/healthz")

    assert (answer.status, alive.status) == (503, 200)
    assert json.loads(body) == {"status": "failing", "problems": ["no broker at amqp://u:***@h"]}


async def test_head_is_get_without_the_body() -> None:
    async with HealthServer(metrics=lambda: b"redrive_up 1\n") as server:
        answer, body = await get(server, "/metrics", "HEAD")

    assert (answer.status, answer.headers["Content-Length"], body) == (200, "13", b"")


async def test_a_query_is_ignored() -> None:
    async with HealthServer() as server:
        assert (await get(server, "/healthz?verbose=1"))[0].status == 200


async def test_a_page_that_fails_tells_the_log_and_not_the_stranger(caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> bytes:
        raise RuntimeError("s3cret")

    async with HealthServer(metrics=broken) as server:
        answer, body = await get(server, "/metrics")

    assert (answer.status, body) == (500, b"Internal Server Error\n")
    assert "the page /metrics cannot be made" in caplog.text


# Strangers ---------------------------------------------------------------------------------------------

REFUSED = [
    (b"GET /nothing HTTP/1.1", 404),
    (b"GET /healthz/ HTTP/1.1", 404),
    (b"GET /%2e%2e/etc/passwd HTTP/1.1", 404),
    (b"GET http://other/healthz HTTP/1.1", 404),
    (b"OPTIONS * HTTP/1.1", 405),
    (b"POST /healthz HTTP/1.1", 405),
    (b"CONNECT other:443 HTTP/1.1", 405),
    (b"get /healthz HTTP/1.1", 405),
    (b"PRI * HTTP/2.0", 505),
    (b"GET /healthz HTTP/0.9", 505),
    (b"GET /healthz", 400),
    (b"GET  /healthz HTTP/1.1", 400),
    (b"GET /healthz HTTP/1.1 more", 400),
    (b"GET /heal\x00thz HTTP/1.1", 400),
    (b"GET /heal\xffthz HTTP/1.1", 400),
    (b"GET /\x1b[2J HTTP/1.1", 400),
    (b"GET\t/healthz\tHTTP/1.1", 400),
    (b"GET /healthz HTTP/x.y", 400),
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
    (b"", 400),
]


@pytest.mark.parametrize(("line", "status"), REFUSED, ids=[str(line) for line, _ in REFUSED])
async def test_what_is_no_request_for_a_page_is_refused(line: bytes, status: int) -> None:
    async with HealthServer() as server:
        answer, body = parsed(await ask(server, line + b"\r\nHost: x\r\n\r\n"))

    assert answer.status == status
    assert body == f"{HTTPStatus(status).phrase}\n".encode()  # nothing of what was asked
    assert (answer.headers["Allow"] == "GET, HEAD") is (status == 405)


async def test_a_conversation_ends_after_one_answer() -> None:
    async with HealthServer() as server:
        answer = await ask(server, b"GET /healthz HTTP/1.1\r\n\r\nGET /readyz HTTP/1.1\r\n\r\n")

    assert answer.count(b"HTTP/1.1 200") == 1
    assert b"Connection: close" in answer


async def test_a_head_that_is_too_large_is_refused() -> None:
    async with HealthServer() as server, talking_to(server) as (reader, writer):
        writer.write(b"GET /healthz HTTP/1.1\r\nX: " + b"x" * health_server.LARGEST_HEAD)
        assert (await reader.readline()).startswith(b"HTTP/1.1 431 ")


async def test_a_stranger_who_says_nothing_is_sent_away() -> None:
    async with HealthServer(patience=SOON) as server, talking_to(server) as (reader, writer):
        writer.write(b"GET /healthz HT")

        assert await reader.read() == b""


async def test_a_page_that_takes_too_long_is_given_up() -> None:
    async def never() -> bytes:
        await asyncio.get_running_loop().create_future()
        return b""

    async with HealthServer(metrics=never, patience=SOON) as server:
        assert await ask(server, b"GET /metrics HTTP/1.1\r\n\r\n") == b""


async def test_a_stranger_who_does_not_listen_is_sent_away() -> None:
    many = b"x" * 50_000_000
    async with HealthServer(metrics=lambda: many, patience=SOON) as server, talking_to(server) as (_, writer):
        writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
        await until(lambda: bool(server._conversations))
        await until(lambda: not server._conversations)


async def test_a_stranger_who_leaves_in_the_middle_is_forgotten(caplog: pytest.LogCaptureFixture) -> None:
    async with HealthServer() as server:
        async with talking_to(server) as (_, writer):
            writer.write(b"GET /hea")
            await until(lambda: bool(server._conversations))
        await until(lambda: not server._conversations)
        assert (await get(server, "/healthz"))[0].status == 200

    assert caplog.text == ""


async def test_there_are_only_so_many_conversations_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_server, "MOST_CONVERSATIONS", 2)
    async with HealthServer() as server, talking_to(server), talking_to(server):
        await until(lambda: len(server._conversations) == 2)
        assert await answered(server) is False


async def answered(server: HealthServer) -> bool:
    try:
        return await ask(server, b"GET /healthz HTTP/1.1\r\n\r\n") != b""
    except ConnectionError:
        return False


@given(st.binary(max_size=200))
def test_no_bytes_are_too_strange_to_be_answered(head: bytes) -> None:
    match read_request(head):
        case HealthPage() as page:
            assert response(page).startswith(f"HTTP/1.1 {page.status.value} ".encode())
        case HealthRequest() as request:
            assert request.method in ("GET", "HEAD")


# The server --------------------------------------------------------------------------------------------


async def until(fact: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not fact():  # noqa: ASYNC110 - a fact of somebody else's, who knows nothing of events
            await asyncio.sleep(0)


async def test_it_listens_on_this_machine_only_and_picks_a_port() -> None:
    async with HealthServer() as server:
        assert server.port > 0
        assert repr(server) == f"<HealthServer http://127.0.0.1:{server.port} conversations=0>"

    assert repr(server) == f"<HealthServer http://127.0.0.1:{server.port} closed>"


async def test_an_address_of_the_sixth_version_stands_in_brackets() -> None:
    assert HealthServer(host="::1", port=9000).url == "http://[::1]:9000"


async def test_stopping_ends_what_is_under_way() -> None:
    server = await HealthServer(patience=timedelta(days=1)).start()
    async with talking_to(server) as (reader, _), asyncio.timeout(10):
        await until(lambda: bool(server._conversations))

        await server.stop()
        await server.stop()

        assert await reader.read() == b""
    with pytest.raises(OSError, match=r"Connect|refused"):
        await asyncio.open_connection(server.host, server.port)


async def test_a_port_that_is_taken_is_an_error_for_whoever_starts_it() -> None:
    async with HealthServer() as server:
        with pytest.raises(OSError, match=r"[Aa]ddress already in use"):
            await HealthServer(port=server.port).start()


def test_a_problem_is_told_as_one_text() -> None:
    assert json.loads(health(["a\nb"]).body)["problems"] == ["a\nb"]
