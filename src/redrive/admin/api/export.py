"""Routes that export the messages of a dead-letter queue and import them again."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from itertools import islice
from typing import IO, cast
from urllib.parse import quote

from fastapi import Request
from fastapi.responses import StreamingResponse

from redrive.admin.api import schemas as m
from redrive.admin.api.dependencies import CurrentService
from redrive.admin.api.parameters import ONCE, Named, Reveal, Words
from redrive.admin.api.routers import resource_router
from redrive.errors import ConfigurationError
from redrive.operations.archive import lines_of
from redrive.operations.export_format import Exported, decode_dead_letter

_IN_MEMORY = 8 * 1024 * 1024  # bytes of an export; more is on the disk
_PART = 64 * 1024
_MOST_IMPORTED = 1024 * 1024 * 1024  # bytes in one request
_LONGEST_LINE = 32 * 1024 * 1024  # bytes of one line in it; the command takes any message that RabbitMQ takes
_CHECKED_AT_ONCE = 100  # lines

router = resource_router()


@router.get(
    "/dlq/queues/{queue:path}/export",
    summary="Messages as lines of JSON; they stay where they are",
    operation_id="export",
    tags=["dead letters"],
    response_class=StreamingResponse,
    responses={200: {"content": {"application/x-ndjson": {}}, "description": "A line for each message."}},
)
async def export(at: CurrentService, queue: Named, q: Words = "", reveal: Reveal = False) -> StreamingResponse:
    file = await _spool(at.export(queue, q, reveal=reveal))
    name = quote(f"{queue}.ndjson", safe="")
    headers = {"Content-Disposition": f"attachment; filename*=UTF-8''{name}"}
    return StreamingResponse(_parts(file), media_type="application/x-ndjson", headers=headers)


async def _spool(lines: AsyncGenerator[bytes, None]) -> IO[bytes]:
    """All of it, before any is sent: who reads slowly would keep the queue's messages from everybody else, and what
    goes wrong half-way is a problem, not half a file.
    """
    file = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY)  # noqa: SIM115 - it is closed when all is sent
    try:
        async with aclosing(lines):
            async for line in lines:
                file.write(line)
        file.seek(0)
    except BaseException:
        file.close()
        raise
    return cast(IO[bytes], file)


def _parts(file: IO[bytes]) -> Iterator[bytes]:
    with file:
        while part := file.read(_PART):
            yield part


@router.post(
    "/dlq/queues/{queue:path}/import",
    dependencies=ONCE,
    summary="Put exported messages into a queue",
    operation_id="import",
    tags=["dead letters"],
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {"application/x-ndjson": {"schema": {"type": "string"}}},
            "description": "Lines as `export` writes them, with `reveal=true`.",
        }
    },
)
async def import_(at: CurrentService, request: Request, queue: Named) -> m.ImportedOut:
    await at.need_importing(queue)
    with tempfile.TemporaryFile() as file:
        size = 0
        async for chunk in request.stream():
            size += len(chunk)
            if size > _MOST_IMPORTED:
                raise ConfigurationError("more than a gigabyte: send it in parts, or use `redrive dlq import`")
            await asyncio.to_thread(file.write, chunk)
        await check_lines(file)
        return m.ImportedOut(lines=await at.restore(queue, decode_lines(file), "the admin API"))


async def check_lines(file: IO[bytes]) -> None:
    """Decode the whole file before anything of it is published: in threads, and in parts, since others need them."""
    file.seek(0)
    lines = decode_lines(file)
    while await asyncio.to_thread(_exhaust, lines, _CHECKED_AT_ONCE):
        pass
    file.seek(0)


def _exhaust(lines: Iterator[tuple[int, Exported]], most: int) -> int:
    return sum(1 for _ in islice(lines, most))


def decode_lines(file: IO[bytes]) -> Iterator[tuple[int, Exported]]:
    return ((number, decode_dead_letter(line, number)) for number, line in lines_of(file, _LONGEST_LINE))
