"""The archive: what `write` has returned for is on the disk, and half a line never spoils the next."""

from __future__ import annotations

import errno
import fcntl
import gzip
import logging
import os
import re
import signal
import stat
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.deadletters.dead_letter import read_summary
from redrive.errors import ArchiveError, LetterError
from redrive.operations import archive as archiving
from redrive.operations.archive import Archive, archive_path, lines_of, read_archive, read_lines
from redrive.operations.export_format import Exported, encode_dead_letter
from redrive.wire.properties import Properties

RAW = Properties(message_id="m").encode()


def letter(body: bytes) -> bytes:
    message = Exported("dlx", "q", RAW, body)
    return encode_dead_letter(message, read_summary(RAW, body, "q.dlq", 0))


def bodies(path: Path) -> list[bytes]:
    return [message.body for _, message in read_archive(path)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "archive.ndjson"


# Writing ---------------------------------------------------------------------------------------------------


def test_what_was_written_is_read_again(path: Path) -> None:
    with Archive(path) as archive:
        archive.write([letter(b"one"), letter(b"two")])
        archive.write([])
        archive.write([letter(b"three")])
        assert repr(archive) == f"<Archive {path} 3 lines>"

    assert [(number, message.body) for number, message in read_archive(path)] == [
        (1, b"one"),
        (2, b"two"),
        (3, b"three"),
    ]
    assert repr(archive) == f"<Archive {path} 3 lines closed>"


def test_a_second_writing_goes_on_behind_the_first(path: Path) -> None:
    for body in (b"one", b"two"):
        with Archive(path) as archive:
            archive.write([letter(body)])
            assert archive.torn is None

    assert bodies(path) == [b"one", b"two"]


def test_folders_are_made_and_only_the_owner_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "c.ndjson"

    Archive(path).close()

    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [stat.S_IMODE(folder.stat().st_mode) for folder in (path.parent, path.parent.parent)] == [0o700, 0o700]


def test_a_file_that_others_could_read_is_closed_to_them(path: Path) -> None:
    path.touch(mode=0o644)

    Archive(path).close()

    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_batch_is_on_the_disk_when_write_returns(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bytes] = []
    with Archive(path) as archive:
        monkeypatch.setattr(os, "fsync", lambda _: seen.append(path.read_bytes()))
        archive.write([b"1\n", b"2\n"])

    assert seen == [b"1\n2\n"]  # one fsync, after all of it


@pytest.mark.parametrize("line", [b"", b"no break", b"two\nbreaks\n", b"\nfirst"])
def test_a_line_has_one_break_at_its_end(path: Path, line: bytes) -> None:
    with Archive(path) as archive, pytest.raises(ValueError, match="one line break, at its end"):
        archive.write([b"good\n", line])

    assert path.read_bytes() == b""


def test_nothing_is_written_after_closing(path: Path) -> None:
    archive = Archive(path)
    archive.close()
    archive.close()

    with pytest.raises(ArchiveError, match="takes nothing more: it is closed"):
        archive.write([b"late\n"])


# Two writers -----------------------------------------------------------------------------------------------


def test_a_second_writer_is_refused_until_the_first_is_done(path: Path) -> None:
    with Archive(path), pytest.raises(ArchiveError, match="is being written by somebody else"):
        Archive(path)

    Archive(path).close()


_HOLD = """
import pathlib, sys
from redrive.operations.archive import Archive
archive = Archive(pathlib.Path(sys.argv[1]))
archive.write([b"kept\\n"])
print("written", flush=True)
sys.stdin.read()
"""


def test_a_writer_that_is_killed_leaves_what_was_written_and_no_lock(path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"written\n"
        with pytest.raises(ArchiveError, match="somebody else"):
            Archive(path)
        other.send_signal(signal.SIGKILL)
        other.wait()

    with Archive(path) as archive:
        archive.write([b"more\n"])
    assert path.read_bytes() == b"kept\nmore\n"


# Crashes ---------------------------------------------------------------------------------------------------


def test_half_a_line_is_set_aside_and_told(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    whole, half = letter(b"one"), letter(b"two")[:-9]
    path.write_bytes(whole + half)

    with caplog.at_level(logging.WARNING), Archive(path) as archive:
        archive.write([letter(b"three")])

    assert archive.torn is not None
    assert (archive.torn.path, archive.torn.size) == (path.with_name("archive.ndjson.torn"), len(half))
    assert archive.torn.path.read_bytes() == half + b"\n"
    assert stat.S_IMODE(archive.torn.path.stat().st_mode) == 0o600
    assert "ended in half a line" in caplog.text
    assert bodies(path) == [b"one", b"three"]


def test_a_second_half_line_does_not_overwrite_the_first(path: Path) -> None:
    for half in (b"first", b"second"):
        with path.open("ab") as file:
            file.write(half)
        Archive(path).close()

    assert path.with_name("archive.ndjson.torn").read_bytes() == b"first\nsecond\n"
    assert path.read_bytes() == b""


@given(st.binary(max_size=40), st.integers(1, 20))
def test_wherever_a_crash_cuts_it_whole_lines_stay(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, block: int
) -> None:
    path = tmp_path_factory.mktemp("archive") / "a"
    path.write_bytes(data)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(archiving, "_BLOCK", block)
        Archive(path).close()

    whole = data[: data.rfind(b"\n") + 1]
    torn = path.with_name("a.torn")
    assert path.read_bytes() == whole
    assert (torn.read_bytes() if torn.exists() else b"\n") == data[len(whole) :] + b"\n"


class Death(BaseException):
    """The process ends here."""


_ACTS = ("open", "write", "fsync", "ftruncate", "fchmod")


def dying(patch: pytest.MonkeyPatch, before: int) -> list[str]:
    """Die before this act on the disk. The acts that were done are in the list."""
    done: list[str] = []

    def mortal(name: str, act: Callable[..., Any]) -> Callable[..., Any]:
        def doing(*args: Any) -> Any:
            if len(done) == before:
                raise Death
            done.append(name)
            return act(*args)

        return doing

    for name in _ACTS:
        patch.setattr(os, name, mortal(name, getattr(os, name)))
    return done


def test_wherever_it_dies_nothing_that_was_written_is_lost_and_half_a_line_is_kept(tmp_path: Path) -> None:
    deaths = 0
    for before in range(100):
        path = tmp_path / str(before) / "a"
        path.parent.mkdir()
        path.write_bytes(b"one\nhalf")
        written = False
        with pytest.MonkeyPatch.context() as patch:
            dying(patch, before)
            try:
                with Archive(path) as archive:
                    archive.write([b"two\n"])
                    written = True
            except Death:
                deaths += 1
        Archive(path).close()

        lines = path.read_bytes().split(b"\n")
        torn = path.with_name("a.torn").read_bytes().split(b"\n")
        assert lines[0] == b"one"
        assert b"two" in lines or not written
        assert b"half" in torn
        if written:
            break

    assert deaths > 8


# Failing disks ---------------------------------------------------------------------------------------------


def failing(after: int) -> Callable[[int, memoryview], int]:
    """A disk that takes so many bytes, and then is full."""
    write, left = os.write, after

    def full(fd: int, data: memoryview) -> int:
        nonlocal left
        if not left:
            raise OSError(errno.ENOSPC, "No space left on device")
        done = write(fd, data[:left])
        left -= done
        return done

    return full


@pytest.mark.parametrize("room", [0, 1, 5, 6])
def test_a_batch_that_does_not_fit_is_taken_back(path: Path, monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    with Archive(path) as archive:
        archive.write([b"kept\n"])
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", failing(room))
            with pytest.raises(ArchiveError, match="cannot be written: No space left on device"):
                archive.write([b"lost\n", b"lost\n"])
        archive.write([b"then\n"])

    assert path.read_bytes() == b"kept\nthen\n"
    assert archive.lines == 2


def test_what_one_thread_takes_back_is_never_what_another_has_written(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, calls = os.write, count(1)

    def piecemeal(fd: int, data: memoryview) -> int:
        if next(calls) % 11 == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        time.sleep(0)  # lets another thread come in between
        return write(fd, data[:7])

    def put(number: int) -> bytes | None:
        line = b"%d of the lines\n" % number
        try:
            archive.write([line])
        except ArchiveError:
            return None
        return line

    with Archive(path) as archive, ThreadPoolExecutor(8) as threads:
        monkeypatch.setattr(os, "write", piecemeal)
        written = [line for line in threads.map(put, range(400)) if line]
        monkeypatch.undo()

    assert sorted(path.read_bytes().splitlines(keepends=True)) == sorted(written)
    assert 0 < archive.lines == len(written) < 400


def test_what_cannot_be_taken_back_ends_the_archive(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with Archive(path) as archive:
        monkeypatch.setattr(os, "write", failing(3))
        monkeypatch.setattr(os, "ftruncate", refuse)
        with pytest.raises(ArchiveError):
            archive.write([b"lost\n"])
        monkeypatch.undo()
        with pytest.raises(ArchiveError, match="takes nothing more: a part of a batch is in it"):
            archive.write([b"next\n"])
        assert "broken" in repr(archive)

    with Archive(path) as again:
        assert again.torn is not None


def test_a_failed_fsync_ends_the_archive(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with Archive(path) as archive:
        monkeypatch.setattr(os, "fsync", refuse)
        with pytest.raises(ArchiveError, match="what is on the disk is not known"):
            archive.write([b"1\n"])
        monkeypatch.undo()
        with pytest.raises(ArchiveError, match="takes nothing more"):
            archive.write([b"2\n"])


def test_a_deleted_archive_is_noticed_before_anything_is_acked(path: Path) -> None:
    with Archive(path) as archive:
        path.unlink()
        with pytest.raises(ArchiveError, match="it was deleted"):
            archive.write([b"1\n"])


# Places that are none --------------------------------------------------------------------------------------


def test_a_link_is_not_followed(path: Path, tmp_path: Path) -> None:
    path.symlink_to(tmp_path / "elsewhere")

    with pytest.raises(ArchiveError, match="it is a link"):
        Archive(path)


def test_what_is_no_file_is_refused(path: Path) -> None:
    os.mkfifo(path)

    with pytest.raises(ArchiveError, match="is no file"):
        Archive(path)
    with pytest.raises(ArchiveError, match="is no file"):
        Archive(Path("/dev/null"))


def test_a_folder_that_cannot_be_made_is_told(path: Path) -> None:
    path.write_bytes(b"")

    with pytest.raises(ArchiveError, match="cannot be opened: Not a directory"):
        Archive(path / "below.ndjson")


def test_a_refused_archive_holds_no_lock(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    path.write_bytes(b"half")
    with monkeypatch.context() as patch:
        patch.setattr(os, "ftruncate", refuse)
        with pytest.raises(ArchiveError, match="ends in half a line, and it cannot be moved"):
            Archive(path)

    with path.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


# Names -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("queue", "name"),
    [
        ("q.orders.dlq", "q.orders.dlq.op_1.ndjson"),
        ("a/b %#ü", "a%2Fb%20%25%23%C3%BC.op_1.ndjson"),
        ("..", "%2E..op_1.ndjson"),
        ("../../etc/passwd", "%2E.%2F..%2Fetc%2Fpasswd.op_1.ndjson"),
        ("~", "%7E.op_1.ndjson"),
        ("\udcff\n", "%FF%0A.op_1.ndjson"),
    ],
)
def test_a_file_is_named_after_queue_and_operation(queue: str, name: str) -> None:
    assert archive_path(Path("/a"), queue, "op_1") == Path("/a") / name


@given(st.text(max_size=255), st.text(max_size=255))
def test_every_queue_has_a_name_that_a_file_may_have(queue: str, operation: str) -> None:
    name = archive_path(Path("/a"), queue, operation).name

    assert len(name.encode()) <= 200
    assert name.isascii()
    assert name.isprintable()
    assert not set("/ ") & set(name)
    assert not name.startswith(".") or not queue


def test_long_names_that_begin_alike_differ() -> None:
    one, other = ("ü" * 100 + end for end in "ab")

    names = {archive_path(Path(), queue, "op").name for queue in (one, other)}
    assert len(names) == 2
    assert all(re.fullmatch(r"(%[0-9A-F]{2})+~[0-9a-f]{12}\.op\.ndjson", name) for name in names)


# Reading ---------------------------------------------------------------------------------------------------


def test_a_packed_archive_is_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "a.ndjson.gz"
    path.write_bytes(gzip.compress(letter(b"one") + letter(b"two")))

    assert bodies(path) == [b"one", b"two"]


@pytest.mark.parametrize("cut", [lambda data: data[:-12], lambda _: b"no gzip", lambda data: data[:20] + b"!" * 20])
def test_a_broken_package_is_told(tmp_path: Path, cut: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "a.gz"
    path.write_bytes(cut(gzip.compress(os.urandom(300).hex().encode() + b"\n")))

    with pytest.raises(ArchiveError, match="cannot be read"):
        list(read_lines(path))


def test_a_missing_archive_is_told(path: Path) -> None:
    with pytest.raises(ArchiveError, match="cannot be read: No such file"):
        list(read_archive(path))


def test_a_bad_line_is_named_and_can_be_passed_over(path: Path) -> None:
    path.write_bytes(letter(b"one") + b"\n" + b"nonsense\n" + letter(b"two"))

    with pytest.raises(LetterError, match="line 3: it is no JSON"):
        bodies(path)
    assert [number for number, _ in read_lines(path)] == [1, 3, 4]


def test_a_last_line_that_is_cut_says_so_and_one_without_a_break_is_read(path: Path) -> None:
    path.write_bytes(letter(b"one") + letter(b"two")[:-1])
    assert bodies(path) == [b"one", b"two"]

    path.write_bytes(letter(b"one") + letter(b"two")[:-4])
    with pytest.raises(LetterError, match=r"line 2: .*the file ends in the middle of this line"):
        bodies(path)


def test_a_line_without_an_end_is_refused(path: Path) -> None:
    path.write_bytes(b"x" * 101)

    with path.open("rb") as file, pytest.raises(LetterError, match="line 1: it has more than 100 bytes"):
        list(lines_of(file, longest=100))


def test_reading_needs_the_memory_of_one_message(path: Path) -> None:
    with Archive(path) as archive:
        for _ in range(50):
            archive.write([letter(b"x" * 100_000)] * 4)  # 20 MB
    tracemalloc.start()
    try:
        assert sum(1 for _ in read_archive(path)) == 200
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()
