"""A topology brought to a broker: what is missing is made, what differs is told, and nothing else is touched."""

import asyncio
import secrets
from datetime import timedelta

import pytest

from redrive import App
from redrive.client import Connection, Properties
from redrive.errors import NotFound, TopologyConflict, TopologyMissing
from redrive.inspection import inspect_broker
from redrive.inspection.passive import probe, server_of
from redrive.recovery.retry import Retry, RetryRoute
from redrive.testing import Endpoint
from redrive.topology import Definitions, Exchange, ExchangeDefinition, Queue, QueueDefinition, Topology, expand, ladder
from redrive.topology.plan import Action, Difference, Plan, make_plan
from redrive.worker.topology_apply import provision
from topology_systems import SYSTEMS, orders, routes, system


async def plan_for(connection: Connection, topology: Topology) -> Plan:
    snapshot = await inspect_broker(connection, topology)
    return make_plan(expand(topology, snapshot.server), snapshot)


async def bring(connection: Connection, topology: Topology) -> None:
    await provision(await plan_for(connection, topology), connection)


async def delivery(connection: Connection, queue: str, within: float = 10) -> bytes:
    """Wait for a message, without asking again and again."""
    async with asyncio.timeout(within), await connection.consume(queue) as consumer:
        async for found in consumer:
            found.ack()
            return found.body
    raise AssertionError


@pytest.mark.parametrize("name", SYSTEMS)
async def test_each_system_is_made_and_then_there_is_nothing_left_to_do(connection: Connection, name: str) -> None:
    topology = system(name)
    before = await plan_for(connection, topology)
    assert before.count(Action.CREATE) == len(before.steps) - before.count(Action.EXTRA)
    await provision(before, connection)
    after = await plan_for(connection, topology)
    assert after.is_empty
    assert after.count(Action.CREATE) == 0


async def test_every_route_and_queue_type_is_accepted_by_the_broker(connection: Connection) -> None:
    for kind, via in routes(server_of(connection)):
        parts = orders(kind, via)
        named = Queue(
            f"{kind}.{via}", parts.exchanges[0].on("order.*"), retry=parts.queues[0].retry, type=parts.queues[0].type
        )
        await bring(connection, Topology(parts.exchanges, [named]))
        assert (await plan_for(connection, Topology(parts.exchanges, [named]))).is_empty


async def test_planning_changes_nothing(connection: Connection) -> None:
    first = await plan_for(connection, orders())
    assert await plan_for(connection, orders()) == first
    assert first.count(Action.CREATE) == 9


async def test_every_difference_is_found_by_asking(connection: Connection) -> None:
    await connection.declare_exchange("events", "fanout", arguments={"alternate-exchange": "lost"})
    await connection.declare_queue("orders", arguments={"x-message-ttl": 1000, "x-max-length": 5, "x-expires": 99_000})
    wanted = Definitions.of(
        [ExchangeDefinition("events", "topic")],
        [QueueDefinition("orders", arguments={"x-queue-type": "classic", "x-message-ttl": 2000, "x-max-priority": 3})],
    )
    plan = make_plan(wanted, await probe(connection, wanted, server_of(connection)))
    exchange, queue = plan.conflicts
    assert set(exchange.differences) == {
        Difference("type", "fanout", "topic"),
        Difference("alternate-exchange", "lost", None),
    }
    assert set(queue.differences) == {
        Difference("x-message-ttl", 1000, 2000),
        Difference("x-max-length", 5, None),
        Difference("x-expires", 99_000, None),
        Difference("x-max-priority", None, 3),
    }


async def test_nothing_is_applied_while_anything_conflicts(connection: Connection) -> None:
    await connection.declare_queue("orders.dlq", arguments={"x-max-length": 5})
    plan = await plan_for(connection, orders())
    with pytest.raises(TopologyConflict, match="x-max-length: has 5, wanted nothing") as caught:
        await provision(plan, connection)
    assert "redrive topology migrate" in str(caught.value)
    assert not await connection.exchange_exists("events")


async def test_an_application_that_declares_nothing_says_what_is_missing(amqp_url: str, connection: Connection) -> None:
    await connection.declare_exchange("events", "topic")
    app = App("shop", broker=amqp_url, declare=False)
    app.queue("orders", bind=app.exchange("events", "topic").on("order.*"), dlq=False)

    with pytest.raises(TopologyMissing, match="`redrive topology apply` makes it") as caught:
        async with app:
            pass

    assert caught.value.missing == ("queue orders", "binding events → orders [order.*]")
    with pytest.raises(NotFound):
        await connection.queue_info("orders")


async def test_an_application_that_declares_nothing_works_on_what_is_there_and_as_wanted(
    amqp_url: str, connection: Connection
) -> None:
    app = App("shop", broker=amqp_url, declare=False)
    app.queue("orders", dlq=False)
    await connection.declare_queue("orders")
    async with app:
        await app.publish("", "orders", {"id": 1})
    await connection.delete_queue("orders")
    await connection.declare_queue("orders", arguments={"x-max-length": 5})
    with pytest.raises(TopologyConflict, match="x-max-length: has 5, wanted nothing"):
        async with app:
            pass


@pytest.mark.rabbitmq
async def test_whoever_may_not_configure_can_see_that_everything_is_there(rabbitmq: Endpoint) -> None:
    vhost = name = f"reader-{secrets.token_hex(4)}"
    rabbitmq.add_vhost(vhost)
    rabbitmq.api(f"/users/{name}", "PUT", {"password": "secret", "tags": ""})
    rabbitmq.api(f"/permissions/{vhost}/{name}", "PUT", {"configure": "", "write": ".*", "read": ".*"})
    try:
        app = App("shop", broker=rabbitmq.url_for(vhost).replace("guest:guest@", f"{name}:secret@"), declare=False)
        app.queue("orders", bind=app.exchange("events", "topic").on("order.*"), dlq=False)
        with pytest.raises(TopologyMissing):
            async with app:
                pass
        async with Connection(rabbitmq.url_for(vhost)) as connection:
            await bring(connection, app.topology)
        async with app:
            await app.publish("events", "order.placed", {"id": 1})
    finally:
        rabbitmq.delete_vhost(vhost)
        rabbitmq.api(f"/users/{name}", "DELETE")


async def test_messages_and_strangers_are_left_alone(connection: Connection) -> None:
    await bring(connection, orders())
    await connection.declare_queue("somebody.elses")
    await connection.publish("", "orders", b"keep me")
    await connection.publish("", "somebody.elses", b"me too")
    await bring(connection, orders())
    assert (await connection.queue_info("orders")).messages == 1
    assert (await connection.queue_info("somebody.elses")).messages == 1


async def test_a_quorum_queue_differs_from_a_classic_one(connection: Connection) -> None:
    await connection.declare_queue("orders")
    plan = await plan_for(connection, orders("quorum"))
    assert Difference("x-queue-type", "classic", "quorum") in plan.conflicts[0].differences


# Does it do what it is for? -----------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["classic", "quorum"])
async def test_a_republished_message_waits_and_comes_back_to_its_queue_alone(connection: Connection, kind: str) -> None:
    events = Exchange("events", "topic")
    mine = Queue("mine", events.on("#"), retry=Retry(attempts=2, delay="100ms"), type=kind)  # type: ignore[arg-type]
    other = Queue("other", events.on("#"), dlq=False)
    await bring(connection, Topology([events], [mine, other]))
    await connection.publish("retry.mine", "retry", b"again")
    assert await delivery(connection, "mine") == b"again"
    assert (await connection.queue_info("other")).messages == 0


async def test_a_rejected_message_is_parked_unless_rejecting_is_retrying(connection: Connection) -> None:
    retry = Retry(attempts=2, delay="100ms", via=RetryRoute.REJECT)
    await bring(connection, Topology(queues=[Queue("parks"), Queue("loops", retry=retry)]))
    for queue in ("parks", "loops"):
        await connection.publish("", queue, queue.encode())
        found = await connection.get(queue)
        assert found is not None
        found.reject()
    assert await delivery(connection, "parks.dlq") == b"parks"
    assert await delivery(connection, "loops") == b"loops"


async def test_the_ladder_delays_and_delivers_to_one_queue_alone(connection: Connection) -> None:
    topology = Topology(queues=[Queue(name, retry=Retry(via=RetryRoute.DELAYED), dlq=False) for name in ("a", "x.a")])
    wanted = expand(topology, type(server_of(connection))(server_of(connection).version))
    await provision(make_plan(wanted, await probe(connection, wanted, server_of(connection))), connection)
    loop = asyncio.get_running_loop()
    sent = loop.time()
    await connection.publish(ladder.ENTRANCE, ladder.routing_key(timedelta(seconds=0), "x.a"), b"now")
    await connection.publish(ladder.ENTRANCE, ladder.routing_key(timedelta(seconds=1), "x.a"), b"in a second")
    assert await delivery(connection, "x.a") == b"now"
    assert await delivery(connection, "x.a") == b"in a second"
    assert loop.time() - sent >= 1
    assert (await connection.queue_info("a")).messages == 0


async def test_looking_at_a_quorum_dead_letter_queue_costs_nothing(connection: Connection) -> None:
    await bring(connection, orders("quorum"))
    await connection.publish("dlq.orders", "parking", b"look at me", Properties(delivery_mode=2))
    for _ in range(40):
        found = await connection.get("orders.dlq")
        assert found is not None, "looking deleted it"
        found.nack(requeue=True)
    assert await delivery(connection, "orders.dlq") == b"look at me"
