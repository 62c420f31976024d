"""Publish everything, each number again until it is confirmed: what a program does whose orders must not be lost."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable

from chaos.work import Job, Turns

AT_A_TIME = 20
THREADS = 8
_PATIENCE = 30.0  # seconds for one publish; then nobody knows, and it is sent again
_PAUSE = 0.2  # seconds after an error

log = logging.getLogger("chaos")


async def publish_all(job: Job, publish: Callable[[int], Awaitable[object]]) -> None:
    turns = Turns(job)

    async def some() -> None:
        for number in turns:
            while (seconds := turns.wait()) > 0:  # noqa: ASYNC110
                await asyncio.sleep(seconds)
            while not await _published(number):  # noqa: ASYNC110
                await asyncio.sleep(_PAUSE)
            turns.confirmed(number)

    async def _published(number: int) -> bool:
        try:
            await asyncio.wait_for(publish(number), _PATIENCE)
        except Exception as error:
            log.warning("%s was not confirmed: %r", number, error)
            return False
        return True

    await asyncio.gather(*(some() for _ in range(AT_A_TIME)))


def publish_all_in_threads(job: Job, publish: Callable[[int], object]) -> None:
    turns, lock = Turns(job), threading.Lock()

    def some() -> None:
        while True:
            with lock:
                number = next(turns, None)
            if number is None:
                return
            while (seconds := turns.wait()) > 0:
                time.sleep(seconds)
            while not _published(number):
                time.sleep(_PAUSE)
            turns.confirmed(number)

    def _published(number: int) -> bool:
        try:
            publish(number)
        except Exception as error:
            log.warning("%s was not confirmed: %r", number, error)
            return False
        return True

    threads = [threading.Thread(target=some) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
