"""Changes gather, leave together, and are told of when they have arrived."""

import asyncio
import logging
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from redrive.broker.storage import Definition, Journal, SQLiteJournal, StoredMessage
from redrive.errors import Closed, DirectoryInUse, DiskFull, StorageError, StorageFailed
from unit.broker.storage.gate import Gate
from unit.broker.storage.samples import contents, definition, fail, message, on_disk, recovered
from unit.client.clock import Clock


async def turns(count: int = 5) -> None:
    """Let everything happen in the loop that is due."""
    for _ in range(count):
        await asyncio.sleep(0)


# What is remembered -------------------------------------------------------------------------------


async def test_everything_about_a_message_is_remembered(journal: Journal, tmp_path: Path) -> None:
    one = StoredMessage(9, 4, 17, 1_700_000_000_123, 3, b"\x00\x01q", b"\x10\x00\x02", b"\x00body\xff", b"deaths")
    journal.store(one)
    await journal.close()

    assert (await contents(tmp_path)).messages == [one]


async def test_the_messages_of_each_queue_come_back_by_position(journal: Journal, tmp_path: Path) -> None:
    places = [("a", 5), ("b", 1), ("c", 1), ("a", 4), ("b", 2), ("a", -1), ("b", 3), ("c", 0), ("a", 6)]
    for id, (queue, position) in enumerate(places, start=1):
        journal.store(message(id, ord(queue), position))
    await journal.close()
    found = (await contents(tmp_path)).messages

    for queue in "abc":
        positions = [message.position for message in found if message.queue == ord(queue)]
        assert positions == sorted(position for name, position in places if name == queue)


async def test_definitions_are_added_changed_and_dropped(journal: Journal, tmp_path: Path) -> None:
    journal.define(definition(2, "invoices"))
    journal.define(definition(1, "orders", b"old"))
    journal.define(definition(3, "gone"))
    await on_disk(journal)
    journal.define(definition(1, "orders", b"new"))
    journal.undefine(3)
    journal.define(definition(4, "short-lived"))
    journal.undefine(4)
    await journal.close()

    assert (await contents(tmp_path)).definitions == [
        Definition(1, "queue", "/", "orders", b"new"),
        Definition(2, "queue", "/", "invoices", b"{}"),
    ]


async def test_the_next_id_is_higher_than_that_of_any_message_or_definition(journal: Journal, tmp_path: Path) -> None:
    assert recovered(journal).next_id == 1
    journal.store(message(7))
    journal.define(definition(5))
    await journal.close()
    assert (await contents(tmp_path)).next_id == 8
    journal = SQLiteJournal(tmp_path)
    journal.define(definition(12))
    await journal.close()
    assert (await contents(tmp_path)).next_id == 13


async def test_the_highest_delivered_position_of_a_queue_is_remembered(journal: Journal, tmp_path: Path) -> None:
    journal.note_delivery(1, 5)
    journal.note_delivery(1, 4)
    journal.note_delivery(2, 0)
    await on_disk(journal)
    journal.note_delivery(1, 9)
    await journal.close()
    assert (await contents(tmp_path)).delivered == {1: 9, 2: 0}

    journal = SQLiteJournal(tmp_path)  # one that does not recover knows no better than the file
    journal.note_delivery(1, 6)
    await journal.close()
    assert (await contents(tmp_path)).delivered == {1: 9, 2: 0}


async def test_a_position_that_adds_nothing_is_not_written(tmp_path: Path, gate: Gate) -> None:
    journal = SQLiteJournal(tmp_path)
    journal.note_delivery(1, 5)
    await journal.close()
    journal = SQLiteJournal(tmp_path)
    recovered(journal)
    journal.note_delivery(1, 5)
    await journal.close()

    assert len(gate.batches) == 1


async def test_a_queue_that_is_undefined_was_never_delivered(journal: Journal, tmp_path: Path) -> None:
    journal.note_delivery(1, 5)
    journal.note_delivery(2, 5)
    await on_disk(journal)
    journal.note_delivery(1, 6)
    journal.undefine(1)
    await on_disk(journal)
    await journal.close()
    assert (await contents(tmp_path)).delivered == {2: 5}


async def test_after_it_was_undefined_a_queue_is_delivered_from_the_beginning(journal: Journal, tmp_path: Path) -> None:
    journal.note_delivery(1, 5)
    await on_disk(journal)
    journal.undefine(1)
    journal.note_delivery(1, 3)
    await journal.close()

    assert (await contents(tmp_path)).delivered == {1: 3}


async def test_a_forgotten_message_does_not_come_back(journal: Journal, tmp_path: Path) -> None:
    for id in (1, 2, 3):
        journal.store(message(id))
    await on_disk(journal)
    journal.forget(2)
    journal.forget(99)
    await journal.close()

    assert (await contents(tmp_path)).ids == [1, 3]


async def test_an_emptied_queue_keeps_what_is_stored_afterwards(journal: Journal, tmp_path: Path) -> None:
    journal.store(message(1, queue=1))
    journal.store(message(2, queue=2))
    await on_disk(journal)
    journal.store(message(3, queue=1))
    journal.forget_queue(1)
    journal.store(message(4, queue=1))
    await journal.close()

    assert (await contents(tmp_path)).ids == [2, 4]


async def test_a_message_that_came_back_has_its_new_count(journal: Journal, tmp_path: Path) -> None:
    journal.store(message(1))
    journal.store(message(2))
    await on_disk(journal)
    journal.note_return(2, 3)
    await journal.close()

    assert [one.delivery_count for one in (await contents(tmp_path)).messages] == [0, 3]


# Batches ------------------------------------------------------------------------------------------


async def test_one_turn_of_the_loop_is_one_transaction(journal: Journal, gate: Gate) -> None:
    for id in range(1, 101):
        journal.store(message(id))
    await on_disk(journal)

    assert [len(batch.stored) for batch in gate.batches] == [100]


async def test_what_comes_while_a_batch_is_on_its_way_gathers_in_the_next(journal: Journal, gate: Gate) -> None:
    gate.shut()
    journal.store(message(1))
    await gate.arrival()
    for id in (2, 3, 4):
        journal.store(message(id))
        await turns()
    gate.open()
    await on_disk(journal)

    assert [sorted(batch.stored) for batch in gate.batches] == [[1], [2, 3, 4]]


async def test_a_message_moves_in_one_transaction(journal: Journal, gate: Gate) -> None:
    journal.store(message(1, queue=1))
    await on_disk(journal)
    journal.store(message(2, queue=2))
    journal.forget(1)
    await on_disk(journal)

    assert [(sorted(batch.stored), batch.forgotten) for batch in gate.batches] == [([1], []), ([2], [1])]


async def test_a_message_stored_and_forgotten_in_one_batch_never_touches_the_disk(journal: Journal, gate: Gate) -> None:
    journal.store(message(1))
    journal.forget(1)
    await on_disk(journal)

    assert gate.batches == []


async def test_acknowledgements_alone_linger(journal: Journal, gate: Gate, clock: Clock) -> None:
    journal.forget(1)
    journal.note_return(2, 1)
    journal.note_delivery(1, 1)
    await clock.advance(0.040)
    assert gate.batches == []
    await clock.advance(0.020)
    batch = await gate.arrival()

    assert (batch.forgotten, batch.returned, batch.delivered) == ([1], {2: 1}, {1: 1})


async def test_acknowledgements_leave_with_the_next_message(journal: Journal, gate: Gate, clock: Clock) -> None:
    journal.forget(1)
    await turns()
    journal.store(message(2))
    await on_disk(journal)
    await clock.advance(1)

    assert [(batch.forgotten, sorted(batch.stored)) for batch in gate.batches] == [([1], [2])]


async def test_acknowledgements_do_not_linger_for_ever_behind_a_batch(
    journal: Journal, gate: Gate, clock: Clock
) -> None:
    gate.shut()
    journal.store(message(1))
    await gate.arrival()
    journal.forget(7)
    await clock.advance(1)
    gate.open()

    assert (await gate.arrival()).forgotten == [7]


async def test_how_long_to_linger_can_be_chosen(tmp_path: Path, gate: Gate, clock: Clock) -> None:
    journal = SQLiteJournal(tmp_path, linger=timedelta(seconds=5))
    journal.forget(1)
    await clock.advance(4.9)
    assert gate.batches == []
    await clock.advance(0.2)
    await gate.arrival()
    await journal.close()


async def test_the_journal_says_how_far_it_is_behind(journal: SQLiteJournal, gate: Gate) -> None:
    assert "IDLE pending=0" in repr(journal)
    gate.shut()
    journal.store(message(1))
    journal.forget(99)
    await gate.arrival()
    journal.store(message(2))
    assert "WRITING pending=3" in repr(journal)
    gate.open()
    await on_disk(journal)
    assert journal.pending == 0


# Telling ------------------------------------------------------------------------------------------


async def test_callbacks_are_called_when_it_is_true_and_in_order(journal: Journal, gate: Gate) -> None:
    told: list[int] = []
    gate.shut()
    for id in (1, 2, 3):
        journal.store(message(id))
        journal.after_commit(lambda id=id: told.append(id))  # type: ignore[misc]
        await turns()
    assert told == []
    gate.open()
    await on_disk(journal)

    assert told == [1, 2, 3]


async def test_callbacks_are_called_in_the_loop(journal: Journal) -> None:
    threads: list[threading.Thread] = []
    journal.store(message(1))
    journal.after_commit(lambda: threads.append(threading.current_thread()))
    await on_disk(journal)

    assert threads == [threading.current_thread()]


async def test_with_nothing_to_write_the_callback_comes_soon_but_never_at_once(journal: Journal, gate: Gate) -> None:
    told: list[str] = []
    journal.after_commit(lambda: told.append("told"))
    assert told == []
    await turns(2)

    assert told == ["told"]
    assert gate.batches == []


async def test_with_nothing_new_the_callback_waits_for_what_is_on_its_way(journal: Journal, gate: Gate) -> None:
    told: list[str] = []
    gate.shut()
    journal.store(message(1))
    journal.after_commit(lambda: told.append("first"))
    await gate.arrival()
    journal.after_commit(lambda: told.append("second"))
    await turns()
    assert told == []
    gate.open()
    await on_disk(journal)

    assert told == ["first", "second"]
    assert len(gate.batches) == 1


async def test_a_callback_waits_for_acknowledgements_too(journal: Journal, gate: Gate) -> None:
    journal.forget(1)
    await on_disk(journal)

    assert [batch.forgotten for batch in gate.batches] == [[1]]


async def test_a_callback_may_append(journal: Journal, tmp_path: Path) -> None:
    journal.store(message(1))
    journal.after_commit(lambda: journal.store(message(2)))
    await on_disk(journal)
    await journal.close()

    assert (await contents(tmp_path)).ids == [1, 2]


async def test_a_callback_that_fails_is_reported_and_the_others_are_called(
    journal: Journal, complaints: list[dict[str, Any]]
) -> None:
    journal.store(message(1))
    journal.after_commit(fail)
    await on_disk(journal)

    assert [type(complaint["exception"]) for complaint in complaints] == [LookupError]
    complaints.clear()


# Recovering ---------------------------------------------------------------------------------------


async def test_nothing_is_committed_while_messages_are_read_back(tmp_path: Path) -> None:
    journal = SQLiteJournal(tmp_path)
    for id in (1, 2, 3):
        journal.store(message(id))
    await journal.close()
    journal = SQLiteJournal(tmp_path)
    messages = journal.recover().messages
    assert next(messages).id == 1
    journal.store(message(4))
    journal.forget(1)
    await turns()
    assert "IDLE" in repr(journal)
    assert [one.id for one in messages] == [2, 3]
    await on_disk(journal)
    await journal.close()

    assert (await contents(tmp_path)).ids == [2, 3, 4]


async def test_a_recovery_that_is_given_up_holds_up_nobody(tmp_path: Path) -> None:
    journal = SQLiteJournal(tmp_path)
    for id in (1, 2, 3):
        journal.store(message(id))
    await journal.close()
    journal = SQLiteJournal(tmp_path)
    assert next(journal.recover().messages).id == 1
    journal.forget(2)
    await journal.close()

    assert (await contents(tmp_path)).ids == [1, 3]


# Failing ------------------------------------------------------------------------------------------


async def test_when_a_commit_fails_nothing_is_claimed_and_the_broker_is_told_once(tmp_path: Path, gate: Gate) -> None:
    failures: list[StorageError] = []
    told: list[int] = []
    journal = SQLiteJournal(tmp_path, on_failure=failures.append)
    journal.store(message(1))
    await on_disk(journal)
    gate.shut()
    journal.store(message(2))
    journal.after_commit(lambda: told.append(2))
    await gate.arrival()
    journal.store(message(3))
    journal.after_commit(lambda: told.append(3))
    gate.failure = DiskFull(tmp_path)
    gate.open()
    with pytest.raises(DiskFull):
        await journal.close()

    assert failures == [gate.failure]
    assert told == []
    gate.failure = None
    assert (await contents(tmp_path)).ids == [1]


async def failed(tmp_path: Path, gate: Gate) -> SQLiteJournal:
    failure = asyncio.get_running_loop().create_future()
    journal = SQLiteJournal(tmp_path, on_failure=failure.set_result)
    gate.failure = StorageFailed(tmp_path, "disk I/O error")
    journal.store(message(1))
    journal.forget(77)
    assert await failure is journal.failure
    gate.failure = None
    return journal


async def test_what_is_appended_after_a_failure_is_ignored(tmp_path: Path, gate: Gate) -> None:
    journal = await failed(tmp_path, gate)
    told: list[str] = []
    journal.store(message(2))
    journal.forget(1)
    journal.note_delivery(1, 1)
    journal.note_return(1, 1)
    journal.define(definition(3))
    journal.undefine(3)
    journal.forget_queue(1)
    journal.after_commit(lambda: told.append("told"))
    await turns()

    assert (journal.pending, told, len(gate.batches)) == (0, [], 1)
    assert "FAILED" in repr(journal)
    with pytest.raises(StorageFailed):
        await journal.close()


async def test_after_a_failure_lingering_acknowledgements_wake_nobody(tmp_path: Path, gate: Gate, clock: Clock) -> None:
    journal = SQLiteJournal(tmp_path)
    gate.shut()
    journal.store(message(1))
    await gate.arrival()
    journal.forget(7)
    gate.failure = DiskFull(tmp_path)
    gate.open()
    with pytest.raises(DiskFull):
        await journal.close()
    await clock.advance(1)

    assert len(gate.batches) == 1


async def test_a_failed_journal_lets_go_of_its_directory(tmp_path: Path, gate: Gate) -> None:
    journal = await failed(tmp_path, gate)
    for _ in range(2):
        with pytest.raises(StorageFailed):
            await journal.close()

    assert (await contents(tmp_path)).ids == []


async def test_a_batch_that_sqlite_cannot_take_is_a_failure_like_any_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    journal = SQLiteJournal(tmp_path)
    journal.store(message(2**63))
    with caplog.at_level(logging.CRITICAL), pytest.raises(StorageFailed, match="OverflowError"):
        await journal.close()

    assert "nothing is confirmed any more" in caplog.text


# Opening and closing ------------------------------------------------------------------------------


async def test_the_directory_is_made_when_it_is_missing(tmp_path: Path) -> None:
    await SQLiteJournal(tmp_path / "some" / "where").close()

    assert {path.name for path in (tmp_path / "some" / "where").iterdir()} == {"broker.lock", "broker.sqlite3"}


async def test_a_directory_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("hello")
    with pytest.raises(StorageError, match=r"cannot be used .*File exists"):
        SQLiteJournal(tmp_path / "data")


async def test_a_second_journal_on_the_directory_is_refused(journal: Journal, tmp_path: Path) -> None:
    with pytest.raises(DirectoryInUse):
        SQLiteJournal(tmp_path)
    journal.store(message(1))
    await journal.close()

    assert (await contents(tmp_path)).ids == [1]


async def test_a_journal_that_cannot_open_its_file_lets_go_of_the_directory(tmp_path: Path) -> None:
    file = tmp_path / "broker.sqlite3"
    file.write_text("hello")
    with pytest.raises(StorageError):
        SQLiteJournal(tmp_path)
    file.unlink()

    assert (await contents(tmp_path)).ids == []


async def test_closing_commits_what_is_left_behind_what_is_on_its_way(
    journal: SQLiteJournal, gate: Gate, tmp_path: Path
) -> None:
    told: list[int] = []
    gate.shut()
    journal.store(message(1))
    journal.after_commit(lambda: told.append(1))
    await gate.arrival()
    journal.store(message(2))
    journal.after_commit(lambda: told.append(2))
    closing = asyncio.create_task(journal.close())
    await turns()
    assert "CLOSING" in repr(journal)
    gate.open()
    await closing

    assert "CLOSED" in repr(journal)
    assert told == [1, 2]
    assert (await contents(tmp_path)).ids == [1, 2]


async def test_closing_does_not_wait_for_the_lingering(journal: Journal, tmp_path: Path, clock: Clock) -> None:
    journal.store(message(1))
    await on_disk(journal)
    journal.forget(1)
    await journal.close()
    await clock.advance(1)

    assert (await contents(tmp_path)).ids == []


async def test_closing_twice_is_closing_once(journal: Journal) -> None:
    await asyncio.gather(journal.close(), journal.close())
    await journal.close()


@pytest.mark.parametrize("append", ["store", "forget", "after_commit", "note_delivery"])
async def test_a_closed_journal_refuses_to_be_appended_to(journal: Journal, append: str) -> None:
    await journal.close()
    for id in (1, 2):
        arguments = {"store": (message(id),), "forget": (id,), "after_commit": (print,), "note_delivery": (1, id)}
        with pytest.raises(Closed, match="the journal was closed"):
            getattr(journal, append)(*arguments[append])

    assert journal.pending == 0


def test_a_loop_that_ends_before_its_journal_gets_a_warning(
    tmp_path: Path, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    async def forgetful() -> SQLiteJournal:
        journal = SQLiteJournal(tmp_path)
        gate.shut()
        journal.store(message(1))
        await gate.arrival()
        return journal

    journal = asyncio.run(forgetful())
    gate.open()
    journal._inbox.put(None)
    journal._thread.join()

    assert "was not closed before its loop" in caplog.text
    assert [one.id for one in asyncio.run(contents(tmp_path)).messages] == [1]
