"""Periodic jobs next to the work: delete what has expired."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta

from redrive.worker.clock import Clock, wait

log = logging.getLogger("redrive.worker")

EVERY = timedelta(hours=1)


@asynccontextmanager
async def run_periodically(
    chore: Callable[[], int], what: str, clock: Clock, *, every: timedelta = EVERY
) -> AsyncIterator[None]:
    """Do a chore in a thread, at once and then every so often, for as long as this lasts. It gives how much it did.

    One that fails is no reason to stop working: it is tried again when it is due again.
    """
    doing = asyncio.create_task(_loop(chore, what, clock, every), name=f"redrive-tidying-{what}")
    try:
        yield
    finally:
        doing.cancel()
        await asyncio.gather(doing, return_exceptions=True)


async def _loop(chore: Callable[[], int], what: str, clock: Clock, every: timedelta) -> None:
    never = asyncio.Event()
    while True:
        due = clock.monotonic() + every.total_seconds()
        try:
            if count := await asyncio.to_thread(chore):
                log.info("%s: %d deleted", what, count)
        except Exception as error:
            log.warning("%s: not deleted this time: %s", what, error)
        await wait(never, clock, due - clock.monotonic())
