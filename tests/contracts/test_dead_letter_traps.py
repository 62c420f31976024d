"""The traps of dead letters, one by one, on every broker: each is shown to be there, and not to be fallen into.

What a version does by itself is asserted beside what Redrive does about it, so that a broker that changes its mind is
noticed. A crash between confirm and ack is in `crashes/test_redriving.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from contracts.test_deadletters_raw import EVERY_TYPE
from dead_lettering import (
    DLQ,
    SOURCE,
    Memory,
    a_mover,
    a_service,
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
from redrive.errors import PeekUnsafe, PreconditionFailed, PublishError
from redrive.operations.operation import CanarySchedule, Destination, DestinationKind, ItemOutcome, OperationState
from redrive.operations.peek_allowance import Risk
from redrive.topology import Queue, QueueType, Topology, expand
from redrive.topology.peek_safety import PeekSafety
from redrive.topology.snapshot import Server
from redrive.wire.raw_properties import patch_properties, split_table

TYPES = ["classic", "quorum"]
DEFAULT_LIMIT = 20  # of quorum queues, from 4.0 on

Told = Callable[[str], None]


@pytest.fixture
def tell(capsys: pytest.CaptureFixture[str], connection: Connection) -> Told:
    """Print a result: what was measured is worth more than that it passed."""
    version = ".".join(map(str, connection.server_version))
    product = connection.server_properties.get("product")

    def told(text: str) -> None:
        with capsys.disabled():
            print(f"\n{product} {version}: {text}")

    return told


async def take(connection: Connection, queue: str) -> Delivery:
    """The next message, still to be settled."""
    async with asyncio.timeout(20):
        while (delivery := await connection.get(queue)) is None:  # noqa: ASYNC110 - dead-lettering tells nobody
            await asyncio.sleep(0.02)
    delivery.properties  # noqa: B018 - decoded while it is here
    return delivery


async def taken(connection: Connection, queue: str) -> Delivery:
    delivery = await take(connection, queue)
    delivery.ack()
    return delivery


def headers_of(delivery: Delivery) -> dict[str, Any]:
    return dict(delivery.properties.headers or {})


async def prepare_dying(connection: Connection) -> None:
    """A queue whose rejected messages the broker itself carries to the dead-letter queue, keys as they are."""
    await connection.declare_exchange("dead", "fanout")
    await connection.declare_queue(SOURCE, arguments={"x-dead-letter-exchange": "dead"})
    await connection.declare_queue(DLQ)
    await connection.bind_queue(DLQ, "dead", "")


async def die(connection: Connection) -> None:
    (await take(connection, SOURCE)).reject()
    await until_depth(connection, DLQ, 1)


# What a message carries ---------------------------------------------------------------------------


async def test_a_re_driven_message_counts_its_deaths_from_one(connection: Connection, amqp_url: str) -> None:
    await prepare_dying(connection)
    await connection.publish("", SOURCE, b"{}", Properties(message_id="m-1"))
    await die(connection)

    for again in (1, 2):
        await redrive(amqp_url, id=f"op_{again}")
        back = await take(connection, SOURCE)
        headers = headers_of(back)
        assert not [name for name in headers if "death" in name and name != "x-redriven-deaths"]
        assert headers["x-redriven-count"] == again
        deaths = headers["x-redriven-deaths"]
        assert [(death["queue"], death["reason"], death["count"]) for death in deaths] == [
            (SOURCE, "rejected", 1)
        ] * again
        back.reject()
        dead = await take(connection, DLQ)
        assert [death["count"] for death in headers_of(dead)["x-death"]] == [1]
        dead.nack(requeue=True)
        await until_depth(connection, DLQ, 1)


async def test_who_republishes_with_x_death_goes_on_counting_or_not(connection: Connection) -> None:
    """The trap itself: who trusts the count gets another one from each version."""
    await prepare_dying(connection)
    await connection.publish("", SOURCE, b"{}")
    await die(connection)
    dead = await taken(connection, DLQ)
    await connection.publish("", SOURCE, dead.body, dead.raw_properties)
    await die(connection)

    (death,) = headers_of(await taken(connection, DLQ))["x-death"]
    assert death["count"] == (2 if connection.server_version < (4,) else 1)


async def test_a_message_of_another_user_can_be_re_driven(connection: Connection, another_user: str) -> None:
    await prepare(connection, 0)
    of_guest = Properties(user_id="guest", message_id="m-1", headers={"x-redrive-queue": SOURCE})
    await connection.publish("", DLQ, b"{}", of_guest)
    async with Connection(another_user) as stranger:
        with pytest.raises((PreconditionFailed, PublishError), match="user_id"):
            await stranger.publish("", SOURCE, b"{}", of_guest)

    over = await redrive(another_user)

    assert (over.state, over.counts.moved) == (OperationState.SUCCEEDED, 1)
    delivery = await taken(connection, SOURCE)
    assert delivery.properties.user_id is None
    assert headers_of(delivery)["x-redrive-user-id"] == "guest"


async def test_a_re_driven_message_does_not_expire_again(connection: Connection, amqp_url: str) -> None:
    await prepare(connection, 0)
    await connection.publish("", DLQ, b"{}", Properties(expiration="3600000", headers={"x-redrive-queue": SOURCE}))

    await redrive(amqp_url)

    assert (await taken(connection, SOURCE)).properties.expiration is None


async def test_everything_else_is_byte_for_byte_what_the_publisher_wrote(connection: Connection, amqp_url: str) -> None:
    await prepare(connection, 0)
    every = Properties(
        content_type="application/json",
        content_encoding="gzip",
        headers={"x-redrive-queue": SOURCE, "x-redrive-attempts": 3},
        delivery_mode=1,
        priority=7,
        correlation_id="c-1",
        reply_to="answers",
        message_id="m-1",
        timestamp=1_700_000_000,
        type="OrderPlaced",
        app_id="shop",
        cluster_id="old",
    )
    foreign = {name: value for name, value in EVERY_TYPE.items() if name != b"not utf-8"}
    body = bytes(range(256)) * 3
    await connection.publish("", DLQ, body, patch_properties(every.encode(), set_headers=foreign))
    sent = await take(connection, DLQ)  # as the broker gives it: some of its versions write other types
    sent.nack(requeue=True)
    await until_depth(connection, DLQ, 1)

    await redrive(amqp_url)

    back = await taken(connection, SOURCE)
    assert back.body == body
    before, after = raw_headers(sent), raw_headers(back)
    assert {name: after.get(name) for name in foreign} == {name: before[name] for name in foreign}
    lineage = {f"x-redriven-{what}".encode() for what in ("count", "at", "by", "op", "from", "reason")}
    assert after.keys() - foreign.keys() == lineage
    for name in vars(every):
        if name not in ("headers", "_encoded"):
            assert getattr(back.properties, name) == getattr(sent.properties, name), name


def raw_headers(delivery: Delivery) -> dict[bytes, bytes]:
    """As they stand on the wire. Of the properties before them, this test has both."""
    raw = delivery.raw_properties
    at = 2
    for _ in ("content_type", "content_encoding"):
        at += 1 + raw[at]
    return dict(split_table(raw[at:]))


async def test_a_copy_goes_nowhere_a_second_time(connection: Connection, amqp_url: str) -> None:
    await prepare_dying(connection)
    await connection.declare_queue("copies")
    await connection.declare_queue("secrets")
    properties = Properties(headers={"CC": ["copies"], "BCC": ["secrets"]})
    await connection.publish("", SOURCE, b"{}", properties)
    assert len(await bodies(connection, "copies")) == len(await bodies(connection, "secrets")) == 1
    await die(connection)
    dead = await take(connection, DLQ)
    assert headers_of(dead)["CC"] == ["copies"]  # the trap: it is still there
    dead.nack(requeue=True)
    await until_depth(connection, DLQ, 1)

    await redrive(amqp_url)

    back = await taken(connection, SOURCE)
    assert not {"CC", "BCC"} & headers_of(back).keys()
    assert await bodies(connection, "copies") == await bodies(connection, "secrets") == []


# Where it goes ------------------------------------------------------------------------------------


async def test_a_message_whose_queue_is_gone_stays(connection: Connection, amqp_url: str) -> None:
    await prepare(connection, 2)
    await connection.publish("", "nowhere", b"gone", mandatory=False)  # the trap: confirmed, and nowhere
    await connection.delete_queue(SOURCE)
    memory = Memory()

    over = await redrive(amqp_url, memory=memory)

    assert (over.state, over.counts.moved, over.counts.failed) == (OperationState.PARTIAL, 0, 2)
    assert all("no queue" in item.why or "NO_ROUTE" in item.why for item in memory.outcomes(ItemOutcome.FAILED))
    assert await bodies(connection, DLQ) == orders(0, 1)


async def test_the_plan_says_that_the_destination_is_missing(
    connection: Connection, amqp_url: str, tmp_path: Path, management_url: str | None
) -> None:
    await prepare(connection, 2)
    service = a_service(amqp_url, tmp_path, management=management_url)

    made = await service.plan(an_order(to=Destination(DestinationKind.QUEUE, "nowhere")))

    assert (made.eligible, made.targets[0].exists) == (2, False)
    assert "nowhere does not exist: nothing can be moved there" in made.warnings


async def test_the_plan_warns_of_messages_older_than_the_inbox_remembers(
    connection: Connection, amqp_url: str, tmp_path: Path
) -> None:
    await prepare(connection, 2)
    short = a_service(amqp_url, tmp_path, inbox_windows={SOURCE: timedelta(days=7)})
    long = a_service(amqp_url, tmp_path, inbox_windows={SOURCE: timedelta(days=36500)})

    (warning,) = [text for text in (await short.plan(an_order())).warnings if "inbox" in text]

    assert "the inbox of orders remembers 7d" in warning
    assert not [text for text in (await long.plan(an_order())).warnings if "inbox" in text]


# Who else is there --------------------------------------------------------------------------------


@pytest.mark.parametrize("queue_type", TYPES)
async def test_what_arrives_meanwhile_is_left(
    connection: Connection, other: Connection, amqp_url: str, queue_type: str
) -> None:
    """Also where several passes are made over a queue that puts what it gets back at its end."""
    await prepare(connection, 8, queue_type, **no_limit(connection, queue_type))
    async with operating(amqp_url) as broker, handling(other, SOURCE) as handled:
        mover = a_mover(
            broker, an_order(ramp=CanarySchedule((2, 2), wait=0.2), rate=50), keeps_order=queue_type == "classic"
        )
        running = asyncio.create_task(mover.run())
        await eventually(lambda: mover.operation.counts.moved > 0)
        now = datetime.now(UTC) + timedelta(seconds=1)
        await connection.publish_many([dead_letter(99, **{"x-redrive-parked-at": now.isoformat()})])
        over = await running

    assert (over.state, over.counts.moved) == (OperationState.SUCCEEDED, 8)
    await until_depth(connection, DLQ, 1)
    assert await bodies(connection, DLQ) == orders(99)
    assert sorted(handled) == orders(*range(8))


# Looking ------------------------------------------------------------------------------------------


def no_limit(connection: Connection, queue_type: str) -> dict[str, Any]:
    """What makes looks free, where that needs saying."""
    unlimited = Server(connection.server_version).unlimited_deliveries
    return {"x-delivery-limit": unlimited} if queue_type == "quorum" and unlimited is not None else {}


def counts_looks(connection: Connection) -> bool:
    """A quorum queue of this version, without a word about limits: does a look cost?"""
    return (4,) <= connection.server_version < (4, 3)


@pytest.mark.parametrize("queue_type", [*TYPES, "quorum with defaults"])
async def test_a_hundred_looks_lose_nothing_or_are_refused(
    connection: Connection, amqp_url: str, tmp_path: Path, management_url: str | None, queue_type: str, tell: Told
) -> None:
    kind = queue_type.split()[0]
    await prepare(connection, 30, kind, **(no_limit(connection, kind) if kind == queue_type else {}))
    service = a_service(amqp_url, tmp_path, management=management_url)
    refused = 0
    for _ in range(100):
        try:
            page = await service.peek(DLQ, limit=30)
        except PeekUnsafe:
            refused += 1
        else:
            assert len({letter.message_id for letter in page.dead_letters}) == 30

    assert refused == (100 if queue_type == "quorum with defaults" and counts_looks(connection) else 0)
    await until_depth(connection, DLQ, 30)
    assert sorted(await bodies(connection, DLQ)) == sorted(orders(*range(30)))
    tell(f"{queue_type}: {100 - refused} looks at 30 messages, {refused} refused, 30 messages left")


async def test_the_twenty_first_look_would_delete(connection: Connection, tell: Told) -> None:
    """The trap itself, with get and nack as everybody does it."""
    await prepare(connection, 3, "quorum")
    looks = 0
    while looks < 40 and (delivery := await connection.get(DLQ)) is not None:
        for each in [delivery, *[await connection.get(DLQ) for _ in range(2)]]:
            assert each is not None
            each.nack(requeue=True)
        looks += 1
        await until_given_back(connection, looks)

    left = await bodies(connection, DLQ)
    if counts_looks(connection):
        assert (looks, left) == (DEFAULT_LIMIT + 1, [])
    else:
        assert (looks, len(left)) == (40, 3)
    tell(f"quorum with defaults, get and nack: {looks} looks, {len(left)} of 3 messages left")


async def until_given_back(connection: Connection, looks: int) -> None:
    """A quorum queue has its messages back a moment later; where looks count, not after the last one."""
    last = counts_looks(connection) and looks > DEFAULT_LIMIT
    await until_depth(connection, DLQ, 0 if last else 3)


async def test_a_look_that_counts_is_refused_before_a_message_is_touched(
    connection: Connection, amqp_url: str, tmp_path: Path, management_url: str | None
) -> None:
    await prepare(connection, 1, "quorum")
    service = a_service(amqp_url, tmp_path, management=management_url)
    looks: list[Callable[[], Any]] = [
        lambda: service.peek(DLQ),
        lambda: service.groups(DLQ),
        lambda: service.message(DLQ, "m-0"),
        lambda: service.plan(an_order()),
    ]
    if not counts_looks(connection):
        for look in looks:
            await look()
        return
    for look in looks:
        with pytest.raises(PeekUnsafe, match=r"look 21 deletes what it shows.*redrive doctor.*--spend-deliveries"):
            await look()
    operation = await service.begin(an_order())
    with pytest.raises(PeekUnsafe):
        await service.run(operation)

    delivery = await taken(connection, DLQ)
    assert not delivery.redelivered
    assert "x-delivery-count" not in headers_of(delivery)
    (view,) = await service.queues([DLQ])
    assert (view.peek_safety, view.oldest) == (PeekSafety.COUNTS, None)


async def test_who_spends_deliveries_pays_one_for_each_look(
    connection: Connection, amqp_url: str, tmp_path: Path, management_url: str | None
) -> None:
    await prepare(connection, 1, "quorum", **{"x-delivery-limit": 20})
    service = a_service(amqp_url, tmp_path, management=management_url)

    for _ in range(3):
        assert len((await service.peek(DLQ, risk=Risk(spend=True))).dead_letters) == 1

    paid = headers_of(await taken(connection, DLQ)).get("x-delivery-count", 0)
    assert paid == (3 if connection.server_version < (4, 3) else 0)


async def test_the_limit_that_lifts_all_limits_deletes_on_3_x(
    connection: Connection, amqp_url: str, tmp_path: Path, management_url: str | None, tell: Told
) -> None:
    await prepare(connection, 2, "quorum", **{"x-delivery-limit": -1})
    service = a_service(amqp_url, tmp_path, management=management_url)
    if connection.server_version >= (4,):
        assert len((await service.peek(DLQ)).dead_letters) == 2
        return
    for spend in (False, True):
        with pytest.raises(PeekUnsafe, match="deletes a message at its first return") as refused:
            await service.peek(DLQ, risk=Risk(spend=spend))
        assert "--spend" not in str(refused.value)
    await until_depth(connection, DLQ, 2)

    (await take(connection, DLQ)).nack(requeue=True)
    await until_depth(connection, DLQ, 1)
    tell("quorum with x-delivery-limit -1: one get and nack, 1 of 2 messages left")


@pytest.mark.parametrize("spend", [False, True])
async def test_a_stream_is_refused(
    connection: Connection, amqp_url: str, tmp_path: Path, management_url: str | None, spend: bool
) -> None:
    try:
        await connection.declare_queue(DLQ, arguments={"x-queue-type": "stream"})
    except PreconditionFailed:
        pytest.skip("the embedded broker has no streams")
    service = a_service(amqp_url, tmp_path, management=management_url)

    with pytest.raises(PeekUnsafe, match="a stream"):
        await service.peek(DLQ, risk=Risk(spend=spend))


async def test_plain_amqp_does_not_know_policies_and_says_so(
    connection: Connection, amqp_url: str, tmp_path: Path
) -> None:
    """Where there is no limit by default, a policy may have set one, and only the management API would tell."""
    await prepare(connection, 2, "quorum")
    service = a_service(amqp_url, tmp_path)
    (view,) = await service.queues([DLQ])
    if connection.server_version >= (4, 3):
        assert view.peek_safety is PeekSafety.SAFE
        return
    with pytest.raises(PeekUnsafe) as refused:
        await service.peek(DLQ)
    if connection.server_version < (4,):
        assert view.peek_safety is PeekSafety.UNKNOWN
        assert "REDRIVE_MANAGEMENT" in str(refused.value)
    else:
        assert view.peek_safety is PeekSafety.COUNTS
    assert len((await service.peek(DLQ, risk=Risk(spend=True))).dead_letters) == 2


async def test_a_policy_can_make_looks_cost(
    connection: Connection,
    amqp_url: str,
    tmp_path: Path,
    management_url: str | None,
    request: pytest.FixtureRequest,
) -> None:
    if management_url is None:
        pytest.skip("the embedded broker has no policies")
    await prepare(connection, 2, "quorum")
    vhost = amqp_url.rpartition("/")[2]
    policy = {"pattern": "dlq$", "definition": {"delivery-limit": 5}, "apply-to": "queues"}
    request.getfixturevalue("rabbitmq").api(f"/policies/{vhost}/limit", "PUT", policy)
    service = a_service(amqp_url, tmp_path, management=management_url)
    wanted = PeekSafety.SAFE if connection.server_version >= (4, 3) else PeekSafety.COUNTS

    async with asyncio.timeout(20):  # the management API tells of policies a moment later
        while True:
            (view,) = await service.queues([DLQ])
            if view.peek_safety is wanted and ("look 6" in view.peek_note or wanted is PeekSafety.SAFE):
                return
            await asyncio.sleep(0.2)


async def test_the_dead_letter_queue_that_redrive_declares_can_always_be_looked_at(
    connection: Connection, amqp_url: str, tmp_path: Path, tell: Told
) -> None:
    """By an application that says nothing of limits, without the management API."""
    topology = Topology(queues=[Queue(SOURCE, type=QueueType.QUORUM)])
    for queue in expand(topology, Server(connection.server_version)).queues:
        await connection.declare_queue(queue.name, arguments=dict(queue.arguments))
    await connection.publish_many(dead_letter(number) for number in range(5))
    await until_depth(connection, DLQ, 5)
    service = a_service(amqp_url, tmp_path, topology=topology)

    for _ in range(DEFAULT_LIMIT + 5):
        assert len((await service.peek(DLQ)).dead_letters) == 5

    await until_depth(connection, DLQ, 5)
    tell(f"quorum, declared by the application: {DEFAULT_LIMIT + 5} looks, 5 of 5 messages left")
