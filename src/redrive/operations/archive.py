"""The file that takes what is discarded, and the originals of what is edited, before they leave their queue.

    archive = Archive(archive_path(folder, queue, operation.id))
    archive.write([encode_dead_letter(delivery, letter), …])      # and only then: ack
    archive.close()

`write` returns when the lines are on the disk, not before: one fsync for each batch. A crash before that leaves
messages that were not acked and so are in their queue still; a crash after it leaves them in the file, and perhaps in
the queue, too. They are never in neither. Done again, such an operation writes them a second time, with the same id.

A crash can leave half a line at the end. Nothing was acked for it, so it is worth nothing to Redrive; but it is not for
us to throw away: whoever opens the file next moves it to `<name>.torn` beside it and says so. A write that fails (the
disk is full) is taken back. When even that fails, or an fsync does, nobody knows what is on the disk, and the archive
takes nothing more.

One writer at a time: one process, by a lock that ends with it, and in there one thread after the other. What one takes
back must not be what another has just written. Only the owner may read the file: it holds what messages hold. A file
that was deleted meanwhile still takes what is written, and keeps none of it, so that is looked for, too.

Nothing here is asynchronous: call it in a thread. In which order threads get their turn is nobody's promise; who wants
the lines of two calls in an order waits for the first.
"""

from __future__ import annotations

import errno
import fcntl
import gzip
import logging
import os
import stat
import zlib
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from threading import Lock
from typing import IO, Self
from urllib.parse import quote

from redrive.errors import ArchiveError, LetterError
from redrive.operations.export_format import Exported, decode_dead_letter

log = logging.getLogger("redrive.worker")

LONGEST_LINE = 1 << 30  # RabbitMQ takes messages of up to 512 MiB; base64 makes them a third larger

_BLOCK = 64 * 1024
_LONGEST_QUEUE, _LONGEST_OPERATION = 120, 60  # characters in a file's name, of which there may be 255
_DIGEST = 12


@dataclass(frozen=True, slots=True)
class Torn:
    """Half a line that a crash left, and where it is now."""

    path: Path
    size: int


# Names ------------------------------------------------------------------------------------------------


def archive_path(folder: Path, queue: str, operation_id: str) -> Path:
    """One file for each queue and operation, whatever characters their names are made of."""
    return folder / f"{_safe(queue, _LONGEST_QUEUE)}.{_safe(operation_id, _LONGEST_OPERATION)}.ndjson"


def _safe(name: str, most: int) -> str:
    """Percent-encoded. What is too long ends in ~ and a digest; no other name has a ~."""
    quoted = quote(name, safe="", errors="surrogateescape").replace("~", "%7E")
    if quoted.startswith("."):
        quoted = f"%2E{quoted[1:]}"
    if len(quoted) <= most:
        return quoted
    digest = sha256(name.encode("utf-8", "surrogateescape"), usedforsecurity=False).hexdigest()[:_DIGEST]
    cut = quoted[: most - _DIGEST - 1]
    percent = cut.rfind("%", len(cut) - 2)
    return f"{cut if percent < 0 else cut[:percent]}~{digest}"


# Writing ----------------------------------------------------------------------------------------------


class Archive:
    """`<Archive /var/lib/redrive/q.dlq.op_1.ndjson 120 lines>`; lines are those that were written here."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines = 0
        self.torn: Torn | None = None  # what was found at the end when it was opened
        self._broken = ""
        self._turn = Lock()
        self._fd = _open(path)
        try:
            _lock(self._fd, path)
            self.torn = _set_aside(self._fd, path)
            self._size = os.fstat(self._fd).st_size
        except BaseException:
            os.close(self._fd)
            raise
        if self.torn is not None:
            log.warning(
                "archive %s ended in half a line of %d bytes: a crash left it, and it is in %s now",
                path,
                self.torn.size,
                self.torn.path,
            )

    @property
    def closed(self) -> bool:
        return self._fd < 0

    def write(self, lines: Iterable[bytes]) -> None:
        """All of them, on the disk, or ArchiveError and none of them. After it, and only then, ack."""
        batch = list(lines)
        for line in batch:
            if not line or line.find(b"\n") != len(line) - 1:
                raise ValueError(f"a line has one line break, at its end: {line[:40]!r}")
        with self._turn:
            if self.closed or self._broken:
                raise ArchiveError(f"archive {self.path} takes nothing more: {self._broken or 'it is closed'}")
            if batch:
                self._write(batch)

    def _write(self, batch: list[bytes]) -> None:
        try:
            _write_all(self._fd, b"".join(batch))
        except OSError as error:
            self._take_back()
            raise ArchiveError(f"archive {self.path} cannot be written: {error.strerror}") from error
        self._sync()
        self._size += sum(map(len, batch))
        self.lines += len(batch)

    def _take_back(self) -> None:
        try:
            os.ftruncate(self._fd, self._size)
        except OSError as error:
            self._broken = f"a part of a batch is in it that could not be taken back ({error.strerror})"

    def _sync(self) -> None:
        try:
            os.fsync(self._fd)
            if os.fstat(self._fd).st_nlink == 0:
                self._broken = "it was deleted"
        except OSError as error:  # what the kernel could not write it may have forgotten: a second fsync proves nothing
            self._broken = f"what is on the disk is not known ({error.strerror})"
        if self._broken:
            raise ArchiveError(f"archive {self.path} is lost: {self._broken}")

    def close(self) -> None:
        with self._turn:
            if not self.closed:
                os.close(self._fd)  # which ends the lock
                self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self.closed else "broken" if self._broken else ""
        return f"<Archive {self.path} {self.lines} lines{state and f' {state}'}>"


def _open(path: Path) -> int:
    try:
        _make_folders(path.parent)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    except OSError as error:
        why = "it is a link" if error.errno == errno.ELOOP else error.strerror
        raise ArchiveError(f"archive {path} cannot be opened: {why}") from error
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise ArchiveError(f"archive {path} is no file: what is written there is not kept")
        with suppress(PermissionError):  # somebody else's, who lets us write
            os.fchmod(fd, 0o600)
        _sync_folder(path.parent)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _make_folders(folder: Path) -> None:
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    for each in reversed(missing):
        with suppress(FileExistsError):
            each.mkdir(mode=0o700)
        _sync_folder(each.parent)


def _sync_folder(folder: Path) -> None:
    """A new file is found again after a power cut only if its folder was written, too."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _lock(fd: int, path: Path) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ArchiveError(f"archive {path} is being written by somebody else: wait, or name another") from None


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _set_aside(fd: int, path: Path) -> Torn | None:
    """Move half a line at the end out of the file: kept elsewhere first, and then cut off."""
    size = os.fstat(fd).st_size
    whole = _last_break(fd, size)
    if whole == size:
        return None
    torn = path.with_name(f"{path.name}.torn")
    try:
        aside = os.open(torn, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            there = os.fstat(aside).st_size
            if _last_break(aside, there) != there:  # whoever did this last died of it, too
                _write_all(aside, b"\n")
            for at in range(whole, size, _BLOCK):
                _write_all(aside, os.pread(fd, min(_BLOCK, size - at), at))
            _write_all(aside, b"\n")
            os.fsync(aside)
        finally:
            os.close(aside)
        os.ftruncate(fd, whole)
        os.fsync(fd)
    except OSError as error:
        raise ArchiveError(f"archive {path} ends in half a line, and it cannot be moved: {error.strerror}") from error
    return Torn(torn, size - whole)


def _last_break(fd: int, size: int) -> int:
    """Where the last whole line ends."""
    end = size
    while end:
        start = max(0, end - _BLOCK)
        found = os.pread(fd, end - start, start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0


# Reading ----------------------------------------------------------------------------------------------


def read_archive(path: Path) -> Iterator[tuple[int, Exported]]:
    """Each message with the number of its line, one at a time. The first that is none ends it, with LetterError.

    Names that end with .gz are unpacked. Who wants to go on behind a bad line takes `read_lines` and decodes each.
    """
    with closing(read_lines(path)) as lines:
        for number, line in lines:
            yield number, decode_line(line, number)


def decode_line(line: bytes, number: int) -> Exported:
    try:
        return decode_dead_letter(line, number)
    except LetterError as error:
        if not line.endswith(b"\n"):
            raise LetterError(number, f"{error.why} (the file ends in the middle of this line)") from None
        raise


def read_lines(path: Path) -> Generator[tuple[int, bytes], None, None]:
    """Each line with its number, from 1; empty ones are left out."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            yield from lines_of(file)
    except (OSError, EOFError, zlib.error) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise ArchiveError(f"archive {path} cannot be read: {why}") from error


def lines_of(file: IO[bytes] | gzip.GzipFile, longest: int = LONGEST_LINE) -> Iterator[tuple[int, bytes]]:
    """The same out of a file that is open already, as standard input is."""
    number = 0
    while line := file.readline(longest):
        number += 1
        if len(line) == longest and not line.endswith(b"\n"):
            raise LetterError(number, f"it has more than {longest} bytes")
        if not line.isspace():
            yield number, line
