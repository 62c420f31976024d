"""Dead letters that go to another dead-letter queue: nothing is lost on the way, and nothing of what they tell."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from dead_lettering import DLQ, SOURCE, a_service, an_order, prepare, until_depth
from redrive.admin.service import Service
from redrive.client import Connection
from redrive.deadletters.dead_letter import Summary
from redrive.errors import ConfigurationError
from redrive.operations.operation import (
    Destination,
    DestinationKind,
    OperationKind,
    OperationRequest,
    OperationState,
    Selection,
)

OTHER = "legal-hold.dlq"
TYPES = ["classic", "quorum"]


@pytest.fixture
def service(amqp_url: str, management_url: str | None, tmp_path: Path) -> Service:
    return a_service(amqp_url, tmp_path, management=management_url)


def a_move(**changes: Any) -> OperationRequest:
    return replace(
        OperationRequest(
            OperationKind.MOVE, DLQ, to=Destination(DestinationKind.QUEUE, OTHER), by="ada", reason="INC-42"
        ),
        **changes,
    )


async def listed(service: Service, queue: str) -> list[Summary]:
    """What every list shows of the messages, but for where they are."""
    return [structs.replace(letter, queue="", position=0) for letter in (await service.peek(queue)).dead_letters]


@pytest.mark.parametrize("queue_type", TYPES)
async def test_a_move_keeps_what_a_dead_letter_tells(connection: Connection, service: Service, queue_type: str) -> None:
    await prepare(connection, 5, queue_type)
    await connection.declare_queue(OTHER, arguments={"x-queue-type": queue_type})
    before = await listed(service, DLQ)

    plan = await service.plan(a_move())
    over = await service.run(await service.begin(plan.order, planned=plan.eligible))

    assert (plan.eligible, plan.warnings) == (5, ())
    assert (over.state, over.counts.moved) == (OperationState.SUCCEEDED, 5)
    await until_depth(connection, OTHER, 5)
    await until_depth(connection, DLQ, 0)
    assert await listed(service, OTHER) == before
    assert {(letter.source, letter.reason, letter.attempts) for letter in before} == {(SOURCE, "exhausted", 3)}


async def test_a_move_keeps_the_deaths_that_the_broker_wrote(connection: Connection, service: Service) -> None:
    await connection.declare_queue(OTHER)
    await connection.declare_queue(DLQ)
    dying = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": DLQ, "x-message-ttl": 1}
    await connection.declare_queue(SOURCE, arguments=dying)
    await connection.publish("", SOURCE, b"{}")
    await until_depth(connection, DLQ, 1)
    before = await listed(service, DLQ)

    await service.run(await service.begin(a_move()))

    await until_depth(connection, OTHER, 1)
    assert await listed(service, OTHER) == before
    assert [(letter.source, letter.reason) for letter in before] == [(SOURCE, "expired")]


async def test_only_what_is_selected_is_moved(connection: Connection, service: Service) -> None:
    await prepare(connection, 6)
    await connection.declare_queue(OTHER)

    over = await service.run(await service.begin(a_move(selection=Selection(group="3fa9", limit=2))))

    assert over.counts.moved == 2
    assert [letter.message_id for letter in await listed(service, OTHER)] == ["m-1", "m-3"]
    await until_depth(connection, DLQ, 4)


async def test_what_the_other_queue_does_not_take_stays(connection: Connection, service: Service) -> None:
    await prepare(connection, 3)

    plan = await service.plan(a_move())
    over = await service.run(await service.begin(a_move()))

    assert plan.warnings == (f"{OTHER} does not exist: nothing can be moved there",)
    assert (over.state, over.counts.moved, over.counts.failed) == (OperationState.PARTIAL, 0, 3)
    await until_depth(connection, DLQ, 3)


async def test_a_move_to_a_queue_for_work_is_refused(connection: Connection, service: Service) -> None:
    await prepare(connection, 3)
    to_work = a_move(to=Destination(DestinationKind.QUEUE, SOURCE))

    with pytest.raises(ConfigurationError, match=f"use `redrive dlq redrive {DLQ} --to {SOURCE}`"):
        await service.plan(to_work)
    with pytest.raises(ConfigurationError, match="is not a dead-letter queue"):
        await service.run(await service.begin(to_work))
    await until_depth(connection, DLQ, 3)


@pytest.mark.parametrize(
    "to", [Destination(DestinationKind.QUEUE, DLQ), Destination(), Destination(DestinationKind.EXCHANGE, "events", "k")]
)
def test_a_move_needs_the_name_of_another_queue(to: Destination) -> None:
    with pytest.raises(ConfigurationError, match="want the name of another dead-letter queue"):
        a_move(to=to)


async def test_a_re_drive_to_a_dead_letter_queue_says_what_is_lost_and_names_move(
    connection: Connection, service: Service
) -> None:
    await prepare(connection, 1)
    await connection.declare_queue(OTHER)

    plan = await service.plan(an_order(to=Destination(DestinationKind.QUEUE, OTHER)))

    (warning,) = plan.warnings
    assert "reason, attempts and source will be missing there" in warning
    assert f"redrive dlq move {DLQ} --to {OTHER}" in warning


async def test_a_move_whose_process_is_gone_can_be_resumed(connection: Connection, service: Service) -> None:
    await prepare(connection, 4)
    await connection.declare_queue(OTHER)
    begun = await service.begin(a_move())
    await service.leave(replace(begun, state=OperationState.RUNNING, started_at=begun.created_at, scope=4))

    over = await service.resume(begun.id)

    assert (over.state, over.counts.moved) == (OperationState.SUCCEEDED, 4)
