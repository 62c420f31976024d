"""The journal that keeps nothing: for tests, and for brokers whose messages may die with them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from redrive.broker.storage.journal import Definition, Recovered, StoredMessage


class MemoryJournal:
    pending = 0

    def __init__(self) -> None:
        self._callbacks: list[Callable[[], None]] = []

    def recover(self) -> Recovered:
        return Recovered([], iter(()), {}, 1)

    def store(self, message: StoredMessage) -> None: ...

    def forget(self, id: int) -> None: ...

    def forget_queue(self, queue: int) -> None: ...

    def note_return(self, id: int, delivery_count: int) -> None: ...

    def note_delivery(self, queue: int, position: int) -> None: ...

    def define(self, definition: Definition) -> None: ...

    def undefine(self, id: int) -> None: ...

    def after_commit(self, callback: Callable[[], None]) -> None:
        """All callbacks of one turn of the loop are called in one go, so that their confirms can be merged."""
        if not self._callbacks:
            asyncio.get_running_loop().call_soon(self._call_back)
        self._callbacks.append(callback)

    async def close(self) -> None:
        self._call_back()

    def _call_back(self) -> None:
        callbacks, self._callbacks = self._callbacks, []
        call_each(callbacks)

    def __repr__(self) -> str:
        return f"<MemoryJournal callbacks={len(self._callbacks)}>"


def call_each(callbacks: Iterable[Callable[[], None]]) -> None:
    """Call the callbacks of a commit in order. An exception is reported to the event loop, and the rest are called."""
    for callback in callbacks:
        try:
            callback()
        except Exception as error:
            text = f"a callback of after_commit failed: {callback!r}"
            asyncio.get_running_loop().call_exception_handler({"message": text, "exception": error})
