"""Lengths of time as people write them: "15s", "1m30s", "500ms", "2h", "1d".

A number without a unit is refused: whether 15 means seconds or milliseconds has cost somebody a night in every team.
"""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated, TypeAlias

from redrive.errors import ConfigurationError

_EXAMPLES = "write it like '15s', '500ms', '1m30s', '2h' or '1d'"

Duration: TypeAlias = Annotated[
    str | timedelta, "a length of time with its unit, such as '15s', '500ms', '1m30s', '2h' or '1d'"
]

_UNITS = {
    "ms": timedelta(milliseconds=1),
    "s": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
}
_MILLISECOND = timedelta(milliseconds=1)
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)\s*", re.ASCII)


def duration(value: Duration, what: str = "duration") -> timedelta:
    """The length of time that `value` says; `what` names it in the error."""
    if isinstance(value, timedelta):
        return value
    if not isinstance(value, str):
        raise ConfigurationError(f"{what} {value!r} has no unit: {_EXAMPLES}, or give a timedelta", option=what)
    text, position, total = value.strip(), 0, timedelta(0)
    while part := _PART.match(text, position):
        try:
            total += float(part[1]) * _UNITS[part[2]]
        except OverflowError:
            raise ConfigurationError(f"{what} {value!r} is longer than anything lasts", option=what) from None
        position = part.end()
    if not text or position != len(text):
        raise ConfigurationError(f"{what} {value!r} is not a length of time: {_EXAMPLES}", option=what)
    return total


def format_duration(length: timedelta) -> str:
    """As short as it can be said: "15s", "1m30s", "500ms". `duration` reads it back, to the millisecond."""
    left = milliseconds(length)
    said = ""
    for unit in ("d", "h", "m", "s", "ms"):
        count, left = divmod(left, milliseconds(_UNITS[unit]))
        said += f"{count}{unit}" if count else ""
    return said or "0s"


def format_roughly(length: timedelta) -> str:
    """For people, to whom the seconds of yesterday are nothing: "2d4h", "2h5m", "1m30s", "3s"."""
    grain = next((_UNITS[fine] for coarse, fine in (("d", "h"), ("h", "m")) if length >= _UNITS[coarse]), _UNITS["s"])
    return format_duration(length // grain * grain)


def milliseconds(length: timedelta) -> int:
    """Return a length of time in whole milliseconds."""
    return length // _MILLISECOND
