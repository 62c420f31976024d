"""How many bytes a request may send, and how long it may take to send them.

Routes with a body authenticate before they read it (`once`, `identity`). A body is then held in memory as a whole, so
it has a limit: 256 KB, and 8 MB for the edit of a message. The body of an import goes to the disk, and has a limit of
its own; unless the request has an `Idempotency-Key`, since two requests are only the same if all that they send is.

A body has to be complete within a time that does not begin again with each byte. Only the time counts in which the
application waits for the client.

The head of a request is the server's to read: see `listening`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from time import monotonic
from typing import Any

from fastapi import HTTPException

MOST_BYTES = 256 * 1024
MOST_EDITED = 8 * 1024 * 1024
MOST_IMPORTED_ONCE = 64 * 1024 * 1024
BODY_WITHIN = 30.0  # seconds
IMPORT_WITHIN = 900.0  # seconds, also for an edit

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class BodyLimit:
    most: int | None  # bytes; None: the route has a limit of its own
    within: float  # seconds


def bound_of(method: str, path: str, *, once: bool) -> BodyLimit:
    """Return what the body of a request may be. `once`: it has an Idempotency-Key."""
    if method == "POST" and path.endswith("/import"):
        return BodyLimit(MOST_IMPORTED_ONCE if once else None, IMPORT_WITHIN)
    if method == "POST" and path.endswith(("/edit-and-re-drive", "/edit")):
        return BodyLimit(MOST_EDITED, IMPORT_WITHIN)
    return BodyLimit(MOST_BYTES, BODY_WITHIN)


class BodyLimits:
    """Around an application: what it receives has an end."""

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        self._app = app

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        bound = bound_of(scope["method"], scope["path"], once=b"idempotency-key" in headers)
        await self._app(scope, _LimitedReceive(receive, bound, headers.get(b"content-length", b"")), send)


class _LimitedReceive:
    """What an application receives of one request."""

    def __init__(self, receive: Receive, bound: BodyLimit, announced: bytes) -> None:
        self._receive = receive
        self._most = bound.most
        self._within = self._left = bound.within
        self._announced = int(announced) if announced.isdigit() else 0
        self._received = 0
        self._complete = False

    async def __call__(self) -> Message:
        if self._complete:
            return await self._receive()  # who asks now waits for the end of the connection
        self._check(self._announced)
        message = await self._next()
        self._received += len(message.get("body", b""))
        self._complete = not message.get("more_body", False)
        self._check(self._received)
        return message

    async def _next(self) -> Message:
        began = monotonic()
        try:
            async with asyncio.timeout(self._left):
                return await self._receive()
        except TimeoutError:
            raise HTTPException(408, f"this request was not complete within {self._within:g} seconds") from None
        finally:
            self._left -= monotonic() - began

    def _check(self, size: int) -> None:
        if self._most is not None and size > self._most:
            self._complete = True
            raise HTTPException(413, f"more than {_size(self._most)}: send less, or use the command line for that")


def _size(bytes: int) -> str:
    return f"{bytes // 2**20} MB" if bytes >= 2**20 else f"{bytes // 2**10} KB"
