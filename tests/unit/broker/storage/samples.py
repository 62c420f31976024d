"""Messages and definitions for tests, and what a data directory holds."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import NamedTuple

from redrive.broker.storage import Definition, Journal, SQLiteJournal, StoredMessage

ROUTE = b"\x06orders\x03new"
PROPERTIES = b"\x90\x00\x10application/json\x02"


def message(id: int, queue: int = 1, position: int | None = None, body: bytes = b"hello") -> StoredMessage:
    return StoredMessage(id, queue, id if position is None else position, None, 0, ROUTE, PROPERTIES, body, b"")


def definition(id: int, name: str = "orders", value: bytes = b"{}") -> Definition:
    return Definition(id, "queue", "/", name, value)


def fail() -> None:
    """A callback that does."""
    raise LookupError("a mistake of the callback's own")


async def on_disk(journal: Journal) -> None:
    """Wait until everything appended so far is."""
    done = asyncio.get_running_loop().create_future()
    journal.after_commit(lambda: done.set_result(None))
    await done


class Contents(NamedTuple):
    """What a broker finds when it starts."""

    definitions: list[Definition]
    messages: list[StoredMessage]
    delivered: dict[int, int]
    next_id: int

    @property
    def ids(self) -> list[int]:
        return [message.id for message in self.messages]


def recovered(journal: Journal) -> Contents:
    definitions, messages, delivered, next_id = journal.recover()
    return Contents(definitions, list(messages), delivered, next_id)


async def contents(directory: Path) -> Contents:
    """What a broker would find that starts now."""
    journal = SQLiteJournal(directory)
    try:
        return recovered(journal)
    finally:
        await journal.close()
