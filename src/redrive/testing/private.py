"""What all private servers have in common: they live and end at the word of whoever made them."""

import shutil
import signal
from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from redrive.testing.processes import ServerProcess


class Throwaway(ABC):
    """As a context manager it is started on entry and thrown away, data and all, on exit."""

    @abstractmethod
    def start(self) -> None:
        """Return when it serves. Data of an earlier life are still there."""

    @abstractmethod
    def discard(self) -> None:
        """End it without ceremony and delete all that it stored."""

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.discard()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.discard()


class PrivateServer(Throwaway):
    """One process, and a directory of its own."""

    directory: Path
    _process: ServerProcess | None = None
    _ended_by: ClassVar[signal.Signals] = signal.SIGTERM  # in order

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.running

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None and self._process.running else None

    @property
    def state(self) -> str:
        return f"RUNNING pid={self.pid}" if self.running else "DOWN"

    def stop(self) -> None:
        """Shut down in order, as an operator does it."""
        if self._process is not None:
            self._process.stop(self._ended_by)
            self._process = None

    def kill(self) -> None:
        """`kill -9`: what a power cut does to it, except that the kernel keeps what was written."""
        if self._process is not None:
            self._process.kill()
            self._process = None

    def restart(self) -> None:
        self.stop()
        self.start()

    def discard(self) -> None:
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)
