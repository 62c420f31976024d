"""The data directory: made to last, and one process's alone.

The lock is the kernel's (flock) and ends with the process, however that ends; the file only carries the holder's
pid, for the words of those who are refused. It is never deleted: a process could otherwise hold the lock of the
deleted file while another one holds that of its successor.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from redrive.errors import DirectoryInUse


def make_directory(directory: Path) -> None:
    """With all its parents, for its owner alone, and so that a power cut does not undo it. One that exists stays as it
    is: it may be somebody else's.
    """
    missing = [path for path in (directory, *directory.parents) if not path.exists()]
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    for path in missing:
        sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """The names in it, not what they stand for, are on disk after this."""
    file = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


class DirectoryLock:
    def __init__(self, directory: Path) -> None:
        self._path = directory / "broker.lock"
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, b"%d\n" % os.getpid(), 0)
        except BlockingIOError:
            pid = self._holder()
            self.release()
            raise DirectoryInUse(directory, pid) from None
        except BaseException:
            self.release()
            raise

    def _holder(self) -> int | None:
        text = os.pread(self._file, 32, 0).strip()
        return int(text) if text.isdigit() else None  # it may have the lock and not have signed yet

    def release(self) -> None:
        """A second release is harmless."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __repr__(self) -> str:
        return f"<DirectoryLock {self._path} {'HELD' if self._file >= 0 else 'RELEASED'}>"
