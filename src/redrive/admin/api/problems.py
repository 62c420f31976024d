"""What went wrong, for programs and for people: RFC 9457 problems, with types that do not change.

`kinds.py` lists the types. An answer that comes of an error of Redrive's has its name as `error`, too: `redrive
explain` knows both.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import Any

from fastapi.exceptions import RequestValidationError
from sqlalchemy.exc import SQLAlchemyError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from redrive.admin.api.problem_types import TYPE
from redrive.database.connection_errors import problem as database_problem
from redrive.errors import (
    AuditUnavailable,
    BrokerError,
    ConfigurationError,
    CrossSite,
    EditRefused,
    LetterAmbiguous,
    LetterNotFound,
    NoOutbox,
    NoRole,
    NotAllowed,
    NotDeadLetterQueue,
    NotEditable,
    NotFound,
    OperationConflict,
    OperationNotFound,
    OperationOver,
    PeekUnsafe,
    PlanExpired,
    QueueNotAccepted,
    RedriveError,
    SearchError,
    TargetUnroutable,
    TooManyAttempts,
    TransformFailed,
    Unauthenticated,
    VerificationUnavailable,
    name_of,
)
from redrive.text import printable

MEDIA_TYPE = "application/problem+json"
_SOON = {"Retry-After": "2"}


@dataclass(frozen=True, slots=True)
class Problem:
    status: int
    type: str
    detail: str
    headers: Mapping[str, str] = field(default_factory=dict)
    more: Mapping[str, Any] = field(default_factory=dict)

    @property
    def title(self) -> str:
        return self.type.replace("-", " ").capitalize()

    def as_dict(self, instance: str) -> dict[str, Any]:
        told = {"type": TYPE + self.type, "title": self.title, "status": self.status, "detail": printable(self.detail)}
        return {**told, "instance": instance, **self.more}

    def response(self, instance: str) -> JSONResponse:
        return JSONResponse(
            self.as_dict(instance), status_code=self.status, headers=dict(self.headers), media_type=MEDIA_TYPE
        )


def problem_of(error: Exception) -> Problem | None:
    """None: nobody expected that."""
    problem = _problem_of(error)
    if problem is None or not isinstance(error, RedriveError):
        return problem
    return replace(problem, more={"error": name_of(type(error)), **problem.more})


def _problem_of(error: Exception) -> Problem | None:
    match error:
        case VerificationUnavailable():
            return Problem(503, "tokens-unavailable", str(error), _SOON)
        case Unauthenticated():
            return Problem(401, "unauthenticated", str(error), {"WWW-Authenticate": 'Bearer realm="redrive"'})
        case TooManyAttempts():
            wait = math.ceil(error.wait)
            return Problem(429, "too-many-attempts", str(error), {"Retry-After": str(wait)})
        case NoRole() | NotAllowed():
            return Problem(403, "not-allowed", str(error))
        case CrossSite():
            return Problem(403, "cross-site", str(error))
        case NotEditable() | EditRefused() | TransformFailed():
            return Problem(403 if isinstance(error, NotEditable) else 422, "not-editable", str(error))
        case NotFound() | LetterNotFound() | OperationNotFound() | NoOutbox() | QueueNotAccepted():
            return Problem(404, "not-found", str(error))
        case PeekUnsafe():
            return Problem(409, "peek-unsafe", str(error), more={"why": error.why, "fix": error.fix})
        case NotDeadLetterQueue():
            return Problem(409, "not-a-dead-letter-queue", str(error), more={"why": error.why})
        case OperationConflict():
            return Problem(409, "operation-in-progress", str(error), more={"holder": error.holder})
        case OperationOver():
            return Problem(409, "operation-over", str(error), more={"state": error.state})
        case PlanExpired():
            return Problem(409, "plan-expired", str(error))
        case TargetUnroutable():
            return Problem(409, "target-unroutable", str(error))
        case SearchError():
            return Problem(422, "invalid-request", error.problem, more={"position": error.position})
        case LetterAmbiguous():
            return Problem(422, "invalid-request", str(error), more={"matches": list(map(printable, error.matches))})
        case ConfigurationError():
            return Problem(422, "invalid-request", str(error))
        case AuditUnavailable():
            return Problem(503, "audit-unavailable", str(error), _SOON)
        case BrokerError():
            return Problem(502, "broker-refused", str(error))
        case RedriveError() | TimeoutError():
            said = str(error) or "the broker did not answer in time"
            return Problem(503, "broker-unavailable", said, _SOON)
        case SQLAlchemyError():
            return Problem(503, "database-unavailable", database_problem(error), _SOON)
        case RequestValidationError():
            return Problem(422, "invalid-request", _about_the_request(error), more={"errors": _mistakes(error)})
        case HTTPException():
            return _of_http(error)
        case _:
            return None


def _mistakes(error: RequestValidationError) -> list[dict[str, Any]]:
    return [
        {"where": ".".join(str(part) for part in found["loc"]), "what": found["msg"]} for found in error.errors()[:20]
    ]


def _about_the_request(error: RequestValidationError) -> str:
    return "; ".join(f"{one['where']}: {one['what']}" for one in _mistakes(error)[:3])


_KINDS = {404: "not-found", 405: "method-not-allowed", 408: "too-slow", 413: "too-large"}


def _of_http(error: HTTPException) -> Problem:
    status = HTTPStatus(422 if error.status_code == 400 else error.status_code)  # a body that cannot be read
    kind = _KINDS.get(status, "invalid-request")
    return Problem(status, kind, str(error.detail or status.phrase), dict(error.headers or {}))
