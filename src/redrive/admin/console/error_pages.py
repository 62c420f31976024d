"""What is shown instead of a page: not signed in, not allowed, not there, not now.

It says what happened, what still works, and what to press. When the broker or the database is away the page asks again
by itself until it is back.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import unquote

from fastapi import Request
from starlette.responses import Response

from redrive.admin.api.dependencies import context_of, known_principal
from redrive.admin.api.problems import Problem
from redrive.admin.authorized_service import AuthorizedService
from redrive.admin.console.rendering import page, see_other
from redrive.admin.console.urls import Urls, address_asked_for, links_of

_OTHERS = ("/admin", "/metrics", "/healthz", "/readyz", "/static")
_OPERATION = re.compile(r"\bop_[0-9a-z]+")
_QUEUE = re.compile(r"/queues/([^/]+)")
_AGAIN = 5  # seconds

_TITLES = {
    "unauthenticated": "Sign in first",
    "not-allowed": "You may not do that",
    "cross-site": "That came from another site",
    "not-editable": "Messages are not changed here",
    "not-found": "There is no such thing",
    "peek-unsafe": "Looking could lose messages",
    "not-a-dead-letter-queue": "This is not a dead-letter queue",
    "operation-in-progress": "An operation has this queue",
    "plan-expired": "The plan is too old",
    "target-unroutable": "There is nothing where the messages should go",
    "invalid-request": "That makes no sense",
    "too-many-attempts": "Too many attempts",
    "broker-refused": "The broker does not allow that",
    "broker-unavailable": "The broker is away",
    "database-unavailable": "The database is away",
    "audit-unavailable": "The audit cannot be written",
    "internal-error": "That should not have happened",
}
_STILL = {
    "broker-unavailable": "Dead letters are safe where they are, and operations wait. Operations and the audit can "
    "still be read.",
    "database-unavailable": "Dead letters are safe in the broker. Nobody can sign in, and nothing can be changed, "
    "until the database is back.",
    "audit-unavailable": "Nothing was done: what cannot be recorded is not done. Dead letters are safe where they are.",
}


def is_page(request: Request) -> bool:
    """Did a browser ask for a page?"""
    path = _path(request)
    other = any(path == begin or path.startswith(f"{begin}/") for begin in _OTHERS)
    return request.method in ("GET", "HEAD", "POST") and not other


def _path(request: Request) -> str:
    path: str = request.scope["path"]
    return path.removeprefix(request.scope.get("root_path", "").rstrip("/"))


def explain(request: Request, problem: Problem) -> Response:
    to, reads = links_of(request), request.method in ("GET", "HEAD")
    if problem.status == 401 and reads:
        address = address_asked_for(request)
        return see_other(to("sign-in", next=address if _path(request) != "/" else ""))
    known = known_principal(request)
    return page(
        request,
        "trouble.html",
        AuthorizedService(context_of(request), known) if known is not None else None,
        status=problem.status,
        headers={name: value for name, value in problem.headers.items() if name.lower() != "www-authenticate"},
        title=_TITLES.get(problem.type, problem.title),
        problem=problem,
        still=_STILL.get(problem.type, ""),
        again=_AGAIN if problem.status == 503 and reads else None,
        actions=list(_actions(request, to, problem)),
    )


def _actions(request: Request, to: Urls, problem: Problem) -> Iterator[tuple[str, str]]:
    """Words and where they lead; the first is what one would press."""
    queue = _QUEUE.match(_path(request))
    if problem.status == 401:
        yield "Sign in", to("sign-in")
        return
    if operation := _OPERATION.search(str(problem.more.get("holder", ""))):
        yield "Watch the operation", to("operations", operation[0])
    if problem.status in (409, 503) and request.method == "GET":
        yield "Try again", address_asked_for(request)
    if queue is not None and problem.type != "not-found":
        name = unquote(queue[1])
        yield f"Back to {name}", to("queues", name)
    if problem.type == "broker-unavailable":
        yield "Operations", to("operations")
    yield "Overview", to()
