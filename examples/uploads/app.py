"""The application: two exchanges, seven queues, and who handles what is in them.

    POST /files ─ commands.upload.image ─> q.upload.commands ─ files.uploaded.png ─> q.validator
                                                                                        │
              files.rejected.png <──────────────────────────────────────────────────────┤
              files.validated.png ─> q.thumbnail, q.extractor ─ processing.thumbnail.done, processing.metadata.done
              processing.#, files.rejected.* ─> q.notification
              # ─> q.projection, q.audit

What fails waits 15 s and comes back to the queue it failed in and to no other; after three attempts it is parked in
that queue's dead-letter queue. A re-drive publishes it to the retry exchange of that queue (`redrive_to`).
"""

from __future__ import annotations

import asyncio
import json
import urllib.request
from datetime import UTC, datetime

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from examples.uploads import images, settings
from examples.uploads.messages import Command, Event, Processed, Rejected, Upload
from examples.uploads.records import AUDIT, FILES, NOTIFICATIONS, metadata, once
from examples.uploads.storage import Storage
from redrive import App, Message, Park, Retry

app = App("uploads", patience="5s", defaults={"redrive_to": "retry"})
events = app.exchange("domain.events", "topic")
commands = app.exchange("domain.commands", "topic")
again = Retry(attempts=settings.MAX_ATTEMPTS, delay=f"{settings.RETRY_TTL_MS}ms", via="reject")
storage = Storage(settings.FOLDER)


@app.on_start
def prepare() -> None:
    """Create the tables, Redrive's and ours, whichever part starts first."""
    app.upgrade_database()
    app.database.create_tables(metadata)


# Commands -----------------------------------------------------------------------------------------


@app.consumer(
    "q.upload.commands", bind=commands.on("commands.upload.#", "commands.file.reprocess.*"), retry=again, concurrency=4
)
async def take_on(command: Command, session: AsyncSession) -> None:
    """A new file, or one that is to go through everything once more."""
    wanted = sa.select(FILES.c.name, FILES.c.kind, FILES.c.size).where(FILES.c.id == command.file)
    known = (command.name, command.kind, command.size) if command.name else (await session.execute(wanted)).first()
    if known is None:
        raise Park(f"there is no file {command.file}")
    upload = Upload(command.file, *known)
    await app.publish(events, f"files.uploaded.{upload.kind}", upload, type="FileUploaded")


# The pipeline -------------------------------------------------------------------------------------


@app.consumer("q.validator", bind=events.on("files.uploaded.*"), retry=again, concurrency=4)
async def validate(upload: Upload) -> None:
    content = await asyncio.to_thread(storage.get, upload.file, "originals")
    try:
        upload.kind = await asyncio.to_thread(images.validate, content)
    except images.NotAnImage as error:
        rejected = Rejected(upload.file, str(error))
        await app.publish(events, f"files.rejected.{upload.kind}", rejected, type="FileRejected")
        return
    await app.publish(events, f"files.validated.{upload.kind}", upload, type="FileValidated")


@app.consumer("q.thumbnail", bind=events.on("files.validated.*"), retry=again, concurrency=2)
async def make_thumbnail(upload: Upload) -> None:
    content = await asyncio.to_thread(storage.get, upload.file, "originals")
    small = await asyncio.to_thread(images.thumbnail, content)
    await asyncio.to_thread(storage.put, upload.file, "thumbnails", small)
    done = Processed(upload.file, "thumbnail", {"bytes": len(small)})
    await app.publish(events, "processing.thumbnail.done", done, type="ThumbnailMade")


@app.consumer("q.extractor", bind=events.on("files.validated.*"), retry=again, concurrency=2)
async def extract(upload: Upload) -> None:
    content = await asyncio.to_thread(storage.get, upload.file, "originals")
    found = await asyncio.to_thread(images.describe, content)
    done = Processed(upload.file, "metadata", found)
    await app.publish(events, "processing.metadata.done", done, type="MetadataExtracted")


# Those who listen ---------------------------------------------------------------------------------


@app.consumer("q.projection", bind=events.on("#"), retry=again)
async def project(event: Event, session: AsyncSession) -> None:
    """What is known of the file. Each event writes its own columns, so they may come in any order, and twice."""
    news: dict[str, object] = {}
    if event.name is not None:
        news |= {"name": event.name, "kind": event.kind, "size": event.size}
    if event.reason is not None:
        news["rejected"] = event.reason
    if event.part is not None:
        news[event.part] = event.result
    await session.execute(once(session, FILES, id=event.file))
    if news:
        await session.execute(sa.update(FILES).where(FILES.c.id == event.file).values(news))


@app.consumer("q.notification", bind=events.on("processing.#", "files.rejected.*"), retry=again)
def notify(event: Event, message: Message, session: Session) -> None:
    """Tell whoever wants to hear it. They may be slow, or away: then it is tried again."""
    text = f"rejected: {event.reason}" if event.reason is not None else f"{event.part} is ready"
    session.execute(once(session, NOTIFICATIONS, message_id=message.message_id, file=event.file, text=text))
    if settings.NOTIFY_URL is not None:
        news = json.dumps({"file": event.file, "text": text}).encode()
        headers = {"Content-Type": "application/json", "Idempotency-Key": str(message.message_id)}
        request = urllib.request.Request(settings.NOTIFY_URL, news, headers)
        urllib.request.urlopen(request, timeout=settings.NOTIFY_TIMEOUT).close()


@app.consumer("q.audit", bind=events.on("#"), retry=again)
async def record(event: Event, message: Message, session: AsyncSession) -> None:
    row = {"message_id": message.message_id, "at": datetime.now(UTC), "event": message.routing_key, "file": event.file}
    await session.execute(once(session, AUDIT, **row))
