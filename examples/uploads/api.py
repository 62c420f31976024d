"""The API: files come in, and one can ask what became of them. Operators find their part under /admin and /console.

uvicorn examples.uploads.api:api        beside it: redrive worker examples.uploads.app:app
"""

from __future__ import annotations

import asyncio
import uuid
from pathlib import PurePath
from typing import Annotated, Any

import sqlalchemy as sa
from fastapi import FastAPI, HTTPException, Response, UploadFile
from fastapi import Path as InPath

import redrive.admin
from examples.uploads import settings
from examples.uploads.app import app, commands, storage
from examples.uploads.messages import Command
from examples.uploads.records import FILES, NOTIFICATIONS
from redrive.integrations.fastapi import Publishing, explain_errors, lifespan

FileId = Annotated[uuid.UUID, InPath(alias="file")]


def make_api(*, work: bool = False) -> FastAPI:
    admin = redrive.admin.router(app, least_role="admin", own_queues_only=True)
    api = FastAPI(title="Uploads", lifespan=lifespan(app, work=work, within=admin.lifespan))
    explain_errors(api)
    api.post("/files", status_code=202)(upload)
    api.post("/files/{file}/reprocess", status_code=202)(reprocess)
    api.get("/files/{file}")(show)
    api.get("/files/{file}/thumbnail")(show_thumbnail)
    api.mount("/", admin)  # what is not ours is the operators'
    return api


async def upload(file: UploadFile, publisher: Publishing) -> dict[str, str]:
    """Keep the file, and have it taken on. 202: it is safe, and it will be looked at."""
    content = await file.read(settings.LARGEST_UPLOAD + 1)
    if len(content) > settings.LARGEST_UPLOAD:
        raise HTTPException(413, f"a file may have {settings.LARGEST_UPLOAD:,} bytes")
    if not content:
        raise HTTPException(422, "the file is empty")
    name = PurePath(file.filename or "unnamed").name
    identity = str(uuid.uuid4())
    await asyncio.to_thread(storage.put, identity, "originals", content)
    command = Command(identity, name, _kind_of(name), len(content))
    await publisher.publish(commands, "commands.upload.file", command, type="UploadFile", correlation_id=identity)
    return {"id": identity}


def _kind_of(name: str) -> str:
    """As it is called, for the routing key: one word of letters and digits."""
    suffix = PurePath(name).suffix.lstrip(".").lower()
    return suffix if suffix.isascii() and suffix.isalnum() else "file"


async def reprocess(file: FileId, publisher: Publishing) -> dict[str, str]:
    if not await asyncio.to_thread(storage.has, str(file), "originals"):
        raise HTTPException(404, "there is no such file")
    command = Command(str(file))
    key = f"commands.file.reprocess.{file}"
    await publisher.publish(commands, key, command, type="ReprocessFile", correlation_id=str(file))
    return {"id": str(file)}


def show(file: FileId) -> dict[str, Any]:
    with app.database.reading_connection() as connection:
        found = connection.execute(sa.select(FILES).where(FILES.c.id == str(file))).mappings().first()
        told = sa.select(NOTIFICATIONS.c.text).where(NOTIFICATIONS.c.file == str(file))
        notifications = sorted(connection.execute(told).scalars())
    if found is None:
        raise HTTPException(404, "there is no such file, or nobody has looked at it yet")
    return {**found, "notifications": notifications}


def show_thumbnail(file: FileId) -> Response:
    if not storage.has(str(file), "thumbnails"):
        raise HTTPException(404, "there is no thumbnail, or not yet")
    return Response(storage.get(str(file), "thumbnails"), media_type="image/jpeg")


api = make_api()
