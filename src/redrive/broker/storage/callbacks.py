"""Calling those who waited for a commit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable


def call_each(callbacks: Iterable[Callable[[], None]]) -> None:
    """In order. One that fails is reported to the loop, as the loop would do itself, and the rest are called."""
    for callback in callbacks:
        try:
            callback()
        except Exception as error:
            text = f"a callback of after_commit failed: {callback!r}"
            asyncio.get_running_loop().call_exception_handler({"message": text, "exception": error})
