"""Messages in a folder that nobody serves are counted, and left as they are."""

from pathlib import Path

import pytest

from redrive.broker.storage import SQLiteJournal
from redrive.broker.storage.journal import Definition
from redrive.broker.storage.sqlite import count_unserved
from redrive.errors import ForeignFile
from unit.broker.storage.samples import contents, definition, message, on_disk


async def fill(directory: Path) -> None:
    journal = SQLiteJournal(directory)
    journal.define(definition(1, "orders"))
    journal.define(definition(2, "invoices"))
    journal.define(Definition(3, "queue", "elsewhere", "orders", b"{}"))
    for id, queue in ((4, 1), (5, 1), (6, 3)):
        journal.store(message(id, queue))
    await on_disk(journal)
    await journal.close()


async def test_messages_are_counted_by_queue_and_stay(tmp_path: Path) -> None:
    await fill(tmp_path)
    assert count_unserved(tmp_path) == {"orders": 2}
    assert count_unserved(tmp_path, "elsewhere") == {"orders": 1}
    assert (await contents(tmp_path)).ids == [4, 5, 6]


async def test_a_folder_that_is_served_is_not_touched(tmp_path: Path) -> None:
    await fill(tmp_path)
    journal = SQLiteJournal(tmp_path)
    assert count_unserved(tmp_path) == {}
    await journal.close()


def test_where_there_was_no_broker_nothing_is_made(tmp_path: Path) -> None:
    assert count_unserved(tmp_path) == {}
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_none_of_a_brokers_is_told(tmp_path: Path) -> None:
    (tmp_path / "broker.sqlite3").write_text("not a database")
    with pytest.raises(ForeignFile):
        count_unserved(tmp_path)
