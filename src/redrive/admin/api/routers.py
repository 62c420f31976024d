"""Routers for the resources of the REST API, and the problems that every route can answer."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Security
from fastapi.security import HTTPBearer

from redrive.admin.api import schemas as m
from redrive.admin.api.idempotency import IdempotentRoute
from redrive.admin.api.problems import MEDIA_TYPE

PREFIX = "/admin"

_PROBLEM = {"model": m.ProblemOut, "content": {MEDIA_TYPE: {}}}
_PROBLEMS: dict[int | str, dict[str, Any]] = {
    401: {**_PROBLEM, "description": "Nobody, or nobody who is known."},
    403: {**_PROBLEM, "description": "Not allowed."},
    404: {**_PROBLEM, "description": "There is no such thing."},
    408: {**_PROBLEM, "description": "The rest of the request did not come."},
    409: {**_PROBLEM, "description": "Not now: an operation, an unsafe look, a plan that is too old."},
    413: {**_PROBLEM, "description": "More than any request needs; says how much would be taken."},
    422: {**_PROBLEM, "description": "It makes no sense; says what would."},
    429: {**_PROBLEM, "description": "Too many failed attempts."},
    502: {**_PROBLEM, "description": "The broker does not let this server do that."},
    503: {**_PROBLEM, "description": "The broker or the database is away, or the audit cannot be written."},
}

# For the document: `principal_of` reads what was sent.
_BEARER = HTTPBearer(auto_error=False, description="A token (JWT), or an API key.")


def resource_router() -> APIRouter:
    """Return a router for the routes of one resource."""
    return APIRouter(prefix=PREFIX, route_class=IdempotentRoute, responses=_PROBLEMS, dependencies=[Security(_BEARER)])
