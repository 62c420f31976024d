"""Routes of the broker's topology and of what the doctor finds in it."""

from __future__ import annotations

from redrive.admin.api import schemas as m
from redrive.admin.api.dependencies import CurrentService
from redrive.admin.api.parameters import Everything
from redrive.admin.api.routers import resource_router

router = resource_router()


@router.get("/topology", summary="What the broker holds, and how it differs", operation_id="topology", tags=["broker"])
async def topology(at: CurrentService, all: Everything = False) -> m.TopologyOut:
    return m.TopologyOut.of(await at.topology(), everything=all)


@router.get("/doctor", summary="What is wrong with the broker", operation_id="doctor", tags=["broker"])
async def doctor(at: CurrentService) -> m.DoctorOut:
    return m.DoctorOut(items=[m.FindingOut.mirror(one) for one in await at.doctor()])
