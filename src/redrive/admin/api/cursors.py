"""Where the next page begins, as a text that says nothing to whoever holds it and is only good for the same list."""

from __future__ import annotations

import base64
import binascii

from redrive.errors import ConfigurationError

_NUMBERS = frozenset(("messages", "items", "audit"))  # lists whose places are numbers


def write_cursor(what: str, place: object) -> str:
    return base64.urlsafe_b64encode(f"{what}:{place}".encode()).decode().rstrip("=")


def read_cursor(what: str, cursor: str) -> str:
    try:
        text = base64.urlsafe_b64decode(cursor.encode() + b"=" * (-len(cursor) % 4)).decode()
    except (binascii.Error, ValueError):
        text = ""
    name, colon, place = text.partition(":")
    is_place = 0 < len(place) < 19 and place.isdecimal() and place.isascii() if what in _NUMBERS else bool(place)
    if name != what or not colon or not is_place:
        raise ConfigurationError(f"cursor {cursor!r}: want the `next_cursor` of the page before")
    return place
