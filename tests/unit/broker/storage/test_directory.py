"""A data directory belongs to one at a time."""

import os
from pathlib import Path

import pytest

from redrive.broker.storage.directory import DirectoryLock, make_directory
from redrive.errors import DirectoryInUse


def test_a_directory_is_made_with_all_its_parents(tmp_path: Path) -> None:
    make_directory(tmp_path / "a" / "b" / "c")
    make_directory(tmp_path / "a" / "b" / "c")

    assert (tmp_path / "a" / "b" / "c").is_dir()


def test_the_second_is_told_who_was_first(tmp_path: Path) -> None:
    lock = DirectoryLock(tmp_path)
    with pytest.raises(DirectoryInUse, match=f"{tmp_path}: is in use by process {os.getpid()}. Stop it") as refusal:
        DirectoryLock(tmp_path)

    assert refusal.value.pid == os.getpid()
    lock.release()


def test_one_who_has_not_signed_yet_has_the_lock_all_the_same(tmp_path: Path) -> None:
    lock = DirectoryLock(tmp_path)
    (tmp_path / "broker.lock").write_bytes(b"")
    with pytest.raises(DirectoryInUse, match="in use by another program"):
        DirectoryLock(tmp_path)
    lock.release()


def test_a_released_directory_is_free(tmp_path: Path) -> None:
    first = DirectoryLock(tmp_path)
    assert repr(first) == f"<DirectoryLock {tmp_path}/broker.lock HELD>"
    first.release()
    first.release()

    assert repr(first) == f"<DirectoryLock {tmp_path}/broker.lock RELEASED>"
    DirectoryLock(tmp_path).release()


def test_the_words_of_a_longer_pid_do_not_shine_through(tmp_path: Path) -> None:
    (tmp_path / "broker.lock").write_text("123456789123456789\n")
    lock = DirectoryLock(tmp_path)

    assert (tmp_path / "broker.lock").read_text() == f"{os.getpid()}\n"
    lock.release()


def test_a_lock_that_cannot_be_signed_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", refuse)
        with pytest.raises(OSError, match="No space left"):
            DirectoryLock(tmp_path)

    DirectoryLock(tmp_path).release()
