"""Who is asking: a bearer token, an API key, or the cookie of a browser that is signed in."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Annotated

from fastapi import Depends, Request
from starlette.responses import Response

from redrive.admin.access.csrf import is_cross_site
from redrive.admin.access.roles import Permission, Principal
from redrive.admin.authorized_service import AuthorizedService
from redrive.admin.context import AdminContext
from redrive.errors import AuditUnavailable, CrossSite, NoRole, Unauthenticated, VerificationUnavailable
from redrive.operations.audit_entry import AuditEntry

COOKIE = "redrive_session"
_FOUND = "redrive.principal"  # in the scope of a request
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


def context_of(request: Request) -> AdminContext:
    context: AdminContext = request.app.state.context
    return context


def address_of(request: Request) -> str:
    return request.client.host if request.client is not None else "unknown"


async def principal_of(request: Request) -> Principal:
    """Return who is asking. Found once for each request, however often it is needed."""
    known = known_principal(request)
    if known is not None:
        return known
    authorization, cookie = request.headers.get("authorization"), request.cookies.get(COOKIE)
    context = context_of(request)
    try:
        found = await context.gate.authenticate(authorization=authorization, cookie=cookie, address=address_of(request))
    except NoRole as refusal:
        await _record(context, request, refusal)
        raise
    if found is None:
        raise Unauthenticated("who is asking? Send a token or an API key: Authorization: Bearer ...")
    if found.is_by_cookie and is_cross_site(request.method, request.headers, request.headers.get("host", "")):
        raise CrossSite
    request.scope[_FOUND] = found
    return found


def known_principal(request: Request) -> Principal | None:
    """Return who was found to be asking. `request.state` is shared with the application that this one is mounted in:
    what is there was not checked here, and is not believed.
    """
    known = request.scope.get(_FOUND)
    return known if isinstance(known, Principal) else None


async def is_valid_still(request: Request, who: Principal, queue: str) -> bool:
    """Check again, later, that the credential of a request is valid, and may look at this queue."""
    context = context_of(request)
    authorization, cookie = request.headers.get("authorization"), request.cookies.get(COOKIE)
    try:
        found = await context.gate.reauthenticate(authorization=authorization, cookie=cookie)
    except VerificationUnavailable:
        return True
    except (Unauthenticated, NoRole):
        return False
    return found is not None and found.identity == who.identity and found.may(Permission.LOOK, queue)


async def _record(context: AdminContext, request: Request, refusal: NoRole) -> None:
    """Somebody who is known, and has no business here. If it cannot be recorded they are refused all the same."""
    entry = AuditEntry(
        context.clock.now(),
        refusal.name,
        f"{request.method} {request.url.path}",
        "",
        allowed=False,
        detail=refusal.detail,
    )
    with suppress(AuditUnavailable):
        await asyncio.to_thread(context.service.audit.write, entry)


async def service_of(request: Request) -> AuthorizedService:
    return AuthorizedService(context_of(request), await principal_of(request))


CurrentService = Annotated[AuthorizedService, Depends(service_of)]


# The browser's cookie -----------------------------------------------------------------------------------


def is_secure(request: Request) -> bool:
    """Everywhere but on this machine itself the cookie goes over TLS alone."""
    return request.url.scheme == "https" or (request.url.hostname or "") not in _LOOPBACK


def remember(request: Request, response: Response, cookie: str) -> None:
    response.set_cookie(COOKIE, cookie, path=_path(request), secure=is_secure(request), httponly=True, samesite="lax")


def forget(request: Request, response: Response) -> None:
    response.delete_cookie(COOKIE, path=_path(request), secure=is_secure(request), httponly=True, samesite="lax")


def _path(request: Request) -> str:
    return request.scope.get("root_path") or "/"
