"""Responses about operations: as they are now, or when they are over."""

from __future__ import annotations

import asyncio
import logging
from urllib.parse import quote

from fastapi import Request, Response

from redrive.admin.api import schemas as m
from redrive.admin.api.routers import PREFIX
from redrive.admin.authorized_service import AuthorizedService
from redrive.operations.operation import Operation

log = logging.getLogger("redrive.admin")

_LONGEST_WAIT = 30.0  # seconds that somebody may prefer to wait


async def accepted_response(
    at: AuthorizedService, request: Request, operation: Operation, prefer: str | None
) -> Response:
    """Where it can be watched; or how it ended, for who prefers to wait."""
    wait = _wait_of(prefer)
    if wait:
        operation = await _wait_until_over(at, operation, wait)
    # Not by `url_for`: in an application that this one is mounted in, it looks among that one's routes.
    location = f"{quote(request.scope.get('root_path', ''))}{PREFIX}/operations/{operation.id}"
    status = 200 if wait and operation.state.is_over else 202
    response = json_response(operation_out(at, operation), status, {"Location": location})
    if wait:
        response.headers["Preference-Applied"] = f"wait={wait:g}"
    return response


def _wait_of(prefer: str | None) -> float:
    for part in (prefer or "").replace(";", ",").split(","):
        name, _, value = part.strip().partition("=")
        if name.lower() == "wait" and value.isdecimal():
            return min(float(value), _LONGEST_WAIT)
    return 0.0


async def _wait_until_over(at: AuthorizedService, operation: Operation, wait: float) -> Operation:
    """Or as it was last seen: it is under way, also if it cannot be looked at. Who hears less asks for it once more."""
    try:
        async with asyncio.timeout(wait):
            while not operation.state.is_over:
                await asyncio.sleep(0.05)
                operation = await at.operation(operation.id)
    except TimeoutError:
        pass
    except Exception as error:
        log.warning("operation %s is under way, and cannot be looked at: %s", operation.id, error)
    return operation


def operation_out(at: AuthorizedService, operation: Operation) -> m.OperationOut:
    return m.OperationOut.of(operation, interrupted=at.service.is_interrupted(operation))


def json_response(told: m.ResponseModel, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(told.model_dump_json(), status, headers, media_type="application/json")
