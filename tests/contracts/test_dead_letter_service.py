"""What an operator can do, on every broker, whatever is known of it: topology, management API, or only names."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from dead_lettering import (
    DEAD_AT,
    DLQ,
    SOURCE,
    a_service,
    an_order,
    bodies,
    dead_letter,
    eventually,
    operating,
    orders,
    prepare,
    until_depth,
)
from redrive.admin.service import STALE, Service
from redrive.client import Connection
from redrive.database.engine import Database
from redrive.errors import (
    AuditUnavailable,
    ConfigurationError,
    ConnectionFailed,
    LetterAmbiguous,
    LetterNotFound,
    NotFound,
    OperationConflict,
    OperationNotFound,
    OperationOver,
    SearchError,
)
from redrive.operations.audit_log import AuditLog
from redrive.operations.browse import GroupBy
from redrive.operations.control import OperationControl
from redrive.operations.operation import (
    ControlRequest,
    Destination,
    DestinationKind,
    ItemOutcome,
    Operation,
    OperationRequest,
    OperationState,
    Selection,
)
from redrive.operations.pipeline import UNDER_WAY
from redrive.recovery.retry import Retry
from redrive.topology import Queue, Server, Topology, expand
from redrive.topology.peek_safety import PeekSafety
from redrive.worker.clock import SystemClock


@pytest.fixture
def service(amqp_url: str, management_url: str | None, tmp_path: Path) -> Service:
    """One who sees everything."""
    return a_service(amqp_url, tmp_path, management=management_url)


@pytest.fixture
def plain(amqp_url: str, tmp_path: Path) -> Service:
    """One who has nothing but AMQP. (The embedded broker tells everything over AMQP.)"""
    return a_service(amqp_url, tmp_path)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wishes are heard at once."""
    monkeypatch.setattr("redrive.operations.control._BEAT", 0.02)


class Later(SystemClock):
    """By so much that whoever ran an operation is taken for dead."""

    def now(self) -> datetime:
        return super().now() + STALE + timedelta(seconds=1)


# Looking ------------------------------------------------------------------------------------------


async def prepare_dying(connection: Connection) -> None:
    to = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "buried"}
    await connection.declare_queue("work", arguments=to)
    await connection.declare_queue("buried")


async def test_dead_letter_queues_are_found_by_name_and_by_what_dies_into_them(
    connection: Connection, service: Service
) -> None:
    await prepare_dying(connection)
    await prepare(connection, 3)

    buried, dlq = await service.queues()

    assert (buried.name, buried.source, buried.depth, buried.oldest) == ("buried", "work", 0, None)
    assert (dlq.name, dlq.source, dlq.depth, dlq.oldest) == (DLQ, None, 3, DEAD_AT)
    assert (dlq.type, dlq.peek_safety, dlq.operation) == ("classic", PeekSafety.SAFE, None)
    await until_depth(connection, DLQ, 3)


async def test_plain_amqp_suffices_when_names_are_given(connection: Connection, plain: Service) -> None:
    await prepare(connection, 3)
    (view,) = await plain.queues([DLQ])
    assert (view.depth, view.type, view.peek_safety, view.oldest) == (3, "classic", PeekSafety.SAFE, DEAD_AT)
    with pytest.raises(NotFound, match=r"nobody\.dlq"):
        await plain.queues(["nobody.dlq"])
    with pytest.raises(NotFound):
        await plain.peek("nobody.dlq")


async def test_an_application_knows_its_queues(connection: Connection, amqp_url: str, tmp_path: Path) -> None:
    topology = Topology(queues=[Queue(SOURCE, retry=Retry(attempts=2, delay="1s")), Queue("payments")])
    wanted = expand(topology, Server(connection.server_version))
    for exchange in wanted.exchanges:
        await connection.declare_exchange(exchange.name, exchange.type)
    for queue in wanted.queues:
        await connection.declare_queue(queue.name, arguments=dict(queue.arguments))
    for binding in wanted.bindings:
        await connection.bind_queue(binding.destination, binding.source, binding.routing_key)
    await connection.publish_many([dead_letter(1)])
    await until_depth(connection, DLQ, 1)
    service = a_service(amqp_url, tmp_path, topology=topology)

    views = await service.queues()
    assert [(view.name, view.source) for view in views] == [(DLQ, SOURCE), ("payments.dlq", "payments")]

    made = await service.plan(an_order(to=Destination(DestinationKind.RETRY)))
    assert (made.eligible, made.targets[0].exists) == (1, True)
    over = await service.run(await service.begin(made.order))
    assert over.counts.moved == 1
    async with asyncio.timeout(20):  # it waits, and is back where it failed
        while not await bodies(connection, SOURCE):  # noqa: ASYNC110
            await asyncio.sleep(0.1)


async def test_an_id_that_stands_for_several_messages_is_refused_with_all_of_them(
    connection: Connection, service: Service
) -> None:
    await prepare(connection, 2)
    await connection.publish_many([dead_letter(1, copy=copy) for copy in range(12)])
    ids = [letter.id for letter in (await service.peek(DLQ)).dead_letters if letter.message_id == "m-1"]

    for ambiguous in ("m-1", "m-1-"):  # a message_id, and the beginning of an id
        with pytest.raises(LetterAmbiguous, match=r"stands for 13 messages in orders\.dlq") as caught:
            await service.message(DLQ, ambiguous)
        assert (list(caught.value.matches), caught.value.more) == (ids[:10], 3)
    assert (await service.message(DLQ, ids[12])).dead_letter.headers["copy"] == 11
    assert (await service.message(DLQ, ids[3][:-1])).dead_letter.id == ids[3]


async def test_messages_that_are_the_same_in_everything_are_one(connection: Connection, service: Service) -> None:
    await prepare(connection, 2)
    await connection.publish_many([dead_letter(1)])

    assert (await service.message(DLQ, "m-1")).dead_letter.message_id == "m-1"


async def test_messages_are_searched_grouped_and_shown(connection: Connection, service: Service) -> None:
    await prepare(connection, 6)

    page = await service.peek(DLQ, "body.order:>1", limit=2)
    assert ([letter.message_id for letter in page.dead_letters], page.next) == (["m-2", "m-3"], 5)
    groups = await service.groups(DLQ, GroupBy.FINGERPRINT)
    assert [(group.key, group.count) for group in groups.groups] == [("3fa9c0ffee", 3), ("77d1beef00", 3)]
    found = await service.message(DLQ, "m-4")
    assert (found.body, found.dead_letter.error) == (b'{"order": 4}', "TimeoutError")

    with pytest.raises(SearchError):
        await service.peek(DLQ, "since:yesterdayish")
    with pytest.raises(LetterNotFound, match="there is no message m-77"):
        await service.message(DLQ, "m-77")
    await until_depth(connection, DLQ, 6)


# Operating ----------------------------------------------------------------------------------------


async def test_a_plan_is_carried_out_as_it_was_made(connection: Connection, service: Service) -> None:
    await prepare(connection, 6)

    made = await service.plan(an_order(selection=Selection(group="3fa9"), by=""))
    assert (made.matched, made.eligible, [str(target) for target in made.targets]) == (3, 3, [SOURCE])
    assert made.also_receives == ()
    await until_depth(connection, DLQ, 6)

    begun = await service.begin(made.order, planned=made.eligible)
    assert begun.state is OperationState.PENDING
    over = await service.run(begun)

    assert (over.state, over.counts.planned, over.counts.moved, over.order.by) == (
        OperationState.SUCCEEDED,
        3,
        3,
        "ada",
    )
    assert await bodies(connection, SOURCE) == orders(1, 3, 5)
    assert await service.operation(over.id) == await service.operation(over.id[:16])
    assert [item.message_id for _, item in await service.items(over.id)] == ["m-1", "m-3", "m-5"]
    assert await service.items(over.id, ItemOutcome.FAILED) == []
    assert [each.id for each in await service.operations(DLQ)] == [over.id]
    assert await service.operations(DLQ, [OperationState.RUNNING]) == []


async def test_a_message_that_came_from_no_name_at_all_is_planned_with_the_others(
    connection: Connection, service: Service, plain: Service, management_url: str | None
) -> None:
    """Found by fuzzing: half of a character is no name of an exchange, and ended the plan of the whole queue."""
    await prepare(connection, 1)
    forged = {"x-redrive-exchange": b"\xff\xfe"}
    await connection.publish_many([dead_letter(7, **forged)])
    await until_depth(connection, DLQ, 2)

    made = await service.plan(an_order(to=Destination(DestinationKind.ORIGINAL)))
    blind = await plain.plan(an_order(to=Destination(DestinationKind.ORIGINAL)))

    names = {why.partition(",")[0]: count for why, count in made.ineligible}
    assert names == {
        "it names exchange events with key order.new": 1,
        "it names exchange \\udcff\\udcfe with key order.new": 1,
    }
    if management_url is not None:  # the embedded broker shows everything
        assert [(target.count, target.exists) for target in blind.targets] == [(1, False), (1, False)]


async def test_the_audit_has_who_did_what(connection: Connection, service: Service) -> None:
    await prepare(connection, 2)
    over = await service.run(await service.begin(an_order(selection=Selection(limit=1), by="")))

    ended, began = [entry for _, entry in service.audit.list_entries()]

    assert (began.by, began.action, began.queue, began.operation) == ("ada", "re-drive", DLQ, over.id)
    assert (began.filter, began.reason, began.detail) == ("limit 1", "INC-42", "to own")
    assert (ended.action, ended.counts["moved"], ended.detail) == ("re-drive ended", 1, "SUCCEEDED")


async def test_what_cannot_be_recorded_is_not_done(connection: Connection, service: Service, tmp_path: Path) -> None:
    await prepare(connection, 2)
    (tmp_path / "without tables").mkdir()
    service.audit = AuditLog(Database.embedded(tmp_path / "without tables"))

    with pytest.raises(AuditUnavailable, match="nothing was done"):
        await service.begin(an_order())

    assert await service.operations() == []
    await until_depth(connection, DLQ, 2)


async def test_a_broker_that_is_away_ends_an_operation_honestly(tmp_path: Path) -> None:
    service = a_service("amqp://127.0.0.1:1/", tmp_path)
    begun = await service.begin(an_order())
    with pytest.raises(ConnectionFailed):
        await service.run(begun)
    found = await service.operation(begun.id)
    assert found.state is OperationState.FAILED
    assert "127.0.0.1:1" in found.note


async def test_operations_are_known_by_the_beginning_of_their_ids(connection: Connection, service: Service) -> None:
    await prepare(connection, 0)
    for _ in range(2):
        await service.begin(an_order())
    with pytest.raises(ConfigurationError, match="beginning of 2 operations"):
        await service.operation("op_")
    with pytest.raises(OperationNotFound):
        await service.operation("op_nobody")


# One at a time ------------------------------------------------------------------------------------


@asynccontextmanager
async def running(
    service: Service, order: OperationRequest | None = None
) -> AsyncIterator[tuple[OperationControl, asyncio.Task[Operation]]]:
    """An operation that takes its time, and has moved something."""
    seen: list[OperationControl] = []
    begun = await service.begin(order or an_order(rate=10))
    task = asyncio.create_task(service.run(begun, changed=seen.append))
    await eventually(lambda: bool(seen) and seen[0].operation.counts.moved > 0)
    try:
        yield seen[0], task
    finally:
        seen[0].cancel()
        with suppress(asyncio.CancelledError):
            await task


async def test_the_second_operator_hears_which_operation_is_in_the_way(
    connection: Connection, service: Service, amqp_url: str, tmp_path: Path
) -> None:
    await prepare(connection, 300)
    second = a_service(amqp_url, tmp_path, by="grace")
    async with running(service) as (steering, _):
        (view,) = await second.queues([DLQ])
        assert view.operation is not None
        assert view.operation.id == steering.operation.id
        begun = await second.begin(an_order())
        with pytest.raises(OperationConflict, match=f"held by operation {steering.operation.id}"):
            await second.run(begun)
        with pytest.raises(OperationConflict, match=steering.operation.id):
            await second.peek(DLQ)

    assert (await service.operation(begun.id)).state is OperationState.FAILED
    moved = (await service.operation(steering.operation.id)).counts.moved
    assert await bodies(connection, SOURCE) == orders(*range(moved))


# Steering -----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("quick")
async def test_an_operation_is_steered_from_elsewhere(
    connection: Connection, service: Service, amqp_url: str, tmp_path: Path
) -> None:
    await prepare(connection, 60)
    elsewhere = a_service(amqp_url, tmp_path, by="grace")
    async with running(service) as (steering, task):
        await elsewhere.request_control(steering.operation.id, ControlRequest(OperationState.PAUSED))
        await eventually(lambda: steering.operation.state is OperationState.PAUSED)
        assert (
            await elsewhere.resume(steering.operation.id)
        ).id == steering.operation.id  # it lives: it is told to go on
        await eventually(lambda: steering.operation.state is OperationState.RUNNING)
        await elsewhere.request_control(steering.operation.id, ControlRequest(rate=20))
        await eventually(lambda: steering.operation.order.rate == 20)
        await elsewhere.request_control(steering.operation.id, ControlRequest(OperationState.CANCELLING))
        over = await task

    assert over.state is OperationState.CANCELLED
    assert 0 < over.counts.moved < 60
    for wish in (ControlRequest(rate=5), ControlRequest(OperationState.CANCELLING)):
        with pytest.raises(OperationOver, match="has ended: CANCELLED"):
            await elsewhere.request_control(over.id, wish)
    with pytest.raises(OperationOver, match="has ended: CANCELLED"):
        await elsewhere.resume(over.id)
    steered = [entry.detail for _, entry in service.audit.list_entries(by="grace", action="steer")]
    assert steered[::-1][:4] == ["PAUSED", "RUNNING", "rate 20", "CANCELLING"]


# After a crash ------------------------------------------------------------------------------------


async def interrupted(service: Service) -> Operation:
    """An operation whose runner vanished in the middle of it."""
    async with running(service, an_order(rate=100)) as (steering, task):
        await eventually(lambda: steering.operation.counts.moved > 3)
        task.cancel()
    return await service.operation(steering.operation.id)


@pytest.fixture
def successor(amqp_url: str, tmp_path: Path, management_url: str | None) -> Service:
    """Who comes when the other is taken for dead."""
    return a_service(amqp_url, tmp_path, by="grace", clock=Later(), management=management_url)


@pytest.mark.parametrize("queue_type", ["classic", "quorum"])
async def test_an_interrupted_operation_is_finished_by_another(
    connection: Connection, service: Service, successor: Service, queue_type: str
) -> None:
    unlimited = Server(connection.server_version).unlimited_deliveries
    limit = {"x-delivery-limit": unlimited} if queue_type == "quorum" and unlimited is not None else {}
    await prepare(connection, 50, queue_type, **limit)
    left = await interrupted(service)
    assert not left.state.is_over
    assert not service.is_interrupted(left)
    assert successor.is_interrupted(left)

    over = await successor.resume(left.id)

    assert (over.state, over.scope, over.owner) == (OperationState.SUCCEEDED, 50, successor.owner)
    arrived = await bodies(connection, SOURCE)
    assert set(arrived) == set(orders(*range(50)))
    await until_depth(connection, DLQ, 0)
    # What was confirmed and not acked comes twice. With a rate that is what was under way, and never a thousand.
    assert 50 <= over.counts.moved <= len(arrived) <= 50 + UNDER_WAY
    assert "resume" in [entry.action for _, entry in service.audit.list_entries(by="grace")]


async def test_only_one_takes_it_over(
    connection: Connection, service: Service, successor: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    await prepare(connection, 50)
    left = await interrupted(service)
    monkeypatch.setattr(successor.store, "take_over", lambda *_: False)
    with pytest.raises(OperationConflict, match="which another process resumed"):
        await successor.resume(left.id)


async def test_a_look_in_the_way_does_not_end_what_could_be_resumed(
    connection: Connection, service: Service, successor: Service, amqp_url: str
) -> None:
    await prepare(connection, 50)
    left = await interrupted(service)
    async with operating(amqp_url) as somebody:
        await somebody.lock(DLQ)
        with pytest.raises(OperationConflict):
            await successor.resume(left.id)

    after = await service.operation(left.id)
    assert not after.state.is_over
    assert service.is_interrupted(after)
    assert (await successor.resume(left.id)).state is OperationState.SUCCEEDED


async def test_what_was_over_when_the_lock_was_taken_is_not_done_again(
    connection: Connection, service: Service, successor: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    await prepare(connection, 50)
    left = await interrupted(service)
    take_over = successor.store.take_over

    def take_over_at_the_last_moment(*about: Any) -> bool:
        taken = take_over(*about)
        successor.store.save(replace(left, owner=successor.owner, state=OperationState.SUCCEEDED))
        return taken

    monkeypatch.setattr(successor.store, "take_over", take_over_at_the_last_moment)
    over = await successor.resume(left.id)

    assert (over.state, over.counts) == (OperationState.SUCCEEDED, left.counts)
    assert (await connection.queue_info(SOURCE)).messages <= left.counts.moved + UNDER_WAY


async def test_what_cannot_go_on_because_its_queue_is_gone_has_failed(
    connection: Connection, service: Service, successor: Service
) -> None:
    await prepare(connection, 50)
    left = await interrupted(service)
    await connection.delete_queue(DLQ)

    with pytest.raises(NotFound):
        await successor.resume(left.id)

    over = await service.operation(left.id)
    assert (over.state, over.counts.moved) == (OperationState.FAILED, left.counts.moved)
    assert over.note.startswith("it cannot go on: ")
    assert over.note.endswith("What was moved stays moved")
    [(_, ended)] = service.audit.list_entries(action="re-drive ended")
    assert ended.operation == left.id


async def test_a_cancel_that_nobody_heard_is_obeyed_before_going_on(
    connection: Connection, service: Service, successor: Service
) -> None:
    await prepare(connection, 50)
    left = replace(await interrupted(service), state=OperationState.RUNNING)
    service.store.save(left)
    service.store.request_control(left.id, ControlRequest(OperationState.CANCELLING))

    over = await successor.run(await successor.take_over(left))

    assert (over.state, over.counts.moved) == (OperationState.CANCELLED, left.counts.moved)


async def test_a_cancel_is_obeyed_though_it_cannot_go_on(
    connection: Connection, service: Service, successor: Service, amqp_url: str
) -> None:
    await prepare(connection, 50)
    left = replace(await interrupted(service), state=OperationState.RUNNING)
    service.store.save(left)
    service.store.request_control(left.id, ControlRequest(OperationState.CANCELLING))
    async with operating(amqp_url) as somebody:
        await somebody.lock(DLQ)
        with pytest.raises(OperationConflict):
            await successor.run(await successor.take_over(left))

    assert (await service.operation(left.id)).state is OperationState.CANCELLED


async def test_an_interrupted_operation_can_be_closed(
    connection: Connection, service: Service, successor: Service
) -> None:
    await prepare(connection, 50)
    left = await interrupted(service)

    await successor.request_control(left.id, ControlRequest(OperationState.CANCELLING))

    closed = await service.operation(left.id)
    assert (closed.state, closed.counts.moved) == (OperationState.CANCELLED, left.counts.moved)
    assert closed.ended_at is not None
    assert "process was gone" in closed.note
