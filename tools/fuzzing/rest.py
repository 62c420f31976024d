"""`rest`: requests that no client would send, for `redrive serve` as a process.

An input is a request as it goes over the socket; `{{admin}}`, `{{viewer}}` and `{{cookie}}` in it stand for what lets
somebody in. The first ones are made of the OpenAPI document, one for each thing that can be asked for, and of the
console's pages. Promised is that none is answered as a fault of the server's own (5xx), that no answer and no line of
the log holds a stack, that no page holds markup out of a request, that every answer of ours forbids scripts, and that
memory stays bounded.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import socket
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import httpx
import psutil

from admin_api import token
from dead_lettering import DLQ, prepare
from e2e.serving import ROOT, Server, serving
from fuzzing.hostile import MARK
from fuzzing.mutation import Mutator
from fuzzing.targets import Broken, Target
from redrive.inspection import connect

MEMORY = 200 * 1024 * 1024  # bytes that the server may grow by
LETTERS = 30
HEALTH = 100  # inputs between two looks at its health

_DOCUMENT = ROOT / "docs" / "openapi.json"
_STATUS = re.compile(rb"HTTP/1\.1 ([0-9]{3})")
_SAMPLES = {"queue": DLQ, "id": "m-1"}
_BODIES: dict[str, Any] = {
    "plan": {"query": "error:Timeout", "limit": 3, "to": "own"},
    "redrive": {"limit": 1, "rate": 5, "reason": "INC-42", "to": "own"},
    "discard": {"confirm": DLQ, "query": "id:m-2", "limit": 1, "reason": "INC-42"},
    "edit": {"set_headers": {"n": "1"}, "remove_headers": ["tenant"], "body": "{}", "dry_run": True},
    "steer": {"rate": 5},
}
_PAGES = (
    "/", f"/queues/{DLQ}", f"/queues/{DLQ}/messages?q=error:Timeout", f"/queues/{DLQ}/messages/m-1", "/operations",
    f"/queues/{DLQ}/messages/m-1/edit", f"/queues/{DLQ}/re-drive", f"/queues/{DLQ}/discard", f"/queues/{DLQ}/import",
    "/outbox", "/topology", "/topology.svg", "/doctor", "/audit", "/sign-in", "/static/console.css", "/metrics",
    "/healthz", "/readyz", "/sign-in/link/x",
)  # fmt: skip
_FORMS = {
    f"/queues/{DLQ}/re-drive": "q=&limit=1&to=own&rate=5&reason=x&step=plan",
    f"/queues/{DLQ}/discard": f"q=&limit=1&confirm={DLQ}",
    f"/queues/{DLQ}/messages/m-1/edit": "body=%7B%7D&headers=&step=preview",
    "/sign-in": "key=rdk_x&next=/",
    "/sign-out": "",
    "/theme": "theme=dark&next=/",
    "/outbox/1/retry": "",
}
HOSTILE: tuple[Any, ...] = (
    None, True, -1, 0, 2**63, 10**300, 1e308, -0.0, float("nan"), float("inf"), "", "x" * 20_000, MARK, "\x00",
    "\ud800", "\u202e", "own", "original", "retry", "exchange:a:b", "exchange:::", "1,5,20", "2h", "-1s",
    "99999999999d", [], {}, [[]], [{}], ["m-1"] * 2_000, {"a": {}}, {"op": "test"},
    [{"op": "replace", "path": "/order", "value": 1}],
    [{"op": "copy", "from": "", "path": "/x"}], "id:", 'error:"', "since:nope", "body.a.b:1", "-", "since:9999d",
)  # fmt: skip
_WORDS = (
    "GET ", "POST ", "PATCH ", "PUT ", "DELETE ", "HEAD ", "OPTIONS ", "TRACE ", "CONNECT ", "get ", "/admin",
    "/static/", "/../", "/..%2f", "%2e%2e/", "%00", "%ff", "%", "%zz", "//", "\\", "?", "&", "=", "#", ";",
    "/etc/passwd",
    "http://", " HTTP/1.1\r\n", " HTTP/1.0\r\n", " HTTP/2.0\r\n", "\r\n", "\n", "\r\n\r\n", "Host: [::1\r\n",
    "Host: a b\r\n",
    "Host: x:99999999\r\n", "Host:\r\n", "Host: evil.example\r\n", "Origin: https://evil.example\r\n",
    "Sec-Fetch-Site: cross-site\r\n", "Authorization: Bearer x.y.z\r\n", "Authorization: Basic eDp4\r\n",
    "Authorization: Bearer rdk_1_2\r\n", "Authorization: \xff\r\n", "Cookie: redrive_session=x\r\n",
    "Cookie: redrive_session={{cookie}}\r\n", "Cookie: redrive_theme=<zz>\r\n", "Content-Type: text/plain\r\n",
    "Content-Type: multipart/form-data\r\n", "Content-Type: application/x-www-form-urlencoded\r\n",
    "Content-Type: application/json; charset=utf-16\r\n", "Transfer-Encoding: chunked\r\n", "5\r\nhello\r\n0\r\n\r\n",
    "Content-Length: 0\r\n", "Content-Length: 99999999999\r\n", "Content-Length: -1\r\n", "Expect: 100-continue\r\n",
    "Idempotency-Key: k\r\n", "Idempotency-Key: \x7f\r\n", "Prefer: wait=1\r\n", "Prefer: wait=9999999999999999999\r\n",
    "Upgrade: websocket\r\nConnection: Upgrade\r\n", "Range: bytes=0-1\r\n", "X-Forwarded-For: 1.2.3.4\r\n",
    "Accept: text/html\r\n", "cursor=", "bWVzc2FnZXM6MQ", "limit=0", "limit=1e3", "limit=-1", "q=", "by=source",
    "q=%22", "fresh=true", "reveal=true", "said=<zz>", "next=//evil.example", "next=https://evil.example", "a" * 3_000,
    MARK, "%3Czz%3E", "{", "}", "[" * 2_000, '{"a":' * 1_500, '"', "null", "\x00", "é", "\xad", "orders.dlq", "m-1",
    "op_01",
)  # fmt: skip


class RestTarget(Target):
    seconds = 60.0
    grows = False

    def __enter__(self) -> Self:
        self._stack = stack = ExitStack()
        folder = Path(tempfile.mkdtemp(prefix="redrive-fuzz-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        self._folder, self._tried, self._read = folder, 0, 0
        data = {"REDRIVE_DATA": str(folder / "data"), "REDRIVE_ADMIN_EDITING": "1"}
        self._server: Server = stack.enter_context(serving(folder, None, "--dev", **data))
        self._fill()
        self._cookie = self._sign_in()
        self._memory = self._used()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._stack.close()
        except AssertionError:  # it says of the log what a finding has said already
            pass

    def _fill(self) -> None:
        async def fill() -> None:
            async with connect(None, data=self._folder / "data") as connection:
                await connection.declare_queue(DLQ)
                await connection.purge_queue(DLQ)
                await prepare(connection, LETTERS)

        asyncio.run(fill())

    def _sign_in(self) -> str:
        with httpx.Client(base_url=self._server.address) as client:
            client.post(self._server.link, headers={"Sec-Fetch-Site": "same-origin"})
            return str(client.cookies.get("redrive_session"))

    def _used(self) -> int:
        assert self._server.process is not None
        return int(psutil.Process(self._server.process.pid).memory_info().rss)

    # One input ------------------------------------------------------------------------------------------------------

    def run(self, data: bytes) -> set[str]:
        self._tried += 1
        said = self._ask(self._filled_in(data))
        words = {f"{data[:12]!r} {code.decode()}" for code in _STATUS.findall(said)}
        self._check_log()
        check_answer(said)
        if self._tried % HEALTH == 0:
            self._check_health()
        return words

    def _filled_in(self, data: bytes) -> bytes:
        known = {"admin": token("admin"), "viewer": token("viewer", "bob"), "cookie": self._cookie}
        for name, value in known.items():
            data = data.replace(b"{{%b}}" % name.encode(), value.encode())
        return data

    def _ask(self, data: bytes) -> bytes:
        """All it says. What it waits for does not come: a request may be half of one."""
        said = bytearray()
        with socket.create_connection(("127.0.0.1", self._server.port), timeout=20) as client:
            try:
                client.sendall(data)
                client.settimeout(_patience(data))
                while part := client.recv(65536):
                    said += part
                    client.settimeout(_patience(data))
            except (TimeoutError, ConnectionResetError, BrokenPipeError):
                pass
        return bytes(said)

    def _check_log(self) -> None:
        with self._server.log.open(errors="replace") as log:
            log.seek(self._read)
            new = log.read()
            self._read = log.tell()
        if "Traceback" in new or " failed" in new:
            raise Broken(new[-3_000:])

    def _check_health(self) -> None:
        with httpx.Client(base_url=self._server.address, timeout=20) as client:
            for path in ("/healthz", "/readyz"):
                if (status := client.get(path).status_code) != 200:
                    raise Broken(f"{path} says {status}")
        if self._used() - self._memory > MEMORY:
            raise Broken(f"the server grew by {(self._used() - self._memory) // 2**20} MiB")
        self._fill()

    # Inputs ---------------------------------------------------------------------------------------------------------

    def mutate(self, mutator: Mutator, data: bytes, others: Sequence[bytes]) -> bytes:
        head, _, body = data.partition(b"\r\n\r\n")
        if body[:1] in (b"{", b"[") and mutator.chance.random() < 0.6:
            try:
                changed = mutator.value(json.loads(body), HOSTILE)
            except ValueError:
                changed = mutator.chance.choice(HOSTILE)
            written = json.dumps(changed, ensure_ascii=mutator.chance.random() < 0.7).encode("utf-8", "surrogatepass")
            return _with_length(head, written)
        if mutator.chance.random() < 0.15:
            return mutator.payload(data, others)
        return _with_length(mutator.text(head, [other.partition(b"\r\n\r\n")[0] for other in others], _WORDS), body)

    def made(self) -> dict[str, bytes]:
        return dict(_requests())


def check_answer(said: bytes) -> None:
    for code in _STATUS.findall(said):
        if code >= b"500":
            raise Broken(f"answered with {said[:1_000]!r}")
    head, _, body = said.partition(b"\r\n\r\n")
    if b"Traceback" in body:
        raise Broken(f"answered with a stack: {body[:1_000]!r}")
    if not head or body == b"Invalid HTTP request received.":
        return
    if b"content-security-policy: default-src 'none'" not in head.lower():
        raise Broken(f"an answer without a policy: {head!r}")
    if b"text/html" in head and (b"<zz" in body or b"javascript:" in body.lower()):
        raise Broken(f"a page holds markup of ours: {body[:2_000]!r}")
    if b"\nx-injected" in head.lower():
        raise Broken(f"a header out of a request: {head!r}")


def _patience(data: bytes) -> float:
    """Whole requests are waited for; halves are not."""
    head, end, body = data.partition(b"\r\n\r\n")
    length = re.search(rb"\ncontent-length: *([0-9]{1,9})\r", head.lower())
    wanted = int(length[1]) if length else 0
    return 15.0 if end and len(body) >= wanted and b"chunked" not in head.lower() else 0.3


def _with_length(head: bytes, body: bytes) -> bytes:
    """With the length put right, where there is one."""
    head = re.sub(rb"Content-Length: *[0-9]+", b"Content-Length: %d" % len(body), head)
    return head + b"\r\n\r\n" + body


def _requests() -> Iterator[tuple[str, bytes]]:
    document = json.loads(_DOCUMENT.read_text())
    for path, ways in document["paths"].items():
        for method, said in ways.items():
            where = path.format(**_SAMPLES)
            if method == "get" and said.get("parameters"):
                where += "?limit=5"
            body = json.dumps(_BODIES[said["operationId"]]).encode() if said["operationId"] in _BODIES else b""
            yield said["operationId"].replace("_", "-"), _request(method.upper(), where, body)
    for number, path in enumerate(_PAGES):
        yield f"page-{number}", _request("GET", path, cookie=True)
    for number, (path, form) in enumerate(_FORMS.items()):
        yield f"form-{number}", _request("POST", path, form.encode(), cookie=True)


def _request(method: str, path: str, body: bytes = b"", *, cookie: bool = False) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", "Connection: close"]
    if cookie:
        lines += ["Cookie: redrive_session={{cookie}}", "Sec-Fetch-Site: same-origin", "Accept: text/html"]
    else:
        lines += ["Authorization: Bearer {{admin}}"]
    if method != "GET":
        kind = "application/x-www-form-urlencoded" if cookie else "application/json"
        lines += [f"Content-Type: {kind}", f"Content-Length: {len(body)}"]
    return "\r\n".join((*lines, "", "")).encode() + body
