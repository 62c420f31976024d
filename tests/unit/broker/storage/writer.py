"""A process that fills a journal until it is killed: `python writer.py DIRECTORY FIRST SEED`.

It stores messages, numbered from FIRST on, moves some to another queue, acknowledges some, and says on its standard
output what it knows:

    ? 120        numbers up to 120 may be stored from now on
    + 17         17 is on disk
    - 16         16 was acknowledged, and that is on disk
    ! ...        the journal failed

What becomes of a number depends on nothing but the number, so that a reader of the file knows what to expect.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random

from redrive.broker.storage.journal import StoredMessage
from redrive.broker.storage.sqlite import SQLiteJournal
from redrive.errors import StorageError

ORDERS, INVOICES, DEAD = 1, 2, 3


def queue_of(number: int) -> int:
    return ORDERS if number % 2 else INVOICES


def is_moved(number: int) -> bool:
    return number % 5 == 0


def is_acknowledged(number: int) -> bool:
    return number % 4 == 0


def body_of(number: int) -> bytes:
    return b"%d " % number + b"x" * Random(number).choice([0, 10, 100, 100, 1000, 9000])


def number_of(message: StoredMessage) -> int:
    return int(message.body.split(b" ")[0])


def say(*words: object) -> None:
    """At once, and whole: what is said before the end must have been said."""
    os.write(1, f"{' '.join(map(str, words))}\n".encode())


class Writer:
    def __init__(self, directory: Path, first: int, seed: int) -> None:
        self._random = Random(seed)
        self._journal = SQLiteJournal(directory, on_failure=self._failed)
        self._ended = asyncio.get_running_loop().create_future()
        self._next_id = self._journal.recover().next_id
        self._next_number = first
        self._stored: dict[int, int] = {}  # number -> id of the message

    async def write(self) -> None:
        while not self._ended.done():
            self._turn()
            await asyncio.sleep(0)
            if self._journal.pending > 2000:
                await self._on_disk()

    def _turn(self) -> None:
        count = self._random.choice([1, 2, 5, 50])
        say("?", self._next_number + count - 1)
        for number in range(self._next_number, self._next_number + count):
            self._store(number, queue_of(number))
            self._journal.after_commit(lambda number=number: say("+", number))  # type: ignore[misc]
        self._next_number += count
        for number in self._some():
            if is_moved(number):
                self._move(number)
            if is_acknowledged(number):
                self._acknowledge(number)

    def _some(self) -> Iterator[int]:
        """Of those stored lately; the others have been left behind."""
        for number in sorted(self._stored):
            if self._random.random() < 0.5:
                yield number
            del self._stored[number]
            if len(self._stored) < 20:
                return

    def _store(self, number: int, queue: int) -> None:
        id, self._next_id = self._next_id, self._next_id + 1
        self._journal.store(StoredMessage(id, queue, number, None, 0, b"\x00\x00", b"\x00\x00", body_of(number), b""))
        self._stored[number] = id

    def _move(self, number: int) -> None:
        self._journal.forget(self._stored[number])
        self._store(number, DEAD)

    def _acknowledge(self, number: int) -> None:
        self._journal.forget(self._stored[number])
        self._journal.after_commit(lambda: say("-", number))

    async def _on_disk(self) -> None:
        arrived = asyncio.get_running_loop().create_future()
        self._journal.after_commit(lambda: arrived.set_result(None))
        await asyncio.wait([arrived, self._ended], return_when=asyncio.FIRST_COMPLETED)

    def _failed(self, error: StorageError) -> None:
        say("!", type(error).__name__, error)
        self._ended.set_result(None)


async def main(directory: Path, first: int, seed: int) -> None:
    await Writer(directory, first, seed).write()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
