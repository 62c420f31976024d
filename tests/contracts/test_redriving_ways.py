"""Where re-driven messages go: their own queue, its retry exchange, another queue, the exchange they came from."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dead_lettering import DLQ, SOURCE, a_service, bodies, dead_letter, handling, orders, prepare, until_depth
from redrive import App, Message
from redrive.admin.service import Service
from redrive.admin.target import BrokerTarget
from redrive.client import Connection
from redrive.database.engine import Database
from redrive.database.schema import Schema
from redrive.operations.audit_log import AuditLog
from redrive.operations.operation import (
    CanarySchedule,
    Destination,
    Operation,
    OperationKind,
    OperationRequest,
    OperationState,
)
from redrive.operations.plan import RedrivePlan
from redrive.operations.repository import OperationRepository
from redrive.recovery.history import HeaderNames
from redrive.recovery.retry import Retry, RetryRoute
from redrive.topology import Exchange, Queue, Topology
from working import take, working

events = Exchange("events", "topic")


@pytest.fixture
def service(amqp_url: str, tmp_path: Path) -> Service:
    database = Database(f"sqlite:///{tmp_path / 'memory.db'}")
    Schema().upgrade(database)
    queue = Queue(SOURCE, bind=events.on("order.*"), retry=Retry(attempts=2, delay="50ms"))
    target = BrokerTarget(amqp_url, topology=Topology(exchanges=[events], queues=[queue]))
    return Service(target, OperationRepository(database), AuditLog(database), by="ada")


async def sent(service: Service, to: str) -> tuple[RedrivePlan, Operation]:
    plan = await service.plan(OperationRequest(OperationKind.REDRIVE, DLQ, to=Destination.parse(to)))
    return plan, await service.run(await service.begin(plan.order, planned=plan.eligible))


async def test_by_the_retry_exchange_they_wait_first(connection: Connection, service: Service) -> None:
    await prepare(connection, 3)
    await connection.declare_exchange("retry.orders", "direct")
    waiting = {"x-message-ttl": 50, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": SOURCE}
    await connection.declare_queue("orders.retry", arguments=waiting)
    await connection.bind_queue("orders.retry", "retry.orders", "retry")

    plan, over = await sent(service, "retry")

    assert [(target.exchange, target.routing_key, target.count) for target in plan.targets] == [
        ("retry.orders", "retry", 3)
    ]
    assert plan.also_receives == ()
    assert (over.state, over.counts.moved) == (OperationState.SUCCEEDED, 3)
    await until_depth(connection, SOURCE, 3)  # when they have waited
    assert await bodies(connection, SOURCE) == orders(0, 1, 2)


async def test_a_message_without_headers_goes_to_the_only_queue_that_its_dead_letter_queue_serves(
    connection: Connection, service: Service
) -> None:
    await prepare(connection, 0)
    await connection.publish("", DLQ, b"from elsewhere")

    plan, over = await sent(service, "own")

    assert [(str(target), target.count) for target in plan.targets] == [(SOURCE, 1)]
    assert (over.state, over.counts.moved) == (OperationState.SUCCEEDED, 1)
    assert await bodies(connection, SOURCE) == [b"from elsewhere"]


@pytest.mark.parametrize(("keep_counters", "expected"), [(False, (None, 4)), (True, (3, 4))])
async def test_who_counts_in_a_header_of_his_own_begins_anew(
    connection: Connection, service: Service, keep_counters: bool, expected: tuple[int | None, int]
) -> None:
    await prepare(connection, 0)
    await connection.publish_many([dead_letter(0, **{"x-retry-count": 3, "x-retries": 4})])
    await until_depth(connection, DLQ, 1)
    target = replace(service.target, header_names={SOURCE: HeaderNames(attempts="x-retry-count")})
    service = Service(target, service.store, service.audit, by="ada")

    over = await service.run(
        await service.begin(OperationRequest(OperationKind.REDRIVE, DLQ, keep_counters=keep_counters))
    )

    assert over.counts.moved == 1
    headers = dict((await take(connection, SOURCE)).properties.headers or {})
    assert (headers.get("x-retry-count"), headers["x-retries"]) == expected  # the other one is somebody else's


@pytest.mark.parametrize("to", ["retry", "exchange:retry.orders:retry"])
@pytest.mark.parametrize("via", [RetryRoute.REJECT, RetryRoute.REPUBLISH])
async def test_by_the_default_destination_a_message_has_all_its_attempts_again_and_a_canary_sees_it_fail(
    connection: Connection, amqp_url: str, tmp_path: Path, via: RetryRoute, to: str
) -> None:
    app = App("shop", broker=amqp_url, data=tmp_path)
    seen: list[tuple[int, str]] = []

    @app.consumer(SOURCE, retry=Retry(attempts=2, delay="50ms", via=via), redrive_to=to)
    async def handle(message: Message) -> None:
        seen.append((message.attempt, message.routing_key))
        raise OSError("busy")

    service = a_service(amqp_url, tmp_path, topology=app.topology)
    async with working(app) as (running, _):
        for _ in range(3):
            await running.publishing.publish("", SOURCE, b"{}")
        await until_depth(connection, DLQ, 3)
        seen.clear()
        ramp = CanarySchedule((1,), wait=20)
        plan = await service.plan(
            OperationRequest(OperationKind.REDRIVE, DLQ, to=service.target.redrive_to(DLQ), ramp=ramp)
        )
        over = await service.run(await service.begin(plan.order, planned=plan.eligible))

    assert [str(target) for target in plan.targets] == ["retry.orders (retry)"]
    assert (over.state, over.counts.moved, over.counts.returned) == (OperationState.STOPPED_BY_GUARD, 1, 1)
    assert over.note.startswith("1 of 1 came back")
    assert seen == [(1, SOURCE), (2, SOURCE)]
    assert (await connection.queue_info(DLQ)).messages == 3


async def test_another_queue(connection: Connection, service: Service) -> None:
    await prepare(connection, 2)
    await connection.declare_queue("hospital")

    plan, over = await sent(service, "hospital")

    assert any("no consumer" in warning for warning in plan.warnings)
    assert over.state is OperationState.SUCCEEDED
    assert await bodies(connection, "hospital") == orders(0, 1)


async def test_a_canary_waits_for_what_it_sent_to_another_queue(connection: Connection, service: Service) -> None:
    """Though everything is handled in the queue whose dead letters these are."""
    await prepare(connection, 20)
    await connection.declare_queue("hospital")
    order = OperationRequest(
        OperationKind.REDRIVE, DLQ, to=Destination.parse("hospital"), ramp=CanarySchedule((1,), wait=5)
    )

    running = asyncio.create_task(service.run(await service.begin(order)))
    await until_depth(connection, "hospital", 1)
    again = await take(connection, "hospital")
    await connection.publish("", DLQ, again.body, again.raw_properties)
    over = await running

    assert (over.state, over.counts.moved) == (OperationState.STOPPED_BY_GUARD, 1)


async def test_a_canary_to_a_queue_whose_dead_letter_queues_are_not_known_is_undecided(
    connection: Connection, other: Connection, service: Service
) -> None:
    await prepare(connection, 20)
    await connection.declare_queue("hospital")
    order = OperationRequest(
        OperationKind.REDRIVE, DLQ, to=Destination.parse("hospital"), ramp=CanarySchedule((1,), wait=0.2)
    )

    async with handling(other, "hospital"):
        plan = await service.plan(order)
        over = await service.run(await service.begin(plan.order))

    assert any("whether messages sent to hospital come back" in warning for warning in plan.warnings)
    assert (over.state, over.counts.moved) == (OperationState.STOPPED_BY_GUARD, 1)
    assert "there may be more: the dead-letter queues of hospital are not known" in over.note


async def test_by_the_original_exchange_others_receive_them_too(
    connection: Connection, service: Service, everybody: Callable[[RedrivePlan], bool]
) -> None:
    await prepare(connection, 2)
    await connection.declare_exchange("events", "topic")
    await connection.declare_queue("audit")
    await connection.bind_queue(SOURCE, "events", "order.*")
    await connection.bind_queue("audit", "events", "#")

    plan, over = await sent(service, "original")

    assert everybody(plan)
    assert over.state is OperationState.SUCCEEDED
    assert await bodies(connection, SOURCE) == await bodies(connection, "audit") == orders(0, 1)


@pytest.fixture
def everybody(request: pytest.FixtureRequest) -> Callable[[RedrivePlan], bool]:
    """Does the plan say who else gets them? Plain AMQP cannot, and says that."""
    if "rabbitmq" in request.node.name:
        return lambda plan: plan.also_receives is None and any("management API" in told for told in plan.warnings)
    return lambda plan: plan.also_receives == ("audit",) and any("audit" in told for told in plan.warnings)


async def test_an_exchange_and_a_key(connection: Connection, service: Service) -> None:
    await prepare(connection, 1)
    await connection.declare_exchange("other", "direct")
    await connection.declare_queue("there")
    await connection.bind_queue("there", "other", "here")

    _, over = await sent(service, "exchange:other:here")

    assert over.state is OperationState.SUCCEEDED
    assert await bodies(connection, "there") == orders(0)


async def test_a_destination_that_does_not_exist_is_told_before(connection: Connection, service: Service) -> None:
    await prepare(connection, 1)
    plan = await service.plan(OperationRequest(OperationKind.REDRIVE, DLQ, to=Destination.parse("nowhere")))
    assert any("does not exist" in warning for warning in plan.warnings)
