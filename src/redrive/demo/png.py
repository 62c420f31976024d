"""Pictures, without a library: as much of PNG as it takes to make, check and shrink small ones.

A file is a signature and chunks; each chunk has a length, a type, its data and a checksum over type and data. The
pixels are compressed lines, each with a byte in front that says how it was filtered (here always 0, not at all).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from random import Random
from typing import NamedTuple

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_HEAD = struct.Struct(">IIBBBBB")  # width, height, depth, colour type, and three that are 0 here
_RGB = 2


class Broken(ValueError):
    """Not a picture, or not as it was made: a checksum is wrong, the end is missing."""


class Unsupported(ValueError):
    """A picture, of a kind that cannot be shrunk here."""


class Picture(NamedTuple):
    width: int
    height: int
    depth: int  # bits for each of red, green and blue
    pixels: bytes  # line by line, without the bytes in front


def paint(width: int, height: int, chance: Random, *, depth: int = 8) -> bytes:
    """A picture of coloured tiles."""
    size = depth // 8
    colours = [bytes(chance.randrange(256) for _ in range(3 * size)) for _ in range(16)]
    rows = [[chance.choice(colours) for _ in range(-(-width // 8))] for _ in range(-(-height // 8))]
    lines = [b"".join(tile * 8 for tile in row)[: width * 3 * size] for row in rows for _ in range(8)]
    return write(Picture(width, height, depth, b"".join(lines[:height])))


def write(picture: Picture) -> bytes:
    length = picture.width * 3 * picture.depth // 8
    lines = (picture.pixels[start : start + length] for start in range(0, len(picture.pixels), length))
    head = _HEAD.pack(picture.width, picture.height, picture.depth, _RGB, 0, 0, 0)
    body = zlib.compress(b"".join(b"\0" + line for line in lines))
    return _SIGNATURE + b"".join(_chunk(*each) for each in ((b"IHDR", head), (b"IDAT", body), (b"IEND", b"")))


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def check(content: bytes) -> tuple[int, int]:
    """Are all checksums right, and is the end there? Its width and height. The pixels are not looked at."""
    width, height, _ = _head(dict(_chunks(content)))
    return width, height


def read(content: bytes) -> Picture:
    chunks = dict(_chunks(content))
    width, height, depth = _head(chunks)
    if depth != 8:
        raise Unsupported(f"{depth} bits for a colour: pictures with 8 can be shrunk")
    lines = zlib.decompress(chunks[b"IDAT"])
    length = 1 + width * 3
    if len(lines) != height * length or any(lines[at] for at in range(0, len(lines), length)):
        raise Unsupported("the lines of the picture are filtered")
    return Picture(width, height, depth, b"".join(lines[at + 1 : at + length] for at in range(0, len(lines), length)))


def shrink(picture: Picture, by: int) -> Picture:
    """Every so many pixels one."""
    width, height = picture.width // by, picture.height // by
    line = picture.width * 3
    pixels = (picture.pixels[y * by * line + x * by * 3 :][:3] for y in range(height) for x in range(width))
    return Picture(width, height, picture.depth, b"".join(pixels))


def _chunks(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    if not content.startswith(_SIGNATURE):
        raise Broken("not a PNG")
    at, kind = len(_SIGNATURE), b""
    while kind != b"IEND":
        if at + 12 > len(content):
            raise Broken("the end of the picture is missing")
        (length,) = struct.unpack_from(">I", content, at)
        kind, data = content[at + 4 : at + 8], content[at + 8 : at + 8 + length]
        checksum = content[at + 8 + length : at + 12 + length]
        if checksum != struct.pack(">I", zlib.crc32(kind + data)):
            raise Broken(f"the checksum of the picture's part {kind.decode('latin-1')} is wrong")
        yield kind, data
        at += 12 + length


def _head(chunks: dict[bytes, bytes]) -> tuple[int, int, int]:
    try:
        width, height, depth, colours, *_ = _HEAD.unpack(chunks[b"IHDR"])
    except (KeyError, struct.error):
        raise Broken("the picture has no head") from None
    if colours != _RGB or b"IDAT" not in chunks:
        raise Unsupported("a picture of red, green and blue is wanted")
    return width, height, depth
