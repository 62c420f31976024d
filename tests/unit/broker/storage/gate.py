"""A gate between the journal and its disk."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from redrive.broker.storage.datafile import Batch, DataFile


class Gate:
    """Keeps every batch that came, holds them up while it is shut, and can be told to fail."""

    def __init__(self, write: Callable[[DataFile, Batch], None]) -> None:
        self.batches: list[Batch] = []
        self.failure: Exception | None = None
        self._write = write
        self._open = threading.Event()
        self._open.set()
        self._arrivals = threading.Semaphore(0)

    def write(self, file: DataFile, batch: Batch) -> None:
        """Called by the thread that writes."""
        self.batches.append(batch)
        self._arrivals.release()
        self._open.wait()
        if self.failure is not None:
            raise self.failure
        self._write(file, batch)

    def as_method(self) -> Callable[[DataFile, Batch], None]:
        def write(file: DataFile, batch: Batch) -> None:
            self.write(file, batch)

        return write

    def shut(self) -> None:
        self._open.clear()

    def open(self) -> None:
        self._open.set()

    async def arrival(self) -> Batch:
        """Wait for the next batch to stand before the gate."""
        assert await asyncio.to_thread(self._arrivals.acquire, timeout=20)
        return self.batches[-1]
