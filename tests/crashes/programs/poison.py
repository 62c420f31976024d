"""An application with messages that kill their worker, and neighbours that do not.

Every call writes `pid begin number` and `pid done number` into a journal, each line in one write.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from redrive import App, Batch, Retry

CRASH_LIMIT = 3
QUEUE, OTHER_QUEUE = "orders", "invoices"


def make_app(url: str, queue_type: str, journal: Path, poisons: Iterable[int], *, shape: str) -> App:
    """`shape`: a handler gets one message ("single") or a batch ("batch"), or prepares messages for one ("prepare")."""
    app = App("poisoned", broker=url, queue_type=queue_type)
    file = os.open(journal, os.O_CREAT | os.O_APPEND | os.O_WRONLY)

    async def work(queue: str, numbers: list[int]) -> None:
        for number in numbers:
            os.write(file, f"{os.getpid()} begin {queue} {number}\n".encode())
        await asyncio.sleep(0.02)
        if queue == QUEUE and set(numbers) & set(poisons):
            os.kill(os.getpid(), signal.SIGKILL)
        for number in numbers:
            os.write(file, f"{os.getpid()} done {queue} {number}\n".encode())

    options: dict[str, Any] = {
        "retry": Retry(attempts=3, delay="20ms"), "crash_limit": CRASH_LIMIT, "crash_grace": "300ms", "prefetch": 20
    }  # fmt: skip

    async def handle(number: int) -> None:
        await work(QUEUE, [number])

    async def handle_batch(batch: Batch[int]) -> None:
        await work(QUEUE, batch.bodies)

    async def handle_other(number: int) -> None:
        await work(OTHER_QUEUE, [number])

    async def accept_batch(batch: Batch[None]) -> None: ...

    match shape:
        case "single":
            app.consumer(QUEUE, concurrency=5, **options)(handle)
        case "batch":
            app.batch_consumer(QUEUE, size=5, max_wait="10ms", **options)(handle_batch)
        case "prepare":
            app.batch_consumer(QUEUE, size=5, max_wait="10ms", prepare=handle, processors=5, **options)(accept_batch)
    app.consumer(OTHER_QUEUE, concurrency=2, **options)(handle_other)
    return app


def live(url: str, queue_type: str, journal: Path, poisons: tuple[int, ...], shape: str) -> None:
    """Work until SIGTERM."""
    asyncio.run(_live(make_app(url, queue_type, journal, poisons, shape=shape)))


async def _live(app: App) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await app.run_worker(stop=stop)
