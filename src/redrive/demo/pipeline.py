"""The demo's application: pictures are uploaded, and seven consumers process them.

It fails for real reasons. A picture that is not complete is rejected: that is an answer, not a failure. A picture with
16 bits for a colour cannot be shrunk: its message is parked at once. And when the catalogue is unavailable, its entries
are retried and, after three attempts, parked, until an operator re-drives them.

The pictures are PPM files, which need no library: a line each with `P6`, width and height, and the largest colour; then
the pixels.

`redrive serve redrive.demo.pipeline:app` and `redrive dlq --app redrive.demo.pipeline:app` know it by this name.
"""

from __future__ import annotations

import os
import re
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from random import Random
from uuid import UUID, uuid4

from msgspec import Struct

from redrive.app import App
from redrive.demo.catalogue import Catalogue, enter
from redrive.demo.ledger import Ledger
from redrive.errors import PublishError
from redrive.recovery.retry import Retry
from redrive.worker.message import Message

AGAIN = Retry(attempts=3, delay="500ms")
WIDTH, HEIGHT = 96, 64
SMALLER = 4
_HEAD = re.compile(rb"P6\n(\d+) (\d+)\n(\d+)\n", re.ASCII)


class Incomplete(ValueError):
    """Not a picture, or a part of it is missing."""


class Unsupported(ValueError):
    """A picture that cannot be shrunk."""


class File(Struct):
    """The body of every message."""

    file: str
    name: str = ""
    text: str = ""


app = App("uploads")
events = app.exchange("domain.events", "topic")
commands = app.exchange("domain.commands", "topic")
books = Ledger()
catalogue = Catalogue()


@app.middleware.append
def _record(message: Message) -> AbstractAsyncContextManager[None]:
    return books.record_handling(message)


def _place(file: str, what: str) -> Path:
    return app.data / what / f"{UUID(file)}.ppm"


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
    """Do what an API would do: store a picture, and publish the command to process it."""
    file = str(UUID(int=chance.getrandbits(128)))
    depth = 16 if chance.random() < 0.03 else 8
    content = b"P6\n%d %d\n%d\n" % (WIDTH, HEIGHT, 2**depth - 1) + chance.randbytes(WIDTH * HEIGHT * 3 * depth // 8)
    if chance.random() < 0.05:
        content = content[: chance.randrange(len(content))]  # the upload broke off
    _write(file, "pictures", content)
    await _tell("commands.upload.file", File(file, f"picture-{file[:8]}.ppm"))


def _write(file: str, what: str, content: bytes) -> None:
    place = _place(file, what)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(content)


def read(file: str) -> tuple[int, int, int, bytes]:
    """Return the width, the height, the bits for a colour and the pixels of a picture."""
    content = _place(file, "pictures").read_bytes()
    head = _HEAD.match(content)
    if head is None:
        raise Incomplete("not a picture")
    width, height, largest = map(int, head.groups())
    pixels, depth = content[head.end() :], largest.bit_length()
    if len(pixels) != width * height * 3 * depth // 8:
        raise Incomplete("the end of the picture is missing")
    return width, height, depth, pixels


@app.consumer(
    "q.upload.commands", bind=commands.on("commands.upload.#", "commands.file.reprocess.*"), retry=AGAIN, concurrency=4
)
async def take_on(file: File) -> None:
    await _tell("files.uploaded.ppm", file)


@app.consumer("q.validator", bind=events.on("files.uploaded.*"), retry=AGAIN, concurrency=4)
async def validate(file: File) -> None:
    try:
        read(file.file)
    except Incomplete as error:
        await _tell("files.rejected.ppm", File(file.file, file.name, str(error)))
    else:
        await _tell("files.validated.ppm", file)


@app.consumer(
    "q.thumbnail",
    bind=events.on("files.validated.*"),
    retry=Retry(attempts=3, delay="500ms", never=(Unsupported,)),
    concurrency=4,
)
async def make_thumbnail(file: File) -> None:
    width, height, depth, pixels = read(file.file)
    if depth != 8:
        raise Unsupported(f"{depth} bits for a colour: pictures with 8 can be shrunk")
    rows, columns = range(0, height, SMALLER), range(0, width, SMALLER)
    small = b"".join(pixels[3 * (y * width + x) :][:3] for y in rows for x in columns)
    _write(file.file, "thumbnails", b"P6\n%d %d\n255\n" % (len(columns), len(rows)) + small)
    await _tell("processing.thumbnail.done", file)


@app.consumer("q.extractor", bind=events.on("files.validated.*"), retry=AGAIN, concurrency=4)
async def extract(file: File) -> None:
    """Enter the width and height into the catalogue."""
    width, height, *_ = read(file.file)
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
