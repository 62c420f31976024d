"""Names as they can be shown: nothing invisible, nothing endless, and how much room they take.

A name on a broker is up to 255 bytes of anything. What cannot be printed is written as Python writes it, so that names
that differ look different, and what is too long loses its middle: beginnings and ends tell names apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, unique
from itertools import accumulate
from unicodedata import east_asian_width, normalize

LONGEST = 44  # cells

_ELLIPSIS = "…"
_SPACE = r"\x20"
_WIDE = 5 / 3  # an ideograph is 1 em wide, a letter of a monospaced font 0.6


def visible(name: str) -> str:
    """The name with everything that a picture could swallow made visible."""
    if not name:
        return "(no name)"
    shown = "".join(_sign(char) for char in normalize("NFC", name))
    inner = shown.strip(" ")
    before = len(shown) - len(shown.lstrip(" "))
    return _SPACE * before + inner + _SPACE * (len(shown) - before - len(inner))


def shortened(name: str, most: int = LONGEST) -> str:
    """What is shown of a name: all of it, or both its ends."""
    if len(name) > 4 * most:  # of more nothing is seen but the ends, and a letter with its accents is one
        name = name[: 2 * most] + name[-2 * most :]
    text = visible(name)
    if cells(text) <= most:
        return text
    room = (most - 1) / 2
    return _beginning(text, room) + _ELLIPSIS + _beginning(text[::-1], room)[::-1]


def cells(text: str) -> float:
    """How many letters of a monospaced font take the same room."""
    return float(len(text)) if text.isascii() else sum(_cells_of(char) for char in text)


def is_measurable(text: str) -> bool:
    """Does a monospaced font have all of it? What other fonts make of the rest, nobody knows beforehand."""
    return all(ord(char) < 0x250 or char == _ELLIPSIS for char in text)


def _sign(char: str) -> str:
    if char.isprintable() and char != "\\":
        return char
    return char.encode("unicode_escape").decode()


def _beginning(text: str, room: float) -> str:
    used = accumulate(map(_cells_of, text))
    return "".join(char for char, so_far in zip(text, used, strict=True) if so_far <= room)


def _cells_of(char: str) -> float:
    return _WIDE if east_asian_width(char) in "WF" else 1.0


# Sizes --------------------------------------------------------------------------------------------

# Widths in em of the letters of DejaVu Sans, which is wider than what browsers usually choose.
_NARROW = dict.fromkeys("ijlIJ|!.,:;' ()[]", 0.4) | dict.fromkeys("frt-/", 0.42)
_BROAD = dict.fromkeys("mwMW@%", 1.0)
_CAPITAL, _USUAL = 0.79, 0.64


@dataclass(frozen=True, slots=True)
class Letters:
    size: float
    weight: int
    monospaced: bool

    @property
    def line_height(self) -> float:
        return self.size + 3

    def width(self, text: str) -> float:
        if self.monospaced or not text.isascii():
            return cells(text) * self.size * 0.615
        return sum(map(_breadth, text)) * self.size


def _breadth(char: str) -> float:
    return _NARROW.get(char) or _BROAD.get(char) or (_CAPITAL if char.isupper() else _USUAL)


@unique
class Style(Enum):
    """What is written, each in its own letters."""

    NAME = Letters(13, 600, True)
    CAPTION = Letters(11, 400, False)
    ENTRANCE = Letters(10, 400, True)
    REASON = Letters(11, 500, False)
    KEY = Letters(10.5, 400, True)
    HEADING = Letters(11, 600, False)

    @property
    def size(self) -> float:
        return self.value.size

    @property
    def line_height(self) -> float:
        return self.value.line_height

    def width(self, text: str) -> float:
        return self.value.width(text)
