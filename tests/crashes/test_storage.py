"""The journal's process dies at any moment, and its disk fills up: what was told to be on disk is there.

The process is `unit/broker/storage/writer.py`: it numbers its messages, and what becomes of a message depends on
its number alone. It says which numbers are on disk, and we look for them after its death.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import subprocess
import sys
from collections.abc import Iterator
from itertools import repeat
from pathlib import Path
from random import Random

import pytest

from redrive.broker.storage import SQLiteJournal, StoredMessage
from redrive.errors import DirectoryInUse, DiskFull, NotWritable
from unit.broker.storage import writer
from unit.broker.storage.samples import contents, message
from unit.broker.storage.writer import DEAD, body_of, is_acknowledged, is_moved, number_of, queue_of


class Truth:
    """What is known about a data directory from what its writers said."""

    def __init__(self) -> None:
        self.first = 1  # number of the present writer
        self.announced = 0
        self.confirmed: set[int] = set()
        self.acknowledged: set[int] = set()
        self.failure = ""

    def hear(self, line: str) -> None:
        kind, _, words = line.partition(" ")
        match kind:
            case "?":
                self.announced = int(words)
            case "+":
                self.confirmed.add(int(words))
            case "-":
                self.acknowledged.add(int(words))
            case "!":
                self.failure = words

    def check(self, found: list[StoredMessage]) -> None:
        numbers = [number_of(one) for one in found]
        assert len(set(numbers)) == len(numbers), "a message is in two places"
        assert {number for number in self.confirmed if not is_acknowledged(number)} <= set(numbers), "lost"
        assert not self.acknowledged & set(numbers), "an acknowledged message came back"
        for one in found:
            self._check_message(one)
        self._check_order(found)
        self._check_prefix(set(numbers))

    def _check_message(self, one: StoredMessage) -> None:
        number = number_of(one)
        assert number <= self.announced, "invented"
        assert one.body == body_of(number)
        assert one.queue == queue_of(number) or (one.queue == DEAD and is_moved(number))

    def _check_order(self, found: list[StoredMessage]) -> None:
        for queue in (writer.ORDERS, writer.INVOICES, DEAD):
            numbers = [number_of(one) for one in found if one.queue == queue]
            assert numbers == sorted(numbers)

    def _check_prefix(self, numbers: set[int]) -> None:
        """What was stored before something that is there, is there."""
        last = max((number for number in numbers if number >= self.first), default=0)
        assert {number for number in range(self.first, last) if not is_acknowledged(number)} <= numbers

    def next_life(self) -> None:
        self.first = self.announced + 1


@contextlib.contextmanager
def writing(directory: Path, truth: Truth, seed: int = 0) -> Iterator[subprocess.Popen[str]]:
    """A process that writes until the end of the block, and is then killed. All it said is heard."""
    command = [sys.executable, writer.__file__, str(directory), str(truth.first), str(seed)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process
        finally:
            process.kill()
            for line in process.stdout:
                truth.hear(line)


def listen(process: subprocess.Popen[str], truth: Truth, lines: int | None = None) -> None:
    """To so many lines, or until the process has nothing more to say."""
    assert process.stdout is not None
    for _, line in zip(repeat(None) if lines is None else range(lines), process.stdout, strict=False):
        truth.hear(line)


async def live_and_die(directory: Path, truth: Truth, random: Random) -> None:
    """One life: killed while it starts, when it has said a little, or when it has said a lot."""
    with writing(directory, truth, random.getrandbits(32)) as process:
        match random.choice(["starting", "young", "old"]):
            case "starting":
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=random.uniform(0, 0.3))
            case "young":
                listen(process, truth, random.randrange(50))
            case "old":
                listen(process, truth, random.randrange(2000))
    truth.check((await contents(directory)).messages)
    truth.next_life()


async def many_lives(directory: Path, lives: int, seed: int) -> None:
    random = Random(seed)
    truth = Truth()
    for _ in range(lives):
        await live_and_die(directory, truth, random)
    assert truth.confirmed, "nothing was proven"


async def test_what_was_told_to_be_on_disk_survives_kill_9(tmp_path: Path) -> None:
    await many_lives(tmp_path, lives=20, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 12))
async def test_what_was_told_to_be_on_disk_survives_kill_9_two_hundred_times(tmp_path: Path, seed: int) -> None:
    await many_lives(tmp_path, lives=20, seed=seed)


async def test_a_second_process_is_refused_until_the_first_is_dead(tmp_path: Path) -> None:
    truth = Truth()
    with writing(tmp_path, truth) as process:
        listen(process, truth, lines=10)
        with pytest.raises(DirectoryInUse, match=f"is in use by process {process.pid}") as refusal:
            SQLiteJournal(tmp_path)

    assert refusal.value.pid == process.pid
    truth.check((await contents(tmp_path)).messages)


# Disks --------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """4 MiB, of which a file `ballast` takes half."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "redrive-test", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a file system is not allowed here")
    try:
        (disk / "ballast").write_bytes(bytes(2 * 1024 * 1024))
        yield disk
    finally:
        subprocess.run(["umount", str(disk)], check=True)


async def test_a_full_disk_costs_nothing_that_was_confirmed(small_disk: Path) -> None:
    truth = Truth()
    with writing(small_disk / "data", truth) as process:
        listen(process, truth)  # until it ends by itself
    assert truth.failure.startswith("DiskFull")
    assert "make room, then restart the broker" in truth.failure
    truth.check((await contents(small_disk / "data")).messages)  # it can be read while the disk is full
    truth.next_life()

    (small_disk / "ballast").unlink()
    with writing(small_disk / "data", truth, seed=1) as process:
        listen(process, truth, lines=300)
    truth.check((await contents(small_disk / "data")).messages)
    assert max(truth.confirmed) > truth.first


async def test_a_disk_that_is_full_from_the_beginning_is_refused_and_then_used(small_disk: Path) -> None:
    with contextlib.suppress(OSError), (small_disk / "more ballast").open("wb") as file:
        for piece in repeat(bytes(4096), 2000):
            file.write(piece)
    with pytest.raises(DiskFull):
        SQLiteJournal(small_disk / "data")

    (small_disk / "more ballast").unlink()
    journal = SQLiteJournal(small_disk / "data")
    journal.store(message(1))
    await journal.close()
    assert (await contents(small_disk / "data")).ids == [1]


async def test_a_read_only_disk_is_refused(small_disk: Path) -> None:
    await SQLiteJournal(small_disk / "data").close()
    await asyncio.to_thread(subprocess.run, ["mount", "-o", "remount,ro", str(small_disk)], check=True)

    for directory in (small_disk / "data", small_disk / "new"):
        with pytest.raises(NotWritable, match=r"Read-only file system.*Choose another data directory"):
            SQLiteJournal(directory)


async def test_a_write_that_the_system_refuses_costs_nothing_that_was_confirmed(tmp_path: Path) -> None:
    truth = Truth()
    with writing(tmp_path, truth) as process:
        listen(process, truth, lines=100)
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (1024 * 1024, 1024 * 1024))
        listen(process, truth)  # until it ends by itself

    assert truth.failure.startswith("StorageFailed")
    truth.check((await contents(tmp_path)).messages)
