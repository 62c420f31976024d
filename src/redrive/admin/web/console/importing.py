"""Exported messages that are put into a queue: a file, read to its end before anything of it is published."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO

from fastapi import APIRouter, Request
from starlette.datastructures import UploadFile
from starlette.responses import Response

from redrive.admin.access.roles import Act
from redrive.admin.desk import Desk
from redrive.admin.web.console.forms import Mistakes
from redrive.admin.web.console.links import links_of
from redrive.admin.web.console.pages import page, seen
from redrive.admin.web.identity import At
from redrive.admin.web.rest import Named
from redrive.errors import ConfigurationError
from redrive.runtime.dlq.archive import lines_of
from redrive.runtime.dlq.letters import Exported, decode_letter

router = APIRouter()

_MOST_BYTES = 1024 * 1024 * 1024


@router.get("/queues/{queue:path}/import")
async def import_form(request: Request, at: At, queue: Named) -> Response:
    await at.need(Act.IMPORT, queue)
    return await _page(request, at, queue, Mistakes())


async def _page(request: Request, at: Desk, queue: str, mistakes: Mistakes) -> Response:
    return page(
        request,
        "import.html",
        at,
        status=422 if mistakes else 200,
        here="overview",
        queue=queue,
        view=await at.queue(queue),
        mistakes=mistakes,
    )


@router.post("/queues/{queue:path}/import")
async def import_(request: Request, at: At, queue: Named) -> Response:
    await at.need(Act.IMPORT, queue)
    try:
        _check_size(request)
        async with request.form(max_files=1, max_fields=1) as sent:
            file = sent.get("file")
            if not isinstance(file, UploadFile) or not file.filename:
                raise ConfigurationError("choose a file first")
            for _ in _decoded(file.file):
                pass
            file.file.seek(0)
            await at.restore(queue, _decoded(file.file), file.filename)
    except ConfigurationError as error:
        mistakes = Mistakes()
        mistakes.fields["file"] = str(error)
        return await _page(request, at, queue, mistakes)
    return seen(links_of(request)("queues", queue, said="imported"))


def _check_size(request: Request) -> None:
    said = request.headers.get("content-length", "")
    if not said.isdecimal() or int(said) > _MOST_BYTES:
        raise ConfigurationError("more than a gigabyte: send it in parts, or use `redrive dlq import`")


def _decoded(file: IO[bytes]) -> Iterator[tuple[int, Exported]]:
    return ((number, decode_letter(line, number)) for number, line in lines_of(file))
