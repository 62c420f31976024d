"""Requests with an Idempotency-Key: however often one is sent, it is done once, and the answer is the same.

Every route here authenticates the client before it reads the body of a request. Where a body may be large, the client
must also have the permission for that route.

Answers below 500 are remembered. A request that found the broker or the database away did nothing, so its key is free
again; one that began an operation is answered with that, whatever is away by then. One that takes long keeps its key.
What was done, and cannot be remembered because the database is away by then, is answered all the same: who has the
answer does not ask again.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import unquote

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute

from redrive.admin.api.dependencies import context_of, principal_of, service_of
from redrive.admin.api.problems import Problem, problem_of
from redrive.admin.context import AdminContext
from redrive.operations.idempotency_keys import KEEP_EVERY, KeyStanding, StoredAnswer

log = logging.getLogger("redrive.admin")

HEADER = "Idempotency-Key"
REPLAYED = "Idempotency-Replayed"
_LONGEST = 255

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class IdempotentRoute(APIRoute):
    def get_route_handler(self) -> Handler:
        handle = super().get_route_handler()

        async def once(request: Request) -> Response:
            key = request.headers.get(HEADER) if request.method == "POST" else None
            if self.body_field is not None or key is not None:
                await self._admit(request)
            if key is None:
                return await handle(request)
            if not 0 < len(key) <= _LONGEST or not key.isprintable():
                return _refusal(request, "invalid-request", f"{HEADER}: want 1 to {_LONGEST} printable characters")
            who = (await principal_of(request)).identity
            return await _once(request, handle, context_of(request), who, key)

        return once

    async def _admit(self, request: Request) -> None:
        """Raise what the handler would, if the client may not send this: FastAPI reads the body before it asks."""
        at = await service_of(request)
        match self.operation_id:
            case "edit":
                await at.need_editing(unquote(request.path_params["queue"]))
            case "import":
                await at.need_importing(unquote(request.path_params["queue"]))


async def _once(request: Request, handle: Handler, context: AdminContext, who: str, key: str) -> Response:
    digest = hashlib.sha256(
        b"\0".join((request.method.encode(), str(request.url).encode(), await request.body()))
    ).hexdigest()
    known = await asyncio.to_thread(context.requests.begin, who, key, digest, context.clock.now())
    match known:
        case StoredAnswer():
            return _replayed_response(known)
        case KeyStanding.UNDER_WAY:
            return _refusal(request, "request-in-progress", "a request with this key is being answered: ask again", 409)
        case KeyStanding.OTHER:
            return _refusal(request, "key-reused", "this key was used for another request: take a new one")
    try:
        async with _keep_key_reserved(context, who, key):
            response = await _answer(request, handle)
    except BaseException:
        await asyncio.to_thread(context.requests.forget, who, key)
        raise
    try:
        if response.status_code < 500:
            answer = StoredAnswer(response.status_code, bytes(response.body).decode(), response.headers.get("location"))
            await asyncio.to_thread(context.requests.finish, who, key, answer)
        else:
            await asyncio.to_thread(context.requests.forget, who, key)
    except Exception as error:
        log.warning("the answer under an Idempotency-Key of %s cannot be remembered: %s", who, error)
    return response


@asynccontextmanager
async def _keep_key_reserved(context: AdminContext, who: str, key: str) -> AsyncIterator[None]:
    """While it is being answered nobody else gets the key."""
    keeping = asyncio.create_task(_keep(context, who, key), name="redrive-request")
    try:
        yield
    finally:
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)


async def _keep(context: AdminContext, who: str, key: str) -> None:
    while True:
        await asyncio.sleep(KEEP_EVERY.total_seconds())
        try:
            await asyncio.to_thread(context.requests.keep, who, key, context.clock.now())
        except Exception as error:  # the next time may be soon enough
            log.warning("an Idempotency-Key of %s cannot be kept: %s", who, error)


async def _answer(request: Request, handle: Handler) -> Response:
    """Problems are answers, too."""
    try:
        return await handle(request)
    except Exception as error:
        problem = problem_of(error)
        if problem is None or isinstance(error, RequestValidationError):
            raise
        return problem.response(request.url.path)


def _replayed_response(answer: StoredAnswer) -> Response:
    media = "application/problem+json" if answer.status >= 400 else "application/json"
    response = Response(answer.body, answer.status, media_type=media)
    response.headers[REPLAYED] = "true"
    if answer.location is not None:
        response.headers["location"] = answer.location
    return response


def _refusal(request: Request, kind: str, detail: str, status: int = 422) -> Response:
    return Problem(status, kind, detail).response(request.url.path)
