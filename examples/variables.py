"""Settings from environment variables, for all examples.

Settings are read while an application is imported: by `python -m`, by uvicorn, by `redrive worker`. A value that makes
no sense ends each of them with one sentence and exit code 2.
"""

from __future__ import annotations

import os
from datetime import timedelta

from redrive import duration, explain_uncaught_errors
from redrive.errors import ConfigurationError

explain_uncaught_errors()


def number(name: str, default: int, *, least: int = 1, most: int = 1_000_000_000) -> int:
    """Return a whole number from `least` to `most`."""
    text = os.environ.get(name, "").strip() or str(default)
    if not (text.isascii() and text.isdigit() and least <= int(text) <= most):
        raise ConfigurationError(f"{name} {text!r}: want a whole number from {least} to {most:,}")
    return int(text)


def seconds(name: str, default: float) -> float:
    """Return a number of seconds, which may have a fraction."""
    text = os.environ.get(name, "").strip() or str(default)
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1_000_000_000:
        raise ConfigurationError(f"{name} {text!r}: want a number of seconds above 0")
    return value


def length(name: str, default: timedelta) -> timedelta:
    """Return a duration as in `5s` or `2m`."""
    text = os.environ.get(name, "").strip()
    return duration(text, name) if text else default
