"""What was seen in a queue, kept for a while: whoever comes next sees the same, and the queue is left in peace.

A look takes every message of a queue in hand, and on some brokers it counts. So a page that is opened twice, or by two
hundred people, looks once; nothing looks again by itself; and everything that is shown says when it was seen. Who wants
to see it as it is now says so (`fresh`).

While an operation works on the queue nobody can look. Then what was seen before is shown, if there is any.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, TypeVar

from redrive.errors import OperationConflict
from redrive.worker.clock import Clock

T = TypeVar("T")
Key = tuple[str, Hashable]

KEPT = 30.0  # seconds
_MOST = 200  # that are kept at all


@dataclass(frozen=True, slots=True)
class Cached(Generic[T]):
    value: T
    at: datetime
    why_old: str = ""  # why it could not be looked at again


class QueryCache:
    def __init__(self, clock: Clock, *, kept: float = KEPT) -> None:
        self._clock = clock
        self._kept = kept
        self._seen: OrderedDict[Key, tuple[float, Cached[Any]]] = OrderedDict()
        self._looks: dict[Key, asyncio.Task[Any]] = {}

    async def get(
        self,
        queue: str,
        what: Hashable,
        look: Callable[[], Awaitable[T]],
        *,
        fresh: bool = False,
        kept: float | None = None,
    ) -> Cached[T]:
        """What `look` finds, or found not long ago. `kept`: for how many seconds, instead of the usual."""
        key = queue, what
        last_seen = self._seen.get(key)
        if (
            last_seen is not None
            and not fresh
            and self._clock.monotonic() - last_seen[0] < (self._kept if kept is None else kept)
        ):
            self._seen.move_to_end(key)
            return last_seen[1]
        try:
            seen: Cached[T] = await self._share_query(key, look)
        except OperationConflict as error:
            if last_seen is None:
                raise
            return Cached(last_seen[1].value, last_seen[1].at, str(error))
        return seen

    def last_seen(self, queue: str, what: Hashable) -> Cached[Any] | None:
        """What was seen last, however long ago that is: for pages that ask again by themselves. Nobody looks."""
        last_seen = self._seen.get((queue, what))
        return last_seen[1] if last_seen is not None else None

    async def _share_query(self, key: Key, look: Callable[[], Awaitable[T]]) -> Cached[T]:
        """One look for all who ask at the same time. It goes on when the first of them leaves."""
        task = self._looks.get(key)
        if task is None:
            task = self._looks[key] = asyncio.create_task(self._look(key, look), name=f"redrive-look-{key[0]}")
            task.add_done_callback(_retrieve_exception)
        return await asyncio.shield(task)

    async def _look(self, key: Key, look: Callable[[], Awaitable[T]]) -> Cached[T]:
        try:
            seen = Cached(await look(), self._clock.now())
        finally:
            del self._looks[key]
        self._seen[key] = self._clock.monotonic(), seen
        self._seen.move_to_end(key)
        while len(self._seen) > _MOST:
            self._seen.popitem(last=False)
        return seen

    def invalidate(self, queue: str) -> None:
        """The queue has changed: the next who asks looks again. What was seen stays, for when that is not possible."""
        for key, (_, seen) in self._seen.items():
            if key[0] == queue:
                self._seen[key] = float("-inf"), seen

    def __repr__(self) -> str:
        return f"<Snapshots {len(self._seen)} kept, {len(self._looks)} looks under way>"


def _retrieve_exception(task: asyncio.Task[Any]) -> None:
    """Retrieve the exception: no caller may be left to do it."""
    if not task.cancelled():
        task.exception()
