"""What re-driving promises, on every broker: nothing lost, nothing in between, everything told."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from dead_lettering import (
    DEAD_AT,
    DLQ,
    SOURCE,
    Memory,
    a_mover,
    an_operation,
    an_order,
    bodies,
    dead_letter,
    eventually,
    handling,
    operating,
    orders,
    prepare,
    redrive,
    until_depth,
)
from redrive.client import Connection, Delivery, Properties
from redrive.client import LinkState as ConnectionState
from redrive.client.browser import QueueBrowser
from redrive.client.publisher import AnyPublish, Publish
from redrive.errors import ConnectionLost, NotPublished, OperationConflict, PublishErrors, PublishUnknown
from redrive.operations import pipeline
from redrive.operations.dlq_adapter import DlqAdapter
from redrive.operations.operation import (
    CanarySchedule,
    ControlRequest,
    Counts,
    Destination,
    DestinationKind,
    ItemOutcome,
    Operation,
    OperationRequest,
    OperationState,
    Selection,
)
from redrive.operations.pipeline import WINDOW
from redrive.operations.runner import OperationRunner
from redrive.wire.raw_properties import patch_properties
from tests.support.proxy import FaultProxy

TYPES = ["classic", "quorum"]
MANY = 3 * WINDOW


@pytest.mark.parametrize("queue_type", TYPES)
async def test_everything_goes_back_to_work(connection: Connection, amqp_url: str, queue_type: str) -> None:
    await prepare(connection, 5, queue_type)
    memory = Memory()

    over = await redrive(amqp_url, memory=memory)

    assert (over.state, over.counts.moved, over.scope) == (OperationState.SUCCEEDED, 5, 5)
    assert memory.operation is not None
    assert replace(memory.operation, beat_at=None) == over
    assert [item.message_id for item in memory.outcomes(ItemOutcome.MOVED)] == [f"m-{number}" for number in range(5)]
    assert await bodies(connection, SOURCE) == orders(*range(5))
    await until_depth(connection, DLQ, 0)


async def test_a_message_arrives_as_its_publisher_made_it_with_its_lineage(
    connection: Connection, amqp_url: str
) -> None:
    await prepare(connection, 0)
    letter = dead_letter(1)
    assert isinstance(letter.properties, Properties)
    await connection.publish("", DLQ, letter.body, replace(letter.properties, expiration="600000"))
    await until_depth(connection, DLQ, 1)

    await redrive(amqp_url)

    properties = (await taken(connection, SOURCE)).properties
    assert (properties.priority, properties.delivery_mode, properties.message_id) == (3, 2, "m-1")
    assert (properties.correlation_id, properties.type, properties.timestamp) == ("c-1", "OrderPlaced", DEAD_AT)
    assert properties.expiration is None
    headers = properties.headers or {}
    assert headers["tenant"] == "acme"
    assert headers["x-redriven-count"] == 1
    assert headers["x-redriven-op"] == "op_test"
    assert headers["x-redriven-by"] == "ada"
    assert headers["x-redriven-from"] == DLQ
    assert headers["x-redriven-reason"] == "INC-42"
    assert "x-redrive-attempts" not in headers
    assert "x-redrive-error" not in headers


@pytest.mark.parametrize("queue_type", TYPES)
async def test_what_is_not_selected_stays_in_its_order(connection: Connection, amqp_url: str, queue_type: str) -> None:
    await prepare(connection, 20, queue_type)

    over = await redrive(amqp_url, an_order(selection=Selection(group="3fa9")))

    assert (over.state, over.counts.moved) == (OperationState.SUCCEEDED, 10)
    assert await bodies(connection, SOURCE) == orders(*range(1, 20, 2))
    await until_depth(connection, DLQ, 10)
    assert await bodies(connection, DLQ) == orders(*range(0, 20, 2))


@pytest.mark.parametrize("queue_type", TYPES)
async def test_of_thousands_every_second_stays_in_its_order_and_the_look_at_it_counts_as_no_failure(
    connection: Connection, amqp_url: str, queue_type: str
) -> None:
    """So many that several consumers take them, and what each of them had last is moved."""
    await prepare(connection, 3000, queue_type)

    over = await redrive(amqp_url, an_order(selection=Selection(group="3fa9")))

    assert (over.state, over.counts.moved) == (OperationState.SUCCEEDED, 1500)
    await until_depth(connection, DLQ, 1500)
    left = [await taken(connection, DLQ) for _ in range(1500)]
    assert [delivery.body for delivery in left] == orders(*range(0, 3000, 2))
    failures = {(delivery.properties.headers or {}).get("x-delivery-count", 0) for delivery in left}
    counts = queue_type == "quorum" and connection.server_version < (4, 3)  # where every return does
    assert failures == ({1} if counts else {0})


async def taken(connection: Connection, queue: str) -> Delivery:
    delivery = await connection.get(queue)
    assert delivery is not None
    delivery.ack()
    return delivery


async def test_a_limit_a_query_and_ids_select(connection: Connection, amqp_url: str) -> None:
    await prepare(connection, 10)

    await redrive(amqp_url, an_order(selection=Selection(limit=2)))
    await redrive(amqp_url, an_order(selection=Selection(query="body.order:>7")))
    await redrive(amqp_url, an_order(selection=Selection(ids=("m-4",))))

    assert await bodies(connection, SOURCE) == orders(0, 1, 8, 9, 4)
    assert await bodies(connection, DLQ) == orders(2, 3, 5, 6, 7)


async def test_what_cannot_be_routed_stays_and_is_told_of(connection: Connection, amqp_url: str) -> None:
    await prepare(connection, 3)
    memory = Memory()

    over = await redrive(amqp_url, an_order(to=Destination(DestinationKind.QUEUE, "nowhere")), memory)

    assert (over.state, over.counts.moved, over.counts.failed) == (OperationState.PARTIAL, 0, 3)
    assert [item.to for item in memory.outcomes(ItemOutcome.FAILED)] == ["nowhere"] * 3
    assert await bodies(connection, DLQ) == orders(0, 1, 2)


async def test_an_operation_that_only_fails_ends_early(
    connection: Connection, amqp_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "MOST_FAILURES", 3)
    monkeypatch.setattr(pipeline, "PORTION", 3)
    await prepare(connection, 30)

    over = await redrive(amqp_url, an_order(to=Destination(DestinationKind.QUEUE, "nowhere")))

    assert over.state is OperationState.FAILED
    assert "in a row" in over.note
    assert over.counts.failed < 30
    await until_depth(connection, DLQ, 30)
    assert await bodies(connection, DLQ) == orders(*range(30))


async def test_a_message_that_was_re_driven_too_often_is_skipped(connection: Connection, amqp_url: str) -> None:
    await prepare(connection, 1)
    await connection.publish_many([dead_letter(7, **{"x-redriven-count": 3})])
    await until_depth(connection, DLQ, 2)
    memory = Memory()

    over = await redrive(amqp_url, memory=memory)

    assert (over.counts.moved, over.counts.skipped) == (1, 1)
    assert memory.outcomes(ItemOutcome.SKIPPED)[0].why == "re-driven 3 times already"
    assert await bodies(connection, DLQ) == orders(7)


async def test_copies_and_foreign_users_do_no_harm(connection: Connection, amqp_url: str) -> None:
    await prepare(connection, 0)
    await connection.declare_queue("copies")
    await connection.publish_many([dead_letter(1, CC=["copies"])])
    assert len(await bodies(connection, "copies")) == 1

    await redrive(amqp_url)

    assert await bodies(connection, SOURCE) == orders(1)
    assert await bodies(connection, "copies") == []


async def test_unreadable_properties_are_moved_all_the_same(connection: Connection, amqp_url: str) -> None:
    await prepare(connection, 0)
    letter = dead_letter(1)
    raw = letter.properties.encode() if not isinstance(letter.properties, bytes) else letter.properties
    odd = patch_properties(raw, set_headers={b"odd": b"S\x00\x00\x00\x02\xff\xfe"})
    await connection.publish("", DLQ, b"\xff\x00", odd)

    over = await redrive(amqp_url)

    assert over.counts.moved == 1
    assert await bodies(connection, SOURCE) == [b"\xff\x00"]


# One at a time ------------------------------------------------------------------------------------


async def test_of_two_operators_one_gets_the_conflict(connection: Connection, amqp_url: str) -> None:
    await prepare(connection, 10)
    async with operating(amqp_url) as first, operating(amqp_url) as second:
        mover = a_mover(first, an_order(rate=1))
        running = asyncio.create_task(mover.run())
        await eventually(lambda: mover.operation.state is OperationState.RUNNING)

        with pytest.raises(OperationConflict, match=DLQ):
            await a_mover(second).run()

        mover.control.cancel()
        over = await running
        assert over.state is OperationState.CANCELLED
        assert (await a_mover(second, id="op_2").run()).state is OperationState.SUCCEEDED
    await until_depth(connection, SOURCE, 10)


async def test_what_arrives_meanwhile_is_not_touched(connection: Connection, amqp_url: str) -> None:
    await prepare(connection, 3)
    async with operating(amqp_url) as broker:
        mover = a_mover(broker, an_order(rate=20))
        running = asyncio.create_task(mover.run())
        await eventually(lambda: mover.operation.counts.moved > 0)
        await connection.publish_many([dead_letter(99)])
        over = await running

    assert over.counts.moved == 3
    assert await bodies(connection, DLQ) == orders(99)


# Steering -----------------------------------------------------------------------------------------


def late(number: int, priority: int = 3) -> Publish:
    """One that dies now."""
    letter = dead_letter(number, **{"x-redrive-parked-at": datetime.now(UTC).isoformat()})
    assert isinstance(letter.properties, Properties)
    return letter._replace(properties=replace(letter.properties, priority=priority))


async def test_what_is_more_urgent_and_arrives_meanwhile_is_not_touched(
    connection: Connection, amqp_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though it stands before the rest."""
    await prepare(connection, 20, **{"x-max-priority": 10})
    async with operating(amqp_url) as broker:
        hold = broker.browse

        async def hold_later(queue: str, at_most: int) -> QueueBrowser:
            await connection.publish_many(late(number, 9) for number in range(100, 105))
            await until_depth(connection, DLQ, 25)
            monkeypatch.undo()
            return await hold(queue, at_most)

        monkeypatch.setattr(broker, "browse", hold_later)
        over = await a_mover(broker, keeps_order=False, prefers_urgent=True).run()

    assert (over.state, over.counts.moved) == (OperationState.SUCCEEDED, 20)
    assert await bodies(connection, SOURCE) == orders(*range(20))
    assert await bodies(connection, DLQ) == orders(*range(100, 105))


async def test_what_is_more_urgent_and_came_after_the_plan_is_not_touched(
    connection: Connection, amqp_url: str
) -> None:
    await prepare(connection, 20, **{"x-max-priority": 10})
    planned = Selection(now=datetime.now(UTC), limit=20)
    await connection.publish_many(late(number, 9) for number in range(100, 105))
    await until_depth(connection, DLQ, 25)

    over = await redrive(amqp_url, an_order(selection=planned), keeps_order=False, prefers_urgent=True)

    assert (over.state, over.counts.moved) == (OperationState.SUCCEEDED, 20)
    assert await bodies(connection, DLQ) == orders(*range(100, 105))


async def test_who_goes_on_where_order_is_lost_finds_what_stands_behind_what_came_later(
    connection: Connection, amqp_url: str
) -> None:
    await prepare(connection, 0)
    begun = an_operation()
    moved = replace(begun, state=OperationState.RUNNING, counts=Counts(moved=3), scope=8, started_at=begun.created_at)
    await connection.publish_many(late(number) for number in range(100, 120))
    await connection.publish_many(dead_letter(number) for number in range(3, 8))
    await until_depth(connection, DLQ, 25)

    over = await redrive(amqp_url, operation=moved, keeps_order=False)

    assert (over.state, over.counts.moved) == (OperationState.SUCCEEDED, 8)
    assert await bodies(connection, SOURCE) == orders(*range(3, 8))
    assert await bodies(connection, DLQ) == orders(*range(100, 120))


async def test_where_order_is_lost_no_more_are_moved_than_were_there(connection: Connection, amqp_url: str) -> None:
    """Also of messages that do not tell when they died."""
    await prepare(connection, 0)
    begun = replace(an_operation(), state=OperationState.RUNNING, scope=3, started_at=datetime.now(UTC))
    silent = [dead_letter(number, **{"x-redrive-parked-at": None}) for number in range(5)]
    await connection.publish_many(silent)
    await until_depth(connection, DLQ, 5)

    over = await redrive(amqp_url, operation=begun, keeps_order=False)

    assert (over.state, over.counts.moved) == (OperationState.SUCCEEDED, 3)


@pytest.mark.parametrize("queue_type", TYPES)
async def test_an_operation_can_be_paused_resumed_and_hurried(
    connection: Connection, amqp_url: str, queue_type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redrive.operations.control._BEAT", 0.02)
    await prepare(connection, 50, queue_type)
    memory = Memory()
    async with operating(amqp_url) as broker:
        mover = a_mover(broker, an_order(rate=20), memory, keeps_order=queue_type == "classic")
        running = asyncio.create_task(mover.run())
        await eventually(lambda: mover.operation.counts.moved > 0)

        memory.wished = ControlRequest(OperationState.PAUSED)
        await eventually(lambda: memory.operation is not None and memory.operation.state is OperationState.PAUSED)
        await everything_is_back(connection, mover)

        memory.wished = ControlRequest(OperationState.RUNNING, rate=10_000)
        over = await running

    assert (over.state, over.counts.moved, over.order.rate) == (OperationState.SUCCEEDED, 50, 10_000)
    assert await bodies(connection, SOURCE) == orders(*range(50))


async def everything_is_back(connection: Connection, mover: OperationRunner) -> None:
    async with asyncio.timeout(20):
        while (await connection.queue_info(DLQ)).messages != 50 - mover.operation.counts.moved:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_a_cancelled_operation_leaves_the_rest(
    connection: Connection, amqp_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redrive.operations.control._BEAT", 0.02)
    await prepare(connection, 20)
    memory = Memory()
    async with operating(amqp_url) as broker:
        mover = a_mover(broker, an_order(rate=20), memory)
        running = asyncio.create_task(mover.run())
        await eventually(lambda: mover.operation.counts.moved > 0)
        memory.wished = ControlRequest(OperationState.CANCELLING)
        over = await running

    assert over.state is OperationState.CANCELLED
    moved = over.counts.moved
    assert 0 < moved < 20
    assert await bodies(connection, SOURCE) == orders(*range(moved))
    assert await bodies(connection, DLQ) == orders(*range(moved, 20))


# Canary -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("queue_type", TYPES)
async def test_a_canary_stops_itself_when_too_much_comes_back(
    connection: Connection, other: Connection, amqp_url: str, queue_type: str
) -> None:
    await prepare(connection, 200, queue_type)
    handled = 0

    async def consume(delivery: object) -> None:
        nonlocal handled
        handled += 1
        if handled % 3 == 0:  # it fails again
            await other.publish("", DLQ, delivery.body, delivery.raw_properties)  # type: ignore[attr-defined]
        delivery.ack()  # type: ignore[attr-defined]

    async with await other.consume(SOURCE, consume):
        ramp = CanarySchedule((1, 5, 20, 100), returned_pct=10, wait=0.5)
        over = await redrive(amqp_url, an_order(ramp=ramp), keeps_order=queue_type == "classic")

    assert over.state is OperationState.STOPPED_BY_GUARD
    assert over.counts.moved <= 26
    assert over.counts.returned * 10 > over.counts.moved
    assert handled == over.counts.moved
    await until_depth(connection, DLQ, 200 - over.counts.moved + over.counts.returned)


async def test_a_canary_that_sings_moves_everything(connection: Connection, other: Connection, amqp_url: str) -> None:
    await prepare(connection, 30)

    async with handling(other, SOURCE) as handled:
        over = await redrive(amqp_url, an_order(ramp=CanarySchedule((1, 5, 20), wait=0.2)))

    assert (over.state, over.counts.moved, over.step) == (OperationState.SUCCEEDED, 30, 4)
    assert handled == orders(*range(30))


async def test_a_canary_without_a_consumer_is_undecided(connection: Connection, amqp_url: str) -> None:
    await prepare(connection, 30)

    over = await redrive(amqp_url, an_order(ramp=CanarySchedule((1, 5, 20), wait=0.2)))

    assert (over.state, over.counts.moved, over.counts.returned) == (OperationState.STOPPED_BY_GUARD, 1, 0)
    assert over.note == (
        "undecided: 0 of 1 came back, and the others may not have been handled: orders made no progress for 0.2 s: "
        "the rest was left where it is"
    )


async def test_a_canary_waits_for_a_backlog_before_it_goes_on(
    connection: Connection, other: Connection, amqp_url: str
) -> None:
    """The re-driven message fails, but only after everything that was there before it, and that takes longer than a
    step's wait: one message is handled for each look at the queue.
    """
    await prepare(connection, 30)
    backlog, handled, turns = 20, 0, asyncio.Semaphore(0)
    await connection.publish_many(Publish("", SOURCE, b"before") for _ in range(backlog))

    async def consume(delivery: Delivery) -> None:
        nonlocal handled
        await turns.acquire()
        handled += 1
        if delivery.body != b"before":
            await other.publish("", DLQ, delivery.body, delivery.raw_properties)
        delivery.ack()

    async with operating(amqp_url) as broker, await other.consume(SOURCE, consume, prefetch=1):
        ask = broker.depth

        async def depth(queue: str) -> int:
            if queue == SOURCE:
                turns.release()
            return await ask(queue)

        broker.depth = depth  # type: ignore[method-assign]
        over = await a_mover(broker, an_order(ramp=CanarySchedule((1, 5, 20), wait=0.5))).run()

    assert (over.state, over.counts.moved, over.counts.returned) == (OperationState.STOPPED_BY_GUARD, 1, 1)
    assert handled == backlog + 1


async def test_who_goes_on_with_a_canary_looks_first_what_came_back(connection: Connection, amqp_url: str) -> None:
    await prepare(connection, 20)
    back = dead_letter(20, **{"x-redriven-op": "op_test"})
    await connection.publish_many([back])
    await until_depth(connection, DLQ, 21)
    begun = an_operation(an_order(ramp=CanarySchedule((1,), wait=0.05)))
    moved_one = replace(
        begun, state=OperationState.RUNNING, counts=Counts(moved=1), scope=21, started_at=begun.created_at
    )

    over = await redrive(amqp_url, operation=moved_one)

    assert (over.state, over.counts.moved, over.counts.returned) == (OperationState.STOPPED_BY_GUARD, 1, 1)
    assert over.note == "1 of 1 came back, more than 10 %: the rest was left where it is"
    assert (await connection.queue_info(SOURCE)).messages == 0


@pytest.mark.parametrize("while_it", ["depth", "browse"])
async def test_a_canary_survives_a_connection_that_is_lost_while_it_waits_or_counts(
    connection: Connection, other: Connection, amqp_url: str, monkeypatch: pytest.MonkeyPatch, while_it: str
) -> None:
    await prepare(connection, 30)
    async with (
        handling(other, SOURCE),
        FaultProxy(amqp_url) as network,
        operating(network.url, publishes_to=amqp_url) as broker,
    ):
        mover = a_mover(broker, an_order(ramp=CanarySchedule((1, 5), wait=0.2)))
        ask, cuts = getattr(broker, while_it), 0

        async def asked(*about: object) -> object:
            nonlocal cuts
            answer = await ask(*about)
            if mover.operation.counts.moved == 1 and not cuts:
                cuts += 1
                network.cut()
                await eventually(lambda: is_lost(broker))
            return answer

        monkeypatch.setattr(broker, while_it, asked)
        over = await mover.run()

    assert cuts == 1
    assert (over.state, over.counts.moved, over.note) == (OperationState.SUCCEEDED, 30, "")


def is_lost(broker: DlqAdapter) -> bool:
    try:
        broker.check()
    except ConnectionLost:
        return True
    return False


# Broken connections -------------------------------------------------------------------------------


async def test_messages_whose_confirms_are_lost_are_sent_again_and_reported(
    connection: Connection, amqp_url: str
) -> None:
    await prepare(connection, MANY)
    memory, in_flight = Memory(), pipeline.in_flight(0)
    async with FaultProxy(amqp_url) as network, operating(amqp_url, publishes_to=network.url) as broker:
        network.stall(to="client")
        running = asyncio.create_task(a_mover(broker, memory=memory).run())
        await until_depth(connection, SOURCE, in_flight)
        network.cut()
        network.resume()
        over = await running

    assert (over.state, over.counts.moved) == (OperationState.SUCCEEDED, MANY)
    assert over.counts.possibly_duplicated == len(memory.outcomes(ItemOutcome.POSSIBLY_DUPLICATED)) == in_flight
    assert await bodies(connection, SOURCE) == orders(*range(in_flight), *range(MANY))
    await until_depth(connection, DLQ, 0)


async def test_a_portion_whose_confirms_are_lost_in_part_is_sent_again_in_part(
    connection: Connection, amqp_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await prepare(connection, 3)
    async with operating(amqp_url) as broker:
        monkeypatch.setattr(broker, "publish_many", confirms_one_of(broker))
        over = await a_mover(broker).run()

    assert (over.state, over.counts.moved, over.counts.possibly_duplicated) == (OperationState.SUCCEEDED, 3, 1)
    assert sorted(await bodies(connection, SOURCE)) == orders(0, 1, 2)


def confirms_one_of(broker: DlqAdapter) -> Callable[[Iterable[AnyPublish]], Awaitable[int]]:
    """The first time it sends the first message only; the second may have been sent, the third was not."""
    publish_many, times = broker.publish_many, 0

    async def publish(messages: Iterable[AnyPublish]) -> int:
        nonlocal times
        times += 1
        if times > 1:
            return await publish_many(messages)
        first, *_ = messages
        await publish_many([first])
        errors = [PublishUnknown("", SOURCE, "cut"), NotPublished("", SOURCE, "cut")]
        for index, error in enumerate(errors, 1):
            error.index = index
        broker._links.clear()
        raise PublishErrors("2 of 3", errors)

    return publish


@asynccontextmanager
async def losing_acks(
    amqp_url: str, order: OperationRequest, memory: Memory, at_least: int = 100
) -> AsyncIterator[tuple[OperationRunner, asyncio.Task[Operation]]]:
    """An operation whose connection ends after so many of its acks were not received by the broker."""
    async with FaultProxy(amqp_url) as network, operating(network.url, publishes_to=amqp_url) as broker:
        mover = a_mover(broker, order, memory)
        running = asyncio.create_task(mover.run())
        await eventually(lambda: mover.operation.counts.moved > 0)
        network.stall(to="server")
        before = mover.operation.counts.moved
        await eventually(lambda: mover.operation.counts.moved > before + at_least)
        network.cut()
        network.resume()
        yield mover, running


@pytest.mark.parametrize("queue_type", TYPES)
async def test_messages_whose_acks_are_lost_are_recognised_and_not_sent_again(
    connection: Connection, amqp_url: str, queue_type: str
) -> None:
    await prepare(connection, MANY, queue_type)
    memory = Memory()
    async with losing_acks(amqp_url, an_order(rate=1000), memory) as (_, running):
        over = await running

    arrived = await bodies(connection, SOURCE)
    assert over.state is OperationState.SUCCEEDED
    assert over.counts.moved == len(arrived) == len(memory.outcomes(ItemOutcome.MOVED)) == MANY
    assert over.counts.possibly_duplicated == 0
    assert sorted(arrived) == sorted(orders(*range(MANY)))
    await until_depth(connection, DLQ, 0)


async def test_of_identical_messages_as_many_arrive_as_there_were_though_acks_are_lost(
    connection: Connection, amqp_url: str
) -> None:
    await connection.declare_queue(SOURCE)
    await connection.declare_queue(DLQ)
    letter = dead_letter(1)
    anonymous = letter._replace(properties=replace(letter.properties, message_id=None))
    await connection.publish_many([anonymous] * MANY)
    async with losing_acks(amqp_url, an_order(rate=1000), Memory()) as (_, running):
        over = await running

    assert (over.state, over.counts.moved) == (OperationState.SUCCEEDED, MANY)
    assert len(await bodies(connection, SOURCE)) == MANY
    await until_depth(connection, DLQ, 0)


@pytest.mark.parametrize("ends_by", ["cancel", "limit"])
async def test_an_operation_that_ends_early_leaves_nothing_in_the_queue_that_it_has_moved(
    connection: Connection, amqp_url: str, ends_by: str
) -> None:
    await prepare(connection, MANY)
    limit = Selection(limit=400) if ends_by == "limit" else Selection()
    async with losing_acks(amqp_url, an_order(rate=1000, selection=limit), Memory()) as (mover, running):
        if ends_by == "cancel":
            mover.control.cancel()
        over = await running

    arrived = await bodies(connection, SOURCE)
    assert arrived == orders(*range(over.counts.moved))
    assert await bodies(connection, DLQ) == orders(*range(over.counts.moved, MANY))


async def test_no_more_are_moved_than_were_planned(connection: Connection, amqp_url: str) -> None:
    """One arrives between the plan and the begin."""
    await prepare(connection, 3)
    planned = replace(an_operation(), counts=Counts(planned=2))

    over = await redrive(amqp_url, operation=planned)

    assert (over.state, over.counts.moved) == (OperationState.SUCCEEDED, 2)
    assert await bodies(connection, DLQ) == orders(2)


@pytest.mark.parametrize("broken", ["taking", "publishing"])
async def test_a_connection_that_came_back_is_not_the_one_it_was(
    connection: Connection, amqp_url: str, broken: str
) -> None:
    """Whether it was lost in between is asked later, when it may be long back."""
    await prepare(connection, 0)
    async with (
        FaultProxy(amqp_url) as network,
        Connection(network.url) as shaky,
        Connection(amqp_url) as steady,
    ):
        broker = DlqAdapter(*((shaky, steady) if broken == "taking" else (steady, shaky)))
        await broker.lock(DLQ)
        broker.check()

        network.cut()
        await shaky.until(ConnectionState.RECONNECTING)
        await shaky.until(ConnectionState.OPEN)

        with pytest.raises(ConnectionLost):
            broker.check()
        await broker.lock(DLQ)
        broker.check()
        await broker.unlock(DLQ)


# Where to -----------------------------------------------------------------------------------------


async def test_a_message_without_a_known_source_needs_a_destination(connection: Connection, amqp_url: str) -> None:
    await prepare(connection, 0)
    await connection.publish_many([Publish("", DLQ, b"who am I?")])
    memory = Memory()

    over = await redrive(amqp_url, memory=memory)
    assert (over.counts.skipped, memory.items[0].outcome) == (1, ItemOutcome.SKIPPED)
    assert "--to" in memory.items[0].why

    over = await redrive(amqp_url, an_order(to=Destination.parse(SOURCE)))
    assert over.counts.moved == 1
    assert await bodies(connection, SOURCE) == [b"who am I?"]
