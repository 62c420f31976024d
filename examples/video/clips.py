"""Video without a codec: YUV4MPEG2, the plainest format that ffmpeg reads, written and read in a few lines.

Enough to make videos to work on where there is no camera, and to make them smaller where there is no ffmpeg.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_HEADER = re.compile(rb"YUV4MPEG2 W(\d{1,5}) H(\d{1,5}) F\d+:\d+ [^\n]*C420[^\n]*\n")
_FRAME = b"FRAME\n"


class NotAVideo(ValueError):
    """Nothing that can be shown, now or later."""


@dataclass(frozen=True, slots=True)
class Frame:
    """Brightness at full size, two colours at half of it."""

    width: int
    height: int
    planes: tuple[bytes, bytes, bytes]

    def halved(self) -> Frame:
        sizes = ((self.width, self.height), *((self.width // 2, self.height // 2),) * 2)
        planes = [_every_other(plane, *size) for plane, size in zip(self.planes, sizes, strict=True)]
        return Frame(self.width // 2, self.height // 2, (planes[0], planes[1], planes[2]))


def _every_other(plane: bytes, width: int, height: int) -> bytes:
    """The mean of each four points."""
    rows = [plane[at : at + width] for at in range(0, width * height, width)]
    return bytes(
        (above[x] + above[x + 1] + below[x] + below[x + 1]) // 4
        for above, below in zip(rows[::2], rows[1::2], strict=False)
        for x in range(0, width - 1, 2)
    )


def film(seconds: float = 1.0, width: int = 160, height: int = 120) -> bytes:
    """A bright bar that moves through the dusk."""
    frames = []
    for number in range(round(seconds * 25)):
        bar = number * 4 % width
        row = bytes(235 if bar <= x < bar + 12 else 40 + x * 80 // width for x in range(width))
        frames.append(
            Frame(width, height, (row * height, bytes((110,)) * (width * height // 4), b"\x96" * (width * height // 4)))
        )
    return written(frames)


def written(frames: list[Frame]) -> bytes:
    head = f"YUV4MPEG2 W{frames[0].width} H{frames[0].height} F25:1 Ip A1:1 C420jpeg\n".encode()
    return head + b"".join(_FRAME + b"".join(frame.planes) for frame in frames)


def read(content: bytes) -> list[Frame]:
    found = _HEADER.match(content)
    if found is None:
        raise NotAVideo("it does not begin like a video")
    width, height = int(found[1]), int(found[2])
    if width % 4 or height % 4 or not width * height:
        raise NotAVideo(f"{width} by {height} points cannot be halved")
    frames: list[Frame] = []
    at, size = found.end(), width * height
    while at < len(content):
        begin, end = at + len(_FRAME), at + len(_FRAME) + size * 3 // 2
        if content[at:begin] != _FRAME or end > len(content):
            raise NotAVideo(f"it ends in the middle of frame {len(frames) + 1}")
        planes = content[begin : begin + size], content[begin + size : end - size // 4], content[end - size // 4 : end]
        frames.append(Frame(width, height, planes))
        at = end
    if not frames:
        raise NotAVideo("it has no pictures")
    return frames
