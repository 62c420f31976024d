"""Signing in and out; and whether one likes it light or dark.

A link that signs in once is a page with a button: whoever opens links to see what is behind them (mail scanners, chat
previews) presses none, and does not use it up.
"""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request
from starlette.responses import Response

from redrive.admin.access.csrf import is_cross_site
from redrive.admin.api.dependencies import COOKIE, address_of, context_of, forget, is_secure, remember
from redrive.admin.api.parameters import Named
from redrive.admin.console.forms import MOST_OF_STRANGERS, form_of, text_of
from redrive.admin.console.rendering import THEME, THEMES, page, see_other
from redrive.admin.console.urls import is_ours, links_of
from redrive.errors import CrossSite, NoRole, TooManyAttempts, Unauthenticated
from redrive.operations.audit_entry import AuditEntry

router = APIRouter()

_A_YEAR = 365 * 24 * 3600  # seconds


def _where_to(request: Request, wanted: str) -> str:
    """Where somebody was going, if that is here."""
    links = links_of(request)
    return wanted if wanted and is_ours(links, wanted) else links()


def _check_origin(request: Request) -> None:
    """Nobody is signed in yet, and still: another site must not sign somebody in as somebody else."""
    if is_cross_site(request.method, request.headers, request.headers.get("host", "")):
        raise CrossSite


async def _record(request: Request, who: str, *, allowed: bool = True, detail: str) -> None:
    """Before the cookie is given out: who cannot be recorded does not come in."""
    context = context_of(request)
    entry = AuditEntry(context.clock.now(), who, "sign in", "", allowed=allowed, detail=detail)
    await asyncio.to_thread(context.service.audit.write, entry)


@router.get("/sign-in")
async def sign_in_form(request: Request, next: str = "") -> Response:
    return await _form(request, next)


async def _form(request: Request, wanted: str, mistake: str = "", status: int = 200) -> Response:
    gate = context_of(request).gate
    possible = await gate.can_anybody_sign_in()
    return page(
        request,
        "sign_in.html",
        None,
        status=status,
        next=wanted if is_ours(links_of(request), wanted) else "",
        mistake=mistake,
        possible=possible,
    )


@router.post("/sign-in")
async def sign_in(request: Request) -> Response:
    _check_origin(request)
    typed = await form_of(request, MOST_OF_STRANGERS)
    wanted = typed.get("next", "")
    try:
        who, cookie = await context_of(request).gate.sign_in(text_of(typed, "key"), address_of(request))
    except NoRole as error:
        await _record(request, error.name, allowed=False, detail=error.detail)
        return await _form(request, wanted, f"{error}.", 403)
    except Unauthenticated as error:
        await _record(request, f"somebody at {address_of(request)}", allowed=False, detail=error.detail)
        return await _form(request, wanted, f"{error}. A key looks like rdk_… and is shown once, when it is made.", 401)
    except TooManyAttempts as error:
        return await _form(request, wanted, str(error), 429)
    await _record(request, who.name, detail=f"with a key, at {address_of(request)}")
    response = see_other(_where_to(request, wanted))
    remember(request, response, cookie)
    return response


@router.get("/sign-in/link/{token}")
async def link(request: Request, token: Named) -> Response:
    return page(request, "sign_in_link.html", None, token=token, mistake="")


@router.post("/sign-in/link/{token}")
async def follow_link(request: Request, token: Named) -> Response:
    _check_origin(request)
    cookie = await asyncio.to_thread(context_of(request).gate.sessions.accept, token)
    if cookie is None:
        mistake = "This link was used already, or is too old. Ask for another, or sign in with a key."
        return page(request, "sign_in_link.html", None, status=401, token=token, mistake=mistake)
    who = await asyncio.to_thread(context_of(request).gate.sessions.find, cookie)
    await _record(request, who.name if who is not None else "", detail=f"with a link, at {address_of(request)}")
    response = see_other(links_of(request)())
    remember(request, response, cookie)
    return response


@router.post("/sign-out")
async def sign_out(request: Request) -> Response:
    _check_origin(request)
    cookie = request.cookies.get(COOKIE)
    if cookie is not None:
        await context_of(request).gate.sign_out(cookie)
    response = see_other(links_of(request)("sign-in", said="signed-out"))
    forget(request, response)
    return response


@router.post("/theme")
async def theme(request: Request) -> Response:
    typed = await form_of(request, MOST_OF_STRANGERS)
    chosen = typed.get("theme", "auto")
    response = see_other(_where_to(request, typed.get("next", "")))
    path = request.scope.get("root_path") or "/"
    if chosen in THEMES:
        response.set_cookie(
            THEME, chosen, max_age=_A_YEAR, path=path, secure=is_secure(request), httponly=True, samesite="lax"
        )
    return response
