"""Clients of the admin server that misbehave: it stays up, its memory bounded, and others do not notice."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import uvicorn

from admin_api import bearing
from dead_lettering import DLQ, prepare
from e2e.serving import Server, serving
from redrive.admin.access.settings import Network, networks
from redrive.admin.access.throttle import FREE
from redrive.admin.api import connection_limit
from redrive.inspection import connect

MB = 1024 * 1024
PLAN = f"/admin/dlq/queues/{DLQ}/re-drive/plan"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("abuse")
    with serving(folder, None, REDRIVE_ADMIN_EDITING="1", REDRIVE_DATA=str(folder / "data")) as server:

        async def fill() -> None:
            async with connect(None, data=folder / "data") as connection:
                await prepare(connection, 20)

        asyncio.run(fill())
        yield server


def memory(server: Server) -> int:
    assert server.process is not None
    return int(psutil.Process(server.process.pid).memory_info().rss)


def opened(server: Server, *, receives: int | None = None) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", server.port), timeout=20)
    if receives is not None:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receives)
    return client


def asked(server: Server, request: bytes) -> bytes:
    """All that is answered; the request says that it is the last."""
    with opened(server) as client:
        client.sendall(request)
        said = bytearray()
        try:
            while part := client.recv(65536):
                said += part
        except ConnectionResetError:
            pass
    return bytes(said)


def head(path: str, *lines: str, method: str = "POST") -> bytes:
    return "\r\n".join((f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", "Connection: close", *lines, "", "")).encode()


# Those who send too much ------------------------------------------------------------------------------


def flood(client: socket.socket, request: bytes, part: bytes, times: int) -> None:
    try:
        client.sendall(request)
        for _ in range(times):
            client.sendall(part)
    except OSError:
        pass  # it has stopped listening


@pytest.mark.parametrize(
    ("line", "part"),
    [
        (f"Content-Length: {200 * MB}", b" " * MB),
        ("Transfer-Encoding: chunked", b"%x\r\n" % MB + b" " * MB + b"\r\n"),
    ],
)
def test_a_stranger_cannot_fill_the_memory(server: Server, line: str, part: bytes) -> None:
    """Found by fuzzing: a body was read, as a whole, before anybody had asked who sends it."""
    before = memory(server)
    with opened(server) as client:
        flood(client, head(PLAN, "Content-Type: application/json", line), part, 200)

        assert memory(server) - before < 60 * MB
        assert httpx.get(f"{server.address}/healthz").status_code == 200


def test_what_is_too_large_is_answered_before_it_is_sent(server: Server) -> None:
    papers = "Authorization: " + bearing("operator")["Authorization"]
    said = asked(server, head(PLAN, papers, "Content-Type: application/json", f"Content-Length: {200 * MB}"))

    assert said.startswith(b"HTTP/1.1 413 ")
    assert b"urn:redrive:problem:too-large" in said


def test_a_form_that_is_too_large_is_a_page_that_says_so(server: Server) -> None:
    said = asked(server, head(f"/queues/{DLQ}/re-drive", "Accept: text/html", f"Content-Length: {200 * MB}"))

    assert said.startswith((b"HTTP/1.1 413 ", b"HTTP/1.1 303 ", b"HTTP/1.1 401 "))


# Those who take their time ----------------------------------------------------------------------------


def test_hundreds_who_never_finish_a_request_keep_nobody_waiting(server: Server) -> None:
    before = memory(server)
    with ExitStack() as stack:
        for number in range(300):
            client = stack.enter_context(opened(server))
            client.sendall(head(PLAN)[: 20 + number % 60])
        for _ in range(20):
            assert httpx.get(f"{server.address}/admin/me", headers=bearing("viewer"), timeout=10).status_code == 200
        assert memory(server) - before < 60 * MB


def test_who_never_finishes_a_request_is_shown_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_limit, "HEAD_WITHIN", 0.3)
    with listener() as port:
        silent, half, again = (socket.create_connection(("127.0.0.1", port), timeout=20) for _ in range(3))
        half.sendall(b"GET / HTTP/1.1\r\nHost")
        again.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        answer = again.recv(65536)
        while not answer.endswith(b"\r\n0\r\n\r\n"):  # the body may come after the head
            more = again.recv(65536)
            assert more, "closed in the middle of the answer"
            answer += more
        again.sendall(b"GE")  # which ends the time that a connection may be idle

        assert answer.startswith(b"HTTP/1.1 200")
        assert [until_closed(client) for client in (silent, half, again)] == [b"", b"", b""]


def test_who_waits_for_a_long_answer_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_limit, "HEAD_WITHIN", 0.3)
    with listener() as port, socket.create_connection(("127.0.0.1", port), timeout=20) as client:
        client.sendall(b"GET /slow HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert until_closed(socket.create_connection(("127.0.0.1", port), timeout=20)) == b""  # who came later is gone
        ENOUGH.set()

        assert b"at last" in until_closed(client)


# Those who are too many -------------------------------------------------------------------------------


def test_of_too_many_the_one_goes_that_has_been_silent_for_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_limit, "MOST_CONNECTIONS", 3)
    with listener() as port:
        first, second, third = (socket.create_connection(("127.0.0.1", port), timeout=20) for _ in range(3))
        for client in (first, second, third, first):  # who has not said anything may not even be known
            client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            assert until(b"at last\r\n0\r\n\r\n", client).startswith(b"HTTP/1.1 200")

        newcomer = socket.create_connection(("127.0.0.1", port), timeout=20)
        assert until_closed(second) == b""
        for client in (first, third, newcomer):
            client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            assert until_closed(client).startswith(b"HTTP/1.1 200")


def test_who_is_being_answered_never_goes_for_a_newcomer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_limit, "MOST_CONNECTIONS", 3)
    asked, enough = threading.Semaphore(0), threading.Event()

    async def answer_slowly(scope: Any, receive: Any, send: Any) -> None:
        asked.release()
        await asyncio.to_thread(enough.wait, 20)
        await answer(scope, receive, send)

    with listener(answer_slowly) as port:
        clients = [socket.create_connection(("127.0.0.1", port), timeout=20) for _ in range(3)]
        for client in clients:
            client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            assert asked.acquire(timeout=20)

        assert until_closed(socket.create_connection(("127.0.0.1", port), timeout=20)) == b""
        enough.set()
        assert all(b"at last" in until_closed(client) for client in clients)


GET = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
SLOW = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n"


async def answer_the_body(scope: Any, receive: Any, send: Any) -> None:
    while (await receive()).get("more_body"):
        pass
    await answer(scope, receive, send)


def test_a_body_that_is_not_complete_goes_for_a_newcomer_however_often_it_sends_a_byte(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection_limit, "MOST_CONNECTIONS", 3)
    with listener(answer_the_body) as port:
        slow = [connected(port) for _ in range(3)]
        for client in slow:
            client.sendall(SLOW)
        for client in slow[::-1]:  # the first has sent something last
            client.sendall(b"x")

        for position in range(3):
            newcomer = connected(port)
            assert until_closed(slow[position]) == b""
            newcomer.sendall(GET)
            assert b"at last" in until_closed(newcomer)
            slow.append(connected(port))
            slow[-1].sendall(SLOW)
        for client in slow[3:]:
            client.close()


def test_an_answer_that_is_not_read_goes_for_a_newcomer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_limit, "MOST_CONNECTIONS", 1)
    full = threading.Event()

    async def answer_at_length(scope: Any, _: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _part in range(4 if scope["path"] == "/long" else 0):
            await send({"type": "http.response.body", "body": bytes(16 * MB), "more_body": True})
            full.set()  # more than the sockets take, so the next part waits for the client
        await send({"type": "http.response.body", "body": b"at last"})

    with listener(answer_at_length) as port:
        reader = connected(port)
        reader.sendall(b"GET /long HTTP/1.1\r\nHost: x\r\n\r\n")
        assert full.wait(20)

        newcomer = connected(port)
        newcomer.sendall(GET)
        assert b"at last" in until_closed(newcomer)
        reader.close()


def test_one_address_cannot_take_the_connections_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_limit, "MOST_OF_AN_ADDRESS", 2)
    with listener(answer_the_body) as port:
        idle = connected(port, "127.0.0.2")
        first, second, third = (connected(port, "127.0.0.3") for _ in range(3))

        assert until_closed(first) == b""
        for client in (idle, second, third):
            client.sendall(GET)
            assert b"at last" in until_closed(client)


def test_connections_of_an_address_that_are_answered_are_not_closed_for_its_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection_limit, "MOST_OF_AN_ADDRESS", 1)
    asked, enough = threading.Semaphore(0), threading.Event()

    async def answer_slowly(scope: Any, receive: Any, send: Any) -> None:
        asked.release()
        await asyncio.to_thread(enough.wait, 20)
        await answer(scope, receive, send)

    with listener(answer_slowly) as port:
        client = connected(port, "127.0.0.3")
        client.sendall(GET)
        assert asked.acquire(timeout=20)

        assert until_closed(connected(port, "127.0.0.3")) == b""
        enough.set()
        assert b"at last" in until_closed(client)


def test_the_users_of_a_trusted_proxy_are_not_counted_as_one_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_limit, "MOST_OF_AN_ADDRESS", 2)
    with listener(answer_the_body, networks(["127.0.0.3"])) as port:
        clients = [connected(port, "127.0.0.3") for _ in range(10)]
        for client in clients:
            client.sendall(GET)
            assert b"at last" in until_closed(client)


def test_the_rest_of_a_huge_body_is_not_read_after_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_limit, "LINGER", 0.05)
    with listener() as port, connected(port) as client:
        client.sendall(f"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: {200 * MB}\r\n\r\n".encode())
        assert b"at last" in until(b"at last", client)

        with pytest.raises(OSError, match=r"reset|pipe"):
            client.sendall(bytes(200 * MB))


def test_the_rest_of_a_small_body_is_read_and_the_connection_goes_on() -> None:
    with listener() as port, connected(port) as client:
        for _ in range(5):
            client.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n")
            assert b"at last" in until(b"at last\r\n0\r\n\r\n", client)
            client.sendall(bytes(100_000))


def test_a_web_socket_is_an_ordinary_request(server: Server) -> None:
    upgrade = ("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: AAAA")
    said = asked(server, head("/healthz", "Connection: close", *upgrade, method="GET"))

    assert said.startswith(b"HTTP/1.1 200 ")


def connected(port: int, address: str = "127.0.0.1") -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=20, source_address=(address, 0))


def until(end: bytes, client: socket.socket) -> bytes:
    """A head, a body and its end may come one after the other."""
    said = bytearray()
    while end not in said and (part := client.recv(65536)):
        said += part
    return bytes(said)


def until_closed(client: socket.socket) -> bytes:
    said = bytearray()
    while part := client.recv(65536):
        said += part
    client.close()
    return bytes(said)


class listener:
    """A server with our protocol and an application of no interest, in a thread of its own."""

    def __init__(self, application: Any = None, proxies: Sequence[Network] = ()) -> None:
        self._application = application or answer
        self._protocol = connection_limit.protocol_behind(proxies)

    def __enter__(self) -> int:
        self._socket = socket.create_server(("127.0.0.1", 0))
        config = uvicorn.Config(
            self._application,
            http=self._protocol,
            log_config=None,
            lifespan="off",
            timeout_keep_alive=60,
            timeout_graceful_shutdown=1,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._socket]})
        self._thread.start()
        return int(self._socket.getsockname()[1])

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join()
        self._socket.close()


ENOUGH = threading.Event()


async def answer(scope: Any, _: Any, send: Any) -> None:
    if scope["path"] == "/slow":
        await asyncio.to_thread(ENOUGH.wait, 20)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"at last"})


# Those who talk nonsense --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        b"zz\r\nhello\r\n0\r\n\r\n",
        b"5\r\nhello0\r\n\r\n",
        b"-1\r\n\r\n",
        b"fffffffffffffffffffff\r\n",
        b"5;x=" + b"y" * 70_000,
    ],
)
def test_broken_chunks_are_the_senders_fault(server: Server, body: bytes) -> None:
    request = head(PLAN, "Content-Type: application/json", "Transfer-Encoding: chunked")

    said = asked(server, request + body)

    assert b"HTTP/1.1 5" not in said
    assert httpx.get(f"{server.address}/healthz").status_code == 200


@pytest.mark.parametrize(
    "path", ["/static/../pages.py", "/static/..%2fpages.py", "/static/%2e%2e%2fpages.py", "/static/....//pages.py",
             "/static//etc/passwd", "/static/%2fetc%2fpasswd", "/static/console.css%00.js"],
)  # fmt: skip
def test_static_files_are_those_and_no_others(server: Server, path: str) -> None:
    said = asked(server, head(path, method="GET"))

    assert said.startswith((b"HTTP/1.1 404 ", b"HTTP/1.1 303 ", b"HTTP/1.1 401 "))
    assert b"root:" not in said


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "TRACE", "get", "X" * 500])
def test_other_methods_are_not_allowed(server: Server, method: str) -> None:
    said = asked(server, head("/admin/dlq/queues", method=method))

    assert said.startswith(b"HTTP/1.1 4")
    assert b"Traceback" not in said


@pytest.mark.parametrize(
    "line",
    [
        "Authorization: Bearer eyJhbGciOiJub25lIn0.eyJzdWIiOiJhZGEiLCJyb2xlcyI6WyJhZG1pbiJdfQ.",
        "Authorization: Bearer " + "x" * 30_000,
        "Authorization: Bearer rdk_1_" + "0" * 64,
        "Authorization: Basic YWRhOmFkYQ==",
        "Cookie: redrive_session=" + "a" * 43,
        "Cookie: redrive_session=../../etc/passwd; redrive_session=x",
    ],
)
def test_forged_papers_let_nobody_in(server: Server, line: str) -> None:
    said = asked(server, head("/admin/dlq/queues", line, method="GET"))

    assert said.startswith((b"HTTP/1.1 401 ", b"HTTP/1.1 429 ", b"HTTP/1.1 400 "))


def wrong_key(server: Server, forwarded_for: str) -> int:
    headers = {"Authorization": "Bearer rdk_unknown_key", "X-Forwarded-For": forwarded_for}
    return httpx.get(f"{server.address}/admin/me", headers=headers).status_code


def test_forwarded_addresses_of_strangers_are_ignored(server: Server) -> None:
    answers = [wrong_key(server, f"198.51.100.{number}") for number in range(2 * FREE)]

    assert answers[-1] == 429
    assert httpx.get(f"{server.address}/admin/me", headers=bearing("viewer")).status_code == 200


def test_behind_a_trusted_proxy_each_client_has_its_own_address(tmp_path: Path) -> None:
    words = ("--trust-proxy", "10.0.0.0/8", "--trust-proxy", "127.0.0.1")
    with serving(tmp_path, None, *words, REDRIVE_DATA=str(tmp_path / "data")) as server:
        answers = [wrong_key(server, "203.0.113.9, 198.51.100.1, 10.1.2.3") for _ in range(FREE + 1)]
        others = wrong_key(server, "198.51.100.1, 198.51.100.2")

    assert answers == [401] * FREE + [429]
    assert others == 401


def test_no_header_comes_out_of_a_request(server: Server) -> None:
    path = f"/admin/dlq/queues/{DLQ}%0d%0aX-Injected:%20yes/export"
    papers = "Authorization: " + bearing("admin")["Authorization"]

    said = asked(server, head(path, papers, method="GET"))

    assert b"\r\nx-injected" not in said.lower().partition(b"\r\n\r\n")[0]


# What is changed is written down --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "body", "action"),
    [
        (f"/admin/dlq/queues/{DLQ}/re-drive", {"limit": 1}, "re-drive"),
        (f"/admin/dlq/queues/{DLQ}/discard", {"limit": 1, "confirm": DLQ}, "discard"),
        (f"/admin/dlq/queues/{DLQ}/messages/m-9/edit-and-re-drive", {"set_headers": {"n": "1"}}, "edit-and-re-drive"),
        (f"/admin/dlq/queues/{DLQ}/messages/m-8?reveal=true", None, "reveal"),
        (f"/admin/dlq/queues/{DLQ}/export", None, "export"),
    ],
)
def test_whatever_changes_or_reveals_something_is_in_the_audit(
    server: Server, path: str, body: Any, action: str
) -> None:
    with httpx.Client(base_url=server.address, headers=bearing("admin", "eve"), timeout=30) as client:
        before = client.get("/admin/audit?by=eve&limit=500").json()["items"]
        answer = client.get(path) if body is None else client.post(path, json=body, headers={"Prefer": "wait=20"})
        after = client.get("/admin/audit?by=eve&limit=500").json()["items"]

    assert answer.status_code in (200, 202), answer.text
    fresh = after[: len(after) - len(before)]
    assert action in {entry["action"] for entry in fresh}
