"""The data directory of the embedded broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from redrive.errors.base import RedriveError

if TYPE_CHECKING:
    from pathlib import Path


class StorageError(RedriveError):
    """The data directory cannot be used. Nothing in it was overwritten.

    Whose: the folder's.

    Do: see its kinds; the message names the path. Nothing in it was overwritten.
    """

    def __init__(self, path: Path, text: str) -> None:
        super().__init__(f"{path}: {text}")
        self.path = path


class DirectoryInUse(StorageError):
    """Two brokers on one data directory would each undo what the other confirmed: the second is refused.

    Do: stop the other process, connect to it as a client (its address is in the folder), or choose another folder
    (`--data`, REDRIVE_DATA).
    """

    def __init__(self, path: Path, pid: int | None) -> None:
        holder = f"process {pid}" if pid is not None else "another program"
        super().__init__(path, f"is in use by {holder}. Stop it, connect to it, or choose another data directory")
        self.pid = pid


class NotWritable(StorageError):
    """No permission to write there, or a read-only file system.

    Do: give this user the right to write there, or choose another folder (`--data`, REDRIVE_DATA); `--memory` keeps
    nothing.
    """

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(path, f"cannot be written ({why}). Choose another data directory, or use --memory")


class ForeignFile(StorageError):
    """A file that no Redrive broker made is in the place of the broker's own.

    Do: choose another folder; the file is left as it is.
    """


class NewerFile(StorageError):
    """A newer Redrive wrote the file: this one would not understand all of it.

    Do: install that version of Redrive or a later one.
    """

    def __init__(self, path: Path, version: int, known: int) -> None:
        text = f"was written by a newer Redrive (format {version}, this one knows {known}): install that one or a later"
        super().__init__(path, text)
        self.version = version


class CorruptFile(StorageError):
    """The file is damaged.

    Why: the disk, a copy that was made while the broker ran, or a file that somebody edited.

    Do: restore a backup, or move the file away to start empty. It was left as it is.
    """

    def __init__(self, path: Path, why: str) -> None:
        text = f"is damaged ({why}). It was left as it is: restore it from a backup, or move it away to start empty"
        super().__init__(path, text)


class StorageFailed(StorageError):
    """A commit did not reach the disk. What was confirmed before is safe; nothing is confirmed any more.

    Whose: the disk's.

    Do: fix the disk, then start the broker again. Publishers saw no confirm for what was not stored.
    """

    def __init__(self, path: Path, why: str, remedy: str = "restart the broker") -> None:
        super().__init__(path, f"{why}. What was confirmed is safe, and nothing is confirmed any more: {remedy}")


class DiskFull(StorageFailed):
    """There is no room. What was confirmed before is there again after a restart with some room.

    Do: make room, then start the broker again.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, "the disk is full", "make room, then restart the broker")
