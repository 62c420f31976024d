"""Exported messages that are put into a queue: a file, read to its end before anything of it is published.

A form has a key of its own, so that one that is sent twice, as by a double click, is imported once.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import APIRouter, Request
from starlette.datastructures import UploadFile
from starlette.responses import Response

from redrive.admin.access.roles import Permission
from redrive.admin.api.dependencies import CurrentService
from redrive.admin.api.export import check_lines, decode_lines
from redrive.admin.api.parameters import Named
from redrive.admin.authorized_service import AuthorizedService
from redrive.admin.console.forms import Mistakes
from redrive.admin.console.rendering import page, see_other
from redrive.admin.console.urls import links_of
from redrive.errors import ConfigurationError
from redrive.operations.idempotency_keys import KeyStanding, StoredAnswer

router = APIRouter()

_MOST_BYTES = 1024 * 1024 * 1024
_LONGEST_KEY = 64


@router.get("/queues/{queue:path}/import")
async def import_form(request: Request, at: CurrentService, queue: Named) -> Response:
    await at.need(Permission.IMPORT, queue)
    return await _page(request, at, queue, Mistakes())


async def _page(request: Request, at: AuthorizedService, queue: str, mistakes: Mistakes) -> Response:
    return page(
        request,
        "import.html",
        at,
        status=422 if mistakes else 200,
        here="overview",
        queue=queue,
        view=await at.queue(queue),
        mistakes=mistakes,
        once=secrets.token_urlsafe(16),
    )


@router.post("/queues/{queue:path}/import")
async def import_(request: Request, at: CurrentService, queue: Named) -> Response:
    await at.need_importing(queue)
    try:
        _check_size(request)
        async with request.form(max_files=1, max_fields=2) as sent:
            file = sent.get("file")
            if not isinstance(file, UploadFile) or not file.filename:
                raise ConfigurationError("choose a file first")
            await check_lines(file.file)
            async with _once(at, sent.get("once")) as is_first:
                if is_first:
                    await at.restore(queue, decode_lines(file.file), file.filename)
    except ConfigurationError as error:
        mistakes = Mistakes()
        mistakes.fields["file"] = str(error)
        return await _page(request, at, queue, mistakes)
    return see_other(links_of(request)("queues", queue, said="imported" if is_first else "imported-once"))


@asynccontextmanager
async def _once(at: AuthorizedService, key: object) -> AsyncIterator[bool]:
    """Yield whether the form with this key is sent for the first time. If it fails, it may be sent again."""
    if not isinstance(key, str) or not 0 < len(key) <= _LONGEST_KEY:
        yield True
        return
    requests, who, key = at.context.requests, at.who.identity, f"import {key}"
    is_first = await asyncio.to_thread(requests.begin, who, key, "", at.context.clock.now()) is KeyStanding.NEW
    if is_first:
        await asyncio.to_thread(requests.finish, who, key, StoredAnswer(303, ""))
    try:
        yield is_first
    except BaseException:
        if is_first:
            await asyncio.to_thread(requests.forget, who, key)
        raise


def _check_size(request: Request) -> None:
    said = request.headers.get("content-length", "")
    if not said.isdecimal() or int(said) > _MOST_BYTES:
        raise ConfigurationError("more than a gigabyte: send it in parts, or use `redrive dlq import`")
