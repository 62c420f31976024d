"""The job of the scenarios about whole workers: a full queue, and a handler for each of its messages.

A framework's worker cannot be told to get ready and wait: it connects, declares and consumes in one go. So its messages
are published first, in its own format and by its own producer, and the clock starts when the worker has handled the
warm-up and runs until it has handled `count` more.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from bench.broker import wait_until_idle
from bench.contract import Stopwatch
from bench.messages import document


class HandleJob(msgspec.Struct, frozen=True):
    url: str
    broker: int  # its process
    queue: str
    size: int
    count: int
    warm_up: int
    pause: float  # seconds that a handler waits for something
    prefetch: int
    handlers: int  # how many run at a time, where they are coroutines
    threads: int  # how many run at a time, where they are plain functions

    @property
    def published(self) -> int:
        return self.warm_up + self.count

    def document(self) -> dict[str, Any]:
        return document(self.size)

    async def publish_all(self, publish: Callable[[dict[str, Any]], Awaitable[object]]) -> None:
        """For producers that wait for each confirm: many at a time."""
        order, turns = self.document(), iter(range(self.published))

        async def publisher() -> None:
            for _ in turns:
                await publish(order)

        await asyncio.gather(*(publisher() for _ in range(_PUBLISHERS)))
        await asyncio.to_thread(self.let_the_broker_rest)

    def let_the_broker_rest(self) -> None:
        """To be called when everything was published: the broker is still busy with it."""
        wait_until_idle(self.broker)


_PUBLISHERS = 100


class Tally:
    """Handlers tell it, from whatever thread, that they have handled a message."""

    def __init__(self, job: HandleJob, watch: Stopwatch, done: Callable[[], object]) -> None:
        """`done` is called when the last message was handled."""
        self._first, self._last = job.warm_up, job.published
        self._watch = watch
        self._done = done
        self._numbers = itertools.count(1)  # whose next() no other thread can interrupt

    def handled(self) -> None:
        number = next(self._numbers)
        if number == self._first:
            self._watch.__enter__()
        elif number == self._last:
            self._watch.__exit__()
            self._done()
