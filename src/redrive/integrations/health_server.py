"""Three pages for machines: `/metrics` for Prometheus, `/healthz` and `/readyz` for whoever starts and stops processes.

    async with HealthServer(metrics=exposition, alive=..., ready=..., port=9000) as server: ...

`alive` and `ready` say what is wrong, and nothing if all is well: 200, or 503 with the list. They may be asynchronous.

It speaks as little HTTP as is needed: one GET or HEAD for each connection, which is then closed, so that no request
can hide behind another. Whoever connects is a stranger: the head of a request is small or refused, a conversation is
short or ended, there are only so many at a time, and what a stranger wrote is neither answered nor logged. Without
being told otherwise it listens on this machine only.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from http import HTTPStatus
from inspect import isawaitable
from typing import Self, TypeAlias, TypeVar

from redrive.text import loggable

__all__ = ["HealthPage", "HealthServer", "health", "no_problems"]

log = logging.getLogger("redrive.integrations")

T = TypeVar("T")
Maybe: TypeAlias = "T | Awaitable[T]"
Check: TypeAlias = "Callable[[], Maybe[Iterable[str]]]"

LARGEST_HEAD = 8 * 1024
MOST_CONVERSATIONS = 100
PATIENCE = timedelta(seconds=10)

PLAIN = "text/plain; charset=utf-8"
JSON = "application/json"
PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"

_END = b"\r\n\r\n"
_REQUEST_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+) ([!-~]+) HTTP/(\d)\.\d")


# Requests and answers, without a socket -----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HealthPage:
    """A page: its status, content type and body."""

    status: HTTPStatus
    body: bytes = b""
    type: str = PLAIN


@dataclass(frozen=True, slots=True)
class HealthRequest:
    method: str
    path: str


def read_request(head: bytes) -> HealthRequest | HealthPage:
    """The request in the head of a message, or the page that refuses it. Fields mean nothing here and are not read."""
    line, _, _ = head.partition(b"\r\n")
    match = _REQUEST_LINE.fullmatch(line)
    if match is None:
        return refusal(HTTPStatus.BAD_REQUEST)
    method, target, version = (part.decode("ascii") for part in match.groups())
    if version != "1":
        return refusal(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED)
    if method not in ("GET", "HEAD"):
        return refusal(HTTPStatus.METHOD_NOT_ALLOWED)
    return HealthRequest(method, target.partition("?")[0])


def refusal(status: HTTPStatus) -> HealthPage:
    return HealthPage(status, f"{status.phrase}\n".encode())


def health(problems: Iterable[str]) -> HealthPage:
    """What is wrong, without the passwords that may be quoted in it."""
    known = [loggable(problem) for problem in problems]
    status = HTTPStatus.SERVICE_UNAVAILABLE if known else HTTPStatus.OK
    body = {"status": "failing" if known else "ok", "problems": known}
    return HealthPage(status, json.dumps(body).encode() + b"\n", JSON)


def response(page: HealthPage, *, with_body: bool = True) -> bytes:
    fields = {
        "Content-Type": page.type,
        "Content-Length": str(len(page.body)),
        "Connection": "close",
        "Cache-Control": "no-store",
        "X-Content-Type-Options": "nosniff",
    }
    if page.status is HTTPStatus.METHOD_NOT_ALLOWED:
        fields["Allow"] = "GET, HEAD"
    lines = [f"HTTP/1.1 {page.status.value} {page.status.phrase}", *(f"{name}: {fields[name]}" for name in fields)]
    return "\r\n".join(lines).encode("ascii") + _END + (page.body if with_body else b"")


# The server ---------------------------------------------------------------------------------------


def no_problems() -> Iterable[str]:
    """Return no problems: the check of a server that has none of its own."""
    return ()


class HealthServer:
    """`<HealthServer http://127.0.0.1:9000 conversations=0>`; with port 0 it picks one."""

    def __init__(
        self,
        *,
        metrics: Callable[[], Maybe[bytes]] | None = None,
        alive: Check = no_problems,
        ready: Check = no_problems,
        host: str = "127.0.0.1",
        port: int = 0,
        patience: timedelta = PATIENCE,
    ) -> None:
        self.host = host
        self.port = port
        self._patience = patience.total_seconds()
        self._metrics = metrics
        self._alive = alive
        self._ready = ready
        self._server: asyncio.Server | None = None
        self._conversations: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        """The server's URL."""
        return f"http://[{self.host}]:{self.port}" if ":" in self.host else f"http://{self.host}:{self.port}"

    async def start(self) -> Self:
        """Listen."""
        self._server = await asyncio.start_server(self._welcome, self.host, self.port, limit=LARGEST_HEAD)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def stop(self) -> None:
        """Listen no more, and end the conversations there are."""
        if self._server is not None:
            self._server.close()
            self._server = None
        conversations = list(self._conversations)
        for conversation in conversations:
            conversation.cancel()
        await asyncio.gather(*conversations, return_exceptions=True)

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def _welcome(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._conversations) >= MOST_CONVERSATIONS:
            writer.transport.abort()
            return
        conversation = asyncio.create_task(self._converse(reader, writer), name="redrive-health")
        self._conversations.add(conversation)
        conversation.add_done_callback(self._conversations.discard)

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(self._patience):
                writer.write(await self._answer(reader))
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            pass  # whoever asked is gone, or too slow to matter
        finally:
            writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader) -> bytes:
        try:
            request = read_request(await reader.readuntil(_END))
        except asyncio.LimitOverrunError:
            request = refusal(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        if isinstance(request, HealthPage):
            return response(request)
        return response(await self._page(request.path), with_body=request.method == "GET")

    async def _page(self, path: str) -> HealthPage:
        try:
            if path == "/metrics" and self._metrics is not None:
                return HealthPage(HTTPStatus.OK, await _now(self._metrics()), PROMETHEUS)
            if path in ("/healthz", "/readyz"):
                return health(await _now((self._alive if path == "/healthz" else self._ready)()))
            return refusal(HTTPStatus.NOT_FOUND)
        except Exception:
            log.exception("the page %s cannot be made", path)
            return refusal(HTTPStatus.INTERNAL_SERVER_ERROR)

    def __repr__(self) -> str:
        state = "closed" if self._server is None else f"conversations={len(self._conversations)}"
        return f"<HealthServer {self.url} {state}>"


async def _now(value: Maybe[T]) -> T:
    return await value if isawaitable(value) else value
