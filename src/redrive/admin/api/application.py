"""The admin server: REST under `/admin`, the console under `/`, and what monitoring asks for.

    redrive serve module:app                        by itself
    api.mount("/ops", redrive.admin.router(app))    in an application of FastAPI or Starlette, under any path

A mounted application gets no word of the start and end of the one it is mounted in. So it opens with its first request;
`lifespan=admin.lifespan` opens it at the start, which also goes on with operations that were left behind, and closes it
at the end, which leaves those that run in good order.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from sqlalchemy.exc import SQLAlchemyError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from redrive import __version__
from redrive.admin import console
from redrive.admin.api import health, rest
from redrive.admin.api.body_limit import BodyLimits
from redrive.admin.api.problems import Problem, problem_of
from redrive.admin.api.proxies import client_scope
from redrive.admin.api.security_headers import SecurityHeaders
from redrive.admin.context import AdminContext
from redrive.errors import RedriveError

log = logging.getLogger("redrive.admin")

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_DESCRIPTION = """\
Look at dead letters without harming them, and send them back to work without loss.

Every request names who is asking: `Authorization: Bearer` with a token or an API key. Errors are problems (RFC 9457),
lists go on with `next_cursor`, and a POST with an `Idempotency-Key` is done once.
"""


class Admin:
    """An ASGI application."""

    def __init__(self, context: AdminContext) -> None:
        self.context = context
        self.api = make_api(context)
        self._app = SecurityHeaders(BodyLimits(self.api))
        self._opening: asyncio.Task[AdminContext] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
            return
        if scope["type"] == "http":
            await self._wait_until_open()
            scope = client_scope({**scope, "path": path_as_sent(scope)}, self.context.settings.proxies)
        await self._app(scope, receive, send)

    async def _wait_until_open(self) -> None:
        if self._opening is None:
            self._opening = asyncio.create_task(self.context.open(), name="redrive-admin-opens")
        try:
            await asyncio.shield(self._opening)
        except Exception:
            self._opening = None  # the next request tries again
            log.exception("the admin server could not open")

    @asynccontextmanager
    async def lifespan(self, _: Any = None) -> AsyncIterator[None]:
        """For the application this one is mounted in."""
        await self._wait_until_open()
        try:
            yield
        finally:
            self._opening = None
            await self.context.close()

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        async with self.lifespan():
            await send({"type": "lifespan.startup.complete"})
            await receive()
        await send({"type": "lifespan.shutdown.complete"})

    def __repr__(self) -> str:
        return f"<Admin of {self.context.name}>"


def path_as_sent(scope: Scope) -> str:
    """With its escapes: a queue may be called a/b, and what is after it must be told from what is in it."""
    path, raw = scope["path"], scope.get("raw_path")
    sent = raw.decode("latin-1").partition("?")[0] if raw else quote(path)
    root = scope.get("root_path", "")
    return sent if sent.startswith(root) else quote(path, safe="/%:@!$&'()*+,;=~-._")


def make_api(context: AdminContext) -> FastAPI:
    api = FastAPI(
        title="Redrive",
        version=__version__,
        description=_DESCRIPTION,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
    )
    api.state.context = context
    api.include_router(rest.router)
    api.include_router(health.router)
    api.include_router(console.router)
    # What is expected is named: Starlette raises again, into the server's log, what only `Exception` covers.
    for error in (RedriveError, SQLAlchemyError, TimeoutError, RequestValidationError, HTTPException, Exception):
        api.add_exception_handler(error, _explain)
    api.add_exception_handler(ClientDisconnect, _leave)
    return api


async def _leave(_: Request, __: Exception) -> Response:
    """The client closed the connection before its body was complete: it gets no answer, and the log no entry."""
    return Response(status_code=400)


async def _explain(request: Request, error: Exception) -> Response:
    problem = problem_of(error)
    if problem is None:
        log.error("%s %s failed", request.method, request.url.path, exc_info=error)
        problem = Problem(500, "internal-error", "this should not have happened, and is in the server's log")
    if console.is_page(request):
        return console.explain(request, problem)
    return problem.response(request.url.path)
