"""How things look: names made printable and short, the widths of texts, colours on light and on dark paper.

A name on a broker is up to 255 bytes of anything. Unprintable characters are written as Python writes them, so that
names that differ look different; a name that is too long loses its middle: beginnings and ends tell names apart.
"""

from __future__ import annotations

import re
from enum import Enum, unique
from itertools import accumulate
from unicodedata import east_asian_width, normalize

LONGEST = 44  # cells
_WIDE = 5 / 3  # an ideograph is 1 em wide, a letter of a monospaced font 0.6


def visible(name: str) -> str:
    """Return the name with every character that a picture would hide written as an escape."""
    shown = "".join(map(_visible_char, normalize("NFC", name)))
    return re.sub("^ +| +$", lambda blanks: r"\x20" * len(blanks[0]), shown) or "(no name)"


def shorten(name: str, most: int = LONGEST) -> str:
    """Return the visible name, or both its ends if it needs more than `most` cells."""
    if len(name) > 4 * most:  # nothing between the ends is shown; a letter with its accents counts as one
        name = name[: 2 * most] + name[-2 * most :]
    text = visible(name)
    if cells(text) <= most:
        return text
    room = (most - 1) / 2
    return _beginning(text, room) + "…" + _beginning(text[::-1], room)[::-1]


def cells(text: str) -> float:
    """Return how many letters of a monospaced font are as wide as this text."""
    return float(len(text)) if text.isascii() else sum(map(_cells_of, text))


def is_measurable(text: str) -> bool:
    """Does a monospaced font have every character? The width of the others depends on the reader's fonts."""
    return all(ord(char) < 0x250 or char == "…" for char in text)


def _visible_char(char: str) -> str:
    return char if char.isprintable() and char != "\\" else char.encode("unicode_escape").decode()


def _beginning(text: str, room: float) -> str:
    used = accumulate(map(_cells_of, text))
    return "".join(char for char, so_far in zip(text, used, strict=True) if so_far <= room)


def _cells_of(char: str) -> float:
    return _WIDE if east_asian_width(char) in "WF" else 1.0


# Fonts --------------------------------------------------------------------------------------------------

# Widths in em of the letters of DejaVu Sans, which is wider than what browsers usually choose.
_WIDTHS = dict.fromkeys("ijlIJ|!.,:;' ()[]", 0.4) | dict.fromkeys("frt-/", 0.42) | dict.fromkeys("mwMW@%", 1.0)


@unique
class Font(Enum):
    """The fonts of a picture: size in pixels, weight, monospaced or not."""

    NAME = (13.0, 600, True)
    CAPTION = (11.0, 400, False)
    ENTRANCE = (10.0, 400, True)
    REASON = (11.0, 500, False)
    KEY = (10.5, 400, True)
    HEADING = (11.0, 600, False)

    def __init__(self, size: float, weight: int, monospaced: bool) -> None:
        self.size = size
        self.weight = weight
        self.monospaced = monospaced
        self.line_height = size + 3

    def width(self, text: str) -> float:
        if self.monospaced or not text.isascii():
            return cells(text) * self.size * 0.615
        return sum(_WIDTHS.get(char) or (0.79 if char.isupper() else 0.64) for char in text) * self.size


# Colours, each on light and on dark paper; by `Tone` and `NodeKind` --------------------------------------

PAPER = ("#ffffff", "#0d1117")
INK = ("#1f2328", "#e6edf3")
MUTED = ("#59636e", "#9aa4af")
GROUP_FILL = ("#f6f8fa", "#151b23")
GROUP_BORDER = ("#d5dbe1", "#303843")
TONES = {"flow": ("#6b7683", "#8b96a3"), "retry": ("#9a6200", "#e0a93b"), "dead": ("#b3261e", "#ff7b72")}
BOXES = {  # fill and border
    "exchange": (("#eaf1fd", "#3b6fd1"), ("#13233d", "#5b8def")),
    "delays": (("#f2ecfb", "#7a55c7"), ("#251c3a", "#a582ee")),
    "main": (("#ffffff", "#2f855a"), ("#0f1a17", "#4cb782")),
    "plain": (("#ffffff", "#6b7683"), ("#0d1117", "#8b96a3")),
    "waiting": (("#fff5dc", "#c08a1e"), ("#2b2210", "#d29922")),
    "dead": (("#fdecea", "#c9413a"), ("#33181a", "#f0645c")),
    "missing": (("#ffffff", "#c9413a"), ("#0d1117", "#f0645c")),
}
