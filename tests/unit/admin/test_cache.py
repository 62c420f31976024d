"""What was seen is kept for a while, and one look serves all who ask meanwhile."""

import asyncio
from datetime import timedelta

import pytest

from redrive.admin.cache import QueryCache
from redrive.errors import NotFound, OperationConflict
from redrive.testing.clock import ManualClock

QUEUE = "orders.dlq"


class Looks:
    """A queue that can be looked at, and counts how often that was done."""

    def __init__(self) -> None:
        self.count = 0
        self.error: Exception | None = None
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self) -> int:
        self.count += 1
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        return self.count


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def snapshots(clock: ManualClock) -> QueryCache:
    return QueryCache(clock, kept=30)


async def test_it_is_looked_at_again_when_it_is_old_or_somebody_wants_it(
    snapshots: QueryCache, clock: ManualClock
) -> None:
    look = Looks()
    first = await snapshots.get(QUEUE, "groups", look)
    clock.advance(timedelta(seconds=29))
    again = await snapshots.get(QUEUE, "groups", look)
    fresh = await snapshots.get(QUEUE, "groups", look, fresh=True)
    clock.advance(timedelta(seconds=31))
    old = await snapshots.get(QUEUE, "groups", look)
    assert [first.value, again.value, fresh.value, old.value] == [1, 1, 2, 3]
    assert again.at == first.at < old.at


async def test_all_who_ask_meanwhile_share_a_look_which_outlives_the_first(snapshots: QueryCache) -> None:
    look = Looks()
    look.gate.clear()
    asking = [asyncio.create_task(snapshots.get(QUEUE, "groups", look)) for _ in range(10)]
    await asyncio.sleep(0)
    asking[0].cancel()
    await asyncio.sleep(0)
    look.gate.set()
    told = await asyncio.gather(*asking, return_exceptions=True)
    assert isinstance(told[0], asyncio.CancelledError)
    assert [one.value for one in told[1:]] == [1] * 9  # type: ignore[union-attr]


async def test_while_an_operation_has_the_queue_the_last_look_is_shown(
    snapshots: QueryCache, clock: ManualClock
) -> None:
    look = Looks()
    seen = await snapshots.get(QUEUE, "groups", look)
    clock.advance(timedelta(seconds=60))
    look.error = OperationConflict(QUEUE, "operation op_1")
    old = await snapshots.get(QUEUE, "groups", look)
    assert (old.value, old.at) == (seen.value, seen.at)
    assert "op_1" in old.why_old
    with pytest.raises(OperationConflict):
        await snapshots.get("payments.dlq", "groups", look)


async def test_an_error_is_told_and_not_kept(snapshots: QueryCache) -> None:
    look = Looks()
    look.error = NotFound(404, "no queue")
    with pytest.raises(NotFound):
        await snapshots.get(QUEUE, "groups", look)
    look.error = None
    assert (await snapshots.get(QUEUE, "groups", look)).value == 2


async def test_a_queue_that_has_changed_is_looked_at_again(snapshots: QueryCache) -> None:
    look, other = Looks(), Looks()
    await snapshots.get(QUEUE, "groups", look)
    await snapshots.get("payments.dlq", "groups", other)
    snapshots.invalidate(QUEUE)
    assert (await snapshots.get(QUEUE, "groups", look)).value == 2
    assert (await snapshots.get("payments.dlq", "groups", other)).value == 1


async def test_what_is_kept_has_a_bound(snapshots: QueryCache) -> None:
    look = Looks()
    for number in range(500):
        await snapshots.get(QUEUE, ("message", number), look)
    assert "200 kept" in repr(snapshots)
    await snapshots.get(QUEUE, ("message", 499), look)
    assert look.count == 500
    await snapshots.get(QUEUE, ("message", 0), look)
    assert look.count == 501
