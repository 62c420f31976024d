"""The journal that keeps nothing behaves like one whose disk is infinitely quick."""

import asyncio
from typing import Any

from redrive.broker.storage import Journal, MemoryJournal
from unit.broker.storage.samples import definition, fail, message, on_disk, recovered


async def test_nothing_is_remembered() -> None:
    journal: Journal = MemoryJournal()
    journal.define(definition(1))
    journal.store(message(2))
    journal.note_return(2, 1)
    journal.note_delivery(1, 2)
    journal.forget(2)
    journal.forget_queue(1)
    journal.undefine(1)
    await on_disk(journal)

    assert journal.pending == 0
    assert recovered(journal) == ([], [], {}, 1)


async def test_callbacks_wait_for_the_end_of_the_turn_and_keep_their_order() -> None:
    journal = MemoryJournal()
    called: list[int] = []
    for number in range(3):
        journal.after_commit(lambda number=number: called.append(number))  # type: ignore[misc]

    assert called == []
    assert repr(journal) == "<MemoryJournal callbacks=3>"
    await asyncio.sleep(0)
    assert called == [0, 1, 2]


async def test_a_callback_that_asks_for_another_is_called_back_again() -> None:
    journal = MemoryJournal()
    again = asyncio.get_running_loop().create_future()
    journal.after_commit(lambda: journal.after_commit(lambda: again.set_result("called")))

    assert await again == "called"


async def test_a_callback_that_fails_is_reported_and_the_others_are_called(complaints: list[dict[str, Any]]) -> None:
    journal = MemoryJournal()
    called: list[str] = []
    journal.after_commit(fail)
    journal.after_commit(lambda: called.append("second"))
    await asyncio.sleep(0)

    assert called == ["second"]
    assert [type(complaint["exception"]) for complaint in complaints] == [LookupError]
    complaints.clear()


async def test_closing_calls_those_who_wait() -> None:
    journal = MemoryJournal()
    called: list[str] = []
    journal.after_commit(lambda: called.append("called"))
    await journal.close()

    assert called == ["called"]
