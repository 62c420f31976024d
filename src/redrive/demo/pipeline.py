"""The demo's application: pictures are uploaded, and seven consumers look after them.

It fails for real reasons. A picture whose checksum is wrong is rejected: that is an answer, not a failure. One with 16
bits for a colour cannot be shrunk: it is parked at once. And when the catalogue is away, entries are retried and, after
three attempts, parked, until somebody sends them back to work.

`redrive serve redrive.demo.pipeline:app` and `redrive dlq --app redrive.demo.pipeline:app` know it by this name.
"""

from __future__ import annotations

import os
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from random import Random
from uuid import UUID, uuid4

from msgspec import Struct

from redrive.app import App
from redrive.demo import png
from redrive.demo.books import Books
from redrive.demo.catalogue import Catalogue, enter
from redrive.errors import PublishError
from redrive.recovery.retry import Retry
from redrive.runtime.message import Message

AGAIN = Retry(attempts=3, delay="500ms")
SHRINK = Retry(attempts=3, delay="500ms", never=(png.Unsupported,))  # what cannot be shrunk never can
SMALLER = 4


class File(Struct):
    """What all messages are about."""

    file: str
    name: str = ""
    text: str = ""


app = App("uploads")
events = app.exchange("domain.events", "topic")
commands = app.exchange("domain.commands", "topic")
books = Books()
catalogue = Catalogue()


@app.middleware.append
def _kept(message: Message) -> AbstractAsyncContextManager[None]:
    return books.handling(message)


def _place(file: str, what: str) -> Path:
    return app.data / what / f"{UUID(file)}.png"


async def _tell(key: str, file: File) -> None:
    exchange = commands if key.startswith("commands.") else events
    message_id = str(uuid4())
    books.owe(message_id, exchange.name, key, app.queues)
    try:
        await app.publish(exchange, key, file, message_id=message_id, type=key)
    except PublishError:
        books.take_back(message_id)
        raise


async def upload(chance: Random) -> None:
    """What an API would do: keep the picture, and have it taken on."""
    file = str(UUID(int=chance.getrandbits(128)))
    depth = 16 if chance.random() < 0.03 else 8
    content = bytearray(png.paint(96, 64, chance, depth=depth))
    if chance.random() < 0.05:
        content[chance.randrange(40, len(content) - 20)] ^= 0xFF  # a bit was lost on the way
    place = _place(file, "pictures")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(content)
    await _tell("commands.upload.file", File(file, f"picture-{file[:8]}.png"))


@app.consumer(
    "q.upload.commands", bind=commands.on("commands.upload.#", "commands.file.reprocess.*"), retry=AGAIN, concurrency=4
)
async def take_on(file: File) -> None:
    await _tell("files.uploaded.png", file)


@app.consumer("q.validator", bind=events.on("files.uploaded.*"), retry=AGAIN, concurrency=4)
async def validate(file: File) -> None:
    try:
        png.check(_place(file.file, "pictures").read_bytes())
    except png.Broken as error:
        await _tell("files.rejected.png", File(file.file, file.name, str(error)))
    else:
        await _tell("files.validated.png", file)


@app.consumer("q.thumbnail", bind=events.on("files.validated.*"), retry=SHRINK, concurrency=4)
async def make_thumbnail(file: File) -> None:
    picture = png.read(_place(file.file, "pictures").read_bytes())
    place = _place(file.file, "thumbnails")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(png.write(png.shrink(picture, SMALLER)))
    await _tell("processing.thumbnail.done", file)


@app.consumer("q.extractor", bind=events.on("files.validated.*"), retry=AGAIN, concurrency=4)
async def extract(file: File) -> None:
    """Its measures, into the catalogue."""
    width, height = png.check(_place(file.file, "pictures").read_bytes())
    await enter(catalogue.port, {"file": file.file, "width": width, "height": height})
    await _tell("processing.metadata.done", file)


@app.consumer("q.projection", bind=events.on("#"), retry=AGAIN)
async def project(file: File, message: Message) -> None:
    _append("state.log", f"{file.file} {message.routing_key}")


@app.consumer("q.notification", bind=events.on("processing.#", "files.rejected.*"), retry=AGAIN)
async def notify(file: File, message: Message) -> None:
    _append("notifications.log", f"{file.name}: {file.text or message.routing_key}")


@app.consumer("q.audit", bind=events.on("#"), retry=AGAIN)
async def record(file: File, message: Message) -> None:
    _append("audit.log", f"{message.message_id} {message.routing_key} {file.file}")


def _append(name: str, line: str) -> None:
    with (app.data / name).open("a") as log:
        log.write(line + os.linesep)
