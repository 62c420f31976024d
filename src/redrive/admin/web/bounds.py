"""How much a request may send, and how long it may take to do so, whoever sends it.

A body is read before anybody has asked who is sending it, and is held in memory as a whole. So it has a limit, and a
pause in it is waited for no longer than `PAUSE`. Imports are the exception: what they send goes to the disk, after it
is known who does, and has a limit of its own; unless they have an `Idempotency-Key`, since two requests are only the
same if all that they send is.

The head of a request is the server's to read: see `listening`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from fastapi import HTTPException

MOST_BYTES = 8 * 1024 * 1024
MOST_IMPORTED_ONCE = 64 * 1024 * 1024
PAUSE = 60.0  # seconds

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


def limit_of(method: str, path: str, *, once: bool) -> int | None:
    """How many bytes the body of a request may have; None: it says so itself."""
    if method == "POST" and path.endswith("/import"):
        return MOST_IMPORTED_ONCE if once else None
    return MOST_BYTES


class BodyBounds:
    """Around an application: what it receives has an end."""

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        self._app = app

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        most = limit_of(scope["method"], scope["path"], once=b"idempotency-key" in headers)
        await self._app(scope, _Bounded(receive, most, headers.get(b"content-length", b"")), send)


class _Bounded:
    """What an application receives of one request."""

    def __init__(self, receive: Receive, most: int | None, announced: bytes) -> None:
        self._receive = receive
        self._most = most
        self._announced = int(announced) if announced.isdigit() else 0
        self._received = 0
        self._complete = False

    async def __call__(self) -> Message:
        if self._complete:
            return await self._receive()  # who asks now waits for the end of the connection
        self._check(self._announced)
        try:
            async with asyncio.timeout(PAUSE):
                message = await self._receive()
        except TimeoutError:
            raise HTTPException(408, f"nothing more of this request came for {PAUSE:g} seconds") from None
        self._received += len(message.get("body", b""))
        self._complete = not message.get("more_body", False)
        self._check(self._received)
        return message

    def _check(self, size: int) -> None:
        if self._most is not None and size > self._most:
            self._complete = True
            raise HTTPException(413, f"more than {self._most // 2**20} MB: send less, or use the command line for that")
