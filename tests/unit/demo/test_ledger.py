"""The demo's account: a message that went nowhere must be missed."""

from collections.abc import Mapping
from typing import Any

import pytest

from redrive.demo.ledger import Ledger
from redrive.topology import Exchange, Queue

events = Exchange("events", "topic")
QUEUES = [Queue("all", events.on("#")), Queue("new", events.on("files.uploaded.*")), Queue("other", [])]


class Handled:
    def __init__(self, queue: str, message_id: str, headers: Mapping[str, Any] | None = None, attempt: int = 1) -> None:
        self.queue = queue
        self.message_id = message_id
        self.headers = headers or {}
        self.attempt = attempt


async def handle(books: Ledger, *words: Any, error: Exception | None = None) -> None:
    async with books.record_handling(Handled(*words)):  # type: ignore[arg-type]
        if error is not None:
            raise error


@pytest.fixture
def books() -> Ledger:
    books = Ledger()
    books.owe("m1", "events", "files.uploaded.png", QUEUES)
    return books


async def test_a_message_is_owed_to_every_queue_that_it_reaches(books: Ledger) -> None:
    assert books.owed == {("all", "m1"), ("new", "m1")}

    await handle(books, "all", "m1")

    assert books.lost_debts([]) == {("new", "m1")}
    assert books.lost_debts([("new", "m1")]) == set()  # it is a dead letter there


async def test_what_fails_is_still_owed(books: Ledger) -> None:
    with pytest.raises(OSError, match="no"):
        await handle(books, "all", "m1", error=OSError("no"))

    assert ("all", "m1") in books.owed


async def test_a_dead_letter_of_another_queue_pays_nothing(books: Ledger) -> None:
    assert books.lost_debts([("other", "m1"), ("all", "m2")]) == {("all", "m1"), ("new", "m1")}


async def test_what_was_not_published_is_not_owed(books: Ledger) -> None:
    books.take_back("m1")

    assert (books.owed, books.sent) == (set(), 0)


async def test_a_message_that_was_re_driven_is_counted_once(books: Ledger) -> None:
    for attempt in (1, 2):
        await handle(books, "all", "m1", {"x-redriven-count": 1}, attempt)

    assert books.redriven == {"all": 1}
