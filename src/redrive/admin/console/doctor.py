"""The doctor page: findings about the broker."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from redrive.admin.api.dependencies import CurrentService
from redrive.admin.console.formatting import counted
from redrive.admin.console.rendering import page

router = APIRouter()


@router.get("/doctor")
async def doctor(request: Request, at: CurrentService) -> Response:
    findings = await at.doctor()
    return page(request, "doctor.html", at, here="doctor", findings=findings, counted=counted)
