"""The relay, with rows in a list and a broker that does as it is told."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta

import pytest

from redrive.errors import (
    AccessRefused,
    ConnectionClosed,
    EncodingError,
    NotPublished,
    PublishError,
    PublishErrors,
    PublishUnknown,
    RedriveError,
    ReplyCode,
    Unroutable,
)
from redrive.outbox.relay import Relay, rounds
from redrive.outbox.repository import ClaimCandidate, OutboxRow, RefusedRow, fitting_rows
from redrive.wire.properties import Properties


def row(number: int, key: str | None = None, *, attempts: int = 0, exchange: str = "") -> OutboxRow:
    return OutboxRow(number, f"m-{number}", exchange, "orders", b"%d" % number, b"", key, attempts)


@dataclass
class Rows:
    """An outbox in a list. `trouble` is raised by the next claim."""

    rows: list[OutboxRow]
    refused: dict[int, RefusedRow] = field(default_factory=dict)
    trouble: Exception | None = None
    claims: int = 0

    @contextmanager
    def claim(self, limit: int) -> Iterator[Claimed]:
        self.claims += 1
        trouble, self.trouble = self.trouble, None
        if trouble is not None:
            raise trouble
        yield Claimed(self, self.rows[:limit])

    @property
    def left(self) -> list[int]:
        return [row.id for row in self.rows]


@dataclass
class Claimed:
    store: Rows
    rows: Sequence[OutboxRow]

    def settle(self, published: Sequence[int], refused: Iterable[RefusedRow]) -> None:  # type: ignore[override]
        self.store.refused.update({row.id: row for row in refused})
        done = {*published, *self.store.refused}
        self.store.rows = [row for row in self.store.rows if row.id not in done]


Message = tuple[str, str, bytes, Properties | bytes, bool]


@dataclass
class Broker:
    """Takes what `fate` has nothing against. It is asked for every message, with all that are sent together."""

    fate: Callable[[int, list[int]], PublishError | None] = lambda _number, _together: None
    sent: list[list[int]] = field(default_factory=list)

    async def publish_many(self, messages: Iterable[Message]) -> int:
        together = [int(body) for _, _, body, _, mandatory in messages if mandatory]
        self.sent.append(together)
        errors = []
        for index, number in enumerate(together):
            if (error := self.fate(number, together)) is not None:
                error.index = index
                errors.append(error)
        if errors:
            raise PublishErrors("some failed", errors)
        return len(together)


class Waker:
    """Wakes whoever waits at once, and lets a test wait for somebody who does."""

    def __init__(self) -> None:
        self.waited = asyncio.Event()

    async def wait(self, since: float) -> None:  # noqa: ARG002
        self.waited.set()
        await asyncio.sleep(0)


class Turn:
    """A turn that is another's at some of the times that it is asked for."""

    def __init__(self, *lost: int) -> None:
        self._lost = lost
        self._asked = 0

    async def keep(self) -> None:
        self._asked += 1
        if self._asked in self._lost:
            raise RedriveError("another relay has taken over")


def relay_of(
    rows: Rows,
    broker: Broker,
    *,
    attempts: int = 3,
    lanes: int = 1,
    waker: Waker | None = None,
    turn: Turn | None = None,
) -> Relay:
    return Relay(rows, broker, waker or Waker(), attempts=attempts, lanes=lanes, lock=turn)


def unknown(cause: RedriveError | None = None) -> PublishUnknown:
    error = PublishUnknown("", "orders", "sent, but not confirmed")
    error.__cause__ = cause
    return error


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redrive.outbox.relay._TROUBLE", 0)


# Marking ------------------------------------------------------------------------------------------


async def test_what_is_confirmed_is_marked() -> None:
    rows, broker = Rows([row(1), row(2)]), Broker()
    relay = relay_of(rows, broker)
    assert await relay.relay_batch() == 2
    assert (broker.sent, rows.left, relay.published) == ([[1, 2]], [], 2)
    assert await relay.relay_batch() == 0


@pytest.mark.parametrize("error", [unknown(), NotPublished("", "orders", "not connected")])
async def test_a_broker_that_is_away_is_nobodys_fault(error: PublishError) -> None:
    rows = Rows([row(1), row(2)])
    await relay_of(rows, Broker(lambda number, _: error if number == 2 else None)).relay_batch()
    assert (rows.left, rows.refused) == ([2], {})


async def test_a_refused_row_is_put_off_for_longer_and_longer_and_then_parked() -> None:
    rows = Rows([row(1), row(2, attempts=1), row(3, attempts=2), row(4)])
    broker = Broker(lambda number, _: Unroutable("", "orders", "nowhere") if number < 4 else None)
    relay = relay_of(rows, broker, attempts=3)
    await relay.relay_batch()
    pauses = [rows.refused[number].again_after for number in (1, 2, 3)]
    assert pauses == [timedelta(seconds=1), timedelta(seconds=2), None]
    assert (rows.left, relay.published, relay.parked) == ([], 1, 1)


# Who is to blame ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "objection",
    [
        AccessRefused(403, "access to exchange refused"),
        ConnectionClosed(ReplyCode.SYNTAX_ERROR, "what is that?"),
    ],
)
async def test_when_the_broker_objects_without_saying_to_whom_each_is_sent_alone(objection: RedriveError) -> None:
    rows = Rows([row(1), row(2), row(3)])
    broker = Broker(lambda _, together: unknown(objection) if 2 in together else None)
    await relay_of(rows, broker, attempts=1).relay_batch()
    assert broker.sent == [[1, 2, 3], [1], [2], [3]]
    assert rows.refused.keys() == {2}
    assert str(objection) in rows.refused[2].error


async def test_a_broker_that_is_stopped_objects_to_nobody() -> None:
    stopped = ConnectionClosed(ReplyCode.CONNECTION_FORCED, "broker forced connection closure")
    rows, broker = Rows([row(1), row(2)]), Broker(lambda *_: unknown(stopped))
    await relay_of(rows, broker).relay_batch()
    assert (broker.sent, rows.left, rows.refused) == ([[1, 2]], [1, 2], {})


async def test_when_the_broker_goes_away_while_culprits_are_sought_the_others_wait() -> None:
    def fate(number: int, together: list[int]) -> PublishError | None:
        if len(together) > 1:
            return unknown(AccessRefused(403, "refused"))
        return NotPublished("", "orders", "not connected") if number == 2 else None

    rows, broker = Rows([row(1), row(2), row(3)]), Broker(fate)
    await relay_of(rows, broker).relay_batch()
    assert broker.sent == [[1, 2, 3], [1], [2]]
    assert (rows.left, rows.refused) == ([2, 3], {})


async def test_what_cannot_be_written_down_is_its_own_fault() -> None:
    error = NotPublished("", "orders", "a name of 400 bytes")
    error.__cause__ = EncodingError("a name of 400 bytes")
    rows = Rows([row(1)])
    await relay_of(rows, Broker(lambda *_: error), attempts=1).relay_batch()
    assert rows.refused[1].again_after is None


# Order --------------------------------------------------------------------------------------------


def test_a_round_has_each_key_once_and_all_that_has_none() -> None:
    given = [row(1, "a"), row(2), row(3, "a"), row(4, "b"), row(5), row(6, "a")]
    assert [[one.id for one in some] for some in rounds(given)] == [[1, 2, 4, 5], [3], [6]]


async def test_behind_a_row_that_fails_nothing_of_its_key_is_sent() -> None:
    rows = Rows([row(1, "a"), row(2, "b"), row(3, "a"), row(4, "b")])
    broker = Broker(lambda number, _: Unroutable("", "orders", "nowhere") if number == 1 else None)
    await relay_of(rows, broker).relay_batch()
    assert broker.sent == [[1, 2], [4]]
    assert (rows.left, rows.refused.keys()) == ([3], {1})


# Turns --------------------------------------------------------------------------------------------


async def test_while_it_is_anothers_turn_rows_are_not_even_read(caplog: pytest.LogCaptureFixture) -> None:
    rows, waker, stop = Rows([row(1)]), Waker(), asyncio.Event()
    relay = relay_of(rows, Broker(), waker=waker, turn=Turn(1, 2, 3))
    running = asyncio.create_task(relay.run(stop))
    await waker.waited.wait()
    stop.set()
    await running
    assert (relay.published, rows.claims) == (1, 2)
    assert caplog.text.count("the outbox waits: another relay has taken over") == 1


async def test_a_turn_that_is_lost_in_between_leaves_the_rest_alone_and_marks_what_was_confirmed() -> None:
    rows, broker = Rows([row(1, "a"), row(2), row(3, "a")]), Broker()
    await relay_of(rows, broker, turn=Turn(3)).relay_batch()
    assert broker.sent == [[1, 2]]
    assert (rows.left, rows.refused) == ([3], {})


# Running ------------------------------------------------------------------------------------------


async def test_a_database_that_is_away_is_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    rows, waker, stop = Rows([row(1)], trouble=sqlite3.OperationalError("down")), Waker(), asyncio.Event()
    relay = relay_of(rows, Broker(), waker=waker)
    running = asyncio.create_task(relay.run(stop))
    await waker.waited.wait()
    stop.set()
    await running
    assert relay.published == 1
    assert "the outbox waits: down" in caplog.text


async def test_a_bug_ends_the_relay_and_is_not_tried_again() -> None:
    rows = Rows([row(1)], trouble=ZeroDivisionError("a bug"))
    with pytest.RaisesGroup(ZeroDivisionError):
        await relay_of(rows, Broker()).run(asyncio.Event())
    assert rows.claims == 1


async def test_several_lanes_send_by_turns() -> None:
    busy = 0

    class Slow(Broker):
        async def publish_many(self, messages: Iterable[Message]) -> int:
            nonlocal busy
            busy += 1
            assert busy == 1
            await asyncio.sleep(0)
            busy -= 1
            return await super().publish_many(messages)

    rows, waker, stop = Rows([row(1)]), Waker(), asyncio.Event()
    running = asyncio.create_task(relay_of(rows, Slow(), lanes=3, waker=waker).run(stop))
    await waker.waited.wait()
    stop.set()
    await running
    assert rows.left == []


# A claim's size -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "taken"), [([], 0), ([10, 20, 30], 2), ([100, 1], 1), ([30], 1), ([31], 1), ([0, 0, 30, 1], 3)]
)
def test_a_claim_takes_the_first_rows_that_fit_and_at_least_one(sizes: list[int], taken: int) -> None:
    candidates = [ClaimCandidate(number, None, size) for number, size in enumerate(sizes)]
    assert fitting_rows(candidates, 30) == candidates[:taken]
