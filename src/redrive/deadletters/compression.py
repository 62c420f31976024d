"""Compressed bodies, for reading: what `content_encoding` names is undone, within bounds. The message stays as it is.

`gzip` and `deflate` are known (`deflate` with or without the header of zlib: senders do both). The names of charsets,
which some clients write there (Celery: `utf-8`, `binary`), change nothing. A body in any other encoding stays as it is,
and `problem` names the encoding.

Bodies are hostile, and a thousand bytes can become a million. No more is decompressed than the caller reads, and never
more than `MOST_GROWTH` times the body. Of a stream of several members the first one is read.
"""

from __future__ import annotations

import zlib
from typing import NamedTuple

MOST_READ = 4 * 1024 * 1024  # bytes of a body that are looked at
MOST_GROWTH = 100  # times the size of the body
_ALWAYS = 64 * 1024  # bytes that even a tiny body may become

_GZIP, _ZLIB, _RAW = 16 + zlib.MAX_WBITS, zlib.MAX_WBITS, -zlib.MAX_WBITS
_FORMATS = {"gzip": (_GZIP,), "x-gzip": (_GZIP,), "deflate": (_ZLIB, _RAW)}
_PLAIN = frozenset(
    (
        *("", "identity", "binary", "7bit", "8bit", "utf-8", "utf8", "us-ascii", "ascii", "utf-16", "utf-16le"),
        *("utf-16be", "iso-8859-1", "latin-1", "latin1", "windows-1252", "cp1252"),
    )
)


class Plain(NamedTuple):
    """A body to be read."""

    body: bytes
    truncated: bool = False  # there is more of it
    problem: str = ""  # it could not be decompressed: why


def decompress(body: bytes, content_encoding: str | None, most: int) -> Plain:
    """Return about the first `most` bytes that a compressed body stands for; any other body as it is."""
    name = (content_encoding or "").strip().lower()
    if name in _PLAIN:
        return Plain(body)
    if name not in _FORMATS:
        return Plain(body, problem=f"its content encoding {name[:40]!r} is not known, so its bytes are shown")
    bound = min(most, max(_ALWAYS, MOST_GROWTH * len(body)))
    for format in _FORMATS[name]:
        stream = zlib.decompressobj(format)
        try:
            plain = stream.decompress(body, bound)
        except zlib.error:
            continue
        return Plain(plain, truncated=not stream.eof or bool(stream.unused_data))
    return Plain(body, problem=f"called {name}, and it is not, so its bytes are shown")


def compress(plain: bytes, content_encoding: str | None) -> bytes:
    """Return the body that `decompress` reads as these bytes."""
    name = (content_encoding or "").strip().lower()
    stream = zlib.compressobj(wbits=_FORMATS[name][0])
    return stream.compress(plain) + stream.flush()
