"""An existing queue, taken as it is: only its retry and dead-letter queues are made, and a worker consumes it."""

import pytest

from redrive import App, Queue, Retry, Topology
from redrive.client import Connection, Properties
from redrive.errors import ConfigurationError, TopologyError, TopologyMissing
from redrive.inspection import inspect_broker
from redrive.inspection.passive import server_of
from redrive.topology import expand
from redrive.topology.plan import Action, Plan, make_plan
from redrive.worker.events import DeliveryOutcome
from redrive.worker.topology_apply import provision
from working import depth, take, working

FOREIGN = {
    "x-message-ttl": 86_400_000,
    "x-max-length": 1000,
    "x-dead-letter-exchange": "old.dlx",
    "x-dead-letter-routing-key": "orders",
}
SHORT = Retry(attempts=2, delay="50ms")


@pytest.fixture(params=["classic", "quorum"])
async def kind(request: pytest.FixtureRequest, connection: Connection) -> str:
    """A queue `orders` of this type that another program declared, with its own dead-letter queue."""
    kind: str = request.param
    await connection.declare_exchange("events", "topic")
    await connection.declare_exchange("old.dlx", "direct")
    await connection.declare_queue("old.dead")
    await connection.bind_queue("old.dead", "old.dlx", "orders")
    await connection.declare_queue("orders", arguments={"x-queue-type": kind, **FOREIGN})
    await connection.bind_queue("orders", "events", "order.*")
    return kind


async def plan_for(connection: Connection, topology: Topology, management: str | None = None) -> Plan:
    snapshot = await inspect_broker(connection, topology, management)
    return make_plan(expand(topology.with_held(snapshot.effective), snapshot.server), snapshot)


def adopted(retry: Retry | None = SHORT) -> Topology:
    return Topology(queues=[Queue("orders", existing=True, retry=retry)])


async def test_only_what_stands_next_to_it_is_made(connection: Connection, kind: str) -> None:
    plan = await plan_for(connection, adopted())

    assert [f"{step.action} {step.definition}" for step in plan.shown()] == [
        "create exchange dlq.orders (direct)",
        "create exchange retry.orders (direct)",
        "existing queue orders",
        "create queue orders.dlq",
        "create queue orders.retry",
        "create binding dlq.orders → orders.dlq [parking]",
        "create binding retry.orders → orders.retry [retry]",
    ]
    made = {step.definition.name: step.definition for step in plan.steps if step.definition.arguments}
    assert made["orders.retry"].type == made["orders.dlq"].type == kind
    assert dict(made["orders"].arguments) == FOREIGN | {"x-queue-type": kind}

    await provision(plan, connection)
    after = await plan_for(connection, adopted())
    assert after.is_empty
    assert after.count(Action.CREATE) == 0


async def test_a_worker_consumes_retries_and_parks(connection: Connection, amqp_url: str, kind: str) -> None:
    app = App("shop", broker=amqp_url)
    attempts = []

    @app.consumer("orders", existing=True, retry=SHORT)
    async def handle(order: dict[str, int]) -> None:
        attempts.append(order["id"])
        if order["id"] != 1:
            raise ValueError("no such customer")

    async with working(app) as (_, watcher):
        for number in (1, 2):
            await connection.publish("events", "order.placed", b'{"id": %d}' % number, Properties(delivery_mode=2))
        await watcher.seen(DeliveryOutcome.DONE, 1)
        await watcher.seen(DeliveryOutcome.PARKED, 1)

    assert sorted(attempts) == [1, 2, 2]
    dead = await take(connection, "orders.dlq")
    assert dead.body == b'{"id": 2}'
    assert await depth(connection, "orders") == await depth(connection, "old.dead") == 0
    held = (await plan_for(connection, adopted())).steps_by(Action.EXISTING)[0].definition
    assert dict(held.arguments) == FOREIGN | {"x-queue-type": kind}


@pytest.mark.usefixtures("kind")
async def test_what_the_broker_removes_goes_where_it_went_before(
    connection: Connection, management_url: str | None
) -> None:
    (step,) = (await plan_for(connection, adopted(), management_url)).steps_by(Action.EXISTING)
    assert step.note == (
        "what expires in it, overflows or is rejected by others goes to its own dead-letter exchange old.dlx, "
        "to old.dead"
    )
    await provision(await plan_for(connection, adopted()), connection)
    await connection.publish("", "orders", b"refused")
    found = await connection.get("orders")
    assert found is not None
    found.reject()
    assert (await take(connection, "old.dead")).body == b"refused"


async def test_a_missing_queue_is_an_error_that_says_what_to_do(connection: Connection, amqp_url: str) -> None:
    plan = await plan_for(connection, adopted())
    assert not plan.is_empty
    assert [str(step.definition) for step in plan.steps_by(Action.MISSING)] == ["queue orders"]

    for declares in (True, False):
        app = App("shop", broker=amqp_url, declare=declares)
        app.queue("orders", existing=True)
        with pytest.raises(TopologyMissing, match="existing=True takes a queue as it is, and never makes it") as caught:
            async with app:
                pass
        assert "queue orders" in caught.value.missing

    assert not await connection.exchange_exists("dlq.orders"), "nothing is made while the queue is missing"


@pytest.mark.usefixtures("kind")
async def test_rejecting_to_retry_needs_a_queue_that_dead_letters_to_its_retry_queue(connection: Connection) -> None:
    with pytest.raises(TopologyError, match=r"via=.reject. needs x-dead-letter-exchange .retry\.orders.") as caught:
        await plan_for(connection, adopted(Retry(attempts=2, delay="50ms", via="reject")))
    assert "has 'old.dlx' and 'orders'" in str(caught.value)
    assert "use via='republish'" in str(caught.value)


@pytest.mark.parametrize("kind", ["classic", "quorum"])
async def test_rejecting_works_where_the_queue_dead_letters_to_its_retry_queue_already(
    connection: Connection, amqp_url: str, kind: str
) -> None:
    route = {"x-dead-letter-exchange": "retry.orders", "x-dead-letter-routing-key": "retry"}
    limit = {"x-delivery-limit": -1} if kind == "quorum" and server_of(connection).unlimited_deliveries else {}
    await connection.declare_queue("orders", arguments={"x-queue-type": kind, **limit, **route})
    app = App("shop", broker=amqp_url)

    @app.consumer("orders", existing=True, retry=Retry(attempts=2, delay="50ms", via="reject"))
    async def handle(_: dict[str, int]) -> None:
        raise ValueError("no such customer")

    async with working(app) as (_, watcher):
        await connection.publish("", "orders", b'{"id": 1}')
        await watcher.seen(DeliveryOutcome.PARKED, 1)
    assert (await take(connection, "orders.dlq")).body == b'{"id": 1}'


async def test_parking_by_reject_needs_a_dead_letter_exchange(connection: Connection, amqp_url: str) -> None:
    await connection.declare_queue("orders")
    app = App("shop", broker=amqp_url)

    @app.consumer("orders", existing=True, park="reject")
    async def handle(order: dict[str, int]) -> None: ...

    with pytest.raises(ConfigurationError, match=r"RabbitMQ would drop the message\. Use park=.publish."):
        async with working(app):
            pass


@pytest.mark.usefixtures("kind")
async def test_parking_by_reject_leaves_it_to_the_queues_own_dead_letter_exchange(
    connection: Connection, amqp_url: str
) -> None:
    app = App("shop", broker=amqp_url)

    @app.consumer("orders", existing=True, retry=None, park="reject")
    async def handle(_: dict[str, int]) -> None:
        raise ValueError("no such customer")

    async with working(app) as (_, watcher):
        await connection.publish("", "orders", b'{"id": 1}')
        await watcher.seen(DeliveryOutcome.PARKED, 1)
    assert (await take(connection, "old.dead")).body == b'{"id": 1}'


@pytest.mark.usefixtures("kind")
async def test_dead_letters_of_an_existing_queue_have_a_consumer(connection: Connection, amqp_url: str) -> None:
    app = App("shop", broker=amqp_url)
    seen = []

    @app.consumer("orders", existing=True, retry=None)
    async def handle(_: dict[str, int]) -> None:
        raise ValueError("no such customer")

    @app.dlq_consumer("orders")
    async def mourn(order: dict[str, int]) -> None:
        seen.append(order["id"])

    async with working(app) as (_, watcher):
        await connection.publish("", "orders", b'{"id": 1}')
        await watcher.seen(DeliveryOutcome.DONE, 1)
    assert seen == [1]
